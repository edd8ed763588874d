"""Linear bijections against the matrices they stand for, and what they make of a Gaussian."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from burnish.linear_bijections import Affine, DiagonalScale, LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian

DIM = 6


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def triangular_matrix(bijection):
    """Entry by entry."""
    lower, diagonal = (bijection.raw_lower / max(1.0, math.sqrt(DIM / 8))).tolist(), bijection.log_diagonal.tolist()
    rows = [
        [lower[i][j] if j < i else math.exp(diagonal[i]) if i == j else 0.0 for j in range(len(diagonal))]
        for i in range(len(diagonal))
    ]
    return torch.tensor(rows, dtype=torch.float64)


def low_rank_matrix(bijection):
    return torch.eye(DIM, dtype=torch.float64) + bijection.factor @ bijection.factor.T


# what makes a bijection, and what its matrix is made of
CASES = {
    "shift": (lambda: Shift(draw(DIM)), lambda bijection: torch.eye(DIM, dtype=torch.float64)),
    "diagonal scale": (lambda: DiagonalScale(draw(DIM)), lambda bijection: torch.diag(bijection.log_scale.exp())),
    "rotation": (lambda: Rotation.cosine(draw(DIM)), lambda bijection: bijection.matrix),
    "triangular": (lambda: Triangular(draw(DIM, DIM), draw(DIM, seed=1)), triangular_matrix),
    "stretch of one direction": (lambda: LowRankStretch(draw(DIM, 1)), low_rank_matrix),
    "stretch": (lambda: LowRankStretch(draw(DIM, 3)), low_rank_matrix),
    "stretch of more directions than there are": (lambda: LowRankStretch(draw(DIM, 9)), low_rank_matrix),
}


@pytest.fixture(params=CASES)
def linear(request):
    """A bijection, its matrix, and what it adds."""
    make, matrix = CASES[request.param]
    bijection = make()
    return bijection, matrix(bijection), bijection.forward(torch.zeros(DIM, dtype=torch.float64))[0]


def test_only_a_shift_moves_the_origin(linear):
    bijection, _, offset = linear
    assert torch.equal(offset, bijection.offset if isinstance(bijection, Shift) else torch.zeros_like(offset))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_a_linear_bijection_is_its_matrix(linear, batch):
    bijection, matrix, offset = linear
    z = draw(*batch, DIM, seed=3)
    moved, logdet = bijection.forward(z)
    back, inverse_logdet = bijection.inverse(z)
    torch.testing.assert_close(moved, z @ matrix.T + offset, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back, (z - offset) @ torch.linalg.inv(matrix).T, rtol=1e-9, atol=1e-9)
    expected = torch.linalg.slogdet(matrix).logabsdet.expand(batch)
    torch.testing.assert_close(logdet, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inverse_logdet, -expected, rtol=1e-12, atol=1e-12)


def test_a_gaussian_stays_one(linear, scale):
    """In the coordinates of any Gaussian, its covariance is the square of root times matrix."""
    bijection, matrix, offset = linear
    base = Gaussian(draw(DIM, seed=5), scale)
    root = scale.matmul(torch.eye(DIM, dtype=torch.float64)).T @ matrix
    pushed, theta = FlowPosterior.whitened(base, [bijection]), draw(10, DIM, seed=6)
    truth = MultivariateNormal(base.from_noise(offset), root @ root.T)
    torch.testing.assert_close(pushed.log_prob(theta), truth.log_prob(theta), rtol=1e-7, atol=1e-7)


def test_affine_is_the_gaussian_it_whitens(scale):
    mean, noise = draw(DIM), draw(5, DIM, seed=1)
    bijection, gaussian = Affine(mean, scale), Gaussian(mean, scale)
    theta, logdet = bijection.forward(noise)
    assert torch.equal(theta, gaussian.from_noise(noise))
    torch.testing.assert_close(logdet, scale.logdet().expand(5))
    torch.testing.assert_close(bijection.inverse(theta)[0], noise, rtol=1e-11, atol=1e-11)


def test_what_stands_on_or_above_the_diagonal_is_not_looked_at():
    bijection, z = Triangular(draw(DIM, DIM), draw(DIM, seed=1)), draw(3, DIM, seed=2)
    other = Triangular(bijection.raw_lower + 7.0 * torch.ones(DIM, DIM).double().triu(), bijection.log_diagonal)
    assert not torch.equal(other.raw_lower, bijection.raw_lower)
    assert torch.equal(other.forward(z)[0], bijection.forward(z)[0])
    assert torch.equal(other.inverse(z)[0], bijection.inverse(z)[0])


def test_a_stretch_along_one_direction_is_known():
    """A factor of length 2 along the first axis: five times as wide there, and nowhere else."""
    bijection = LowRankStretch.of(torch.tensor([[2.0], [0.0]], dtype=torch.float64))
    moved, logdet = bijection.forward(torch.ones(1, 2, dtype=torch.float64))
    assert moved[0].tolist() == pytest.approx([5.0, 1.0])
    assert logdet.item() == pytest.approx(math.log(5.0))
    back, inverse_logdet = bijection.inverse(torch.tensor([[5.0, 1.0]], dtype=torch.float64))
    assert back[0].tolist() == pytest.approx([1.0, 1.0])
    assert inverse_logdet.item() == pytest.approx(-math.log(5.0))


@pytest.mark.parametrize("rank", [1, 4])
def test_random_stretches_are_short(rank, untouched_rng):
    like = torch.zeros(400, dtype=torch.float64)
    first, again, other = (LowRankStretch.random(like, rank, generator=make_generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.factor, again.factor)
    assert not torch.equal(first.factor, other.factor)
    assert first.factor.shape == (400, rank)
    # squared lengths are 0.09 times a chi-square of 400 degrees of freedom over 400
    lengths = first.factor.square().sum(0) / 0.09
    assert bool(((lengths - 1.0).abs() < 5 * math.sqrt(2 / 400)).all())
    double = LowRankStretch.random(like, rank, generator=make_generator(0), size=0.6)
    torch.testing.assert_close(double.factor, 2.0 * first.factor)
    assert LowRankStretch.random(like.float(), rank, generator=make_generator(0)).factor.dtype == torch.float32


@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_the_cosine_rotation_is_orthogonal_and_undone_by_its_transpose(dim):
    rotation = Rotation.cosine(torch.zeros(dim, dtype=torch.float64))
    eye = torch.eye(dim, dtype=torch.float64)
    assert torch.allclose(rotation.matrix @ rotation.matrix.T, eye, atol=1e-14)
    assert torch.allclose(rotation.transposed().forward(rotation.forward(eye)[0])[0], eye, atol=1e-14)


def test_the_cosine_rotation_of_the_plane_is_by_an_eighth_turn():
    half = math.sqrt(0.5)
    expected = torch.tensor([[half, half], [half, -half]], dtype=torch.float64)
    assert torch.allclose(Rotation.cosine(torch.zeros(2, dtype=torch.float64)).matrix, expected)
