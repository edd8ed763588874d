"""Training of the studies' networks: several seeds side by side, kept in files, and resumed where they were interrupted."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish._checks import check_memory
from burnish.progress import Stages
from burnish.storage import read_file, write_file
from burnish.studies.records import origin
from burnish.studies.training_steps import Recipe, Run

__all__ = ["Recipe", "Trained", "read_trained", "train_networks"]


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training left: the networks that were kept, and how it went."""

    states: tuple[dict[str, Tensor], ...]
    losses: tuple[float, ...]
    """Mean training loss of every epoch."""
    seconds: float
    """Of the training, of which others may have had their share: see `together`."""
    together: int
    """How many networks were trained side by side."""
    origin: dict[str, Any]


def train_networks(
    make: Callable[[int], nn.Module],
    pixels: Tensor,
    labels: Tensor,
    recipe: Recipe,
    places: dict[int, Path],
    *,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
) -> dict[int, str]:
    """Trains a network for each seed that has no file yet; returns what went wrong, by seed.

    On a GPU all networks take a step at a time side by side, in mixed precision. A seed whose loss leaves the finite
    numbers is given up, the others go on.

    Args:
        make: a network for a seed, on the CPU.
        pixels: (N, C, H, W) of uint8, on the device to train on.
        labels: (N,), there too.
        recipe: how.
        places: the file of each seed; its folder exists. Checkpoints lie beside it until it is written.
        checkpoint_seconds: at most so much is lost when interrupted, and an epoch.
        progress: whether to show a bar on a terminal.
    """
    waiting = {seed: place for seed, place in places.items() if not place.exists()}
    copies = 2 * len(waiting) if recipe.augment else 1
    check_memory("training", copies * pixels.numel(), pixels.device, "train fewer seeds at a time.")
    lines = {seed: _Line(make, pixels, labels, recipe, seed, place, len(waiting)) for seed, place in waiting.items()}
    failures: dict[int, str] = {}
    with Stages("training", show=progress) as stages, stages.stage("epochs", recipe.num_epochs):
        for epoch in stages.track(range(recipe.num_epochs)):
            running = [line for line in lines.values() if line.epoch == epoch]
            _run_epoch(running)
            for line in running:
                failure = line.end_epoch(checkpoint_seconds)
                if failure is not None:
                    failures[line.seed] = failure
                    del lines[line.seed]
    return failures


def read_trained(path: str | os.PathLike[str], recipe: Recipe) -> Trained:
    """What `train_networks` has written.

    Raises:
        ValueError: where the file is damaged, or of another recipe.
    """
    header, tensors = read_file(path)
    _check_recipe(path, header, recipe, "trained")
    count = header["kept"]
    states: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for key, value in tensors.items():
        number, name = key.split(" ", 1)
        states[int(number)][name] = value
    return Trained(tuple(states), tuple(header["losses"]), header["seconds"], header["together"], header["origin"])


def _run_epoch(lines: Sequence["_Line"]) -> None:
    """An epoch of all of them, a step of each at a time."""
    for line in lines:
        line.run.begin(line.epoch)
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for _ in range(max((line.run.num_steps for line in lines), default=0)):
            for line in lines:
                line.run.step()


class _Line:
    """A seed on its way from its checkpoint to its file."""

    def __init__(
        self,
        make: Callable[[int], nn.Module],
        pixels: Tensor,
        labels: Tensor,
        recipe: Recipe,
        seed: int,
        place: Path,
        together: int,
    ) -> None:
        self.seed, self.epoch = seed, 0
        self.run = Run(make(seed), pixels, labels, recipe, seed)
        self._recipe, self._place, self._checkpoint = recipe, place, place.with_name(f"{place.name}.checkpoint")
        self._kept: list[dict[str, Tensor]] = []
        self._losses: list[float] = []
        self._seconds, self._together = 0.0, together
        if self._checkpoint.exists():
            self._resume()
        self._began = self._saved = time.perf_counter()

    def end_epoch(self, checkpoint_seconds: float) -> str | None:
        """Keeps what is to be kept; says what went wrong, if anything did."""
        loss = self.run.finish()
        if not torch.isfinite(torch.tensor(loss)):
            return f"the loss left the finite numbers in epoch {self.epoch + 1}; use a smaller `learning_rate`."
        self._losses.append(loss)
        if self._recipe.keeps(self.epoch):
            self._kept.append(self.run.weights())
        self.epoch += 1
        if self.epoch == self._recipe.num_epochs:
            self._write(self._place, "trained", {})
            self._checkpoint.unlink(missing_ok=True)
        elif time.perf_counter() - self._saved >= checkpoint_seconds:
            state = {f"state {name}": value.detach().cpu().clone() for name, value in self.run.state().items()}
            self._write(self._checkpoint, "training", state)
            self._saved = time.perf_counter()
        return None

    def _write(self, path: Path, kind: str, state: dict[str, Tensor]) -> None:
        tensors = {f"{number} {name}": value for number, kept in enumerate(self._kept) for name, value in kept.items()}
        header = {
            kind: asdict(self._recipe),
            "seed": self.seed,
            "epoch": self.epoch,
            "kept": len(self._kept),
            "losses": self._losses,
            "seconds": self._seconds + time.perf_counter() - self._began,
            "together": self._together,
            "origin": origin(self.run.device),
        }
        write_file(path, header, tensors | state)

    def _resume(self) -> None:
        header, tensors = read_file(self._checkpoint)
        _check_recipe(self._checkpoint, header, self._recipe, "training")
        if header["seed"] != self.seed:
            raise ValueError(f"{self._checkpoint} must be of seed {self.seed}, got {header['seed']}. Delete it.")
        for name, value in self.run.state().items():
            value.detach().copy_(tensors.pop(f"state {name}"))
        self._kept = [{} for _ in range(header["kept"])]
        for key, value in tensors.items():
            number, name = key.split(" ", 1)
            self._kept[int(number)][name] = value
        self.epoch, self._losses, self._seconds = header["epoch"], header["losses"], header["seconds"]


def _check_recipe(path: str | os.PathLike[str], header: dict[str, Any], recipe: Recipe, kind: str) -> None:
    """Refuses a file that is no training's, or that of another recipe."""
    if kind not in header:
        raise ValueError(f"{os.fspath(path)} must be a file of networks, got another of burnish. Delete it to train anew.")
    for name, value in asdict(recipe).items():
        if header[kind].get(name) != value:
            raise ValueError(
                f"{os.fspath(path)} must be of networks with `{name}` {value}, got {header[kind].get(name)}. "
                "Delete it to train anew, or use another folder."
            )
