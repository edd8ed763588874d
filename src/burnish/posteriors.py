"""Distributions over flat parameter vectors.

All of them `sample(num_samples, *, generator)`; all but `SamplePosterior` also have a density. A posterior does not
know the target it approximates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_positive, check_tensor
from burnish.bijections import Bijection, Planar, Radial, SinhArcsinh, Subspace
from burnish.heads import LinearHead
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.linear_bijections import Affine, DiagonalScale, LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import check_generator, standard_normal
from burnish.scales import Dense, Diagonal, LowRank, Scale

__all__ = [
    "DensityPosterior",
    "FlowPosterior",
    "Gaussian",
    "MixturePosterior",
    "Posterior",
    "SamplePosterior",
    "WeightedSamples",
]


class Posterior(Protocol):
    """Anything that can be sampled."""

    @property
    def dim(self) -> int:
        """Number of dimensions d."""

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Tensor:
        """Draws (S, d)."""


@runtime_checkable
class DensityPosterior(Posterior, Protocol):
    """A posterior with a normalised density."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density at each row (S,)."""

    def sample_and_log_prob(self, num_samples: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws (S, d) with their log densities (S,), in one pass."""


def _check_theta(theta: Tensor, mean: Tensor) -> None:
    if theta.ndim == 0 or theta.shape[-1] != len(mean):
        raise ValueError(f"`theta` must have {len(mean)} entries in its last dimension, got shape {tuple(theta.shape)}.")
    check_like("theta", theta, mean, "the posterior")


@dataclass(frozen=True, eq=False)
class Gaussian:
    """`N(mean, scale scale^T)`. Serves as prior, Laplace, variational and SWAG posterior; structure is the scale."""

    mean: Tensor
    scale: Scale

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Scale):
            raise TypeError(
                f"`scale` must be a Scale, got {type(self.scale).__name__}. "
                "Pass `Dense.from_covariance(covariance)`, or `Diagonal(std)`."
            )
        check_tensor("mean", self.mean)
        if self.mean.ndim != 1 or len(self.mean) != self.scale.dim:
            raise ValueError(
                f"`mean` must be a vector of the scale's {self.scale.dim} dimensions, got shape {tuple(self.mean.shape)}."
            )
        check_finite("mean", self.mean, "A Gaussian needs a finite mean.")
        check_like("mean", self.mean, self.scale.variance(), "the scale")

    @classmethod
    def standard(cls, like: Tensor) -> "Gaussian":
        """`N(0, I)` for vectors like `like` (d,)."""
        return cls(torch.zeros_like(like), Diagonal(torch.ones_like(like)))

    @property
    def dim(self) -> int:
        """Number of dimensions d."""
        return len(self.mean)

    def sample(self, num_samples: int, *, generator: torch.Generator, noise: str = "iid") -> Tensor:
        """Draws (S, d), exact; made of `noise` "iid", "antithetic" or "sobol"."""
        return self.from_noise(standard_normal(num_samples, self.mean, generator=generator, noise=noise))

    def from_noise(self, noise: Tensor) -> Tensor:
        """Standard normal rows (S, d) turned into draws."""
        return self.mean + self.scale.matmul(noise)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density at each row (S,)."""
        _check_theta(theta, self.mean)
        return self.log_prob_of_noise(self.scale.solve(theta - self.mean))

    def sample_and_log_prob(self, num_samples: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws (S, d) with their log densities (S,)."""
        noise = standard_normal(num_samples, self.mean, generator=generator)
        return self.from_noise(noise), self.log_prob_of_noise(noise)

    def entropy(self) -> Tensor:
        """Differential entropy in nats, a float64 scalar."""
        return self.scale.logdet() + 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi))

    def log_prob_of_noise(self, noise: Tensor) -> Tensor:
        """Log density of `from_noise(noise)`, without solving for the noise (S,)."""
        constant = self.scale.logdet() + 0.5 * self.dim * math.log(2.0 * math.pi)
        return -0.5 * (noise * noise).sum(-1, dtype=torch.float64) - constant


@dataclass(frozen=True, eq=False)
class FlowPosterior:
    """A base Gaussian pushed through bijections, the first one applied first."""

    base: Gaussian
    bijections: tuple[Bijection, ...]

    @classmethod
    def whitened(cls, gaussian: Gaussian, bijections: Sequence[Bijection]) -> "FlowPosterior":
        """Bijections that act on the coordinates in which `gaussian` is standard normal."""
        whitening = Affine(gaussian.mean, gaussian.scale)
        return cls(Gaussian.standard(gaussian.mean), (*bijections, whitening))

    @property
    def dim(self) -> int:
        """Number of dimensions d."""
        return self.base.dim

    def sample(self, num_samples: int, *, generator: torch.Generator, noise: str = "iid") -> Tensor:
        """Draws (S, d), exact; made of `noise` "iid", which makes them independent, "antithetic" or "sobol"."""
        return self.from_noise(standard_normal(num_samples, self.base.mean, generator=generator, noise=noise))[0]

    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Standard normal rows (S, d) turned into draws, with the log-determinant of the bijections (S,)."""
        theta = self.base.from_noise(noise)
        logdet = torch.zeros(theta.shape[:-1], dtype=torch.float64, device=theta.device)
        for bijection in self.bijections:
            theta, step = bijection.forward(theta)
            logdet = logdet + step
        return theta, logdet

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density at each row (S,), through the exact inverse of every bijection."""
        _check_theta(theta, self.base.mean)
        logdet = torch.zeros(theta.shape[:-1], dtype=torch.float64, device=theta.device)
        for bijection in reversed(self.bijections):
            theta, step = bijection.inverse(theta)
            logdet = logdet + step
        return self.base.log_prob(theta) + logdet

    def sample_and_log_prob(self, num_samples: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws (S, d) with their log densities (S,); needs no inverse."""
        noise = standard_normal(num_samples, self.base.mean, generator=generator)
        theta, logdet = self.from_noise(noise)
        return theta, self.base.log_prob_of_noise(noise) - logdet


@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """Densities with equal weights, such as Gaussians around several modes."""

    components: tuple[DensityPosterior, ...]

    def __post_init__(self) -> None:
        remedy = "Pass the `.posterior` of several fits of one target."
        if not isinstance(self.components, Sequence) or len(self.components) == 0:
            what = "none" if isinstance(self.components, Sequence) else type(self.components).__name__
            raise ValueError(f"`components` must be a tuple of at least one posterior, got {what}. {remedy}")
        object.__setattr__(self, "components", tuple(self.components))
        for index, component in enumerate(self.components):
            if not isinstance(component, DensityPosterior):
                raise TypeError(
                    f"`components` must be posteriors with a density, got {type(component).__name__} at {index}. {remedy}"
                )
        dims = [component.dim for component in self.components]
        if len(set(dims)) > 1:
            raise ValueError(f"`components` must have one number of dimensions, got {dims}. {remedy}")
        centers = [center for center in map(_center, self.components) if center is not None]
        for center in centers[1:]:
            check_like("components", center, centers[0], "the first one")

    @property
    def dim(self) -> int:
        """Number of dimensions d."""
        return self.components[0].dim

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Tensor:
        """Draws (S, d) in random order, as many of each component, or one more where they do not divide evenly."""
        check_at_least("num_samples", num_samples, 1)
        check_generator(generator, getattr(generator, "device", torch.device("cpu")))
        share, rest = divmod(num_samples, len(self.components))
        order = torch.randperm(len(self.components), generator=generator, device=generator.device)
        favoured = set(order[:rest].tolist())
        counts = [share + (index in favoured) for index in range(len(self.components))]
        drawn = [
            component.sample(count, generator=generator)
            for component, count in zip(self.components, counts, strict=True)
            if count > 0
        ]
        return torch.cat(drawn)[torch.randperm(num_samples, generator=generator, device=generator.device)]

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density at each row (S,)."""
        terms = torch.stack([component.log_prob(theta) for component in self.components])
        return terms.logsumexp(0) - math.log(len(self.components))

    def sample_and_log_prob(self, num_samples: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws (S, d) with their log densities (S,); every component is asked about every draw."""
        theta = self.sample(num_samples, generator=generator)
        return theta, self.log_prob(theta)


def _center(posterior: DensityPosterior) -> Tensor | None:
    """A tensor on the device and of the dtype of a posterior, where it is one of ours."""
    if isinstance(posterior, MixturePosterior):
        return _center(posterior.components[0])
    base = posterior.base if isinstance(posterior, FlowPosterior) else posterior
    return base.mean if isinstance(base, Gaussian) else None


@dataclass(frozen=True, eq=False)
class SamplePosterior:
    """Draws (S, d) that stand for a posterior, each with the same weight."""

    samples: Tensor
    num_chains: int | None = None
    """How many chains they come from, one after the other; None for independent draws."""

    def __post_init__(self) -> None:
        if self.samples.ndim != 2 or len(self.samples) == 0:
            raise ValueError(f"`samples` must have shape (S, d) with S >= 1, got {tuple(self.samples.shape)}.")
        check_finite("samples", self.samples, "Discard diverged chains first.")
        if self.num_chains is not None:
            check_at_least("num_chains", self.num_chains, 1)
            if len(self.samples) % self.num_chains:
                raise ValueError(
                    f"`num_chains` must divide the {len(self.samples)} samples, got {self.num_chains}. "
                    "Pass chains of equal length, one after the other."
                )

    @property
    def draws(self) -> Tensor:
        """The samples by chain (chains, draws, d); independent ones are chains of one draw each."""
        return self.samples.view(self.num_chains or len(self.samples), -1, self.dim)

    @property
    def dim(self) -> int:
        """Number of dimensions d."""
        return self.samples.shape[1]

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Tensor:
        """Rows drawn without replacement while there are enough of them, with replacement beyond that."""
        check_at_least("num_samples", num_samples, 1)
        check_generator(generator, self.samples.device)
        device, count = self.samples.device, len(self.samples)
        if num_samples <= count:
            index = torch.randperm(count, generator=generator, device=device)[:num_samples]
        else:
            index = torch.randint(count, (num_samples,), generator=generator, device=device)
        return self.samples[index]


@dataclass(frozen=True, eq=False)
class WeightedSamples:
    """A few draws (S, d) that stand for a posterior together, with weights (S,), as `select_samples` chooses them.

    `predict` averages over all of them by their weights.
    """

    samples: Tensor
    weights: Tensor
    """(S,): positive, and summing to one."""

    def __post_init__(self) -> None:
        check_tensor("samples", self.samples)
        check_tensor("weights", self.weights)
        if self.samples.ndim != 2 or len(self.samples) == 0:
            raise ValueError(f"`samples` must have shape (S, d) with S >= 1, got {tuple(self.samples.shape)}.")
        check_finite("samples", self.samples, "Discard diverged draws first.")
        check_weights(self.weights, self.samples)

    @property
    def dim(self) -> int:
        """Number of dimensions d."""
        return self.samples.shape[1]

    def sample(self, num_samples: int, *, generator: torch.Generator) -> Tensor:
        """Rows drawn with replacement, each as often as its weight says."""
        check_at_least("num_samples", num_samples, 1)
        check_generator(generator, self.samples.device)
        return self.samples[torch.multinomial(self.weights, num_samples, replacement=True, generator=generator)]


def check_weights(weights: Tensor, samples: Tensor) -> None:
    """Refuses weights that are not one positive number for each sample, with sum one."""
    remedy = "Pass those of `select_samples`, or `weights / weights.sum()`."
    if tuple(weights.shape) != (len(samples),):
        raise ValueError(f"`weights` must have shape ({len(samples)},), one for each sample, got {tuple(weights.shape)}.")
    check_like("weights", weights, samples, "the samples")
    check_positive("weights", weights, remedy)
    total = float(weights.sum(dtype=torch.float64))
    if abs(total - 1.0) > 1e-5:
        raise ValueError(f"`weights` must sum to one, got {total:g}. {remedy}")


# every class that a posterior is made of: what a file may hold
KINDS: tuple[type, ...] = (
    *(Gaussian, FlowPosterior, MixturePosterior, SamplePosterior, WeightedSamples),
    *(Dense, Diagonal, Kronecker, LowRank, BlockDiagonal, LinearHead),
    *(Affine, DiagonalScale, LowRankStretch, Planar, Radial, Rotation, Shift, SinhArcsinh, Subspace, Triangular),
)
