"""Batches with a control variate: unbiased, quiet, and honest about the Hessian they are built on."""

import pytest
import torch
from problems import classification

from burnish.inference.curvature import full_hessian
from burnish.inference.estimate import _drawing_probabilities, choose_estimate, expand_at
from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return classification(num_points=5000, num_features=4, num_outputs=3, prior_precision=0.1, weighted=True)


@pytest.fixture(scope="module")
def base(target) -> Gaussian:
    return fit_laplace(target).posterior


def estimates(target, base, theta, num_draws, *, control_variate, size=64):
    generator = make_generator(3)
    estimate, _ = choose_estimate(target, base, size, control_variate, 8, generator)
    draws = [estimate(theta) for _ in range(num_draws)]
    return torch.stack([value for value, _ in draws]), torch.stack([grad for _, grad in draws])


@pytest.mark.parametrize("control_variate", [True, False])
@pytest.mark.parametrize("structure", ["full", "kron", "diagonal"])
def test_unbiased_over_many_draws(target, structure, control_variate):
    """Values and gradients, also away from the mode, within five standard errors of the exact ones."""
    base = fit_laplace(target, structure=structure).posterior
    theta = base.sample(3, generator=make_generator(1)) + 0.05
    exact_value, exact_grad = target.log_prob_and_grad(theta)
    values, grads = estimates(target, base, theta, 2000, control_variate=control_variate)
    for draws, exact in ((values, exact_value), (grads, exact_grad)):
        error = (draws.mean(0) - exact).abs()
        assert bool((error <= 5 * draws.std(0) / 2000**0.5 + 1e-9).all())


def test_the_control_variate_takes_nearly_all_of_the_noise(target, base):
    theta = base.sample(4, generator=make_generator(1))
    with_it, _ = estimates(target, base, theta, 300, control_variate=True)
    without, _ = estimates(target, base, theta, 300, control_variate=False)
    assert float(with_it.var(0).mean()) < float(without.var(0).mean()) / 1000


def test_a_laplace_base_lends_its_hessian(target, base, monkeypatch):
    monkeypatch.setattr("burnish.inference.estimate.full_hessian", lambda *_: pytest.fail("computed again"))
    hessian = expand_at(target, base).hessian
    assert torch.allclose(hessian, full_hessian(target, base.mean), rtol=1e-6, atol=1e-6)


def test_another_gaussian_does_not(target, base):
    """A base whose precision is not the Hessian: the expansion must still be the sum of its points' terms."""
    other = Gaussian(base.mean + 0.1, Dense(1.5 * base.scale.factor))
    assert torch.allclose(expand_at(target, other).hessian, full_hessian(target, other.mean))


def test_probabilities_follow_the_remainders(target, base):
    expansion = expand_at(target, base)
    probabilities = _drawing_probabilities(target, expansion, base, make_generator(0))
    assert float(probabilities.sum()) == pytest.approx(1.0)
    assert float(probabilities.min()) >= 0.1 / len(target.data)
    theta = base.sample(16, generator=make_generator(5))
    sizes = target.remainder(theta, torch.arange(len(target.data)), expansion)[0].abs().mean(0)
    assert float(torch.corrcoef(torch.stack([sizes, probabilities]))[0, 1]) > 0.5


def test_a_quiet_target_gets_small_batches_and_a_noisy_one_all_data(target, base):
    assert choose_estimate(target, base, "auto", True, 8, make_generator(0))[1] == 512
    assert choose_estimate(target, base, "auto", False, 8, make_generator(0))[1] is None  # plain batches are too noisy


def test_little_data_is_used_whole():
    small = classification()
    assert choose_estimate(small, fit_laplace(small).posterior, "auto", True, 8, make_generator(0))[1] is None


@pytest.mark.parametrize(
    ("num_points", "structure", "control_variate", "all_points"),
    [(30, "full", True, True), (34, "full", True, False), (30, "kron", True, False), (30, "full", False, False)],
)
def test_all_points_are_taken_where_a_dense_expansion_costs_more(
    monkeypatch, num_points, structure, control_variate, all_points
):
    monkeypatch.setattr("burnish.inference.estimate._FULL_DATA", 10)
    target = classification(num_points=num_points, num_features=20, num_outputs=3, prior_precision=10.0)
    assert target.dim == 63
    base = fit_laplace(target, structure=structure).posterior
    measured = []
    monkeypatch.setattr("burnish.inference.estimate._quiet_batch_size", lambda *_: measured.append(True) or 4)
    estimate, size = choose_estimate(target, base, "auto", control_variate, 8, make_generator(0))
    assert (size is None) == all_points != bool(measured)
    assert not all_points or estimate == target.log_prob_and_grad
