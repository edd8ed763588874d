"""One error for a file that is there but cannot be right, and one for a file that the system does not let be read."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__: list[str] = []


class DamagedFileError(ValueError):
    """A file of a data set is not what it should be; the message names it, what is wrong and what to do."""

    def __init__(self, path: Path, problem: str, remedy: str = "copy it anew or fetch it with `burnish data fetch`") -> None:
        super().__init__(f"{path} is damaged, or not what its name says: {problem}. Delete it, and {remedy}.")
        self.path = path
        self.problem = problem


class UnreadableFileError(OSError):
    """The system does not give a file, which says nothing about its content; the message names it, why and what to do."""

    def __init__(self, path: Path, error: OSError) -> None:
        forbidden = error.errno in (errno.EACCES, errno.EPERM)
        remedy = "Give yourself the permission to read it, or name" if forbidden else "Check the disk, or name"
        super().__init__(error.errno, f"{path} cannot be read ({error.strerror}). {remedy} a folder with another copy.")
        self.path = path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file in whatever the libraries say of its content, and the system of the file."""
    try:
        yield
    except (DamagedFileError, UnreadableFileError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UnreadableFileError(path, error) from error
        raise DamagedFileError(path, f"{type(error).__name__}, {str(error)[:200] or 'without a word'}") from error


def check_labels(path: Path, labels: "np.ndarray[Any, Any]", num_images: int, num_classes: int) -> None:
    """Refuses labels that are not one integer in 0..num_classes - 1 for each image."""
    if labels.dtype.kind not in "iu" or labels.shape != (num_images,):
        raise DamagedFileError(path, f"labels are {labels.dtype} of shape {labels.shape}, not {num_images} integers")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DamagedFileError(path, f"labels lie in {labels.min()}..{labels.max()}, not in 0..{num_classes - 1}")
