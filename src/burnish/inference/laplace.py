"""Laplace's method: a Gaussian at the mode of the target, with the curvature there."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_choice
from burnish.inference.curvature import check_dense_memory, diagonal_hessian, full_hessian, kronecker_hessian, needs_double
from burnish.inference.mode import Mode, find_mode
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, Kronecker, Scale
from burnish.target import Target

__all__ = ["LaplaceFit", "fit_laplace"]

STRUCTURES = ("full", "kron", "diagonal")
_DENSE_DIM = 6000  # parameters up to which a full covariance is the default: a second to factorise, 300 MB at most


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A Gaussian, and what is known about the point it was put at."""

    posterior: Gaussian
    log_evidence: float
    """Laplace's estimate of log p(targets | inputs); exact for a Gaussian target, at its mode and with its full Hessian."""
    gradient_norm: float
    """Of the target at the posterior's mean: zero at the mode."""
    iterations: int
    """Newton steps taken to get there; 0 without recentring."""
    converged: bool
    """Whether the search for the mode ended at one; True where there was none."""
    seconds: float


@torch.no_grad()
def fit_laplace(
    target: Target, start: Tensor | None = None, *, structure: str = "full", recentre: bool = True
) -> LaplaceFit:
    """Finds the mode, takes the curvature of the target there, and returns the Gaussian.

    Args:
        target: the log posterior of a linear head.
        start: parameters (d,) where the search for the mode begins, or the Gaussian's mean without `recentre`.
        structure: "full" (exact Hessian), "diagonal" (exact diagonal of it, in the precision), "kron" (Kronecker-factored,
            an approximation with the memory of two small matrices).
        recentre: whether to move to the mode first. False puts the Gaussian at `start`, as is done where a network's
            weights are taken for the mode; they are one only of the loss they were trained with.
    """
    check_choice("structure", structure, STRUCTURES)
    if start is None and not recentre:
        raise ValueError("`start` must be given without `recentre`, got None. Pass the network's parameters `theta`.")
    _check_structure(target, structure)
    began = time.perf_counter()
    if recentre:
        mode = find_mode(target, start)
    else:
        assert start is not None
        norm = float(target.log_prob_and_grad(start)[1].double().norm())
        mode = Mode(start.detach().clone(), norm, float("nan"), 0, True)
    scale = _scale(target, mode.theta, structure)
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
    if target.dim <= _DENSE_DIM:
        return "full"
    return "diagonal" if isinstance(target.prior_precision, Tensor) and target.prior_precision.ndim else "kron"


def _check_structure(target: Target, structure: str) -> None:
    """Refuses, before any work, what would not fit or has no meaning."""
    if structure == "full":
        check_dense_memory(target)
    elif structure == "kron" and isinstance(target.prior_precision, Tensor) and target.prior_precision.ndim:
        raise ValueError(
            f"`structure` 'kron' needs one prior precision for all parameters, got {len(target.prior_precision)} of them. "
            "Use structure='full' or structure='diagonal'."
        )


def _scale(target: Target, theta: Tensor, structure: str) -> Scale:
    precision = torch.as_tensor(target.prior_precision, dtype=torch.float64, device=theta.device)
    if structure == "full":
        return Dense.from_precision(_full_precision(target, theta, precision), theta.dtype)
    if structure == "diagonal":
        return Diagonal((diagonal_hessian(target, theta) + precision).rsqrt().to(theta.dtype))
    curvature = kronecker_hessian(target, theta)
    return Kronecker.from_precision(curvature.left, curvature.right, float(precision), target.model.head, theta.dtype)


def _full_precision(target: Target, theta: Tensor, precision: Tensor) -> Tensor:
    hessian = full_hessian(target, theta, dtype=torch.float64 if needs_double(target, theta) else None)
    hessian.diagonal().add_(precision)
    return hessian
