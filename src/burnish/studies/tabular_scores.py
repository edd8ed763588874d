"""Predictions of the study `tabular` and their log-likelihoods: draws of outputs, and one scale for each split.

A scale is the temperature that outputs are divided by, or the standard deviation of the noise around them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Drawn", "choose_scale"]

_TEMPERATURES = torch.logspace(-1.0, 1.0, 81, dtype=torch.float64)
_NOISES = torch.logspace(-1.0, 0.5, 61, dtype=torch.float64)  # in units of the mean's residuals, which suit a single draw


@dataclass(frozen=True, eq=False)
class Drawn:
    """Predictions for all splits: outputs (D, S, N, C), and the temperature or noise (D,) of each split."""

    outputs: Tensor
    scale: Tensor

    def log_likelihood(self, targets: Tensor) -> Tensor:
        """(D,): the mean over points (D, N) of the logarithm of the draws' average."""
        return _log_likelihood(self.outputs.double(), targets, self.scale)


def choose_scale(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The temperature or noise (D,) that suits points (D, N) best, and their log-likelihood by it.

    Temperatures have the weak prior of `fit_temperature`, `log T ~ N(0, 1)`, or a few points that are all classified
    rightly would make them zero.
    """
    outputs = outputs.double()
    if targets.is_floating_point():
        residuals = outputs.mean(1).squeeze(-1) - targets
        unit = residuals.square().mean(1).sqrt()
        candidates, penalty = _NOISES.unsqueeze(1) * unit, torch.zeros(len(_NOISES), 1)
    else:
        candidates = _TEMPERATURES.unsqueeze(1).expand(-1, len(outputs))
        penalty = 0.5 * _TEMPERATURES.log().square().unsqueeze(1) / targets.shape[1]
    found = torch.stack([_log_likelihood(outputs, targets, candidate) for candidate in candidates])
    best = (found - penalty).argmax(0, keepdim=True)
    return candidates.gather(0, best).squeeze(0), found.gather(0, best).squeeze(0)


def _log_likelihood(outputs: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    wide = scale[:, None, None]
    if targets.is_floating_point():
        errors = (targets.unsqueeze(1) - outputs.squeeze(-1)) / wide
        each = -0.5 * errors.square() - wide.log() - 0.5 * math.log(2.0 * math.pi)
    else:
        index = targets[:, None, :, None].expand(*outputs.shape[:3], 1)
        each = (outputs / wide.unsqueeze(-1)).log_softmax(-1).gather(-1, index).squeeze(-1)
    return (each.logsumexp(1) - math.log(outputs.shape[1])).mean(1)
