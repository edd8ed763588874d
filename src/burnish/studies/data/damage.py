"""One error for a file that is there but cannot be right."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__: list[str] = []


class DamagedFileError(ValueError):
    """A file of a data set is not what it should be; the message names it, what is wrong and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path} is damaged, or not what its name says: {problem}. "
            "Delete it, and copy it anew or fetch it with `burnish data fetch`."
        )
        self.path = path
        self.problem = problem


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file in whatever the libraries say of its content; what the system says of it passes."""
    try:
        yield
    except (DamagedFileError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFileError(path, f"{type(error).__name__}, {str(error)[:200] or 'without a word'}") from error


def check_labels(path: Path, labels: "np.ndarray[Any, Any]", num_images: int, num_classes: int) -> None:
    """Refuses labels that are not one integer in 0..num_classes - 1 for each image."""
    if labels.dtype.kind not in "iu" or labels.shape != (num_images,):
        raise DamagedFileError(path, f"labels are {labels.dtype} of shape {labels.shape}, not {num_images} integers")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DamagedFileError(path, f"labels lie in {labels.min()}..{labels.max()}, not in 0..{num_classes - 1}")
