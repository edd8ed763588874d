"""Whether chains have converged, and what their draws are worth: R-hat, nested R-hat, effective sample sizes.

The definitions are those of Vehtari et al. (2021) and Margossian et al. (2024), for all parameters at once and on the
device of the draws: with thousands of parameters, a loop over them takes longer than sampling does.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_tensor

__all__ = ["ess_bulk", "ess_tail", "nested_rhat", "rhat"]

# Draws of some parameters that are looked at together: on a CPU they should stay in cache, on a GPU fill the device.
_CHUNK_ENTRIES = {"cpu": 2**19, "cuda": 2**25}
_TAIL = 0.05  # probability of each tail


def rhat(draws: Tensor) -> Tensor:
    """Rank-normalised split R-hat of every parameter (d,): the larger of those for location and for spread.

    NaN for a parameter that does not vary.

    Args:
        draws: (chains, draws, d) with at least 4 draws of each chain.
    """
    _check_draws(draws, 4)
    return _by_parameter(draws, lambda part: _worse(_split_chains(part), _split_rhat))


def nested_rhat(draws: Tensor, num_superchains: int) -> Tensor:
    """Nested R-hat of every parameter (d,), for many chains that are too short for `rhat`.

    Chains that started at one point make a superchain. Once all have forgotten where they started, the means of
    superchains differ no more than those of as many independent draws.

    Args:
        draws: (chains, draws, d), the chains of a superchain next to each other.
        num_superchains: how many there are, at least 2; it divides the number of chains.
    """
    _check_draws(draws, 1)
    check_at_least("num_superchains", num_superchains, 2)
    if len(draws) % num_superchains or len(draws) * draws.shape[1] == num_superchains:
        raise ValueError(
            f"`num_superchains` must divide the {len(draws)} chains into groups of more than one draw, "
            f"got {num_superchains}. Pass a smaller divisor."
        )

    def statistic(ranks: Tensor) -> Tensor:
        groups = ranks.view(len(ranks), num_superchains, -1, ranks.shape[2])  # (parameters, K, M, n)
        within = torch.zeros_like(groups[:, :, 0, 0])
        if groups.shape[2] > 1:
            within = within + groups.mean(3).var(2)
        if groups.shape[3] > 1:
            within = within + groups.var(3).mean(2)
        return (1.0 + groups.mean((2, 3)).var(1) / within.mean(1)).sqrt()

    return _by_parameter(draws, lambda part: _worse(part, statistic))


def ess_bulk(draws: Tensor) -> Tensor:
    """Effective number of draws for the centre of every parameter's distribution (d,); draws as for `rhat`."""
    _check_draws(draws, 4)
    return _by_parameter(draws, lambda part: _effective(_rank_normalise(_split_chains(part))))


def ess_tail(draws: Tensor) -> Tensor:
    """Effective number of draws for the 5 % and the 95 % quantile, the smaller one (d,); draws as for `rhat`."""
    _check_draws(draws, 4)

    def of_part(part: Tensor) -> Tensor:
        quantiles = part.flatten(1).sort(1).values
        count, tails = quantiles.shape[1], []
        for probability in (_TAIL, 1.0 - _TAIL):
            place = probability * (count - 1)
            low = math.floor(place)
            quantile = torch.lerp(quantiles[:, low], quantiles[:, min(low + 1, count - 1)], place - low)
            tails.append(_effective(_split_chains((part <= quantile.view(-1, 1, 1)).double())))
        return torch.minimum(*tails)

    return _by_parameter(draws, of_part)


def _check_draws(draws: Tensor, minimum: int) -> None:
    check_tensor("draws", draws)
    if draws.ndim != 3 or draws.shape[1] < minimum or len(draws) == 0:
        raise ValueError(
            f"`draws` must have shape (chains, draws, d) with at least {minimum} draws, got {tuple(draws.shape)}. "
            "Put the chains first."
        )
    check_finite("draws", draws, "Discard diverged chains first.")


@torch.no_grad()
def _by_parameter(draws: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies a function of draws (parameters, chains, draws) to as many parameters at once as fit a chunk."""
    entries = _CHUNK_ENTRIES.get(draws.device.type, _CHUNK_ENTRIES["cpu"])
    size = max(1, entries // (draws.shape[0] * draws.shape[1]))
    return torch.cat([function(part.permute(2, 0, 1).contiguous()) for part in torch.split(draws, size, dim=2)])


def _split_chains(draws: Tensor) -> Tensor:
    half = draws.shape[2] // 2
    return torch.cat([draws[..., :half], draws[..., draws.shape[2] - half :]], dim=1)


def _rank_normalise(draws: Tensor) -> Tensor:
    """Normal scores of the ranks among all draws of a parameter, float64; equal draws share their mean rank."""
    ordered, order = draws.flatten(1).sort(1)
    count = ordered.shape[1]
    new = torch.ones_like(order, dtype=torch.bool)  # where a run of equal draws begins
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = new.flatten().nonzero().squeeze(1)
    length = torch.diff(first, append=first.new_full((1,), order.numel()))
    twice_mean = torch.repeat_interleave(2 * (first % count) + length - 1, length).view(order.shape)  # counted from 0
    twice = torch.empty_like(order).scatter_(1, order, twice_mean)
    halves = torch.arange(2 * count - 1, device=draws.device, dtype=torch.float64)
    scores: Tensor = torch.special.ndtri((halves / 2.0 + 0.625) / (count + 0.25))
    return scores[twice].view(draws.shape)


def _worse(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """The larger value of a statistic of ranks, for the draws and for their distances from the median."""
    flat = draws.flatten(1)
    middle = (flat.median(1).values - (-flat).median(1).values) / 2.0  # torch's median is the lower of the middle two
    folded = (draws - middle.view(-1, 1, 1)).abs()
    return torch.maximum(statistic(_rank_normalise(draws)), statistic(_rank_normalise(folded)))


def _split_rhat(ranks: Tensor) -> Tensor:
    count = ranks.shape[2]
    between, within = count * ranks.mean(2).var(1), ranks.var(2).mean(1)
    return ((between / within + count - 1.0) / count).sqrt()


def _effective(draws: Tensor) -> Tensor:
    """Effective sample size of the mean of (parameters, chains, draws), by Geyer's initial monotone sequence."""
    num_chains, count = draws.shape[1:]
    means = draws.mean(2)
    spectrum = torch.fft.rfft(draws - means.unsqueeze(2), n=2 * count, dim=2)
    power = (spectrum.real.square() + spectrum.imag.square()).mean(1)
    covariance = torch.fft.irfft(power, n=2 * count, dim=1)[:, :count] / count  # by lag, averaged over chains
    within = covariance[:, 0] * count / (count - 1.0)
    total = covariance[:, 0] + (means.var(1) if num_chains > 1 else 0.0)
    correlation = 1.0 - (within.unsqueeze(1) - covariance) / total.unsqueeze(1)
    correlation[:, 0] = 1.0
    time = _autocorrelation_time(correlation.T).clamp_min(1.0 / math.log10(num_chains * count))
    varies = draws.amax((1, 2)) - draws.amin((1, 2)) > 1e-15
    return torch.where(varies, num_chains * count / time, float(num_chains * count))


def _autocorrelation_time(correlation: Tensor) -> Tensor:
    """From correlations by lag (n, parameters): sums of neighbours while positive, made to decrease."""
    total = torch.full_like(correlation[0], -1.0)
    going = torch.ones_like(total, dtype=torch.bool)
    smallest = torch.full_like(total, math.inf)
    lags = range(0, max(2, len(correlation) - 2), 2)
    for lag in lags:
        even, pair = correlation[lag], correlation[lag] + correlation[lag + 1]
        ends = going & ((pair <= 0.0) | (lag == lags[-1]))
        total = torch.where(ends, total + torch.where(pair < 0.0, even.clamp_min(0.0), even), total)
        going = going & ~ends
        smallest = torch.minimum(smallest, pair)
        total = torch.where(going, total + 2.0 * smallest, total)
        if not bool(going.any()):
            break
    return total
