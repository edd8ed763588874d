"""Cyclical stochastic-gradient HMC: a step size that falls along a cosine again and again, and draws where it is small."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_memory, check_positive
from burnish.inference.estimate import Estimate
from burnish.inference.starts import check_all_finite, check_starts
from burnish.noise import standard_normal
from burnish.posteriors import SamplePosterior
from burnish.target import Target

__all__ = ["CsghmcFit", "fit_csghmc"]


@dataclass(frozen=True, eq=False)
class CsghmcFit:
    """Draws of every chain, cycle after cycle, and how the log posterior went."""

    posterior: SamplePosterior
    """Chain after chain; `posterior.draws` has them by chain."""
    trace: Tensor
    """(steps, chains): the log posterior before each step, estimated from its batch."""
    temperature: float
    """What the log posterior was divided by; 1 for the posterior itself."""
    seconds: float


def fit_csghmc(
    target: Target,
    start: Tensor | Sequence[Tensor],
    *,
    generator: torch.Generator,
    step_size: float,
    steps_per_cycle: int,
    num_cycles: int = 4,
    samples_per_cycle: int = 3,
    friction: float = 0.1,
    batch_size: int | None = 128,
    explore: float = 0.8,
    temperature: float | str = 1.0,
) -> CsghmcFit:
    """Samples by SGD with momentum and, in the last part of each cycle, noise (Zhang et al. 2020).

    With the gradient g of the log posterior, a sum over data, and l the step size of the moment divided by the number of
    points, a step is `v <- (1 - friction) v + l g + sqrt(2 friction l temperature) noise`, `theta <- theta + v`. As l goes
    to zero it leaves `exp(log posterior / temperature)` unchanged; there is no correction for larger steps, nor for the
    noise of batches. Beyond the article, while there is noise the velocity is scaled with the root of l: its variance is
    l times the temperature, and what is left over from larger steps would make the draws of short cycles too wide, their
    variance by a third and more.

    Args:
        target: the log posterior.
        start: parameters (d,), or (C, d) for as many chains at once. They share batches, but not noise.
        generator: on the device of the start.
        step_size: at the start of a cycle, in the units of a learning rate of the mean loss.
        steps_per_cycle: in which the step size falls from `step_size` to nearly zero along half a cosine.
        num_cycles: each one may leave the mode that the last one sampled.
        samples_per_cycle: draws of each chain, spread evenly over the part of a cycle with noise; the last ends it.
        friction: share of the velocity that is lost at each step; 1 makes it Langevin dynamics.
        batch_size: points at each step, drawn with replacement; None for all.
        explore: share of a cycle that goes by without noise.
        temperature: 1 for the posterior, less for a colder one, or "paper" for 1 / number of points: the baseline behind
            the published numbers divides the variance of its noise by that number twice, and hardly leaves the modes.

    Raises:
        ValueError: where an argument does not fit.
        FitError: where a chain leaves the finite numbers.
        MemoryError: where draws need more memory than there is.
    """
    began = time.perf_counter()
    theta = check_starts("start", start, target, generator)
    check_at_least("num_cycles", num_cycles, 1)
    if batch_size is not None:
        check_at_least("batch_size", batch_size, 1, "Pass None for all data.")
    cycle = _Cycle(step_size, len(target.data), steps_per_cycle, samples_per_cycle, friction, explore, temperature)
    count = num_cycles * samples_per_cycle * len(theta)
    size = 2 * count * theta.shape[1] * theta.element_size()  # as they come, and by chain
    check_memory(f"{count} draws of {theta.shape[1]} parameters", size, theta.device, "use fewer chains or samples.")
    velocity, trace, draws = torch.zeros_like(theta), [], []
    estimate = _estimate(target, batch_size, generator)
    for number in range(1, num_cycles + 1):
        for step in range(1, steps_per_cycle + 1):
            value, grad = estimate(theta)
            velocity = cycle.push(velocity, grad, step, generator)
            theta = theta + velocity
            trace.append(value)
            if step in cycle.kept:
                draws.append(theta)
        check_all_finite(theta, number * steps_per_cycle, "step_size")
    return CsghmcFit(
        posterior=SamplePosterior(torch.stack(draws, dim=1).flatten(0, 1), num_chains=len(theta)),
        trace=torch.stack(trace),
        temperature=cycle.warmth,
        seconds=time.perf_counter() - began,
    )


def _estimate(target: Target, batch_size: int | None, generator: torch.Generator) -> Estimate:
    if batch_size is None:
        return target.log_prob_and_grad
    subsampled = target.subsampled(batch_size)
    return lambda theta: subsampled.log_prob_and_grad(theta, generator=generator)


@dataclass(frozen=True)
class _Cycle:
    """What happens at each step of a cycle, counted from 1."""

    step_size: float
    num_points: int
    num_steps: int
    num_samples: int
    friction: float
    explore: float
    temperature: float | str

    def __post_init__(self) -> None:
        check_positive("step_size", self.step_size, "Try the learning rate that the network was trained with.")
        check_at_least("steps_per_cycle", self.num_steps, 1)
        check_at_least("samples_per_cycle", self.num_samples, 1)
        check_positive("friction", self.friction, "Without friction there is no noise.")
        if self.friction > 1.0:
            raise ValueError(f"`friction` must lie in (0, 1], got {self.friction}. It is one less the momentum.")
        if not 0.0 <= self.explore < 1.0:
            raise ValueError(f"`explore` must lie in [0, 1), got {self.explore}. Noise, and draws, come after it.")
        if self.num_steps - self.num_quiet < self.num_samples:
            raise ValueError(
                f"`steps_per_cycle` must leave a step with noise for each of {self.num_samples} samples, got "
                f"{self.num_steps} of which {self.num_quiet} explore. Pass more, or a smaller `explore`."
            )
        if not isinstance(self.temperature, str):
            check_positive("temperature", self.temperature, "1 is that of the posterior.")
        elif self.temperature != "paper":
            raise ValueError(f"`temperature` must be a number or 'paper', got {self.temperature!r}. Pass 1.0.")

    @property
    def num_quiet(self) -> int:
        """Steps without noise, with which a cycle begins."""
        return round(self.explore * self.num_steps)

    @property
    def kept(self) -> range:
        """The steps after which samples are kept."""
        every = (self.num_steps - self.num_quiet) // self.num_samples
        return range(self.num_steps - (self.num_samples - 1) * every, self.num_steps + 1, every)

    @property
    def warmth(self) -> float:
        """The temperature as a number."""
        return 1.0 / self.num_points if isinstance(self.temperature, str) else float(self.temperature)

    def push(self, velocity: Tensor, grad: Tensor, step: int, generator: torch.Generator) -> Tensor:
        """The velocity of the next step: what friction leaves, the force, and the noise that makes up for the friction."""
        rate = self.rate(step)
        if step <= self.num_quiet:
            return (1.0 - self.friction) * velocity + rate * grad
        cooling = math.sqrt(rate / self.rate(step - 1)) if step > 1 else 1.0
        noise = standard_normal(len(velocity), velocity, generator=generator)
        kick = math.sqrt(2.0 * self.friction * rate * self.warmth) * noise
        return (1.0 - self.friction) * cooling * velocity + rate * grad + kick

    def rate(self, step: int) -> float:
        """The step size at one step, for the sum over data."""
        return 0.5 * (1.0 + math.cos(math.pi * (step - 1) / self.num_steps)) * self.step_size / self.num_points
