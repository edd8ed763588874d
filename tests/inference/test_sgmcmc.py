"""Cyclical stochastic-gradient HMC: the exact law of its chains on a Gaussian target, and what is refused."""

import math

import pytest
import torch
from problems import classification, regression, regression_truth
from torch import nn

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference.sgmcmc import fit_csghmc
from burnish.noise import make_generator
from burnish.target import Target

NUM_CHAINS = 10_000
OPTIONS = {"step_size": 0.01, "steps_per_cycle": 20, "num_cycles": 2, "samples_per_cycle": 2, "batch_size": 8}


def small():
    return regression(num_points=30, num_features=2, num_outputs=1, std=1.0)


def zeros(target, *shape):
    return torch.zeros(*shape, target.dim, dtype=target.data.inputs.dtype)


def exact_law(target, start, step_size, lengths, noisy_from, friction, temperature):
    """Mean and covariance of theta after every step on all data, a linear recursion where the target is Gaussian."""
    center, covariance, _ = regression_truth(target)
    precision, dim, eye = torch.linalg.inv(covariance), target.dim, torch.eye(target.dim, dtype=torch.float64)
    mean = torch.cat([start - center, torch.zeros_like(start)])
    spread = torch.zeros(2 * dim, 2 * dim, dtype=torch.float64)
    law = []
    for length in lengths:
        for step in range(length):
            before, rate = (
                step_size / len(target.data) * (1 + math.cos(math.pi * t / length)) / 2 for t in (step - 1, step)
            )
            cooling = math.sqrt(rate / before) if step > 0 and step + 1 >= noisy_from else 1.0
            velocity = torch.cat([-rate * precision, (1 - friction) * cooling * eye], dim=1)
            matrix = torch.cat([torch.cat([eye, torch.zeros_like(eye)], dim=1) + velocity, velocity])
            noise = 2 * friction * rate * temperature if step + 1 >= noisy_from else 0.0
            mean, spread = matrix @ mean, matrix @ spread @ matrix.T + noise * torch.kron(torch.ones(2, 2).double(), eye)
            law.append((center + mean[:dim], spread[:dim, :dim]))
    return law


def check_law(draws, mean, covariance):
    """Independent chains: means and covariances within five standard errors."""
    spread = covariance.diagonal()
    assert bool(((draws.mean(0) - mean).abs() < 5 * (spread / len(draws)).sqrt()).all())
    tolerance = 5 * ((torch.outer(spread, spread) + covariance**2) / len(draws)).sqrt()
    assert bool(((draws.T.cov() - covariance).abs() < tolerance).all())


@pytest.mark.parametrize(("friction", "temperature"), [(0.2, 1.0), (1.0, 0.3)])
def test_every_draw_has_the_law_of_the_recursion(friction, temperature):
    """Large steps from far away: schedule, friction, noise, and which steps are noisy and kept, all show."""
    target, start = small(), torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    fit = fit_csghmc(
        target,
        start.expand(NUM_CHAINS, -1),
        generator=make_generator(0),
        step_size=0.2,
        num_cycles=2,
        steps_per_cycle=16,
        samples_per_cycle=2,
        explore=0.6,
        friction=friction,
        batch_size=None,
        temperature=temperature,
    )
    law = exact_law(target, start, 0.2, [16, 16], 11, friction, temperature)  # 0.6 of 16 steps are 10
    assert fit.posterior.draws.shape == (NUM_CHAINS, 4, 3)
    assert fit.trace.shape == (32, NUM_CHAINS)
    for index, step in enumerate([13, 16, 29, 32]):
        check_law(fit.posterior.draws[:, index], *law[step - 1])


@pytest.mark.parametrize("temperature", [1.0, "paper"])
def test_small_steps_sample_the_posterior(temperature):
    """Or one that is colder by the number of points, as the published baseline did."""
    target = small()
    mean, covariance, _ = regression_truth(target)
    options = {"step_size": 0.03, "steps_per_cycle": 250, "friction": 0.2}
    fit = fit_csghmc(
        target,
        mean.expand(NUM_CHAINS, -1),
        generator=make_generator(1),
        num_cycles=1,
        samples_per_cycle=1,
        explore=0.0,
        batch_size=None,
        temperature=temperature,
        **options,
    )
    expected = 1.0 if temperature == 1.0 else 1.0 / 30
    assert fit.temperature == expected
    law = exact_law(target, mean, 0.03, [250], 0, 0.2, expected)[-1][1]
    bias = float((law.diagonal() / (expected * covariance.diagonal()) - 1.0).abs().max())
    assert bias < 0.02
    ratio = fit.posterior.samples.var(0) / covariance.diagonal()
    assert bool(((ratio / expected - 1.0).abs() < 5 * math.sqrt(2 / NUM_CHAINS) + bias).all())


def test_batches_leave_the_posterior_nearly_alone():
    """Chains share batches, so draws of many cycles: mean and variances within what they and the noise of batches allow."""
    target = small()
    mean, covariance, _ = regression_truth(target)
    fit = fit_csghmc(
        target,
        mean.expand(200, -1),
        generator=make_generator(2),
        step_size=0.02,
        num_cycles=10,
        steps_per_cycle=100,
        samples_per_cycle=1,
        explore=0.0,
        friction=0.2,
        batch_size=15,
    )
    ratio = fit.posterior.samples.var(0) / covariance.diagonal()
    assert bool(((ratio - 1.0).abs() < 0.25).all())
    assert bool(((fit.posterior.samples.mean(0) - mean).abs() < 0.3 * covariance.diagonal().sqrt()).all())


def test_one_step_is_the_rule():
    target = classification()
    start = 0.1 * torch.randn(target.dim, generator=make_generator(5), dtype=torch.float64)
    fit = fit_csghmc(
        target,
        start,
        generator=make_generator(3),
        step_size=0.5,
        num_cycles=1,
        steps_per_cycle=1,
        samples_per_cycle=1,
        explore=0.0,
        friction=0.4,
        batch_size=8,
        temperature=0.7,
    )
    value, grad = target.subsampled(8).log_prob_and_grad(start, generator=(generator := make_generator(3)))
    noise = torch.randn(target.dim, generator=generator, dtype=torch.float64)
    rate = 0.5 / len(target.data)
    expected = start + rate * grad + math.sqrt(2 * 0.4 * rate * 0.7) * noise
    torch.testing.assert_close(fit.posterior.samples[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fit.trace, value.view(1, 1))


def test_without_noise_it_climbs():
    """Nothing random in the first part of a cycle: chains from one start stay together and rise."""
    target = classification()
    fit = fit_csghmc(
        target,
        zeros(target, 2),
        generator=make_generator(0),
        step_size=0.1,
        steps_per_cycle=50,
        num_cycles=1,
        batch_size=None,
    )
    assert torch.equal(fit.trace[:41, 0], fit.trace[:41, 1])
    assert not torch.equal(fit.trace[41:, 0], fit.trace[41:, 1])
    torch.testing.assert_close(fit.trace[0], target.log_prob(zeros(target, 2)))
    assert float(fit.trace[40, 0]) > float(fit.trace[0, 0]) + 5.0


def test_one_chain_and_many():
    target = classification()
    one = fit_csghmc(target, zeros(target), generator=make_generator(0), **OPTIONS)
    many = fit_csghmc(target, [zeros(target)] * 3, generator=make_generator(0), **OPTIONS)
    assert one.posterior.draws.shape == (1, 4, target.dim)
    assert many.posterior.draws.shape == (3, 4, target.dim)
    assert many.trace.shape == (40, 3)
    assert one.temperature == 1.0
    assert len({tuple(draw.tolist()) for draw in many.posterior.samples}) == 12


def test_all_layers_of_a_network():
    data = classification(dtype=torch.float32).data
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model, theta = flatten_network(network, example=data.inputs[:2])
    target = Target(model, Batch(data.inputs, data.targets), 1.0)
    fit = fit_csghmc(target, theta, generator=make_generator(0), **OPTIONS)
    assert fit.posterior.samples.shape == (4, 44)
    assert fit.posterior.samples.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone(untouched_rng):
    target, start = classification(), zeros(classification(), 2)
    first, again, other = (fit_csghmc(target, start, generator=make_generator(s), **OPTIONS).posterior for s in (7, 7, 8))
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, other.samples)
    assert torch.equal(start, zeros(target, 2))


def test_divergence_is_a_fit_error():
    target = small()
    with pytest.raises(FitError, match=r"1 of 1 .* had left the finite numbers, .* use a smaller `step_size`"):
        fit_csghmc(target, zeros(target), generator=make_generator(0), **OPTIONS | {"step_size": 1e300})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "`step_size` must be positive"),
        ({"num_cycles": 0}, "`num_cycles` must be at least 1"),
        ({"steps_per_cycle": 0}, "`steps_per_cycle` must be at least 1"),
        ({"samples_per_cycle": 0}, "`samples_per_cycle` must be at least 1"),
        ({"samples_per_cycle": 5}, "must leave a step with noise for each of 5 samples, got 20 of which 16 explore"),
        ({"friction": 0.0}, "`friction` must be positive"),
        ({"friction": 1.1}, r"`friction` must lie in \(0, 1\], got 1.1"),
        ({"explore": 1.0}, r"`explore` must lie in \[0, 1\), got 1.0"),
        ({"explore": -0.1}, r"`explore` must lie in \[0, 1\), got -0.1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0. Pass None for all data"),
        ({"temperature": 0.0}, "`temperature` must be positive"),
        ({"temperature": "cold"}, "`temperature` must be a number or 'paper', got 'cold'"),
        ({"start": torch.zeros(4, dtype=torch.float64)}, "`start` must have the target's 3 parameters, got 4"),
        ({"start": torch.full((2, 3), math.inf, dtype=torch.float64)}, "`start` must be finite"),
    ],
)
def test_wrong_options_are_refused(options, message):
    options = {"start": zeros(small()), **OPTIONS, **options}
    with pytest.raises(ValueError, match=message):
        fit_csghmc(small(), generator=make_generator(0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "`target` must be a Target, got NoneType"),
        ({"start": None}, "`start` must be a tensor or a list of vectors, got NoneType"),
        ({"start": torch.zeros(3)}, "`start` must be torch.float64 on cpu like `target.data.inputs`"),
        ({"generator": 0}, r"`generator` must be a torch\.Generator, got int"),
        ({"steps_per_cycle": 20.0}, "`steps_per_cycle` must be an integer"),
    ],
)
def test_wrong_types_are_refused(options, message):
    options = {"target": small(), "start": zeros(small()), "generator": make_generator(0), **OPTIONS, **options}
    with pytest.raises(TypeError, match=message):
        fit_csghmc(**options)


def test_too_many_draws_for_the_memory(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 100)
    with pytest.raises(MemoryError, match=r"4 draws of 3 parameters needs .*; use fewer chains or samples"):
        fit_csghmc(small(), zeros(small()), generator=make_generator(0), **OPTIONS)
