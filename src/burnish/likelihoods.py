"""How outputs of a network explain targets: log-likelihood, its first two derivatives, and probabilities.

Outputs have shape (..., N, C), targets one row per point. Derivatives are with respect to the outputs, in closed form;
`curvature` is the *negative* second derivative, positive semi-definite for every likelihood here. Sums run over the last
dimension without copying it to the front, because heads hand over outputs that are contiguous along N, not C.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_finite, check_positive

__all__ = ["Bernoulli", "Categorical", "GaussianNoise", "Likelihood"]


class Likelihood(ABC):
    """The interface. Stateless but for known noise levels."""

    @abstractmethod
    def check_outputs(self, num_outputs: int) -> None:
        """Refuses a number of outputs that this likelihood cannot use."""

    @abstractmethod
    def check_targets(self, targets: Tensor, num_outputs: int) -> Tensor:
        """The targets in canonical dtype and shape; refuses what does not fit."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log-likelihood of each point, (..., N); differentiable."""

    @abstractmethod
    def log_prob_and_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-likelihood (..., N) and its derivative by the outputs (..., N, C)."""

    @abstractmethod
    def curvature_diagonal(self, outputs: Tensor) -> Tensor:
        """Diagonal of the curvature, (..., N, C)."""

    def curvature_coupling(self, outputs: Tensor) -> Tensor | None:
        """The u (..., N, C) with entries -u_c u_c' of the curvature off the diagonal; None where outputs are independent."""
        return None

    def curvature(self, outputs: Tensor) -> Tensor:
        """Negative second derivative by the outputs, (..., N, C, C)."""
        curvature = torch.diag_embed(self.curvature_diagonal(outputs))
        coupling = self.curvature_coupling(outputs)
        if coupling is not None:
            outer = coupling.unsqueeze(-1) * coupling.unsqueeze(-2)
            outer.diagonal(dim1=-2, dim2=-1).zero_()
            curvature = curvature - outer
        return curvature

    def curvature_root(self, outputs: Tensor) -> Tensor:
        """A square root (..., N, C, K) of the curvature: it times its transpose."""
        return torch.diag_embed(self.curvature_diagonal(outputs).sqrt())

    def curvature_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """Curvature at `outputs` times `vectors` (..., N, C), without forming the curvature."""
        return self.curvature_diagonal(outputs) * vectors

    def curvature_sum(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum over points of the curvature (C, C), for outputs (N, C) and weights (N,)."""
        total = torch.diag(weights @ self.curvature_diagonal(outputs))
        coupling = self.curvature_coupling(outputs)
        if coupling is not None:
            total -= (coupling.T @ (coupling * weights.unsqueeze(-1))).fill_diagonal_(0.0)
        return total

    @abstractmethod
    def average(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """The outputs (N, C) that predict alone what samples of outputs (S, N, C) predict on average.

        Samples count alike, or by `weights` (S,) that sum to one.
        """

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities (..., N, K); raises for a likelihood without classes."""
        raise TypeError(f"{type(self).__name__} has no classes, so no probabilities; use the predicted mean.")


def _softmax(outputs: Tensor) -> Tensor:
    # torch.softmax copies a tensor whose last dimension is strided; these three passes do not.
    exp = (outputs - outputs.amax(-1, keepdim=True)).exp_()
    return exp.div_(exp.sum(-1, keepdim=True))


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Softmax over C >= 2 logits; integer targets in 0..C-1."""

    def check_outputs(self, num_outputs: int) -> None:
        if num_outputs < 2:
            raise ValueError(
                f"`likelihood` Categorical needs at least 2 outputs, got {num_outputs}. "
                "Pass `Bernoulli()` for a binary network with one output, `GaussianNoise(std)` for regression."
            )

    def check_targets(self, targets: Tensor, num_outputs: int) -> Tensor:
        if targets.ndim != 1:
            raise ValueError(
                f"`targets` must be a vector of class indices, got shape {tuple(targets.shape)}. "
                "Turn one-hot rows into indices with `targets.argmax(-1)`."
            )
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise TypeError(f"`targets` must be integer class indices, got {targets.dtype}. Convert with `targets.long()`.")
        targets = targets.long()
        if targets.numel() and (int(targets.min()) < 0 or int(targets.max()) >= num_outputs):
            raise ValueError(
                f"`targets` must lie in 0..{num_outputs - 1} for {num_outputs} outputs, got values from "
                f"{int(targets.min())} to {int(targets.max())}. Remap the labels, or pass the right `num_outputs`."
            )
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pick(outputs, targets) - outputs.logsumexp(-1)

    def log_prob_and_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        top = outputs.amax(-1, keepdim=True)
        exp = (outputs - top).exp_()
        total = exp.sum(-1, keepdim=True)
        log_prob = _pick(outputs, targets) - (top + total.log()).squeeze(-1)
        residual = exp.div_(-total)
        index = _index(outputs, targets)
        return log_prob, residual.scatter_add_(-1, index, residual.new_ones(()).expand(index.shape))

    def curvature_diagonal(self, outputs: Tensor) -> Tensor:
        probs = _softmax(outputs)
        return probs * _complement(probs)

    def curvature_coupling(self, outputs: Tensor) -> Tensor:
        return _softmax(outputs)

    def curvature_root(self, outputs: Tensor) -> Tensor:
        probs = _softmax(outputs)
        return torch.diag_embed(probs.sqrt()) - probs.unsqueeze(-1) * probs.sqrt().unsqueeze(-2)

    def curvature_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        probs = _softmax(outputs)
        weighted = probs * vectors
        return weighted - probs * weighted.sum(-1, keepdim=True)

    def average(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        if outputs.stride(-1) == 1:
            return _log_mean_exp(outputs.log_softmax(-1), weights)
        # as heads hand them over, contiguous along N: softmax over a dimension that is not the last needs no copy
        return _log_mean_exp(outputs.transpose(-1, -2).log_softmax(-2), weights).transpose(-1, -2)

    def probs(self, outputs: Tensor) -> Tensor:
        if outputs.ndim == 1 or outputs.stride(-1) == 1:
            return outputs.softmax(-1)
        return outputs.transpose(-1, -2).softmax(-2).transpose(-1, -2)  # without a copy, as above


def _log_mean_exp(values: Tensor, weights: Tensor | None) -> Tensor:
    """The logarithm of the average over the first dimension of what `values` are logarithms of; overwrites them.

    As `logsumexp` has it, with fewer passes and copies.
    """
    top = values.amax(0).clamp_min(torch.finfo(values.dtype).min)  # minus infinity less itself would be no number
    shares = (values - top if values.requires_grad else values.sub_(top)).exp_()
    return (shares.mean(0) if weights is None else torch.tensordot(weights, shares, 1)).log_().add_(top)


def _complement(probs: Tensor) -> Tensor:
    """1 - p per class without cancellation: the sum of the other classes where p is large."""
    top, index = probs.max(-1, keepdim=True)
    others = probs.scatter(-1, index, torch.zeros_like(top)).sum(-1, keepdim=True)
    return (1 - probs).scatter(-1, index, others)


def _index(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets.unsqueeze(-1).expand(*outputs.shape[:-1], 1)


def _pick(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.gather(-1, _index(outputs, targets)).squeeze(-1)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """One logit for the probability of class 1; targets 0 or 1 (any dtype), shape (N,) or (N, 1)."""

    def check_outputs(self, num_outputs: int) -> None:
        if num_outputs != 1:
            raise ValueError(
                f"`likelihood` Bernoulli needs exactly 1 output, got {num_outputs}. Pass `Categorical()` for more classes."
            )

    def check_targets(self, targets: Tensor, num_outputs: int) -> Tensor:
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = targets[:, 0]
        if targets.ndim != 1:
            raise ValueError(
                f"`targets` must have shape (N,) or (N, 1) for one logit, got {tuple(targets.shape)}. "
                "Pass the column of class 1, or use `Categorical()` with two outputs."
            )
        if not bool(((targets == 0) | (targets == 1)).all()):
            bad = targets[(targets != 0) & (targets != 1)][0].item()
            raise ValueError(f"`targets` must be 0 or 1 for Bernoulli, got {bad:g}. Threshold or remap the labels.")
        return targets.long()

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * targets - 1) * outputs.squeeze(-1))

    def log_prob_and_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(outputs, targets), targets.unsqueeze(-1) - outputs.sigmoid()

    def curvature_diagonal(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid() * (-outputs).sigmoid()

    def average(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        logsigmoid = torch.nn.functional.logsigmoid  # of both signs: one minus a probability would lose its digits
        return _log_mean_exp(logsigmoid(outputs), weights) - _log_mean_exp(logsigmoid(-outputs), weights)

    def probs(self, outputs: Tensor) -> Tensor:
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=-1)


@dataclass(frozen=True)
class GaussianNoise(Likelihood):
    """Independent Gaussian noise of known standard deviation on each of C outputs; targets (N, C), or (N,) for C = 1."""

    std: float

    def __post_init__(self) -> None:
        check_positive("std", self.std, "It is the standard deviation of the observation noise.")
        object.__setattr__(self, "std", float(self.std))

    def check_outputs(self, num_outputs: int) -> None:
        if num_outputs < 1:
            raise ValueError(f"`likelihood` GaussianNoise needs at least 1 output, got {num_outputs}.")

    def check_targets(self, targets: Tensor, num_outputs: int) -> Tensor:
        if targets.ndim == 1 and num_outputs == 1:
            targets = targets.unsqueeze(-1)
        if targets.ndim != 2 or targets.shape[1] != num_outputs:
            raise ValueError(
                f"`targets` must have shape (N, {num_outputs}), got {tuple(targets.shape)}. One column per output."
            )
        check_finite("targets", targets, "Drop or impute those rows.")
        return targets if targets.is_floating_point() else targets.to(torch.get_default_dtype())

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scaled = (targets - outputs) / self.std
        constant = outputs.shape[-1] * (math.log(self.std) + 0.5 * math.log(2 * math.pi))
        return -0.5 * (scaled * scaled).sum(-1) - constant

    def log_prob_and_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(outputs, targets), (targets - outputs) / self.std**2

    def curvature_diagonal(self, outputs: Tensor) -> Tensor:
        return torch.full_like(outputs, self.std**-2)

    def average(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        return outputs.mean(0) if weights is None else torch.tensordot(weights, outputs, 1)
