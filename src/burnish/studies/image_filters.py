"""What distortions of images are made of: checks and chunks, kernels and filters, places between pixels, clouds.

Sums run in a fixed order, tap by tap over whole images, so that no bit depends on the number of threads.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_tensor

__all__: list[str] = []

_CHUNK = 2**20  # pixel values in work at a time; memory stays at some tens of MiB, however many images there are


def check_pixels(pixels: Tensor) -> None:
    """Refuses what is not a stack of images in bytes."""
    check_tensor("pixels", pixels)
    if pixels.ndim != 4 or pixels.numel() == 0 or pixels.shape[1] not in (1, 3):
        raise ValueError(
            f"`pixels` must have shape (N, C, H, W) with C of 1 or 3 and no side empty, got {tuple(pixels.shape)}. "
            "Put channels second with `.permute(0, 3, 1, 2)`, and one image into a stack with `.unsqueeze(0)`."
        )
    if pixels.dtype != torch.uint8:
        raise TypeError(
            f"`pixels` must be torch.uint8, values from 0 to 255, got {pixels.dtype}. "
            "Convert values from 0 to 1 with `(255 * pixels).round().byte()`."
        )
    if pixels.device.type != "cpu":
        raise TypeError(f"`pixels` must be on the CPU, where results are reproducible, got {pixels.device}. Use `.cpu()`.")


def chunk_length(pixels: Tensor) -> int:
    """How many images to work on at a time; it depends on their size alone."""
    return max(1, _CHUNK // pixels[0].numel())


def to_bytes(images: Tensor) -> Tensor:
    """Values from 0 to 1 as whole ones from 0 to 255, rounded to the nearest; what lies outside is cut off."""
    return (images.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


@dataclass(frozen=True)
class Draws:
    """Noise for `count` images: drawn for `length`, so that what an image gets does not depend on how many there are."""

    generator: torch.Generator
    length: int
    count: int

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.length, *shape, generator=self.generator)[: self.count]

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(self.length, *shape, generator=self.generator)[: self.count]


def gaussian_kernel(sigma: float, *, truncate: float = 4.0) -> Tensor:
    """Weights (2 r + 1,) of a Gaussian that is cut off at `truncate` standard deviations; they sum to one."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return torch.ones(1, dtype=torch.float64)
    place = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = (-0.5 * (place / sigma) ** 2).exp()
    return weights / weights.sum()


def disk_kernel(radius: float, sigma: float) -> Tensor:
    """Weights (2 r + 1, 2 r + 1) of the pixels within `radius`, softened by a Gaussian of three pixels; they sum to one."""
    reach = math.ceil(radius) + 1
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (place**2 + place[:, None] ** 2 <= radius**2).double()[None, None]
    soft = (-0.5 * (torch.arange(-1, 2, dtype=torch.float64) / sigma) ** 2).exp()
    kernel = blur(disk, soft / soft.sum())[0, 0]
    return kernel / kernel.sum()


def correlate(images: Tensor, kernel: Tensor) -> Tensor:
    """Weighted sums over the neighbourhood of each pixel; beyond the edges the pixels on them go on.

    Args:
        images: (N, C, H, W).
        kernel: with an odd number of rows and of columns.
    """
    up, left = (side // 2 for side in kernel.shape)
    return correlate_inside(torch.nn.functional.pad(images, (left, left, up, up), mode="replicate"), kernel)


def correlate_inside(images: Tensor, kernel: Tensor) -> Tensor:
    """Weighted sums where the kernel lies within the images: each side gets shorter by that of the kernel less one."""
    height, width = (side - taps + 1 for side, taps in zip(images.shape[-2:], kernel.shape, strict=True))
    total = images.new_zeros(*images.shape[:-2], height, width)
    for row, column in kernel.nonzero().tolist():
        total += images[..., row : row + height, column : column + width] * float(kernel[row, column])
    return total


def blur(images: Tensor, kernel: Tensor) -> Tensor:
    """The same weights (2 r + 1,) along both axes."""
    return correlate(correlate(images, kernel[:, None]), kernel[None, :])


def pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """For each image and place the pixel at the whole `rows` and `columns` (N, H, W)."""
    index = (rows * images.shape[-1] + columns).flatten(1).unsqueeze(1)
    return images.flatten(2).gather(2, index.expand(-1, images.shape[1], -1)).view(images.shape)


def smear(images: Tensor, degrees: Tensor, radius: float, sigma: float) -> Tensor:
    """A trail of 2 radius + 1 pixels, each image in its own direction, that fades like one side of a Gaussian."""
    height, width = images.shape[-2:]
    weights = (-0.5 * (torch.arange(2 * int(radius) + 1, dtype=torch.float64) / sigma) ** 2).exp()
    angle = torch.deg2rad(degrees.double()).view(-1, 1)
    total = torch.zeros_like(images)
    for step, weight in enumerate((weights / weights.sum()).tolist()):
        rows = (torch.arange(height) + (step * angle.sin()).round().long()).clamp(0, height - 1)
        columns = (torch.arange(width) + (step * angle.cos()).round().long()).clamp(0, width - 1)
        total += pick(images, rows[:, :, None], columns[:, None, :]) * weight
    return total


def sample_at(images: Tensor, rows: Tensor, columns: Tensor, *, outside: str = "reflection") -> Tensor:
    """Values between pixels by bilinear interpolation.

    Args:
        images: (N, C, H, W).
        rows: where to look, in pixels from the centre of the first one: (N, H', W'), or (H', W') for all images alike.
        columns: likewise.
        outside: what lies beyond the edges, "reflection" or "zeros".
    """
    height, width = images.shape[-2:]
    places = torch.stack([(2.0 * columns + 1.0) / width - 1.0, (2.0 * rows + 1.0) / height - 1.0], dim=-1).to(images)
    grid = places.expand(len(images), *places.shape[-3:])
    return torch.nn.functional.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def zoom(images: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged to their size."""
    rows, columns = ((torch.arange(side) - (side - 1) / 2) / factor + (side - 1) / 2 for side in images.shape[-2:])
    return sample_at(images, *torch.meshgrid(rows, columns, indexing="ij"))


def plasma(draws: Draws, height: int, width: int, decay: float) -> Tensor:
    """Clouds (N, 1, H, W) from 0 to 1 by the diamond-square method on a torus.

    Points halfway between known ones get their mean and noise, whose size falls by `decay` squared at each halving.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    cloud = torch.zeros(draws.count, side, side)

    def noise(like: Tensor) -> Tensor:
        return draws.uniform(-1.0, 1.0, *like.shape[1:])

    step, size = side, 1.0
    while step >= 2:
        half = step // 2
        known = cloud[:, ::step, ::step]
        below = known + known.roll(-1, 1)
        cloud[:, half::step, half::step] = (below + below.roll(-1, 2)) / 4.0 + size * noise(known)
        centre = cloud[:, half::step, half::step]
        beside = known + known.roll(-1, 2) + centre + centre.roll(1, 1)
        cloud[:, ::step, half::step] = beside / 4.0 + size * noise(known)
        cloud[:, half::step, ::step] = (below + centre + centre.roll(1, 2)) / 4.0 + size * noise(known)
        step, size = half, size / decay**2
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return ((cloud - low) / (high - low))[:, None, :height, :width]
