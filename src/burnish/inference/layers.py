"""The linear and convolutional layers of a flat network: what goes into them, and what comes back to their outputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from burnish.evaluation import evaluation_mode
from burnish.flat_network import FlatNetwork
from burnish.heads import LinearHead
from burnish.noise import make_generator, standard_normal
from burnish.target import Target

__all__: list[str] = []

_PROBES, _PROBE_ERROR = 8, 1e-2  # points that layers are verified on, and what rounding may do to their gradients
_PROBE_STEP = 0.01  # how far from the network's own weights


def flat_head(target: Target) -> FlatNetwork:
    """The target's head, where it is a network; refuses others."""
    head = target.model.head
    if not isinstance(head, FlatNetwork):
        raise TypeError(f"`target` must be of a FlatNetwork here, got {type(head).__name__}. Use `flatten_network`.")
    return head


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear or convolutional layer, or one group of a convolution, as a matrix on its inputs."""

    name: str
    module: nn.Module
    index: Tensor
    """Where in theta its weight, row-major, and then its bias are."""
    layout: LinearHead
    group: int = 0


def find_layers(head: FlatNetwork) -> tuple[list[Layer], list[str]]:
    """The layers that theta holds, and the names of parameters that belong to none."""
    offsets = torch.tensor([0, *(torch.Size(shape).numel() for shape in head.shapes)]).cumsum(0).tolist()
    places = {name: (begin, end) for name, (begin, end) in zip(head.names, pairwise(offsets), strict=True)}
    device = next(head.network.parameters()).device
    layers: list[Layer] = []
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
            layers.append(Layer(name, part, torch.cat([rows.flatten(), *tail]), layout, group))
    return layers, list(places)


def passes(
    target: Target, theta: Tensor, layers: list[Layer]
) -> Iterator[tuple[list[tuple[Layer, Tensor, Tensor]], Tensor]]:
    """For some points at a time, every layer's inputs (n, T, Q) and cotangents (K, n, T, C), and the points' weights (n,).

    T counts the places where a layer is applied. With the root of the curvature sent back from the outputs, a layer's part
    of a weighted Jacobian is the sum over T of cotangents times inputs, so no Jacobian is formed.
    """
    head, likelihood = flat_head(target), target.model.likelihood
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


def find_irregular(target: Target, layers: list[Layer]) -> list[str]:
    """Layers that are called twice, not with a row for each point, or whose weights are used elsewhere too.

    Where none of this is so, a layer's inputs and cotangents give its gradient, whichever points it is taken of.
    """
    head, stride = flat_head(target), -(-len(target.data) // _PROBES)
    points = target.data.inputs[::stride]
    theta = head.flatten(head.network)
    noise = standard_normal(1, theta, generator=make_generator(0, theta.device))[0]
    leaf = (theta + _PROBE_STEP * noise).requires_grad_()  # a layer that is zero has gradients that show nothing
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

    def record(module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor], result: Tensor) -> Tensor:
        inputs = arguments[0] if arguments else named["input"]
        seen[module].append((inputs.detach().clone(), result))
        return result.clone()  # what follows may change it in place

    hooks = [module.register_forward_hook(record, with_kwargs=True) for module in seen]
    try:
        with torch.enable_grad(), evaluation_mode(head.network):
            return head.run(leaf, inputs), seen
    finally:
        for hook in hooks:
            hook.remove()


def _patches(layer: Layer, inputs: Tensor) -> Tensor:
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


def _cotangents(layer: Layer, grad: Tensor) -> Tensor:
    """Those of the layer's outputs as (K, n, T, C)."""
    if isinstance(layer.module, nn.Conv1d | nn.Conv2d):
        return grad.chunk(layer.module.groups, dim=2)[layer.group].flatten(3).transpose(2, 3)
    return grad.reshape(*grad.shape[:2], -1, grad.shape[-1])
