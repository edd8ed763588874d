"""Temperature scaling: one number by which a network's outputs are divided, the rival every posterior has to beat."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_like
from burnish.batches import Batch, point_weights
from burnish.heads import Model
from burnish.likelihoods import GaussianNoise

__all__ = ["TemperatureFit", "fit_temperature"]

_ALIKE = 3.0  # ratio of residuals up to which outputs may share one noise
_BOUNDS = (1e-3, 1e3)  # of the inverse temperature


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and the mean NLL on the data it was fitted to, before and after."""

    temperature: float
    nll_before: float
    nll: float


@torch.no_grad()
def residual_std(model: Model, theta: Tensor, data: Batch, *, alike: bool = False) -> float:
    """Root mean square of a regressor's residuals: the noise that suits the data best.

    With `alike`, outputs whose residuals differ too much to share one noise are refused.
    """
    targets = GaussianNoise(1.0).check_targets(data.targets, model.head.num_outputs)
    squares = (model(theta, data.inputs) - targets).double().square()
    weights = point_weights(data).double()
    each = weights @ squares / weights.sum()
    if alike and float(each.max()) > _ALIKE**2 * float(each.min()):
        sizes = ", ".join(f"{value:.3g}" for value in each.sqrt().tolist()[:8])
        raise ValueError(
            f"`targets` must leave residuals of similar size in all outputs, which share one noise, got {sizes}. "
            "Train on scaled targets, or pass `likelihood=GaussianNoise(std)`."
        )
    variance = float(each.mean())
    if not 0.0 < variance < math.inf:
        raise ValueError(
            f"`targets` must leave residuals for the noise to be estimated from, got a mean square of {variance:g}. "
            "Pass `likelihood=GaussianNoise(std)` with the noise that you know of."
        )
    return math.sqrt(variance)


def recalibrate(model: Model, theta: Tensor, data: Batch) -> tuple[Model, Tensor]:
    """The network adjusted by one number fitted on held-out data: the temperature, or the noise of a regressor."""
    if isinstance(model.likelihood, GaussianNoise):
        return Model(model.head, GaussianNoise(residual_std(model, theta, data))), theta
    return model, theta / fit_temperature(model, theta, data).temperature


@torch.no_grad()
def fit_temperature(model: Model, theta: Tensor, data: Batch) -> TemperatureFit:
    """The temperature that maximises the likelihood of held-out data, under a weak prior, `log T ~ N(0, 1)`.

    For a linear head, dividing the outputs by the temperature is dividing all parameters by it: `theta / temperature`
    is the temperature-scaled head. The log-likelihood is concave in the inverse temperature, so bisection on the
    derivative finds the optimum. The prior cannot be seen beside hundreds of points; where a few of them are all
    classified rightly, it is what keeps the temperature away from zero, and the next mistake from being infinitely bad.

    Args:
        model: head and likelihood; classification only.
        theta: the head's parameters (d,).
        data: held-out features and targets.
    """
    if isinstance(model.likelihood, GaussianNoise):
        raise TypeError("`model` must be a classifier for temperature scaling, got GaussianNoise. Tune its `std` instead.")
    check_like("theta", theta, data.inputs, "`data.inputs`")
    targets = model.likelihood.check_targets(data.targets, model.head.num_outputs)
    outputs = model(theta, data.inputs).double()
    weights = point_weights(data).double()

    def log_likelihood_and_slope(inverse: float) -> tuple[float, float]:
        """And its derivative by the logarithm of the inverse temperature."""
        value, grad = model.likelihood.log_prob_and_grad(inverse * outputs, targets)
        return float(weights @ value), inverse * float(weights @ (grad * outputs).sum(-1))

    low, high = _BOUNDS
    for _ in range(60):
        middle = math.sqrt(low * high)
        rising = log_likelihood_and_slope(middle)[1] > math.log(middle)  # the slope of the prior's half square
        low, high = (middle, high) if rising else (low, middle)
    inverse = math.sqrt(low * high)
    mass = float(weights.sum())
    before, after = (-log_likelihood_and_slope(value)[0] / mass for value in (1.0, inverse))
    return TemperatureFit(1.0 / inverse, before, after)
