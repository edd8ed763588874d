"""Hessians of linear heads against autograd in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import binary, classification, regression
from test_network_curvature import make_named

from burnish.errors import FitError
from burnish.inference.curvature import (
    diagonal_hessian,
    full_hessian,
    hessian_product,
    kronecker_hessian,
    leading_eigenpairs,
    needs_double,
)
from burnish.likelihoods import Categorical
from burnish.noise import make_generator
from burnish.target import Target

TARGETS = {
    "categorical": lambda: classification(weighted=True),
    "categorical, no bias": lambda: classification(bias=False),
    "categorical, two classes": lambda: classification(num_outputs=2),
    "bernoulli": lambda: binary(weighted=True),
    "gaussian": regression,
}


def autograd_hessian(target: Target, theta: torch.Tensor) -> torch.Tensor:
    return -torch.autograd.functional.hessian(lambda t: target.log_prob(t) - target.log_prior(t), theta)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300))


@pytest.fixture(params=list(TARGETS))
def target(request):
    return TARGETS[request.param]()


def test_full_and_diagonal_agree_with_autograd(target):
    theta = torch.randn(target.dim, generator=make_generator(3), dtype=torch.float64)
    truth = autograd_hessian(target, theta)
    assert relative_error(full_hessian(target, theta), truth) < 1e-8
    assert relative_error(diagonal_hessian(target, theta), truth.diagonal()) < 1e-8


def test_product_agrees_with_the_full_hessian(target):
    generator = make_generator(4)
    theta, vector = torch.randn(2, target.dim, generator=generator, dtype=torch.float64)
    assert relative_error(hessian_product(target, theta)(vector), full_hessian(target, theta) @ vector) < 1e-12


def test_chunks_do_not_change_the_result(target, monkeypatch):
    theta = torch.randn(target.dim, generator=make_generator(5), dtype=torch.float64)
    whole = full_hessian(target, theta)
    monkeypatch.setattr("burnish.inference.curvature._CHUNK_ENTRIES", {"cpu": 1})
    monkeypatch.setattr("burnish.inference.curvature._MIN_ROWS", 7)
    assert relative_error(full_hessian(target, theta), whole) < 1e-13


def test_kronecker_is_exact_where_the_curvature_is_constant():
    target = regression()
    factors = kronecker_hessian(target, torch.zeros(target.dim, dtype=torch.float64))
    order = target.model.head.from_matrix(torch.arange(target.dim).view(target.model.head.num_outputs, -1))
    product = torch.kron(factors.left, factors.right)[order][:, order]
    assert relative_error(product, full_hessian(target, torch.zeros(target.dim, dtype=torch.float64))) < 1e-12


def test_kronecker_has_the_trace_of_independent_factors():
    target = classification(weighted=True)
    theta = torch.zeros(target.dim, dtype=torch.float64)  # equal probabilities: constant curvature again
    factors = kronecker_hessian(target, theta)
    trace = float(factors.left.trace() * factors.right.trace())
    assert trace == pytest.approx(float(full_hessian(target, theta).trace()), rel=1e-12)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    num_points=st.integers(1, 12),
    num_features=st.integers(1, 4),
    num_outputs=st.integers(2, 5),
    bias=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 300.0]),
    seed=st.integers(0, 10_000),
)
def test_generated_cases_agree_with_autograd(num_points, num_features, num_outputs, bias, scale, seed):
    generator = make_generator(seed)
    inputs = torch.randn(num_points, num_features, generator=generator, dtype=torch.float64)
    labels = torch.randint(num_outputs, (num_points,), generator=generator)
    weights = torch.rand(num_points, generator=generator, dtype=torch.float64) * 5 + 1e-3
    target = Target.last_layer(
        inputs, labels, prior_precision=1.0, bias=bias, weights=weights, num_outputs=num_outputs, likelihood=Categorical()
    )
    theta = scale * torch.randn(target.dim, generator=generator, dtype=torch.float64)
    truth = autograd_hessian(target, theta)
    # autograd itself loses the digits of p (1 - p) where p is near one: its absolute accuracy is that of rounding
    rounding = 1e-13 * float(weights.sum()) * max(1.0, float(inputs.abs().max()) ** 2)
    tolerance = 1e-8 * float(truth.abs().max()) + rounding
    assert float((full_hessian(target, theta) - truth).abs().max()) < tolerance
    assert float((diagonal_hessian(target, theta) - truth.diagonal()).abs().max()) < tolerance
    assert float(torch.linalg.eigvalsh(full_hessian(target, theta)).min()) > -tolerance


def test_a_hessian_too_large_is_refused_with_its_size_and_the_alternative(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**10)
    target = classification()
    with pytest.raises(MemoryError, match=r"full Hessian of 16 parameters needs .* use structure='kron'"):
        full_hessian(target, torch.zeros(target.dim, dtype=torch.float64))


def network():
    return make_named("tanh", num_points=40)


def linear_head():
    target = classification(weighted=True)
    return target, torch.randn(target.dim, generator=make_generator(3), dtype=torch.float64)


@pytest.mark.parametrize("make", [linear_head, network])
@pytest.mark.parametrize("count", [1, 5])
def test_leading_eigenpairs_against_a_dense_decomposition(make, count):
    target, theta = make()
    precision = torch.linspace(0.3, 4.0, target.dim, dtype=torch.float64)
    root = precision.rsqrt()
    matrix = root.unsqueeze(1) * full_hessian(target, theta) * root
    expected, directions = torch.linalg.eigh(matrix)
    values, vectors = leading_eigenpairs(target, theta, precision, count)
    assert values.shape == (count,)
    assert values.dtype == vectors.dtype == torch.float64
    torch.testing.assert_close(values.sort().values, expected[-count:], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(count, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(vectors @ vectors.T, directions[:, -count:] @ directions[:, -count:].T, rtol=0, atol=1e-2)
    along = (vectors * (matrix @ vectors)).sum(0)  # each value belongs to its vector
    torch.testing.assert_close(along, values, rtol=1e-3, atol=1e-6)


def test_leading_eigenpairs_are_the_same_every_time(untouched_rng):
    target, theta = linear_head()
    first, second = (leading_eigenpairs(target, theta, torch.ones_like(theta), 3) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_more_eigenpairs_than_there_is_curvature():
    target = classification(num_points=2, num_outputs=3)  # rank four at most, of twelve
    theta = torch.zeros(target.dim, dtype=torch.float64)
    values, vectors = leading_eigenpairs(target, theta, torch.ones_like(theta), 9)
    assert float(values.sort().values[:5].abs().max()) < 1e-8
    hessian = full_hessian(target, theta)
    torch.testing.assert_close(vectors @ values.diag() @ vectors.T, hessian, rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", [1e6, float("nan")])
def test_no_curvature_or_none_that_is_a_number_is_a_fit_error(size):
    target = classification()
    theta = size * torch.randn(target.dim, generator=make_generator(3), dtype=torch.float64)
    with pytest.raises(FitError, match=r"leading directions of the curvature were not found .*use another structure"):
        leading_eigenpairs(target, theta, torch.ones_like(theta), 3)


def test_leading_eigenpairs_in_single_precision():
    target = classification(dtype=torch.float32)
    theta, exact = torch.zeros(target.dim), torch.zeros(target.dim, dtype=torch.float64)
    values, _ = leading_eigenpairs(target, theta, torch.ones_like(exact), 3)
    expected, _ = leading_eigenpairs(classification(), exact, torch.ones_like(exact), 3)
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-5)


def test_a_network_is_never_made_double():
    target = classification(dtype=torch.float32, prior_precision=1e-9)
    assert needs_double(target, torch.zeros(target.dim))
    target, theta = network()
    assert not needs_double(target, theta.float())
