"""All data sets by name."""

from collections.abc import Mapping
from types import MappingProxyType

from burnish.studies.data.colour import COLOUR
from burnish.studies.data.grey import GREY
from burnish.studies.data.layouts import Dataset

__all__ = ["DATASETS"]

DATASETS: Mapping[str, Dataset] = MappingProxyType({dataset.name: dataset for dataset in (*GREY, *COLOUR)})
"""What each is, its home, its terms, its splits, and the layouts in which it may lie on disk."""
