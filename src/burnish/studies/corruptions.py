"""Corrupted images in the manner of CIFAR-10-C: noise, blur, weather and digital artefacts at five levels.

The kinds and their strengths are those of Hendrycks and Dietterich (2019), but the pixels are not those of the published
CIFAR-10-C: noise is drawn anew, kernels, borders and interpolation are our own, and values are rounded, not cut, to bytes.
Of the nineteen published kinds, frost is missing because it needs photographs, and spatter for the filters it takes.

Results depend on images, kind, level and seed alone: not on the number of threads, and for one image not on those beside it.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice, check_tensor
from burnish.studies import distortions
from burnish.studies.image_filters import Draws, check_pixels, chunk_length, to_bytes

__all__ = ["KINDS", "LEVELS", "STRENGTHS", "corrupt", "corrupted_mix"]

LEVELS = (1, 2, 3, 4, 5)

STRENGTHS: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    "zoom_blur": ((7,), (12,), (16,), (21,), (26,)),
    "snow": (
        (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "fog": ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,)),
    "saturate": ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
}
"""The published strengths of each kind from level 1 to level 5; the functions in `distortions` say what the numbers are.

Pixels need not move further from the original as the level rises: "saturate" takes colour away at levels 1 and 2 and adds
some from 3 on; "elastic_transform" moves the image as a whole ever less, and its parts against each other ever more;
"glass_blur" blurs more from 1 to 3 and from 4 to 5, which takes back some of what moving pixels does; and "motion_blur" is
the same at 3 and 4 but for the directions, since there is no weight in what its trail is longer at 4.
"""

KINDS = tuple(STRENGTHS)


def corrupt(pixels: Tensor, kind: str, level: int, *, seed: int = 0) -> Tensor:
    """The images, each corrupted in one way; the noise on an image depends on its place in the stack.

    Args:
        pixels: uint8 (N, C, H, W) on the CPU, with C of 1 or 3; "saturate" needs 3.
        kind: one of `KINDS`.
        level: one of `LEVELS`.
        seed: of the noise, together with kind and level.
    """
    check_pixels(pixels)
    check_choice("kind", kind, KINDS)
    _check_level(level)
    if kind not in _kinds_for(pixels):
        raise ValueError(
            f"`pixels` must have 3 channels for kind {kind!r}, got {pixels.shape[1]}. "
            "Choose another kind, or repeat the channel with `.expand(-1, 3, -1, -1)`."
        )
    generator = _make_generator(seed, kind, level)
    distort: Callable[..., Tensor] = getattr(distortions, kind)
    strength, length = STRENGTHS[kind][level - 1], chunk_length(pixels)
    parts = []
    for part in torch.split(pixels.contiguous(), length):
        draws = Draws(generator, length, len(part))
        parts.append(to_bytes(distort(part.float() / 255.0, draws, *strength)))
    return torch.cat(parts)


def corrupted_mix(pixels: Tensor, labels: Tensor, level: int, *, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points drawn from all kinds of corruption of all images at one level, uniformly and with replacement.

    With the same seed, every level has the same images under the same kinds, so levels can be compared point by point. An
    image that is drawn twice with the same kind looks the same both times. Without colour, "saturate" is left out.

    Args:
        pixels: uint8 (N, C, H, W) on the CPU, with C of 1 or 3.
        labels: (N, ...), a row for each image.
        level: one of `LEVELS`.
        count: how many points to draw.
        seed: of the choice, and together with kind and level of the noise.

    Returns:
        Pixels (count, C, H, W), labels (count, ...), and places in `KINDS` (count,).
    """
    check_pixels(pixels)
    check_tensor("labels", labels)
    if labels.ndim == 0 or len(labels) != len(pixels):
        raise ValueError(
            f"`labels` must have {len(pixels)} rows, one for each image, got shape {tuple(labels.shape)}. "
            "Pass images and labels of the same points."
        )
    _check_level(level)
    check_at_least("count", count, 1, "Pass the number of points to draw.")
    generator = _make_generator(seed, "mix")
    usable = torch.tensor([KINDS.index(kind) for kind in _kinds_for(pixels)])
    kinds = usable[torch.randint(len(usable), (count,), generator=generator)]
    images = torch.randint(len(pixels), (count,), generator=generator)
    mixed = pixels.new_empty(count, *pixels.shape[1:])
    for kind in torch.unique(kinds).tolist():
        drawn, places = torch.unique(images[kinds == kind], return_inverse=True)
        mixed[kinds == kind] = corrupt(pixels[drawn], KINDS[kind], level, seed=seed)[places]
    return mixed, labels[images], kinds


def _check_level(level: int) -> None:
    check_at_least("level", level, 1, "Levels go from 1, the mildest, to 5.")
    if level not in LEVELS:
        raise ValueError(f"`level` must lie in 1..{LEVELS[-1]}, got {level}. Pass 1 for the mildest, 5 for the strongest.")


def _kinds_for(pixels: Tensor) -> tuple[str, ...]:
    """The kinds that mean something for so many channels."""
    return KINDS if pixels.shape[1] == 3 else tuple(kind for kind in KINDS if kind != "saturate")


def _make_generator(seed: int, purpose: str, *levels: int) -> torch.Generator:
    check_at_least("seed", seed, 0)
    digest = hashlib.sha256(" ".join([str(int(seed)), purpose, *(str(int(level)) for level in levels)]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
