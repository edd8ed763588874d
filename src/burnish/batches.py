"""Data as users have it, loaders, dictionaries, tensors, arrays, turned into batches of one form."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from burnish._checks import check_at_least, check_finite, check_positive

__all__ = ["Batch"]

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
WEIGHT_KEYS = ("weights", "weight", "sample_weight")


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a head, their targets and, where wanted, a positive weight for each point.

    A weight multiplies the log-likelihood of its point: weight 2 counts a point twice.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "weights"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not (name == "weights" and value is None):
                raise TypeError(
                    f"`{name}` must be a torch.Tensor, got {type(value).__name__}. Convert it with `torch.as_tensor`."
                )
        if self.inputs.ndim < 2 or self.inputs.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"`inputs` must be float32 or float64 features of shape (N, P), got {self.inputs.dtype} of shape "
                f"{tuple(self.inputs.shape)}. Pass one row per point."
            )
        if len(self.inputs) == 0:
            raise ValueError("`inputs` must hold at least one point, got none. Check that the loader is not empty.")
        if self.targets.ndim == 0 or len(self.targets) != len(self.inputs):
            raise ValueError(
                f"`targets` must have one row for each of the {len(self.inputs)} inputs, got shape "
                f"{tuple(self.targets.shape)}. Check that both come from the same split."
            )
        check_finite("inputs", self.inputs, "Check the network's activations on these points, or drop the rows.")
        if self.weights is not None:
            if tuple(self.weights.shape) != (len(self.inputs),):
                raise ValueError(
                    f"`weights` must have shape ({len(self.inputs)},), one for each point, got {tuple(self.weights.shape)}."
                )
            check_positive("weights", self.weights, "Leave out points that should not count.")
            object.__setattr__(self, "weights", self.weights.to(self.inputs))
        if self.targets.device != self.inputs.device:
            object.__setattr__(self, "targets", self.targets.to(self.inputs.device))

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """The same points elsewhere, or with floating-point values in another precision."""
        targets = self.targets.to(device, dtype if self.targets.is_floating_point() else None)
        weights = None if self.weights is None else self.weights.to(device, dtype)
        return Batch(self.inputs.to(device, dtype), targets, weights)

    def subset(self, index: Tensor | slice) -> "Batch":
        """The points at `index`."""
        weights = None if self.weights is None else self.weights[index]
        return Batch(self.inputs[index], self.targets[index], weights)


def point_weights(batch: Batch) -> Tensor:
    """The weight of every point (N,), one where none are given."""
    return batch.inputs.new_ones(len(batch)) if batch.weights is None else batch.weights


def mean_and_error(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """The mean over points (N,) by their weights, and its standard error."""
    mass = weights.sum()
    mean = weights @ values / mass
    return float(mean), float((weights * (values - mean)).norm() / mass)


def read_batches(name: str, data: Any, batch_size: int) -> Iterator[tuple[Any, ...]]:
    """Tuples `(x, targets)` or `(x, targets, weights)` of a data set in any of the forms that are taken.

    A tuple of tensors or arrays and a dictionary of them are whole data sets, cut into batches here. A `Dataset` gets a
    loader. Anything else is iterated over, and every batch may be a tuple, a list or a dictionary. In a dictionary the
    targets are found under one of `TARGET_KEYS`, weights under one of `WEIGHT_KEYS`; the rest is the input.

    Args:
        name: of the argument, for messages.
        data: the data set.
        batch_size: rows of a batch, where the data come whole or as a `Dataset`.
    """
    check_at_least("batch_size", batch_size, 1)
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=batch_size)
    if isinstance(data, tuple | Mapping):
        columns = _columns(name, data)
        count = _check_lengths(name, columns)
        for start in range(0, count, batch_size):
            yield tuple(_rows(column, slice(start, start + batch_size)) for column in columns)
        return
    if isinstance(data, str | bytes | Tensor) or not isinstance(data, Iterable):
        raise TypeError(
            f"`{name}` must be a loader, a data set or a tuple (x, targets), got {type(data).__name__}. "
            "Pass a DataLoader, or the inputs together with their targets."
        )
    for batch in data:
        columns = _columns(name, batch if isinstance(batch, Mapping) else tuple(batch) if _is_sequence(batch) else (batch,))
        _check_lengths(name, columns)
        yield columns


def to_device(x: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Inputs on a device: tensors, arrays, and dictionaries, lists and tuples of them.

    Arrays of real numbers become `dtype`: NumPy's float64 is a default, not a choice. Tensors keep theirs.
    """
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, Mapping):
        return {key: to_device(value, device, dtype) for key, value in x.items()}
    if _is_structure(x):
        return type(x)(to_device(value, device, dtype) for value in x)
    if not _is_array(x):
        return x
    tensor = torch.as_tensor(x)
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def num_rows(x: Any) -> int:
    """Number of points of an input: the length of its first tensor."""
    if isinstance(x, Mapping):
        return num_rows(next(iter(x.values())))
    return num_rows(x[0]) if _is_structure(x) else len(x)


def split_rows(x: Any, batch_size: int) -> Iterator[Any]:
    """An input cut into pieces of at most `batch_size` points."""
    for start in range(0, num_rows(x), batch_size):
        yield _rows(x, slice(start, start + batch_size))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _is_structure(value: Any) -> bool:
    """A list or tuple of columns, as against one column that is a list, of texts for instance."""
    return (
        _is_sequence(value)
        and not hasattr(value, "_fields")
        and len(value) > 0
        and all(isinstance(part, Tensor | Mapping) or _is_array(part) for part in value)
    )


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def _rows(column: Any, rows: slice) -> Any:
    if isinstance(column, Mapping):
        return {key: _rows(value, rows) for key, value in column.items()}
    if _is_structure(column):
        return type(column)(_rows(value, rows) for value in column)
    return column[rows]


def _columns(name: str, batch: tuple[Any, ...] | Mapping[Any, Any]) -> tuple[Any, ...]:
    """Input, targets and perhaps weights of one batch, or of all data."""
    if isinstance(batch, Mapping):
        targets = [key for key in TARGET_KEYS if key in batch]
        weights = [key for key in WEIGHT_KEYS if key in batch]
        inputs = {key: value for key, value in batch.items() if key not in targets + weights}
        if len(targets) != 1 or len(weights) > 1 or not inputs:
            raise ValueError(
                f"`{name}` must give dictionaries with inputs and targets under one of {', '.join(map(repr, TARGET_KEYS))}, "
                f"got the keys {', '.join(map(repr, batch))}. Rename the key of the targets."
            )
        batch = (inputs, batch[targets[0]], *(batch[key] for key in weights))
    if len(batch) not in (2, 3):
        raise ValueError(
            f"`{name}` must give (x, targets) or (x, targets, weights), got {len(batch)} column(s). "
            "Wrap the loader so that each batch is such a tuple, or a dictionary."
        )
    try:
        return (batch[0], *(torch.as_tensor(column) for column in batch[1:]))
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = ", ".join(type(column).__name__ for column in batch[1:])
        raise TypeError(
            f"`{name}` must give targets that are numbers, got {kinds}: {error}. Encode labels as 0, 1, and so on."
        ) from None


def _check_lengths(name: str, columns: tuple[Any, ...]) -> int:
    """Number of points, the same in every column."""
    x, *rest = columns
    if any(part.ndim == 0 for part in rest):
        raise ValueError(f"`{name}` must give batches, got one point alone. Pass a DataLoader with a `batch_size`.")
    parts = [*(x.values() if isinstance(x, Mapping) else x if _is_structure(x) else [x]), *rest]
    lengths = [len(part) for part in parts if hasattr(part, "__len__")]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"`{name}` must have columns of one length, got {lengths}. "
            "Check that inputs and targets come from the same split."
        )
    return len(rest[0])


def num_points(data: tuple[Any, ...] | Mapping[Any, Any]) -> int:
    """Number of points of a data set that comes whole."""
    return num_rows(data if isinstance(data, Mapping) else data[0])


def num_batches(data: Any, batch_size: int) -> int | None:
    """How many batches `read_batches` will give, where that is known."""
    if isinstance(data, tuple | Mapping):
        return -(-num_points(data) // batch_size)
    if not hasattr(data, "__len__"):
        return None
    try:
        count = len(data)
    except TypeError:  # a loader of a stream has the method, but no length
        return None
    return -(-count // batch_size) if isinstance(data, Dataset) else count
