"""Checked safetensors files, and fingerprints of the networks they belong to.

`write_file` puts a header and tensors into one file at once or not at all, `read_file` checks every byte of it, and
`fingerprint` says which network a file belongs to. No pickle anywhere: nothing in a file can run.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import reprlib
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from burnish._checks import check_memory
from burnish.encoding import MAX_NDIM, check_storable, damaged, plain_copy

__all__: list[str] = []

FORMAT_VERSION = 1

_FILE_DTYPES = ("F16", "BF16", "F32", "F64", "I64", "BOOL")
_MAX_HEADER = 100_000_000  # bytes, the limit of the safetensors library
_NOT_OURS = "it is not a burnish file. Pass a file that burnish saved."
_WRITE_REMEDIES = (
    dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "Create its folder first.")
    | {errno.EISDIR: "Add a file name."}
    | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a folder that you may write to.")
    | dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space, or choose another disk.")
)


def write_file(path: str | os.PathLike[str], header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a file that `read_file` reads; where anything goes wrong, what was at `path` before stays as it was.

    Args:
        path: A file in an existing folder; one that exists is replaced and keeps its permissions.
        header: Plain JSON, without the keys "format" and "version".
        tensors: Contiguous, on the CPU and without common memory, as `encode` gives them.

    Raises:
        OSError: If the file cannot be written there.
        TypeError: If a tensor has a dtype that is not stored, or the header is not plain JSON.
        ValueError: If a tensor is not finite.
    """
    replace_file(path, _serialise(header, tensors))


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuses a place that `replace_file` could not write to, before the work."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"`path` must be a path, got {type(path).__name__}. Pass the name of a file.")
    target = Path(os.path.realpath(Path(path)))
    try:
        _replaceable_mode(target)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise _not_writable(path, error) from error


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file in an existing folder: a reader sees what was there before, or all of the new, never half of it."""
    target = Path(os.path.realpath(Path(path)))  # through a link, as `open` writes
    temporary = target.parent / f".burnish-{secrets.token_hex(8)}.tmp"
    try:
        mode = _replaceable_mode(target)
        with open(temporary, "xb") as file:
            if mode is not None:
                os.chmod(temporary, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:  # an interrupt must not leave the temporary file either
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise _not_writable(path, error) from error


def _not_writable(path: str | os.PathLike[str], error: OSError) -> OSError:
    remedy = _WRITE_REMEDIES.get(error.errno or 0, "Choose another place.")
    message = f"`path` must be a file that can be written, got {os.fspath(path)!r}: {error.strerror or error}. {remedy}"
    return OSError(error.errno or errno.EIO, message)


def _replaceable_mode(target: Path) -> int | None:
    """Permissions of the file that will be replaced, None where there is none; refuses a folder or a device."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "it is a device, a pipe or a socket")
    return stat.S_IMODE(mode)


def _serialise(header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    for name, tensor in tensors.items():
        check_storable(name, tensor)
    full = {**header, "format": "burnish", "version": FORMAT_VERSION}
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), allow_nan=False)
    content = save(tensors, {"burnish": text, "checksum": _checksum(text, tensors)})
    if _parse(content)[0] != header:  # a tuple, a key that is no str, a key of ours: it would come back as something else
        raise TypeError("`header` must be plain JSON without the keys 'format' and 'version'. Pass what `encode` returns.")
    return content


def _label(name: str, tensor: Tensor) -> bytes:
    return (json.dumps([name, str(tensor.dtype), list(tensor.shape)]) + "\n").encode()


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode() + b"\n")
    for name in sorted(tensors):
        digest.update(_label(name, tensors[name]))
        digest.update(_raw(tensors[name]))
    return digest.hexdigest()


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors that `write_file` was given, after checking every byte.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a burnish file of this version, or is damaged.
    """
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(errno.ENOENT, f"`path` must be an existing file, got {str(source)!r}. Check the spelling.")
    if not source.is_file():  # opening a pipe would wait for ever
        raise ValueError(f"`path` must be a regular file, got {str(source)!r}. Pass a file that burnish saved.")
    # the file, its tensors, and what the search for NaN in them takes
    check_memory(f"reading {source}", 4 * source.stat().st_size, torch.device("cpu"), "use a machine with more memory.")
    content = source.read_bytes()
    try:
        header, text, checksum = _parse(content)
        return header, _load(content, text, checksum)
    except ValueError as error:
        raise ValueError(f"`path` must be a burnish file, got {str(source)!r}: {error}") from error


def _parse(content: bytes) -> tuple[dict[str, Any], str, str]:
    """Our header, its text and the checksum, once everything around the tensors' bytes is known to be right."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, _MAX_HEADER):
        raise damaged(f"a header of {size} bytes in a file of {len(content)}")
    entries = _parse_object(content[8 : 8 + size])
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or "burnish" not in metadata:
        raise ValueError(_NOT_OURS)
    if set(metadata) != {"burnish", "checksum"} or not all(isinstance(item, str) for item in metadata.values()):
        raise damaged(f"the metadata are {sorted(metadata)[:5]} where two strings, burnish and checksum, are expected")
    header = _parse_object(metadata["burnish"])
    if header.pop("format", None) != "burnish":
        raise ValueError(_NOT_OURS)
    version = header.pop("version", None)
    if type(version) is not int:
        raise damaged(f"the version is {version!r}")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"its format has version {version}, this burnish reads version {FORMAT_VERSION}. "
            + ("Upgrade burnish." if version > FORMAT_VERSION else "Save it again with this burnish.")
        )
    _check_entries(entries)
    return header, metadata["burnish"], metadata["checksum"]


def _parse_object(text: str | bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    def finite(number: str) -> float:  # given constants such as NaN, and numbers such as 1e999
        if not math.isfinite(float(number)):
            raise ValueError(f"{number[:20]} is not finite")
        return float(number)

    try:
        text = text if isinstance(text, str) else text.decode()  # json would guess UTF-16 and others
        value = json.loads(text, object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise damaged(f"the header is not a plain JSON object ({error})") from error
    return value


def _check_entries(entries: dict[str, Any]) -> None:
    """Refuses tensors that are not described exactly; that they fill the file without overlap, the library checks."""

    def counts(value: Any, most: int) -> bool:
        return isinstance(value, list) and len(value) <= most and all(type(item) is int and item >= 0 for item in value)

    for name, entry in entries.items():
        match entry:
            case {"dtype": dtype, "shape": shape, "data_offsets": offsets} if len(entry) == 3:
                if dtype in _FILE_DTYPES and counts(shape, MAX_NDIM) and counts(offsets, 2):
                    continue
        raise damaged(f"the tensor {name[:80]!r} is described as {reprlib.repr(entry)}")


def _load(content: bytes, text: str, checksum: str) -> dict[str, Tensor]:
    try:
        tensors = load(content)
        actual = _checksum(text, tensors)
    except Exception as error:  # the library's own, and torch's on shapes such as (0, 2^63)
        raise damaged(f"safetensors does not read it ({type(error).__name__}: {str(error)[:200]})") from error
    if actual != checksum:
        raise damaged("the checksum does not match the content")
    for name, tensor in tensors.items():
        check_storable(name, tensor)
    return tensors


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a network: its parameters and persistent buffers, as numbers and as SHA-256 in hex."""

    num_tensors: int
    num_values: int
    shapes: str
    """Of the names, dtypes and shapes."""
    values: str
    """Of the names, dtypes, shapes and bytes."""


def fingerprint(module: nn.Module) -> Fingerprint:
    """The fingerprint of a network, the same on every device, in every memory layout and mode."""
    state = {name: item for name, item in module.state_dict().items() if isinstance(item, Tensor)}
    shapes, values = hashlib.sha256(), hashlib.sha256()
    for name in sorted(state):
        label = _label(name, state[name])
        shapes.update(label)
        values.update(label)
        values.update(_raw(plain_copy(state[name])))
    num_values = sum(item.numel() for item in state.values())
    return Fingerprint(len(state), num_values, shapes.hexdigest(), values.hexdigest())


def check_fingerprint(stored: Fingerprint, module: nn.Module) -> None:
    """Refuses a network other than the one that `stored` was made of."""
    actual = fingerprint(module)
    if actual == stored:
        return
    if actual.shapes != stored.shapes:
        difference = (
            f"one with other names, shapes or dtypes ({actual.num_tensors} tensors with {actual.num_values} values, where "
            f"the posterior's had {stored.num_tensors} with {stored.num_values})"
        )
    else:
        difference = "the same architecture, other weights: retrained, or in another precision"
    raise ValueError(
        f"`network` must be the one this posterior was made for, got {difference}. "
        "Pass that network with the weights it had then, or refine this one."
    )
