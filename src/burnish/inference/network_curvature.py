"""The curvature of a network's negative log-likelihood in its flat parameters: exact, Gauss-Newton, diagonal, Kronecker.

The Gauss-Newton matrix is the sum over points of `J^T curvature J`, with the Jacobian J of outputs by parameters: the
Hessian of the network made linear at theta. It is positive semi-definite wherever it is taken; the exact Hessian is not.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from burnish._checks import check_memory
from burnish.errors import FitError
from burnish.features import evaluation_mode
from burnish.flat_network import FlatNetwork
from burnish.heads import LinearHead
from burnish.scales import BlockDiagonal, Kronecker
from burnish.target import Target

__all__: list[str] = []

_ROW_ENTRIES = {"cpu": 2**22, "cuda": 2**28}  # entries of the Jacobians made at a time
_COLUMNS = 64  # of the exact Hessian made at a time
_PROBES, _PROBE_ERROR = 8, 1e-2  # points that layers are verified on, and what rounding may do to their gradients


def gauss_newton(target: Target, theta: Tensor) -> Tensor:
    """The full matrix (d, d), float64."""
    total = torch.zeros(target.dim, target.dim, dtype=torch.float64, device=theta.device)
    for rows in _weighted_jacobians(target, theta):
        total += rows.T @ rows
    return total


def gauss_newton_diagonal(target: Target, theta: Tensor) -> Tensor:
    """The diagonal (d,) of `gauss_newton`, float64, exact: by layers where all of them are known, else by Jacobians."""
    total = torch.zeros(target.dim, dtype=torch.float64, device=theta.device)
    layers, unknown = _layers(_flat(target))
    if unknown or _irregular(target, layers):
        for rows in _weighted_jacobians(target, theta):
            total += rows.square().sum(0, dtype=torch.float64)
        return total
    for traced, _ in _passes(target, theta, layers):
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
    head, likelihood = _flat(target), target.model.likelihood

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
    eye = torch.eye(target.dim, dtype=theta.dtype, device=theta.device)
    for inputs, targets, weights in target.chunks(theta.expand(_COLUMNS, -1)):

        def loss(point: Tensor, x: Tensor = inputs, y: Tensor = targets, w: Tensor | None = weights) -> Tensor:
            value = likelihood.log_prob(target.model(point, x), y)
            return -(value if w is None else value * w).sum()

        def column(tangent: Tensor, loss: Callable[[Tensor], Tensor] = loss) -> Tensor:
            return _jvp(torch.func.grad(loss), theta, tangent)

        for start in range(0, target.dim, _COLUMNS):
            total[start : start + _COLUMNS] += torch.func.vmap(column)(eye[start : start + _COLUMNS])
    return 0.5 * (total + total.T)


def _jvp(function: Callable[[Tensor], Tensor], point: Tensor, tangent: Tensor) -> Tensor:
    """The derivative along a tangent; torch's first one warns of code of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
        found: Tensor = torch.func.jvp(function, (point,), (tangent,))[1]
    return found


def _flat(target: Target) -> FlatNetwork:
    head = target.model.head
    if not isinstance(head, FlatNetwork):
        raise TypeError(f"`target` must be of a FlatNetwork here, got {type(head).__name__}. Use `flatten_network`.")
    return head


def _weighted_jacobians(target: Target, theta: Tensor) -> Iterator[Tensor]:
    """Rows (n K, d) for some points at a time, whose squares over all points sum to the Gauss-Newton matrix."""
    head, likelihood = _flat(target), target.model.likelihood
    size = max(1, _ROW_ENTRIES.get(theta.device.type, _ROW_ENTRIES["cpu"]) // (head.num_outputs * head.dim))

    def rows_of(point: Tensor, roots: Tensor) -> Tensor:
        pullback = torch.func.vjp(lambda values: head.run(values, point.unsqueeze(0)).squeeze(0), theta)[1]
        found: Tensor = torch.func.vmap(lambda root: pullback(root)[0])(roots)
        return found

    vectorised = head.vectorised
    for start in range(0, len(target.data), size):
        part = target.data.subset(slice(start, start + size))
        roots = likelihood.curvature_root(target.model(theta, part.inputs)).transpose(-1, -2)
        if part.weights is not None:
            roots = roots * part.weights.sqrt().view(-1, 1, 1)
        try:
            if vectorised:
                with evaluation_mode(head.network):
                    rows = torch.func.vmap(rows_of)(part.inputs, roots).flatten(0, 1)
        except RuntimeError:  # a layer that cannot be batched over points, such as an LSTM
            vectorised = False
        if not vectorised:
            pairs = zip(torch.split(part.inputs, 1), roots, strict=True)
            rows = torch.stack([head.linearise(theta, x)[1](r.unsqueeze(0)) for x, root in pairs for r in root])
        yield rows


@dataclass(frozen=True, eq=False)
class _Layer:
    """A linear or convolutional layer, or one group of a convolution, as a matrix on its inputs."""

    name: str
    module: nn.Module
    index: Tensor
    """Where in theta its weight, row-major, and then its bias are."""
    layout: LinearHead
    group: int = 0


def _layers(head: FlatNetwork) -> tuple[list[_Layer], list[str]]:
    """The layers that theta holds, and the names of parameters that belong to none."""
    offsets = torch.tensor([0, *(torch.Size(shape).numel() for shape in head.shapes)]).cumsum(0).tolist()
    places = {name: (begin, end) for name, (begin, end) in zip(head.names, pairwise(offsets), strict=True)}
    device = next(head.network.parameters()).device
    layers: list[_Layer] = []
    for name, part in head.network.named_modules():
        prefix = f"{name}." if name else ""
        if not isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) or f"{prefix}weight" not in places:
            continue
        weight = torch.arange(*places.pop(f"{prefix}weight"), device=device).view(len(part.weight), -1)
        bias = torch.arange(*places.pop(f"{prefix}bias"), device=device) if f"{prefix}bias" in places else None
        groups = 1 if isinstance(part, nn.Linear) else part.groups
        for group, rows in enumerate(weight.chunk(groups)):
            layout = LinearHead(rows.shape[1], len(rows), bias is not None)
            tail = [] if bias is None else [bias.chunk(groups)[group]]
            layers.append(_Layer(name, part, torch.cat([rows.flatten(), *tail]), layout, group))
    return layers, list(places)


def _passes(
    target: Target, theta: Tensor, layers: list[_Layer]
) -> Iterator[tuple[list[tuple[_Layer, Tensor, Tensor]], Tensor]]:
    """For some points at a time, every layer's inputs (n, T, Q) and cotangents (K, n, T, C), and the points' weights (n,).

    T counts the places where a layer is applied. With the root of the curvature sent back from the outputs, a layer's part
    of a weighted Jacobian is the sum over T of
    cotangents times inputs, so no Jacobian is formed.
    """
    head, likelihood = _flat(target), target.model.likelihood
    wide = theta.expand(1 + head.num_outputs, -1)  # a pass forward, and as many back as there are outputs
    for inputs, _, weights in target.chunks(wide):
        weights = inputs.new_ones(len(inputs)) if weights is None else weights
        outputs, seen = _record(head, theta.detach().requires_grad_(), inputs, [layer.module for layer in layers])
        used = [layer for layer in layers if seen[layer.module]]
        root = likelihood.curvature_root(outputs.detach()).movedim(-1, 0) * weights.sqrt().view(1, -1, 1)
        results = [seen[layer.module][0][1] for layer in used]
        back = torch.autograd.grad(outputs, results, root, is_grads_batched=True, allow_unused=True) if used else ()
        yield (
            [
                (layer, _patches(layer, seen[layer.module][0][0]), _cotangents(layer, grad))
                for layer, grad in zip(used, back, strict=True)
                if grad is not None
            ],
            weights,
        )


def _irregular(target: Target, layers: list[_Layer]) -> list[str]:
    """Layers that are called twice, not with a row for each point, or whose weights are used elsewhere too.

    Where none of this is so, a layer's inputs and cotangents give its gradient, whichever points it is taken of.
    """
    head, points = _flat(target), target.data.inputs[:_PROBES]
    leaf = head.flatten(head.network).requires_grad_()
    outputs, seen = _record(head, leaf, points, [layer.module for layer in layers])
    calls = {module: found[0] for module, found in seen.items() if len(found) == 1 and len(found[0][0]) == len(points)}
    cotangent = torch.linspace(1.0, 2.0, outputs.numel(), dtype=leaf.dtype, device=leaf.device).view(outputs.shape)
    cotangent[1::2] = 0.0
    results = [leaf, *(result for _, result in calls.values())]
    total, *back = torch.autograd.grad(outputs, results, cotangent, allow_unused=True, materialize_grads=True)
    grads = dict(zip(calls, back, strict=True))
    wrong = [layer.name for layer in layers if seen[layer.module] and layer.module not in calls]
    for layer in layers:
        found = torch.zeros_like(total[layer.index])
        if layer.module in calls:
            rows, columns = _patches(layer, calls[layer.module][0]), _cotangents(layer, grads[layer.module].unsqueeze(0))[0]
            found = layer.layout.from_matrix(torch.einsum("ntc,ntq->cq", columns[::2], rows[::2]))
        if float((found - total[layer.index]).norm()) > _PROBE_ERROR * float(total[layer.index].norm()):
            wrong.append(layer.name)
    return list(dict.fromkeys(wrong))


def _record(
    head: FlatNetwork, leaf: Tensor, inputs: Tensor, modules: list[nn.Module]
) -> tuple[Tensor, dict[nn.Module, list[tuple[Tensor, Tensor]]]]:
    """Outputs, and what went into and came out of each module, every time it was called; with a graph to differentiate."""
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {module: [] for module in modules}

    def record(module: nn.Module, arguments: tuple[Tensor], result: Tensor) -> Tensor:
        seen[module].append((arguments[0].detach().clone(), result))
        return result.clone()  # what follows may change it in place

    hooks = [module.register_forward_hook(record) for module in seen]
    try:
        with torch.enable_grad(), evaluation_mode(head.network):
            return head.run(leaf, inputs), seen
    finally:
        for hook in hooks:
            hook.remove()


def _patches(layer: _Layer, inputs: Tensor) -> Tensor:
    """What the layer's matrix is multiplied with (n, T, Q), a one last where it has a bias."""
    module = layer.module
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = nn.functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        inputs = inputs.chunk(module.groups, dim=1)[layer.group]
        kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
        if isinstance(module, nn.Conv1d):
            inputs, kernel, stride, dilation = inputs.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
        rows = nn.functional.unfold(inputs, kernel, dilation=dilation, stride=stride).transpose(1, 2)
    else:
        rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    return torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], dim=2) if layer.layout.bias else rows


def _cotangents(layer: _Layer, grad: Tensor) -> Tensor:
    """Those of the layer's outputs as (K, n, T, C)."""
    if isinstance(layer.module, nn.Conv1d | nn.Conv2d):
        return grad.chunk(layer.module.groups, dim=2)[layer.group].flatten(3).transpose(2, 3)
    return grad.reshape(*grad.shape[:2], -1, grad.shape[-1])


def has_kronecker(target: Target) -> bool:
    """Whether every parameter belongs to a layer that has a Kronecker structure."""
    layers, unknown = _layers(_flat(target))
    return not unknown and not _irregular(target, layers)


def check_layers(target: Target) -> None:
    """Refuses parameters that have no Kronecker structure, by name."""
    layers, unknown = _layers(_flat(target))
    if unknown:
        raise ValueError(
            f"`structure` 'kron' knows linear and convolutional layers, got {', '.join(map(repr, unknown[:5]))}"
            f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''} besides. Use structure='diagonal', or leave "
            "these parameters out in `flatten_network`."
        )
    irregular = _irregular(target, layers)
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


def kronecker_factors(target: Target, theta: Tensor) -> list[tuple[_Layer, Tensor, Tensor]]:
    """For every layer the mean (C, C) of its outputs' curvature, and the Gram matrix (Q, Q) of its inputs, float64.

    Their product stands for the layer's block of the Gauss-Newton matrix. For one point, and a layer that is applied once,
    it is that block; otherwise what belongs together is averaged apart.
    """
    check_layers(target)
    layers, _ = _layers(_flat(target))
    widths = [(layer.layout.num_outputs, layer.layout.num_features + layer.layout.bias) for layer in layers]
    sums = [[torch.zeros(n, n, dtype=torch.float64, device=theta.device) for n in (*width, 1)] for width in widths]
    for traced, weights in _passes(target, theta, layers):
        for layer, inputs, cotangents in traced:
            total = sums[layers.index(layer)]
            rows, columns = inputs.flatten(0, 1), cotangents.flatten(0, 2)
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


def check_definite(precision: Tensor) -> None:
    """Refuses a Hessian plus prior precision with a negative eigenvalue, and says which."""
    smallest = float(torch.linalg.eigvalsh(precision)[0])
    if not smallest > 0.0:
        raise FitError(
            f"the exact Hessian plus the prior's precision is not positive definite, its smallest eigenvalue is "
            f"{smallest:.3g}: this is not a mode. Use curvature='gauss-newton', or recentre."
        )
