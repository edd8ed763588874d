"""SVHN's cropped digits as MATLAB files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from burnish.studies.data.damage import DamagedFileError, check_labels, naming
from burnish.studies.data.images import Images

__all__ = ["read_svhn"]


def read_svhn(paths: Sequence[Path], *, num_images: int) -> Images:
    """Digits 0 to 9; the file has 10 for zero."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    path = paths[0]
    with naming(path), open(path, "rb") as file:
        arrays = loadmat(file, variable_names=["X", "y"])
        pixels, labels = arrays["X"], arrays["y"].reshape(-1)
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, num_images):
        problem = f"X is {pixels.dtype} of shape {pixels.shape}, not uint8 of shape (32, 32, 3, {num_images})"
        raise DamagedFileError(path, problem)
    if labels.dtype.kind not in "iu" or not 1 <= int(labels.min(initial=1)) <= int(labels.max(initial=1)) <= 10:
        raise DamagedFileError(path, "y is not made of integers in 1..10")
    labels = labels.astype(np.int64) % 10
    check_labels(path, labels, num_images, num_classes=10)
    return Images(torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))), torch.from_numpy(labels))
