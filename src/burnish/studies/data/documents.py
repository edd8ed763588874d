"""One split of a set of texts in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_tensor

__all__ = ["Documents"]


@dataclass(frozen=True, eq=False)
class Documents:
    """Texts as they are stored, and their classes."""

    texts: tuple[str, ...]
    labels: Tensor
    """Of int64, (N,)."""

    def __post_init__(self) -> None:
        check_tensor("labels", self.labels)
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.texts),):
            raise ValueError(
                f"`labels` must be int64 of shape ({len(self.texts)},), one for each text, got {self.labels.dtype} of shape "
                f"{tuple(self.labels.shape)}. Pass those of the same texts."
            )

    def __len__(self) -> int:
        return len(self.texts)
