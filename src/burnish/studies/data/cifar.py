"""CIFAR's two forms, records of bytes and Python's pickles, each as a folder or as an archive.

Pickles can run code when they are read. These are read by a reader that knows arrays and plain containers alone.
"""

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.studies.data.damage import DamagedFileError, check_labels, naming
from burnish.studies.data.images import Images

__all__ = ["read_archive", "read_folder"]

_NUM_PIXELS = 3 * 32 * 32
_MAX_PICKLE = 200_000_000  # bytes; the largest of CIFAR's has 155 million
_RECONSTRUCT = np.zeros(0).__reduce__()[0]  # what numpy's pickles call, under whatever name it has in this numpy
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


def read_folder(paths: Sequence[Path], *, num_classes: int, num_images: int) -> Images:
    """The batches of a split, one after the other: `.bin` files are records, others are pickles.

    Args:
        paths: the files, with equally many images each.
        num_classes: 10, or 100 for CIFAR-100, whose fine labels are taken.
        num_images: in all files together.
    """
    batches = []
    for path in paths:
        with naming(path):
            content = path.read_bytes()
        batches.append(_parse(path, path.name, content, num_classes, num_images // len(paths)))
    return _join(batches)


def read_archive(paths: Sequence[Path], *, members: tuple[str, ...], num_classes: int, num_images: int) -> Images:
    """As `read_folder`, of members of a tar archive; nothing is unpacked to disk."""
    path, found = paths[0], dict[str, bytes]()
    with naming(path), tarfile.open(path) as archive:
        for entry in archive:  # once through: going back would unpack it all again
            if entry.name in members and entry.isfile() and entry.size <= _MAX_PICKLE:
                file = archive.extractfile(entry)
                found[entry.name] = b"" if file is None else file.read()
        while archive.fileobj is not None and archive.fileobj.read(1 << 20):
            pass  # to the end, where gzip has its checksum
    missing = [member for member in members if member not in found]
    if missing:
        raise DamagedFileError(path, f"it holds no {', '.join(missing)}")
    count = num_images // len(members)
    return _join([_parse(path, member, found[member], num_classes, count) for member in members])


def _join(batches: list[tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]]) -> Images:
    pixels = np.concatenate([batch[0] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch[1] for batch in batches]).astype(np.int64)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))


def _parse(
    path: Path, name: str, content: bytes, num_classes: int, count: int
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Pixels (count, 3072) and labels of one batch, in whichever form its name says."""
    read = _parse_records if name.endswith(".bin") else _parse_pickle
    with naming(path):
        pixels, labels = read(path, content, num_classes, count)
    check_labels(path, labels, count, num_classes)
    return pixels, labels


def _parse_records(path: Path, content: bytes, num_classes: int, count: int) -> tuple[Any, Any]:
    num_labels = 1 if num_classes == 10 else 2  # CIFAR-100 has the coarse label before the fine one
    size = count * (num_labels + _NUM_PIXELS)
    if len(content) != size:
        raise DamagedFileError(path, f"{count} records take {size} bytes, there are {len(content)}")
    records = np.frombuffer(content, np.uint8).reshape(count, -1)
    return records[:, num_labels:], records[:, num_labels - 1]


def _parse_pickle(path: Path, content: bytes, num_classes: int, count: int) -> tuple[Any, Any]:
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()  # Python 2's strings
    except MemoryError:  # in a damaged file, sizes may be anything
        raise DamagedFileError(path, "it asks for more memory than there is") from None
    key = "labels" if num_classes == 10 else "fine_labels"
    if not isinstance(batch, dict):
        raise DamagedFileError(path, f"it holds a {type(batch).__name__}, not a dict")
    batch = {name.decode() if isinstance(name, bytes) else name: value for name, value in batch.items()}
    pixels, labels = batch.get("data"), np.asarray(batch.get(key))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, _NUM_PIXELS):
        what = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DamagedFileError(path, f"its data are {what}, not uint8 of shape ({count}, {_NUM_PIXELS})")
    return pixels, labels


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is neither array nor container")
        return _ALLOWED[module_name, global_name]
