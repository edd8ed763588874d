"""From a Gaussian over parameters to Gaussians over outputs: exact for a linear head, at the tangent of a network."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_memory
from burnish.derivatives import jacobian_rows
from burnish.flat_network import FlatNetwork
from burnish.heads import Head, LinearHead
from burnish.layer_scales import Kronecker
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, Scale

__all__ = ["OutputGaussian"]

_CHUNK_ENTRIES = 2**24  # entries of the roots of some points' covariances


@dataclass(frozen=True, eq=False)
class OutputGaussian:
    """The outputs of N points, each point's C outputs as `N(mean, directions diag(variances) directions^T)`."""

    mean: Tensor
    """(N, C): expected outputs."""
    variances: Tensor
    """(N, C): along the directions."""
    directions: Tensor | None = None
    """(C, C) for all points, or (N, C, C); None where outputs are independent."""

    @property
    def variance(self) -> Tensor:
        """(N, C): of each output."""
        if self.directions is None:
            return self.variances
        return (self.directions.square() @ self.variances.unsqueeze(-1)).squeeze(-1)

    @property
    def contrast_variance(self) -> Tensor:
        """(N, C): of each output less the mean of its point's outputs, which is what a softmax sees; float64.

        Projected before it is squared: what outputs share may vary far more than what sets them apart.
        """
        variances, count = self.variances.double(), self.mean.shape[-1]
        if self.directions is None:
            return (1.0 - 2.0 / count) * variances + variances.sum(-1, keepdim=True) / count**2
        directions = self.directions.double()
        directions = directions - directions.mean(-2, keepdim=True)
        return (directions.square() @ variances.unsqueeze(-1)).squeeze(-1)

    @property
    def covariance(self) -> Tensor:
        """(N, C, C): of each point's outputs."""
        if self.directions is None:
            return torch.diag_embed(self.variances)
        return (self.directions * self.variances.unsqueeze(-2)) @ self.directions.mT

    def deviations(self, noise: Tensor) -> Tensor:
        """Standard normal numbers (S, N, C) turned into deviations of the outputs from their mean."""
        noise = noise * self.variances.sqrt()
        if self.directions is None:
            return noise
        if self.directions.ndim == 2:  # the large matrix first: a fifth faster for few columns
            return (self.directions @ noise.flatten(0, 1).T).T.view(noise.shape)
        return (noise.transpose(0, 1) @ self.directions.mT).transpose(0, 1)


@torch.no_grad()
def output_gaussians(head: Head, posterior: Gaussian, inputs: Tensor, *, joint: bool) -> Iterator[OutputGaussian]:
    """For some points at a time their outputs, as they are distributed under a Gaussian over parameters.

    A network is made linear at the mean. Its Jacobian is formed for as many points as fit, never for all.

    Args:
        head: a linear head or a network.
        posterior: of its parameters.
        inputs: (N, ...).
        joint: whether covariances between outputs are needed; without, `directions` is None for all but Kronecker scales.
    """
    scale, mean = posterior.scale, posterior.mean
    if isinstance(head, LinearHead) and isinstance(scale, Diagonal):
        yield OutputGaussian(head(mean, inputs), head(scale.std.square(), inputs.square()))
        return
    if isinstance(head, LinearHead) and isinstance(scale, Kronecker) and scale.layout == head:
        along = (head.augment(inputs) @ scale.right).square() @ scale.std.square().T
        yield OutputGaussian(head(mean, inputs), along, scale.left)
        return
    entries = head.num_outputs * head.dim
    size = min(len(inputs), max(1, _CHUNK_ENTRIES // entries))
    check_memory(
        f"the Jacobian of {'one point' if size == 1 else f'{size} points'}",
        3 * size * entries * mean.element_size(),
        mean.device,
        "use method='linearised' with classes, or 'mc', which do not form it.",
    )
    for chunk in torch.split(inputs, size):
        roots = _roots(head, scale, mean, chunk)
        outputs = head(mean, chunk)
        if joint:
            yield OutputGaussian(outputs, torch.ones_like(outputs), _factor(roots))
        else:
            yield OutputGaussian(outputs, roots.square().sum(-1))


def _roots(head: Head, scale: Scale, mean: Tensor, inputs: Tensor) -> Tensor:
    """Square roots (n, C, d) of the points' covariances: the Jacobian times the scale."""
    if isinstance(head, LinearHead):
        if isinstance(scale, Dense):
            return _dense_roots(head, scale.factor, inputs)
        return scale.transpose_matmul(_linear_jacobian(head, inputs))
    assert isinstance(head, FlatNetwork)
    eye = torch.eye(head.num_outputs, dtype=mean.dtype, device=mean.device)
    return scale.transpose_matmul(jacobian_rows(head, mean, inputs, eye.expand(len(inputs), -1, -1)))


def _dense_roots(head: LinearHead, factor: Tensor, inputs: Tensor) -> Tensor:
    """As a product with the few rows of the factor that each output sees, a C-th of the work."""
    size = head.num_outputs * head.num_features
    roots = inputs @ factor[:size].view(head.num_outputs, head.num_features, -1)
    return (roots + factor[size:].unsqueeze(1) if head.bias else roots).transpose(0, 1)


def _linear_jacobian(head: LinearHead, inputs: Tensor) -> Tensor:
    """(n, C, d): output c sees the inputs in its own weights, and a one in its bias."""
    rows = head.augment(inputs)
    eye = torch.eye(head.num_outputs, dtype=inputs.dtype, device=inputs.device)
    return head.from_matrix(eye.unsqueeze(-1) * rows.unsqueeze(1).unsqueeze(1))


def _factor(roots: Tensor) -> Tensor:
    """Square matrices (n, C, C) with the same covariances as `roots` (n, C, d), by way of float64."""
    wide = roots.double()
    covariance = wide @ wide.mT
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(covariance)
    if bool(info.any()):  # semi-definite, as where an output does not move at all
        values, vectors = torch.linalg.eigh(covariance[info > 0])
        factor[info > 0] = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    return factor.to(roots.dtype)
