"""Folders that data sets are looked for in."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["cache_folder", "import_pooch", "look_at", "search_folders", "split_folders"]

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP, errno.ENAMETOOLONG)


def search_folders(folder: str | os.PathLike[str] | None) -> tuple[list[Path], bool]:
    """Where to look, and whether somebody named those folders: what is not there is not fetched then.

    Args:
        folder: as for `load_images`; without one, those of BURNISH_DATA and after them the cache.
    """
    if folder is not None:
        return split_folders("folder", folder), True
    named = os.environ.get("BURNISH_DATA", "")
    folders = split_folders("BURNISH_DATA", named) if named else []
    with contextlib.suppress(ModuleNotFoundError):  # without pooch and BURNISH_CACHE there is no cache to look into
        folders.append(cache_folder())
    return folders, bool(named)


def split_folders(name: str, value: str | os.PathLike[str]) -> list[Path]:
    """One folder, or several separated as in PATH, all of which must exist; `~` is the user's home."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):  # Python's paths may give bytes
        raise TypeError(
            f"`{name}` must be a string or a path, got {type(value).__name__}. "
            f"Pass one folder, or several in one string, separated by {os.pathsep!r}."
        )
    parts = [text] if os.path.isdir(text) else [part for part in text.split(os.pathsep) if part]
    folders = [Path(part).expanduser() for part in parts]
    if not text or not folders:
        raise ValueError(f"`{name}` must name a folder, got {text!r}. Pass one, or several separated by {os.pathsep!r}.")
    for folder in folders:
        found = look_at(folder)
        if found is None or not stat.S_ISDIR(found.st_mode):
            message = f"`{name}` must name existing folders, got {str(folder)!r}. Check the spelling, or create it."
            raise FileNotFoundError(errno.ENOENT, message)
    return folders


def look_at(path: Path) -> os.stat_result | None:
    """What is there, or None; not to be allowed to look is neither, whatever Python's version makes of it.

    Raises:
        PermissionError: If a folder on the way may not be entered.
    """
    try:
        return os.stat(path)
    except ValueError:  # no path has a zero byte in it
        return None
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        if not isinstance(error, PermissionError):
            raise
        message = (
            f"`folder` must be one that can be looked into, got {str(path.parent)!r} ({error.strerror}). "
            "Give yourself the permission to enter it, or name another folder."
        )
        raise PermissionError(error.errno, message) from error


def cache_folder() -> Path:
    """Where sets go that nobody named a folder for: BURNISH_CACHE, or the place that the system has for caches."""
    named = os.environ.get("BURNISH_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(import_pooch().os_cache("burnish"))


def import_pooch() -> Any:
    """The library that fetches files, which is an extra."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Fetching data sets needs the package pooch, which is not installed. Run `pip install 'burnish[data]'`, or name "
            "a folder that has the data with `--data` or BURNISH_DATA.",
            name="pooch",
        ) from error
    return pooch
