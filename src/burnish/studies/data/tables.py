"""Tables of numbers with targets, the UCI sets of the study `tabular`: read from two packed files, and cut into splits."""

import errno
import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice
from burnish.noise import make_generator
from burnish.studies.data.damage import DamagedFileError, naming
from burnish.studies.data.places import look_at, search_folders

__all__ = ["CLASSIFICATION", "REGRESSION", "TABLES", "Rows", "Table", "describe_table", "load_table", "split_rows"]

CLASSIFICATION = (
    "pima",
    "ionosphere",
    "sonar",
    "german",
    "wheat",
    "glass",
    "banknote",
    "haberman",
    "iris",
    "wine",
    "breast_cancer",
)
REGRESSION = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red", "yacht")
TABLES = (*CLASSIFICATION, *REGRESSION)
NUM_SPLITS = 20
_FILES = {
    "uci_classification.npz": "0a9fadc9698d2e43870818f7eccdd868f12a715b8bdca58de1112f689747c5c9",
    "uci_regression.npz": "1283c9f472d02b8ba487d9ca36ed28f687a36fc1be9276452ee2c87f6c276db3",
}
_KEYS = {"wine_red": "wine"}  # both files have a `wine`
_REMEDY = "copy it anew"  # it has no public home to be fetched from
_TEST_SHARE = 0.1
_VALIDATION_SHARE, _MIN_VALIDATION = 0.2, 20

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """A data set, and which of its rows each split tests on."""

    name: str
    inputs: Tensor
    """(N, P) float64; a categorical column holds codes."""
    targets: Tensor
    """(N,): class indices, or numbers (float64)."""
    is_categorical: Tensor
    """(P,): whether a column's numbers are only names."""
    splits: Tensor
    """(number of splits, number of test rows): the rest of a split is for training."""
    num_classes: int | None = None
    """None for regression."""

    def __post_init__(self) -> None:
        count, problem = len(self.inputs), None
        if self.inputs.ndim != 2 or self.targets.shape != (count,):
            problem = f"inputs of shape {tuple(self.inputs.shape)} and targets of shape {tuple(self.targets.shape)}"
        elif self.is_categorical.shape != (self.inputs.shape[1],):
            problem = f"{len(self.is_categorical)} kinds of columns for {self.inputs.shape[1]} columns"
        elif not bool(torch.isfinite(self.inputs).all() and torch.isfinite(self.targets).all()):
            problem = "values that are not finite"
        elif self.splits.ndim != 2 or not 0 <= int(self.splits.min()) <= int(self.splits.max()) < count:
            problem = f"splits that are no rows of {count}"
        elif bool((self.splits.sort(1).values.diff(dim=1) == 0).any()):
            problem = "splits that test on a row twice"
        elif self.num_classes is not None and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < self.num_classes:
            problem = f"labels in {int(self.targets.min())}..{int(self.targets.max())}, not in 0..{self.num_classes - 1}"
        if problem is not None:
            raise ValueError(f"`table` {self.name} must hold one row for each target, all finite, got {problem}. Mend it.")

    def encoded(self) -> Tensor:
        """(N, P') inputs with a column of 0 and 1 for each value of a categorical column."""
        columns = []
        for column, categorical in zip(self.inputs.T, self.is_categorical.tolist(), strict=True):
            codes = torch.unique(column) if categorical else None
            columns.append(column.unsqueeze(1) if codes is None else (column.unsqueeze(1) == codes).to(column))
        return torch.cat(columns, dim=1)


@dataclass(frozen=True, eq=False)
class Rows:
    """Several splits of a table side by side, standardised: (splits, rows, columns) and (splits, rows)."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    target_std: Tensor
    """(splits,): what one unit of standardised targets is; ones for classes."""


def load_table(name: str, folder: str | os.PathLike[str] | None = None) -> Table:
    """One data set, checked.

    Args:
        name: one of `TABLES`.
        folder: an existing folder, or several separated as in PATH; without it, those of BURNISH_DATA and the cache.

    Raises:
        FileNotFoundError: If the packed file is not in the folders.
        ValueError: If it is damaged, or the table in it is not one.
    """
    check_choice("name", name, TABLES)
    path = _locate(name, folder)
    stamp = os.stat(path)
    arrays = _read(path, stamp.st_size, stamp.st_mtime_ns)
    return make_table(name, arrays, path)


def make_table(name: str, arrays: dict[str, Array], path: Path) -> Table:
    """The table of a name among the arrays of a packed file."""
    key, classes = _KEYS.get(name, name), name in CLASSIFICATION
    wanted = [f"{key}_X", f"{key}_y", f"{key}_iscat" if classes else f"{key}_test_idx"]
    missing = [entry for entry in wanted if entry not in arrays]
    if missing:
        raise DamagedFileError(path, f"it has no {', '.join(missing)}", _REMEDY)
    try:
        inputs, targets, third = (torch.as_tensor(arrays[entry]) for entry in wanted)
        if classes:
            splits = stratified_splits(targets, NUM_SPLITS, generator=make_generator(0))
            return Table(name, inputs, targets, third, splits, int(targets.max()) + 1)
        return Table(name, inputs, targets, torch.zeros(inputs.shape[-1], dtype=torch.bool), third.long())
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise DamagedFileError(path, str(error), _REMEDY) from error


def describe_table(name: str, folder: str | os.PathLike[str] | None = None) -> str:
    """What `load_table` reads, in words for a record."""
    table, file = load_table(name, folder), _file(name)
    kind = "regression" if table.num_classes is None else f"{table.num_classes} classes"
    return f"{len(table.inputs)} rows, {table.inputs.shape[1]} columns, {kind}, {len(table.splits)} splits, of {file}"


def stratified_splits(labels: Tensor, num_splits: int, *, generator: torch.Generator) -> Tensor:
    """(splits, test rows): a tenth of each class, rounded, but one row of each at least; ascending."""
    return torch.stack([_share_of_classes(labels, _TEST_SHARE, generator) for _ in range(num_splits)])


def split_rows(table: Table, num_splits: int | None = None) -> Rows:
    """Training, validation and test rows of the first splits, standardised by the training rows alone.

    A fifth of what is not for testing, and at least 20 rows, is for validation: neither networks nor means and standard
    deviations see it. A column that is constant on the training rows becomes zero.
    """
    count = len(table.splits) if num_splits is None else min(num_splits, len(table.splits))
    check_at_least("num_splits", count, 1)
    inputs, generator = table.encoded(), make_generator(1)
    parts = [_split(table, test, generator) for test in table.splits[:count]]
    stacked = [torch.stack(rows) for rows in zip(*parts, strict=True)]
    std, mean = torch.std_mean(inputs[stacked[0]], dim=1, correction=0, keepdim=True)
    scaled = [torch.where(std > 0.0, (inputs[rows] - mean) / std, 0.0).float() for rows in stacked]
    targets, target_std = [table.targets[rows] for rows in stacked], torch.ones(count, dtype=torch.float64)
    if table.num_classes is None:
        spread, centre = torch.std_mean(targets[0], dim=1, correction=0, keepdim=True)
        targets, target_std = [((part - centre) / spread).float() for part in targets], spread.squeeze(1)
    train, validation, test = zip(scaled, targets, strict=True)
    return Rows(train, validation, test, target_std)


def _split(table: Table, test: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows for training, for validation and for testing."""
    rest = _others(len(table.inputs), test)
    share = max(_VALIDATION_SHARE, _MIN_VALIDATION / len(rest))
    labels = torch.zeros(len(rest), dtype=torch.long) if table.num_classes is None else table.targets[rest]
    held_out = _share_of_classes(labels, share, generator)
    return rest[_others(len(rest), held_out)], rest[held_out], test


def _others(count: int, rows: Tensor) -> Tensor:
    kept = torch.ones(count, dtype=torch.bool)
    kept[rows] = False
    return kept.nonzero().squeeze(1)


def _share_of_classes(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    chosen = []
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().squeeze(1)
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[: max(1, round(share * len(rows)))]])
    return torch.cat(chosen).sort().values


def _file(name: str) -> str:
    return "uci_classification.npz" if name in CLASSIFICATION else "uci_regression.npz"


def _locate(name: str, folder: str | os.PathLike[str] | None) -> Path:
    folders, _ = search_folders(folder)
    for place in folders:
        if look_at(place / _file(name)) is not None:
            return place / _file(name)
    where = repr(os.pathsep.join(map(str, folders))) if folders else "none"
    message = (
        f"`folder` must hold {_file(name)}, which {name} is in, got {where}. It has no public home: name a folder that has "
        "it with `--data` or BURNISH_DATA, or pass `small=True` (`--small`) for made tables."
    )
    raise FileNotFoundError(errno.ENOENT, message)


@cache
def _read(path: Path, size: int, changed: int) -> dict[str, Array]:
    """All arrays of a packed file whose checksum is right; once, as long as it stays as it is."""
    with naming(path):
        if hashlib.sha256(path.read_bytes()).hexdigest() != _FILES[path.name]:
            raise DamagedFileError(path, "its checksum is not the known one", _REMEDY)
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
