"""The studies that are kept part by part, by name: what each is about, and what it lets one choose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from burnish._checks import check_choice
from burnish.studies.all_layer import record_all_layer
from burnish.studies.costs import record_costs
from burnish.studies.few_shot import record_few_shot
from burnish.studies.parts import check_device, check_seeds
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.tabular import record_tabular

__all__ = ["PART_STUDIES", "PartStudy", "check_part_options"]


@dataclass(frozen=True)
class PartStudy:
    """A study whose record is made of parts that are kept as soon as they are there."""

    title: str
    record: Callable[..., dict[str, Any]]
    """Runs what is missing and describes all of it; takes `work`, `small` and `progress`, and `options`."""
    options: tuple[str, ...]
    """Those of the command line; "short" stands for `image_settings` of a part of the images."""


PART_STUDIES = {
    "all-layer": PartStudy(
        "the paper's table of all layers of a small network, beside other posteriors and HMC",
        record_all_layer,
        ("seeds", "device", "data"),
    ),
    "costs": PartStudy(
        "seconds and ELBOs of refinement by classes, points and parameters",
        record_costs,
        ("device", "seed"),
    ),
    "few-shot": PartStudy(
        "a last layer fitted to few held-out points, against HMC",
        record_few_shot,
        ("dataset", "seeds", "device", "data", "short"),
    ),
    "tabular": PartStudy(
        "networks on small tables, against dropout, ensembles and temperature scaling",
        record_tabular,
        ("data",),
    ),
}


def check_part_options(dataset: str | None = None, seeds: Sequence[int] | None = None, device: str | None = None) -> None:
    """Refuses what can be refused before any work and any folder is made."""
    if dataset is not None:
        check_choice("dataset", dataset, BENCHMARKS)
    if seeds is not None:
        check_seeds(seeds)
    if device is not None:
        check_device(device)
