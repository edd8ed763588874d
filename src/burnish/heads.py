"""What maps flat parameter vectors and inputs to outputs, and the model that adds a likelihood."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from burnish._checks import check_at_least
from burnish.likelihoods import Categorical, Likelihood

__all__ = ["Head", "LinearHead", "Model"]


class Head(Protocol):
    """A map from flat parameters (..., d) and inputs (N, ...) to outputs (..., N, C)."""

    @property
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs C."""

    @property
    def entries(self) -> int:
        """Numbers kept for one point under one parameter vector: memory is bounded by them."""

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (..., N, C), differentiable."""

    def linearise(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Outputs, and the transpose of their Jacobian by theta: (..., N, C) to (..., d). Asked for once."""

    def check_inputs(self, name: str, inputs: Tensor) -> None:
        """Refuses inputs that the head cannot take."""


@dataclass(frozen=True)
class LinearHead:
    """A linear layer, `outputs = weight @ input + bias`, as a function of its flat parameters.

    `theta` holds the weight row-major (C x P), then the bias (C). One vector (d,) gives outputs (N, C); many, (S, d),
    give (S, N, C), in one matrix product.
    """

    num_features: int
    num_outputs: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_at_least("num_features", self.num_features, 1)
        check_at_least("num_outputs", self.num_outputs, 1)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.num_outputs * (self.num_features + self.bias)

    @property
    def entries(self) -> int:
        """Numbers kept for one point under one parameter vector: its outputs."""
        return self.num_outputs

    def check_inputs(self, name: str, inputs: Tensor) -> None:
        """Refuses anything but features (N, P)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.num_features:
            raise ValueError(
                f"`{name}` must have shape (N, {self.num_features}) for this head, got {tuple(inputs.shape)}. "
                "Pass features from the backbone that the head was split from, not raw inputs."
            )

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (..., N, C) for parameters (..., d) and inputs (N, P)."""
        outputs = self.of_rows(*self.to_rows(theta), inputs)
        return outputs.view(*theta.shape[:-1], *outputs.shape[1:])

    def to_rows(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights of all vectors (..., d) below each other (S C, P), and their biases (S C, 1)."""
        weight, bias = self._split(theta)
        return weight.reshape(-1, self.num_features), None if bias is None else bias.reshape(-1, 1)

    def from_rows(self, rows: Tensor, biases: Tensor | None) -> Tensor:
        """The inverse of `to_rows`: vectors (S, d)."""
        weight = rows.reshape(-1, self.num_outputs * self.num_features)
        return weight if biases is None else torch.cat([weight, biases.reshape(-1, self.num_outputs)], dim=1)

    def of_rows(self, rows: Tensor, biases: Tensor | None, inputs: Tensor) -> Tensor:
        """Outputs (S, N, C) for what `to_rows` gave: whoever keeps that saves a copy of all weights for every call."""
        # (S C, P) @ (P, N): contiguous along N, which makes every later sum over classes a pass over long rows.
        outputs = rows @ inputs.T if biases is None else torch.addmm(biases, rows, inputs.T)
        # `shape`, because `len` would make the size of a batch a constant of an exported graph
        return outputs.view(rows.shape[0] // self.num_outputs, self.num_outputs, inputs.shape[0]).transpose(-1, -2)

    def linearise(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Outputs and `pullback`, which is the same at every theta."""
        return self(theta, inputs), lambda cotangents: self.pullback(cotangents, inputs)

    def pullback(self, cotangents: Tensor, inputs: Tensor) -> Tensor:
        """The transpose of the Jacobian: (..., N, C) on outputs to (..., d) on parameters, in one matrix product."""
        rows = cotangents.transpose(-1, -2)
        batch = rows.shape[:-2]
        weight = (rows.reshape(-1, len(inputs)) @ inputs).reshape(*batch, -1)
        return torch.cat([weight, rows.sum(-1)], dim=-1) if self.bias else weight

    def augment(self, inputs: Tensor) -> Tensor:
        """Inputs with a column of ones where the head has a bias: (N, Q), so that outputs = `to_matrix(theta)` @ row."""
        return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1) if self.bias else inputs

    def to_matrix(self, theta: Tensor) -> Tensor:
        """Flat (..., d) as a matrix (..., C, Q), the bias its last column."""
        weight, bias = self._split(theta)
        return weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], dim=-1)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The inverse of `to_matrix`."""
        weight = matrix[..., : self.num_features].flatten(-2)
        return torch.cat([weight, matrix[..., -1]], dim=-1) if self.bias else weight

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        if theta.shape[-1] != self.dim:
            raise ValueError(
                f"`theta` must have {self.dim} entries in its last dimension, got shape {tuple(theta.shape)}. "
                f"This head has {self.num_outputs} x {self.num_features} weights{' and a bias' if self.bias else ''}."
            )
        size = self.num_outputs * self.num_features
        weight = theta[..., :size].reshape(*theta.shape[:-1], self.num_outputs, self.num_features)
        return weight, (theta[..., size:] if self.bias else None)


@dataclass(frozen=True)
class Model:
    """A head and a likelihood: all that is needed to predict from parameters. It knows no data."""

    head: Head
    likelihood: Likelihood = field(default_factory=Categorical)

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(
                f"`likelihood` must be a Likelihood, got {self.likelihood!r}. "
                "Pass `Categorical()`, `Bernoulli()` or `GaussianNoise(std)`."
            )
        self.likelihood.check_outputs(self.head.num_outputs)

    @property
    def linear_head(self) -> LinearHead:
        """The head, where it is a linear layer; refuses others."""
        if not isinstance(self.head, LinearHead):
            raise TypeError(
                f"`model` must have a linear head here, got {type(self.head).__name__}. "
                "Split the last layer off with `split_last_layer`; of a whole network, compare priors by `compare_evidence`."
            )
        return self.head

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (..., N, C) for parameters (..., d)."""
        return self.head(theta, inputs)
