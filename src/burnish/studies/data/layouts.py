"""What a data set consists of, and where the files of one lie.

A data set has one or several layouts, ways in which it may lie on disk. A layout has parts, one for each split that it
holds. A part has files, each under one of several names, and a function that reads them.
"""

import gzip
import hashlib
import io
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.studies.data.damage import naming
from burnish.studies.data.documents import Documents
from burnish.studies.data.images import Images
from burnish.studies.data.places import look_at

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
    copies: tuple[str, ...] = ()
    """Where nothing is published, of what is in copies that are known; others may be as good."""

    def is_intact(self, path: Path) -> bool | None:
        """Whether the file at `path` has the known checksum; None where none is known for this form of it."""
        packed = path.suffix == ".gz"
        known = self.copies if self.content is None else (self.content,)
        if known:
            with naming(path), gzip.open(path) if packed else open(path, "rb") as file:
                return _has_checksum(file, *known) or (None if self.content is None else False)
        if self.checksum is None or packed != self.names[0].endswith(".gz"):
            return None
        with naming(path), open(path, "rb") as file:
            return _has_checksum(file, self.checksum)


@dataclass(frozen=True)
class Part:
    """One split in one layout."""

    what: str
    """What is in it, in words for a table: stand-ins and extracts say that they are."""
    size: int
    """Images or texts in it."""
    files: tuple[File, ...]
    read: Callable[[Sequence[Path]], Images | Documents]
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
        object.__setattr__(self, "splits", tuple(split for split in ("train", "validation", "test") if split in present))


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
    return next(locate_all(dataset, split, folders), None)


def locate_all(dataset: Dataset, split: str, folders: Sequence[Path]) -> Iterator[Found]:
    """Wherever the folders, each alone and then together, hold the split, in every layout; first what `locate` gives."""
    seen = set[tuple[Path, ...]]()
    for group in (*([folder] for folder in folders), folders):
        for layout in dataset.layouts:
            if split in layout.parts:
                part = layout.parts[split]
                paths = tuple(path for file in part.files if (path := _find(file, group)) is not None)
                if len(paths) == len(part.files) and paths not in seen:
                    seen.add(paths)
                    yield Found(dataset, layout, part, paths)


def missing_files(dataset: Dataset, split: str, folders: Sequence[Path]) -> dict[str, list[str]]:
    """For each layout, the names of the files that keep it from being read."""
    return {
        layout.title: [file.names[0] for file in layout.parts[split].files if _find(file, folders) is None]
        for layout in dataset.layouts
        if split in layout.parts
    }


def _find(file: File, folders: Sequence[Path]) -> Path | None:
    return next((path for folder in folders for name in file.names if _is_file(path := folder / name)), None)


def _is_file(path: Path) -> bool:
    found = look_at(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def _has_checksum(file: io.BufferedIOBase, *checksums: str) -> bool:
    """Whether it has one of them, which are all of one kind."""
    kind = checksums[0].partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}" in checksums
