"""All data sets by name."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from burnish.studies.data.colour import COLOUR
from burnish.studies.data.grey import GREY
from burnish.studies.data.layouts import Dataset
from burnish.studies.data.text import TEXT

__all__ = ["DATASETS", "IMAGES", "TEXTS"]


def _by_name(datasets: Sequence[Dataset]) -> Mapping[str, Dataset]:
    return MappingProxyType({dataset.name: dataset for dataset in datasets})


IMAGES: Mapping[str, Dataset] = _by_name([*GREY, *COLOUR])
TEXTS: Mapping[str, Dataset] = _by_name(TEXT)
DATASETS: Mapping[str, Dataset] = MappingProxyType({**IMAGES, **TEXTS})
"""What each is, its home, its terms, its splits, and the layouts in which it may lie on disk."""
