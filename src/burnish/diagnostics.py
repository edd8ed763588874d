"""How good a posterior is: against reference samples (MMD), and against the target itself (importance weights, ELBO)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_positive
from burnish.heads import LinearHead
from burnish.noise import check_generator
from burnish.posteriors import DensityPosterior
from burnish.target import Target

__all__ = [
    "Elbo",
    "Importance",
    "class_contrasts",
    "elbo",
    "importance",
    "log_ratios",
    "median_bandwidth",
    "mmd",
    "resplit_range",
]

_CHUNK_ENTRIES = 2**22  # entries of one block of a kernel matrix, 32 MiB each
_CHUNK_DRAWS = 64  # draws whose log posterior is computed at once
_MIN_DRAWS = 25  # a fifth of the draws is the tail, and the fit of the tail needs five
_EQUAL_RATIOS = 1e-6  # log ratios closer than this count as equal: the shape of their tail would be that of rounding errors


@dataclass(frozen=True)
class Importance:
    """What importance weights from a posterior to its target say about the posterior."""

    khat: float
    """Shape of the weights' upper tail: below 0.5 all is well, above 0.7 weights and posterior cannot be trusted."""
    ess: float
    """Effective sample size 1 / sum(w^2) of the smoothed, normalised weights: S for a perfect posterior."""
    log_evidence: float
    """The estimate log mean(exp(log_ratios)) of the target's log evidence, from the weights as they are."""


@dataclass(frozen=True)
class Elbo:
    """A Monte Carlo estimate of the evidence lower bound, and its standard error."""

    value: float
    standard_error: float


@torch.no_grad()
def median_bandwidth(reference: Tensor, max_points: int = 1000) -> float:
    """The median distance between two different rows among the first `max_points` of `reference`.

    Args:
        reference: samples (R, d).
        max_points: how many rows to look at; the number of pairs is quadratic in it.
    """
    _check_samples("reference", reference, minimum=2)
    check_at_least("max_points", max_points, 2)
    points = reference[:max_points].double()
    rows, columns = torch.triu_indices(len(points), len(points), offset=1, device=points.device)
    squared = _squared_distances(points, points)[rows, columns].sort().values
    bandwidth = float(squared[(len(squared) - 1) // 2].sqrt() + squared[len(squared) // 2].sqrt()) / 2
    if bandwidth == 0.0:
        raise ValueError(
            "`reference` must have distinct rows for a median bandwidth, got mostly equal ones. "
            "Check that the chains moved, or pass a `bandwidth`."
        )
    return bandwidth


@torch.no_grad()
def mmd(samples: Tensor, reference: Tensor, *, bandwidth: float | None = None, unbiased: bool = True) -> float:
    """Squared maximum mean discrepancy, `E k(x, x') + E k(y, y') - 2 E k(x, y)`, between two sets of samples.

    The kernel is `k(x, y) = exp(-|x - y|^2 / bandwidth^2)`, without a factor 2. The unbiased U-statistic leaves out pairs
    of a sample with itself: its mean is zero when both sets come from one distribution, so it is then negative about as
    often as not. The biased V-statistic keeps them and is never negative. Draws are taken as independent.

    Args:
        samples: (S, d).
        reference: (R, d), from the distribution compared with.
        bandwidth: of the kernel; `median_bandwidth(reference)` when None. Comparisons need the same one throughout.
        unbiased: U-statistic or V-statistic.
    """
    minimum = 2 if unbiased else 1
    _check_samples("samples", samples, minimum)
    _check_samples("reference", reference, minimum)
    if samples.shape[1] != reference.shape[1]:
        raise ValueError(
            f"`samples` must have the {reference.shape[1]} dimensions of `reference`, got {samples.shape[1]}. "
            "Compare posteriors of the same parameters."
        )
    check_like("samples", samples, reference, "`reference`")
    if bandwidth is None:
        bandwidth = median_bandwidth(reference)
    check_positive("bandwidth", bandwidth, "It is a distance; leave it out for the median of the reference.")
    within = [_within(points, bandwidth, unbiased) for points in (samples, reference)]
    return sum(within) - 2.0 * _kernel_sum(samples, reference, bandwidth) / (len(samples) * len(reference))


@torch.no_grad()
def resplit_range(
    draws: Tensor,
    *,
    bandwidth: float | None = None,
    num_splits: int = 2000,
    level: float = 0.99,
    generator: torch.Generator,
) -> tuple[float, float]:
    """The central range of the unbiased `mmd` between random halves of the chains of one distribution.

    An MMD says little by itself: this is what it is where there is nothing to find. A chain goes to one half as a whole, so
    what its draws have in common widens the range as it should. Compare it with the `mmd` of as many draws as a half has.

    Args:
        draws: (chains, n, d), of an even number of chains.
        bandwidth: of the kernel; `median_bandwidth` of all draws when None. It must be that of the `mmd` compared with.
        num_splits: random halves to look at.
        level: share of the splits inside the range.
        generator: on the device of the draws.

    Returns:
        The lower and the upper end.
    """
    _check_chains(draws)
    check_at_least("num_splits", num_splits, 1)
    check_positive("level", level, "0.99 is usual.")
    if level >= 1.0:
        raise ValueError(f"`level` must lie between 0 and 1, got {level}. 0.99 is usual.")
    check_generator(generator, draws.device)
    if bandwidth is None:
        bandwidth = median_bandwidth(draws.flatten(0, 1))
    check_positive("bandwidth", bandwidth, "It is a distance; leave it out for the median of the draws.")
    sums, chains = _chain_sums(draws, bandwidth), len(draws)
    order = torch.rand(num_splits, chains, generator=generator, device=draws.device).argsort(1)
    side = (order < chains // 2).double()
    size = chains // 2 * draws.shape[1]
    across = ((side @ sums) * (1.0 - side)).sum(1)
    within = sums.sum() - 2.0 * across  # in both halves together, each pair in both orders
    values = within / (size * (size - 1)) - 2.0 * across / size**2
    tails = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=torch.float64, device=draws.device)
    low, high = torch.quantile(values, tails).tolist()
    return low, high


def class_contrasts(theta: Tensor, head: LinearHead) -> Tensor:
    """Parameters less their mean over classes, feature by feature: `w_cq - mean_c' w_c'q`, and so for the bias.

    Softmax does not change when all classes' weights of a feature move together. In those directions a posterior is the
    prior whatever the data, which dilutes an MMD; what softmax sees are the contrasts.

    Args:
        theta: (S, d), or (d,).
        head: a linear head with at least two outputs.
    """
    if not isinstance(head, LinearHead):
        raise TypeError(
            f"`head` must be a LinearHead, got {type(head).__name__}. Contrasts need a row of weights per class."
        )
    if head.num_outputs < 2:
        raise ValueError(
            f"`head.num_outputs` must be at least 2 for contrasts between classes, got {head.num_outputs}. "
            "With one output use the parameters themselves."
        )
    matrix = head.to_matrix(theta)
    return head.from_matrix(matrix - matrix.mean(-2, keepdim=True))


def importance(log_ratios: Tensor) -> Importance:
    """Pareto-smoothed importance sampling: how far the target is from the posterior that was sampled.

    k-hat is the shape of a generalised Pareto distribution fitted to the largest min(S / 5, 3 sqrt(S)) weights. It is
    -inf where these are all equal, as when posterior and target agree, and +inf where no shape can be fitted: where most
    of them are negligible beside the largest, or tied with the rest. With k-hat infinite, nothing is smoothed.

    Args:
        log_ratios: (S,) of `target.log_prob(theta) - posterior.log_prob(theta)` at independent draws of the posterior,
            without antithetic pairs. -inf stands for a weight of zero.
    """
    _check_log_ratios(log_ratios)
    ratios = log_ratios.detach().double().cpu()
    num_draws = len(ratios)
    log_evidence = float(ratios.logsumexp(0)) - math.log(num_draws)
    num_tail = int(min(num_draws / 5, 3.0 * math.sqrt(num_draws)))
    tail = ratios.topk(num_tail).values
    if float(tail[0] - tail[-1]) <= _EQUAL_RATIOS:  # there is no tail, and the library raises
        khat, log_weights = -math.inf, ratios - ratios.logsumexp(0)
    else:
        khat, log_weights = _smooth(ratios)
    return Importance(khat=khat, ess=float(1.0 / (2.0 * log_weights).exp().sum()), log_evidence=log_evidence)


@torch.no_grad()
def elbo(target: Target, posterior: DensityPosterior, *, num_samples: int = 256, generator: torch.Generator) -> Elbo:
    """The evidence lower bound `E_q [log p(data, theta) - log q(theta)]`, estimated from independent draws.

    The log evidence less the ELBO is the divergence KL(q || posterior): a higher ELBO of the same target is a better
    posterior. The standard error is zero where the posterior is exact.

    Args:
        target: the log posterior, unnormalised.
        posterior: anything with a density, such as `Gaussian` or `FlowPosterior`.
        num_samples: draws of the posterior.
        generator: on the device of the posterior.
    """
    check_at_least("num_samples", num_samples, 2, "A standard error needs two draws.")
    values = log_ratios(target, posterior, num_samples, generator=generator)
    return Elbo(value=float(values.mean()), standard_error=float(values.std()) / math.sqrt(num_samples))


@torch.no_grad()
def log_ratios(target: Target, posterior: DensityPosterior, num_draws: int, *, generator: torch.Generator) -> Tensor:
    """The log target less the log density of the posterior (S,), float64, at independent draws of it."""
    if not isinstance(posterior, DensityPosterior):
        raise TypeError(
            f"`posterior` must have a density (`log_prob` and `sample_and_log_prob`), got {type(posterior).__name__}. "
            "Compare samples without density by `mmd`."
        )
    parts = []
    for start in range(0, num_draws, _CHUNK_DRAWS):
        theta, log_q = posterior.sample_and_log_prob(min(_CHUNK_DRAWS, num_draws - start), generator=generator)
        target.check_theta(theta, "posterior")
        parts.append(target.log_prob(theta) - log_q.double())
    return torch.cat(parts)


def _check_samples(name: str, samples: Tensor, minimum: int) -> None:
    if not isinstance(samples, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(samples).__name__}. Convert it with `torch.as_tensor`.")
    if samples.ndim != 2 or len(samples) < minimum or not samples.is_floating_point():
        raise ValueError(
            f"`{name}` must be floating-point of shape (S, d) with S >= {minimum}, got {samples.dtype} of shape "
            f"{tuple(samples.shape)}. Pass one row per sample."
        )
    check_finite(name, samples, "Discard diverged chains first.")


def _check_chains(draws: Tensor) -> None:
    if not isinstance(draws, Tensor):
        raise TypeError(f"`draws` must be a torch.Tensor, got {type(draws).__name__}. Convert it with `torch.as_tensor`.")
    if draws.ndim != 3 or len(draws) < 4 or len(draws) % 2 or not draws.shape[1] or not draws.is_floating_point():
        raise ValueError(
            "`draws` must be floating-point of shape (chains, n, d), with an even number of chains, at least 4, got "
            f"{draws.dtype} of shape {tuple(draws.shape)}. Pass the draws of both runs by chain, or leave one chain out."
        )
    check_finite("draws", draws, "Discard diverged chains first.")


def _within(points: Tensor, bandwidth: float, unbiased: bool) -> float:
    """The mean of the kernel over pairs of rows, without those of a row with itself where unbiased."""
    total, count = _kernel_sum(points, points, bandwidth), len(points)
    return (total - count) / (count * (count - 1)) if unbiased else total / count**2


def _kernel_sum(left: Tensor, right: Tensor, bandwidth: float) -> float:
    """The sum of the kernel over all pairs of rows, a block at a time."""
    rows = max(1, _CHUNK_ENTRIES // len(right))
    right = right.double()
    total = 0.0
    for chunk in torch.split(left, rows):
        total += float(_squared_distances(chunk.double(), right).div_(-(bandwidth**2)).exp_().sum())
    return total


def _chain_sums(draws: Tensor, bandwidth: float) -> Tensor:
    """The kernel summed over the pairs of draws of two chains, for all pairs of chains; no draw is paired with itself."""
    chains, count = draws.shape[:2]
    flat = draws.flatten(0, 1).double()
    rows = max(1, _CHUNK_ENTRIES // (len(flat) * count))
    parts = []
    for chunk in torch.split(draws, rows):
        kernel = _squared_distances(chunk.flatten(0, 1).double(), flat).div_(-(bandwidth**2)).exp_()
        parts.append(kernel.view(len(chunk), count, chains, count).sum((1, 3)))
    sums = torch.cat(parts)
    sums.diagonal().sub_(count)
    return sums


def _squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """|x - y|^2 for all pairs of float64 rows, by one matrix product.

    Expanding the square subtracts numbers of the size of |x|^2, so the points are centred first, and what is left
    below the rounding error of that subtraction is zero: equal rows have distance zero.
    """
    center = right.mean(0)
    left, right = left - center, right - center
    size = (left * left).sum(1).unsqueeze(1) + (right * right).sum(1)
    squared = torch.addmm(size, left, right.T, alpha=-2.0)
    return squared.masked_fill_(squared <= 1e-14 * size, 0.0)


def _check_log_ratios(log_ratios: Tensor) -> None:
    if not isinstance(log_ratios, Tensor) or not log_ratios.is_floating_point():
        kind = log_ratios.dtype if isinstance(log_ratios, Tensor) else type(log_ratios).__name__
        raise TypeError(f"`log_ratios` must be a floating-point tensor, got {kind}. Convert it with `torch.as_tensor`.")
    if log_ratios.ndim != 1 or len(log_ratios) < _MIN_DRAWS:
        raise ValueError(
            f"`log_ratios` must be a vector of at least {_MIN_DRAWS} draws, got shape {tuple(log_ratios.shape)}. "
            "Draw more: a thousand give a steady k-hat."
        )
    bad = log_ratios.isnan() | log_ratios.isposinf()
    if bool(bad.any()):
        raise ValueError(
            f"`log_ratios` must not be NaN or +inf, got {int(bad.sum())} such of {len(log_ratios)}, the first at "
            f"{int(bad.nonzero()[0])}. Check both log densities at that draw."
        )
    if bool(log_ratios.isneginf().all()):
        raise ValueError(
            "`log_ratios` must be finite somewhere, got -inf for every draw. The posterior misses the target's support."
        )


def _smooth(ratios: Tensor) -> tuple[float, Tensor]:
    """k-hat and the smoothed, normalised log weights."""
    # Here, because these imports take longer than all of burnish, and only this function needs them.
    import numpy as np
    from arviz_stats.base import array_stats  # type: ignore[attr-defined]

    # `psislw` is made for leave-one-out and negates what it is given. Its fit divides by the lower quartile of the tail's
    # excesses over the largest weight outside the tail. Where that is zero, its weights are NaN, but not its k-hat: that
    # is then the prior's, a small number that says all is well when one draw outweighs all others.
    with np.errstate(all="ignore"):
        smoothed, khat = array_stats.psislw(-ratios.numpy())  # type: ignore[no-untyped-call]
    log_weights = torch.from_numpy(smoothed)
    if not math.isfinite(khat) or bool(log_weights.isnan().any()):
        return math.inf, ratios - ratios.logsumexp(0)
    return float(khat), log_weights
