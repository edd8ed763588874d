"""SWAG: a Gaussian fitted to the points that stochastic gradient descent passes through at a constant rate."""

import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_memory, check_positive, check_tensor
from burnish.errors import FitError
from burnish.flat_network import FlatNetwork
from burnish.inference.starts import check_all_finite, check_starts, stack_vectors
from burnish.posteriors import Gaussian, MixturePosterior
from burnish.scales import LowRank
from burnish.target import Target

__all__ = ["MultiSwagFit", "SwagFit", "fit_multiswag", "fit_swag", "swag_gaussian"]

_FLOAT64_COPIES = 5  # of the deviations of one row, those of their decomposition included: as measured, rounded up


@dataclass(frozen=True, eq=False)
class SwagFit:
    """A Gaussian over the snapshots of one run, and the run."""

    posterior: Gaussian
    num_snapshots: int
    deviations: Tensor
    """(d, k): the last snapshots less the mean of all, oldest first. Their principal components span a subspace."""
    trace: Tensor
    """(steps,): the log posterior estimated from the batch of each step."""
    seconds: float
    """Of all members together, where several ran at once."""


@dataclass(frozen=True, eq=False)
class MultiSwagFit:
    """A mixture of Gaussians, one for each start."""

    posterior: MixturePosterior
    members: tuple[SwagFit, ...]
    seconds: float


def fit_swag(
    target: Target,
    start: Tensor,
    *,
    generator: torch.Generator,
    learning_rate: float,
    num_steps: int,
    burn_in: int = 0,
    snapshot_every: int | None = None,
    batch_size: int = 128,
    momentum: float = 0.0,
    rank: int = 20,
    min_std: float | None = None,
) -> SwagFit:
    """Runs SGD at a constant rate from `start` and puts a Gaussian over its snapshots (Maddox et al. 2019).

    The covariance is half diagonal, from all snapshots, and half of low rank, from the last ones: where these are all,
    single variances are those of the snapshots, and correlations half of theirs. How wide it is follows from rate and
    batch size, not from the target alone. Deviations are taken from the mean of all snapshots, not from the running one of
    the article.

    Args:
        target: the log posterior.
        start: parameters (d,) of a trained network.
        generator: on the device of the start.
        learning_rate: of the mean loss, minus the log posterior divided by the number of points, as in ordinary training.
        num_steps: of SGD in all.
        burn_in: steps before snapshots are counted, in which SGD forgets its start.
        snapshot_every: steps between snapshots; one pass over the data when not given.
        batch_size: points at each step, drawn with replacement.
        momentum: share of a step that goes into the next one.
        rank: snapshots that the low-rank part is made of, the last ones; all of them where there are fewer.
        min_std: least standard deviation of the diagonal part; without it, parameters that never moved are refused.

    Raises:
        ValueError: where an argument does not fit.
        FitError: where SGD leaves the finite numbers, or a parameter never moves.
        MemoryError: where snapshots need more memory than there is.
    """
    check_tensor("start", start)
    theta = check_starts("start", start, target, generator)
    if start.ndim != 1:
        raise ValueError(f"`start` must be one vector, got shape {tuple(start.shape)}. Pass several to `fit_multiswag`.")
    run = _Run(learning_rate, num_steps, burn_in, snapshot_every, batch_size, momentum, rank, min_std)
    return run.fit(target, theta, generator)[0]


def fit_multiswag(
    target: Target,
    starts: Tensor | Sequence[Tensor],
    *,
    generator: torch.Generator,
    learning_rate: float,
    num_steps: int,
    burn_in: int = 0,
    snapshot_every: int | None = None,
    batch_size: int = 128,
    momentum: float = 0.0,
    rank: int = 20,
    min_std: float | None = None,
) -> MultiSwagFit:
    """SWAG from several trained networks, mixed with equal weights (Wilson and Izmailov 2020).

    All members advance at once and see the same batches, so each one is what `fit_swag` gives for its start. Where there
    is only one mode, as for a last layer, they therefore come together.

    Args:
        target: the log posterior.
        starts: parameters (M, d), or a sequence of vectors (d,), for instance `fit_ensemble(...).parameters`. All run with
            the buffers of the target's network: members with batch norm, each with running statistics of its own, should
            be fitted one by one, each on a target of its own network.
        generator: as in `fit_swag`, like all options that follow.
        learning_rate: of the mean loss.
        num_steps: of SGD in all.
        burn_in: steps before snapshots are counted.
        snapshot_every: steps between snapshots.
        batch_size: points at each step.
        momentum: share of a step that goes into the next one.
        rank: snapshots that the low-rank part is made of.
        min_std: least standard deviation of the diagonal part.
    """
    theta = check_starts("starts", starts, target, generator)
    _warn_of_buffers(target, len(theta))
    run = _Run(learning_rate, num_steps, burn_in, snapshot_every, batch_size, momentum, rank, min_std)
    members = run.fit(target, theta, generator)
    return MultiSwagFit(MixturePosterior(tuple(fit.posterior for fit in members)), members, members[0].seconds)


def _warn_of_buffers(target: Target, num_starts: int) -> None:
    head = target.model.head
    if num_starts > 1 and isinstance(head, FlatNetwork) and any(b.is_floating_point() for b in head.network.buffers()):
        warnings.warn(
            "`starts` run with the running statistics of the target's network; where they come from other networks, call "
            "`fit_swag` on a target of each, and mix with `MixturePosterior`.",
            stacklevel=3,
        )


def swag_gaussian(snapshots: Tensor | Sequence[Tensor], *, rank: int = 20, min_std: float | None = None) -> Gaussian:
    """The Gaussian of SWAG over snapshots from a training of one's own.

    Args:
        snapshots: (K, d) in the order they were taken, or a sequence of vectors such as `model.head.flatten(network)`.
        rank: snapshots that the low-rank part is made of, the last ones; all of them where there are fewer.
        min_std: least standard deviation of the diagonal part; without it, parameters that never moved are refused.

    Raises:
        ValueError: where snapshots differ in shape, are not finite or fewer than two.
        FitError: where a parameter is the same in all of them.
    """
    _check_gaussian_options(rank, min_std)
    rows = stack_vectors("snapshots", snapshots)
    check_at_least("len(snapshots)", len(rows), 2, "A variance needs two; take more of them.")
    check_finite("snapshots", rows, "Training diverged; use a smaller learning rate.")
    variance, offset = torch.var_mean(rows.double() - rows[0], dim=0)  # exactly zero where nothing moves
    mean = rows[0] + offset
    return _gaussian(mean, variance, rows[-rank:].double() - mean, min_std, rows.dtype)


@dataclass(frozen=True)
class _Run:
    """SGD with snapshots, for as many starts as there are rows."""

    learning_rate: float
    num_steps: int
    burn_in: int
    snapshot_every: int | None
    batch_size: int
    momentum: float
    rank: int
    min_std: float | None

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate, "Try the last rate that the network was trained with.")
        check_at_least("num_steps", self.num_steps, 1)
        check_at_least("burn_in", self.burn_in, 0)
        check_at_least("batch_size", self.batch_size, 1)
        if self.snapshot_every is not None:
            check_at_least("snapshot_every", self.snapshot_every, 1)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must lie in [0, 1), got {self.momentum}. Pass 0.0 for plain SGD.")
        _check_gaussian_options(self.rank, self.min_std)

    def fit(self, target: Target, theta: Tensor, generator: torch.Generator) -> tuple[SwagFit, ...]:
        """One fit for each row of theta."""
        began = time.perf_counter()
        every = self.snapshot_every or math.ceil(len(target.data) / self.batch_size)
        count = (self.num_steps - self.burn_in) // every
        if count < 2:
            raise ValueError(
                f"`num_steps` must leave at least 2 snapshots after {self.burn_in} steps of burn-in, got {self.num_steps} "
                f"with one every {every} steps. Pass {self.burn_in + 2 * every} or more."
            )
        rank = min(self.rank, count)
        # snapshots and deviations of all rows, and what one row at a time takes besides
        size = rank * (2 * theta.numel() * theta.element_size() + theta.shape[1] * _FLOAT64_COPIES * 8)
        check_memory(f"{rank} snapshots of {theta.shape[1]} parameters", size, theta.device, "use a smaller `rank`.")
        moments, trace = self._descend(target, theta, every, rank, generator)
        members = []
        for row in range(len(theta)):
            mean, variance = moments.mean[row], moments.squares[row] / (count - 1)
            deviations = torch.stack([snapshot[row] for snapshot in moments.recent]).double().sub_(mean)
            posterior = _gaussian(mean, variance, deviations, self.min_std, theta.dtype)
            members.append((posterior, count, deviations.T.to(theta.dtype), trace[:, row]))
        seconds = time.perf_counter() - began
        return tuple(SwagFit(*member, seconds) for member in members)

    def _descend(
        self, target: Target, theta: Tensor, every: int, rank: int, generator: torch.Generator
    ) -> tuple["_Moments", Tensor]:
        estimate, rate = target.subsampled(self.batch_size), self.learning_rate / len(target.data)
        moments, velocity, trace = _Moments(theta, rank), torch.zeros_like(theta), []
        for step in range(1, self.num_steps + 1):
            value, grad = estimate.log_prob_and_grad(theta, generator=generator)
            velocity = self.momentum * velocity + rate * grad
            theta = theta + velocity
            trace.append(value)
            if step > self.burn_in and (step - self.burn_in) % every == 0:
                check_all_finite(theta, step, "learning_rate")
                moments.add(theta)
        return moments, torch.stack(trace)


class _Moments:
    """Means and squared deviations of rows as they come, in float64, and the last few of them."""

    def __init__(self, like: Tensor, num_recent: int) -> None:
        self.mean = torch.zeros_like(like, dtype=torch.float64)
        self.squares = torch.zeros_like(self.mean)
        self.recent: deque[Tensor] = deque(maxlen=num_recent)
        self.count = 0

    def add(self, theta: Tensor) -> None:
        """Welford's update: a difference of second moments would lose the digits of a small variance."""
        self.count += 1
        before = theta - self.mean
        self.mean = self.mean + before / self.count
        self.squares = self.squares + before * (theta - self.mean)
        self.recent.append(theta)


def _check_gaussian_options(rank: int, min_std: float | None) -> None:
    check_at_least("rank", rank, 2, "One deviation alone has no variance.")
    if min_std is not None:
        check_positive("min_std", min_std, "Leave it out to have parameters that never moved refused.")


def _gaussian(mean: Tensor, variance: Tensor, deviations: Tensor, min_std: float | None, dtype: torch.dtype) -> Gaussian:
    """`N(mean, diag(variance) / 2 + deviations^T deviations / (2 (k - 1)))` from deviations (k, d), all float64."""
    std = (0.5 * variance).sqrt().to(dtype)
    if not bool(torch.isfinite(std).all()):
        raise FitError("the variance of the snapshots is not finite: SGD diverges; use a smaller `learning_rate`.")
    std = std if min_std is None else std.clamp_min(min_std)
    still = std == 0.0
    if bool(still.any()):
        raise FitError(
            f"{int(still.sum())} of {len(std)} parameters are the same in all snapshots, the first at "
            f"{int(still.nonzero()[0])}; leave frozen ones out of theta, use a larger learning rate, or pass `min_std`."
        )
    factor = math.sqrt(2.0 * (len(deviations) - 1))
    return Gaussian(mean.to(dtype), LowRank.from_covariance(std, deviations.T.to(dtype) / factor))
