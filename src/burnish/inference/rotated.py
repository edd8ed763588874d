"""A linear layer's problem in the coordinates in which its features are uncorrelated.

A Kronecker scale turns noise by the eigenvectors of the features' Gram matrix, (Q, Q), for each draw of each step, and an
expansion multiplies by that matrix again. Where the features themselves are turned once, no step has such a product left:
the noise, and so every result but for rounding, stays what it was.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import available_memory
from burnish.heads import LinearHead, Model
from burnish.inference.curvature import needs_double
from burnish.layer_scales import Kronecker
from burnish.posteriors import Gaussian
from burnish.scales import Scale
from burnish.target import KroneckerCurvature, Target

__all__: list[str] = []

_WIDE = 1024  # features from which on products with a (Q, Q) matrix are what a step costs
_ROWS = 1024  # rows of draws' matrices that an ascent multiplies by it, at the very least, for each output and sample
_TOLERANCE = 1e-3  # relative, by which a product with the Gram matrix may differ from one with its diagonal


@dataclass(frozen=True, eq=False)
class RotatedKronecker(Scale):
    """`(left x identity) diag(std)` on the matrix form (C, Q) of a layer without bias: one factor is turned away."""

    left: Tensor
    std: Tensor

    @property
    def dim(self) -> int:
        return self.std.numel()

    def matmul(self, noise: Tensor) -> Tensor:
        return (self.left @ (self._matrix(noise) * self.std)).flatten(-2)

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        return ((self.left.T @ self._matrix(vectors)) * self.std).flatten(-2)

    def solve(self, vectors: Tensor) -> Tensor:
        return ((self.left.T @ self._matrix(vectors)) / self.std).flatten(-2)

    def stretched(self, factors: Tensor) -> "RotatedKronecker":
        return RotatedKronecker(self.left, self.std * factors.view(self.std.shape))

    def logdet(self) -> Tensor:
        return self.std.double().log().sum()

    def variance(self) -> Tensor:
        return (self.left**2 @ self.std**2).flatten()

    def _matrix(self, rows: Tensor) -> Tensor:
        return rows.reshape(*rows.shape[:-1], *self.std.shape)


@torch.no_grad()
def rotate(target: Target, base: Gaussian, num_samples: int) -> tuple[Target, Gaussian]:
    """The same problem with features turned, where that saves work; target and base as they are where it does not.

    Only a base whose eigenvectors are those of the target's own features is turned, and a prior that has no directions.
    """
    head, scale, data = target.model.head, base.scale, target.data
    if not isinstance(head, LinearHead) or not isinstance(scale, Kronecker) or scale.layout != head:
        return target, base
    several = isinstance(target.prior_precision, Tensor) and target.prior_precision.ndim > 0
    width = head.num_features + head.bias
    if several or data.weights is not None or width < _WIDE or len(data) > _ROWS * num_samples * head.num_outputs:
        return target, base
    size = 2 * len(data) * width * data.inputs.element_size()
    if size > available_memory(data.inputs.device) // 2 or needs_double(target, base.mean):
        return target, base
    features = head.augment(data.inputs) @ scale.right
    probe = features.new_ones(width)
    diagonal = features.square().sum(0, dtype=torch.float64).to(probe)
    if float((features.T @ (features @ probe) - diagonal).norm()) > _TOLERANCE * float(diagonal.norm()):
        return target, base  # of other features

    def turned(theta: Tensor) -> Tensor:
        return (head.to_matrix(theta) @ scale.right).flatten(-2)

    mean = target.prior_mean
    if isinstance(mean, Tensor) or mean != 0.0:
        mean = turned(torch.as_tensor(mean).to(base.mean).expand(target.dim))
    model = Model(LinearHead(width, head.num_outputs, False), target.model.likelihood)
    moved = Target(model, type(data)(features, data.targets), target.prior_precision, mean)
    return moved, Gaussian(turned(base.mean), RotatedKronecker(scale.left, scale.std))


@torch.no_grad()
def rotated_curvature(target: Target, theta: Tensor) -> KroneckerCurvature:
    """`kronecker_hessian` where the Gram matrix of the features is diagonal: (C, C) between outputs, (Q,) of inputs."""
    outputs = target.model.head.num_outputs
    left = torch.zeros(outputs, outputs, dtype=torch.float64, device=theta.device)
    for inputs, _, _ in target.chunks(theta):
        left += target.model.likelihood.curvature_sum(target.model(theta, inputs), inputs.new_ones(len(inputs)))
    return KroneckerCurvature(left / len(target.data), target.data.inputs.square().sum(0, dtype=torch.float64))
