"""Calibration error and MMD as the paper's printed numbers were computed, to compare with those; not to be used otherwise.

`burnish.metrics.ece` and `burnish.diagnostics.mmd` are what these should have been.
"""

import math

import torch
from torch import Tensor

from burnish import metrics
from burnish._checks import check_like, check_tensor
from burnish.diagnostics import median_bandwidth, mmd

__all__ = ["paper_ece", "paper_mmd"]

_NUM_BINS = 100
_BANDWIDTH_ROWS = 50  # of each set


def paper_ece(probs: Tensor, targets: Tensor) -> float:
    """Expected calibration error of the most probable class, as a fraction, without the most confident predictions.

    The confidence is the largest probability. Of the 100 bins [b / 100, (b + 1) / 100) only the first 99 count: points of
    confidence 0.99 and more are dropped. Over the n points that are left, it is
    `sum_b (n_b / n) |accuracy_b - confidence_b|`. Confidences are compared with the edges in float64. Dropping the points
    that a network is surest of, and mostly right about, makes the error of most networks larger.

    Args:
        probs: predictive probabilities (N, K).
        targets: class indices (N,).

    Returns:
        The error; NaN where every point is dropped.
    """
    metrics.accuracy(probs, targets)  # refuses what is not probabilities with their classes
    confidence, predicted = probs.detach().double().max(1)
    edges = torch.arange(1, _NUM_BINS, dtype=torch.float64, device=probs.device) / _NUM_BINS
    index = torch.bucketize(confidence, edges, right=True)
    kept = index < _NUM_BINS - 1
    if not bool(kept.any()):
        return math.nan
    gap = (predicted == targets).double() - confidence
    sums = gap.new_zeros(_NUM_BINS).index_add_(0, index[kept], gap[kept])
    return float(sums.abs().sum() / kept.sum())


def paper_mmd(samples: Tensor, reference: Tensor) -> float:
    """Squared maximum mean discrepancy: the biased V-statistic, with a bandwidth that changes with the pair compared.

    The kernel is `exp(-|x - y|^2 / m^2)`. The bandwidth m is the median of the distances between any two of the first 50
    rows of `samples` together with the first 50 of `reference`: samples far from the reference widen the kernel that they
    are judged by, so that two values have no common scale. The statistic is not zero for samples of one distribution.

    Args:
        samples: (S, d).
        reference: (R, d), from the distribution compared with.
    """
    for name, rows in (("samples", samples), ("reference", reference)):
        check_tensor(name, rows)
        if rows.ndim != 2:
            raise ValueError(f"`{name}` must have shape (S, d), got {tuple(rows.shape)}. Pass one row per sample.")
    check_like("samples", samples, reference, "`reference`")
    if samples.shape[1] != reference.shape[1]:
        raise ValueError(
            f"`samples` must have the {reference.shape[1]} dimensions of `reference`, got {samples.shape[1]}. "
            "Compare posteriors of the same parameters."
        )
    rows = torch.cat([samples[:_BANDWIDTH_ROWS], reference[:_BANDWIDTH_ROWS]])
    return mmd(samples, reference, bandwidth=median_bandwidth(rows), unbiased=False)
