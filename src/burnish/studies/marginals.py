"""Densities of single weights under each posterior, beside those under HMC."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from burnish.studies.image_methods import LABELS, LayerMethods
from burnish.studies.image_posteriors import HMC, REFINE
from burnish.studies.summaries import method_names, method_rows, spread

__all__ = ["run_seed", "summary"]

_NUM_WEIGHTS, _NUM_POINTS = 6, 60
_SEED = 0  # of the choice of weights, the same for all methods


def run_seed(methods: LayerMethods) -> dict[str, Any]:
    """How far the marginals of all weights are from HMC's, and for a few weights the densities on a grid."""
    problem = methods.problem
    draws = {}
    for name in methods.names:
        fit = methods.fit(name)
        if fit is not None and name != REFINE:
            draws[name] = fit.draws[: problem.setting.settings.num_draws, : problem.num_weights]
    judge = methods.fit(HMC)
    assert judge is not None
    half = len(judge.draws) // 2
    reference = judge.draws[half:, : problem.num_weights]  # other chains than those of the row of HMC
    rows = {name: {"ks": float(_distances(own, reference).mean())} for name, own in draws.items()}
    generator = torch.Generator().manual_seed(_SEED)
    chosen = torch.randperm(problem.num_weights, generator=generator)[:_NUM_WEIGHTS].sort().values.tolist()
    return {"rows": rows, "weights": [_densities(draws, problem.theta, index) for index in chosen]}


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean Kolmogorov-Smirnov distance of the marginals to HMC's; for HMC, of two halves of its chains."""
    parts = list(record["seeds"].values())
    distances = {name: [row["ks"] for row in method_rows(parts, name)] for name in method_names(parts)}
    rows = [[LABELS.get(name, name), spread(values, 4)] for name, values in distances.items()]
    return ["method", "mean distance of marginals to HMC's"], rows


def _distances(draws: Tensor, reference: Tensor) -> Tensor:
    """Kolmogorov-Smirnov distance (d,) of every column of draws (S, d) and reference (R, d)."""
    own, other = draws.T.contiguous().sort(1).values, reference.T.contiguous().sort(1).values
    both = torch.cat([own, other], dim=1)
    shares = [torch.searchsorted(part, both, right=True).double() / part.shape[1] for part in (own, other)]
    return (shares[0] - shares[1]).abs().amax(1)


def _densities(draws: Mapping[str, Tensor], theta: Tensor, index: int) -> dict[str, Any]:
    """On a grid over all draws of all posteriors, finer where HMC's are: others can be ten times as wide."""
    columns = {name: part[:, index].double().cpu() for name, part in draws.items()}
    spans = torch.cat(list(columns.values())), columns[HMC]
    ends = [(float(span.min()), float(span.max())) for span in spans]
    parts = [torch.linspace(low, high, _NUM_POINTS // 2, dtype=torch.float64) for low, high in ends]
    grid = torch.cat(parts).sort().values
    return {
        "index": index,
        "network": float(theta[index]),
        "grid": [round(value, 5) for value in grid.tolist()],
        "densities": {name: [round(v, 4) for v in _kernel_density(c, grid).tolist()] for name, c in columns.items()},
    }


def _kernel_density(values: Tensor, grid: Tensor) -> Tensor:
    """With Gaussian kernels as wide as suits a normal distribution."""
    width = float(values.std()) * (0.75 * len(values)) ** -0.2
    kernels = torch.exp(-0.5 * ((grid.unsqueeze(1) - values) / width) ** 2)
    density: Tensor = kernels.mean(1) / (width * math.sqrt(2.0 * math.pi))
    return density
