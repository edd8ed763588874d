"""Few vectors whose average is close to zero: chosen one after the other, then weighted, by their scalar products alone."""

import math

import torch
from torch import Tensor

__all__: list[str] = []

_FLOOR = 0.1  # of an even share: no vector is carried along for nothing
_STEPS = 500


def choose(gram: Tensor, count: int) -> Tensor:
    """Indices (k,) of different vectors, each the one that keeps the sum of those so far shortest.

    Args:
        gram: scalar products (M, M) of all vectors.
        count: how many to choose.
    """
    chosen: list[int] = []
    sums = torch.zeros_like(gram[0])
    for _ in range(count):
        growth = gram.diagonal() + 2.0 * sums
        growth[chosen] = math.inf
        chosen.append(int(growth.argmin()))
        sums = sums + gram[:, chosen[-1]]
    return torch.tensor(chosen, device=gram.device)


def weigh(gram: Tensor) -> Tensor:
    """The weights w (k,) that sum to one and make w^T gram w least, none below a tenth of an even share.

    A convex problem in k numbers, by accelerated projected gradients.

    Args:
        gram: scalar products (k, k) of the vectors to weigh, float64.
    """
    count = len(gram)
    floor = _FLOOR / count
    step = 1.0 / float(torch.linalg.eigvalsh(gram)[-1].clamp_min(1e-300))
    weights = point = torch.full_like(gram[0], 1.0 / count)
    speed = 1.0
    for _ in range(_STEPS):
        moved = floor + _project(point - step * (gram @ point) - floor, 1.0 - count * floor)
        faster = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * speed * speed))
        point = moved + (speed - 1.0) / faster * (moved - weights)
        weights, speed = moved, faster
    return weights / weights.sum()


def _project(point: Tensor, total: float) -> Tensor:
    """The nearest vector (k,) without negative entries that sums to `total`."""
    ordered = point.sort(descending=True).values
    shifts = (ordered.cumsum(0) - total) / torch.arange(1, len(point) + 1, device=point.device)
    return (point - shifts[(ordered > shifts).nonzero()[-1]]).clamp_min(0.0)
