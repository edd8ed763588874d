"""Image studies that take seconds: few made images, a tiny network, few draws; and records as studies leave them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from burnish.studies.data import Images
from burnish.studies.image_methods import LayerMethods
from burnish.studies.image_posteriors import BURNISH, RECENTRED, REFINE, _write, posterior
from burnish.studies.image_problem import ImageProblem, Setting, train_missing
from burnish.studies.image_settings import ImageSettings
from burnish.studies.made_images import made_images
from burnish.studies.workspace import Workspace

SETTINGS = ImageSettings(
    num_draws=24,
    few=4,
    num_chains=48,
    num_superchains=4,
    spacing=4,
    lengths=(1, 2),
    flow_epochs=1,
    precisions=(0.1, 1.0, 10.0, 100.0),
    num_splits=200,
    num_epochs=16,
    batch_size=16,
    tiny=True,
)
_SIZES = {"train": 300, "test": 150}


@cache
def source(name: str, split: str) -> Images:
    """The first of the made images."""
    made = made_images(name, split)
    assert made.labels is not None
    return Images(made.pixels[: _SIZES[split]], made.labels[: _SIZES[split]])


def make_setting(protocol: str, folder: Path, dataset: str = "cifar-10", **changes) -> Setting:
    """A setting that works in the folder, with other sizes where they are given."""
    settings = replace(SETTINGS, **changes)
    return Setting(dataset, protocol, settings, source, Workspace(folder), torch.device("cpu"), made_images=True)


def make_problem(setting: Setting, seed: int = 0) -> ImageProblem:
    """A problem whose network is trained if it is missing."""
    assert train_missing(setting, setting.protocol, (seed,), progress=False) == {}
    return ImageProblem(setting, seed)


def make_methods(protocol: str, folder: Path) -> LayerMethods:
    """Methods of one network, whose posteriors are fitted when they are asked for.

    In place of the two that take longest, which are `refine` and its ladder, stand draws of another.
    """
    problem = make_problem(make_setting(protocol, folder))
    fit = posterior(problem, RECENTRED)
    for name in (BURNISH, REFINE):
        _write(problem, name, fit)
    return LayerMethods(problem)


def make_record(dataset: str, protocol: str, *parts: dict, made: bool = False, num_epochs: int | None = None) -> dict:
    """A record of these seeds."""
    config = {"dataset": dataset, "protocol": protocol, "made_images": made, "num_epochs": num_epochs}
    return {"config": config, "seeds": {str(k): part for k, part in enumerate(parts)}}


def scores(nll: float, ece: float = 0.05) -> dict[str, float]:
    """Of a method on test points, as records have them."""
    return {"nll": nll, "ece": ece, "paper_ece": 2.0 * ece, "accuracy": 0.9, "brier": 0.15}
