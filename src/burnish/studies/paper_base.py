"""What the paper's flows start from: a Laplace posterior at the network's weights."""

import time
from typing import Any

import torch
from torch import Tensor

from burnish.inference.curvature import diagonal_hessian, full_hessian
from burnish.inference.laplace import fit_laplace
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, Scale
from burnish.studies.image_problem import ImageProblem
from burnish.target import Target

__all__ = ["fit_paper_base"]

_PRECISIONS = torch.logspace(-4, 6, 2001, dtype=torch.float64)  # that evidence is looked at for


def fit_paper_base(problem: ImageProblem) -> tuple[Gaussian, dict[str, Any]]:
    """A Laplace posterior at the network's weights.

    Under the paper's protocol its prior is its own, the one with the largest evidence at these weights; under ours it is
    that of the target.
    """
    began = time.perf_counter()
    structure = problem.setting.benchmark.base
    target = Target(problem.model, problem.batch("train"), 1.0)
    if problem.setting.protocol == "ours":
        fit = fit_laplace(problem.target, problem.theta, structure=structure, recentre=False)
        return fit.posterior, {"seconds": fit.seconds, "precision": float(problem.target.prior_precision)}
    if structure == "full":
        matrix = full_hessian(target, problem.theta).double()
        precision = _evidence_maximum(problem.theta, torch.linalg.eigvalsh(matrix).clamp_min(0.0))
        matrix.diagonal().add_(precision)
        scale: Scale = Dense.from_precision(matrix, problem.theta.dtype)
    else:
        diagonal = diagonal_hessian(target, problem.theta)
        precision = _evidence_maximum(problem.theta, diagonal)
        scale = Diagonal((diagonal + precision).rsqrt().to(problem.theta.dtype))
    return Gaussian(problem.theta, scale), {"seconds": time.perf_counter() - began, "precision": precision}


def _evidence_maximum(theta: Tensor, eigenvalues: Tensor) -> float:
    """The prior precision with the largest Laplace evidence, where neither weights nor curvature move with it."""
    precisions = _PRECISIONS.to(theta.device)
    volume = torch.stack([(eigenvalues + precision).log().sum() for precision in precisions])
    evidence = 0.5 * (len(theta) * precisions.log() - precisions * theta.double().square().sum() - volume)
    return float(precisions[evidence.argmax()])
