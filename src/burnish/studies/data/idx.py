"""The IDX files of MNIST and its relatives, plain or gzipped, and EMNIST's archive of them."""

import gzip
import hashlib
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.studies.data.damage import DamagedFileError, check_labels, naming
from burnish.studies.data.images import Images

__all__ = ["read_emnist", "read_emnist_archive", "read_idx", "read_mnist"]

_SIDE = 28
# of the pixels of a copy of EMNIST's mnist test split that lies upright
_UPRIGHT = "efd14bfde67ec4070f5029aee24a04852f60631bc9138ca9d6d73ca79cbc3617"


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
    """As `read_mnist`, and upright: EMNIST's own files have rows and columns exchanged, one known copy has not."""
    images = read_mnist(paths, num_images=num_images)
    if hashlib.sha256(images.pixels.numpy().data).hexdigest() == _UPRIGHT:
        return images
    return _upright(images)


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
    return _upright(_images(*arrays))


def _parse(path: Path, file: io.BufferedIOBase, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    magic = bytes([0, 0, 8, len(shape)])  # bytes, in so many dimensions
    start = file.read(4)
    if start != magic:
        raise DamagedFileError(path, f"it begins with {start.hex() or 'nothing'}, not with IDX's {magic.hex()}")
    stated = tuple(int(size) for size in np.frombuffer(file.read(4 * len(shape)), ">u4"))
    if stated != shape:
        raise DamagedFileError(path, f"its shape is {stated}, not {shape}")
    size = math.prod(shape)
    content = file.read(size + 1)  # to the end, where gzip has its checksum, but not beyond reason
    if len(content) != size:
        raise DamagedFileError(path, f"its data are {'longer' if len(content) > size else 'shorter'} than {size} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _images(pixels: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]") -> Images:
    return Images(torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _upright(images: Images) -> Images:
    return Images(images.pixels.transpose(2, 3).contiguous(), images.labels)
