"""Sheets: many 32x32 images as tiles of one lossless picture, a hundred to a row, with labels in an npz file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.studies.data.damage import DamagedFileError, check_labels, naming
from burnish.studies.data.images import Images

__all__ = ["read_labelled_sheets", "read_sheets"]

_TILE, _PER_ROW = 32, 100


def read_sheets(paths: Sequence[Path], *, num_images: int) -> Images:
    """The tiles of all sheets, row by row, without labels; each sheet has equally many."""
    count = num_images // len(paths)
    return Images(torch.from_numpy(np.concatenate([_read_sheet(path, count) for path in paths])), None)


def read_labelled_sheets(
    paths: Sequence[Path], *, key: str, num_images: int, num_classes: int, num_labels: int | None = None
) -> Images:
    """The tiles of all files but the last, and the first labels under `key` in the last.

    Args:
        paths: the sheets, then the npz file.
        key: of the labels in the npz file.
        num_images: in all sheets together.
        num_classes: more than any label.
        num_labels: how many the npz file has, where it is not one for each image.
    """
    path = paths[-1]
    with naming(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        if key not in arrays:
            raise DamagedFileError(path, f"it holds {', '.join(arrays)}, but no {key}")
        labels = arrays[key]
    check_labels(path, labels, num_images if num_labels is None else num_labels, num_classes)
    pixels = read_sheets(paths[:-1], num_images=num_images).pixels
    return Images(pixels, torch.from_numpy(labels[:num_images].astype(np.int64)))


def _read_sheet(path: Path, count: int) -> "np.ndarray[Any, Any]":
    from PIL import Image

    size = (_TILE * _PER_ROW, _TILE * -(-count // _PER_ROW))
    with naming(path), Image.open(path) as sheet:
        if sheet.size != size or sheet.mode != "RGB":  # before it is unpacked, whatever size it claims
            raise DamagedFileError(path, f"it is {sheet.size} in {sheet.mode}, not {size} in RGB")
        picture = np.asarray(sheet)
    tiles = picture.reshape(-1, _TILE, _PER_ROW, _TILE, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, _TILE, _TILE)[:count]
