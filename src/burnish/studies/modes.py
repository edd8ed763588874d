"""Modes of small networks: Laplace at the best of several."""

from typing import Any

import torch

from burnish._checks import check_at_least
from burnish.errors import FitError
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.scales import Dense
from burnish.target import Target

__all__ = ["best_laplace"]

_MAX_ITERATIONS = 2000  # of the search for a mode
_START_STD = 0.7  # of the random weights at which such a search begins


def best_laplace(target: Target, num_restarts: int, generator: torch.Generator) -> tuple[LaplaceFit, dict[str, Any]]:
    """Laplace with the exact Hessian at the highest mode that several random starts lead to, and how the search went."""
    check_at_least("num_restarts", num_restarts, 1)
    fits, refusal = [], None
    for _ in range(num_restarts):
        start = _START_STD * torch.randn(target.dim, generator=generator, dtype=torch.float64)
        try:
            fit = fit_laplace(target, start, structure="full", curvature="exact", max_iterations=_MAX_ITERATIONS)
        except FitError as error:  # not a mode: the Hessian is indefinite
            refusal = error
            continue
        fits.append((float(target.log_prob(fit.posterior.mean)), fit))
    if not fits:
        assert refusal is not None
        raise refusal
    log_prob, best = max(fits, key=lambda pair: pair[0])
    return best, {
        "log_probs": [round(value, 3) for value, _ in fits],
        "log_prob": log_prob,
        "refused": num_restarts - len(fits),
        "converged": best.converged,
        "smallest_eigenvalue": _smallest_eigenvalue(best),
    }


def _smallest_eigenvalue(fit: LaplaceFit) -> float:
    """Of the precision matrix of a Gaussian with a dense scale."""
    assert isinstance(fit.posterior.scale, Dense)
    return float(torch.linalg.matrix_norm(fit.posterior.scale.factor, 2)) ** -2
