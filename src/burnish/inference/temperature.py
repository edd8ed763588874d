"""Temperature scaling: one number by which a network's outputs are divided, the rival every posterior has to beat."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_like
from burnish.features import Batch
from burnish.heads import Model
from burnish.likelihoods import GaussianNoise

__all__ = ["TemperatureFit", "fit_temperature"]

_BOUNDS = (1e-3, 1e3)  # of the inverse temperature: on separable data the likelihood rises without end


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and the mean NLL on the data it was fitted to, before and after."""

    temperature: float
    nll_before: float
    nll: float


@torch.no_grad()
def fit_temperature(model: Model, theta: Tensor, data: Batch) -> TemperatureFit:
    """The temperature that maximises the likelihood of held-out data.

    For a linear head, dividing the outputs by the temperature is dividing all parameters by it: `theta / temperature`
    is the temperature-scaled head. The log-likelihood is concave in the inverse temperature, so bisection on its
    derivative finds the optimum.

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
    weights = outputs.new_ones(len(data)) if data.weights is None else data.weights.double()

    def log_likelihood_and_slope(inverse: float) -> tuple[float, float]:
        value, grad = model.likelihood.log_prob_and_grad(inverse * outputs, targets)
        return float(weights @ value), float(weights @ (grad * outputs).sum(-1))

    low, high = _BOUNDS
    for _ in range(60):
        middle = math.sqrt(low * high)
        rising = log_likelihood_and_slope(middle)[1] > 0
        low, high = (middle, high) if rising else (low, middle)
    inverse = math.sqrt(low * high)
    mass = float(weights.sum())
    before, after = (-log_likelihood_and_slope(value)[0] / mass for value in (1.0, inverse))
    return TemperatureFit(1.0 / inverse, before, after)
