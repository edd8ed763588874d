"""What a data set consists of, and where the files of one lie.

A data set has one or several layouts, ways in which it may lie on disk. A layout has parts, one for each split that it
holds. A part has files, each under one of several names, and a function that reads them.
"""

import gzip
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.studies.data.damage import naming
from burnish.studies.data.images import Images

__all__ = ["Dataset", "File", "Found", "Layout", "Part", "locate", "locate_all", "missing_files"]


@dataclass(frozen=True)
class File:
    """A file, by the names it may have, with its published checksum."""

    names: tuple[str, ...]
    """Relative to a folder, in the order in which they are tried; it is fetched under the first one."""
    checksum: str | None = None
    """Of the file, as "md5:..." or "sha256:..."; None where none is known."""
    content: str | None = None
    """Of what is in it once it is unpacked: holds for every way of packing it."""
    urls: tuple[str, ...] = ()
    """Its homes, in the order in which they are tried."""

    def is_intact(self, path: Path) -> bool | None:
        """Whether the file at `path` has the known checksum; None where none is known for this form of it."""
        packed = path.suffix == ".gz"
        if self.content is not None:
            with naming(path), gzip.open(path) if packed else open(path, "rb") as file:
                return _has_checksum(file, self.content)
        if self.checksum is None or packed != self.names[0].endswith(".gz"):
            return None
        with open(path, "rb") as file:
            return _has_checksum(file, self.checksum)


@dataclass(frozen=True)
class Part:
    """One split in one layout."""

    what: str
    """What is in it, in words for a table: stand-ins and extracts say that they are."""
    num_images: int
    files: tuple[File, ...]
    read: Callable[[Sequence[Path]], Images]
    """Takes the paths of the files, in their order."""
    batches: tuple[str, ...] = ()
    """MD5 of equally many images each, as records of the label and the pixels, for files that have no checksum."""


@dataclass(frozen=True)
class Layout:
    """One way in which a data set may lie on disk."""

    title: str
    parts: Mapping[str, Part]
    """By split."""


@dataclass(frozen=True)
class Dataset:
    """A public data set: what it is, whose it is, and how it may lie on disk."""

    name: str
    title: str
    what: str
    home: str
    """The page that introduces it."""
    terms: str
    """Its licence, or what its authors ask for."""
    num_classes: int | None
    """None where there are no labels."""
    layouts: tuple[Layout, ...]
    """In the order in which they are looked for; the first one is fetched."""
    splits: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        present = {split for layout in self.layouts for split in layout.parts}
        object.__setattr__(self, "splits", tuple(split for split in ("train", "test") if split in present))


@dataclass(frozen=True)
class Found:
    """A part whose files are all there."""

    dataset: Dataset
    layout: Layout
    part: Part
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.dataset.title}: {self.part.what} ({self.layout.title})"


def locate(dataset: Dataset, split: str, folders: Sequence[Path]) -> Found | None:
    """The first folder that holds the split in any layout; after those, one layout spread over the folders."""
    for group in (*([folder] for folder in folders), folders):
        for found in locate_all(dataset, split, group):
            return found
    return None


def locate_all(dataset: Dataset, split: str, folders: Sequence[Path]) -> Iterator[Found]:
    """Every layout in which the folders together hold the split."""
    for layout in dataset.layouts:
        if split in layout.parts:
            part = layout.parts[split]
            paths = tuple(path for file in part.files if (path := _find(file, folders)) is not None)
            if len(paths) == len(part.files):
                yield Found(dataset, layout, part, paths)


def missing_files(dataset: Dataset, split: str, folders: Sequence[Path]) -> dict[str, list[str]]:
    """For each layout, the names of the files that keep it from being read."""
    return {
        layout.title: [file.names[0] for file in layout.parts[split].files if _find(file, folders) is None]
        for layout in dataset.layouts
        if split in layout.parts
    }


def _find(file: File, folders: Sequence[Path]) -> Path | None:
    return next((path for folder in folders for name in file.names if (path := folder / name).is_file()), None)


def _has_checksum(file: io.BufferedIOBase, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest() == expected
