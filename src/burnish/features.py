"""From a trained network to cached features: splitting off the last layer, and running the rest once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_finite, check_positive
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Categorical, Likelihood

__all__ = ["Backbone", "Batch", "extract_features", "split_last_layer"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a head, their targets and, where wanted, a positive weight for each point.

    A weight multiplies the log-likelihood of its point: weight 2 counts a point twice.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "weights"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not (name == "weights" and value is None):
                raise TypeError(
                    f"`{name}` must be a torch.Tensor, got {type(value).__name__}. Convert it with `torch.as_tensor`."
                )
        if self.inputs.ndim < 2 or self.inputs.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"`inputs` must be float32 or float64 features of shape (N, P), got {self.inputs.dtype} of shape "
                f"{tuple(self.inputs.shape)}. Pass one row per point."
            )
        if len(self.inputs) == 0:
            raise ValueError("`inputs` must hold at least one point, got none. Check that the loader is not empty.")
        if self.targets.ndim == 0 or len(self.targets) != len(self.inputs):
            raise ValueError(
                f"`targets` must have one row for each of the {len(self.inputs)} inputs, got shape "
                f"{tuple(self.targets.shape)}. Check that both come from the same split."
            )
        check_finite("inputs", self.inputs, "Check the network's activations on these points, or drop the rows.")
        if self.weights is not None:
            if tuple(self.weights.shape) != (len(self.inputs),):
                raise ValueError(
                    f"`weights` must have shape ({len(self.inputs)},), one for each point, got {tuple(self.weights.shape)}."
                )
            check_positive("weights", self.weights, "Leave out points that should not count.")
            object.__setattr__(self, "weights", self.weights.to(self.inputs))
        if self.targets.device != self.inputs.device:
            object.__setattr__(self, "targets", self.targets.to(self.inputs.device))

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """The same points elsewhere, or with floating-point values in another precision."""
        targets = self.targets.to(device, dtype if self.targets.is_floating_point() else None)
        weights = None if self.weights is None else self.weights.to(device, dtype)
        return Batch(self.inputs.to(device, dtype), targets, weights)

    def subset(self, index: Tensor | slice) -> "Batch":
        """The points at `index`."""
        weights = None if self.weights is None else self.weights[index]
        return Batch(self.inputs[index], self.targets[index], weights)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode inside, each one's own mode restored after."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class Backbone(nn.Module):
    """A network without its last linear layer. It shares the network's parameters and always runs in eval mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Tensor:
        """Features (N, P) of the inputs."""
        with evaluation_mode(self.network):
            return self.network(x)  # type: ignore[no-any-return]


def split_last_layer(
    network: nn.Module, head: str | None = None, *, example: Any, likelihood: Likelihood | None = None
) -> tuple[Backbone, Model, Tensor]:
    """Splits a network that ends in a linear layer: `model(theta, backbone(x)) == network(x)`.

    The network is not modified: the backbone is a second set of containers around the same submodules. The split is
    verified on `example`.

    Args:
        network: a trained network whose output is that of an `nn.Linear`.
        head: the name of that layer, as in `network.named_modules()`; found when not given (the last one executed).
        example: one batch of inputs, as the network takes them, at least one point.
        likelihood: how outputs explain targets; `Categorical()` when not given.

    Returns:
        The backbone, the model (linear head and likelihood) and the layer's parameters as one flat vector.

    Raises:
        ValueError: where the network does not end in a linear layer, with what it seems to end in.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"`network` must be a torch.nn.Module, got {type(network).__name__}. Pass the trained module.")
    with torch.no_grad(), evaluation_mode(network):
        name, layer, layer_output, output = _trace_head(network, head, example)
        _check_output(name, layer_output, output)
        # in half precision a posterior has no meaning: its factorisations would fail
        dtype = layer.weight.dtype if layer.weight.dtype in (torch.float32, torch.float64) else torch.float32
        parts = [layer.weight.flatten()] + ([] if layer.bias is None else [layer.bias])
        theta = torch.cat(parts).to(dtype)
        linear = LinearHead(layer.in_features, layer.out_features, layer.bias is not None)
        model = Model(linear, Categorical() if likelihood is None else likelihood)
        backbone = Backbone(_without(network, layer, {}))
        _verify_split(backbone, model, theta, name, output, example)
    return backbone, model, theta


def _trace_head(network: nn.Module, head: str | None, example: Any) -> tuple[str, nn.Linear, Tensor, Any]:
    """Runs the network once and finds the head: its name, the layer, its output and the network's."""
    everything = dict(network.named_modules(remove_duplicate=False))
    linears = {name: part for name, part in everything.items() if isinstance(part, nn.Linear)}
    if head is not None and head not in linears:
        kind = type(everything.get(head)).__name__
        found = ", ".join(map(repr, list(linears)[-5:])) or "none"
        raise ValueError(
            f"`head` must name an nn.Linear of the network, got {head!r} "
            f"({'no such module' if kind == 'NoneType' else kind}). "
            f"The linear layers are: {found}."
        )
    executed: list[tuple[str, Tensor]] = []

    def record(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, arguments, result: executed.append((name, result.clone()))  # what follows may be in place

    hooks = [part.register_forward_hook(record(name)) for name, part in linears.items()]
    try:
        output = network(example)
    finally:
        for hook in hooks:
            hook.remove()
    calls = [call for call in executed if head is None or call[0] == head]
    if not calls:
        what = "no nn.Linear" if head is None else f"the layer {head!r} not at all"
        raise ValueError(
            f"`network` must end in a linear layer, but it executed {what} on `example`. "
            "Only networks whose last step is an nn.Linear can be split."
        )
    name, layer_output = calls[-1]
    return name, linears[name], layer_output, output


def _check_output(name: str, layer_output: Tensor, output: Any) -> None:
    """Refuses a network whose output is not that of the layer, and says what was done to it where that can be told."""
    if not isinstance(output, Tensor):
        raise TypeError(f"`network` must return a tensor of outputs, got {type(output).__name__}. Wrap it to return one.")
    if output.numel() == 0:
        raise ValueError("`example` must hold at least one point, got an empty batch. Pass a few inputs.")
    check_finite("network(example)", output, "The network is not fit to be split; check its weights and the example.")
    if output.shape == layer_output.shape and _close(output, layer_output):
        if output.ndim != 2:
            raise ValueError(
                f"`network` must return outputs of shape (N, C), got {tuple(output.shape)}. "
                "Flatten all but the last dimension."
            )
        return
    candidates = {
        "a LogSoftmax": layer_output.log_softmax(-1),
        "a Softmax": layer_output.softmax(-1),
        "a Sigmoid": layer_output.sigmoid(),
        "a LogSigmoid": nn.functional.logsigmoid(layer_output),
    }
    for what, candidate in candidates.items():
        if output.shape == candidate.shape and _close(output, candidate):
            raise ValueError(
                f"`network` must return the outputs of its last linear layer, but {what} follows {name!r}. Remove it and "
                "return the logits: the likelihood applies it."
            )
    if output.numel() == layer_output.numel() and _close(output.reshape(layer_output.shape), layer_output):
        raise ValueError(
            f"`network` must return outputs of shape {tuple(layer_output.shape)}, but those of {name!r} are reshaped to "
            f"{tuple(output.shape)}. Remove the last reshape or squeeze."
        )
    raise ValueError(
        f"`network` must end in a linear layer, but its output differs from that of {name!r}, the linear layer taken as "
        "its head. Remove what follows that layer, or name another with `head`."
    )


def _without(module: nn.Module, layer: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """The module with `layer` replaced by the identity: containers on the way to it are new, everything else is shared."""
    if module is layer:
        return nn.Identity()
    if all(part is not layer for part in module.modules()):
        return module
    if id(module) not in copies:
        copy = copies[id(module)] = module.__class__.__new__(module.__class__)
        copy.__dict__ = dict(module.__dict__)
        children = {k: None if m is None else _without(m, layer, copies) for k, m in module._modules.items()}
        copy.__dict__["_modules"] = children
    return copies[id(module)]


def _verify_split(backbone: Backbone, model: Model, theta: Tensor, name: str, output: Tensor, example: Any) -> None:
    reason = ""
    try:
        features = backbone(example)
        if not isinstance(features, Tensor) or features.shape != (len(output), model.head.num_features):
            reason = f"the rest of the network gives {getattr(features, 'shape', type(features))}"
        elif not _close(model(theta, features.to(theta.dtype)), output.to(theta.dtype), half=features.dtype != theta.dtype):
            reason = "its outputs differ"
    except Exception as error:  # whatever the user's forward does without its layer, the split has failed
        reason = f"the rest of the network fails with {type(error).__name__}: {error}"
    if reason:
        raise ValueError(
            f"`head` {name!r} does not reproduce the network: {reason}. The layer must be called once, on features of shape "
            "(N, P), as the last step; use `extract_features` with a backbone of your own and `Target.last_layer` otherwise."
        )


def _close(a: Tensor, b: Tensor, half: bool = False) -> bool:
    tolerance = 2e-2 if half or a.dtype in (torch.float16, torch.bfloat16) else 1e-4 if a.dtype == torch.float32 else 1e-9
    scale = max(float(b.abs().max()), 1e-30)
    return bool(torch.isfinite(a).all()) and float((a - b).abs().max()) <= tolerance * scale


@torch.no_grad()
def extract_features(
    backbone: nn.Module,
    data: Iterable[Any] | tuple[Any, ...],
    *,
    device: torch.device | str | None = None,
    batch_size: int = 512,
) -> Batch:
    """Runs the backbone once over the data, in eval mode and without gradients, and keeps features and targets.

    Args:
        backbone: a module that returns features (N, P), as `split_last_layer` gives it.
        data: a loader of `(x, targets)` or `(x, targets, weights)` batches, or one such tuple of tensors.
        device: where inputs go and features stay; the backbone's own when not given.
        batch_size: rows per pass when `data` is a tuple of tensors.

    Returns:
        A `Batch`; half-precision features are kept as float32.
    """
    check_at_least("batch_size", batch_size, 1)
    where = torch.device(device) if device is not None else _device_of(backbone)
    chunks: list[list[Tensor]] = []
    with evaluation_mode(backbone):
        for x, *rest in _batches(data, batch_size):
            features = backbone(x.to(where) if isinstance(x, Tensor) else x)
            features = features if features.dtype == torch.float64 else features.float()
            chunks.append([features, *(torch.as_tensor(part).to(where) for part in rest)])
            if len({len(part) for part in chunks[-1]}) != 1:
                raise ValueError(
                    f"`data` must give columns of one length in every batch, got {[len(part) for part in chunks[-1]]} "
                    f"(features first) in batch {len(chunks)}. Check that inputs and targets come from the same split."
                )
            if len(chunks[-1]) != len(chunks[0]):
                raise ValueError(
                    f"`data` must give the same columns in every batch, got {len(chunks[0])}, then {len(chunks[-1])}. "
                    "Give weights with all batches or with none."
                )
    if not chunks:
        raise ValueError("`data` must hold at least one batch, got an empty loader. Check the data set and the sampler.")
    return Batch(*(torch.cat(column) for column in zip(*chunks, strict=True)))


def _batches(data: Iterable[Any] | tuple[Any, ...], batch_size: int) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, tuple):
        columns = tuple(torch.as_tensor(column) for column in data)
        _check_columns(columns)
        if len({len(column) for column in columns}) != 1:
            raise ValueError(
                f"`data` must have columns of one length, got {[len(column) for column in columns]}. "
                "Check that inputs and targets come from the same split."
            )
        for start in range(0, len(columns[0]), batch_size):
            yield tuple(column[start : start + batch_size] for column in columns)
        return
    for batch in data:
        columns = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        _check_columns(columns)
        yield columns


def _check_columns(columns: tuple[Any, ...]) -> None:
    if len(columns) not in (2, 3):
        raise ValueError(
            f"`data` must give (x, targets) or (x, targets, weights), got {len(columns)} column(s). "
            "Wrap the loader so that each batch is such a tuple."
        )


def _device_of(module: nn.Module) -> torch.device:
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")
