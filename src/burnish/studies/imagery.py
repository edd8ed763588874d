"""Images of 8 x 8 pixels: scikit-learn's digits, and what is none: noise, digits on their side, letters drawn as they were.

All are float32 of shape (N, 1, 8, 8) with values between 0 (dark) and 1 (bright strokes).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least
from burnish.batches import Batch
from burnish.noise import make_generator

__all__ = ["LETTERS", "SIZES", "Split", "letter_images", "load_split", "noise_images", "outside_images"]

SIZES = NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 897, 400, 500
SIDE = 8
_BLOCK = 4  # the digits are counts of set pixels in blocks of 4 x 4, and so are the letters
_CANVAS = 4 * SIDE * _BLOCK  # letters are drawn four times as fine as the bitmap that is counted

LETTERS = "AEFHKMNPRVWXY"
"""Capitals that no digit is written like. Left out: B (an 8), C and G (6), D, O, Q and U (0), I, J and L (1), S (5), T (7)
and Z (2)."""


@dataclass(frozen=True, eq=False)
class Split:
    """Images (N, 1, 8, 8) with values between 0 and 1, and their labels, in three disjoint parts."""

    train: Batch
    validation: Batch
    test: Batch


def load_split(seed: int = 0, *, sizes: tuple[int, int, int] = SIZES) -> Split:
    """scikit-learn's 1797 digits, shuffled by the seed and cut into training, validation and test.

    Args:
        seed: of the shuffle.
        sizes: of the three parts.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    for size in sizes:
        check_at_least("sizes", size, 1)
    if sum(sizes) > len(images):
        raise ValueError(f"`sizes` must sum to at most {len(images)}, the number of digits, got {sum(sizes)}. Pass fewer.")
    order = torch.randperm(len(images), generator=make_generator(seed))[: sum(sizes)]
    return Split(*(Batch(images[part], labels[part]) for part in torch.split(order, list(sizes))))


def outside_images(digits: Batch, num_images: int, *, seed: int) -> dict[str, Tensor]:
    """Images that are no upright digits, by name; a zero on its side is still a zero, so no zeros are turned.

    Args:
        digits: images (N, 1, 8, 8) and labels; these are turned counter-clockwise by 90 degrees.
        num_images: of noise, and of letters.
        seed: of both.
    """
    generator = make_generator(seed)
    return {
        "uniform noise": noise_images(num_images, generator=generator),
        "digits on their side": torch.rot90(digits.inputs[digits.targets != 0], dims=(-2, -1)),
        "letters": letter_images(num_images, generator=generator),
    }


def noise_images(num_images: int, *, generator: torch.Generator) -> Tensor:
    """Every pixel uniform between 0 and 1, independent of the others."""
    check_at_least("num_images", num_images, 1)
    return torch.rand(num_images, 1, SIDE, SIDE, generator=generator)


def letter_images(num_images: int, *, generator: torch.Generator) -> Tensor:
    """Capital letters that do not look like digits, each with its own size, weight, slant and place.

    Drawn with Pillow's own font, so no font file is needed. Like the digits, a bitmap of 32 x 32 pixels becomes an image
    of 8 x 8 by counting the set pixels of each block, and the strokes fill the height of the image.
    """
    check_at_least("num_images", num_images, 1)
    which = torch.randint(len(LETTERS), (num_images,), generator=generator)
    jitter = 2.0 * torch.rand(num_images, 5, generator=generator) - 1.0
    images = [_letter(LETTERS[int(i)], row.tolist()) for i, row in zip(which, jitter, strict=True)]
    return torch.stack(images).unsqueeze(1)


def _letter(letter: str, jitter: list[float]) -> Tensor:
    """One letter; `jitter` holds width, height, weight, slant and horizontal place, each between -1 and 1."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    width, height, weight, slant, place = jitter
    font = ImageFont.load_default(size=_CANVAS)
    stroke = round(_CANVAS * (0.035 + 0.015 * weight))
    left, top, right, bottom = (
        round(edge) for edge in ImageDraw.Draw(Image.new("L", (1, 1))).textbbox((0, 0), letter, font, stroke_width=stroke)
    )
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), letter, fill=255, font=font, stroke_width=stroke)
    size = (round(_CANVAS * (0.76 + 0.07 * width)), round(_CANVAS * (0.96 + 0.04 * height)))
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    spare = _CANVAS - size[0]
    canvas.paste(
        glyph.resize(size, Image.Resampling.LANCZOS), (round(spare * (0.5 + 0.3 * place)), (_CANVAS - size[1]) // 2)
    )
    shear = 0.12 * slant
    canvas = canvas.transform(
        canvas.size, Image.Transform.AFFINE, (1, shear, -shear * _CANVAS / 2, 0, 1, 0), Image.Resampling.BILINEAR
    )
    bitmap = np.asarray(canvas.resize((SIDE * _BLOCK, SIDE * _BLOCK), Image.Resampling.BOX)) > 127
    counts = bitmap.reshape(SIDE, _BLOCK, SIDE, _BLOCK).mean((1, 3))
    return torch.tensor(counts, dtype=torch.float32)
