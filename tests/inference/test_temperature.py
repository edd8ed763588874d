"""Temperature scaling against a known temperature and an independent optimiser."""

import pytest
import torch
from problems import binary, classification, regression
from scipy.optimize import minimize_scalar

from burnish.features import Batch
from burnish.inference.temperature import fit_temperature
from burnish.noise import make_generator


@pytest.mark.parametrize("make", [classification, binary])
def test_agrees_with_a_scalar_optimiser(make):
    target = make(num_points=300)
    theta = 3.0 * torch.randn(target.dim, generator=make_generator(9), dtype=torch.float64)
    outputs = target.model(theta, target.data.inputs)

    def nll(log_temperature: float) -> float:
        scaled = outputs / torch.tensor(log_temperature).exp()
        return -float(target.model.likelihood.log_prob(scaled, target.data.targets).mean())

    other = minimize_scalar(nll, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    fit = fit_temperature(target.model, theta, target.data)
    assert fit.nll == pytest.approx(other.fun, abs=1e-9)
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


def test_separable_data_end_at_a_tiny_but_finite_temperature():
    inputs = torch.tensor([[-1.0], [1.0]])
    target = classification(num_features=1, num_outputs=2, bias=False, dtype=torch.float32)
    fit = fit_temperature(target.model, torch.tensor([-1.0, 1.0]), Batch(inputs, torch.tensor([0, 1])))
    assert 1e-3 <= fit.temperature < 1e-2
    assert fit.nll == pytest.approx(0.0, abs=1e-6)


def test_regression_is_refused():
    target = regression()
    with pytest.raises(TypeError, match="must be a classifier for temperature scaling"):
        fit_temperature(target.model, torch.zeros(target.dim, dtype=torch.float64), target.data)
