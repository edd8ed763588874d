"""Which estimate of a target an ascent should use: all data, or batches with a second-order control variate."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from burnish.heads import LinearHead
from burnish.inference.curvature import check_dense_memory, full_hessian, hessian_product, kronecker_hessian
from burnish.inference.rotated import RotatedKronecker, rotated_curvature
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.target import Expansion, SubsampledTarget, Target

__all__: list[str] = []

Estimate = Callable[[Tensor], tuple[Tensor, Tensor]]

_FULL_DATA = 4096  # up to so many points every step uses all of them
_SMALLEST_BATCH = 512
_PROBES = 16  # batches drawn to measure the noise of choosing one
_SCOUTS = 4  # draws of the base at which every point's remainder is looked at once
_EVEN_SHARE = 0.1  # of the mass of the drawing probabilities


def choose_estimate(
    target: Target,
    base: Gaussian,
    batch_size: int | str | None,
    control_variate: bool,
    num_samples: int,
    generator: torch.Generator,
) -> tuple[Estimate, int | None]:
    """The target's value and gradient as a function of theta, and the number of points it looks at (None for all)."""
    expands = control_variate and isinstance(target.model.head, LinearHead)
    if batch_size is None or (batch_size == "auto" and len(target.data) <= _cheap_data(base, expands)):
        return target.log_prob_and_grad, None
    expansion, probabilities = None, None
    if expands:
        expansion = expand_at(target, base)
        probabilities = _drawing_probabilities(target, expansion, base, generator)
    if batch_size == "auto":
        probe = target.subsampled(_SMALLEST_BATCH, expansion, probabilities)
        size = _quiet_batch_size(probe, base, num_samples, generator)
        if size > len(target.data) // 4:
            return target.log_prob_and_grad, None
    else:
        size = int(batch_size)
    subsampled = target.subsampled(size, expansion, probabilities)
    return (lambda theta: subsampled.log_prob_and_grad(theta, generator=generator)), size


def _cheap_data(base: Gaussian, expands: bool) -> int:
    """Points up to which all of them cost less than a batch; an expansion with a d x d matrix costs as much as d / 2."""
    return max(_FULL_DATA, base.dim // 2) if expands and isinstance(base.scale, Dense) else _FULL_DATA


def _drawing_probabilities(target: Target, expansion: Expansion, base: Gaussian, generator: torch.Generator) -> Tensor:
    """Points in proportion to the size of their remainders at draws of the base: most points of a good network have none.

    A tenth of the mass is spread evenly, so that a point whose remainder was small at these draws cannot get a
    weight beyond ten times the even one.
    """
    theta = base.sample(_SCOUTS, generator=generator)
    sizes, start = [], 0
    for inputs, _, _ in target.chunks(theta):
        index = torch.arange(start, start + len(inputs), device=theta.device)
        sizes.append(target.remainder(theta, index, expansion)[0].square().mean(0).sqrt())
        start += len(inputs)
    size = torch.cat(sizes).double()
    total = size.sum()
    share = size / total if float(total) > 0.0 else torch.full_like(size, 1.0 / len(size))
    return _EVEN_SHARE / len(size) + (1.0 - _EVEN_SHARE) * share


def _quiet_batch_size(probe: SubsampledTarget, base: Gaussian, num_samples: int, generator: torch.Generator) -> int:
    """The smallest power of two with which choosing a batch adds no more than about the noise of choosing samples.

    Measured at draws of the base. Half a nat is always quiet enough.
    """
    theta, log_density = base.sample_and_log_prob(max(num_samples, 8), generator=generator)
    draws = [probe.log_prob_and_grad(theta, generator=generator)[0] - log_density for _ in range(_PROBES)]
    terms = torch.stack(draws)
    between_batches = float(terms.mean(1).var())
    between_samples = float(terms.mean(0).var()) / len(theta)
    excess = between_batches / max(2.0 * between_samples, 0.5)
    if not math.isfinite(excess):
        return len(probe.target.data)
    return probe.batch_size << math.ceil(math.log2(max(excess, 1.0)))


def expand_at(target: Target, base: Gaussian) -> Expansion:
    """The log-likelihood to second order at the base's mean.

    A Laplace base knows the Hessian already: its precision less the prior's. That is taken over only after a check
    against a product with the exact Hessian, because the expansion must be the sum of its points' own terms; otherwise
    the Hessian is computed. A base that was chosen for not needing a d x d matrix gets the Kronecker approximation,
    whose sum over points is known too.
    """
    if isinstance(base.scale, RotatedKronecker):
        return target.expand(base.mean, rotated_curvature(target, base.mean))
    if not isinstance(base.scale, Dense):
        return target.expand(base.mean, kronecker_hessian(target, base.mean))
    check_dense_memory(target.dim, base.mean.device, base.mean.dtype)
    hessian = torch.cholesky_inverse(base.scale.factor.double())
    hessian.diagonal().sub_(torch.as_tensor(target.prior_precision, device=hessian.device))
    # along the posterior's own scale, where the expansion will be used
    probe = base.scale.matmul(torch.ones_like(base.mean))
    exact = hessian_product(target, base.mean)(probe)
    error = float((hessian.to(probe) @ probe - exact).norm())
    if error > 1e-3 * float(exact.norm()):
        hessian = full_hessian(target, base.mean)
    return target.expand(base.mean, hessian.to(base.mean))
