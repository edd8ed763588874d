"""The drift test: what it measures against exact distances, for every kind of posterior and likelihood."""

import sys
from pathlib import Path

import pytest
import torch

from burnish.drift import Drift, measure_drift
from burnish.inference.flow import fit_flow
from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.likelihoods import GaussianNoise
from burnish.linear_bijections import Affine
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Diagonal
from burnish.target import Target

sys.path.append(str(Path(__file__).parent / "inference"))
from problems import binary, classification, regression


def moved(posterior, offset, factor=1.0):
    return Gaussian(posterior.mean + offset, posterior.scale.stretched(torch.full_like(posterior.mean, factor)))


def normal_distance(mean, std, other_mean, other_std):
    """Total variation distance of two normal distributions, by a sum over a grid."""
    grid = torch.linspace(-30, 30, 20001, dtype=torch.float64)
    first, second = (
        torch.distributions.Normal(m, s).log_prob(grid).exp() for m, s in ((mean, std), (other_mean, other_std))
    )
    return float(0.5 * (first - second).abs().sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_distance_is_the_exact_one_in_regression(shift, factor):
    """One feature that is one, so that there is one prediction: N(mean, posterior variance + noise variance)."""
    inputs = torch.ones(40, 1, dtype=torch.float64)
    targets = torch.randn(40, generator=make_generator(1), dtype=torch.float64)
    target = Target.last_layer(inputs, targets, prior_precision=0.01, bias=False, likelihood=GaussianNoise(0.3))
    posterior = fit_laplace(target).posterior
    spoilt = moved(posterior, shift * 0.3, factor)
    drift = measure_drift(target, spoilt, inputs, generator=make_generator(2))
    variance = float(posterior.scale.variance())
    stds = [(size * variance + 0.09) ** 0.5 for size in (1.0, factor**2)]
    truth = normal_distance(float(posterior.mean), stds[0], float(spoilt.mean), stds[1])
    assert drift.distance == pytest.approx(truth, rel=0.1, abs=3 * drift.noise)  # 20 intervals lose a little
    assert drift.num_chains == 96


@pytest.mark.parametrize("make", [classification, binary, regression])
def test_exact_posteriors_stay_and_others_drift(make):
    target = make(num_points=60)
    inputs = target.data.inputs
    reference = fit_hmc(target, fit_laplace(target).posterior, generator=make_generator(0), min_draws=100)
    kept = SamplePosterior(reference.posterior.samples[::3])
    flow = fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0)).posterior
    for good in (kept, flow):
        drift = measure_drift(target, good, inputs, generator=make_generator(1))
        assert drift.exact
        assert drift.distance < 0.3 * drift.tolerance + 2 * drift.noise
    ones = torch.ones_like(kept.samples[0])
    offset = torch.linspace(-1.0, 1.0, target.dim).to(ones)  # the same for all classes would change no prediction
    bad_flow = FlowPosterior(flow.base, (*flow.bijections, Affine(offset, Diagonal(ones))))
    for bad in (SamplePosterior(kept.samples + offset), bad_flow):
        drift = measure_drift(target, bad, inputs, generator=make_generator(1))
        assert drift.moved
        assert not drift.exact


def test_noise_of_samples_is_theirs_and_that_of_our_draws_is_not():
    """Five exact draws predict badly, and that is what a posterior of five samples is."""
    target = classification(num_points=40)
    fit = fit_hmc(target, fit_laplace(target).posterior, generator=make_generator(0))
    few = SamplePosterior(fit.posterior.draws[:5, -1])
    drift = measure_drift(target, few, target.data.inputs, generator=make_generator(1))
    assert drift.distance == pytest.approx(2 * drift.few_draws, rel=0.6)
    many = measure_drift(target, fit.posterior, target.data.inputs, generator=make_generator(1))
    assert many.distance < 0.3 * many.few_draws


def test_twenty_exact_draws():
    """The yardstick is what 20 independent draws are away from the exact predictions on average."""
    flat = binary(num_points=25)
    gaussian = fit_laplace(flat).posterior
    seen = measure_drift(flat, gaussian, flat.data.inputs, generator=make_generator(1))
    probs = flat.model(gaussian.sample(40_000, generator=make_generator(3)), flat.data.inputs).sigmoid().squeeze(-1)
    sets = probs.view(2000, 20, -1).mean(1)
    expected = float((sets - probs.mean(0)).abs().mean())
    assert seen.few_draws == pytest.approx(expected, rel=0.25)  # of the exact posterior, which the Gaussian is near to


def test_a_density_that_is_neither_a_gaussian_nor_a_flow():
    """Correlated in more dimensions than its own draws could show: its chains move in coordinates of the target."""

    class Mixture:
        def __init__(self, gaussian):
            self.gaussian, self.dim = gaussian, gaussian.dim

        def log_prob(self, theta):
            return self.gaussian.log_prob(theta)

        def sample(self, num_samples, *, generator):
            return self.gaussian.sample(num_samples, generator=generator)

        def sample_and_log_prob(self, num_samples, *, generator):
            return self.gaussian.sample_and_log_prob(num_samples, generator=generator)

    generator = make_generator(0)
    inputs = torch.randn(60, 150, generator=generator, dtype=torch.float64) @ torch.diag(torch.logspace(0, -2, 150).double())
    targets = inputs[:, 0] + 0.3 * torch.randn(60, generator=generator, dtype=torch.float64)
    target = Target.last_layer(inputs, targets, prior_precision=0.01, likelihood=GaussianNoise(0.3))
    exact = Mixture(fit_laplace(target).posterior)
    assert measure_drift(target, exact, inputs, generator=generator).exact
    wide = Mixture(moved(exact.gaussian, 0.0, 2.0))
    drift = measure_drift(target, wide, inputs, generator=generator)
    assert drift.moved
    assert not drift.exact


@pytest.mark.parametrize("factor", [1e-7, 1e4])
def test_chains_that_get_nowhere_show_nothing(factor):
    """Much too narrow, and draws spread for long before predictions change; much too wide, and they hardly move."""
    target = classification(num_points=60)
    posterior = fit_laplace(target).posterior
    drift = measure_drift(target, moved(posterior, 0.0, factor), target.data.inputs, generator=make_generator(1))
    assert not drift.exact
    assert not drift.moved


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1.0, 2.0, 1e2])
def test_the_distance_is_found_from_far_away(factor):
    """Chains that have not arrived go on until they have."""
    target = classification(num_points=60)
    posterior = fit_laplace(target).posterior
    run = fit_hmc(target, posterior, generator=make_generator(0), min_draws=200)
    spoilt = moved(posterior, 0.0, factor)
    exact, found = (
        target.model(draws, target.data.inputs).softmax(-1).mean(0)
        for draws in (run.posterior.samples, spoilt.sample(4000, generator=make_generator(3)))
    )
    truth = float(0.5 * (exact - found).abs().sum(-1).mean())
    drift = measure_drift(target, spoilt, target.data.inputs, generator=make_generator(1))
    assert drift.moved
    assert drift.distance == pytest.approx(truth, rel=0.1, abs=0.003)


def test_posteriors_that_never_accept():
    assert not Drift(0.0, 0.001, 0.02, 0.1, 1.5, False, 96, 800).exact
    assert not Drift(0.0, 0.001, 0.02, 0.9, 0.01, False, 96, 800).exact
    assert not Drift(0.0, 0.001, 0.02, 0.9, 1.5, True, 96, 800).exact
    assert Drift(0.0, 0.001, 0.02, 0.9, 1.5, False, 96, 800).exact


def test_what_counts_as_exact():
    """The middle between clearly right, half of it, and clearly wrong: 0.01, or twice the distance of 20 exact draws."""
    assert Drift(0.0069, 0.0, 0.001, 0.8, 1.5, False, 96, 800).exact
    assert not Drift(0.0071, 0.0, 0.001, 0.8, 1.5, False, 96, 800).exact
    assert Drift(0.0279, 0.0, 0.02, 0.8, 1.5, False, 96, 800).exact
    assert not Drift(0.0281, 0.0, 0.02, 0.8, 1.5, False, 96, 800).exact


def test_many_inputs_are_thinned_and_large_data_has_fewer_chains(monkeypatch):
    target = classification(num_points=60)
    posterior = fit_laplace(target).posterior
    inputs = target.data.inputs.repeat(100, 1)
    monkeypatch.setattr("burnish.drift._PRODUCTS", 60 * target.dim * 20)
    drift = measure_drift(target, posterior, inputs, generator=make_generator(1))
    assert drift.num_chains == 20
    assert 1000 < drift.num_inputs <= 2**13 // 4


def test_inputs_with_a_period():
    """Every second input has another feature: a stride through them might never meet the one that is predicted wrongly."""
    generator = make_generator(0)
    inputs = torch.zeros(24_000, 2, dtype=torch.float64)
    inputs[::2, 0], inputs[1::2, 1] = 1.0, 1.0
    probs = torch.tensor([0.3, 0.6], dtype=torch.float64)[torch.arange(24_000) % 2]
    labels = (torch.rand(24_000, generator=generator, dtype=torch.float64) < probs).long()
    target = Target.last_layer(inputs, labels, prior_precision=0.1, bias=False)
    posterior = fit_laplace(target).posterior
    for index in (0, 1):
        spoilt = Gaussian(posterior.mean + 0.3 * (torch.arange(4) == index), posterior.scale)
        assert not measure_drift(target, spoilt, inputs, generator=make_generator(1)).exact


@pytest.mark.parametrize("factor", [1e15, 1e-30])
def test_chains_of_which_none_moves(factor):
    target = classification(num_points=60)
    spoilt = moved(fit_laplace(target).posterior, 1e8 if factor > 1 else 0.0, factor)
    drift = measure_drift(target, spoilt, target.data.inputs, generator=make_generator(1))
    assert not drift.moved
    assert not drift.exact


def test_the_same_generator_gives_the_same_drift(untouched_rng):
    target = classification(num_points=60)
    posterior = fit_laplace(target).posterior
    first, second = (measure_drift(target, posterior, target.data.inputs, generator=make_generator(4)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("factor", [0.0, 0.01, 0.1])
def test_posteriors_that_are_much_too_narrow(factor):
    """Chains spread at last, or are seen to be still spreading; a single point is the extreme."""
    generator = make_generator(0)
    inputs = torch.randn(300, 20, generator=generator)
    labels = torch.multinomial((inputs @ torch.randn(20, 5, generator=generator)).softmax(-1), 1, generator=generator)
    target = Target.last_layer(inputs, labels.squeeze(1), prior_precision=1.0)
    posterior = fit_laplace(target).posterior
    run = fit_hmc(target, posterior, generator=generator).posterior
    exact = target.model(run.samples[::8], inputs).softmax(-1).mean(0)
    mean = run.samples.mean(0)
    narrow = SamplePosterior(mean + factor * (run.samples[::8] - mean))
    densities = [Gaussian(mean, posterior.scale.stretched(torch.full_like(mean, factor)))] if factor else []
    for spoilt in (narrow, *densities):
        probs = target.model(spoilt.sample(1000, generator=generator), inputs).softmax(-1).mean(0)
        truth = float(0.5 * (probs - exact).abs().sum(-1).mean())
        drift = measure_drift(target, spoilt, inputs, generator=generator)
        assert not drift.moved or drift.distance == pytest.approx(truth, rel=0.3, abs=0.005)
