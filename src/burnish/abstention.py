"""When to say nothing: a threshold on how familiar an input is, from held-out points, with a guarantee.

A classifier that may abstain answers only where its score of familiarity is above a threshold. Its *coverage* is the share
of points that it answers, its *selective accuracy* the share of those that are right.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from torch import Tensor

from burnish import metrics
from burnish._checks import check_choice, check_tensor
from burnish.prediction import Prediction

__all__ = ["Abstention", "fit_abstention"]

By = Literal["confidence", "entropy", "mutual_information"]
_NUM_STEPS = 100  # coverages that are tried
_NUM_STARTS = 5  # of them, where testing may begin anew after a failure: each at twice the points of the one before


@dataclass(frozen=True)
class Abstention:
    """A threshold, and how it did on the held-out points it was chosen by."""

    threshold: float
    """A point is answered where its familiarity is above this; infinite where none should be."""
    by: By
    """Which score of `Prediction.familiarity`."""
    coverage: float
    """Share of the held-out points above the threshold."""
    accuracy: float
    """Share of those that are right; NaN where there are none."""
    accuracy_bound: float
    """What the accuracy on new points is at least, with probability `level`: as asked for, or by the kept points."""
    level: float
    num_points: int
    """Held-out points."""
    reason: str
    """What was found, or why nothing was."""

    def accepts(self, prediction: Prediction | Tensor) -> Tensor:
        """(N,) bool: which points to answer, for a prediction or its probabilities (N, K)."""
        return _familiarity(prediction, self.by)[1] > self.threshold

    def __str__(self) -> str:
        return self.reason


def fit_abstention(
    prediction: Prediction | Tensor,
    targets: Tensor,
    *,
    accuracy: float | None = None,
    coverage: float | None = None,
    by: By = "confidence",
    level: float = 0.95,
) -> Abstention:
    """The threshold that keeps a share of the points, or as many as can be kept at an accuracy.

    With `coverage`, the threshold lies right below the most familiar points that are at least that share.

    With `accuracy`, one hypothesis, "the accuracy above this threshold is too low", is tested for each of 100 coverages,
    from the most familiar points down, by the exact binomial tail: how probable so few mistakes would be at that accuracy.
    The error probability `1 - level` is shared by at most five of the hypotheses, and one that is rejected hands its share
    on to the next: a fixed sequence with several starts. The largest coverage that is rejected is taken. As long as less
    familiar points are not more often right, the accuracy on new points is then below the wanted one for at most a share
    `1 - level` of all held-out sets. It is the accuracy over all answered points, for data like the held-out ones.

    References: Geifman and El-Yaniv, "Selective classification for deep neural networks", 2017; Angelopoulos et al., "Learn
    then test", 2021; Wiens and Dmitrienko, "The fallback procedure", 2005.

    Args:
        prediction: for held-out points, or its probabilities (N, K).
        targets: their classes (N,).
        accuracy: wanted among the points that are answered, between 0 and 1.
        coverage: wanted share of points, above 0 and at most 1. Give one of the two.
        by: "confidence", "entropy" or "mutual_information"; the last needs a `Prediction`.
        level: probability with which accuracies hold, between 0 and 1.
    """
    if (accuracy is None) == (coverage is None):
        raise ValueError(
            f"one of `accuracy` and `coverage` must be given, got {'none' if accuracy is None else 'both'}. "
            "Pass the one that must hold; the other follows."
        )
    for name, value, closed in (("accuracy", accuracy, False), ("coverage", coverage, True), ("level", level, False)):
        _check_share(name, value, closed)
    probs, scores = _familiarity(prediction, by)
    check_tensor("targets", targets)
    metrics.accuracy(probs, targets)  # refuses what does not fit together
    right = probs.argmax(1) == targets
    order = scores.argsort(descending=True)
    curve = _Curve(scores[order].double().cpu(), right[order].double().cumsum(0).cpu())
    if coverage is not None:
        kept = curve.kept(max(1, math.ceil(coverage * len(scores) - 1e-9)), at_least=True)
        return curve.result(kept, by, level, _lower_bound(curve.num_right(kept), kept, level), "")
    assert accuracy is not None
    kept, failure = _largest(curve, accuracy, level)
    return curve.result(kept, by, level, accuracy if kept else 0.0, failure)


def _check_share(name: str, value: float | None, closed: bool) -> None:
    """Refuses what is not a share, between 0 and 1."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__}. Pass a share, such as 0.95.")
    if not 0.0 < value < 1.0 and not (closed and value == 1.0):
        raise ValueError(
            f"`{name}` must be above 0 and {'at most' if closed else 'below'} 1, got {value:g}. Pass a share, such as 0.95."
        )


def _familiarity(prediction: Prediction | Tensor, by: By) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) and scores (N,)."""
    check_choice("by", by, ["confidence", "entropy", "mutual_information"])
    if isinstance(prediction, Tensor):
        if by == "mutual_information":
            raise TypeError(
                "`by` 'mutual_information' needs a Prediction, which knows what single samples predict, got probabilities. "
                "Pass `bnn.predict(x)`."
            )
        if prediction.ndim != 2:
            raise ValueError(f"`prediction` must have shape (N, K), got {tuple(prediction.shape)}. Pass probabilities.")
        if len(prediction):
            metrics.accuracy(prediction, prediction.argmax(1))  # refuses logits
        prediction = Prediction(prediction)
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"`prediction` must be a Prediction or a tensor of probabilities, got {type(prediction).__name__}. "
            "Pass `bnn.predict(x)`."
        )
    if prediction.noise_variance is not None:
        raise TypeError("`prediction` must be one of classes, got a regression. Set a bound on its `variance` instead.")
    return prediction.probs, prediction.familiarity(by)


@dataclass(frozen=True, eq=False)
class _Curve:
    """Held-out points from the most familiar to the least."""

    scores: Tensor
    right: Tensor
    """(N,): how many of the first 1, 2, ... are right."""

    def kept(self, count: int, *, at_least: bool) -> int:
        """The number of points that can be kept: points of one score stay together, all in or all out."""
        if count >= len(self.scores):
            return len(self.scores)
        return int(((self.scores >= self.scores[count - 1]) if at_least else (self.scores > self.scores[count])).sum())

    def num_right(self, kept: int) -> int:
        return int(self.right[kept - 1]) if kept else 0

    def result(self, kept: int, by: By, level: float, bound: float, failure: str) -> Abstention:
        total = len(self.scores)
        # the most familiar point that is dropped: nothing is known of scores between it and the last one kept
        threshold = math.inf if kept == 0 else -math.inf if kept == total else float(self.scores[kept])
        accuracy = self.num_right(kept) / kept if kept else math.nan
        found = f"answers {kept} of {total} held-out points, {100 * accuracy:.1f} % of them rightly"
        reason = failure or f"{found}; at least {100 * bound:.1f} % of new ones with probability {level:g}"
        return Abstention(threshold, by, kept / total, accuracy, bound, level, total, reason)


def _largest(curve: _Curve, accuracy: float, level: float) -> tuple[int, str]:
    """The largest number of points whose accuracy is shown to be high enough; zero, and why, where there is none."""
    from scipy.stats import binom  # type: ignore[import-untyped]

    total, error = len(curve.scores), 1.0 - level
    needed = math.ceil(math.log(error / _NUM_STARTS) / math.log(accuracy))  # points, all right, that can show it
    if total < needed:
        return 0, (
            f"abstains always: {total} held-out points cannot show an accuracy of {100 * accuracy:g} % at level {level:g}, "
            f"{needed} without a mistake would; hold out more"
        )
    # labels have no part in what is tested, and where
    counts = {max(needed, math.ceil(total * step / _NUM_STEPS)) for step in range(1, _NUM_STEPS + 1)}
    steps = sorted({kept for kept in (curve.kept(count, at_least=False) for count in counts) if kept >= needed})
    starts = {bisect_left(steps, needed * 2**start) for start in range(_NUM_STARTS) if needed * 2**start <= steps[-1]}
    mistakes = [kept - curve.num_right(kept) for kept in steps]
    best, budget = 0, 0.0
    for index, p_value in enumerate(binom.cdf(mistakes, steps, 1.0 - accuracy)):
        budget += error / len(starts) if index in starts else 0.0
        best, budget = (steps[index], budget) if p_value <= budget else (best, 0.0)
    top = curve.num_right(needed) / needed
    return best, "" if best else (
        f"abstains always: no threshold is shown to have an accuracy of {100 * accuracy:g} % at level {level:g}; of the "
        f"{needed} most familiar held-out points {100 * top:.1f} % are right. Ask for less, or hold out more"
    )


def _lower_bound(num_right: int, kept: int, level: float) -> float:
    """Clopper and Pearson's: the smallest accuracy at which so many right answers are not improbable."""
    from scipy.stats import beta

    return float(beta.ppf(1.0 - level, num_right, kept - num_right + 1)) if num_right else 0.0
