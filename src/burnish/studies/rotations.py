"""Images turned about their centre."""

import math
from numbers import Real

import torch
from torch import Tensor

from burnish.studies.image_filters import check_pixels, chunk_length, sample_at, to_bytes

__all__ = ["rotate"]


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """The images turned counter-clockwise about their centre: bilinear, black where nothing was, the shape kept.

    Multiples of 90 degrees only move pixels of square images, as `torch.rot90` does; multiples of 180 those of all images.

    Args:
        pixels: uint8 (N, C, H, W) on the CPU, with C of 1 or 3.
        degrees: any angle.
    """
    check_pixels(pixels)
    if isinstance(degrees, bool) or not isinstance(degrees, Real):
        raise TypeError(f"`degrees` must be a number, got {type(degrees).__name__}. Pass one angle for all images.")
    if not math.isfinite(degrees):
        raise ValueError(f"`degrees` must be finite, got {degrees:g}. Pass an angle such as 30.0.")
    angle = math.radians(float(degrees) % 360.0)
    height, width = pixels.shape[-2:]
    down = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    right = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    rows = math.cos(angle) * down + math.sin(angle) * right + (height - 1) / 2
    columns = math.cos(angle) * right - math.sin(angle) * down + (width - 1) / 2
    parts = torch.split(pixels, chunk_length(pixels))
    # Rounding to whole values takes away what sines of quarter turns lack to 0 and 1.
    return torch.cat([to_bytes(sample_at(part.float() / 255.0, rows, columns, outside="zeros")) for part in parts])
