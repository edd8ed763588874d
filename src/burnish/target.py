"""The unnormalised log posterior, in full and from minibatches: what every inference method is given.

The log-likelihood is a sum over data (never a mean), the prior a normalised Gaussian given by its precision. So the
integral of exp(log_prob) is the evidence, and ELBOs of one target can be compared with it and with each other.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_positive, check_tensor
from burnish.batches import Batch
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Categorical, Likelihood
from burnish.noise import check_generator
from burnish.posteriors import Gaussian
from burnish.scales import Diagonal

__all__ = ["Expansion", "KroneckerCurvature", "PriorCandidate", "PriorTuning", "SubsampledTarget", "Target"]

# Entries of one (S, n, C) block of outputs: on a CPU it should stay in cache, on a GPU fill the device.
_CHUNK_ENTRIES = {"cpu": 2**20, "cuda": 2**26}
_NETWORK_ENTRIES = {"cpu": 2**22, "cuda": 2**26}  # of all layers' activations: fewer and larger products are faster


@dataclass(frozen=True)
class PriorCandidate:
    """One prior that was tried."""

    prior_mean: str
    precision: float
    score: float
    """Higher is better: the log evidence, or minus the mean held-out NLL."""
    data: str = "training"
    """What the last layer was fitted on: "training", "validation", or "both"."""
    margin: float | None = None
    """How far the score lies above that of temperature scaling on the same points; where that was computed."""
    margin_error: float | None = None
    """Standard error of the margin over points."""


@dataclass(frozen=True)
class PriorTuning:
    """How a prior, and the data to fit on, were chosen: every candidate with its score."""

    criterion: str
    """"evidence", or "validation"."""
    candidates: tuple[PriorCandidate, ...]
    prior_mean: str
    precision: float
    at_bound: bool
    """Whether the precision sits at the end of its range, so that the true optimum may lie beyond."""
    data: str = "training"
    without_fold: tuple[PriorCandidate, ...] = ()
    """What would have been chosen without each part of the held-out data; the part is scored with that."""


def check_prior_value(name: str, value: float | Tensor, dim: int, like: Tensor) -> None:
    """Refuses a precision or mean that is neither one number nor one for each parameter, or is not where `like` is."""
    if name == "prior_precision":
        check_positive(name, value, "It is the inverse variance of the prior.")
    if isinstance(value, Tensor):
        check_finite(name, value, "Pass finite values.")
        if value.ndim > 0 and tuple(value.shape) != (dim,):
            raise ValueError(
                f"`{name}` must be a number or have shape ({dim},), got {tuple(value.shape)}. "
                "Parameters are ordered weight row-major, then bias."
            )
        check_like(name, value, like, "`data.inputs`")
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"`{name}` must be a number or a tensor of shape ({dim},), got {type(value).__name__}. "
            "Convert arrays with `torch.as_tensor`."
        )
    elif not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, got {value}. Pass a number or a tensor of shape ({dim},).")


@dataclass(frozen=True, eq=False)
class Target:
    """`log p(targets | theta, inputs) + log p(theta)` as a function of theta (d,) or (S, d).

    Log densities are float64 whatever the dtype of theta: in float32, sums over tens of thousands of points lose the
    digits in which posteriors differ. Gradients have theta's dtype.
    """

    model: Model
    data: Batch
    prior_precision: float | Tensor
    """One number, or one for each parameter (d,)."""
    prior_mean: float | Tensor = 0.0
    """One number, or one for each parameter (d,)."""
    tuning: PriorTuning | None = None
    """How the prior was chosen, where `tune_prior` did it."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise TypeError(f"`model` must be a Model, got {type(self.model).__name__}. Pass `Model(head, likelihood)`.")
        if not isinstance(self.data, Batch):
            raise TypeError(f"`data` must be a Batch, got {type(self.data).__name__}. Pass `Batch(features, targets)`.")
        head, inputs = self.model.head, self.data.inputs
        head.check_inputs("data.inputs", inputs)
        targets = self.model.likelihood.check_targets(self.data.targets, head.num_outputs)
        targets = targets.to(inputs.dtype) if targets.is_floating_point() else targets
        if targets is not self.data.targets:
            object.__setattr__(self, "data", replace(self.data, targets=targets))
        check_prior_value("prior_precision", self.prior_precision, self.dim, inputs)
        check_prior_value("prior_mean", self.prior_mean, self.dim, inputs)

    @classmethod
    def last_layer(
        cls,
        features: Any,
        labels: Any,
        *,
        prior_precision: float | Tensor,
        prior_mean: float | Tensor = 0.0,
        likelihood: Likelihood | None = None,
        bias: bool = True,
        weights: Any = None,
        num_outputs: int | None = None,
    ) -> "Target":
        """The target of a linear layer on given features (N, P): tensors or arrays, for those who have embeddings only.

        `num_outputs` is read off the labels when not given: give it where a class may be missing from them.
        """
        likelihood = Categorical() if likelihood is None else likelihood
        inputs, targets = torch.as_tensor(features), torch.as_tensor(labels)
        data = Batch(inputs, targets, None if weights is None else torch.as_tensor(weights))
        if num_outputs is None:
            if isinstance(likelihood, Categorical):
                num_outputs = 2 if targets.is_floating_point() else max(2, int(targets.max()) + 1)
            else:
                num_outputs = 1 if targets.ndim == 1 else targets.shape[1]
        model = Model(LinearHead(inputs.shape[1], num_outputs, bias), likelihood)
        return cls(model, data, prior_precision, prior_mean)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.model.head.dim

    @property
    def prior(self) -> Gaussian:
        """The prior as a distribution."""
        ones = self.data.inputs.new_ones(self.dim)
        return Gaussian(self.prior_mean * ones, Diagonal((self.prior_precision * ones) ** -0.5))

    def with_prior(self, precision: float | Tensor, mean: float | Tensor | None = None) -> "Target":
        """The same model and data under another prior."""
        return replace(self, prior_precision=precision, prior_mean=self.prior_mean if mean is None else mean, tuning=None)

    def log_prior(self, theta: Tensor) -> Tensor:
        """Log density of the prior at each row, float64."""
        precision = torch.as_tensor(self.prior_precision, dtype=torch.float64, device=theta.device).expand(self.dim)
        offset = (theta - self.prior_mean).double()
        return 0.5 * ((precision.log() - math.log(2.0 * math.pi)).sum() - (precision * offset * offset).sum(-1))

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log posterior, unnormalised, at each row (S,), float64; differentiable as often as wanted.

        Autograd keeps the outputs of all points; `log_prob_and_grad` needs the memory of one chunk.
        """
        self.check_theta(theta)
        total = self.log_prior(theta)
        for inputs, targets, weights in self.chunks(theta):
            value = self.model.likelihood.log_prob(self.model(theta, inputs), targets)
            value = value if weights is None else value * weights
            total = total + value.sum(-1, dtype=torch.float64)
        return total

    @torch.no_grad()
    def log_prob_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior (S,) in float64 and its gradient (S, d); of the likelihood, and a linear head, in closed form."""
        self.check_theta(theta)
        total = self.log_prior(theta)
        grad = (self.prior_precision * (self.prior_mean - theta)).double()
        for inputs, targets, weights in self.chunks(theta):
            outputs, pullback = self.model.head.linearise(theta, inputs)
            value, residual = self.model.likelihood.log_prob_and_grad(outputs, targets)
            if weights is not None:
                value, residual = value * weights, residual * weights.unsqueeze(-1)
            total += value.sum(-1, dtype=torch.float64)
            grad += pullback(residual)
        return total, grad.to(theta.dtype)

    def chunks(self, theta: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Slices (inputs, targets, weights) of the data, so small that what is kept for all rows of theta fits a chunk."""
        size = self.chunk_size(theta)
        inputs, targets, weights = self.data.inputs, self.data.targets, self.data.weights
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            yield inputs[rows], targets[rows], (None if weights is None else weights[rows])

    def chunk_size(self, theta: Tensor) -> int:
        """How many points to run at once under all rows of theta."""
        num_samples = max(1, math.prod(theta.shape[:-1]))
        linear = isinstance(self.model.head, LinearHead)
        limits, least = (_CHUNK_ENTRIES, 64) if linear else (_NETWORK_ENTRIES, 1)  # points of a linear head are cheap
        entries = limits.get(theta.device.type, limits["cpu"])
        return max(least, entries // (num_samples * self.model.head.entries))

    def check_theta(self, theta: Tensor, name: str = "theta") -> None:
        """Refuses parameters of the wrong type, length, dtype or device, by the name of what they came with."""
        check_tensor(name, theta)
        if theta.ndim not in (1, 2) or theta.shape[-1] != self.dim:
            raise ValueError(
                f"`{name}` must have shape ({self.dim},) or (S, {self.dim}), got {tuple(theta.shape)}. "
                "Pass parameters of the target's own model, or a posterior of them."
            )
        check_like(name, theta, self.data.inputs, "`data.inputs`")

    def expand(self, center: Tensor, hessian: "Tensor | KroneckerCurvature") -> "Expansion":
        """The log-likelihood to second order around `center`; `hessian` must be the sum of its points' own terms."""
        self.check_theta(center)
        _ = self.model.linear_head  # only there is the sum of the points' terms known without looking at them
        if center.ndim != 1:
            raise ValueError(f"`center` must be one vector of shape ({self.dim},), got {tuple(center.shape)}.")
        if isinstance(hessian, KroneckerCurvature):
            hessian = KroneckerCurvature(hessian.left.to(center), hessian.right.to(center))
        else:
            hessian = hessian.to(center)
        value, gradient = self.log_prob_and_grad(center)
        value = value - self.log_prior(center)
        gradient = gradient - self.prior_precision * (self.prior_mean - center)
        with torch.no_grad():
            outputs = self.model(center, self.data.inputs)
        return Expansion(center, value, gradient, hessian, outputs)

    def subsampled(
        self, batch_size: int, expansion: "Expansion | None" = None, probabilities: Tensor | None = None
    ) -> "SubsampledTarget":
        """An unbiased estimate of this target from `batch_size` points; with an expansion, of the remainder only.

        Points are drawn with equal probabilities, or with given ones (N,), which should grow with what a point contributes.
        """
        return SubsampledTarget(self, batch_size, expansion, probabilities)

    def remainder(
        self, theta: Tensor, index: Tensor, expansion: "Expansion | None"
    ) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """What the points at `index` contribute beyond the expansion.

        Values (S, B), derivatives by the outputs (S, B, C), and what turns such derivatives into gradients (S, d).
        """
        likelihood, targets = self.model.likelihood, self.data.targets[index]
        outputs, pullback = self.model.head.linearise(theta, self.data.inputs[index])
        value, residual = likelihood.log_prob_and_grad(outputs, targets)
        if expansion is not None:
            known, known_residual = expansion.point_terms(index, outputs, targets, likelihood)
            value, residual = value - known, residual - known_residual
        if self.data.weights is not None:
            weights = self.data.weights[index]
            value, residual = value * weights, residual * weights.unsqueeze(-1)
        return value, residual, pullback


@dataclass(frozen=True, eq=False)
class KroneckerCurvature:
    """The matrix `left x right` on a linear layer's parameters: (C, C) between outputs, (Q, Q) between inputs.

    Of a diagonal `right`, the diagonal (Q,) alone.
    """

    left: Tensor
    right: Tensor

    def product(self, matrix: Tensor) -> Tensor:
        """With parameters in matrix form, (..., C, Q)."""
        return self.left @ (matrix * self.right if self.right.ndim == 1 else matrix @ self.right)


@dataclass(frozen=True, eq=False)
class Expansion:
    """A log-likelihood to second order: `value + gradient.delta - delta.hessian.delta / 2` around `center`.

    With a full Hessian each point's term has the point's own curvature; with a Kronecker one, every point has the
    curvature `left` between outputs, and the sum over points is known through the Gram matrix `right` alone.
    """

    center: Tensor
    value: Tensor
    gradient: Tensor
    hessian: Tensor | KroneckerCurvature
    outputs: Tensor
    """Outputs (N, C) of every point at the center."""

    def value_and_grad(self, theta: Tensor, head: LinearHead) -> tuple[Tensor, Tensor]:
        """The sum over all points at each row of theta, without looking at the data."""
        delta = theta - self.center
        if isinstance(self.hessian, KroneckerCurvature):
            curved = head.from_matrix(self.hessian.product(head.to_matrix(delta)))
        else:
            curved = delta @ self.hessian
        value = self.value + (delta * (self.gradient - 0.5 * curved)).sum(-1, dtype=torch.float64)
        return value, self.gradient - curved

    def point_terms(self, index: Tensor, outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
        """The terms of the points at `index`, and their derivatives by the outputs (S, B, C)."""
        center = self.outputs.T[:, index].T  # keeps the points contiguous, as in `outputs`
        value, residual = likelihood.log_prob_and_grad(center, targets)
        delta = outputs - center
        if isinstance(self.hessian, KroneckerCurvature):
            curved = delta @ self.hessian.left
        else:
            curved = likelihood.curvature_product(center, delta)
        return value + (delta * (residual - 0.5 * curved)).sum(-1), residual - curved


@dataclass(frozen=True, eq=False)
class SubsampledTarget:
    """`Target.log_prob_and_grad` estimated without bias from points drawn with replacement, anew at each call.

    With an expansion, its sum over all points is exact and only the remainder, which is of third order around the
    center, is estimated: the cost does not depend on N, and near the center neither does the noise.
    """

    target: Target
    batch_size: int
    expansion: Expansion | None = None
    probabilities: Tensor | None = None
    """(N,): of drawing each point; equal when None."""
    _cumulative: Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_at_least("batch_size", self.batch_size, 1)
        cumulative = None
        if self.probabilities is not None:
            if tuple(self.probabilities.shape) != (len(self.target.data),):
                raise ValueError(
                    f"`probabilities` must have shape ({len(self.target.data)},), one for each point, got "
                    f"{tuple(self.probabilities.shape)}."
                )
            check_positive("probabilities", self.probabilities, "A point that is never drawn would bias the estimate.")
            cumulative = self.probabilities.double().cumsum(0)
            if abs(float(cumulative[-1]) - 1.0) > 1e-6:
                raise ValueError(f"`probabilities` must sum to 1, got {float(cumulative[-1]):g}. Divide them by their sum.")
        object.__setattr__(self, "_cumulative", cumulative)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.target.dim

    @torch.no_grad()
    def log_prob_and_grad(self, theta: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An estimate of the log posterior (S,) and its gradient (S, d), from the same points for every row."""
        target = self.target
        target.check_theta(theta)
        check_generator(generator, theta.device)
        points = self._draw(theta.device, generator)
        total, grad = target.log_prior(theta), target.prior_precision * (target.prior_mean - theta)
        for index, factor in zip(*(torch.split(part, target.chunk_size(theta)) for part in points), strict=True):
            value, residual, pullback = target.remainder(theta, index, self.expansion)
            total = total + (factor * value).sum(-1, dtype=torch.float64)
            grad = grad + pullback(residual * factor.unsqueeze(-1))
        if self.expansion is not None:
            known, known_grad = self.expansion.value_and_grad(theta, target.model.linear_head)
            total, grad = total + known, grad + known_grad
        return total, grad

    def _draw(self, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points, and the factors (B,) that make their sum an estimate of the sum over all points."""
        count, size = len(self.target.data), self.batch_size
        dtype = self.target.data.inputs.dtype
        if self.probabilities is None or self._cumulative is None:
            index = torch.randint(count, (size,), generator=generator, device=device)
            return index, torch.full((size,), count / size, dtype=dtype, device=device)
        position = torch.rand(size, generator=generator, device=device, dtype=torch.float64)
        index = torch.searchsorted(self._cumulative, position).clamp_max(count - 1)
        return index, 1.0 / (size * self.probabilities[index].to(dtype))
