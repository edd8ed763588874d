"""The kinds of corruption, one function each, by name: of images (N, C, H, W) from 0 to 1, draws, and the strength.

Results may leave the range from 0 to 1; the caller cuts them off. Kinds without chance leave the draws alone.
"""

import io

import torch
from torch import Tensor

from burnish.studies.image_filters import (
    Draws,
    blur,
    correlate,
    correlate_inside,
    disk_kernel,
    gaussian_kernel,
    pick,
    plasma,
    sample_at,
    smear,
    to_bytes,
    zoom,
)

__all__: list[str] = []


def gaussian_noise(images: Tensor, draws: Draws, std: float) -> Tensor:
    """Noise of standard deviation `std` on every value."""
    return images + std * draws.normal(*images.shape[1:])


def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """Poisson counts, `photons` of them for white. A pixel has one of 256 rates: their laws are tabled and inverted."""
    counts = torch.arange(int(photons), dtype=torch.float64)  # more than white is white
    rates = photons * torch.arange(256, dtype=torch.float64)[:, None] / 255.0
    # Table v lies between v and v + 1, so that all of them together are sorted.
    table = torch.special.gammaincc(counts + 1.0, rates) + torch.arange(256)[:, None]
    value = (255.0 * images).round().double()
    below = torch.searchsorted(table.flatten(), value + draws.uniform(0.0, 1.0, *images.shape[1:]), right=True)
    return (below - value * len(counts)).float() / photons


def impulse_noise(images: Tensor, draws: Draws, share: float) -> Tensor:
    """So large a share of the values becomes black or white, as many the one as the other."""
    place = draws.uniform(0.0, 1.0, *images.shape[1:])
    return torch.where(place < share, (place < share / 2).float(), images)


def speckle_noise(images: Tensor, draws: Draws, std: float) -> Tensor:
    """Noise in proportion to the value."""
    return images + std * images * draws.normal(*images.shape[1:])


def gaussian_blur(images: Tensor, draws: Draws, sigma: float) -> Tensor:
    """A Gaussian of standard deviation `sigma`, in pixels."""
    return blur(images, gaussian_kernel(sigma))


def defocus_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """A disk of so many pixels, its edge softened by a Gaussian of standard deviation `sigma`."""
    return correlate(images, disk_kernel(radius, sigma))


def glass_blur(images: Tensor, draws: Draws, sigma: float, reach: float, passes: float) -> Tensor:
    """In each pass a pixel becomes a random one of those up to `reach` above and to the left; blurred before and after."""
    height, width = images.shape[-2:]
    images = blur(images, gaussian_kernel(sigma))
    for _ in range(int(passes)):
        up, left = (draws.uniform(0.0, reach + 1.0, height, width).long() for _ in range(2))
        rows = (torch.arange(height)[:, None] - up).clamp(min=0)
        columns = (torch.arange(width) - left).clamp(min=0)
        images = pick(images, rows, columns)
    return blur(images, gaussian_kernel(sigma))


def motion_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """A trail of 2 radius + 1 pixels that fades like one side of a Gaussian, within 45 degrees of the horizontal."""
    return smear(images, draws.uniform(-45.0, 45.0), radius, sigma)


def zoom_blur(images: Tensor, draws: Draws, num_steps: float) -> Tensor:
    """The mean of the image and of `num_steps` that are ever larger, each by a hundredth of its first size."""
    total = images.clone()
    for step in range(int(num_steps)):
        total += zoom(images, 1.0 + step / 100.0)
    return total / (num_steps + 1.0)


def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    std: float,
    factor: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Tensor:
    """Flakes are where noise, enlarged by `factor`, passes the threshold; they leave trails, and the image turns paler.

    The trails lie within 45 degrees of the vertical, each with its mirror image. A share `keep` of the image stays.
    """
    flakes = zoom(mean + std * draws.normal(1, *images.shape[-2:]), factor)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0.0, 1.0)
    flakes = smear(flakes, draws.uniform(-135.0, -45.0), radius, sigma)
    red, green, blue = images[:, :1], images[:, [len(images[0]) // 2]], images[:, -1:]  # all the same without colour
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    pale = keep * images + (1.0 - keep) * torch.maximum(images, 1.5 * grey + 0.5)
    return pale + flakes + flakes.flip(2, 3)


def fog(images: Tensor, draws: Draws, strength: float, decay: float) -> Tensor:
    """Clouds are added, `strength` where they are densest, and all is scaled back to the brightest value of before."""
    clouds = strength * plasma(draws, images.shape[-2], images.shape[-1], decay)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + clouds) * brightest / (brightest + strength)


def brightness(images: Tensor, draws: Draws, rise: float) -> Tensor:
    """The largest channel rises, the others in proportion: hue and saturation stay. Black becomes grey."""
    value = images.amax(1, keepdim=True)
    risen = (value + rise).clamp(max=1.0)
    return torch.where(value > 0.0, images * (risen / value), risen)


def contrast(images: Tensor, draws: Draws, factor: float) -> Tensor:
    """Distances from the mean of each channel shrink by `factor`."""
    # Whole numbers in double precision add up to the same in any order, hence with any number of threads.
    mean = ((255.0 * images).round().mean((2, 3), keepdim=True, dtype=torch.float64) / 255.0).float()
    return (images - mean) * factor + mean


def saturate(images: Tensor, draws: Draws, factor: float, shift: float) -> Tensor:
    """Saturation times `factor` plus `shift`; hue and the largest channel stay. Grey, which has no hue, counts as red."""
    value = images.amax(1, keepdim=True)
    gap = value - images
    widest = gap.amax(1, keepdim=True)
    red = torch.tensor([0.0, 1.0, 1.0]).view(3, 1, 1)
    hue = torch.where(widest > 0.0, gap / widest, red)
    saturation = torch.where(widest > 0.0, widest / value, 0.0)
    return value - value * hue * (factor * saturation + shift).clamp(0.0, 1.0)


def elastic_transform(images: Tensor, draws: Draws, reach: float, sigma: float, jitter: float) -> Tensor:
    """Three points move by up to `jitter` along each axis, and the plane with them; then each by its own smooth noise.

    That noise is uniform up to `reach`, smoothed by a Gaussian of standard deviation `sigma`. All three are fractions of the
    shorter side.
    """
    height, width = images.shape[-2:]
    side = min(height, width)
    arm = max(1, side // 3)
    corner, along, across = draws.uniform(-jitter * side, jitter * side, 3, 2, 1, 1).unbind(1)
    right = (torch.arange(width) - width // 2 + arm) / (2 * arm)
    up = (height // 2 + arm - torch.arange(height)[:, None]) / (2 * arm)
    shift = corner + right * (along - corner) + up * (across - corner)
    if reach > 0.0:
        kernel = gaussian_kernel(sigma * side, truncate=3.0)
        margin = len(kernel) - 1  # drawn beyond the image, so that smoothing needs no borders
        field = draws.uniform(-reach * side, reach * side, 2, height + margin, width + margin)
        shift = shift + correlate_inside(correlate_inside(field, kernel[:, None]), kernel[None, :])
    return sample_at(images, torch.arange(height)[:, None] + shift[:, 0], torch.arange(width) + shift[:, 1])


def pixelate(images: Tensor, draws: Draws, share: float) -> Tensor:
    """Each pixel becomes the mean of its cell; cells are fewer than pixels along each axis by the factor `share`."""
    for axis in (2, 3):
        side = images.shape[axis]
        num_cells = max(1, int(share * side))
        cell = ((torch.arange(side) + 0.5) * num_cells / side).long()
        sizes = cell.bincount(minlength=num_cells).view(-1, *[1] * (3 - axis))
        shape = [*images.shape[:axis], num_cells, *images.shape[axis + 1 :]]
        images = (torch.zeros(shape).index_add_(axis, cell, images) / sizes).index_select(axis, cell)
    return images


def jpeg_compression(images: Tensor, draws: Draws, quality: float) -> Tensor:
    """To JPEG with colours at half the resolution, Pillow's default, and back."""
    import numpy as np
    from PIL import Image

    results = []
    for array in to_bytes(images).permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        picture = Image.fromarray(array if array.shape[-1] == 3 else array[..., 0])
        picture.save(file, "JPEG", quality=int(quality))
        results.append(np.asarray(Image.open(file)).reshape(array.shape))
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2) / 255.0
