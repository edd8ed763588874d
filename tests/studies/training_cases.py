"""A small training, shared by the tests of its steps and of its files."""

import torch
from torch import Tensor, nn

from burnish.noise import make_generator

NUM_POINTS, NUM_CLASSES = 44, 3
SIZE = 8


def images(num_points: int = NUM_POINTS, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Noise, brighter in a third of the rows that says the class."""
    generator = make_generator(7)
    labels = torch.randint(NUM_CLASSES, (num_points,), generator=generator)
    pixels = torch.randint(120, (num_points, channels, SIZE, SIZE), generator=generator)
    rows = torch.arange(SIZE) // NUM_CLASSES == labels[:, None]
    return (pixels + 120 * rows[:, None, :, None]).to(torch.uint8), labels


def tiny(seed: int) -> nn.Sequential:
    """With a convolution, which is stored with its channels last, and buffers of 32 and of 64 bits."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64, NUM_CLASSES)),
        )
