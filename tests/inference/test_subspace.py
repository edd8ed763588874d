"""Directions to refine in: each choice against its definition, and that refining in them is enough where it should be."""

import math

import pytest
import torch
from problems import classification

from burnish.bijections import SinhArcsinh, Subspace
from burnish.diagnostics import elbo
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import fit_laplace
from burnish.inference.subspace import (
    leading_directions,
    misfit_directions,
    subnetwork_directions,
    trajectory_directions,
)
from burnish.inference.swag import fit_swag
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.likelihoods import Bernoulli
from burnish.linear_bijections import Shift
from burnish.noise import make_generator, standard_normal
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, LowRank
from burnish.target import Target

DIM = 12


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def orthonormal(dim, num_directions, seed=0):
    return torch.linalg.qr(draw(dim, num_directions, seed=seed)).Q


def spread(dim):
    """Standard deviations that are all different, in no order."""
    return 2.0 ** torch.linspace(-3.0, 3.0, dim, dtype=torch.float64)[torch.randperm(dim, generator=make_generator(5))]


def dense(dim=DIM):
    rotation = orthonormal(dim, dim)
    return Dense.from_covariance(rotation @ torch.diag(spread(dim) ** 2) @ rotation.T)


def kronecker():
    return Kronecker(orthonormal(3, 3), orthonormal(4, 4, seed=1), spread(DIM).view(3, 4), LinearHead(3, 3))


SCALES = {
    "diagonal": lambda: Diagonal(spread(DIM)),
    "dense": dense,
    "kronecker": kronecker,
    "block diagonal": lambda: BlockDiagonal(
        (
            dense(5),
            Diagonal(torch.tensor([0.3, 6.0], dtype=torch.float64)),
            dense(5).stretched(1.7 * torch.ones(5).double()),
        ),
        torch.randperm(DIM, generator=make_generator(6)),
    ),
    "low rank": lambda: LowRank(spread(DIM), orthonormal(DIM, 3), torch.tensor([0.2, 5.0, 9.0], dtype=torch.float64)),
    "low rank, stretched": lambda: LowRank(
        spread(DIM), orthonormal(DIM, 3), torch.tensor([0.2, 5.0, 9.0], dtype=torch.float64), spread(DIM).flip(0)
    ),
}


@pytest.fixture(params=SCALES)
def base(request):
    return Gaussian(draw(DIM, seed=9), SCALES[request.param]())


def projector(basis):
    """Onto the span, whatever the basis of it."""
    return basis @ torch.linalg.solve(basis.T @ basis, basis.T)


def assert_orthonormal(basis, num_directions, dim=DIM):
    assert basis.shape == (dim, num_directions)
    eye = torch.eye(num_directions, dtype=basis.dtype)
    tolerance = 1e-12 if basis.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(basis.T @ basis, eye, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_directions", [1, 3, DIM - 1])
def test_leading_directions_are_eigenvectors_of_the_covariance(base, num_directions):
    """Theirs in the coordinates of the noise, one by one and largest first."""
    basis = leading_directions(base, num_directions, generator=make_generator(0))
    assert_orthonormal(basis, num_directions)
    values, vectors = torch.linalg.eigh(base.scale.covariance())
    white = base.scale.solve(vectors.flip(1)[:, :num_directions].T).T
    white = white / torch.linalg.vector_norm(white, dim=0)
    torch.testing.assert_close((basis.T @ white).abs(), torch.eye(num_directions).double(), rtol=1e-6, atol=1e-6)
    along = base.scale.matmul(basis.T).square().sum(1)
    torch.testing.assert_close(along, values.flip(0)[:num_directions], rtol=1e-6, atol=1e-6)


def test_leading_directions_of_many():
    """Many more than the iteration carries along."""
    std = spread(100)
    basis = leading_directions(Gaussian.standard(std), 1, generator=make_generator(0))
    assert_orthonormal(basis, 1, 100)
    basis = leading_directions(Gaussian(torch.zeros_like(std), Diagonal(std)), 4, generator=make_generator(0))
    axes = torch.eye(100, dtype=torch.float64)[:, std.argsort(descending=True)[:4]]
    torch.testing.assert_close((basis.T @ axes).abs(), torch.eye(4, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_directions", [1, 4])
def test_a_subnetwork_is_the_parameters_of_largest_variance(base, num_directions):
    basis = subnetwork_directions(base, num_directions)
    assert_orthonormal(basis, num_directions)
    chosen = base.scale.variance().argsort(descending=True)[:num_directions]
    root = base.scale.matmul(torch.eye(DIM, dtype=torch.float64)).T
    torch.testing.assert_close(projector(basis), projector(root[chosen].T), rtol=1e-9, atol=1e-9)


def test_moving_a_subnetwork_leaves_the_law_of_the_rest_given_it_unchanged():
    """Pathwise: the chosen parameters may go anywhere, the others follow by their regression on them."""
    base = Gaussian(draw(DIM, seed=9), dense())
    basis = subnetwork_directions(base, 3)
    chosen = base.scale.variance().argsort(descending=True)[:3]
    rest = torch.tensor([i for i in range(DIM) if i not in chosen.tolist()])
    layer = SinhArcsinh(torch.tensor([1.0, -0.5, 0.3]).double(), torch.tensor([0.5, -0.5, 1.0]).double())
    noise = draw(200, DIM, seed=10)
    before, after = base.from_noise(noise), base.from_noise(Subspace(basis, (layer,)).forward(noise)[0])
    covariance = base.scale.covariance()
    coefficients = torch.linalg.solve(covariance[chosen][:, chosen], covariance[chosen][:, rest])
    residuals = [theta[:, rest] - theta[:, chosen] @ coefficients for theta in (before, after)]
    torch.testing.assert_close(*residuals, rtol=1e-9, atol=1e-9)
    moved = (after - before)[:, chosen].abs()
    assert float(moved.median()) > 0.1


@pytest.mark.parametrize("num_directions", [1, 2, 5])
def test_directions_of_a_trajectory_are_its_principal_ones(base, num_directions):
    """Those of the deviations in the coordinates of the noise, all five of which span the same as they do."""
    deviations = draw(DIM, 5, seed=2) * torch.tensor([1.0, 3.0, 0.1, 10.0, 1.0], dtype=torch.float64)
    basis = trajectory_directions(base, deviations, num_directions)
    assert_orthonormal(basis, num_directions)
    root = base.scale.matmul(torch.eye(DIM, dtype=torch.float64)).T
    white = torch.linalg.solve(root, deviations)
    values, vectors = torch.linalg.eigh(white @ white.T)
    expected = vectors.flip(1)[:, :num_directions]
    torch.testing.assert_close(projector(basis), projector(expected), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close((basis.T @ white).square().sum(1), values.flip(0)[:num_directions], rtol=1e-8, atol=1e-8)
    if num_directions == 5:
        torch.testing.assert_close(projector(basis), projector(white), rtol=1e-8, atol=1e-8)


class Bent:
    """The density of a Gaussian, times a cubic and more along one direction of its noise."""

    def __init__(self, gaussian, direction):
        self.gaussian, self.direction = gaussian, direction

    @property
    def dim(self):
        return self.gaussian.dim

    def log_prob_and_grad(self, theta):
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            noise = self.gaussian.scale.solve(leaf - self.gaussian.mean)
            along = noise @ self.direction
            value = -0.5 * (noise * noise).sum(-1) - torch.nn.functional.softplus(3.0 * along)
            return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def test_a_planted_direction_is_where_the_misfit_is(base):
    planted = orthonormal(DIM, 1, seed=3).squeeze(1)
    basis = misfit_directions(Bent(base, planted), base, 1, generator=make_generator(0))
    assert_orthonormal(basis, 1)
    assert abs(float(basis[:, 0] @ planted)) > 1.0 - 1e-6


def test_a_wrong_mean_is_a_misfit():
    """The gradients differ by the offset everywhere, in the coordinates of the noise."""
    scale = dense()
    target, base = Bent(Gaussian(draw(DIM, seed=9), scale), torch.zeros(DIM).double()), Gaussian(draw(DIM, seed=8), scale)
    basis = misfit_directions(target, base, 2, generator=make_generator(0))
    assert_orthonormal(basis, 2)
    offset = scale.solve(draw(DIM, seed=9) - draw(DIM, seed=8))
    torch.testing.assert_close((basis[:, 0] @ offset).abs(), torch.linalg.vector_norm(offset), rtol=1e-6, atol=1e-6)


def one_direction(num_features=6, seed=0):
    """Few points along a line, a weak prior: far from Gaussian along it, and the prior itself at right angles to it."""
    line = orthonormal(num_features, 1, seed=seed).squeeze(1)
    position = torch.linspace(-3.0, 3.0, 9, dtype=torch.float64)
    labels = (position > -0.5).double()
    target = Target.last_layer(
        position.unsqueeze(1) * line, labels, prior_precision=0.02, likelihood=Bernoulli(), bias=False
    )
    side = torch.linspace(-60.0, 60.0, 4001, dtype=torch.float64)
    values = target.log_prob(side.unsqueeze(1) * line)  # with the normalisation of the prior in all directions
    rest = 0.5 * (num_features - 1) * math.log(2 * math.pi / 0.02)
    log_evidence = float(values.logsumexp(0)) + math.log(float(side[1] - side[0])) + rest
    return target, line, log_evidence


def test_refining_the_one_bent_direction_is_enough():
    target, line, log_evidence = one_direction()
    base = fit_laplace(target).posterior
    exact = base.scale.transpose_matmul(line.unsqueeze(0)).T
    exact = exact / torch.linalg.vector_norm(exact)
    found = misfit_directions(target, base, 1, generator=make_generator(0))
    torch.testing.assert_close(projector(found), projector(exact), rtol=1e-6, atol=1e-6)
    inside = (SinhArcsinh.identity(found[0]), Shift.identity(found[0]))
    options = {"max_steps": 300, "num_evaluation_samples": 2000}
    fit = fit_flow(target, base, generator=make_generator(0), bijections=[Subspace(found, inside)], **options)
    whole = fit_flow(target, base, generator=make_generator(0), **options)
    reached = [elbo(target, each.posterior, num_samples=4000, generator=make_generator(1)) for each in (fit, whole)]
    gap = log_evidence - fit.base_elbo
    assert gap > 0.2
    assert log_evidence - reached[0].value < 0.2 * gap
    assert reached[0].value > reached[1].value - 5 * math.hypot(*(each.standard_error for each in reached))


def test_the_complement_keeps_the_marginals_of_the_base():
    target, _, _ = one_direction()
    base = fit_laplace(target).posterior
    basis = misfit_directions(target, base, 1, generator=make_generator(0))
    inside = (SinhArcsinh.identity(basis[0]), Shift.identity(basis[0]))
    fit = fit_flow(target, base, generator=make_generator(0), bijections=[Subspace(basis, inside)], max_steps=100)
    assert fit.gain > 0.1
    noise = standard_normal(500, base.mean, generator=make_generator(2))
    before, after = base.from_noise(noise), fit.posterior.from_noise(noise)[0]
    # a parameter vector's part that no bent direction reaches is the same, draw by draw
    across = torch.linalg.qr(base.scale.matmul(basis.T).T, mode="complete").Q[:, 1:]
    torch.testing.assert_close(after @ across, before @ across, rtol=1e-9, atol=1e-9)
    along = torch.linalg.qr(base.scale.matmul(basis.T).T).Q
    assert float(((after - before) @ along).abs().median()) > 0.1


def test_a_subspace_of_wrong_directions_gains_nothing():
    target, line, _ = one_direction()
    base = fit_laplace(target).posterior
    exact = base.scale.transpose_matmul(line.unsqueeze(0)).T
    wrong = torch.linalg.qr(exact, mode="complete").Q[:, 1:3]
    inside = (SinhArcsinh.identity(wrong[0]), Shift.identity(wrong[0]))
    fit = fit_flow(target, base, generator=make_generator(0), bijections=[Subspace(wrong, inside)], max_steps=100)
    assert fit.gain < 0.01


def test_every_choice_refines_a_classifier():
    """Half of the directions of a small posterior; none can lose, and the misfit's gain at least what others do."""
    target = classification(num_points=20, num_features=2, num_outputs=3, prior_precision=0.1)
    base = fit_laplace(target).posterior
    swag = fit_swag(
        target, base.mean, generator=make_generator(1), learning_rate=0.3, num_steps=200, snapshot_every=10, batch_size=4
    )
    bases = {
        "leading": leading_directions(base, 4, generator=make_generator(0)),
        "subnetwork": subnetwork_directions(base, 4),
        "trajectory": trajectory_directions(base, swag.deviations, 4),
        "misfit": misfit_directions(target, base, 4, generator=make_generator(0)),
    }
    gains = {}
    for name, basis in bases.items():
        inside = (SinhArcsinh.identity(basis[0]), Shift.identity(basis[0]))
        options = {"bijections": [Subspace(basis, inside)], "max_steps": 120, "num_evaluation_samples": 2000}
        fit = fit_flow(target, base, generator=make_generator(0), **options)
        assert fit.gain > 3 * fit.gain_standard_error, name
        gains[name] = fit.gain
    assert gains["misfit"] > max(gains.values()) - 0.1, gains


def test_the_same_generator_gives_the_same_bits(untouched_rng):
    target = classification()
    base = fit_laplace(target).posterior
    mean = base.mean.clone()
    for choose in (
        lambda seed: leading_directions(base, 3, generator=make_generator(seed)),
        lambda seed: misfit_directions(target, base, 3, generator=make_generator(seed)),
    ):
        assert torch.equal(choose(0), choose(0))
        assert not torch.equal(choose(0), choose(1))
    assert torch.equal(base.mean, mean)


def test_single_precision_runs_through():
    target = classification(dtype=torch.float32)
    base = fit_laplace(target).posterior
    deviations = draw(target.dim, 6).float()
    for basis in (
        leading_directions(base, 3, generator=make_generator(0)),
        subnetwork_directions(base, 3),
        trajectory_directions(base, deviations, 3),
        misfit_directions(target, base, 3, generator=make_generator(0)),
    ):
        assert basis.dtype == torch.float32
        assert_orthonormal(basis, 3, target.dim)
        Subspace(basis, (Shift.identity(basis[0]),))


CHOICES = {
    "leading": lambda base, count, generator: leading_directions(base, count, generator=generator),
    "subnetwork": lambda base, count, generator: subnetwork_directions(base, count),
    "trajectory": lambda base, count, generator: trajectory_directions(base, draw(DIM, 5), count),
    "misfit": lambda base, count, generator: misfit_directions(
        Bent(Gaussian.standard(torch.zeros(DIM).double()), torch.zeros(DIM).double()), base, count, generator=generator
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ValueError, "`num_directions` must be at least 1, got 0"),
        (2.0, TypeError, "`num_directions` must be an integer, got float"),
        (DIM, ValueError, "`num_directions` must be below the base's 12 dimensions, got 12. Refine in all of them"),
    ],
)
def test_a_wrong_number_of_directions_is_refused(choice, count, error, message):
    base = Gaussian.standard(torch.zeros(DIM, dtype=torch.float64))
    with pytest.raises(error, match=message):
        CHOICES[choice](base, count, make_generator(0))


@pytest.mark.parametrize("choice", CHOICES)
def test_a_base_that_is_no_gaussian_is_refused(choice):
    with pytest.raises(TypeError, match=r"`base` must be a Gaussian, got Tensor. Pass the fit's `.posterior`"):
        CHOICES[choice](torch.zeros(DIM), 2, make_generator(0))


def test_a_base_of_another_target_is_refused():
    base = Gaussian.standard(torch.zeros(DIM, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"`base` must have shape .*, got \(12,\)\. Pass parameters of the target's own"):
        misfit_directions(classification(), base, 2, generator=make_generator(0))


@pytest.mark.parametrize("choice", ["leading", "misfit"])
def test_the_generator_is_checked(choice):
    with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got int"):
        CHOICES[choice](Gaussian.standard(torch.zeros(DIM, dtype=torch.float64)), 2, 0)


@pytest.mark.parametrize(
    ("deviations", "error", "message"),
    [
        (
            draw(DIM, 2),
            ValueError,
            r"`deviations` must have shape \(12, m\) with m >= 3 directions, got \(12, 2\). Keep more",
        ),
        (draw(5, DIM), ValueError, r"`deviations` must have shape \(12, m\) .* got \(5, 12\)"),
        (draw(DIM), ValueError, r"`deviations` must have shape \(12, m\) .* got \(12,\)"),
        (draw(DIM, 4).float(), TypeError, "`deviations` must be torch.float64 on cpu like the base, got torch.float32"),
        (draw(DIM, 4) / 0.0, ValueError, "`deviations` must be finite, .* use a smaller learning rate"),
        (draw(DIM, 2) @ draw(2, 4), FitError, "the trajectory spans 2 directions and 3 were asked for; ask for fewer"),
        (torch.zeros(DIM, 4).double(), FitError, "the trajectory spans 0 directions and 3 were asked for"),
    ],
)
def test_wrong_trajectories_are_refused(deviations, error, message):
    base = Gaussian.standard(torch.zeros(DIM, dtype=torch.float64))
    with pytest.raises(error, match=message):
        trajectory_directions(base, deviations, 3)
