"""The mode search against stationarity, an independent optimiser, and hard cases."""

import numpy as np
import pytest
import torch
from problems import binary, classification, features, regression, regression_truth
from sklearn.linear_model import LogisticRegression
from test_network_curvature import IRREGULAR, LIKELIHOODS, Normalised, Recurrent, linear_pair, make, make_named
from torch import nn

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference import mode
from burnish.inference.mode import find_mode
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.target import Target


@pytest.mark.parametrize("make", [classification, binary, regression])
def test_the_gradient_vanishes_at_the_mode(make):
    target = make()
    found = find_mode(target, tolerance=1e-6)
    gradient = torch.func.grad(target.log_prob)(found.theta)
    assert found.converged
    assert found.gradient_norm == pytest.approx(float(gradient.norm()), abs=1e-9)
    assert found.gradient_norm < 1e-6


def test_conjugate_regression_is_solved_in_one_step():
    target = regression()
    found = find_mode(target)
    assert torch.allclose(found.theta, regression_truth(target)[0], atol=1e-9)
    assert found.iterations <= 2


def test_the_mode_is_that_of_scikit_learn():
    target = classification(num_points=200, prior_precision=3.0, bias=False)
    inputs, labels = target.data.inputs.numpy(), target.data.targets.numpy()
    other = LogisticRegression(C=1 / 3.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(inputs, labels)
    assert np.allclose(find_mode(target, tolerance=1e-8).theta.view(4, 3).numpy(), other.coef_, atol=1e-5)


def test_the_start_does_not_matter():
    target = classification(num_points=300, prior_precision=0.1)
    far = 20 * torch.randn(target.dim, generator=make_generator(1), dtype=torch.float64)
    assert torch.allclose(find_mode(target, far, tolerance=1e-8).theta, find_mode(target, tolerance=1e-8).theta, atol=1e-7)


def test_the_start_is_left_alone():
    target = classification()
    start = torch.ones(target.dim, dtype=torch.float64)
    find_mode(target, start)
    assert bool((start == 1).all())


@pytest.mark.parametrize("dense", [True, False])
def test_both_preconditioners_lead_to_the_same_mode(dense, monkeypatch):
    target = classification(num_points=500, num_features=6, weighted=True, prior_precision=0.5)
    monkeypatch.setattr(mode, "_DENSE_DIM", 10_000 if dense else 0)
    monkeypatch.setattr(mode, "_DENSE_POINTS", 50)  # so that the dense one sees a part of the data only
    monkeypatch.setattr(mode, "_DENSE_POINTS_PER_DIM", 1)
    assert find_mode(target, tolerance=1e-7).gradient_norm < 1e-5


def test_single_precision_gets_as_close_as_it_can():
    exact = find_mode(classification(num_points=2000, prior_precision=1.0)).theta
    rough = find_mode(classification(num_points=2000, prior_precision=1.0, dtype=torch.float32))
    assert rough.converged
    assert float((rough.theta - exact).abs().max()) < 1e-4


def test_running_out_of_iterations_is_said():
    found = find_mode(classification(prior_precision=1e-3), tolerance=1e-10, max_iterations=1)
    assert (found.iterations, found.converged) == (1, False)


def separable() -> Target:
    inputs = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    return Target.last_layer(inputs, torch.tensor([0, 0, 1, 1]), prior_precision=1e-4)


def missing_class() -> Target:
    full = classification(num_points=40)
    few = full.data.subset(full.data.targets != 2)
    return Target(full.model, few, 1.0)


def one_class() -> Target:
    labels = torch.zeros(60, dtype=torch.long)
    return Target.last_layer(classification().data.inputs, labels, prior_precision=0.1, num_outputs=3)


def duplicate_columns() -> Target:
    inputs = classification().data.inputs
    return Target.last_layer(torch.cat([inputs, inputs], 1), classification().data.targets, prior_precision=1e-3)


def constant_features() -> Target:
    return Target.last_layer(torch.ones(30, 3), torch.arange(30) % 3, prior_precision=1e-2)


def fewer_points_than_features() -> Target:
    return classification(num_points=5, num_features=40, prior_precision=0.01)


DEGENERATE = [separable, missing_class, one_class, duplicate_columns, constant_features, fewer_points_than_features]


@pytest.mark.parametrize("make", DEGENERATE)
def test_degenerate_data_has_a_finite_mode(make):
    found = find_mode(make())
    assert found.converged
    assert bool(torch.isfinite(found.theta).all())


def test_features_whose_squares_overflow_are_a_fit_error():
    huge = 1e200 * features(20, 2)
    with pytest.raises(FitError, match="scale the features"):
        find_mode(Target.last_layer(huge, torch.arange(20) % 2, prior_precision=1.0))


def test_wrong_starts_are_refused():
    with pytest.raises(ValueError, match="`start` must have shape"):
        find_mode(classification(), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="`tolerance` must be positive"):
        find_mode(classification(), tolerance=0.0)


def spectrum_inverse(target: Target, spectrum: mode.HessianSpectrum, precision: float) -> torch.Tensor:
    return torch.stack([spectrum.inverse(precision)(row) for row in torch.eye(target.dim, dtype=torch.float64)])


@pytest.mark.parametrize("precision", [1e-3, 1.0, 1e4])
def test_one_spectrum_inverts_the_hessian_for_every_precision(precision):
    target = classification(weighted=True)
    theta = find_mode(target).theta
    spectrum = mode.HessianSpectrum.at(target, theta)
    hessian = -torch.autograd.functional.hessian(lambda t: target.log_prob(t) - target.log_prior(t), theta)
    expected = torch.linalg.inv(hessian + precision * torch.eye(target.dim, dtype=torch.float64))
    torch.testing.assert_close(spectrum_inverse(target, spectrum, precision), expected, rtol=1e-6, atol=1e-9)
    assert float(spectrum.values.min()) >= 0.0


@pytest.mark.parametrize("make", [classification, binary])
@pytest.mark.parametrize("precision", [1e-2, 2.0, 1e3])
def test_a_spectrum_leads_to_the_same_mode(make, precision):
    target = make(num_points=200, prior_precision=precision)
    spectrum = mode.HessianSpectrum.at(target, torch.zeros(target.dim, dtype=torch.float64))
    found = find_mode(target, tolerance=1e-7, spectrum=spectrum)
    assert found.converged
    torch.testing.assert_close(found.theta, find_mode(target, tolerance=1e-7).theta, rtol=0, atol=1e-6)


def test_a_spectrum_that_does_not_fit_costs_iterations_only():
    target = classification(num_points=200, prior_precision=0.1)
    other = classification(num_points=200, seed=5)
    inputs = 30.0 * other.data.inputs
    far = Target.last_layer(inputs, other.data.targets, prior_precision=1.0)
    spectrum = mode.HessianSpectrum.at(far, 3.0 * torch.ones(target.dim, dtype=torch.float64))
    found = find_mode(target, tolerance=1e-7, spectrum=spectrum)
    assert found.converged
    torch.testing.assert_close(found.theta, find_mode(target, tolerance=1e-7).theta, rtol=0, atol=1e-6)


def test_a_spectrum_serves_a_precision_for_every_parameter():
    precision = torch.linspace(0.1, 50.0, 16, dtype=torch.float64)
    target = classification(num_points=200, prior_precision=precision)
    spectrum = mode.HessianSpectrum.at(target, torch.zeros(target.dim, dtype=torch.float64))
    found = find_mode(target, tolerance=1e-7, spectrum=spectrum)
    torch.testing.assert_close(found.theta, find_mode(target, tolerance=1e-7).theta, rtol=0, atol=1e-6)


def test_a_spectrum_of_a_part_of_the_data_stands_for_all(monkeypatch):
    target = classification(num_points=4000)
    theta = find_mode(target).theta
    exact = mode.HessianSpectrum.at(target, theta)
    monkeypatch.setattr(mode, "_DENSE_POINTS", 500)
    part = mode.HessianSpectrum.at(target, theta)
    assert not torch.equal(part.values, exact.values)
    assert float(part.values.sum()) == pytest.approx(float(exact.values.sum()), rel=0.1)


def test_no_spectrum_of_too_many_parameters(monkeypatch):
    target = classification()
    monkeypatch.setattr(mode, "_DENSE_DIM", target.dim - 1)
    assert mode.HessianSpectrum.at(target, torch.zeros(target.dim, dtype=torch.float64)) is None


def test_a_spectrum_in_single_precision():
    target = classification(num_points=2000, prior_precision=1.0, dtype=torch.float32)
    spectrum = mode.HessianSpectrum.at(target, torch.zeros(target.dim))
    assert spectrum.values.dtype == spectrum.vectors.dtype == torch.float32
    exact = find_mode(classification(num_points=2000, prior_precision=1.0)).theta
    assert float((find_mode(target, spectrum=spectrum).theta - exact).abs().max()) < 1e-4


# Networks


def check_climbed(target, start, found):
    """Uphill, and to where the target's own gradient vanishes."""
    assert found.converged
    assert float(target.log_prob(found.theta)) > float(target.log_prob(start))
    gradient = torch.func.grad(target.log_prob)(found.theta)
    assert found.gradient_norm == pytest.approx(float(gradient.norm()), abs=1e-9)
    assert found.gradient_norm < 1e-3 * float(torch.func.grad(target.log_prob)(start).norm())


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_smooth_network_ends_where_the_gradient_vanishes(likelihood):
    target, start = make_named("tanh", likelihood, num_points=40, precision=0.1)
    check_climbed(target, start, find_mode(target, start, tolerance=1e-6))


@pytest.mark.parametrize("name", ["relu", "padding and stride", "one dimension", "batch norm", "sequence"])
def test_other_networks_climb(name):
    target, start = make_named(name, precision=2.0)
    found = find_mode(target, start)
    assert found.converged
    assert float(target.log_prob(found.theta)) > float(target.log_prob(start)) + 1.0
    moved = found.theta + 0.05 * torch.randn(20, target.dim, generator=make_generator(0), dtype=torch.float64)
    assert float(target.log_prob(moved).max()) < float(target.log_prob(found.theta)) + 0.05


class Fold(nn.Module):
    """The density is highest where the weight is zero, and its slope there is not."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))

    def forward(self, x):
        return -self.weight.abs() * x


def test_a_search_that_ends_at_a_kink_says_so():
    inputs = torch.ones(5, 1, dtype=torch.float64)
    model, start = flatten_network(Fold().eval(), example=inputs, likelihood=GaussianNoise(1.0))
    target = Target(model, Batch(inputs, inputs), 1.0)
    found = find_mode(target, start)
    assert abs(float(found.theta)) < 1e-3
    assert found.stalled
    assert not found.converged
    short = find_mode(target, start, max_iterations=1)
    assert not short.converged
    assert not short.stalled


def test_a_linear_network_has_the_mode_of_a_linear_head():
    target, head, start = linear_pair("categorical")
    found, expected = find_mode(target, start, tolerance=1e-7), find_mode(head, start, tolerance=1e-7)
    torch.testing.assert_close(found.theta, expected.theta, rtol=0, atol=1e-7)


PRECONDITIONED = {
    "kronecker": lambda: make_named("groups and dilation", precision=5.0),
    "unknown layers": lambda: make(Normalised(3), (1, 3, 3), precision=5.0),
    "recurrent": lambda: make(Recurrent(3), (3, 2), precision=5.0),
    "called twice": lambda: make(IRREGULAR["called twice"][0](), (3,), precision=5.0),
    "folded": lambda: make(IRREGULAR["folded"][0](), (4, 3), precision=5.0),
}


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("name", PRECONDITIONED)
def test_every_preconditioner_of_a_network_leads_uphill(name, room, monkeypatch):
    """Kronecker where there is such a structure, and room for it; a diagonal otherwise."""
    target, start = PRECONDITIONED[name]()
    expected = find_mode(target, start)
    monkeypatch.setattr(mode, "_DENSE_NETWORK", 0)
    if not room:
        monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**8)
    found = find_mode(target, start)
    assert found.converged
    assert float(target.log_prob(found.theta)) == pytest.approx(float(target.log_prob(expected.theta)), abs=0.3)


def test_a_vector_of_precisions_for_a_network(monkeypatch):
    target, start = make_named("tanh", num_points=40)
    target = target.with_prior(torch.linspace(0.5, 4.0, target.dim, dtype=torch.float64))
    for dense in (10_000, 0):
        monkeypatch.setattr(mode, "_DENSE_NETWORK", dense)
        check_climbed(target, start, find_mode(target, start))
