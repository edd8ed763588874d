"""Made images in place of real ones, to try the studies out: a soft pattern for each class, under noise."""

import hashlib

import torch
from torch.nn.functional import interpolate

from burnish.studies.data import DATASETS, Images

__all__ = ["MAX_CLASSES", "made_generator", "made_images"]

MAX_CLASSES = 20  # of a hundred, which would take their time
_NUM_TRAIN, _NUM_TEST = 500, 250
_WRONG = 0.1  # share of images that get any label, so that no network can be sure and right
_COLOURED = ("cifar-10", "cifar-100", "svhn", "tiny-imagenet")


def made_images(name: str, split: str) -> Images:
    """Images of the size of a data set's and with as many classes, up to `MAX_CLASSES`; the same at every call."""
    channels, side = (3, 32) if name in _COLOURED else (1, 28)
    num_classes = min(DATASETS[name].num_classes or 10, MAX_CLASSES)
    half = torch.rand(num_classes, channels, 4, 2, generator=made_generator(name)).round()
    patterns = torch.cat([half, half.flip(3)], dim=3)  # the same when mirrored, as images are while networks are trained
    generator = made_generator(f"{name} {split}")
    shown, other = torch.randint(num_classes, (2, _NUM_TRAIN if split == "train" else _NUM_TEST), generator=generator)
    labels = torch.where(torch.rand(len(shown), generator=generator) < _WRONG, other, shown)
    soft = interpolate(patterns[shown], size=(side, side), mode="bilinear")
    noise = torch.randn(soft.shape, generator=generator)
    return Images((255.0 * (0.15 + 0.7 * soft + 0.25 * noise).clamp(0.0, 1.0)).to(torch.uint8), labels)


def made_generator(text: str) -> torch.Generator:
    """A stream of its own for each text."""
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))
