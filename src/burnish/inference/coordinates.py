"""Coordinates to sample in: those in which a posterior, if it is right, makes the target standard normal."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from burnish.errors import FitError
from burnish.linear_bijections import Affine
from burnish.posteriors import FlowPosterior, Gaussian, Posterior, SamplePosterior
from burnish.scales import Dense, Diagonal

__all__ = ["Density"]

_DENSE_DIM = 128  # parameters up to which a full covariance is estimated from draws
_DRAWS_PER_DIM = 5  # draws for each of them that it needs
_MOMENT_DRAWS = 2000
_MEDIAN_OF_SQUARES = 0.455  # of standard normal numbers
_FAR = 3.0  # typical sizes from which on a value is not like the others
_TINY = 1e-6


class Density(Protocol):
    """What can be sampled: a log density, up to a constant, with its gradient."""

    @property
    def dim(self) -> int:
        """Number of dimensions d."""

    def log_prob_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The log density (S,) and its gradient (S, d) at each row."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """`theta = flow(z)`, and the target's density in z, the Jacobian included."""

    flow: FlowPosterior
    kind: str
    """"flow", "affine" (those of a given Gaussian), or "adapted" (mean and scale from the chains' own draws)."""

    @classmethod
    def of(cls, posterior: Posterior, *, generator: torch.Generator) -> "Coordinates":
        """Those in which the posterior is standard normal; for one that is neither Gaussian nor a flow, by its moments."""
        if isinstance(posterior, FlowPosterior):
            bent = any(not isinstance(bijection, Affine) for bijection in posterior.bijections)
            return cls(posterior, "flow" if bent else "affine")
        if isinstance(posterior, SamplePosterior):
            posterior = moments(posterior.samples)
        elif not isinstance(posterior, Gaussian):
            posterior = moments(posterior.sample(_MOMENT_DRAWS, generator=generator))
        return cls(FlowPosterior(posterior, ()), "affine")

    def straightened(self, *, generator: torch.Generator) -> "Coordinates":
        """Affine ones, with the moments of the flow's draws in those of its affine bijections."""
        affine = tuple(bijection for bijection in self.flow.bijections if isinstance(bijection, Affine))
        straight = Coordinates(FlowPosterior(Gaussian.standard(self.flow.base.mean), affine), "affine")
        draws = straight.inverse(self.flow.sample(_MOMENT_DRAWS, generator=generator))
        return Coordinates(FlowPosterior(moments(draws), affine), "affine")

    def standardised(self, z: Tensor, *, anew: bool) -> "Coordinates":
        """Those in which draws z (n, C, d) of C chains have mean zero and standard deviation one.

        With `anew`, the base becomes the Gaussian with the draws' moments; otherwise it keeps its directions, and what of
        the moments may be noise is left out: in many directions, small errors of each would add up to a poor base.
        """
        base = self.flow.base
        if anew:
            moved = moments(base.from_noise(z.flatten(0, 1)))
            return Coordinates(FlowPosterior(moved, self.flow.bijections), self.kind)
        mean, spread = _moments_beyond_noise(z)
        base = Gaussian(base.from_noise(mean), base.scale.stretched(spread))
        return Coordinates(FlowPosterior(base, self.flow.bijections), self.kind)

    def log_prob_and_grad(self, target: Density, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parameters (S, d), the log density of z (S,), float64, and its gradient (S, d)."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            theta, logdet = self.flow.from_noise(leaf)
            found = target.log_prob_and_grad(theta.detach())
            if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
                raise TypeError(
                    f"`target.log_prob_and_grad` must give two tensors, got {type(found).__name__}. "
                    "Return `value, grad`, both as torch.Tensor."
                )
            value, grad = found
            if value.shape != logdet.shape or grad.shape != theta.shape:
                raise ValueError(
                    f"`target.log_prob_and_grad` must give log densities of shape {tuple(logdet.shape)} and gradients of "
                    f"shape {tuple(theta.shape)}, got {tuple(value.shape)} and {tuple(grad.shape)}. One number for each row."
                )
            pulled = torch.autograd.grad((theta * grad).sum() + logdet.sum(), leaf)[0]
        return theta.detach(), value.double() + logdet.detach(), pulled

    def inverse(self, theta: Tensor) -> Tensor:
        """The z of parameters."""
        for bijection in reversed(self.flow.bijections):
            theta = bijection.inverse(theta)[0]
        return self.flow.base.scale.solve(theta - self.flow.base.mean)


def moments(draws: Tensor) -> Gaussian:
    """The Gaussian with the mean of draws (n, d) and their covariance, or only its diagonal where d is large.

    Shrunk a little towards the diagonal: estimates from few draws are too narrow along some directions.
    """
    count, dim = draws.shape
    if count < 2:
        raise FitError("one draw has no spread to take coordinates from; give more, or a Gaussian.")
    mean, centred = draws.double().mean(0), draws.double() - draws.double().mean(0)
    variance = centred.square().sum(0) / (count - 1)
    _check_spread(variance)
    if dim <= _DENSE_DIM and count >= _DRAWS_PER_DIM * dim:
        std = variance.sqrt()
        scaled = centred / std
        correlation = scaled.T @ scaled / (count - 1)
        weight = dim / (count + dim)
        correlation = (1.0 - weight) * correlation + weight * torch.eye(dim, dtype=torch.float64, device=draws.device)
        factor = torch.linalg.cholesky(correlation)
        return Gaussian(mean.to(draws.dtype), Dense((std.unsqueeze(1) * factor).to(draws.dtype)))
    return Gaussian(mean.to(draws.dtype), Diagonal(variance.sqrt().to(draws.dtype)))


def _moments_beyond_noise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (d,) of draws (n, C, d).

    Noise is taken off: means are pulled towards zero, standard deviations towards what they are on average.
    """
    flat = z.flatten(0, 1)
    spread = flat.std(0, correction=min(1, len(flat) - 1)) if len(flat) else z.new_zeros(z.shape[2])
    _check_spread(spread)
    if z.shape[1] == 1:
        return flat.mean(0), spread
    halves = z.chunk(2, dim=1)  # of the chains, which are independent
    means = torch.stack([half.mean((0, 1)) for half in halves])
    logs = torch.stack([(half.flatten(0, 1).std(0, correction=0) / spread).clamp_min(_TINY).log() for half in halves])
    log = spread.log()
    return _shrunk(flat.mean(0), means), (log.mean() + _shrunk(log - log.mean(), logs)).exp()


def _shrunk(values: Tensor, by_half: Tensor) -> Tensor:
    """Values (d,) less what is noise in them, by how far those of two halves (2, d) differ.

    As James and Stein do it, but by medians, and values far beyond the others and the noise stay as they are.
    """
    noise = by_half.diff(dim=0).square().median() / (4.0 * _MEDIAN_OF_SQUARES)
    typical = values.square().median() / _MEDIAN_OF_SQUARES
    size = torch.maximum(typical, values.square() / _FAR**2).clamp_min(torch.finfo(values.dtype).tiny)
    return values * (1.0 - noise / size).clamp_min(0.0)


def _check_spread(spread: Tensor) -> None:
    if not bool((spread > 0.0).all()):
        raise FitError("the chains do not move in some directions; give starts with a larger density, or a posterior.")
