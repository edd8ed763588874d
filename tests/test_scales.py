"""Scales: one contract for every structure, factories against explicit inverses, ill-conditioned and refused matrices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.noise import make_generator
from burnish.scales import Dense, Diagonal, Kronecker

EPSILON = torch.finfo(torch.float64).eps


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def positive_definite(dim, seed=0):
    root = draw(dim, dim, seed=seed)
    return root @ root.T + 0.1 * torch.eye(dim)


def root_of(scale):
    """L, column by column."""
    return torch.stack([scale.matmul(row) for row in torch.eye(scale.dim, dtype=torch.float64)], dim=1)


def kronecker_precision(left, right, precision, layout):
    """`left x right + precision I` entry by entry, in the order of the flat parameters: weight row-major, then bias."""
    places = [(c, p) for c in range(layout.num_outputs) for p in range(layout.num_features)]
    places += [(c, layout.num_features) for c in range(layout.num_outputs)] if layout.bias else []
    rows = [[left[c, k] * right[q, r] + precision * ((c, q) == (k, r)) for k, r in places] for c, q in places]
    return torch.tensor(rows, dtype=torch.float64)


def test_dimensions_and_types(scale):
    assert scale.dim == 6
    assert scale.variance().shape == (6,)
    assert scale.covariance().shape == (6, 6)
    assert scale.logdet().shape == ()
    assert scale.logdet().dtype == torch.float64


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_matmul_is_linear_in_rows(scale, batch):
    noise = draw(*batch, 6)
    torch.testing.assert_close(scale.matmul(noise), noise @ root_of(scale).T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_solve_inverts_matmul(scale, batch):
    vectors = draw(*batch, 6)
    torch.testing.assert_close(scale.solve(scale.matmul(vectors)), vectors, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(scale.matmul(scale.solve(vectors)), vectors, rtol=1e-11, atol=1e-11)


def test_covariance_is_the_square_of_the_root(scale):
    root = root_of(scale)
    torch.testing.assert_close(scale.covariance(), root @ root.T, rtol=1e-12, atol=1e-12)


def test_variance_is_the_diagonal_of_the_covariance(scale):
    torch.testing.assert_close(scale.variance(), scale.covariance().diagonal(), rtol=1e-12, atol=1e-12)


def test_logdet_is_that_of_the_root(scale):
    torch.testing.assert_close(scale.logdet(), torch.linalg.slogdet(root_of(scale)).logabsdet, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False])
def test_kronecker_transpose(bias):
    layout = LinearHead(3, 2, bias)
    scale = Kronecker.from_precision(positive_definite(2), positive_definite(3 + bias), 0.5, layout)
    vectors = draw(4, layout.dim)
    torch.testing.assert_close(scale.transpose_matmul(vectors), vectors @ root_of(scale), rtol=1e-12, atol=1e-12)


def test_diagonal_known_answer():
    scale = Diagonal(torch.tensor([1.0, 2.0, 4.0]))
    assert scale.covariance().tolist() == [[1.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 16.0]]
    assert scale.logdet().item() == pytest.approx(math.log(8))


def test_dense_from_precision():
    precision = positive_definite(5)
    torch.testing.assert_close(Dense.from_precision(precision).covariance(), precision.inverse(), rtol=1e-10, atol=1e-12)


def test_dense_from_covariance():
    covariance = positive_definite(5)
    scale = Dense.from_covariance(covariance)
    torch.testing.assert_close(scale.covariance(), covariance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scale.factor, torch.linalg.cholesky(covariance), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 3])
def test_kronecker_from_precision(bias, rank):
    layout, root = LinearHead(3, 2, bias), draw(3 + bias, rank, seed=1)
    left, right = positive_definite(2), root @ root.T
    expected = kronecker_precision(left, right, 0.7, layout).inverse()
    scale = Kronecker.from_precision(left, right, 0.7, layout)
    torch.testing.assert_close(scale.covariance(), expected, rtol=1e-10, atol=1e-10)


def rotated(exponents, seed):
    rotation = torch.linalg.qr(draw(len(exponents), len(exponents), seed=seed)).Q
    matrix = rotation @ torch.diag(10.0 ** torch.tensor(exponents, dtype=torch.float64)) @ rotation.T
    return (matrix + matrix.T) / 2


@given(exponents=st.lists(st.floats(-5, 5), min_size=4, max_size=4), seed=st.integers(0, 1000))
def test_ill_conditioned_precision(exponents, seed):
    precision = rotated(exponents, seed)
    condition = 10 ** (max(exponents) - min(exponents))
    scale = Dense.from_precision(precision)
    eye = torch.eye(4, dtype=torch.float64)
    whitened = scale.matmul(eye) @ precision @ scale.matmul(eye).T
    assert (whitened - eye).abs().max() < 100 * condition * EPSILON
    assert scale.logdet().item() == pytest.approx(
        -0.5 * sum(exponents) * math.log(10), abs=100 * condition * EPSILON + 1e-12
    )


@given(exponents=st.lists(st.floats(-5, 5), min_size=4, max_size=4), seed=st.integers(0, 1000))
def test_ill_conditioned_covariance(exponents, seed):
    covariance = rotated(exponents, seed)
    error = (Dense.from_covariance(covariance).covariance() - covariance).abs().max()
    assert error < 100 * EPSILON * 10 ** max(exponents)


@given(
    left=st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    right=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    precision=st.floats(-5, 5).map(lambda exponent: 10**exponent),
)
def test_ill_conditioned_kronecker(left, right, precision):
    layout, factors = LinearHead(2, 2), (rotated(left, 1), rotated(right, 2))
    truth = kronecker_precision(*factors, precision, layout)
    scale = Kronecker.from_precision(*factors, precision, layout)
    eye = torch.eye(6, dtype=torch.float64)
    whitened = scale.matmul(eye) @ truth @ scale.matmul(eye).T
    largest = 10 ** (max(left) + max(right))
    assert (whitened - eye).abs().max() < 1e3 * EPSILON * (largest + precision) / precision


def test_float32_precision_is_factorised_in_float64():
    precision = rotated([0.0, 1.0, 3.0, 5.0], 0).float()
    truth = precision.double().inverse()
    scale = Dense.from_precision(precision)
    assert scale.factor.dtype == torch.float32
    assert (scale.covariance() - truth).abs().max() < 1e-5 * truth.abs().max()
    assert Dense.from_precision(precision, torch.float64).factor.dtype == torch.float64


@pytest.mark.parametrize("factory", [Dense.from_precision, Dense.from_covariance])
@pytest.mark.parametrize(
    "matrix", [[[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]], [[math.nan, 0.0], [0.0, 1.0]]]
)
def test_not_positive_definite(factory, matrix):
    remedy = "prior_precision" if factory == Dense.from_precision else "full rank"
    with pytest.raises(FitError, match=rf"not positive definite \(leading minor \d.*{remedy}"):
        factory(torch.tensor(matrix))


@pytest.mark.parametrize("std", [[1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_diagonal_refuses(std):
    with pytest.raises(ValueError, match=r"`std` must be positive and finite, got .* \(1 of 2 entries are not\)"):
        Diagonal(torch.tensor(std))


@pytest.mark.parametrize("shape", [(), (1, 2)])
def test_diagonal_must_be_a_vector(shape):
    with pytest.raises(ValueError, match=r"`std` must be a vector, got shape \(.*\)\. Pass one value per dimension"):
        Diagonal(torch.ones(shape))


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ([[1.0, 0.0]], r"`factor` must be a square matrix, got shape \(1, 2\)\. Pass a Cholesky factor"),
        ([1.0, 1.0], r"`factor` must be a square matrix, got shape \(2,\)"),
        ([[1.0, 0.0], [math.nan, 1.0]], r"`factor` must be finite, .* not positive definite"),
        ([[1.0, 0.0], [0.0, 0.0]], r"`factor.diagonal\(\)` must be positive and finite, got 0 .*Pass a Cholesky factor"),
        ([[1.0, 0.0], [0.0, -1.0]], r"`factor.diagonal\(\)` must be positive and finite, got -1 .*Pass a Cholesky factor"),
        ([[1.0, 0.5], [0.0, 1.0]], r"`factor` must be lower triangular, got entries above the diagonal\. Pass `factor.tril"),
    ],
)
def test_dense_refuses(factor, message):
    with pytest.raises(ValueError, match=message):
        Dense(torch.tensor(factor))


@pytest.mark.parametrize(
    ("left", "right", "std"),
    [
        ((2, 2), (4, 4), (2, 3)),
        ((3, 3), (4, 4), (2, 4)),
        ((2, 2), (3, 3), (2, 4)),
        ((2, 3), (4, 4), (2, 4)),
        ((2, 2), (4, 1), (2, 4)),
    ],
)
def test_kronecker_refuses_shapes(left, right, std):
    with pytest.raises(ValueError, match=r"`std` must have shape \(2, 4\) like the layer's matrix, .*Check `layout`"):
        Kronecker(torch.ones(left), torch.ones(right), torch.ones(std), LinearHead(3, 2))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_kronecker_refuses_std(bad):
    std = torch.ones(2, 3)
    std[1, 2] = bad
    with pytest.raises(ValueError, match="`std` must be positive and finite"):
        Kronecker(torch.eye(2), torch.eye(3), std, LinearHead(3, 2, False))


@pytest.mark.parametrize(("values", "precision"), [((1.0, 0.0), 0.0), ((1.0, -1.0), 0.5), ((1.0, 1.0), -2.0)])
def test_kronecker_precision_not_positive_definite(values, precision):
    with pytest.raises(FitError, match="not positive"):
        Kronecker.from_precision(torch.diag(torch.tensor(values)), torch.eye(3), precision, LinearHead(3, 2, False))
