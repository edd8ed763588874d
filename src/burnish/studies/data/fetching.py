"""Fetching data sets from their homes, with checksums: a file is there as a whole or not at all."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.studies.data.layouts import Dataset, File
from burnish.studies.data.places import import_pooch

__all__ = ["fetch", "leaving_no_empty_folders"]

_TIMEOUT = 30.0  # seconds without a byte
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def fetch(dataset: Dataset, splits: Sequence[str], folder: Path, *, progress: bool = True) -> list[Path]:
    """Fetches what the first layout needs for the splits; files that are there and intact stay.

    Where nothing comes, no empty folder is left behind.

    Args:
        dataset: one of `DATASETS`.
        splits: of it.
        folder: made if it is missing.
        progress: whether to show on a terminal how far it is.

    Raises:
        ConnectionError: If no home of a file gives it.
        ValueError: If what comes has another checksum than the published one.
        OSError: If it cannot be written.
    """
    files = [file for split in splits for file in dataset.layouts[0].parts[split].files]
    paths = []
    for file in dict.fromkeys(files):
        with leaving_no_empty_folders((folder / file.names[0]).parent):
            paths.append(_fetch_file(dataset, file, folder, progress))
    return paths


@contextlib.contextmanager
def leaving_no_empty_folders(folder: Path) -> Iterator[None]:
    """On failure, takes away the folder and those above it that were made in between, if nothing is in them."""
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


def _fetch_file(dataset: Dataset, file: File, folder: Path, progress: bool) -> Path:
    failures: dict[str, type[Exception]] = {}
    for url in file.urls:  # in turn: the next may have what this one has not
        try:
            return _retrieve(url, file, folder, progress)
        except (OSError, ValueError) as error:
            if _is_of_the_network(error):
                failures[f"{url} gives nothing ({_reason(error)})"] = ConnectionError
            elif isinstance(error, OSError):
                raise _not_written(error, folder) from error
            else:
                failures[f"{url} gives a file with another checksum than {file.checksum}"] = ValueError
    kind = ValueError if ValueError in failures.values() else ConnectionError
    raise kind(
        f"{dataset.title} could not be fetched: {'; '.join(failures)}. Try again later, or get {file.names[0]} by other "
        f"means (its home is {dataset.home}) and name the folder with `--data` or BURNISH_DATA."
    )


def _retrieve(url: str, file: File, folder: Path, progress: bool) -> Path:
    pooch = import_pooch()
    place = folder / file.names[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    with _bar(place.name, progress) as bar, _quiet(pooch.get_logger()):
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 20, timeout=_TIMEOUT)
        path = pooch.retrieve(url, file.checksum, place.name, place.parent, downloader=downloader)
    with contextlib.suppress(OSError):
        os.chmod(path, 0o644)  # pooch leaves it to its owner alone
    return Path(path)


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """It has a handler of its own, and would write to whatever standard error was when pooch was imported."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_of_the_network(error: Exception) -> bool:
    from requests.exceptions import RequestException

    return isinstance(error, RequestException | ConnectionError | TimeoutError)


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    return type(error).__name__ if response is None else f"status {response.status_code}"


def _not_written(error: OSError, folder: Path) -> OSError:
    remedy = "Free some space, or choose another disk" if error.errno in _NO_SPACE else "Choose a folder that can be written"
    message = f"`folder` must take what is fetched, got {str(folder)!r}: {error.strerror or error}. {remedy} with `--to`."
    return OSError(error.errno or errno.EIO, message)


class _Bar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, bar: Any, title: str) -> None:
        self.total = 0  # which pooch sets
        self._bar = bar
        self._task = bar.add_task(title, total=None)

    def update(self, count: int) -> None:
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _bar(title: str, show: bool) -> Iterator[_Bar | bool]:
    if not show or not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, title)
