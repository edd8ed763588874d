"""The full Gaussian with the largest ELBO under the posterior of a linear head, by Newton's method on the ELBO.

At that Gaussian the gradient of the log posterior is zero on average over its draws, and its precision is what the curvature
is on average (Opper and Archambeau 2009). Laplace's method takes both at one point, the mode. A round takes them at draws of
the Gaussian there is, and moves to where they point. The curvature is averaged at the cost of a Hessian or a few: each
point's term is taken at one draw, where there are many points, and at several where there are few. Where the posterior is
not far from Gaussian, a few rounds will do, and then they differ by noise alone; where it is far, a round goes only part of
the way, as far as the ELBO rises.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish._checks import check_memory
from burnish.inference.curvature import full_hessian, needs_double
from burnish.inference.flow import standard_error
from burnish.noise import standard_normal
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.target import Target

__all__: list[str] = []

# float64 matrices of all parameters at a time, measured in one run: curvature, factors of old and new, and their copies
_COPIES = {torch.float32: 6.0, torch.float64: 9.0}
_PAIRS, _PAIRS_PER_DIM = 2**14, 3  # of a point and a draw that the curvature is averaged over at least
_SHORTEST = 0.1  # of the way to where averages point
_SWING = 0.1  # of its last move that the mean may be drawn back before rounds become shorter
_STEADY = 0.05  # squared standard deviations, of all directions together, that noise may move the mean by


@dataclass(frozen=True, eq=False)
class Rounds:
    """Where the rounds led."""

    gaussian: Gaussian
    trace: Tensor
    """(rounds, 2): the ELBO of the Gaussian that each began with, and its standard error."""
    converged: bool


@torch.no_grad()
def climb_rounds(
    target: Target,
    start: Gaussian,
    *,
    num_samples: int,
    max_rounds: int,
    stop_early: bool,
    plateau: float,
    generator: torch.Generator,
) -> Rounds:
    """From a Gaussian with a dense scale, until a round gains no more than `plateau` nats or noise.

    Without `stop_early`, until `max_rounds` are over, or no part of the way raises the ELBO.
    """
    gaussian, before, rate = start, start, 1.0
    dtype = torch.float64 if needs_double(target, start.mean) else None
    averaged = _Averaged(target, num_samples, dtype)
    trace: list[tuple[float, float]] = []
    converged = False
    while len(trace) < max_rounds:
        noise = standard_normal(num_samples, start.mean, generator=generator, noise="antithetic")
        theta = gaussian.from_noise(noise)
        value, grad = target.log_prob_and_grad(theta)
        terms = value - gaussian.log_prob_of_noise(noise)
        trace.append((float(terms.mean()), _error(terms)))
        if stop_early and gaussian is not start:
            gains = terms - _terms(target, before, noise)  # on draws that the round did not see
            gained = float(gains.mean())
            if gained <= max(plateau, _error(gains)):
                converged = True
                gaussian = before if gained < 0.0 else gaussian
                break
        slope = grad.double().mean(0).to(start.mean.dtype)
        if _turns_back(gaussian, before, slope):
            rate = max(0.5 * rate, _SHORTEST)
        found, level = _step(target, gaussian, averaged.precision(theta), slope, noise, float(terms.mean()), rate, plateau)
        if found is None:
            converged = level
            break
        before, (gaussian, rate) = gaussian, found
    limit = averaged.copies * target.dim // (4 * num_samples)  # so many blocks of draws cost as much as a curvature
    settled = _settled(target, gaussian, rate, num_samples, limit, generator)
    return Rounds(settled, torch.tensor(trace, dtype=torch.float64), converged)


def _settled(
    target: Target, gaussian: Gaussian, rate: float, num_samples: int, limit: int, generator: torch.Generator
) -> Gaussian:
    """The mean moved once more, by gradients at as many draws as keep their noise from moving it, within limits.

    In tens of thousands of directions a little noise in each adds up to what tells two sets of draws apart. It stays where
    it is if the ELBO falls by the move, or by the half or quarter of it.
    """
    slope, count, wanted = torch.zeros_like(gaussian.mean, dtype=torch.float64), 0, 1
    while count < wanted:
        noise = standard_normal(num_samples, gaussian.mean, generator=generator, noise="antithetic")
        white = gaussian.scale.transpose_matmul(target.log_prob_and_grad(gaussian.from_noise(noise))[1])
        pairs = white.double().view(2, -1, target.dim).mean(0)
        slope, count = slope + pairs.mean(0), count + 1
        if count == 1 and len(pairs) > 1:
            wanted = min(math.ceil(float(pairs.var(0).sum()) / len(pairs) / _STEADY), limit)
    move = gaussian.scale.matmul((slope / count).to(gaussian.mean.dtype))
    fresh = standard_normal(num_samples, gaussian.mean, generator=generator, noise="antithetic")
    here = _terms(target, gaussian, fresh).mean()
    for part in (rate, rate / 2.0, rate / 4.0):
        moved = Gaussian(gaussian.mean + part * move, gaussian.scale)
        if bool(_terms(target, moved, fresh).mean() >= here):
            return moved
    return gaussian


def check_rounds_memory(dim: int, like: Tensor, alternative: str) -> None:
    """Refuses to begin rounds that do not fit."""
    needed = int(_COPIES.get(like.dtype, max(_COPIES.values())) * dim**2 * 8)
    check_memory(f"a full Gaussian of {dim} parameters", needed, like.device, alternative)


@dataclass(frozen=True)
class _Averaged:
    """The negative Hessian of the log posterior, averaged over draws."""

    target: Target
    num_draws: int
    dtype: torch.dtype | None
    """Of products, where that of the data is not enough."""

    @property
    def copies(self) -> int:
        """Of each point, each taken at another draw."""
        # the more parameters, the more of the precision would be noise
        pairs = max(_PAIRS, _PAIRS_PER_DIM * self.target.dim)
        return min(self.num_draws, math.ceil(pairs / len(self.target.data)))

    def precision(self, theta: Tensor) -> Tensor:
        """At draws (S, d), float64."""
        target, data = self.target, self.target.data
        if self.copies > 1:
            weights = data.inputs.new_ones(len(data)) if data.weights is None else data.weights
            parts = (data.inputs, data.targets, weights / self.copies)
            inputs, targets, weights = (part.repeat_interleave(self.copies, 0) for part in parts)
            target = replace(target, data=replace(data, inputs=inputs, targets=targets, weights=weights))
        matrix = full_hessian(target, theta, dtype=self.dtype)
        matrix.diagonal().add_(torch.as_tensor(target.prior_precision, dtype=torch.float64, device=theta.device))
        return matrix


def _turns_back(gaussian: Gaussian, before: Gaussian, slope: Tensor) -> bool:
    """Whether the mean is drawn back by much of what it has just moved: rounds then swing about where they should end."""
    pull, last = gaussian.scale.transpose_matmul(slope), gaussian.scale.solve(gaussian.mean - before.mean)
    return bool(pull @ last < -_SWING * (last @ last))


def _step(
    target: Target,
    gaussian: Gaussian,
    precision: Tensor,
    slope: Tensor,
    noise: Tensor,
    elbo: float,
    rate: float,
    plateau: float,
) -> tuple[tuple[Gaussian, float] | None, bool]:
    """A Gaussian with a larger ELBO on the same noise, and which part it is of the way to where averages point.

    Or nothing, and whether the ELBO is level there, rather than falling.
    """
    assert isinstance(gaussian.scale, Dense)
    gained = 0.0
    while rate >= _SHORTEST:
        between = precision
        if rate < 1.0:
            between = torch.cholesky_inverse(gaussian.scale.factor.double()).lerp_(precision, rate)
        scale = Dense.from_precision(between, gaussian.mean.dtype)
        del between  # such a matrix may be gigabytes
        found = Gaussian(gaussian.mean + rate * scale.matmul(scale.transpose_matmul(slope)), scale)
        gained = float(_terms(target, found, noise).mean()) - elbo
        if gained > 0.0:
            return (found, rate), False
        rate /= 2.0
    return None, gained > -plateau


def _terms(target: Target, gaussian: Gaussian, noise: Tensor) -> Tensor:
    """Of the ELBO (S,), one for each row of noise."""
    return target.log_prob(gaussian.from_noise(noise)) - gaussian.log_prob_of_noise(noise)


def _error(terms: Tensor) -> float:
    """Of the mean of terms whose second half mirrors the first."""
    return float(standard_error(terms, antithetic=True))
