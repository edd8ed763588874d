"""From the name of a data set to its images or its texts."""

import errno
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from burnish._checks import check_choice
from burnish.studies.data.catalogue import DATASETS, TEXTS
from burnish.studies.data.checking import Known, check_file, compare_files, compare_images, file_stamp
from burnish.studies.data.damage import DamagedFileError
from burnish.studies.data.documents import Documents
from burnish.studies.data.fetching import fetch
from burnish.studies.data.images import Images
from burnish.studies.data.layouts import Dataset, Found, locate, missing_files
from burnish.studies.data.places import cache_folder, search_folders

__all__ = ["describe", "load_documents", "load_images", "read_part"]

_KNOWN: Known = {}  # a study loads a set many times


def load_images(name: str, split: str, folder: str | os.PathLike[str] | None = None) -> Images:
    """One split of a set of images.

    Looks in `folder`; without it in BURNISH_DATA and in the cache (BURNISH_CACHE, or where the system keeps such). A set
    that is not there is fetched into the cache with checksums, but only if neither `folder` nor BURNISH_DATA is given.

    Args:
        name: one of `IMAGES`.
        split: "train" or "test"; not every set has both.
        folder: an existing folder, or several separated as in PATH, searched in turn; a set may be spread over them.

    Raises:
        FileNotFoundError: If the set is not in the folders.
        ValueError: If a file is damaged: its checksum, its form, its sizes or its labels are not those of the set.
        PermissionError: If a folder may not be looked into.
        OSError: If a file cannot be read.
        ConnectionError: If it has to be fetched and cannot be.
    """
    images = _load(name, split, folder, [each for each in DATASETS if each not in TEXTS])
    assert isinstance(images, Images)
    return images


def load_documents(name: str, split: str, folder: str | os.PathLike[str] | None = None) -> Documents:
    """One split of a set of texts, as `load_images` does it.

    Args:
        name: one of `TEXTS`.
        split: "train", "validation" or "test"; not every set has one for validation.
        folder: as for `load_images`.
    """
    documents = _load(name, split, folder, TEXTS)
    assert isinstance(documents, Documents)
    return documents


def _load(name: str, split: str, folder: str | os.PathLike[str] | None, names: Iterable[str]) -> Images | Documents:
    dataset = _check_names(name, split, names)
    folders, are_named = search_folders(folder)
    found = locate(dataset, split, folders)
    if found is None and not are_named:
        fetch(dataset, [split], cache_folder())
        found = locate(dataset, split, folders)
    if found is None:
        raise _missing(dataset, split, folders, folder is not None)
    return _load_part(found)


def describe(name: str, split: str, folder: str | os.PathLike[str] | None = None) -> str:
    """What `load_images` or `load_documents` reads for the same arguments, in words for a record; fetches nothing.

    Raises:
        FileNotFoundError: If the set is not in the folders.
    """
    dataset = _check_names(name, split, DATASETS)
    folders, _ = search_folders(folder)
    found = locate(dataset, split, folders)
    if found is None:
        raise _missing(dataset, split, folders, folder is not None)
    return str(found)


def _load_part(found: Found) -> Images | Documents:
    """What a part holds, if its checksums, where some are known, are right; they are compared once in a process."""
    states = [check_file(file, path, _KNOWN) for file, path in zip(found.part.files, found.paths, strict=True)]
    _refuse(compare_files(found, states))
    key = (found.part.batches, *map(file_stamp, found.paths))
    images = read_part(found)
    if key not in _KNOWN:
        _refuse(compare_images(found, images))
        _KNOWN[key] = True
    return images


def _refuse(problems: Mapping[Path, str]) -> None:
    for path, problem in problems.items():
        raise DamagedFileError(path, problem)


def read_part(found: Found) -> Images | Documents:
    """The images or texts of a part, as many as it should have."""
    images = found.part.read(found.paths)
    if len(images) != found.part.size:
        what = "images" if isinstance(images, Images) else "texts"
        raise DamagedFileError(found.paths[0], f"it holds {len(images)} {what}, not {found.part.size}")
    return images


def _check_names(name: str, split: str, names: Iterable[str]) -> Dataset:
    check_choice("name", name, names)
    dataset = DATASETS[name]
    if split not in dataset.splits:
        choices = " or ".join(map(repr, dataset.splits))
        raise ValueError(f"`split` must be {choices} for {name}, got {split!r}. Pass a split that the set has.")
    return dataset


def _missing(dataset: Dataset, split: str, folders: Sequence[Path], cache_is_left_out: bool) -> FileNotFoundError:
    where = repr(os.pathsep.join(map(str, folders))) if folders else "none"
    lacks = missing_files(dataset, split, folders)
    forms = "; ".join(f"no {_listed(names)} ({title})" for title, names in lacks.items())
    to = f" --to {shlex.quote(str(folders[0]))}" if cache_is_left_out else ""
    message = (
        f"`folder` must hold the {split} split of {dataset.name}, got {where}: {forms}. Name a folder that has it with "
        f"`--data` or BURNISH_DATA, or run `burnish data fetch {dataset.name}{to}`."
    )
    return FileNotFoundError(errno.ENOENT, message)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"
