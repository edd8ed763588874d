"""Predictions against labels: pure functions of predictive probabilities or of scores, each a Python float.

Probabilities (N, K) are what `Prediction.probs` gives. Logits are refused rather than guessed. Sums are float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice, check_finite
from burnish.noise import check_generator

__all__ = ["Interval", "accuracy", "auroc", "bootstrap", "brier", "ece", "fpr95", "nll"]

# How far a row may be from summing to one: averages of float32 softmax rows over thousands of classes stay well inside.
_SUM_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Interval:
    """A value with the bootstrap interval around it."""

    value: float
    low: float
    high: float
    level: float
    """The share of resamples the interval covers, say 0.95."""


def accuracy(probs: Tensor, targets: Tensor) -> float:
    """The share of points whose most probable class is the true one; of tied classes the first counts.

    Args:
        probs: predictive probabilities (N, K).
        targets: class indices (N,).
    """
    probs, targets = _check(probs, targets)
    return float((probs.argmax(1) == targets).double().mean())


def nll(probs: Tensor, targets: Tensor) -> float:
    """Negative log-likelihood in nats, `-mean_n log p_n[y_n]`.

    A true class of probability zero gives infinity: nothing is clamped.

    Args:
        probs: predictive probabilities (N, K).
        targets: class indices (N,).
    """
    probs, targets = _check(probs, targets)
    true = probs.gather(1, targets.unsqueeze(1)).double()
    return float(-true.log().mean())


def brier(probs: Tensor, targets: Tensor) -> float:
    """Brier score, `mean_n sum_k (p_n[k] - 1[k = y_n])^2`, between 0 and 2.

    Args:
        probs: predictive probabilities (N, K).
        targets: class indices (N,).
    """
    probs, targets = _check(probs, targets)
    hit = torch.nn.functional.one_hot(targets, probs.shape[1])
    return float(((probs.double() - hit) ** 2).sum(1).mean())


def ece(
    probs: Tensor,
    targets: Tensor,
    *,
    num_bins: int = 15,
    binning: Literal["equal-width", "equal-mass"] = "equal-width",
) -> float:
    """Expected calibration error of the most probable class, as a fraction.

    `sum_b (n_b / N) |accuracy_b - confidence_b|` over bins of the confidence, the largest probability. Bins are closed on
    the right: a confidence of exactly 1 belongs to the last one. With "equal-width" the edges are b / num_bins; with
    "equal-mass" they are order statistics of the confidences, so that without ties the sizes of bins differ by at most
    one. Points of equal confidence share a bin, hence their order does not matter; bins left empty contribute nothing.

    Args:
        probs: predictive probabilities (N, K).
        targets: class indices (N,).
        num_bins: number of bins; it may exceed the number of points.
        binning: "equal-width" or "equal-mass".
    """
    check_at_least("num_bins", num_bins, 1)
    check_choice("binning", binning, ["equal-width", "equal-mass"])
    probs, targets = _check(probs, targets)
    confidence, predicted = probs.max(1)
    bins = torch.arange(1, num_bins, device=probs.device)
    if binning == "equal-width":
        # Rounded to the dtype of the confidences: a float32 0.2 is then on the edge 0.2, as whoever wrote it meant.
        edges = (bins.double() / num_bins).to(probs.dtype)
    else:
        last_rank = (bins * len(probs) + num_bins - 1) // num_bins - 1  # of bin b: ceil(b N / num_bins) - 1
        edges = confidence.sort().values[last_rank]
    index = torch.bucketize(confidence, edges)
    gap = (predicted == targets).double() - confidence.double()
    return float(gap.new_zeros(num_bins).index_add_(0, index, gap).abs().sum() / len(probs))


def auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """Area under the ROC curve for telling in-distribution points from others by a score.

    `P(in > out) + P(in = out) / 2` for one point of each kind. By ranks: time N log N, memory N.

    Args:
        in_scores: (N,) of in-distribution points; higher means more familiar, such as the largest probability.
        out_scores: (M,) of out-of-distribution points.
    """
    inside, outside = _check_scores(in_scores, out_scores)
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside).sum()
    not_above = torch.searchsorted(ordered, inside, right=True).sum()
    return int(below + not_above) / (2 * len(inside) * len(outside))


def fpr95(in_scores: Tensor, out_scores: Tensor) -> float:
    """False positive rate at 95 % true positives: the share of out-of-distribution points that pass as familiar.

    A point passes when its score is at or above the threshold. The threshold is the 5th percentile of `in_scores`, without
    interpolation: the element of rank floor(N / 20), counted from zero in rising order. It is the largest threshold that
    at least 95 % of the in-distribution points pass.

    Args:
        in_scores: (N,) of in-distribution points; higher means more familiar, such as the largest probability.
        out_scores: (M,) of out-of-distribution points.
    """
    inside, outside = _check_scores(in_scores, out_scores)
    threshold = inside.sort().values[len(inside) // 20]
    return float((outside >= threshold).double().mean())


def bootstrap(
    metric: Callable[..., float],
    *arrays: Tensor,
    num_resamples: int = 1000,
    level: float = 0.95,
    paired: bool = True,
    generator: torch.Generator,
) -> Interval:
    """The percentile bootstrap interval of a metric over its data points.

    `value` is the metric of the data as they are; `low` and `high` are the quantiles (1 - level) / 2 and (1 + level) / 2
    of the metric over resamples with replacement, rounded outward to values that occurred. Resampling itself raises a
    metric that is biased upward by noise, such as `ece`, so that its interval may lie above its value.

    Args:
        metric: maps the arrays to a number, such as `nll`.
        *arrays: tensors with one row per point, all on one device.
        num_resamples: how often the metric is computed.
        level: nominal coverage.
        paired: whether all arrays are resampled by the same rows, as for `nll`; False for samples that are independent
            of each other, as for `auroc` and `fpr95`.
        generator: on the device of the arrays.
    """
    check_at_least("num_resamples", num_resamples, 2)
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must lie between 0 and 1, got {level:g}. Pass 0.95 for a 95 % interval.")
    _check_arrays(arrays, paired)
    device = arrays[0].device
    check_generator(generator, device)

    def resample() -> list[Tensor]:
        lengths = [len(arrays[0])] if paired else [len(array) for array in arrays]
        rows = [torch.randint(length, (length,), generator=generator, device=device) for length in lengths]
        return [array[rows[0 if paired else i]] for i, array in enumerate(arrays)]

    value = float(metric(*arrays))
    values = torch.tensor([float(metric(*resample())) for _ in range(num_resamples)], dtype=torch.float64)
    # No interpolation: between infinite values, which `nll` may give, it would yield NaN.
    low = torch.quantile(values, (1.0 - level) / 2, interpolation="lower")
    high = torch.quantile(values, (1.0 + level) / 2, interpolation="higher")
    return Interval(value, float(low), float(high), level)


def _check(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and int64 class indices, detached; refuses what is not that."""
    _check_tensor("probs", probs)
    _check_tensor("targets", targets)
    probs = probs.detach()
    if probs.ndim != 2 or len(probs) == 0 or probs.shape[1] < 2 or not probs.is_floating_point():
        raise ValueError(
            f"`probs` must be floating-point of shape (N, K) with N >= 1 and K >= 2, got {probs.dtype} of shape "
            f"{tuple(probs.shape)}. Pass `prediction.probs`, which has two columns for one logit."
        )
    _check_distributions(probs)
    if targets.ndim != 1 or len(targets) != len(probs):
        raise ValueError(
            f"`targets` must have shape ({len(probs)},), one class index for each row of `probs`, got "
            f"{tuple(targets.shape)}. Turn one-hot rows into indices with `targets.argmax(-1)`."
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"`targets` must be integer class indices, got {targets.dtype}. Convert with `targets.long()`.")
    if targets.device != probs.device:
        raise TypeError(
            f"`targets` must be on {probs.device} like `probs`, got {targets.device}. "
            f"Move them with `targets.to('{probs.device}')`."
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= probs.shape[1]:
        raise ValueError(
            f"`targets` must lie in 0..{probs.shape[1] - 1} for {probs.shape[1]} columns of `probs`, got values from {low} "
            f"to {high}. Remap the labels, or drop points that belong to no class."
        )
    return probs, targets.long()


def _check_distributions(probs: Tensor) -> None:
    """Refuses rows that are not probability distributions."""
    remedy = "Pass probabilities, not logits: `logits.softmax(-1)`."
    check_finite("probs", probs, "Check the predictions on these points.")
    if bool((probs < 0).any()):
        raise ValueError(f"`probs` must not be negative, got {float(probs.min()):g}. {remedy}")
    excess = (probs.sum(1, dtype=torch.float64) - 1.0).abs()
    if float(excess.max()) > max(_SUM_TOLERANCE, 2 * torch.finfo(probs.dtype).eps):
        worst = int(excess.argmax())
        total = float(probs[worst].sum(dtype=torch.float64))
        raise ValueError(f"`probs` must have rows that sum to 1, got {total:g} in row {worst}. {remedy}")


def _check_scores(in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Both score vectors in float64, detached; infinite scores have ranks, NaN has none."""
    for name, scores in (("in_scores", in_scores), ("out_scores", out_scores)):
        _check_tensor(name, scores)
        if scores.ndim != 1 or len(scores) == 0:
            raise ValueError(f"`{name}` must be a vector with one score per point, got shape {tuple(scores.shape)}.")
        if bool(scores.isnan().any()):
            count = int(scores.isnan().sum())
            raise ValueError(f"`{name}` must not be NaN, got {count} NaN of {len(scores)}. Check the predictions there.")
    if in_scores.device != out_scores.device:
        raise TypeError(
            f"`out_scores` must be on {in_scores.device} like `in_scores`, got {out_scores.device}. "
            f"Move them with `out_scores.to('{in_scores.device}')`."
        )
    return in_scores.detach().double(), out_scores.detach().double()


def _check_arrays(arrays: tuple[Tensor, ...], paired: bool) -> None:
    if not arrays:
        raise ValueError("`arrays` must hold at least one tensor, got none. Pass what the metric takes.")
    for array in arrays:
        _check_tensor("arrays", array)
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"`arrays` must have one row per point and at least one, got shape {tuple(array.shape)}.")
    lengths = [len(array) for array in arrays]
    if paired and len(set(lengths)) > 1:
        raise ValueError(
            f"`arrays` must have equal lengths when resampled together, got {lengths}. "
            "Pass `paired=False` for independent samples."
        )
    if len({array.device for array in arrays}) > 1:
        raise TypeError(f"`arrays` must be on one device, got {[str(array.device) for array in arrays]}. Move them to one.")


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}. Convert it with `torch.as_tensor`.")
