"""Averages over Gaussian logits: quadrature against closed forms and each other, approximations against quadrature."""

import math

import pytest
import torch
from scipy import integrate, special, stats

from burnish import integrals
from burnish.noise import make_generator

MEANS = torch.linspace(-6, 6, 13, dtype=torch.float64)


@pytest.mark.parametrize("rule", [integrals.gauss_hermite, integrals.trapezoid])
def test_quadrature_knows_the_moments_of_a_gaussian(rule):
    variance = torch.full_like(MEANS, 2.25)
    torch.testing.assert_close(rule(lambda f: f, MEANS, variance), MEANS, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(rule(lambda f: f**4, MEANS, variance), MEANS**4 + 6 * MEANS**2 * 2.25 + 3 * 2.25**2)
    exponential = rule(lambda f: (0.5 * f).exp(), MEANS, variance)
    torch.testing.assert_close(exponential, (0.5 * MEANS + 0.125 * 2.25).exp(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("std", [0.01, 0.3, 1.0, 3.0, 10.0])
def test_the_trapezoid_rule_against_adaptive_quadrature(std):
    found = integrals.trapezoid(torch.sigmoid, MEANS, torch.full_like(MEANS, std**2))
    for mean, value in zip(MEANS.tolist(), found.tolist(), strict=True):
        truth = integrate.quad(
            lambda z, mean=mean: special.expit(mean + std * z) * stats.norm.pdf(z), -12, 12, epsabs=1e-13, epsrel=1e-13,
            points=[max(-12.0, min(12.0, -mean / std))], limit=400,
        )[0]  # fmt: skip
        assert value == pytest.approx(truth, abs=1e-11)


@pytest.mark.parametrize(("std", "tolerance"), [(1.0, 1e-9), (3.0, 1e-9), (5.0, 1e-5), (10.0, 1e-3)])
def test_gauss_hermite_is_as_good_as_it_says(std, tolerance):
    variance = torch.full_like(MEANS, std**2)
    truth = integrals.trapezoid(torch.sigmoid, MEANS, variance)
    assert float((integrals.gauss_hermite(torch.sigmoid, MEANS, variance) - truth).abs().max()) < tolerance


def test_quadrature_keeps_shapes_and_dtypes_and_works_in_chunks(monkeypatch):
    mean, variance = torch.randn(5, 3, generator=make_generator(0)), torch.tensor(0.5)
    whole = integrals.trapezoid(torch.sigmoid, mean, variance)
    assert (whole.shape, whole.dtype) == (mean.shape, torch.float32)
    monkeypatch.setattr(integrals, "_CHUNK_ENTRIES", 50_000)
    torch.testing.assert_close(integrals.trapezoid(torch.sigmoid, mean, variance), whole)


def test_probit_is_exact_without_variance_at_zero_and_in_the_limit():
    torch.testing.assert_close(integrals.probit(MEANS, torch.zeros_like(MEANS)), MEANS.sigmoid())
    assert float(integrals.probit(torch.zeros(1), torch.tensor([7.0]))) == 0.5
    # of a very wide Gaussian only the sign counts, up to the ratio of the two slopes at zero
    wide = integrals.probit(torch.tensor([1e4], dtype=torch.float64), torch.tensor([1e8], dtype=torch.float64))
    assert float(wide) == pytest.approx(1 / (1 + math.exp(-math.sqrt(8 / math.pi))))


def test_probit_against_quadrature():
    """Its error is at most two hundredths wherever one looks, and it has both signs."""
    mean, std = torch.meshgrid(torch.linspace(-10, 10, 81), torch.linspace(0.05, 10, 80), indexing="ij")
    mean, variance = mean.double(), std.double().square()
    error = integrals.probit(mean, variance) - integrals.trapezoid(torch.sigmoid, mean, variance, num_points=2000)
    assert 0.015 < float(error.abs().max()) < 0.02
    assert float(error.min()) < -0.01 < 0.01 < float(error.max())


def random_gaussians(num_classes, count=20, scale=1.0):
    generator = make_generator(num_classes)
    mean = 2.0 * torch.randn(count, num_classes, generator=generator, dtype=torch.float64)
    root = torch.randn(count, num_classes, num_classes, generator=generator, dtype=torch.float64)
    return mean, scale**2 * root @ root.mT / num_classes


def test_multiclass_probit_of_two_classes_ignores_their_correlation():
    mean, covariance = random_gaussians(2)
    variance = covariance.diagonal(dim1=1, dim2=2)
    found = integrals.multiclass_probit(mean, variance)
    shrunk = mean / (1 + math.pi / 8 * variance).sqrt()
    torch.testing.assert_close(found[:, 1], (shrunk[:, 1] - shrunk[:, 0]).sigmoid())
    torch.testing.assert_close(integrals.multiclass_probit(mean, torch.zeros_like(mean)), mean.softmax(-1))


def test_multiclass_probit_moves_with_a_shift_that_softmax_does_not_see():
    mean, covariance = random_gaussians(3)
    variance = covariance.diagonal(dim1=1, dim2=2)
    one, other = (integrals.multiclass_probit(mean + shift, variance) for shift in (0.0, 5.0))
    assert float((one - other).abs().max()) > 0.01


def contrasts(covariance):
    """The variance of each logit less the mean of all."""
    count = covariance.shape[-1]
    projection = torch.eye(count, dtype=torch.float64) - 1 / count
    return (projection @ covariance @ projection).diagonal(dim1=1, dim2=2)


def test_the_bridge_returns_to_the_dirichlet_it_came_from():
    """The Laplace approximation of a Dirichlet in logits, which has this mean and covariance, gives it back."""
    concentration = torch.tensor([[0.7, 2.0, 5.0], [3.0, 3.0, 3.0], [40.0, 0.2, 1.0]], dtype=torch.float64)
    logs = concentration.log()
    mean = logs - logs.mean(-1, keepdim=True)
    inverse = 1 / concentration
    shared = inverse.unsqueeze(-1) + inverse.unsqueeze(-2) - inverse.mean(-1).view(-1, 1, 1)
    covariance = torch.eye(3, dtype=torch.float64) * inverse.unsqueeze(-1) - shared / 3
    torch.testing.assert_close(integrals.bridge(mean, contrasts(covariance)), concentration)


def test_the_bridge_does_not_see_a_common_shift_of_the_logits():
    mean, covariance = random_gaussians(4)
    shifted = covariance + 3.0  # a Gaussian number of variance 3 added to all logits
    one, other = (integrals.bridge(mean + k, contrasts(matrix)) for k, matrix in enumerate((covariance, shifted)))
    torch.testing.assert_close(one, other)


def test_the_bridge_of_two_classes_is_the_softmax_of_the_mean():
    mean, covariance = random_gaussians(2)
    concentration = integrals.bridge(mean, contrasts(covariance))
    torch.testing.assert_close(concentration / concentration.sum(-1, keepdim=True), mean.softmax(-1))


def test_certain_logits_do_not_overflow_the_bridge():
    mean = torch.tensor([[2000.0, 0.0, -2000.0]])
    concentration = integrals.bridge(mean, torch.ones(1, 3))
    assert bool(torch.isfinite(concentration).all())
    assert float(concentration[0, 0] / concentration.sum()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="`variance` must be positive and finite, got 0"):
        integrals.bridge(mean, torch.zeros(1, 3))
