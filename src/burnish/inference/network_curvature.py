"""The curvature of a network's negative log-likelihood in its flat parameters: exact, Gauss-Newton, diagonal, Kronecker.

The Gauss-Newton matrix is the sum over points of `J^T curvature J`, with the Jacobian J of outputs by parameters: the
Hessian of the network made linear at theta. It is positive semi-definite wherever it is taken; the exact Hessian is not.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from burnish._checks import check_memory
from burnish.derivatives import jacobian_rows, jvp
from burnish.errors import FitError
from burnish.inference.layers import Layer, find_irregular, find_layers, flat_head, passes
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.target import Target

__all__: list[str] = []

_ROW_ENTRIES = {"cpu": 2**22, "cuda": 2**28}  # entries of the Jacobians made at a time
_ROW_COPIES = 4  # of them: as they are made, flat, and squared or in float64
_COLUMNS = 64  # of the exact Hessian made at a time


def gauss_newton(target: Target, theta: Tensor) -> Tensor:
    """The full matrix (d, d), float64."""
    total = torch.zeros(target.dim, target.dim, dtype=torch.float64, device=theta.device)
    for rows in _weighted_jacobians(target, theta):
        rows = rows.double()  # what softmax leaves at zero must not be lost among large entries
        total += rows.T @ rows
    return total


def gauss_newton_diagonal(target: Target, theta: Tensor) -> Tensor:
    """The diagonal (d,) of `gauss_newton`, float64, exact: by layers where all of them are known, else by Jacobians."""
    total = torch.zeros(target.dim, dtype=torch.float64, device=theta.device)
    layers, unknown = find_layers(flat_head(target))
    if unknown or find_irregular(target, layers):
        for rows in _weighted_jacobians(target, theta):
            total += rows.square().sum(0, dtype=torch.float64)
        return total
    for traced, _ in passes(target, theta, layers):
        for layer, inputs, cotangents in traced:
            if inputs.shape[1] == 1:  # each weight is used once for every point: a product of squares
                squares = cotangents.square().sum(0).squeeze(1).T @ inputs.square().squeeze(1)
            else:
                # one output after the other: all of them at once are K times the memory
                parts = [torch.einsum("ntc,ntq->ncq", part, inputs).square_().sum(0) for part in cotangents]
                squares = torch.stack(parts).sum(0)
            total[layer.index] += layer.layout.from_matrix(squares)
    return total


def gauss_newton_product(target: Target, theta: Tensor) -> Callable[[Tensor], Tensor]:
    """The matrix as a function of vectors (d,), never formed."""
    head, likelihood = flat_head(target), target.model.likelihood

    @torch.no_grad()
    def product(vector: Tensor) -> Tensor:
        total = torch.zeros(target.dim, dtype=torch.float64, device=theta.device)
        for inputs, _, weights in target.chunks(theta):
            forward = _jvp(partial(head, inputs=inputs), theta, vector)
            outputs, pullback = head.linearise(theta, inputs)
            curved = likelihood.curvature_product(outputs, forward)
            total += pullback(curved if weights is None else curved * weights.unsqueeze(-1))
        return total.to(vector.dtype)

    return product


@torch.no_grad()
def exact_hessian(target: Target, theta: Tensor) -> Tensor:
    """The Hessian (d, d) of the negative log-likelihood, float64, by automatic differentiation; it may be indefinite."""
    likelihood = target.model.likelihood
    total = torch.zeros(target.dim, target.dim, dtype=torch.float64, device=theta.device)
    for inputs, targets, weights in target.chunks(theta.expand(_COLUMNS, -1)):

        def loss(point: Tensor, x: Tensor = inputs, y: Tensor = targets, w: Tensor | None = weights) -> Tensor:
            value = likelihood.log_prob(target.model(point, x), y)
            return -(value if w is None else value * w).sum()

        for columns in torch.split(torch.arange(target.dim, device=theta.device), _COLUMNS):
            tangents = one_hot(columns, target.dim).to(theta.dtype)
            total[columns] += _jvp(torch.func.grad(loss), theta, tangents)
    return (total + total.T).mul_(0.5)


def check_tangents(target: Target) -> None:
    """Refuses networks with a layer that cannot be differentiated along a tangent."""
    head = flat_head(target)
    theta, few = head.flatten(head.network), target.data.subset(slice(0, 1))
    gauss_newton_product(replace(target, data=few), theta)(torch.ones_like(theta))


def _jvp(function: Callable[[Tensor], Tensor], point: Tensor, tangents: Tensor) -> Tensor:
    remedy = "Use structure='diagonal', or 'kron' if it holds linear and convolutional layers only."
    return jvp(function, point, tangents, what="`structure` 'low_rank' and `curvature` 'exact' need", remedy=remedy)


def _weighted_jacobians(target: Target, theta: Tensor) -> Iterator[Tensor]:
    """Rows (n K, d) for some points at a time, whose squares over all points sum to the Gauss-Newton matrix."""
    head, likelihood = flat_head(target), target.model.likelihood
    size = max(1, _ROW_ENTRIES.get(theta.device.type, _ROW_ENTRIES["cpu"]) // (head.num_outputs * head.dim))
    size = min(size, len(target.data))
    needed = _ROW_COPIES * size * head.num_outputs * head.dim * theta.element_size()
    what = "the Jacobian of one point" if size == 1 else f"the Jacobian of {size} points"
    check_memory(what, needed, theta.device, "use structure='kron', or flatten fewer parameters.")

    for start in range(0, len(target.data), size):
        part = target.data.subset(slice(start, start + size))
        roots = likelihood.curvature_root(target.model(theta, part.inputs)).transpose(-1, -2)
        if part.weights is not None:
            roots = roots * part.weights.sqrt().view(-1, 1, 1)
        yield jacobian_rows(head, theta, part.inputs, roots).flatten(0, 1)


def has_kronecker(target: Target) -> bool:
    """Whether every parameter belongs to a layer that has a Kronecker structure."""
    layers, unknown = find_layers(flat_head(target))
    return not unknown and not find_irregular(target, layers)


def check_layers(target: Target) -> None:
    """Refuses parameters that have no Kronecker structure, by name."""
    layers, unknown = find_layers(flat_head(target))
    if unknown:
        raise ValueError(
            f"`structure` 'kron' knows linear and convolutional layers, got {', '.join(map(repr, unknown[:5]))}"
            f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''} besides. Use structure='diagonal', or leave "
            "these parameters out in `flatten_network`."
        )
    irregular = find_irregular(target, layers)
    if irregular:
        raise ValueError(
            "`structure` 'kron' needs layers that are called once, with a row for each point, and whose weights are used "
            f"nowhere else, got {', '.join(map(repr, irregular[:5]))}. Use structure='diagonal', or leave these parameters "
            "out in `flatten_network`."
        )
    widths = [(layer.layout.num_outputs, layer.layout.num_features + layer.layout.bias) for layer in layers]
    size = 8 * 4 * sum(rows**2 + columns**2 for rows, columns in widths)
    device = target.data.inputs.device
    check_memory("the Kronecker factors", size, device, "use structure='diagonal' instead.")


def kronecker_factors(target: Target, theta: Tensor) -> list[tuple[Layer, Tensor, Tensor]]:
    """For every layer the mean (C, C) of its outputs' curvature, and the Gram matrix (Q, Q) of its inputs, float64.

    Their product stands for the layer's block of the Gauss-Newton matrix. For one point, and a layer that is applied once,
    it is that block; otherwise what belongs together is averaged apart.
    """
    check_layers(target)
    layers, _ = find_layers(flat_head(target))
    widths = [(layer.layout.num_outputs, layer.layout.num_features + layer.layout.bias) for layer in layers]
    sums = [[torch.zeros(n, n, dtype=torch.float64, device=theta.device) for n in (*width, 1)] for width in widths]
    for traced, weights in passes(target, theta, layers):
        for layer, inputs, cotangents in traced:
            total = sums[layers.index(layer)]
            # softmax makes the last one singular: in single precision its zero is smaller than rounding errors of the other
            rows, columns = inputs.flatten(0, 1).double(), cotangents.flatten(0, 2).double()
            total[0] += columns.T @ columns
            total[1] += (rows * weights.repeat_interleave(inputs.shape[1]).unsqueeze(1)).T @ rows
            total[2] += weights.sum() * inputs.shape[1]
    return [(layer, left / count.clamp_min(1e-300), right) for layer, (left, right, count) in zip(layers, sums, strict=True)]


def kronecker_scale(target: Target, theta: Tensor, precision: float) -> BlockDiagonal:
    """The scale of the covariance with Kronecker-factored blocks, one for each layer, plus the prior's precision."""
    factors = kronecker_factors(target, theta)
    blocks = [Kronecker.from_precision(left, right, precision, layer.layout, theta.dtype) for layer, left, right in factors]
    order = torch.cat([layer.index for layer, _, _ in factors])
    contiguous = bool((order == torch.arange(len(order), device=order.device)).all())
    return BlockDiagonal(tuple(blocks), None if contiguous else order)


def check_definite(precision: Tensor, remedy: str) -> None:
    """Refuses a Hessian plus prior precision with a negative eigenvalue, and says which."""
    smallest = float(torch.linalg.eigvalsh(precision)[0])
    if not smallest > 0.0:
        raise FitError(
            f"the exact Hessian plus the prior's precision is not positive definite, its smallest eigenvalue is "
            f"{smallest:.3g}: this is not a mode. Use curvature='gauss-newton', or {remedy}."
        )
