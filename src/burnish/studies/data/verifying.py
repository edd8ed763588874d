"""Whether the data sets in some folders are intact."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.studies.data.checking import Known, check_file, compare_files, compare_images
from burnish.studies.data.damage import DamagedFileError, UnreadableFileError
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
    unreadable: dict[Path, UnreadableFileError]
    """Files that the system does not give: nothing is known of their content."""
    unknown: tuple[Path, ...]
    """Files without a known checksum: they could be read and had the right sizes, no more is known."""


def verify(dataset: Dataset, folders: Sequence[Path]) -> list[Finding]:
    """Compares checksums of all files of the set and reads them, wherever it is; of each split first what is loaded.

    Raises:
        PermissionError: If a folder may not be looked into.
    """
    known: Known = {}  # one archive may hold both splits
    return [_verify_part(split, found, known) for split in dataset.splits for found in locate_all(dataset, split, folders)]


def _verify_part(split: str, found: Found, known: Known) -> Finding:
    problems, unreadable, states = {}, {}, list[bool | None]()
    for file, path in zip(found.part.files, found.paths, strict=True):
        state = None
        try:
            state = check_file(file, path, known)
        except DamagedFileError as error:
            problems[path] = error.problem
        except UnreadableFileError as error:
            unreadable[path] = error
        states.append(state)
    unknown = [path for path, state in zip(found.paths, states, strict=True) if state is None]
    wrong = compare_files(found, states)
    problems = {path: problem for path, problem in wrong.items() if path not in unreadable} | problems
    if not problems and not unreadable:
        try:
            problems = compare_images(found, read_part(found))
        except DamagedFileError as error:
            problems = {error.path: error.problem}
        except UnreadableFileError as error:
            unreadable = {error.path: error}
        if found.part.batches:
            unknown = []
    unknown = [path for path in unknown if path not in problems and path not in unreadable]
    return Finding(split, found, problems, unreadable, tuple(unknown))
