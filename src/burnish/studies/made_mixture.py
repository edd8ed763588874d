"""Made features of a last layer: one Gaussian for each class, around means on a sphere."""

import torch

from burnish._checks import check_at_least, check_memory, check_positive
from burnish.batches import Batch
from burnish.noise import check_generator

__all__ = ["make_mixture"]


def make_mixture(
    num_points: int,
    num_features: int,
    num_classes: int,
    *,
    separation: float,
    generator: torch.Generator,
) -> Batch:
    """Points whose classes are as even as can be, in random order, with unit variance around the mean of their class.

    Args:
        num_points: N, at least one for each class.
        num_features: P.
        num_classes: C.
        separation: the radius of the sphere that means are drawn on; two of them are about 1.4 times that apart.
        generator: on the device that the points should be on.
    """
    check_at_least("num_features", num_features, 1)
    check_at_least("num_classes", num_classes, 2)
    check_at_least("num_points", num_points, num_classes)
    check_positive("separation", separation)
    device = generator.device
    check_generator(generator, device)
    num_bytes = 3 * 4 * (num_points + num_classes) * num_features  # points, their noise and their means
    check_memory(f"Making {num_points:,} points", num_bytes, device, "make fewer, or with fewer features.")
    means = torch.randn(num_classes, num_features, generator=generator, device=device)
    means *= separation / torch.linalg.vector_norm(means, dim=1, keepdim=True)
    order = torch.randperm(num_points, generator=generator, device=device)
    labels = order % num_classes
    noise = torch.randn(num_points, num_features, generator=generator, device=device)
    return Batch(means[labels] + noise, labels)
