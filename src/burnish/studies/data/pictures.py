"""Zip archives with a file for each image: Tiny-ImageNet and Omniglot."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.studies.data.damage import DamagedFileError, naming
from burnish.studies.data.images import Images

__all__ = ["read_omniglot", "read_tiny_imagenet"]


def read_tiny_imagenet(paths: Sequence[Path], *, num_images: int) -> Images:
    """The test images in the order of their numbers, resized from 64x64 to 32x32 (bicubic); they have no labels."""
    from PIL import Image

    path = paths[0]
    pixels = np.empty((num_images, 32, 32, 3), np.uint8)
    with naming(path), zipfile.ZipFile(path) as archive:
        for number in range(num_images):
            with _open(path, archive, f"tiny-imagenet-200/test/images/test_{number}.JPEG", 64) as picture:
                pixels[number] = picture.convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)
    return Images(torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))), None)


def read_omniglot(paths: Sequence[Path], *, num_images: int, num_alphabets: int) -> Images:
    """Drawings of letters, white on black, resized from 105x105 to 28x28 (box); the label is the alphabet.

    Thin strokes turn grey when they are resized, so all images are brightened by one factor, with which half of them reach
    white. Alphabets are numbered in the order of their names, and so are the drawings within.
    """
    from PIL import Image

    path = paths[0]
    grey = np.empty((num_images, 28, 28))
    with naming(path), zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png") and name.count("/") == 3)
        alphabets = sorted({name.split("/")[1] for name in names})
        if (len(names), len(alphabets)) != (num_images, num_alphabets):
            found = f"{len(names)} drawings of {len(alphabets)} alphabets"
            raise DamagedFileError(path, f"it holds {found}, not {num_images} of {num_alphabets}")
        for number, name in enumerate(names):
            with _open(path, archive, name, 105) as picture:
                grey[number] = picture.convert("L").resize((28, 28), Image.Resampling.BOX)
    ink = 255.0 - grey
    ink *= 255.0 / max(1.0, float(np.median(ink.max((1, 2)))))
    pixels = ink.round().clip(0.0, 255.0).astype(np.uint8)
    labels = [alphabets.index(name.split("/")[1]) for name in names]
    return Images(torch.from_numpy(pixels).unsqueeze(1), torch.tensor(labels))


def _open(path: Path, archive: zipfile.ZipFile, name: str, side: int) -> Any:
    from PIL import Image

    picture = Image.open(io.BytesIO(archive.read(name)))
    if picture.size != (side, side):
        raise DamagedFileError(path, f"{name} in it is {picture.size}, not {(side, side)}")
    return picture
