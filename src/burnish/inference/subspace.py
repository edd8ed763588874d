"""Directions to refine in, where refining in all of them is too much.

A basis is orthonormal in the coordinates in which the base Gaussian is standard normal. `Subspace(basis, bijections)` bends
these directions alone; along the others, which are independent of them there, the base stays as it is.
"""

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like
from burnish.errors import FitError
from burnish.inference.coordinates import Density
from burnish.noise import check_generator, standard_normal
from burnish.posteriors import Gaussian
from burnish.target import Target

__all__ = ["leading_directions", "misfit_directions", "subnetwork_directions", "trajectory_directions"]

_SPARE, _ITERATIONS = 8, 40  # of the subspace iteration: vectors beyond those wanted, and products with each
_DRAWS_PER_DIRECTION = 4


@torch.no_grad()
def leading_directions(base: Gaussian, num_directions: int, *, generator: torch.Generator) -> Tensor:
    """The directions (d, k) along which the base's covariance is largest: its leading eigenvectors."""
    _check(base, num_directions, generator)
    basis = torch.randn(
        base.dim, num_directions + _SPARE, generator=generator, dtype=torch.float64, device=base.mean.device
    ).to(base.mean.dtype)
    for _ in range(_ITERATIONS):
        basis = _orthonormal(basis)
        image = base.scale.matmul(basis.T)
        basis = base.scale.transpose_matmul(image).T
    # within the span, by size: of L^T L restricted to it
    basis = _orthonormal(basis)
    image = base.scale.matmul(basis.T)
    vectors = torch.linalg.eigh((image @ image.T).double())[1].flip(1)[:, :num_directions]
    return _orthonormal(basis @ vectors.to(basis.dtype))


@torch.no_grad()
def trajectory_directions(base: Gaussian, deviations: Tensor, num_directions: int) -> Tensor:
    """The principal directions (d, k) of a trajectory, for instance of stochastic gradient descent.

    Args:
        base: the Gaussian that will be refined.
        deviations: (d, m) of the trajectory's points from their mean, as `SwagFit.deviations`.
        num_directions: at most m.
    """
    _check(base, num_directions)
    if deviations.ndim != 2 or len(deviations) != base.dim or deviations.shape[1] < num_directions:
        raise ValueError(
            f"`deviations` must have shape ({base.dim}, m) with m >= {num_directions} directions, got "
            f"{tuple(deviations.shape)}. Keep more snapshots, or ask for fewer directions."
        )
    check_like("deviations", deviations, base.mean, "the base")
    check_finite("deviations", deviations, "The trajectory has diverged: use a smaller learning rate.")
    white = base.scale.solve(deviations.T).T
    vectors: Tensor
    vectors, values, _ = torch.linalg.svd(white, full_matrices=False)
    rank = int((values > values[0] * len(values) * torch.finfo(values.dtype).eps).sum()) if float(values[0]) > 0.0 else 0
    if rank < num_directions:
        raise FitError(f"the trajectory spans {rank} directions and {num_directions} were asked for; ask for fewer.")
    return vectors[:, :num_directions].contiguous()


@torch.no_grad()
def subnetwork_directions(base: Gaussian, num_directions: int) -> Tensor:
    """Directions (d, k) that move the k parameters with the largest marginal variance, and others as these predict them."""
    _check(base, num_directions)
    index = base.scale.variance().topk(num_directions).indices
    rows = base.mean.new_zeros(num_directions, base.dim)
    rows[torch.arange(num_directions, device=index.device), index] = 1.0
    return _orthonormal(base.scale.transpose_matmul(rows).T)


@torch.no_grad()
def misfit_directions(target: Density, base: Gaussian, num_directions: int, *, generator: torch.Generator) -> Tensor:
    """The directions (d, k) along which the target's gradient differs most from the base's, at draws of the base.

    Where the base is right, as along directions that the data say nothing about, the two are equal: other choices may spend
    their directions there.
    """
    _check(base, num_directions, generator)
    if isinstance(target, Target):
        target.check_theta(base.mean, "base")
    noise = standard_normal(_DRAWS_PER_DIRECTION * num_directions, base.mean, generator=generator)
    rows = []
    for part in torch.split(noise, 64):
        gradient = target.log_prob_and_grad(base.from_noise(part))[1]
        rows.append(base.scale.transpose_matmul(gradient) + part)  # that of the base is -noise
    vectors: Tensor = torch.linalg.svd(torch.cat(rows), full_matrices=False)[2]
    return vectors[:num_directions].T.contiguous()


def _orthonormal(columns: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(columns)[0]
    return basis


def _check(base: Gaussian, num_directions: int, generator: torch.Generator | None = None) -> None:
    if not isinstance(base, Gaussian):
        raise TypeError(f"`base` must be a Gaussian, got {type(base).__name__}. Pass the fit's `.posterior`.")
    check_at_least("num_directions", num_directions, 1)
    if num_directions >= base.dim:
        raise ValueError(
            f"`num_directions` must be below the base's {base.dim} dimensions, got {num_directions}. Refine in all of them."
        )
    if generator is not None:
        check_generator(generator, base.mean.device)
