"""Scales: one contract for every structure, factories against explicit inverses, ill-conditioned and refused matrices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.noise import make_generator
from burnish.scales import Dense, Diagonal, LowRank

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


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_transpose_matmul_is_that_of_the_root(scale, batch):
    vectors = draw(*batch, 6)
    torch.testing.assert_close(scale.transpose_matmul(vectors), vectors @ root_of(scale), rtol=1e-12, atol=1e-12)


def test_stretching_multiplies_the_columns_of_the_root(scale):
    first, second = draw(6, seed=1).exp(), draw(6, seed=2).exp()
    close = {"rtol": 1e-12, "atol": 1e-12}
    once = scale.stretched(first)
    assert type(once) is type(scale)
    torch.testing.assert_close(root_of(once), root_of(scale) * first, **close)
    twice = once.stretched(second)
    torch.testing.assert_close(root_of(twice), root_of(scale) * first * second, **close)
    torch.testing.assert_close(twice.variance(), twice.covariance().diagonal(), **close)
    torch.testing.assert_close(twice.logdet(), scale.logdet() + (first * second).log().sum(), **close)
    torch.testing.assert_close(twice.solve(twice.matmul(first)), first, **close)


def test_diagonal_known_answer():
    scale = Diagonal(torch.tensor([1.0, 2.0, 4.0]))
    assert scale.covariance().tolist() == [[1.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 16.0]]
    assert scale.logdet().item() == pytest.approx(math.log(8))


def test_dense_from_precision():
    precision = positive_definite(5)
    torch.testing.assert_close(Dense.from_precision(precision).covariance(), precision.inverse(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dim", [512, 513, 1301])
def test_a_large_precision_is_inverted_block_by_block_and_left_alone(dim):
    generator = make_generator(dim)
    root = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    precision = root @ root.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64)
    before = precision.clone()
    scale = Dense.from_precision(precision)
    assert torch.equal(precision, before)
    torch.testing.assert_close(scale.factor, torch.linalg.cholesky(precision.inverse()), rtol=1e-8, atol=1e-9)
    assert scale.factor.is_contiguous()


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 50])
def test_products_in_parts_are_those_with_the_whole_factor(dim, monkeypatch):
    monkeypatch.setattr("burnish.scales._WIDE", 2)
    generator = make_generator(dim)
    factor = torch.randn(dim, dim, generator=generator, dtype=torch.float64).tril()
    factor.diagonal().abs_()
    scale = Dense(factor)
    assert len(scale._spans) == (1 if dim == 1 else -(-dim // -(-dim // 8)))
    for shape in ((dim,), (3, dim), (2, 3, dim)):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for product, expected in ((scale.matmul, noise @ factor.T), (scale.transpose_matmul, noise @ factor)):
            torch.testing.assert_close(product(noise), expected, rtol=1e-13, atol=1e-13)
            found, truth = (
                torch.autograd.grad(value.sin().sum(), noise, retain_graph=True)[0] for value in (product(noise), expected)
            )
            torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", [(0, 1), (0, 1023), (600, 601), (511, 512)])
def test_an_entry_above_the_diagonal_is_found_wherever_it_is(place):
    factor = torch.eye(1024)
    factor[place] = 1e-30
    with pytest.raises(ValueError, match="must be lower triangular"):
        Dense(factor)


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


def orthonormal(dim, rank, seed=0):
    return torch.linalg.qr(draw(dim, rank, seed=seed)).Q


def test_low_rank_from_precision():
    vectors, values, precision = orthonormal(6, 2), torch.tensor([4.0, 0.3], dtype=torch.float64), draw(6).exp()
    inner = torch.eye(6, dtype=torch.float64) + vectors @ values.diag() @ vectors.T
    expected = (precision.sqrt().diag() @ inner @ precision.sqrt().diag()).inverse()
    scale = LowRank.from_precision(vectors, values, precision)
    torch.testing.assert_close(scale.covariance(), expected, rtol=1e-10, atol=1e-12)
    assert LowRank.from_precision(vectors, values, precision, torch.float32).std.dtype == torch.float32


def test_low_rank_takes_values_below_zero_for_zero():
    """Those of a semi-definite matrix come out slightly negative by rounding."""
    vectors, precision = orthonormal(6, 2), draw(6).exp()
    scale = LowRank.from_precision(vectors, torch.tensor([0.0, -1e-9], dtype=torch.float64), precision)
    torch.testing.assert_close(scale.covariance(), precision.reciprocal().diag(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 6, 9])
def test_low_rank_from_covariance(rank):
    std, deviations = draw(6, seed=1).exp(), draw(6, rank, seed=2)
    scale = LowRank.from_covariance(std, deviations)
    assert scale.vectors.shape == (6, min(rank, 6))
    torch.testing.assert_close(scale.covariance(), std.square().diag() + deviations @ deviations.T, rtol=1e-10, atol=1e-12)


def test_low_rank_deviations_that_depend_on_each_other_or_vanish():
    column = draw(6, 1)
    deviations = torch.cat([column, 2 * column, torch.zeros(6, 1)], dim=1)
    scale = LowRank.from_covariance(torch.ones(6, dtype=torch.float64), deviations)
    expected = torch.eye(6, dtype=torch.float64) + 5 * column @ column.T
    torch.testing.assert_close(scale.covariance(), expected, rtol=1e-10, atol=1e-12)


def test_low_rank_without_directions_is_a_diagonal():
    std = draw(4).exp()
    scale = LowRank(std, torch.zeros(4, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    torch.testing.assert_close(scale.covariance(), std.square().diag())
    assert scale.logdet().item() == pytest.approx(std.log().sum().item())


def test_low_rank_never_forms_a_full_matrix():
    dim = 10**6
    vectors = torch.zeros(dim, 1)
    vectors[3] = 1.0
    scale = LowRank(torch.ones(dim), vectors, torch.tensor([2.0])).stretched(torch.full((dim,), 0.5))
    assert scale.variance()[:5].tolist() == [0.25, 0.25, 0.25, 1.0, 0.25]
    assert scale.logdet().item() == pytest.approx(math.log(2) - dim * math.log(2))


def test_blocks_are_independent():
    first, second = positive_definite(2), positive_definite(3, seed=1)
    blocks = (Dense.from_covariance(first), Dense.from_covariance(second))
    expected = torch.block_diag(first, second)
    torch.testing.assert_close(BlockDiagonal(blocks).covariance(), expected, rtol=1e-12, atol=1e-12)
    order = torch.tensor([3, 0, 1, 4, 2])
    shuffled = torch.zeros_like(expected)
    shuffled[order.unsqueeze(1), order] = expected  # the block's first coordinate is the vector's fourth
    torch.testing.assert_close(BlockDiagonal(blocks, order).covariance(), shuffled, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize(
    ("std", "vectors", "stretch"),
    [((4,), (4, 2), (3,)), ((4,), (3, 2), (2,)), ((4,), (4,), (1,)), ((4, 1), (4, 1), (1,)), ((4,), (4, 1), ())],
)
def test_low_rank_refuses_shapes(std, vectors, stretch):
    with pytest.raises(ValueError, match=r"`vectors` must have shape \(d, k\), with `std` .* One column for each direction"):
        LowRank(torch.ones(std), torch.ones(vectors), torch.ones(stretch))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["std", "stretch", "inner"])
def test_low_rank_refuses_factors(name, bad):
    parts = {"std": torch.ones(4), "vectors": torch.eye(4)[:, :2], "stretch": torch.ones(2), "inner": torch.ones(4)}
    parts[name][1] = bad
    with pytest.raises(ValueError, match=f"`{name}` must be positive and finite"):
        LowRank(**parts)


@pytest.mark.parametrize("shape", [(1,), (3,), (1, 4), ()])
def test_low_rank_refuses_inner_factors_of_another_shape(shape):
    scale = LowRank(torch.ones(4), torch.eye(4)[:, :1], torch.ones(1))
    with pytest.raises(ValueError, match=r"`inner` must have shape \(4,\) like `std`, got .*One factor for each dimension"):
        scale.stretched(torch.ones(shape))


def test_low_rank_refuses_vectors_that_are_not_orthonormal():
    with pytest.raises(ValueError, match=r"`vectors` must be orthonormal, got products off by 3\. Orthonormalise them"):
        LowRank(torch.ones(4), 2 * torch.eye(4)[:, :2], torch.ones(2))
    slanted = torch.eye(4)[:, :2].clone()
    slanted[0, 1] = 0.1
    with pytest.raises(ValueError, match=r"`vectors` must be orthonormal, got products off by 0\.1"):
        LowRank(torch.ones(4), slanted, torch.ones(2))
    with pytest.raises(ValueError, match=r"`vectors` must be finite, .*torch\.linalg\.qr"):
        LowRank(torch.ones(4), torch.full((4, 1), math.nan), torch.ones(1))


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="`blocks` must hold at least one scale, got none"):
        BlockDiagonal(())


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [-1, 0, 1], [[0, 1, 2]]])
def test_orders_must_be_permutations(order):
    with pytest.raises(ValueError, match=r"`order` must name each of the 3 coordinates once, got shape .*permutation of 0"):
        BlockDiagonal((Diagonal(torch.ones(1)), Diagonal(torch.ones(2))), torch.tensor(order))
