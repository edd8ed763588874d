"""Whether the data sets in some folders are intact."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from burnish.studies.data.damage import DamagedFileError
from burnish.studies.data.images import Images
from burnish.studies.data.layouts import Dataset, Found, locate_all
from burnish.studies.data.loading import read_part

__all__ = ["Finding", "verify"]


@dataclass(frozen=True)
class Finding:
    """One split in one layout, once it has been looked at."""

    split: str
    found: Found
    problems: dict[Path, str]
    """What is wrong, by file; empty where nothing is."""
    unknown: tuple[Path, ...]
    """Files without a known checksum: they could be read and had the right sizes, no more is known."""


def verify(dataset: Dataset, folders: Sequence[Path]) -> list[Finding]:
    """Compares checksums of all files of the set and reads them, in every layout that is there."""
    intact: dict[Path, bool | None] = {}  # one archive may hold both splits
    return [_verify_part(split, found, intact) for split in dataset.splits for found in locate_all(dataset, split, folders)]


def _verify_part(split: str, found: Found, intact: dict[Path, bool | None]) -> Finding:
    problems = {}
    for file, path in zip(found.part.files, found.paths, strict=True):
        try:
            if path not in intact:
                intact[path] = file.is_intact(path)
            if intact[path] is False:
                problems[path] = "its checksum is not the published one"
        except DamagedFileError as error:
            problems[path] = error.problem
        except OSError as error:
            problems[path] = f"it cannot be read ({error.strerror})"
    unknown = [path for path in found.paths if intact.get(path) is None]
    if not problems:
        try:
            problems = _compare_batches(found, read_part(found))
        except DamagedFileError as error:
            problems = {error.path: error.problem}
        if found.part.batches:
            unknown = []
    return Finding(split, found, problems, tuple(path for path in unknown if path not in problems))


def _compare_batches(found: Found, images: Images) -> dict[Path, str]:
    """What the pixels and labels say where files have no checksums of their own; a file is a batch."""
    checksums = found.part.batches
    if not checksums or images.labels is None:
        return {}
    labels = images.labels.numpy().astype(np.uint8)[:, None]
    records = np.concatenate([labels, images.pixels.flatten(1).numpy()], axis=1)
    batches = np.split(records, len(checksums))
    return {
        path: "its images and their labels are not those of the set"
        for path, batch, checksum in zip(found.paths, batches, checksums, strict=False)  # labels come after the batches
        if hashlib.md5(batch.data, usedforsecurity=False).hexdigest() != checksum
    }
