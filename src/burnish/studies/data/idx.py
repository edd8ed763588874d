"""The IDX files of MNIST and its relatives, plain or gzipped, and EMNIST's archive of them."""

import gzip
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.studies.data.damage import DamagedFileError, check_labels, naming
from burnish.studies.data.images import Images

__all__ = ["read_emnist", "read_emnist_archive", "read_idx", "read_mnist"]

_SIDE = 28
_MOST = 0.7  # of all digits: 0.89 of EMNIST's are taller than wide, 0.11 with rows and columns exchanged


def read_idx(path: Path, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    """The array of bytes in an IDX file, which must have the shape that is expected."""
    with naming(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        return _parse(path, file, shape)


def read_mnist(paths: Sequence[Path], *, num_images: int, num_classes: int = 10) -> Images:
    """Grey images of 28x28 in the first file, and their labels in the second."""
    pixels = read_idx(paths[0], (num_images, _SIDE, _SIDE))
    labels = read_idx(paths[1], (num_images,))
    check_labels(paths[1], labels, num_images, num_classes)
    return _images(pixels, labels)


def read_emnist(paths: Sequence[Path], *, num_images: int) -> Images:
    """As `read_mnist`, and upright: EMNIST's own files have rows and columns exchanged, copies may not.

    Most handwritten digits are taller than wide, which a damaged image or a few cannot change.
    """
    images = read_mnist(paths, num_images=num_images)
    share = _share_taller_than_wide(images)
    if 1.0 - _MOST < share < _MOST:
        problem = f"{share:.0%} of its images are taller than wide, where digits have most of them so, or few on their side"
        raise DamagedFileError(paths[0], problem)
    return images if share >= _MOST else _exchange(images)


def read_emnist_archive(paths: Sequence[Path], *, members: tuple[str, str], num_images: int) -> Images:
    """The gzipped images and labels that are `members` of EMNIST's zip archive, upright."""
    path = paths[0]
    shapes: tuple[tuple[int, ...], ...] = ((num_images, _SIDE, _SIDE), (num_images,))
    arrays = []
    with naming(path), zipfile.ZipFile(path) as archive:
        for member, shape in zip(members, shapes, strict=True):
            with archive.open(member) as packed, gzip.open(packed) as file:
                arrays.append(_parse(path, file, shape))
    check_labels(path, arrays[1], num_images, num_classes=10)
    return _exchange(_images(*arrays))


def _parse(path: Path, file: io.BufferedIOBase, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    magic = bytes([0, 0, 8, len(shape)])  # bytes, in so many dimensions
    start = file.read(4)
    if start != magic:
        raise DamagedFileError(path, f"it begins with {start.hex() or 'nothing'}, not with IDX's {magic.hex()}")
    header = file.read(4 * len(shape))
    if len(header) < 4 * len(shape):
        raise DamagedFileError(path, f"it ends after {4 + len(header)} of the {4 + 4 * len(shape)} bytes of IDX's header")
    stated = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    if stated != shape:
        raise DamagedFileError(path, f"its shape is {stated}, not {shape}")
    size = math.prod(shape)
    content = file.read(size + 1)  # to the end, where gzip has its checksum, but not beyond reason
    if len(content) != size:
        raise DamagedFileError(path, f"its data are {'longer' if len(content) > size else 'shorter'} than {size} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _images(pixels: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]") -> Images:
    return Images(torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _share_taller_than_wide(images: Images) -> float:
    """Of the images: where rows spread further about their centre of ink than columns do."""
    ink = images.pixels[:, 0].double()
    down, across = (_spread(ink.sum(side)) for side in (2, 1))
    return float((down > across).double().mean())


def _spread(ink: Tensor) -> Tensor:
    """The variance of the place under weights (N, 28)."""
    weights = ink / ink.sum(1, keepdim=True).clamp_min(1.0)
    place = torch.arange(ink.shape[1], dtype=ink.dtype)
    return weights @ place.square() - (weights @ place).square()


def _exchange(images: Images) -> Images:
    """With rows and columns exchanged."""
    return Images(images.pixels.transpose(2, 3).contiguous(), images.labels)
