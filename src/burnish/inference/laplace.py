"""Laplace's method: a Gaussian at the mode of the target, with the curvature there."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice
from burnish.heads import LinearHead
from burnish.inference.curvature import (
    check_dense_memory,
    diagonal_hessian,
    full_hessian,
    kronecker_hessian,
    leading_eigenpairs,
    needs_double,
)
from burnish.inference.mode import Mode, check_start, find_mode, in_double
from burnish.inference.network_curvature import (
    check_definite,
    check_layers,
    check_tangents,
    exact_hessian,
    has_kronecker,
    kronecker_scale,
)
from burnish.layer_scales import Kronecker
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, LowRank, Scale
from burnish.target import Target

__all__ = ["LaplaceFit", "fit_laplace"]

STRUCTURES = ("full", "kron", "diagonal", "low_rank")
CURVATURES = ("gauss-newton", "exact")
_DENSE_DIM = 6000  # parameters up to which a full covariance is the default: a second to factorise, 300 MB at most
_DENSE_NETWORK = 2000  # the same for a network, whose Jacobians it is made of


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A Gaussian, and what is known about the point it was put at."""

    posterior: Gaussian
    log_evidence: float
    """Laplace's estimate of log p(targets | inputs); exact for a Gaussian target, at its mode and with its full Hessian.
    Structures that leave curvature out, above all "low_rank", overstate it: compare models by `estimate_evidence`."""
    gradient_norm: float
    """Of the target at the posterior's mean: zero at the mode."""
    iterations: int
    """Steps taken to get there, of Newton's method or, for a network, L-BFGS; 0 without recentring."""
    converged: bool
    """Whether the search for the mode ended at one; True where there was none."""
    seconds: float


@torch.no_grad()
def fit_laplace(
    target: Target,
    start: Tensor | None = None,
    *,
    structure: str = "full",
    curvature: str = "gauss-newton",
    rank: int = 20,
    recentre: bool = True,
    max_iterations: int | None = None,
) -> LaplaceFit:
    """Finds the mode, takes the curvature of the target there, and returns the Gaussian.

    Args:
        target: the log posterior of a linear head, or of a `FlatNetwork`.
        start: parameters (d,) where the search for the mode begins, or the Gaussian's mean without `recentre`; a network
            must be given its own.
        structure: "full", "diagonal" (exact diagonal of it, in the precision), "kron" (Kronecker-factored, one block for
            each linear or convolutional layer, an approximation with the memory of two small matrices for each), "low_rank"
            (the prior, but for the leading directions of the curvature), or "auto", which is `choose_structure`'s.
        curvature: "gauss-newton", or "exact" with structure "full": the Hessian itself, which for a network may be
            indefinite and is then refused. For a linear head they are the same.
        rank: directions of "low_rank".
        recentre: whether to move to the mode first. False puts the Gaussian at `start`, as is done where a network's
            weights are taken for the mode; they are one only of the loss they were trained with.
        max_iterations: of the search for the mode, as in `find_mode`; `converged` says whether they were enough.
    """
    structure = choose_structure(target) if structure == "auto" else structure
    check_choice("structure", structure, STRUCTURES)
    check_choice("curvature", curvature, CURVATURES)
    network = not isinstance(target.model.head, LinearHead)
    if start is None and (network or not recentre):
        why = "for a network" if recentre else "without `recentre`"
        raise ValueError(f"`start` must be given {why}, got None. Pass the network's parameters `theta`.")
    _check_structure(target, structure, curvature, rank)
    began = time.perf_counter()
    if recentre:
        mode = find_mode(target, start, max_iterations=max_iterations)
    else:
        assert start is not None
        check_start(target, start)
        norm = float(target.log_prob_and_grad(start)[1].double().norm())
        mode = Mode(start.detach().clone(), norm, float("nan"), 0, True)
    if structure == "full":
        scale: Scale = _full_scale(target, mode, exact=network and curvature == "exact")
    else:
        scale = _scale(target, mode.theta, structure, rank)
    log_evidence = float(target.log_prob(mode.theta) + scale.logdet()) + 0.5 * target.dim * math.log(2.0 * math.pi)
    return LaplaceFit(
        posterior=Gaussian(mode.theta, scale),
        log_evidence=log_evidence,
        gradient_norm=mode.gradient_norm,
        iterations=mode.iterations,
        converged=mode.converged,
        seconds=time.perf_counter() - began,
    )


def choose_structure(target: Target) -> str:
    """The structure to take when none is asked for: full where it costs a second, beyond that what the prior allows."""
    linear = isinstance(target.model.head, LinearHead)
    if target.dim <= (_DENSE_DIM if linear else _DENSE_NETWORK):
        return "full"
    single = not isinstance(target.prior_precision, Tensor) or target.prior_precision.ndim == 0
    return "kron" if single and (linear or has_kronecker(target)) else "diagonal"


def _check_structure(target: Target, structure: str, curvature: str, rank: int) -> None:
    """Refuses, before any work, what would not fit or has no meaning."""
    if curvature == "exact" and structure != "full":
        raise ValueError(f"`curvature` 'exact' must come with structure='full', got {structure!r}. Use 'gauss-newton'.")
    check_at_least("rank", rank, 1)
    if structure == "low_rank" and rank >= target.dim:
        raise ValueError(f"`rank` must be below the {target.dim} parameters, got {rank}. Use structure='full'.")
    if structure == "full":
        check_dense_memory(target.dim, target.data.inputs.device, target.data.inputs.dtype)
    elif structure == "kron" and isinstance(target.prior_precision, Tensor) and target.prior_precision.ndim:
        raise ValueError(
            f"`structure` 'kron' needs one prior precision for all parameters, got {len(target.prior_precision)} of them. "
            "Use structure='full' or structure='diagonal'."
        )
    elif structure == "kron" and not isinstance(target.model.head, LinearHead):
        check_layers(target)
    if not isinstance(target.model.head, LinearHead) and (structure == "low_rank" or curvature == "exact"):
        check_tangents(target)


def _full_scale(target: Target, mode: Mode, *, exact: bool) -> Dense:
    theta = mode.theta
    if exact:
        matrix = exact_hessian(target, theta)
    else:
        matrix = full_hessian(target, theta, dtype=torch.float64 if needs_double(target, theta) else None)
    matrix.diagonal().add_(torch.as_tensor(target.prior_precision, dtype=torch.float64, device=theta.device))
    if exact:
        check_definite(matrix, _way_to_a_mode(mode))
    return Dense.from_precision(matrix, theta.dtype)


def _way_to_a_mode(mode: Mode) -> str:
    if mode.converged:
        return "a start that leads to one"
    if mode.stalled:
        return "a smooth activation, or another start: the search for one stalled, as at a kink of a ReLU"
    return "more `max_iterations`, as the search for one has not ended"


def _scale(target: Target, theta: Tensor, structure: str, rank: int) -> Scale:
    precision = torch.as_tensor(target.prior_precision, dtype=torch.float64, device=theta.device)
    if structure == "diagonal":
        return Diagonal((diagonal_hessian(target, theta) + precision).rsqrt().to(theta.dtype))
    if structure == "low_rank":
        precision, dtype = precision.expand(target.dim), theta.dtype
        if needs_double(target, theta):
            target, theta = in_double(target), theta.double()
        values, vectors = leading_eigenpairs(target, theta, precision, rank)
        return LowRank.from_precision(vectors, values, precision, dtype)
    if not isinstance(target.model.head, LinearHead):
        return kronecker_scale(target, theta, float(precision))
    curvature = kronecker_hessian(target, theta)
    return Kronecker.from_precision(curvature.left, curvature.right, float(precision), target.model.head, theta.dtype)
