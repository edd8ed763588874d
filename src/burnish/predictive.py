"""From a posterior to predictions: the model averaged over parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_tensor
from burnish.heads import Model
from burnish.likelihoods import GaussianNoise
from burnish.posteriors import Posterior

__all__ = ["Prediction", "predict"]

_CHUNK_ENTRIES = 2**24  # entries of one (S, n, C) block of outputs


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is predicted for N inputs: K class probabilities, or K means for regression."""

    mean: Tensor
    """(N, K): the average over the posterior."""
    epistemic_variance: Tensor
    """(N, K): variance over the posterior, which more data would reduce."""
    expected_entropy: Tensor | None = None
    """(N,): entropy of one sample's probabilities, averaged; classification only."""
    noise_variance: float | None = None
    """Variance of the observation noise, which remains; regression only."""
    samples: Tensor | None = None
    """(S, N, K): probabilities or means under each sample."""

    @property
    def probs(self) -> Tensor:
        """(N, K): predictive probabilities; for one logit, columns for class 0 and class 1."""
        if self.expected_entropy is None:
            raise TypeError("`probs` exist for classification only, and this is regression; use `mean` and `variance`.")
        return self.mean

    @property
    def entropy(self) -> Tensor:
        """(N,): entropy of the predictive probabilities in nats, all uncertainty together."""
        return _entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """(N,): the part of the entropy that is about the parameters: entropy less expected entropy, not negative."""
        entropy = self.entropy
        assert self.expected_entropy is not None
        return (entropy - self.expected_entropy).clamp_min(0.0)

    @property
    def variance(self) -> Tensor:
        """(N, K): variance of a new observation in regression: epistemic and noise."""
        return self.epistemic_variance + (self.noise_variance or 0.0)


@torch.no_grad()
def predict(
    model: Model,
    posterior: Posterior,
    inputs: Tensor,
    *,
    num_samples: int = 20,
    generator: torch.Generator,
    keep_samples: bool = True,
) -> Prediction:
    """Monte Carlo: predictions averaged over draws of the posterior.

    Args:
        model: head and likelihood.
        posterior: anything with `sample`.
        inputs: features (N, P), or what a network takes for a `FlatNetwork`.
        num_samples: draws of the posterior.
        generator: on the device of the posterior.
        keep_samples: whether the result holds every sample's own prediction; without, memory is that of the averages.
    """
    check_at_least("num_samples", num_samples, 1)
    check_tensor("inputs", inputs)
    if not hasattr(posterior, "sample"):
        raise TypeError(
            f"`posterior` must have `sample`, got {type(posterior).__name__}. Pass a fit's `.posterior`, or wrap draws in "
            "`SamplePosterior`."
        )
    model.head.check_inputs("inputs", inputs)
    check_finite("inputs", inputs, "Check the network's activations on these points.")
    theta = posterior.sample(num_samples, generator=generator)
    check_like("inputs", inputs, theta, "the posterior")
    return predict_at(model, theta, inputs, keep_samples=keep_samples)


@torch.no_grad()
def predict_at(model: Model, theta: Tensor, inputs: Tensor, *, keep_samples: bool = True) -> Prediction:
    """Predictions for inputs (N, P), averaged over given parameters (S, d)."""
    rows = max(1, _CHUNK_ENTRIES // (len(theta) * model.head.entries))
    parts = [_predict_rows(model, theta, chunk, keep_samples) for chunk in torch.split(inputs, rows)]
    return Prediction(
        mean=torch.cat([part.mean for part in parts]),
        epistemic_variance=torch.cat([part.epistemic_variance for part in parts]),
        expected_entropy=_cat([part.expected_entropy for part in parts], dim=0),
        noise_variance=parts[0].noise_variance,
        samples=_cat([part.samples for part in parts], dim=1),
    )


def _predict_rows(model: Model, theta: Tensor, inputs: Tensor, keep_samples: bool) -> Prediction:
    outputs, likelihood = model(theta, inputs), model.likelihood
    regression = isinstance(likelihood, GaussianNoise)
    samples = (outputs if regression else likelihood.probs(outputs)).contiguous()
    mean = samples.mean(0)
    return Prediction(
        mean=mean,
        epistemic_variance=((samples - mean) ** 2).sum(0) / max(1, len(samples) - 1),
        expected_entropy=None if regression else _entropy(samples).mean(0),
        noise_variance=likelihood.std**2 if isinstance(likelihood, GaussianNoise) else None,
        samples=samples if keep_samples else None,
    )


def _cat(parts: list[Tensor | None], dim: int) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors, dim=dim) if tensors else None


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)
