"""One split of a data set in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_tensor

__all__ = ["Images"]


@dataclass(frozen=True, eq=False)
class Images:
    """Images as they are stored, and their classes where the set has any."""

    pixels: Tensor
    """Of uint8, (N, C, H, W)."""
    labels: Tensor | None
    """Of int64, (N,); None where a set has none."""

    def __post_init__(self) -> None:
        check_tensor("pixels", self.pixels)
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"`pixels` must be uint8 of shape (N, C, H, W), got {self.pixels.dtype} of shape "
                f"{tuple(self.pixels.shape)}. Convert and reshape them."
            )
        if self.labels is None:
            return
        check_tensor("labels", self.labels)
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"`labels` must be int64 of shape ({len(self.pixels)},), one for each image, got {self.labels.dtype} of "
                f"shape {tuple(self.labels.shape)}. Pass those of the same images, or None."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def stored(self) -> Tensor:
        """The pixels."""
        return self.pixels

    def take(self, index: Tensor) -> "Images":
        """Those of these rows."""
        return Images(self.pixels[index], None if self.labels is None else self.labels[index])

    def inputs(self) -> Tensor:
        """The images as float32 in [0, 1]."""
        return self.pixels.float().div_(255.0)
