"""Gaussian variational inference: exact where the posterior is Gaussian, optimal where it is not, and what is refused."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from problems import binary, classification, features, regression, regression_truth
from torch import nn

from burnish.batches import Batch
from burnish.diagnostics import elbo
from burnish.flat_network import flatten_network
from burnish.inference.laplace import fit_laplace
from burnish.inference.variational import fit_vb
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, LowRank
from burnish.target import Target
from networks import randomised

STEADY = {"stop_early": False, "num_samples": 256, "max_steps": 300}  # no noise in when it ends, and little in where


def shifted(target, offset, width):
    """Independent parameters of one width, all with one mean."""
    like = torch.ones(target.dim, dtype=torch.float64)
    return Gaussian(offset * like, Diagonal(width * like))


def divergence(mean, covariance, gaussian):
    """KL(gaussian || N(mean, covariance)), by hand."""
    precision, own = torch.linalg.inv(covariance), gaussian.scale.covariance()
    offset = gaussian.mean - mean
    trace = float((precision * own).sum()) - len(mean)
    logdets = torch.linalg.slogdet(covariance).logabsdet - torch.linalg.slogdet(own).logabsdet
    return 0.5 * (trace + float(offset @ precision @ offset) + float(logdets))


@pytest.mark.parametrize("start", ["laplace", "diagonal laplace", "far"])
def test_full_is_exact_where_the_posterior_is_gaussian(start):
    target = regression(num_points=8, num_outputs=1, std=1.0)
    mean, covariance, log_evidence = regression_truth(target)
    starts = {
        "laplace": lambda: fit_laplace(target).posterior,
        "diagonal laplace": lambda: fit_laplace(target, structure="diagonal").posterior,
        "far": lambda: shifted(target, 3.0, 0.5),
    }
    options = {} if start == "far" else {"stop_early": False, "max_steps": 300}
    fit = fit_vb(target, starts[start](), generator=make_generator(0), structure="full", **options)
    assert isinstance(fit.posterior.scale, Dense)
    assert divergence(mean, covariance, fit.posterior) < 1e-7
    torch.testing.assert_close(fit.posterior.mean, mean, rtol=1e-5, atol=1e-5)
    assert fit.elbo == pytest.approx(log_evidence, abs=1e-4)
    if start == "far":
        assert fit.start_elbo < log_evidence - 100.0


@pytest.mark.parametrize("start", ["laplace", "off"])
def test_mean_field_is_known_where_the_posterior_is_gaussian(start):
    """Its mean is the exact one, its variances the inverses of the precision's diagonal."""
    target = regression()
    mean, covariance, log_evidence = regression_truth(target)
    precision = torch.linalg.inv(covariance)
    std = precision.diagonal().rsqrt()
    begin = fit_laplace(target).posterior if start == "laplace" else Gaussian(mean + 2.0 * std, Diagonal(2.0 * std))
    fit = fit_vb(target, begin, generator=make_generator(0), **STEADY)
    assert isinstance(fit.posterior.scale, Diagonal)
    assert float(((fit.posterior.mean - mean) / std).abs().max()) < 1e-3
    # log widths climb a slope of -2 for each unit, with noise that the couplings to the others make
    couplings = (precision * torch.outer(std, std)).fill_diagonal_(0.0).square().sum(1)
    noise = (0.1 * couplings / (4.0 * 256)).sqrt()  # stationary, at a rate of 0.1; less where that falls to zero
    assert float(noise.max()) < 0.01
    assert bool(((fit.posterior.scale.std / std).log().abs() < 5.0 * noise).all())
    best = log_evidence - divergence(mean, covariance, Gaussian(mean, Diagonal(std)))
    assert fit.elbo == pytest.approx(best, abs=5 * fit.elbo_standard_error)


@pytest.fixture(scope="module")
def low_rank_fits():
    """A posterior, a diagonal start, and fits of several ranks from there."""
    target = regression(num_points=8, num_outputs=1, std=1.0)
    mean, covariance, _ = regression_truth(target)
    start = Gaussian(mean, Diagonal(torch.linalg.inv(covariance).diagonal().rsqrt()))
    options = {"structure": "low_rank", "max_steps": 500, "stop_early": False}
    ranks = (1, 2, target.dim - 1)
    return target, start, {rank: fit_vb(target, start, generator=make_generator(0), rank=rank, **options) for rank in ranks}


def test_low_rank_of_all_but_one_direction_is_exact(low_rank_fits):
    """Every covariance is its smallest eigenvalue times the unit matrix, and d - 1 directions."""
    target, start, fits = low_rank_fits
    mean, covariance, log_evidence = regression_truth(target)
    fit = fits[target.dim - 1]
    assert divergence(mean, covariance, start) > 0.4
    assert divergence(mean, covariance, fit.posterior) < 0.001
    assert fit.elbo == pytest.approx(log_evidence, abs=0.001 + 5 * fit.elbo_standard_error)


def test_every_direction_more_is_closer(low_rank_fits):
    target, start, fits = low_rank_fits
    mean, covariance, _ = regression_truth(target)
    gaps = [divergence(mean, covariance, posterior) for posterior in (start, *(fit.posterior for fit in fits.values()))]
    assert all(after < 0.6 * before for before, after in pairwise(gaps))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_low_rank_posterior_has_the_elbo_that_is_reported(low_rank_fits, rank):
    target, start, fits = low_rank_fits
    mean, covariance, log_evidence = regression_truth(target)
    fit = fits[rank]
    assert isinstance(fit.posterior.scale, LowRank)
    assert fit.posterior.scale.vectors.shape == (target.dim, rank)
    again = elbo(target, fit.posterior, num_samples=4000, generator=make_generator(1))
    exact = log_evidence - divergence(mean, covariance, fit.posterior)
    assert fit.elbo == pytest.approx(exact, abs=5 * fit.elbo_standard_error)
    assert again.value == pytest.approx(exact, abs=5 * again.standard_error)
    gain = divergence(mean, covariance, start) - divergence(mean, covariance, fit.posterior)
    assert fit.gain == pytest.approx(gain, abs=5 * fit.gain_standard_error)
    assert fit.gain == pytest.approx(fit.elbo - fit.start_elbo)


NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(64))


def exact_elbo(target, mean, root):
    """Of a logistic regression under N(mean, root root^T): each logit is Gaussian, so every term is a sum over nodes."""
    signed = target.model.head.augment(target.data.inputs) * (2.0 * target.data.targets - 1.0).unsqueeze(1)
    logits = (signed @ mean).unsqueeze(1) + torch.linalg.vector_norm(signed @ root, dim=1).unsqueeze(1) * NODES
    log_likelihood = (nn.functional.logsigmoid(logits) @ WEIGHTS).sum() / WEIGHTS.sum()
    precision, dim = target.prior_precision, len(mean)
    log_prior = 0.5 * dim * math.log(precision / (2 * math.pi)) - 0.5 * precision * (mean @ mean + (root * root).sum())
    return log_likelihood + log_prior + torch.linalg.slogdet(root).logabsdet + 0.5 * dim * (1 + math.log(2 * math.pi))


def best_elbo(target):
    """The largest of any Gaussian, by a deterministic search."""
    laplace = fit_laplace(target).posterior
    mean, root = (part.clone().requires_grad_() for part in (laplace.mean, laplace.scale.factor))
    search = torch.optim.LBFGS([mean, root], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        value = -exact_elbo(target, mean, root)
        value.backward()
        return value

    search.step(loss)
    return float(exact_elbo(target, mean, root).detach())


@pytest.mark.parametrize(("prior_precision", "start"), [(0.05, "laplace"), (0.3, "prior")])
def test_full_finds_the_best_gaussian_of_a_posterior_that_is_none(prior_precision, start):
    target = binary(num_points=12, num_features=2, prior_precision=prior_precision, bias=False)
    laplace = fit_laplace(target).posterior
    fit = fit_vb(
        target, laplace if start == "laplace" else target.prior, generator=make_generator(0), structure="full", **STEADY
    )
    found = float(exact_elbo(target, fit.posterior.mean, fit.posterior.scale.factor))
    best = best_elbo(target)
    side = torch.linspace(-60.0, 60.0, 601, dtype=torch.float64)
    log_evidence = float(target.log_prob(torch.cartesian_prod(side, side)).logsumexp(0)) + 2 * math.log(0.2)
    assert float(exact_elbo(target, laplace.mean, laplace.scale.factor)) + 0.05 < found < log_evidence
    assert best - 0.002 < found <= best + 1e-9
    assert fit.elbo == pytest.approx(found, abs=5 * fit.elbo_standard_error)


def test_start_keeps_the_directions_and_finds_widths():
    target = classification(num_points=20, prior_precision=0.3)
    start = fit_laplace(target, structure="kron").posterior
    fit = fit_vb(target, start, generator=make_generator(0), structure="start")
    scale = fit.posterior.scale
    assert isinstance(scale, Kronecker)
    assert torch.equal(scale.left, start.scale.left)
    assert torch.equal(scale.right, start.scale.right)
    before, after = (
        elbo(target, posterior, num_samples=4000, generator=make_generator(1)) for posterior in (start, fit.posterior)
    )
    tolerance = 5 * math.hypot(before.standard_error, after.standard_error, fit.gain_standard_error)
    assert fit.gain > 0.5
    assert fit.converged
    assert fit.gain == pytest.approx(after.value - before.value, abs=tolerance)


def root_of(kind, covariance):
    values, vectors = torch.linalg.eigh(covariance)
    return {
        "dense": lambda: Dense.from_covariance(covariance),
        "low rank": lambda: LowRank(torch.ones_like(values), vectors, values.sqrt()),
        "block": lambda: BlockDiagonal((Dense.from_covariance(covariance.flip(0, 1)),), torch.tensor([2, 1, 0])),
    }[kind]()


@pytest.mark.parametrize("kind", ["dense", "low rank", "block"])
def test_start_is_exact_where_its_directions_are_right(kind):
    target = regression(num_points=8, num_features=2, num_outputs=1, std=1.0)
    mean, covariance, log_evidence = regression_truth(target)
    scale = root_of(kind, covariance)
    torch.testing.assert_close(scale.covariance(), covariance)
    start = Gaussian(mean + 0.3, scale.stretched(torch.tensor([0.7, 2.0, 3.0], dtype=torch.float64)))
    fit = fit_vb(target, start, generator=make_generator(0), structure="start", stop_early=False, max_steps=300)
    assert type(fit.posterior.scale) is type(scale)
    assert divergence(mean, covariance, start) > 4.0
    assert divergence(mean, covariance, fit.posterior) < 1e-3
    assert fit.elbo == pytest.approx(log_evidence, abs=1e-3)


def test_full_begins_with_all_correlations_of_its_start():
    target = regression(num_points=8, num_features=2, num_outputs=1, std=1.0)
    mean, covariance, log_evidence = regression_truth(target)
    start = Gaussian(mean, root_of("low rank", covariance))
    fit = fit_vb(target, start, generator=make_generator(0), structure="full", max_steps=1)
    assert fit.start_elbo == pytest.approx(log_evidence, abs=1e-8)


def tiny_network():
    data = classification(num_points=40, num_features=2, num_outputs=3, prior_precision=1.0).data
    generator = make_generator(3)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    model, theta = flatten_network(net, example=data.inputs[:2])
    return net, Target(model, Batch(data.inputs, data.targets), 1.0), theta


@pytest.mark.parametrize(("structure", "start"), [("diagonal", "diagonal"), ("start", "kron"), ("low_rank", "kron")])
def test_all_layers_of_a_network(structure, start):
    net, target, theta = tiny_network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    base = fit_laplace(target, theta, structure=start).posterior
    fit = fit_vb(target, base, generator=make_generator(0), structure=structure, rank=2, max_steps=80)
    reached = elbo(target, fit.posterior, num_samples=2000, generator=make_generator(1))
    assert fit.gain > 1.0
    assert reached.value == pytest.approx(fit.elbo, abs=5 * math.hypot(reached.standard_error, fit.elbo_standard_error))
    kinds = {"diagonal": Diagonal, "start": BlockDiagonal, "low_rank": LowRank}
    assert isinstance(fit.posterior.scale, kinds[structure])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_full_gaussian_of_hundreds_of_weights_climbs():
    inputs = features(300, 8)
    net = randomised(nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 5)).double().eval())
    model, theta = flatten_network(net, example=inputs[:2])
    target = Target(model, Batch(inputs, (inputs @ features(8, 5, seed=1)).argmax(1)), 10.0)
    start = fit_laplace(target, theta, structure="kron").posterior
    options = {"generator": make_generator(0), "max_steps": 200}
    full, elementwise = (fit_vb(target, start, structure=structure, **options) for structure in ("full", "start"))
    assert full.gain > elementwise.gain > 1.0


@pytest.mark.parametrize("structure", ["full", "low_rank", "diagonal", "start"])
def test_the_same_generator_gives_the_same_bits_and_nothing_else_is_moved(structure, untouched_rng):
    target = classification(num_points=20)
    start = fit_laplace(target).posterior
    mean, factor = start.mean.clone(), start.scale.factor.clone()
    fits = [
        fit_vb(target, start, generator=make_generator(seed), structure=structure, rank=2, max_steps=20)
        for seed in (7, 7, 8)
    ]
    draws = [fit.posterior.sample(3, generator=make_generator(1)) for fit in fits]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(fits[0].trace, fits[1].trace)
    assert fits[0].trace.shape == (20, 2) or structure == "full"  # rounds end before
    assert torch.equal(start.mean, mean)
    assert torch.equal(start.scale.factor, factor)


@pytest.mark.parametrize("structure", ["low_rank", "diagonal", "start"])
def test_a_start_that_is_better_than_all_that_was_found_is_kept(structure):
    """One violent step from a good posterior."""
    target = classification(num_points=20)
    start = fit_laplace(target).posterior
    fit = fit_vb(target, start, generator=make_generator(0), structure=structure, rank=2, learning_rate=1e3, max_steps=1)
    assert fit.gain == 0.0
    assert torch.equal(fit.posterior.mean, start.mean)
    torch.testing.assert_close(fit.posterior.scale.variance(), start.scale.variance())


@pytest.mark.parametrize("structure", ["full", "low_rank", "diagonal", "start"])
def test_single_precision_runs_through(structure):
    target = classification(num_points=20, prior_precision=0.3, dtype=torch.float32)
    start = fit_laplace(target, structure="kron").posterior
    fit = fit_vb(target, start, generator=make_generator(0), structure=structure, rank=2, max_steps=60)
    assert fit.gain > 0.5
    assert fit.posterior.sample(2, generator=make_generator(0)).dtype == torch.float32


def test_batches_reach_what_all_data_reach():
    target = classification(num_points=5000, num_features=2, num_outputs=3, prior_precision=1.0)
    start = fit_laplace(target, structure="diagonal").posterior
    fits = [
        fit_vb(target, start, generator=make_generator(0), batch_size=size, max_steps=40, num_samples=8)
        for size in (None, 512)
    ]
    assert [fit.batch_size for fit in fits] == [None, 512]
    reached = [elbo(target, fit.posterior, num_samples=1000, generator=make_generator(1)) for fit in fits]
    assert reached[1].value == pytest.approx(reached[0].value, abs=0.1 + 5 * reached[0].standard_error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "kron"}, "`structure` must be one of 'full', 'low_rank', 'diagonal', 'start', got 'kron'"),
        ({"rank": 0}, "`rank` must be at least 1, got 0"),
        ({"num_samples": 3}, "`num_samples` must be even"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"learning_rate": -1.0}, "`learning_rate` must be positive"),
        ({"max_steps": 0}, "`max_steps` must be at least 1"),
        ({"start": Gaussian.standard(torch.zeros(9, dtype=torch.float64))}, r"`start` must have shape \(10,\)"),
    ],
)
def test_wrong_options_are_refused(options, message):
    target = regression()
    with pytest.raises(ValueError, match=message):
        fit_vb(target, **{"start": target.prior, "generator": make_generator(0), **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": torch.zeros(10).double()}, "`start` must be a Gaussian, got Tensor. Pass `fit_laplace"),
        ({"start": Gaussian.standard(torch.zeros(10))}, "`start` must be torch.float64 on cpu like `data.inputs`"),
        ({"rank": 2.0}, "`rank` must be an integer, got float"),
        ({"generator": 0}, "`generator` must be a torch.Generator, got int"),
        ({"generator": 0, "structure": "low_rank"}, "`generator` must be a torch.Generator, got int"),
    ],
)
def test_wrong_types_are_refused(options, message):
    target = regression()
    with pytest.raises(TypeError, match=message):
        fit_vb(target, **{"start": target.prior, "generator": make_generator(0), **options})


class Elsewhere(torch.Generator):
    device = torch.device("cuda")


@pytest.mark.parametrize("structure", ["full", "low_rank", "diagonal", "start"])
def test_a_generator_on_another_device_is_refused(structure):
    target = regression()
    with pytest.raises(ValueError, match="`generator` must live on cpu, where the tensors are, got one on cuda"):
        fit_vb(target, target.prior, generator=Elsewhere(), structure=structure)


@pytest.mark.parametrize(
    ("options", "name"), [({"batch_size": 8}, "batch_size"), ({"learning_rate": -1.0}, "learning_rate")]
)
def test_options_that_rounds_do_not_have_are_refused(options, name):
    target = regression()
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        fit_vb(target, target.prior, generator=make_generator(0), structure="full", **options)


def test_a_full_covariance_too_large_for_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 7199)
    target = regression()
    with pytest.raises(
        MemoryError, match=r"a full Gaussian of 10 parameters needs .*; use structure='low_rank' or 'diagonal'"
    ):
        fit_vb(target, target.prior, generator=make_generator(0), structure="full")
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 7200)  # nine matrices of 10 x 10
    fit_vb(target, target.prior, generator=make_generator(0), structure="full", max_steps=1)


def test_a_start_of_low_rank_keeps_the_directions_in_which_it_is_wider():
    """And nothing else: the ascent begins at the ELBO of the start itself, along directions that are wider there."""
    target = classification()
    dim = target.dim
    vectors = torch.linalg.qr(torch.randn(dim, 2, generator=make_generator(3), dtype=torch.float64)).Q
    std = torch.full((dim,), 0.3, dtype=torch.float64)
    start = Gaussian(fit_laplace(target).posterior.mean, LowRank(std, vectors, torch.tensor([3.0, 2.0]).double()))
    fit = fit_vb(target, start, structure="low_rank", rank=2, max_steps=1, num_samples=1024, generator=make_generator(0))
    expected = elbo(target, start, num_samples=4000, generator=make_generator(1))
    first = float(fit.trace[0, 0])
    assert abs(first - expected.value) < 5 * math.hypot(expected.standard_error, float(fit.trace[0, 1]))
    assert abs(fit.start_elbo - expected.value) < 5 * math.hypot(expected.standard_error, fit.elbo_standard_error)
    narrow = elbo(target, Gaussian(start.mean, Diagonal(std)), num_samples=4000, generator=make_generator(1))
    assert abs(narrow.value - expected.value) > 5 * math.hypot(expected.standard_error, float(fit.trace[0, 1]))


def test_a_start_of_low_rank_is_kept_where_the_ascent_fails(low_rank_fits):
    target, _, fits = low_rank_fits
    start = fits[2].posterior
    assert bool((start.scale.stretch > 1.0).any())
    options = {"structure": "low_rank", "rank": 2, "learning_rate": 1e3, "max_steps": 1}
    fit = fit_vb(target, start, generator=make_generator(0), **options)
    assert (fit.gain, fit.elbo) == (0.0, fit.start_elbo)
    torch.testing.assert_close(fit.posterior.scale.covariance(), start.scale.covariance())


def test_a_start_that_is_narrower_along_directions_gives_its_marginal_widths():
    """As Laplace's method does with low rank: prior widths, but for directions that the data determine."""
    target = classification()
    start = fit_laplace(target, structure="low_rank", rank=3).posterior
    fit = fit_vb(target, start, structure="low_rank", rank=3, learning_rate=1e-9, max_steps=1, generator=make_generator(0))
    marginal = Gaussian(start.mean, Diagonal(start.scale.variance().sqrt()))
    expected = elbo(target, marginal, num_samples=4000, generator=make_generator(1))
    assert abs(fit.start_elbo - expected.value) < 5 * math.hypot(expected.standard_error, fit.elbo_standard_error)


def test_low_rank_does_not_diverge_in_thousands_of_dimensions():
    """Steps of all entries at once once moved the factor so far that the ascent fell, and was given up."""
    target = classification(num_points=50, num_features=400, num_outputs=10, prior_precision=30.0)
    laplace = fit_laplace(target, structure="diagonal").posterior
    start = Gaussian(laplace.mean, Diagonal(laplace.scale.variance().sqrt() * 1.5))
    options = {"generator": make_generator(0), "max_steps": 200}
    low_rank = fit_vb(target, start, structure="low_rank", rank=5, **options)
    mean_field = fit_vb(target, start, structure="diagonal", **options)
    assert low_rank.gain > 0.95 * mean_field.gain > 0.0


def test_an_ascent_that_falls_has_not_converged():
    target = regression()
    start = Gaussian(fit_laplace(target).posterior.mean, Diagonal(torch.full((target.dim,), 0.01, dtype=torch.float64)))
    fit = fit_vb(target, start, generator=make_generator(0), learning_rate=30.0, max_steps=200)
    assert not fit.converged


@pytest.mark.parametrize("structure", ["full", "low_rank"])
def test_hundreds_of_dimensions_gain_what_mean_field_gains(structure):
    """All entries of a factor move at once: unscaled, the ascent fell from its first steps on."""
    target = classification(num_points=80, num_features=60, num_outputs=8, prior_precision=5.0, likelihood=None)
    laplace = fit_laplace(target, structure="diagonal").posterior
    start = Gaussian(laplace.mean, Diagonal(2.0 * laplace.scale.variance().sqrt()))
    options = {"generator": make_generator(0), "max_steps": 300}
    mean_field = fit_vb(target, start, structure="diagonal", **options)
    fit = fit_vb(target, start, structure=structure, rank=5, **options)
    assert fit.gain > 0.95 * mean_field.gain > 10.0
