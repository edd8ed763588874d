"""The logistic-Gaussian integral `I(m, s) = E sigmoid(f)`, f ~ N(m, s^2): Monte Carlo against the probit approximation.

Everything is judged by the trapezoid rule, which for this integrand is exact but for rounding.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish import integrals
from burnish._checks import check_at_least
from burnish.noise import make_generator
from burnish.progress import Stages

__all__ = ["Settings", "run", "summary"]

PAPER_MAX_ERROR, PAPER_CROSSING = "0.18", "beyond 10,000"
INTEGRAND = (1.0, 2.0)  # the mean and standard deviation of the panel that shows what is integrated
CELLS = ((0.0, 1.0), (2.0, 2.0), (0.0, 10.0))  # (m, s) whose standard errors are shown
_CHUNK = 256  # draws of every cell at a time


@dataclass(frozen=True)
class Settings:
    """Sizes: the grid over m in [-`width`, `width`] and s in (0, `width`], draws, and repetitions of the whole grid."""

    width: float = 10.0
    num_means: int = 100
    num_stds: int = 100
    num_samples: int = 100
    max_samples: int = 25_119
    num_repetitions: int = 20
    num_points: int = 20_000
    num_curves: int = 400
    """Repetitions behind an empirical standard error."""
    block: int = 2
    """Cells to a side of a block, of which the record keeps the largest error."""


def run(seed: int = 0, settings: Settings | None = None, *, progress: bool = True) -> dict[str, Any]:
    """Errors of both methods over the grid, and from how many draws on Monte Carlo is the better one.

    Args:
        seed: of the draws.
        settings: sizes.
        progress: whether to say on a terminal what is going on.
    """
    settings = Settings() if settings is None else settings
    check_at_least("settings.max_samples", settings.max_samples, settings.num_samples, "Errors are followed up to there.")
    means, stds = _grid(settings)
    with Stages("logistic-integral", show=progress) as stages:
        with stages.stage("quadrature"):
            exact = integrals.trapezoid(torch.sigmoid, means, stds**2, num_points=settings.num_points)
            probit = (integrals.probit(means, stds**2) - exact).abs()
        generator = make_generator(seed)
        sizes = _sizes(settings)
        with stages.stage("Monte Carlo", settings.num_repetitions):
            repetitions = stages.track(range(settings.num_repetitions))
            runs = [_monte_carlo(means, stds, exact, sizes, settings.num_samples, generator) for _ in repetitions]
        with stages.stage("standard errors"):
            curves = [_standard_errors(mean, std, settings, generator) for mean, std in CELLS]
    peaks, averages = (torch.stack([part[i] for part in runs]) for i in (0, 1))
    at = sizes.index(settings.num_samples)
    return {
        "grid": {"means": _ends(means), "stds": _ends(stds), "cells": means.numel()},
        "integrand": {"mean": INTEGRAND[0], "std": INTEGRAND[1]},
        "standard_error": {"sizes": [size for size in sizes if size <= 10_000][::5], "cells": curves},
        "probit": {"max": float(probit.max()), "mean": float(probit.mean()), "at": _place(probit, means, stds)},
        "monte_carlo": {
            "num_samples": settings.num_samples,
            "max": _rounded(peaks[:, at]),
            "mean": _rounded(averages[:, at]),
            "at": _place(runs[0][2], means, stds),
        },
        "maps": {"monte_carlo": _blocks(runs[0][2], settings.block), "probit": _blocks(probit, settings.block)},
        "by_size": {"sizes": sizes, "max": _spread(peaks), "mean": _spread(averages)},
        "crossing": {"max": _crossings(peaks, probit.max(), sizes), "mean": _crossings(averages, probit.mean(), sizes)},
    }


def summary(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what is measured, ours with its range over repetitions, and what the paper prints."""
    count = results["monte_carlo"]["num_samples"]
    rows = [
        [f"largest error over the grid, Monte Carlo, S = {count}", _range(results["monte_carlo"]["max"]), PAPER_MAX_ERROR],
        ["largest error over the grid, probit", f"{results['probit']['max']:.4f}", ""],
        [f"mean error over the grid, Monte Carlo, S = {count}", _range(results["monte_carlo"]["mean"]), ""],
        ["mean error over the grid, probit", f"{results['probit']['mean']:.4f}", ""],
        ["S from which Monte Carlo's largest error is below probit's", _counts(results["crossing"]["max"]), PAPER_CROSSING],
        ["S from which Monte Carlo's mean error is below probit's", _counts(results["crossing"]["mean"]), ""],
    ]
    return ["", "ours: median (range over repetitions)", "paper"], rows


def _grid(settings: Settings) -> tuple[Tensor, Tensor]:
    """Means and standard deviations (M, K) of all cells."""
    width = settings.width
    means = torch.linspace(-width, width, settings.num_means, dtype=torch.float64)
    stds = torch.arange(1, settings.num_stds + 1, dtype=torch.float64) * (width / settings.num_stds)
    grid_means, grid_stds = torch.meshgrid(means, stds, indexing="ij")
    return grid_means, grid_stds


def _sizes(settings: Settings) -> list[int]:
    """Numbers of draws at which errors are looked at: ten to a decade, and those of the settings."""
    steps = {round(10 ** (k / 10)) for k in range(10, 71)}
    return sorted({size for size in steps if size <= settings.max_samples} | {settings.num_samples, settings.max_samples})


def _monte_carlo(
    means: Tensor, stds: Tensor, exact: Tensor, sizes: list[int], shown: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one repetition the largest and the mean error at each size (sizes,), and the map of errors at one of them.

    Every cell has its own draws. Those of a smaller size are the first ones of a larger size.
    """
    # in float32, whose rounding is far below the errors; its sums over many draws would not be
    mean, std, total = means.float(), stds.float(), torch.zeros_like(exact)
    peaks, averages, error_map = [], [], exact
    done = 0
    for size in sizes:
        while done < size:
            count = min(_CHUNK, size - done)
            draws = torch.randn(count, *mean.shape, generator=generator)
            total += draws.mul_(std).add_(mean).sigmoid_().sum(0)
            done += count
        errors = (total / size - exact).abs()
        peaks.append(errors.max())
        averages.append(errors.mean())
        error_map = errors if size == shown else error_map
    return torch.stack(peaks), torch.stack(averages), error_map


def _standard_errors(mean: float, std: float, settings: Settings, generator: torch.Generator) -> dict[str, Any]:
    """The standard deviation of the integrand, and the root mean square error of averages over draws of it."""
    where, points = [torch.tensor([value], dtype=torch.float64) for value in (mean, std**2)], settings.num_points
    first = float(integrals.trapezoid(torch.sigmoid, *where, num_points=points))
    second = float(integrals.trapezoid(lambda f: f.sigmoid().square(), *where, num_points=points))
    sizes = [size for size in _sizes(settings) if size <= 10_000][::5]
    draws = torch.randn(settings.num_curves, sizes[-1], generator=generator, dtype=torch.float64)
    averages = draws.mul_(std).add_(mean).sigmoid_().cumsum(1)[:, [size - 1 for size in sizes]]
    errors = averages / torch.tensor(sizes) - first
    return {
        "mean": mean,
        "std": std,
        "integrand_std": (second - first**2) ** 0.5,
        "empirical": _rounded(errors.square().mean(0).sqrt(), 6),
    }


def _crossings(errors: Tensor, rival: Tensor, sizes: list[int]) -> list[int | None]:
    """For each repetition (R, sizes) the size from which on all errors are below the rival's; None where there is none."""
    found: list[int | None] = []
    for above in (errors >= rival).tolist():
        last = max((i for i, is_above in enumerate(above) if is_above), default=-1)
        found.append(sizes[last + 1] if last + 1 < len(sizes) else None)
    return found


def _blocks(errors: Tensor, block: int) -> list[list[float]]:
    """The largest error of each block of cells: a smaller map, whose maximum is the same."""
    pooled = torch.nn.functional.max_pool2d(errors[None], block, ceil_mode=True)[0]
    return [_rounded(row, 5) for row in pooled]


def _place(errors: Tensor, means: Tensor, stds: Tensor) -> list[float]:
    index = int(errors.argmax())
    return _rounded(torch.stack([means.flatten()[index], stds.flatten()[index]]), 3)


def _spread(errors: Tensor) -> dict[str, list[float]]:
    """Median, smallest and largest over repetitions (R, sizes)."""
    named = {"median": errors.quantile(0.5, dim=0), "low": errors.amin(0), "high": errors.amax(0)}
    return {name: _rounded(values, 6) for name, values in named.items()}


def _ends(values: Tensor) -> list[float]:
    return _rounded(torch.stack([values.min(), values.max()]), 6)


def _rounded(values: Tensor, digits: int = 5) -> list[float]:
    return [round(value, digits) for value in values.tolist()]


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _counts(values: list[int | None]) -> str:
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return f"not in {len(values) - len(found)} of {len(values)} repetitions"
    return f"{statistics.median(found):,.0f} ({min(found):,} to {max(found):,})"
