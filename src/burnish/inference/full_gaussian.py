"""The full Gaussian with the largest ELBO under the posterior of a linear head, by Newton's method on the ELBO.

At that Gaussian the gradient of the log posterior is zero on average over its draws, and its precision is what the curvature
is on average (Opper and Archambeau 2009). Laplace's method takes both at one point, the mode. A round takes them at draws of
the Gaussian there is, and moves to where they point. The curvature is averaged at the cost of one Hessian: each point's
term is taken at one draw, and there are many points. Where the posterior is not far from Gaussian, two or three rounds will
do, and then rounds differ by noise alone; where it is far, a round goes only part of the way, as far as the ELBO rises.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.inference.curvature import full_hessian, needs_double
from burnish.inference.flow import standard_error
from burnish.noise import standard_normal
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.target import Target

__all__: list[str] = []

_PAIRS, _PAIRS_PER_DIM = 2**14, 3  # of a point and a draw that the curvature is averaged over at least
_SHORTEST = 0.1  # of the way to where averages point
_STEADY = 0.05  # squared standard deviations, of all directions together, that noise may move the mean by
_CLEAR = 3.0  # standard errors by which an ELBO must have fallen to have fallen


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
    """From a Gaussian with a dense scale, until a round gains no more than `plateau` nats or noise."""
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
        trace.append((float(terms.mean()), float(standard_error(terms, antithetic=True))))
        gained, error = _last_gain(trace)
        if stop_early and gained <= max(plateau, error):
            converged = True
            if gained < -_CLEAR * error:  # what the round before gained was gained on its draws alone
                gaussian = before
            break
        found = _step(target, gaussian, averaged.precision(theta), grad, noise, float(terms.mean()), rate)
        if found is None:
            converged = True
            break
        before, (gaussian, rate) = gaussian, found
    limit = averaged.copies * target.dim // (4 * num_samples)  # so many blocks of draws cost as much as a curvature
    settled = _settled(target, gaussian, rate, num_samples, limit, generator)
    return Rounds(settled, torch.tensor(trace, dtype=torch.float64), converged)


def _settled(
    target: Target, gaussian: Gaussian, rate: float, num_samples: int, limit: int, generator: torch.Generator
) -> Gaussian:
    """The mean moved once more, by gradients at as many draws as keep their noise from moving it, within limits.

    In tens of thousands of directions a little noise in each adds up to what tells two sets of draws apart.
    """
    slope, count, wanted = torch.zeros_like(gaussian.mean, dtype=torch.float64), 0, 1
    while count < wanted:
        noise = standard_normal(num_samples, gaussian.mean, generator=generator, noise="antithetic")
        white = gaussian.scale.transpose_matmul(target.log_prob_and_grad(gaussian.from_noise(noise))[1])
        pairs = white.double().view(2, -1, target.dim).mean(0)
        slope, count = slope + pairs.mean(0), count + 1
        if count == 1 and len(pairs) > 1:
            wanted = min(math.ceil(float(pairs.var(0).sum()) / len(pairs) / _STEADY), limit)
    return Gaussian(gaussian.mean + rate * gaussian.scale.matmul((slope / count).to(gaussian.mean.dtype)), gaussian.scale)


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


def _step(
    target: Target,
    gaussian: Gaussian,
    precision: Tensor,
    grad: Tensor,
    noise: Tensor,
    elbo: float,
    rate: float,
) -> tuple[Gaussian, float] | None:
    """A Gaussian with a larger ELBO on the same noise, and which part it is of the way to where averages point; if any."""
    slope = grad.double().mean(0).to(gaussian.mean.dtype)
    assert isinstance(gaussian.scale, Dense)
    while rate >= _SHORTEST:
        between = precision
        if rate < 1.0:
            between = torch.cholesky_inverse(gaussian.scale.factor.double()).lerp_(precision, rate)
        scale = Dense.from_precision(between, gaussian.mean.dtype)
        del between  # such a matrix may be gigabytes
        found = Gaussian(gaussian.mean + rate * scale.matmul(scale.transpose_matmul(slope)), scale)
        gained = float((target.log_prob(found.from_noise(noise)) - found.log_prob_of_noise(noise)).mean()) - elbo
        if gained > 0.0:
            return found, rate
        rate /= 2.0
    return None


def _last_gain(trace: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the last round, and its standard error; endless before there was one."""
    if len(trace) < 2:
        return math.inf, 0.0
    (first, error), (last, other) = trace[-2:]
    return last - first, math.hypot(error, other)
