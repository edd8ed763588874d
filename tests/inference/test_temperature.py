"""Temperature scaling against a known temperature and an independent optimiser."""

import numpy as np
import pytest
import torch
from problems import binary, classification, regression
from scipy.optimize import minimize_scalar

from burnish.batches import Batch
from burnish.inference.temperature import fit_temperature, recalibrate, residual_std
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator


@pytest.mark.parametrize("make", [classification, binary])
def test_agrees_with_a_scalar_optimiser(make):
    target = make(num_points=300)
    theta = 3.0 * torch.randn(target.dim, generator=make_generator(9), dtype=torch.float64)
    outputs = target.model(theta, target.data.inputs)

    def nll(log_temperature: float) -> float:
        scaled = outputs / torch.tensor(log_temperature).exp()
        return -float(target.model.likelihood.log_prob(scaled, target.data.targets).mean())

    def penalised(log_temperature: float) -> float:
        return len(outputs) * nll(log_temperature) + 0.5 * log_temperature**2

    other = minimize_scalar(penalised, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    fit = fit_temperature(target.model, theta, target.data)
    assert fit.nll == pytest.approx(nll(other.x), abs=1e-9)
    assert fit.nll_before == pytest.approx(nll(0.0))
    assert fit.temperature == pytest.approx(float(torch.tensor(other.x).exp()), rel=1e-4)


def test_recovers_the_temperature_that_made_the_labels():
    target = classification(num_points=20_000)
    theta = torch.randn(target.dim, generator=make_generator(1), dtype=torch.float64)
    probs = target.model.likelihood.probs(target.model(theta / 2.5, target.data.inputs))
    labels = torch.multinomial(probs, 1, generator=make_generator(2)).squeeze(1)
    assert fit_temperature(target.model, theta, Batch(target.data.inputs, labels)).temperature == pytest.approx(2.5, rel=0.1)


def test_weights_count_points():
    target = classification(num_points=50)
    theta = torch.ones(target.dim, dtype=torch.float64).cumsum(0).sin()
    doubled = Batch(target.data.inputs, target.data.targets, torch.where(torch.arange(50) < 10, 2.0, 1.0))
    repeated = target.data.subset(torch.cat([torch.arange(50), torch.arange(10)]))
    weighted, copied = (fit_temperature(target.model, theta, data) for data in (doubled, repeated))
    assert weighted.temperature == pytest.approx(copied.temperature, rel=1e-9)
    assert weighted.nll == pytest.approx(copied.nll, rel=1e-9)


def test_the_prior_cannot_be_seen_beside_hundreds_of_points():
    target = classification(num_points=500)
    theta = torch.randn(target.dim, generator=make_generator(1), dtype=torch.float64)
    probs = target.model.likelihood.probs(target.model(theta / 2.5, target.data.inputs))
    labels = torch.multinomial(probs, 1, generator=make_generator(2)).squeeze(1)
    few = Batch(target.data.inputs, labels)
    many = Batch(target.data.inputs, labels, torch.full((500,), 1e6))  # the prior weighs nothing here
    weighted, alone = (fit_temperature(target.model, theta, data) for data in (few, many))
    assert weighted.temperature == pytest.approx(alone.temperature, rel=0.02)
    assert weighted.nll == pytest.approx(alone.nll, abs=1e-4)


def test_separable_data_leave_the_temperature_moderate():
    inputs = torch.tensor([[-1.0], [1.0]])
    target = classification(num_features=1, num_outputs=2, bias=False, dtype=torch.float32)
    fit = fit_temperature(target.model, torch.tensor([-1.0, 1.0]), Batch(inputs, torch.tensor([0, 1])))
    assert 0.5 < fit.temperature < 1.0
    assert fit.nll < fit.nll_before


def test_regression_is_refused():
    target = regression()
    with pytest.raises(TypeError, match="must be a classifier for temperature scaling"):
        fit_temperature(target.model, torch.zeros(target.dim, dtype=torch.float64), target.data)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_noise_of_a_regressor_is_the_root_mean_square_of_its_residuals(weighted):
    target = regression(num_points=50)
    theta = torch.randn(target.dim, generator=make_generator(9), dtype=torch.float64)
    weights = torch.linspace(0.1, 3.0, 50, dtype=torch.float64) if weighted else None
    data = Batch(target.data.inputs, target.data.targets, weights)
    residuals = target.model(theta, data.inputs) - data.targets
    expected = np.sqrt(np.average((residuals.numpy() ** 2).mean(1), weights=None if weights is None else weights.numpy()))
    std = residual_std(target.model, theta, data)
    assert std == pytest.approx(float(expected))

    def log_likelihood(noise: float) -> float:
        value = GaussianNoise(noise).log_prob(target.model(theta, data.inputs), data.targets)
        return float(value.mean() if weights is None else weights @ value)

    assert log_likelihood(std) > max(log_likelihood(1.01 * std), log_likelihood(0.99 * std))


def test_residuals_of_one_output_with_flat_targets():
    """Targets (N,) against outputs (N, 1): not a table of all differences."""
    target = regression(num_outputs=1)
    flat = Batch(target.data.inputs, target.data.targets.squeeze(1))
    theta = torch.zeros(target.dim, dtype=torch.float64)
    assert residual_std(target.model, theta, flat) == pytest.approx(float(target.data.targets.square().mean().sqrt()))


@pytest.mark.parametrize("scale", [0.0, 1e200])
def test_residuals_that_say_nothing_about_the_noise(scale):
    target = regression()
    data = Batch(target.data.inputs, scale * torch.ones_like(target.data.targets))
    theta = torch.zeros(target.dim, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must leave residuals .*got a mean square of (0|inf)\. Pass `likelihood=Gaussian"):
        residual_std(target.model, theta, data)


@pytest.mark.parametrize("make", [classification, binary])
def test_recalibrating_a_classifier_is_dividing_by_the_temperature(make):
    target = make()
    theta = 3.0 * torch.randn(target.dim, generator=make_generator(9), dtype=torch.float64)
    model, scaled = recalibrate(target.model, theta, target.data)
    assert model is target.model
    torch.testing.assert_close(scaled, theta / fit_temperature(target.model, theta, target.data).temperature)


def test_recalibrating_a_regressor_is_estimating_its_noise():
    target = regression()
    theta = torch.randn(target.dim, generator=make_generator(9), dtype=torch.float64)
    model, same = recalibrate(target.model, theta, target.data)
    assert same is theta
    assert model.head is target.model.head
    assert model.likelihood == GaussianNoise(residual_std(target.model, theta, target.data))
