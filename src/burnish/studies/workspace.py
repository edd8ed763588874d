"""The folder that studies work in: networks, features, draws and results of each seed, in files that are written at once.

Whatever is there is not made again, so a study that was interrupted goes on where it was, and studies share what they can.
A file says what it was made with; one that was made with anything else is refused, not taken for what is wanted. Several
studies may work in one folder at a time: what one of them is making, the others wait for.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.storage import read_file, replace_file, write_file

if sys.platform != "win32":
    import fcntl

__all__ = ["VERSION", "Workspace"]

VERSION = 2  # of records and of all files here but networks, which have that of burnish's files
_REMEDY = "Delete it, or work in another folder (`--work`)."


class Workspace:
    """Names and files below one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def network(self, dataset: str, kind: str, seed: int) -> Path:
        """The file of a trained network; the kind is its protocol, or the method that trained it."""
        return self._place("networks", f"{dataset}-{kind}-{seed}.safetensors")

    def checkpoint(self, name: str) -> Path:
        """The file in which chains keep their state."""
        return self._place("checkpoints", f"{name}.safetensors")

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Waits until no other process has the lock of this name; one that is killed has it no more."""
        if sys.platform == "win32":  # where studies side by side may do the same work twice
            yield
            return
        with open(self._place("locks", f"{name}.lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read_tensors(
        self, room: str, name: str, config: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What `write_tensors` was given, or None where there is no such file."""
        path = self._place(room, f"{name}.safetensors")
        if not path.exists():
            return None
        try:
            header, tensors = read_file(path)
        except ValueError as error:
            raise ValueError(f"{error} {_REMEDY}") from error
        _check(path, header, config)
        facts: dict[str, Any] = header["facts"]
        return facts, tensors

    def write_tensors(
        self, room: str, name: str, config: Mapping[str, Any], facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        """Tensors, what is known about them, and what they were made with."""
        header = {"study_version": VERSION, "config": _plain(config), "facts": _plain(facts)}
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_file(self._place(room, f"{name}.safetensors"), header, plain)

    def read_part(self, name: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """What `write_part` was given, or None where there is no such file."""
        path = self._place("parts", f"{name}.json")
        if not path.exists():
            return None
        try:
            part: dict[str, Any] = json.loads(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} must be a part of a study, got a damaged file ({error}). {_REMEDY}") from error
        _check(path, part, config)
        found: Any = part.get("part")
        if not isinstance(found, dict):
            raise ValueError(f"{path} must be a part of a study, got a file without results. {_REMEDY}")
        return dict(found)

    def write_part(self, name: str, config: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """One seed's results, in JSON's types."""
        content = {"study_version": VERSION, "config": dict(config), "part": dict(part)}
        text = json.dumps(content, indent=1, allow_nan=False)
        replace_file(self._place("parts", f"{name}.json"), f"{text}\n".encode())

    def _place(self, room: str, name: str) -> Path:
        folder = self.folder / room
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def _check(path: Path, header: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if not isinstance(header, Mapping) or header.get("study_version") != VERSION:
        version = header.get("study_version") if isinstance(header, Mapping) else None
        raise ValueError(f"{path} must be of version {VERSION}, got {version}. {_REMEDY}")
    wanted, found = _plain(config), header.get("config")
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} must say what it was made with, got {found!r}. {_REMEDY}")
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise ValueError(f"{path} must be made with `{name}` {wanted.get(name)}, got {found.get(name)}. {_REMEDY}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from a file: tuples have become lists."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    return plain
