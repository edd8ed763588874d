"""The form of a network's inputs: what is remembered of the data so that a graph can be made without them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__: list[str] = []


@dataclass(frozen=True)
class InputForm:
    """Shape and dtype of one input point, without the point: what an example can be made of."""

    names: tuple[str, ...] | None
    """Keys of a dictionary; None where the input is one tensor."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor, without the dimension of the batch."""
    dtypes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuses what does not describe tensors, as only a damaged file has it."""
        names = ("",) if self.names is None else self.names
        if not len(names) == len(self.shapes) == len(self.dtypes):
            raise ValueError("`names`, `shapes` and `dtypes` must be of one length.")
        if not all(isinstance(getattr(torch, dtype, None), torch.dtype) for dtype in self.dtypes):
            raise ValueError(f"`dtypes` must be names of dtypes, got {self.dtypes}.")

    @classmethod
    def of(cls, x: Any) -> "InputForm | None":
        """The form of a batch that is a tensor or a dictionary of tensors; None for anything else."""
        parts = dict(x) if isinstance(x, Mapping) else {"": x}
        if not all(isinstance(part, Tensor) and part.ndim > 0 for part in parts.values()):
            return None
        names = tuple(map(str, parts)) if isinstance(x, Mapping) else None
        dtypes = tuple(str(part.dtype).removeprefix("torch.") for part in parts.values())
        return cls(names, tuple(tuple(part.shape[1:]) for part in parts.values()), dtypes)

    def example(self, floating: torch.dtype | None) -> Any:
        """A batch of two points of this form, all zeros; those that are not integers in a given precision, if any."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        tensors = [torch.zeros(2, *shape, dtype=getattr(torch, dtype)) for shape, dtype in pairs]
        tensors = [tensor.to(floating) if tensor.is_floating_point() else tensor for tensor in tensors]
        return tensors[0] if self.names is None else dict(zip(self.names, tensors, strict=True))
