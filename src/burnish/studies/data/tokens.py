"""Texts of one split as numbers of words."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_tensor

__all__ = ["Tokens"]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Words as numbers, and the classes of the texts that they are of."""

    words: Tensor
    """Of int64, (N, L); zeros behind the last word of a text."""
    labels: Tensor
    """Of int64, (N,)."""

    def __post_init__(self) -> None:
        for name, value, ndim in (("words", self.words, 2), ("labels", self.labels, 1)):
            check_tensor(name, value)
            if value.dtype != torch.int64 or value.ndim != ndim or len(value) != len(self.words):
                raise ValueError(
                    f"`{name}` must be int64 with {ndim} dimensions and {len(self.words)} rows, got {value.dtype} of shape "
                    f"{tuple(value.shape)}. Convert them."
                )

    def __len__(self) -> int:
        return len(self.words)

    @property
    def stored(self) -> Tensor:
        """The words."""
        return self.words

    def take(self, index: Tensor) -> "Tokens":
        """Those of these rows."""
        return Tokens(self.words[index], self.labels[index])
