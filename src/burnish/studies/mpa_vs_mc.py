"""Confidence of a small classification network under one Gaussian over all layers, averaged in three ways.

Monte Carlo draws weights. Linearised Monte Carlo draws from the network made linear at the mode. The multi-class probit
approximation (MPA) does without draws. The Gaussian is Laplace's with the exact Hessian, the same for all three.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish import metrics
from burnish.batches import Batch
from burnish.flat_network import flatten_network
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.progress import Stages
from burnish.studies.modes import best_laplace
from burnish.target import Target

__all__ = ["Settings", "make_target", "run", "summary"]

METHODS = {"Monte Carlo": "mc", "linearised Monte Carlo": "linearised", "MPA": "probit"}
MODE = "network at the mode"
PAIRS = (("Monte Carlo", "MPA"), ("Monte Carlo", "linearised Monte Carlo"), ("linearised Monte Carlo", "MPA"))
_RADIUS, _SPREAD = 2.0, 0.5  # of the circle that classes lie on, and of each class


@dataclass(frozen=True)
class Settings:
    """Sizes and the problem: classes on a circle, two hidden layers of `width` units, several priors, one of them shown."""

    num_classes: int = 4
    num_points: int = 200
    num_test: int = 500
    width: int = 10
    prior_precisions: tuple[float, ...] = (0.1, 1.0, 10.0)
    shown: float = 1.0
    num_restarts: int = 3
    num_samples: int = 10_000
    side: int = 31
    """Points to a side of the grid over [-6, 6] x [-6, 6]."""
    near: float = 0.5
    """Points of the grid at most so far from a training point are near the data."""
    far: float = 3.0
    """Points at least so far from all training points are far away."""


def run(seed: int = 0, settings: Settings | None = None, *, progress: bool = True) -> dict[str, Any]:
    """Confidences near the data, far away and on test points, and total variation distances, for each prior.

    Args:
        seed: of the data, the starts of the search for a mode, and all draws.
        settings: sizes.
        progress: whether to say on a terminal what is going on.
    """
    settings = Settings() if settings is None else settings
    generator = make_generator(seed)
    train, test = (_make_data(count, settings, generator) for count in (settings.num_points, settings.num_test))
    side = torch.linspace(-6.0, 6.0, settings.side, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    distance = torch.cdist(grid, train.inputs).amin(1)
    regions = {"near": distance <= settings.near, "far": distance >= settings.far}
    priors, maps = [], {}
    with Stages("mpa-vs-mc", show=progress) as stages, stages.stage("priors", len(settings.prior_precisions)):
        for precision in stages.track(settings.prior_precisions):
            target = make_target(train, precision, settings)
            laplace, search = best_laplace(target, settings.num_restarts, generator)
            inputs = torch.cat([grid, test.inputs])
            probs = {MODE: target.model(laplace.posterior.mean, inputs).softmax(-1)}
            for name, method in METHODS.items():
                options: dict[str, Any] = {"num_samples": settings.num_samples, "keep_samples": False}
                prediction = predict(target.model, laplace.posterior, inputs, method=method, generator=generator, **options)
                probs[name] = prediction.probs
            rows = {name: _scores(part, regions, len(grid), test.targets) for name, part in probs.items()}
            distances = [_distance(pair, probs, regions, len(grid)) for pair in PAIRS]
            priors.append({"precision": precision, "mode": search, "methods": rows, "distances": distances})
            if precision == settings.shown:
                maps = {name: _map(probs[name][: len(grid)], settings.side) for name in (*METHODS, MODE)}
    return {
        "data": {"x": _rows(train.inputs), "labels": train.targets.tolist()},
        "side": [-6.0, 6.0, settings.side],
        "regions": {"near": settings.near, "far": settings.far},
        "parameters": target.dim,
        "shown": settings.shown,
        "maps": maps,
        "priors": priors,
    }


def summary(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: confidence near the data, far away and on test points, with what is right there, for each prior."""
    rows = []
    for prior in results["priors"]:
        for name, row in prior["methods"].items():
            cells = [f"{row['near']:.3f}", f"{row['far']:.3f}", f"{row['confidence']:.3f}", f"{row['accuracy']:.3f}"]
            rows.append([f"{prior['precision']:g}: {name}", *cells, f"{row['nll']:.3f}"])
    header = ["prior precision: method", "confidence near", "far", "on test points", "accuracy there", "NLL there"]
    return header, rows


def make_target(train: Batch, precision: float, settings: Settings) -> Target:
    """A network with two hidden layers of tanh units, in float64."""
    width, num_classes = settings.width, settings.num_classes
    with torch.random.fork_rng(devices=[]):  # the weights that layers are born with are not used
        network = nn.Sequential(
            *(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()), nn.Linear(width, num_classes)
        )
    model, _ = flatten_network(network.double().eval(), example=train.inputs[:8])
    return Target(model, train, precision)


def _make_data(count: int, settings: Settings, generator: torch.Generator) -> Batch:
    """As many points of each class, around a centre on the circle."""
    labels = torch.arange(count) % settings.num_classes
    angle = 2.0 * torch.pi * (labels.double() + 0.5) / settings.num_classes
    centre = _RADIUS * torch.stack([angle.cos(), angle.sin()], dim=1)
    return Batch(centre + _SPREAD * torch.randn(count, 2, generator=generator, dtype=torch.float64), labels)


def _scores(probs: Tensor, regions: dict[str, Tensor], num_grid: int, targets: Tensor) -> dict[str, float]:
    """Mean confidence in each region of the grid; confidence, accuracy and NLL on the test points."""
    confidence, tested = probs[:num_grid].amax(-1), probs[num_grid:]
    return {
        **{name: float(confidence[region].mean()) for name, region in regions.items()},
        "confidence": float(tested.amax(-1).mean()),
        "accuracy": metrics.accuracy(tested, targets),
        "nll": metrics.nll(tested, targets),
    }


def _distance(pair: tuple[str, str], probs: dict[str, Tensor], regions: dict[str, Tensor], num_grid: int) -> dict[str, Any]:
    """Mean total variation distance between two predictives, over the grid and in each region."""
    gap = 0.5 * (probs[pair[0]] - probs[pair[1]])[:num_grid].abs().sum(-1)
    return {
        "pair": list(pair),
        "all": float(gap.mean()),
        **{name: float(gap[part].mean()) for name, part in regions.items()},
    }


def _map(probs: Tensor, side: int) -> list[list[float]]:
    """Confidence over the grid, a row for each value of the first input."""
    return _rows(probs.amax(-1).view(side, side))


def _rows(values: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in values.tolist()]
