"""What a prediction is: averages over a posterior, and the measures of uncertainty that follow from them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish._checks import check_choice

__all__ = ["Prediction"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is predicted for N inputs: K class probabilities, or K means for regression."""

    mean: Tensor
    """(N, K): the average over the posterior."""
    epistemic_variance: Tensor | None = None
    """(N, K): variance over the posterior, which more data would reduce; None where a method does not know it."""
    expected_entropy: Tensor | None = None
    """(N,): entropy of one sample's probabilities, averaged; None for regression, and where a method does not know it."""
    noise_variance: float | None = None
    """Variance of the observation noise, which remains; regression only."""
    samples: Tensor | None = None
    """(S, N, K): probabilities or means under each sample."""

    @property
    def probs(self) -> Tensor:
        """(N, K): predictive probabilities; for one logit, columns for class 0 and class 1."""
        if self.noise_variance is not None:
            raise TypeError("`probs` exist for classification only, and this is regression; use `mean` and `variance`.")
        return self.mean

    @property
    def confidence(self) -> Tensor:
        """(N,): the largest probability."""
        return self.probs.amax(-1)

    @property
    def entropy(self) -> Tensor:
        """(N,): entropy of the predictive probabilities in nats, all uncertainty together."""
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """(N,): the part of the entropy that is about the parameters: entropy less expected entropy, not negative."""
        total = self.entropy
        if self.expected_entropy is None:
            raise TypeError(
                "`mutual_information` needs the entropy of single draws, which this prediction does not know: that of the "
                "probit approximation has none. Predict with method='mc', or 'mc-outputs'."
            )
        return (total - self.expected_entropy).clamp_min(0.0)

    @property
    def variance(self) -> Tensor:
        """(N, K): variance of a new observation in regression: epistemic and noise."""
        if self.epistemic_variance is None:
            raise TypeError(
                "`variance` is not known to this prediction: the probit approximation has none. Predict with method='mc'."
            )
        return self.epistemic_variance + (self.noise_variance or 0.0)

    def familiarity(self, by: Literal["confidence", "entropy", "mutual_information"] = "confidence") -> Tensor:
        """(N,): a score that is higher for more familiar inputs, as `metrics.auroc` and `metrics.fpr95` take it."""
        check_choice("by", by, ["confidence", "entropy", "mutual_information"])
        value: Tensor = getattr(self, by)
        return value if by == "confidence" else -value


def entropy(probs: Tensor) -> Tensor:
    """Of each distribution (..., K), in nats (...,)."""
    return -torch.xlogy(probs, probs).sum(-1)
