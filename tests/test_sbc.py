"""Simulation-based calibration: its own tests, posteriors that pass it, and bugs that do not."""

import itertools
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.bijections import SinhArcsinh
from burnish.inference import flow
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PROBLEMS = ("binary", "three-class", "regression", "few points")
NUM_SIMULATIONS = 150  # of what is right
NUM_BUGGED = 60  # of what is wrong: enough to see it


@pytest.fixture(scope="module")
def sbc():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import sbc

        yield sbc
    for name in ("sbc", "records"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def hmc(sbc):
    """Draws by a short HMC, in the coordinates of Laplace's Gaussian when no others are given."""

    def draw(target, generator, start=None):
        start = fit_laplace(target).posterior if start is None else start
        return sbc.last_draws(sbc.run_hmc(target, start, generator=generator, num_warmup=30, num_transitions=6))

    return draw


@pytest.fixture(scope="module")
def hmc_ranks(sbc, hmc):
    """Ranks among draws by HMC, simulated once for each problem."""
    return cache(lambda name: sbc.simulate_ranks(sbc.PROBLEMS[name], hmc, NUM_SIMULATIONS))


@pytest.fixture
def assert_caught(sbc):
    """Checks that ranks with a bug leave the band where expected, and that those without it do not leave it anywhere."""

    def check(name, bugged, clean, *, by):
        found = sbc.assess(bugged)
        assert not found.inside
        assert sbc.PROBLEMS[name].quantities[int(found.excursions.argmax())].startswith(by), found.excursions.tolist()
        assert sbc.assess(clean).inside

    return check


def gaussian_ranks(num_simulations, num_draws, std):
    """Ranks of standard normal truths among draws with another standard deviation."""
    noise = torch.randn(num_simulations, num_draws + 1, generator=make_generator(0))
    return (std * noise[:, 1:] < noise[:, :1]).sum(1, keepdim=True).numpy()


# The test of uniformity.


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.7])
def test_coverage_is_that_of_all_possible_ranks(sbc, threshold):
    num_simulations, num_draws = 4, 3
    tails = sbc.tail_probabilities(num_simulations, num_draws)
    inside = []
    for ranks in itertools.product(range(num_draws + 1), repeat=num_simulations):
        below = [sum(rank <= k for rank in ranks) for k in range(num_draws)]
        inside.append(all(tails[k, count] > threshold for k, count in enumerate(below)))
    assert 0.0 < np.mean(inside) < 1.0
    assert sbc.coverage(num_simulations, num_draws, threshold) == pytest.approx(np.mean(inside), abs=1e-12)


@pytest.mark.parametrize(("level", "num_quantities"), [(0.9, 1), (0.9, 5), (0.99, 1)])
def test_the_band_holds_uniform_ranks_as_often_as_it_says(sbc, level, num_quantities):
    num_repetitions, num_simulations, num_draws = 2000, 200, 63
    ranks = np.random.default_rng(0).integers(0, num_draws + 1, (num_repetitions, num_simulations, num_quantities))
    lower, upper = sbc.band(num_simulations, num_draws, 1.0 - (1.0 - level) / num_quantities)
    below = (ranks[..., None] <= np.arange(num_draws)).sum(1)
    inside = ((lower < below) & (below < upper)).all((1, 2))
    error = (level * (1.0 - level) / num_repetitions) ** 0.5
    assert inside.mean() == pytest.approx(level, abs=4.0 * error + 0.005)  # counts are whole: the level is met or exceeded
    assessed = [sbc.assess(part, level=level).inside for part in ranks[:50]]
    assert assessed == inside[:50].tolist()


def test_p_values_of_uniform_ranks_are_uniform(sbc):
    ranks = np.random.default_rng(1).integers(0, 64, (300, 400))
    found = sbc.assess(ranks)
    for values in (found.p_values, found.chi_square):
        shares = [(values <= level).mean() for level in (0.05, 0.2, 0.5, 0.8)]
        assert shares == pytest.approx([0.05, 0.2, 0.5, 0.8], abs=0.06)


def test_inside_is_what_the_p_value_says(sbc):
    for std in np.linspace(0.75, 1.0, 26):
        found = sbc.assess(gaussian_ranks(300, 63, std))
        assert found.inside == (found.p_value > 0.01)


@pytest.mark.parametrize(("std", "inside"), [(1.0, True), (0.8, False), (1.25, False)])
def test_a_spread_that_is_off_by_a_fifth_is_seen(sbc, std, inside):
    found = sbc.assess(gaussian_ranks(1000, 63, std))
    assert found.inside is inside
    assert (found.chi_square_p_value > 0.01) is inside


# The simulations.


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_simulation_depends_on_its_index_alone(sbc, name, untouched_rng):
    problem = sbc.PROBLEMS[name]
    first, again, other = (sbc.simulate(problem, generator=sbc.generator_of(problem, 0, i)) for i in (3, 3, 4))
    assert torch.equal(first.truth, again.truth)
    assert torch.equal(first.target.data.targets, again.target.data.targets)
    assert not torch.equal(first.truth, other.truth)
    assert first.quantities(first.truth.unsqueeze(0)).shape == (1, len(problem.quantities))


def exact_regression(target, generator):
    """Draws of the posterior of a linear regression by the normal equations, each output for itself."""
    inputs = torch.cat([target.data.inputs, torch.ones(len(target.data), 1, dtype=torch.float64)], 1)
    noise_precision = target.model.likelihood.std**-2
    precision = noise_precision * inputs.T @ inputs + target.prior_precision * torch.eye(inputs.shape[1])
    pulled = noise_precision * inputs.T @ target.data.targets + target.prior_precision * target.prior_mean
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))
    noise = torch.randn(63, *pulled.T.shape, generator=generator, dtype=torch.float64)
    matrix = torch.linalg.solve(precision, pulled).T + noise @ factor.T
    return target.model.head.from_matrix(matrix)


def test_ranks_among_draws_of_an_exact_posterior_are_uniform(sbc):
    assert sbc.assess(sbc.simulate_ranks(sbc.PROBLEMS["regression"], exact_regression, 400)).inside


def test_ranks_of_parameters_do_not_show_that_data_were_ignored_but_that_of_the_likelihood_does(sbc):
    problem = sbc.PROBLEMS["binary"]
    ranks = sbc.simulate_ranks(problem, lambda target, g: target.prior.sample(63, generator=g), 200)
    outside = {q for q, size in zip(problem.quantities, sbc.assess(ranks).excursions, strict=True) if size >= 1.0}
    assert outside == {"log likelihood"}


@pytest.mark.slow
def test_ranks_do_not_depend_on_the_number_of_processes(sbc):
    tasks = [("binary", 0, index) for index in range(3)]
    runs = []
    for processes in (1, 2):
        with sbc.parallel_map(processes) as run:
            runs.append(list(run(sbc.compare_methods, tasks)))
    for alone, shared in zip(*runs, strict=True):
        for method in sbc.METHODS:
            assert alone[method]["ranks"].tolist() == shared[method]["ranks"].tolist()


# Posteriors that should pass.


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_hmc_is_calibrated(sbc, hmc_ranks, name):
    found = sbc.assess(hmc_ranks(name))
    assert found.inside, dict(zip(sbc.PROBLEMS[name].quantities, found.excursions.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "inside"), [("regression", True), ("three-class", False)])
def test_laplace_is_calibrated_where_the_posterior_is_gaussian(sbc, name, inside):
    ranks = sbc.simulate_ranks(
        sbc.PROBLEMS[name], lambda target, g: fit_laplace(target).posterior.sample(63, generator=g), 200
    )
    assert sbc.assess(ranks).inside is inside


# Bugs that must not pass.


@pytest.mark.slow
def test_a_prior_counted_twice_is_caught(sbc, hmc, hmc_ranks, assert_caught):
    problem = sbc.PROBLEMS["few points"]
    bugged = sbc.simulate_ranks(
        problem, lambda target, g: hmc(target.with_prior(2.0 * target.prior_precision), g), NUM_BUGGED
    )
    assert_caught("few points", bugged, hmc_ranks("few points"), by="log prior")


@pytest.mark.slow
def test_a_bias_without_a_prior_is_caught(sbc, hmc, hmc_ranks, assert_caught):
    def draw(target, generator):
        precision = torch.full((target.dim,), float(target.prior_precision), dtype=torch.float64)
        precision[-target.model.head.num_outputs :] = 0.01
        return hmc(target.with_prior(precision), generator)

    bugged = sbc.simulate_ranks(sbc.PROBLEMS["three-class"], draw, NUM_BUGGED)
    assert_caught("three-class", bugged, hmc_ranks("three-class"), by=("bias", "log prior"))


class Flipped(SinhArcsinh):
    """The sign of the log-determinant is wrong."""

    def forward(self, z):
        image, logdet = super().forward(z)
        return image, -logdet

    def inverse(self, z):
        preimage, logdet = super().inverse(z)
        return preimage, -logdet


@pytest.mark.slow
def test_a_log_determinant_of_the_wrong_sign_is_caught(sbc, hmc, assert_caught):
    """In coordinates that are bent on purpose: right ones sample the same posterior, if more slowly."""

    def ranks(kind, count):
        def draw(target, generator):
            laplace = fit_laplace(target).posterior
            bend = kind(torch.full_like(laplace.mean, 0.5), torch.full_like(laplace.mean, -0.5))
            return hmc(target, generator, FlowPosterior.whitened(laplace, [bend]))

        return sbc.simulate_ranks(sbc.PROBLEMS["regression"], draw, count)

    assert_caught("regression", ranks(Flipped, NUM_BUGGED), ranks(SinhArcsinh, 100), by="")


@pytest.mark.slow
def test_an_elbo_without_entropy_is_caught(sbc, monkeypatch, assert_caught):
    def draw(target, generator):
        fit = fit_flow(target, fit_laplace(target).posterior, generator=generator, max_steps=200)
        return fit.posterior.sample(63, generator=generator)

    def elbo_and_surrogate(source, layers, outer, noise, estimate, path_gradient):
        theta = outer.forward(FlowPosterior(source, tuple(layers)).from_noise(noise)[0])[0]
        value, grad = estimate(theta.detach())
        return value, (theta * grad).sum() / len(noise)

    def elbo_terms(target, posterior, noise):
        return target.log_prob(posterior.from_noise(noise)[0].detach())

    problem = sbc.PROBLEMS["binary"]
    clean = sbc.simulate_ranks(problem, draw, 100)
    monkeypatch.setattr(flow, "_elbo_and_surrogate", elbo_and_surrogate)
    monkeypatch.setattr(flow, "elbo_terms", elbo_terms)
    bugged = sbc.simulate_ranks(problem, draw, NUM_BUGGED)
    assert_caught("binary", bugged, clean, by="")


@pytest.mark.slow
def test_labels_that_are_off_by_one_are_caught(sbc, hmc, hmc_ranks, assert_caught):
    def draw(target, generator):
        targets = (target.data.targets + 1) % target.model.head.num_outputs
        return hmc(replace(target, data=replace(target.data, targets=targets)), generator)

    bugged = sbc.simulate_ranks(sbc.PROBLEMS["three-class"], draw, NUM_BUGGED)
    assert_caught("three-class", bugged, hmc_ranks("three-class"), by="log likelihood")
