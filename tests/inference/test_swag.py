"""SWAG: the stationary distribution of SGD where it is known, the algebra of its Gaussian, and what is refused."""

import contextlib
import math

import pytest
import torch
from problems import classification, regression, regression_truth
from torch import nn

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference.laplace import fit_laplace
from burnish.inference.swag import fit_multiswag, fit_swag, swag_gaussian
from burnish.noise import make_generator
from burnish.posteriors import MixturePosterior
from burnish.scales import LowRank
from burnish.target import Target

OPTIONS = {"learning_rate": 0.05, "num_steps": 60, "snapshot_every": 5, "batch_size": 8}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def zeros(target):
    return torch.zeros(target.dim, dtype=target.data.inputs.dtype)


def stationary(target, learning_rate, batch_size, momentum):
    """Covariance of SGD in the long run, and the matrix that carries a deviation from one step to the next on average.

    With one output, a step on point i takes (theta, v) to `A_i (theta, v) + c_i`; a batch averages such steps. So the
    covariance V solves `V = E[A V A^T] + E[r r^T]`, r being what a step does to the mean, and E over batches follows from
    E over points. Both for theta alone, as the velocity is only needed to find them.
    """
    head, variance = target.model.head, target.model.likelihood.std**2
    design, count, dim = head.augment(target.data.inputs), len(target.data), target.dim
    eye = torch.eye(dim, dtype=torch.float64)
    pull = learning_rate * (
        design.unsqueeze(2) * design.unsqueeze(1) / variance + float(target.prior_precision) / count * eye
    )
    push = learning_rate * (
        design * target.data.targets / variance + float(target.prior_precision) * float(target.prior_mean) / count
    )
    carry = momentum * eye.expand(count, dim, dim)
    step = torch.cat([torch.cat([eye - pull, carry], dim=2), torch.cat([-pull, carry], dim=2)], dim=1)
    mean = regression_truth(target)[0]
    residual = (push - (pull @ mean)).repeat(1, 2)
    assert float(residual.mean(0).abs().max()) < 1e-12  # the mean is that of the posterior
    average = step.mean(0)
    squares = torch.einsum("nij,nkl->ikjl", step, step).reshape(4 * dim * dim, -1) / count
    transfer = squares / batch_size + (1.0 - 1.0 / batch_size) * torch.kron(average, average)
    assert float(torch.linalg.eigvals(transfer).abs().max()) < 1.0
    noise = (residual.T @ residual / count / batch_size).flatten()
    covariance = torch.linalg.solve(torch.eye(len(transfer), dtype=torch.float64) - transfer, noise).view(2 * dim, 2 * dim)
    return covariance, average


def correlation_times(covariance, average, dim):
    """How many successive values are worth one independent one, for means and for variances."""
    lagged, first, second = covariance, 1.0, 1.0
    for _ in range(2000):
        lagged = average @ lagged
        correlation = (lagged.diagonal() / covariance.diagonal())[:dim]
        first, second = first + 2 * correlation, second + 2 * correlation**2
    return first, second


@pytest.mark.parametrize(("momentum", "batch_size"), [(0.0, 2), (0.6, 4)])
def test_the_stationary_distribution_of_sgd(momentum, batch_size):
    target = regression(num_points=20, num_features=2, num_outputs=1, std=1.0)
    learning_rate, count = 0.25, 5000
    covariance, average = stationary(target, learning_rate, batch_size, momentum)
    exact = covariance[: target.dim, : target.dim]
    mean_time, variance_time = correlation_times(covariance, average, target.dim)
    fit = fit_swag(
        target,
        zeros(target),
        generator=make_generator(0),
        learning_rate=learning_rate,
        num_steps=200 + count,
        burn_in=200,
        snapshot_every=1,
        batch_size=batch_size,
        momentum=momentum,
        rank=count,
    )
    mean_error = (fit.posterior.mean - regression_truth(target)[0]).abs()
    assert bool((mean_error < 5 * (exact.diagonal() * mean_time / count).sqrt()).all())
    ratio = fit.posterior.scale.variance() / exact.diagonal()
    tolerance = 5 * (2 * variance_time / count).sqrt() + mean_time / count
    assert float(tolerance.max()) < 0.25
    assert bool(((ratio - 1.0).abs() < tolerance).all())
    # the low-rank half holds all correlations, the diagonal half none
    spread = exact.diagonal().sqrt()
    correlations = (fit.posterior.scale.covariance() - 0.5 * exact).fill_diagonal_(0.0) / torch.outer(spread, spread)
    assert float(correlations.abs().max()) < float(tolerance.max())
    assert fit.num_snapshots == count


def test_the_trace_is_the_log_posterior_before_each_step():
    target = regression()
    fit = fit_swag(target, zeros(target), generator=make_generator(3), **OPTIONS)
    value, grad = target.subsampled(8).log_prob_and_grad(zeros(target), generator=(generator := make_generator(3)))
    second = target.subsampled(8).log_prob_and_grad(0.05 / len(target.data) * grad, generator=generator)[0]
    assert fit.trace.shape == (60,)
    assert fit.trace.dtype == torch.float64
    torch.testing.assert_close(fit.trace[:2], torch.stack([value, second]), rtol=1e-12, atol=0.0)


def test_snapshots_are_those_that_were_asked_for():
    """Rank beyond their number: mean and deviations give all of them back, which runs of other lengths end at."""
    target = regression()
    options = OPTIONS | {"num_steps": 31, "burn_in": 4, "snapshot_every": 9, "rank": 50}
    fit = fit_swag(target, zeros(target), generator=make_generator(3), **options)
    snapshots = fit.posterior.mean + fit.deviations.T
    assert fit.num_snapshots == len(snapshots) == 3
    for index, num_steps in enumerate([13, 22, 31]):
        ends = fit_swag(
            target, zeros(target), generator=make_generator(3), **OPTIONS | {"num_steps": num_steps, "snapshot_every": 1}
        )
        torch.testing.assert_close(snapshots[index], ends.posterior.mean + ends.deviations[:, -1], rtol=1e-10, atol=1e-10)
    again = swag_gaussian(snapshots, rank=50)
    torch.testing.assert_close(again.mean, fit.posterior.mean)
    torch.testing.assert_close(again.scale.covariance(), fit.posterior.scale.covariance())
    last = fit_swag(target, zeros(target), generator=make_generator(3), **options | {"rank": 2})
    assert torch.equal(last.deviations, fit.deviations[:, 1:])
    torch.testing.assert_close(last.posterior.scale.covariance(), swag_gaussian(snapshots, rank=2).scale.covariance())


def test_a_snapshot_for_each_pass_over_the_data_when_not_said():
    target = regression(num_points=30)
    fit = fit_swag(target, zeros(target), generator=make_generator(0), **OPTIONS | {"snapshot_every": None})
    assert fit.num_snapshots == 60 // 4


@pytest.mark.parametrize("num_snapshots", [2, 5, 40])
def test_variances_are_those_of_the_snapshots(num_snapshots):
    """With all of them in the low-rank part, more or fewer than there are dimensions."""
    snapshots = draw(num_snapshots, 6) * draw(6, seed=1).exp() + 3.0
    gaussian = swag_gaussian(snapshots, rank=num_snapshots)
    torch.testing.assert_close(gaussian.mean, snapshots.mean(0))
    torch.testing.assert_close(gaussian.scale.variance(), snapshots.var(0))
    covariance = snapshots.T.cov()
    expected = 0.5 * covariance + 0.5 * torch.diag(covariance.diagonal())
    torch.testing.assert_close(gaussian.scale.covariance(), expected)


def test_the_formula_with_fewer_deviations():
    snapshots, rank = draw(9, 5), 3
    deviations = (snapshots - snapshots.mean(0))[-rank:]
    expected = 0.5 * torch.diag(snapshots.var(0)) + 0.5 * deviations.T @ deviations / (rank - 1)
    gaussian = swag_gaussian(snapshots, rank=rank)
    assert isinstance(gaussian.scale, LowRank)
    torch.testing.assert_close(gaussian.scale.covariance(), expected)
    assert not torch.allclose(swag_gaussian(snapshots.flip(0), rank=rank).scale.covariance(), expected)


def test_vectors_one_by_one_are_the_rows_of_a_matrix():
    snapshots = draw(9, 5)
    one, other = swag_gaussian(snapshots), swag_gaussian([row.clone().requires_grad_() for row in snapshots])
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.scale.covariance(), other.scale.covariance())
    assert not other.mean.requires_grad


def test_small_variances_around_large_means_survive_single_precision():
    snapshots = (1000.0 + 0.01 * draw(50, 4)).float()
    expected = snapshots.double().var(0)
    torch.testing.assert_close(swag_gaussian(snapshots, rank=50).scale.variance().double(), expected, rtol=1e-4, atol=0.0)


def network(seed=0):
    generator = make_generator(seed)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net.eval()


def test_all_layers_of_a_network():
    data = classification().data
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model, theta = flatten_network(net, example=data.inputs[:2])
    target = Target(model, Batch(data.inputs, data.targets), 1.0)
    fit = fit_swag(target, theta, generator=make_generator(0), **OPTIONS | {"learning_rate": 0.2})
    assert fit.posterior.dim == 52
    assert fit.deviations.shape == (52, 12)
    assert float(target.log_prob(fit.posterior.mean)) > float(target.log_prob(theta)) + 1.0
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_members_are_what_each_start_gives_alone():
    data = classification().data
    model, _ = flatten_network(network(), example=data.inputs[:2])
    target = Target(model, Batch(data.inputs, data.targets), 1.0)
    starts = torch.stack([model.head.flatten(network(seed)) for seed in range(3)])
    untouched = starts.clone()
    fit = fit_multiswag(target, starts, generator=make_generator(0), **OPTIONS)
    assert isinstance(fit.posterior, MixturePosterior)
    assert len(fit.members) == len(fit.posterior.components) == 3
    for start, member, component in zip(starts, fit.members, fit.posterior.components, strict=True):
        alone = fit_swag(target, start, generator=make_generator(0), **OPTIONS)
        assert member.posterior is component
        torch.testing.assert_close(member.posterior.mean, alone.posterior.mean)
        torch.testing.assert_close(member.posterior.scale.covariance(), alone.posterior.scale.covariance())
        torch.testing.assert_close(member.deviations, alone.deviations)
        torch.testing.assert_close(member.trace, alone.trace)
    assert torch.equal(starts, untouched)
    listed = fit_multiswag(target, list(starts), generator=make_generator(0), **OPTIONS)
    assert torch.equal(listed.members[2].posterior.mean, fit.members[2].posterior.mean)


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone(untouched_rng):
    target = classification()
    start = fit_laplace(target).posterior.mean
    untouched = start.clone()
    fits = [fit_swag(target, start, generator=make_generator(seed), **OPTIONS) for seed in (7, 7, 8)]
    draws = [fit.posterior.sample(3, generator=make_generator(1)) for fit in fits]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(fits[0].trace, fits[1].trace)
    assert torch.equal(start, untouched)


def test_single_precision_runs_through():
    target = classification(dtype=torch.float32)
    fit = fit_swag(target, zeros(target), generator=make_generator(0), **OPTIONS)
    assert fit.posterior.mean.dtype == fit.deviations.dtype == torch.float32
    assert fit.posterior.log_prob(zeros(target)).dtype == torch.float64


@pytest.mark.parametrize("learning_rate", [1e3, 1e300])
def test_divergence_is_a_fit_error(learning_rate):
    target = regression()
    with pytest.raises(FitError, match="use a smaller `learning_rate`"):
        fit_swag(target, zeros(target), generator=make_generator(0), **OPTIONS | {"learning_rate": learning_rate})


def test_a_parameter_that_never_moves():
    snapshots = draw(5, 3)
    snapshots[:, 1] = 0.1
    with pytest.raises(
        FitError, match=r"1 of 3 parameters are the same in all snapshots, the first at 1; .* pass `min_std`"
    ):
        swag_gaussian(snapshots)
    gaussian = swag_gaussian(snapshots, rank=5, min_std=1e-3)
    assert float(gaussian.scale.variance()[1]) == pytest.approx(1e-6)
    torch.testing.assert_close(gaussian.scale.variance()[0], snapshots[:, 0].var())


@pytest.mark.parametrize(
    ("snapshots", "error", "message"),
    [
        (
            [draw(3), draw(4)],
            ValueError,
            r"`snapshots` must be vectors of one length, got different shapes: \(3,\) .* \(4,\) at 1",
        ),
        (draw(2, 3, 4), ValueError, "`snapshots` must be vectors of one length"),
        ([draw(3), draw(3).tolist()], TypeError, r"`snapshots\[1\]` must be a torch.Tensor, got list"),
        ([draw(3), draw(3).float()], TypeError, r"`snapshots\[1\]` must be torch.float64 .* like the first one"),
        (torch.zeros(4, 3, dtype=torch.long), TypeError, "`snapshots` must be float32 or float64, got torch.int64"),
        (draw(1, 3), ValueError, "must be at least 2, got 1. A variance needs two"),
        (draw(3), ValueError, "must be at least 2, got 1. A variance needs two"),
        ([], ValueError, "`snapshots` must hold at least one vector, got none"),
        (torch.tensor([[1.0, 2.0], [3.0, math.nan]]), ValueError, r"`snapshots` must be finite, .* first at \(1, 1\)"),
        ({"a": draw(3)}, TypeError, "`snapshots` must be a tensor or a list of vectors, got dict"),
    ],
)
def test_wrong_snapshots_are_refused(snapshots, error, message):
    with pytest.raises(error, match=message):
        swag_gaussian(snapshots)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"num_steps": 0}, "`num_steps` must be at least 1"),
        ({"num_steps": 9}, "`num_steps` must leave at least 2 snapshots .* got 9 with one every 5 steps. Pass 10 or more"),
        ({"burn_in": 51}, "`num_steps` must leave at least 2 snapshots after 51 steps of burn-in"),
        ({"burn_in": -1}, "`burn_in` must be at least 0"),
        ({"snapshot_every": 0}, "`snapshot_every` must be at least 1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"momentum": 1.0}, r"`momentum` must lie in \[0, 1\), got 1.0"),
        ({"rank": 1}, "`rank` must be at least 2"),
        ({"min_std": 0.0}, "`min_std` must be positive"),
        ({"start": draw(1, 10)}, r"`start` must be one vector, got shape \(1, 10\). Pass several to `fit_multiswag`"),
        ({"start": draw(9)}, "`start` must have the target's 10 parameters, got 9"),
        ({"start": torch.full((10,), math.nan).double()}, "`start` must be finite"),
    ],
)
def test_wrong_options_are_refused(options, message):
    target = regression()
    options = {"start": zeros(target), **OPTIONS, **options}
    with pytest.raises(ValueError, match=message):
        fit_swag(target, generator=make_generator(0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "`target` must be a Target, got NoneType"),
        ({"start": [draw(10)]}, "`start` must be a torch.Tensor, got list"),
        ({"start": torch.zeros(10)}, "`start` must be torch.float64 on cpu like `target.data.inputs`, got torch.float32"),
        ({"generator": None}, "`generator` must be a torch.Generator"),
        ({"num_steps": 10.0}, "`num_steps` must be an integer"),
    ],
)
def test_wrong_types_are_refused(options, message):
    options = {"target": regression(), "start": draw(10), "generator": make_generator(0), **OPTIONS, **options}
    with pytest.raises(TypeError, match=message):
        fit_swag(**options)


def test_starts_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"`starts` must be vectors of one length, got different shapes: \(10,\)"):
        fit_multiswag(regression(), [draw(10), draw(9)], generator=make_generator(0), **OPTIONS)


def test_a_member_that_diverges_is_named():
    target = regression()
    starts = torch.stack([zeros(target), torch.full((10,), 1e308, dtype=torch.float64)])
    with pytest.raises(FitError, match=r"1 of 2 run\(s\) had left the finite numbers, the first at row 1"):
        fit_multiswag(target, starts, generator=make_generator(0), **OPTIONS | {"learning_rate": 1e-3})


def test_too_many_snapshots_for_the_memory(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 1000)
    target = regression()
    with pytest.raises(MemoryError, match=r"12 snapshots of 10 parameters needs .*; use a smaller `rank`"):
        fit_swag(target, zeros(target), generator=make_generator(0), **OPTIONS)


@pytest.mark.parametrize(("copies", "fits"), [(4, False), (8, True)])
def test_the_memory_of_a_decomposition_counts(monkeypatch, copies, fits):
    """Snapshots and deviations are two copies of 12 vectors; what making a Gaussian of them takes is about four more."""
    target = regression()
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: copies * 12 * target.dim * 8)
    with contextlib.nullcontext() if fits else pytest.raises(MemoryError):
        fit_swag(target, zeros(target), generator=make_generator(0), **OPTIONS)


def test_starts_of_a_network_with_running_statistics_are_warned_of():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    inputs = draw(20, 3).float()
    model, theta = flatten_network(network, example=inputs)
    target = Target(model, Batch(inputs, torch.arange(20) % 2), 1.0)
    options = {"learning_rate": 0.05, "num_steps": 8, "snapshot_every": 2, "batch_size": 5}
    with pytest.warns(UserWarning, match="`starts` run with the running statistics of the target's network"):
        fit_multiswag(target, torch.stack([theta, 1.1 * theta]), generator=make_generator(0), **options)
    fit_multiswag(target, theta, generator=make_generator(0), **options)
