"""Logistic regression with two weights: every posterior beside the exact one, and its MMD to HMC.

The weights have no bias, the data are two clouds of points. "LA" stands where plain training with weak weight decay ends,
which is not the mode of the target; "recentred LA" stands at that mode, and is what the flow refines.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_at_least
from burnish.diagnostics import median_bandwidth, mmd, resplit_range
from burnish.inference.flow import fit_flow
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.mode import find_mode
from burnish.inference.variational import fit_vb
from burnish.likelihoods import Bernoulli
from burnish.noise import make_generator
from burnish.posteriors import Posterior
from burnish.progress import Stages
from burnish.target import Target

__all__ = ["Settings", "make_target", "run", "summary", "train"]

LA, RECENTRED, VB, REFINED, HMC = "LA", "recentred LA", "VB", "refined", "HMC"
PAPER = {LA: "0.040", VB: "0.016", REFINED: "0.002"}
MARGIN = 0.002  # by which the refined posterior's biased MMD may exceed that of HMC against HMC
_CENTRE = (1.5, 1.0)  # of the cloud of one class; the other's is opposite
_SEEDS = 1000  # data sets of one seed, at most


@dataclass(frozen=True)
class Settings:
    """Sizes and the problem: points, priors of training and of the target, draws compared, and data sets."""

    num_points: int = 50
    prior_precision: float = 0.1
    weight_decay: float = 5e-4
    """Of the training behind "LA", on the mean loss: that of the paper's networks."""
    num_datasets: int = 10
    num_chains: int = 60
    draws_per_chain: int = 10
    """Compared at a time: chains times these are the paper's 600."""
    num_sets: int = 20
    """Sets of so many draws, each compared by itself: one set alone leaves much to chance."""
    num_splits: int = 2000
    side: int = 61
    """Points to a side of the grid that the exact posterior is drawn on."""


def run(seed: int = 0, settings: Settings | None = None, *, progress: bool = True) -> dict[str, Any]:
    """MMDs of every posterior to HMC for each data set, and for the first one what a figure needs.

    Args:
        seed: of the data sets and all draws.
        settings: sizes.
        progress: whether to say on a terminal what is going on.
    """
    settings = Settings() if settings is None else settings
    check_at_least("settings.num_sets", settings.num_sets, 1)
    datasets, picture = [], {}
    with Stages("toy-logistic", show=progress) as stages, stages.stage("data sets", settings.num_datasets):
        for number in stages.track(range(settings.num_datasets)):
            generator = make_generator(_SEEDS * seed + number)
            target = make_target(settings.prior_precision, settings, generator)
            row, sets = _compare(target, settings, generator)
            datasets.append(row)
            if number == 0:
                picture = _picture(target, {name: part[0] for name, part in sets.items()}, settings)
    return {
        "num_draws": settings.num_chains * settings.draws_per_chain,
        "num_sets": settings.num_sets,
        "datasets": datasets,
        "picture": picture,
        "checks": _checks(datasets),
    }


def summary(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: MMD^2 to HMC over data sets, how often it is that of draws of HMC, and what the paper prints."""
    rows = []
    for name in (LA, RECENTRED, VB, REFINED, HMC):
        parts = [row["methods"][name] for row in results["datasets"]]
        biased = [part["biased"] for part in parts]
        unbiased = [part["unbiased"] for part in parts]
        inside = sum(part["inside"] for part in parts)
        spread = f"{statistics.median(biased):.4f} ({min(biased):.4f} to {max(biased):.4f})"
        share = statistics.mean(part["share_inside"] for part in parts)
        label = "HMC, another run" if name == HMC else name
        cells = [spread, f"{statistics.median(unbiased):+.5f}", f"{inside} of {len(parts)}", f"{100 * share:.1f} %"]
        rows.append([label, *cells, PAPER.get(name, "")])
    header = [
        "MMD² to HMC",
        "biased: median (range)",
        "unbiased: median",
        "inside the 99 % range",
        "all sets inside",
        "paper",
    ]
    return header, rows


def make_target(precision: float, settings: Settings, generator: torch.Generator) -> Target:
    """Two clouds of points, one for each class, and a prior."""
    labels = torch.arange(settings.num_points) % 2
    noise = torch.randn(settings.num_points, 2, generator=generator, dtype=torch.float64)
    inputs = noise + (2 * labels.unsqueeze(1) - 1) * torch.tensor(_CENTRE, dtype=torch.float64)
    return Target.last_layer(inputs, labels, prior_precision=precision, likelihood=Bernoulli(), bias=False)


def train(target: Target, settings: Settings) -> Tensor:
    """The weights that training with weight decay on the mean loss ends at."""
    decay = settings.weight_decay * len(target.data)  # on the sum of the losses: the precision of a prior
    return find_mode(Target(target.model, target.data, decay)).theta


def _compare(target: Target, settings: Settings, generator: torch.Generator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A data set's row, and of each posterior sets of draws (sets, n, 2)."""
    posteriors = _fit(target, settings, generator)
    runs = [_sample(target, posteriors[RECENTRED], settings, generator) for _ in range(2)]
    reference, again = (_thinned(run, settings) for run in runs)  # (sets, chains, n, 2)
    flat = reference.flatten(1, 2)
    bandwidth = median_bandwidth(flat[0])
    splits: dict[str, Any] = {"bandwidth": bandwidth, "num_splits": settings.num_splits, "generator": generator}
    low, high = resplit_range(torch.cat([reference[0], again[0]]), **splits)
    count = len(flat[0])
    sets = {name: part.sample(len(flat) * count, generator=generator).view_as(flat) for name, part in posteriors.items()}
    sets[HMC] = again.flatten(1, 2)
    row = {
        "bandwidth": bandwidth,
        "range": [low, high],
        "methods": {name: _distances(part, flat, bandwidth, low, high) for name, part in sets.items()},
        "hmc": [_describe(run, part) for run, part in zip(runs, (reference, again), strict=True)],
    }
    return row, {**sets, HMC: flat}


def _fit(target: Target, settings: Settings, generator: torch.Generator) -> dict[str, Any]:
    """The four approximations."""
    recentred = fit_laplace(target).posterior
    return {
        LA: fit_laplace(target, train(target, settings), recentre=False).posterior,
        RECENTRED: recentred,
        VB: fit_vb(target, recentred, structure="full", generator=generator).posterior,
        REFINED: fit_flow(target, recentred, generator=generator).posterior,
    }


def _sample(target: Target, start: Posterior, settings: Settings, generator: torch.Generator) -> HmcFit:
    """A run with more effective draws than are used."""
    used = settings.num_sets * settings.num_chains * settings.draws_per_chain
    return fit_hmc(
        target,
        start,
        generator=generator,
        num_chains=settings.num_chains,
        min_draws=max(50, 2 * settings.num_sets * settings.draws_per_chain),
        max_draws=20_000,
        min_ess=1.5 * used,
    )


def _thinned(fit: HmcFit, settings: Settings) -> Tensor:
    """Sets of draws (sets, chains, n, 2), from all along the chains; there are more effective draws than these."""
    draws, kept = fit.posterior.draws, settings.num_sets * settings.draws_per_chain
    stride = draws.shape[1] // kept
    used = draws[:, ::stride][:, :kept]
    if fit.ess_bulk < used.shape[0] * used.shape[1]:
        raise RuntimeError(
            f"HMC must have at least {used.shape[0] * used.shape[1]} effective draws, got {fit.ess_bulk:.0f}. "
            "Compare fewer sets."
        )
    # every set takes its draws from all along the chain, so that those of one set are far apart
    sets = used.reshape(len(draws), settings.draws_per_chain, settings.num_sets, -1)
    return sets.permute(2, 0, 1, 3).contiguous()


def _distances(sets: Tensor, reference: Tensor, bandwidth: float, low: float, high: float) -> dict[str, Any]:
    """The MMD of the first set as the paper prints it, and of all sets; each against its own set of the reference."""
    biased, unbiased = (
        [mmd(one, other, bandwidth=bandwidth, unbiased=flag) for one, other in zip(sets, reference, strict=True)]
        for flag in (False, True)
    )
    inside = [low <= value <= high for value in unbiased]
    return {
        "first_biased": biased[0],
        "first_unbiased": unbiased[0],
        "inside": inside[0],
        "biased": statistics.mean(biased),
        "unbiased": statistics.mean(unbiased),
        "share_inside": sum(inside) / len(inside),
    }


def _checks(datasets: list[dict[str, Any]]) -> dict[str, Any]:
    """For how many data sets the refined posterior is as close to HMC as HMC is, by one set of draws and by all of them."""
    pairs = [(row["methods"][REFINED], row["methods"][HMC]) for row in datasets]
    return {
        "datasets": len(pairs),
        "margin": MARGIN,
        "first_within_margin": sum(own["first_biased"] <= hmc["first_biased"] + MARGIN for own, hmc in pairs),
        "within_margin": sum(own["biased"] <= hmc["biased"] + MARGIN for own, hmc in pairs),
        "largest_excess": max(own["biased"] - hmc["biased"] for own, hmc in pairs),
        "first_inside": sum(own["inside"] for own, _ in pairs),
    }


def _picture(target: Target, draws: dict[str, Tensor], settings: Settings) -> dict[str, Any]:
    """The exact log density on a grid around all draws of HMC, less its maximum, and each posterior's draws."""
    points = draws[HMC]
    low, high = points.amin(0), points.amax(0)
    low, high = low - 0.2 * (high - low), high + 0.2 * (high - low)
    sides = [torch.linspace(float(a), float(b), settings.side, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    log_prob = target.log_prob(torch.cartesian_prod(*sides)).view(settings.side, settings.side)
    return {
        "sides": [_rounded(side) for side in sides],
        "log_density": [_rounded(row) for row in log_prob - log_prob.max()],
        "draws": {name: [_rounded(column) for column in part.T] for name, part in draws.items()},
    }


def _describe(fit: HmcFit, used: Tensor) -> dict[str, Any]:
    return {
        "rhat": fit.rhat,
        "ess_bulk": fit.ess_bulk,
        "ess_tail": fit.ess_tail,
        "draws": len(fit.posterior.samples),
        "used": used.shape[:3].numel(),
        "divergences": fit.divergences,
        "converged": fit.converged,
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]
