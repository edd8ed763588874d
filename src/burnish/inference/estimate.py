"""Which estimate of a target an ascent should use: all data, or batches with a second-order control variate."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from burnish.inference.curvature import full_hessian, hessian_product, kronecker_hessian
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.target import Expansion, Target

__all__: list[str] = []

Estimate = Callable[[Tensor], tuple[Tensor, Tensor]]

_FULL_DATA = 4096  # up to so many points every step uses all of them
_SMALLEST_BATCH = 512
_PROBES = 16  # batches drawn to measure the noise of choosing one


def choose_estimate(
    target: Target,
    base: Gaussian,
    batch_size: int | str | None,
    control_variate: bool,
    num_samples: int,
    generator: torch.Generator,
) -> tuple[Estimate, int | None]:
    """The target's value and gradient as a function of theta, and the number of points it looks at (None for all)."""
    if batch_size is None or (batch_size == "auto" and len(target.data) <= _FULL_DATA):
        return target.log_prob_and_grad, None
    expansion = expand_at(target, base) if control_variate else None
    if batch_size == "auto":
        size = _quiet_batch_size(target, expansion, base, num_samples, generator)
        if size > len(target.data) // 4:
            return target.log_prob_and_grad, None
    else:
        size = int(batch_size)
    subsampled = target.subsampled(size, expansion)
    return (lambda theta: subsampled.log_prob_and_grad(theta, generator=generator)), size


def _quiet_batch_size(
    target: Target, expansion: Expansion | None, base: Gaussian, num_samples: int, generator: torch.Generator
) -> int:
    """The smallest power of two with which choosing a batch adds no more than about the noise of choosing samples.

    Measured at draws of the base. Half a nat is always quiet enough.
    """
    subsampled = target.subsampled(_SMALLEST_BATCH, expansion)
    theta, log_density = base.sample_and_log_prob(max(num_samples, 8), generator=generator)
    draws = [subsampled.log_prob_and_grad(theta, generator=generator)[0] - log_density for _ in range(_PROBES)]
    terms = torch.stack(draws)
    between_batches = float(terms.mean(1).var())
    between_samples = float(terms.mean(0).var()) / len(theta)
    excess = between_batches / max(2.0 * between_samples, 0.5)
    return _SMALLEST_BATCH * 2 ** max(0, math.ceil(math.log2(excess))) if math.isfinite(excess) else len(target.data)


def expand_at(target: Target, base: Gaussian) -> Expansion:
    """The log-likelihood to second order at the base's mean.

    A Laplace base knows the Hessian already: its precision less the prior's. That is taken over only after a check
    against a product with the exact Hessian, because the expansion must be the sum of its points' own terms; otherwise
    the Hessian is computed. A base that was chosen for not needing a d x d matrix gets the Kronecker approximation,
    whose sum over points is known too.
    """
    if not isinstance(base.scale, Dense):
        return target.expand(base.mean, kronecker_hessian(target, base.mean))
    factor = base.scale.factor.double()
    eye = torch.eye(len(factor), dtype=torch.float64, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    hessian = inverse.T @ inverse
    hessian.diagonal().sub_(torch.as_tensor(target.prior_precision, device=factor.device))
    # along the posterior's own scale, where the expansion will be used
    probe = base.scale.matmul(torch.ones_like(base.mean))
    exact = hessian_product(target, base.mean)(probe)
    error = float((hessian.to(probe) @ probe - exact).norm())
    if error > 1e-3 * float(exact.norm()):
        hessian = full_hessian(target, base.mean)
    return target.expand(base.mean, hessian.to(base.mean))
