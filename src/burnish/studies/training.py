"""Training of the studies' networks: several seeds side by side, kept in files, and resumed where they were interrupted."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish._checks import check_memory
from burnish.encoding import plain_copy
from burnish.progress import Stages
from burnish.storage import check_place, read_file, write_file
from burnish.studies.data.images import Images
from burnish.studies.data.tokens import Tokens
from burnish.studies.recipes import Recipe
from burnish.studies.records import origin
from burnish.studies.training_steps import Run

__all__ = ["Trained", "read_trained", "train_networks"]


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training left: the networks that were kept, and how it went."""

    states: tuple[dict[str, Tensor], ...]
    losses: tuple[float, ...]
    """Mean training loss of every epoch."""
    seconds: float
    """Of all its epochs, which others may have had their share of: see `together`."""
    together: int
    """How many networks were trained side by side, at the end."""
    origin: dict[str, Any]
    path: str
    """Of the file."""

    def load(self, network: nn.Module, kept: int = -1) -> None:
        """Gives a network the weights of one that was kept.

        Raises:
            ValueError: where they are not those of such a network.
        """
        state = self.states[kept]
        found, own = ({name: value.shape for name, value in each.items()} for each in (state, network.state_dict()))
        if found != own:
            raise ValueError(
                f"{self.path} must have the weights of the network that is to take them, got those of another. Delete it to "
                "train anew, or use another folder."
            )
        network.load_state_dict(state)

    @property
    def digest(self) -> str:
        """Of everything that was kept: another training, another digest."""
        found = hashlib.sha256()
        for state in self.states:
            for name, value in sorted(state.items()):
                found.update(name.encode())
                found.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]


def train_networks(
    make: Callable[[int], nn.Module],
    pixels: Tensor,
    labels: Tensor,
    recipe: Recipe,
    places: Mapping[int, Path],
    *,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
) -> dict[int, str]:
    """Trains a network for each seed that has no file yet; returns what went wrong, by seed.

    On a GPU all networks take a step at a time side by side. A seed whose loss or weights leave the finite numbers is given
    up, the others go on.

    Args:
        make: a network for a seed, on the CPU.
        pixels: (N, C, H, W) of uint8, or words (N, L) of int64, on the device to train on.
        labels: (N,), there too.
        recipe: how.
        places: the file of each seed; its folder exists. Checkpoints lie beside it until it is written.
        checkpoint_seconds: at most so much is lost when interrupted, and an epoch.
        progress: whether to show a bar on a terminal.

    Raises:
        OSError: where a file cannot be written; what has been written before stays.
        ValueError: where a checkpoint is damaged, or of another training.
    """
    waiting = _unfinished(places)
    if not waiting:
        return {}
    _check_data(pixels, labels)
    networks = {seed: make(seed) for seed in waiting}
    _check_memory(networks[min(waiting)], pixels, recipe, len(waiting))
    runs = {seed: Run(network, pixels, labels, recipe, seed) for seed, network in networks.items()}
    lines = {seed: _Line(run, waiting[seed], len(waiting)) for seed, run in runs.items()}
    failures: dict[int, str] = {}
    with Stages("training", show=progress) as stages, stages.stage("epochs", recipe.num_epochs):
        for epoch in stages.track(range(recipe.num_epochs)):
            running = [line for line in lines.values() if line.epoch == epoch]
            losses, seconds = _run_epoch([line.run for line in running], epoch)
            for line, loss in zip(running, losses, strict=True):
                failure = line.end_epoch(loss, seconds, checkpoint_seconds)
                if failure is not None:
                    failures[line.run.seed] = failure
                    del lines[line.run.seed]
    return failures


def read_trained(path: str | os.PathLike[str], recipe: Recipe, *, seed: int | None = None) -> Trained:
    """What `train_networks` has written.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where the file is damaged, or of another recipe, or of another seed than one that is given.
    """
    header, tensors = _read(path, "trained", recipe, seed)
    states = _grouped(tensors, header["kept"])
    return Trained(states, tuple(header["losses"]), header["seconds"], header["together"], header["origin"], os.fspath(path))


def _run_epoch(runs: Sequence[Run], epoch: int) -> tuple[list[float], float]:
    """An epoch of all of them, a step of each at a time: their mean losses, and the seconds it took."""
    began = time.perf_counter()
    for run in runs:
        run.begin(epoch)
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for _ in range(max((run.num_steps for run in runs), default=0)):
            for run in runs:
                run.step()
    losses = [run.finish() for run in runs]
    return losses, time.perf_counter() - began


class _Line:
    """A seed on its way from its checkpoint to its file."""

    def __init__(self, run: Run, place: Path, together: int) -> None:
        self.run, self.epoch = run, 0
        self._place, self._checkpoint = place, _checkpoint_of(place)
        self._kept: list[dict[str, Tensor]] = []
        self._losses: list[float] = []
        self._seconds, self._together = 0.0, together
        if self._checkpoint.exists():
            self._resume()
        self._saved = time.perf_counter()

    def end_epoch(self, loss: float, seconds: float, checkpoint_seconds: float) -> str | None:
        """Keeps what is to be kept; says what went wrong, if anything did."""
        self.epoch += 1
        if not (math.isfinite(loss) and self.run.is_finite()):
            return f"loss or weights left the finite numbers in epoch {self.epoch}; use a smaller `learning_rate`."
        self._losses.append(loss)
        self._seconds += seconds
        recipe = self.run.recipe
        if recipe.keeps(self.epoch - 1):
            self._kept.append(self.run.weights())
        if self.epoch == recipe.num_epochs:
            self._write(self._place, "trained", {})
            self._checkpoint.unlink(missing_ok=True)
        elif time.perf_counter() - self._saved >= checkpoint_seconds:
            self._write(self._checkpoint, "training", self.run.state())
            self._saved = time.perf_counter()
        return None

    def _write(self, path: Path, kind: str, state: dict[str, Tensor]) -> None:
        tensors = {f"{number} {name}": value for number, kept in enumerate(self._kept) for name, value in kept.items()}
        header = {
            kind: asdict(self.run.recipe),
            "seed": self.run.seed,
            "epoch": self.epoch,
            "kept": len(self._kept),
            "losses": self._losses,
            "seconds": self._seconds,
            "together": self._together,
            "bfloat16": self.run.mixed,
            "origin": origin(self.run.device),
        }
        write_file(path, header, tensors | {f"state {name}": plain_copy(value) for name, value in state.items()})

    def _resume(self) -> None:
        path, run = self._checkpoint, self.run
        header, tensors = _read(path, "training", run.recipe, run.seed)
        own = {f"state {name}": value for name, value in run.state().items()}
        found = {name: tensors.pop(name) for name in list(tensors) if name.startswith("state ")}
        shapes, expected = ({name: value.shape for name, value in group.items()} for group in (found, own))
        if shapes != expected or int(found["state clock"]) != header["epoch"] * run.num_steps:
            raise ValueError(
                f"{path} must be of the same network and of as many points, got others. Delete it to train anew, or use "
                "another folder."
            )
        if header.get("bfloat16", run.mixed) != run.mixed:
            was, now = ("bfloat16" if mixed else "float32" for mixed in (not run.mixed, run.mixed))
            raise ValueError(
                f"{path} must go on in {now}, which is what this device computes in, got one in {was}. Go on where it was "
                "begun, or delete it to train anew."
            )
        for name, value in own.items():
            value.detach().copy_(found[name])
        self._kept = list(_grouped(tensors, header["kept"]))
        self.epoch, self._losses, self._seconds = header["epoch"], header["losses"], header["seconds"]


def _unfinished(places: Mapping[int, Path]) -> dict[int, Path]:
    """The seeds without a file, whose files can be written."""
    if len(set(places.values())) < len(places):
        raise ValueError(f"`places` must be a file for each seed, got one for two of {sorted(places)}. Name them by seed.")
    waiting = {seed: place for seed, place in places.items() if not place.exists()}
    for seed, place in places.items():
        if seed in waiting:
            check_place(place)
        else:  # whoever was killed after the file was written has left its checkpoint
            _checkpoint_of(place).unlink(missing_ok=True)
    return waiting


def _checkpoint_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.checkpoint")


def _check_data(pixels: Tensor, labels: Tensor) -> None:
    (Tokens if pixels.dtype == torch.int64 else Images)(pixels, labels)  # refuses other types and shapes
    if labels.device != pixels.device:
        raise ValueError(f"`labels` must be on {pixels.device} like `pixels`, got {labels.device}. Move them there.")


def _check_memory(network: nn.Module, pixels: Tensor, recipe: Recipe, count: int) -> None:
    """Refuses so many such networks where images and parameters do not fit; what lies between layers is not counted."""
    # a parameter has its gradient and at most two moments, and a copy of each while a graph is captured
    size = sum(32 * parameter.numel() for parameter in network.parameters()) * (1 if recipe.initial_std is None else 2)
    needed = count * size
    if recipe.augment:  # images of its own, and for a while larger ones and those cut from them, which a GPU's streams keep
        needed += (count + 3 * (count if pixels.is_cuda else 1)) * pixels.numel()
    check_memory(f"training {count} networks", needed, pixels.device, "train fewer seeds at a time.")


def _grouped(tensors: dict[str, Tensor], count: int) -> tuple[dict[str, Tensor], ...]:
    """The networks that were kept, from tensors named by number and name."""
    states: tuple[dict[str, Tensor], ...] = tuple({} for _ in range(count))
    for key, value in tensors.items():
        number, name = key.split(" ", 1)
        states[int(number)][name] = value
    return states


def _read(
    path: str | os.PathLike[str], kind: str, recipe: Recipe, seed: int | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A file of that kind, recipe and seed; refuses any other."""
    name = os.fspath(path)
    try:
        header, tensors = read_file(path)
    except ValueError as error:
        raise ValueError(f"{error} Delete it to train anew.") from error
    if not isinstance(header.get(kind), dict):
        other = "a checkpoint" if "training" in header else "another file of burnish"
        raise ValueError(f"{name} must be a file of networks, got {other}. Delete it to train anew, or pass another.")
    # what a file of before does not name was as it is by default
    found = {**asdict(Recipe()), **header[kind], "seed": header.get("seed")}
    for key, value in (asdict(recipe) | ({} if seed is None else {"seed": seed})).items():
        if found.get(key) != value:
            raise ValueError(
                f"{name} must be of networks with `{key}` {value}, got {found.get(key)}. Delete it to train anew, or use "
                "another folder."
            )
    return header, tensors
