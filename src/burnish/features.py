"""From a trained network to cached features: splitting off the last layer, and running the rest once."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_finite
from burnish.batches import Batch, read_batches, to_device
from burnish.evaluation import evaluation_mode
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Categorical, Likelihood

__all__ = ["Backbone", "extract_features", "split_last_layer"]


class Backbone(nn.Module):
    """A network without its last linear layer. It shares the network's parameters and always runs in eval mode."""

    def __init__(self, network: nn.Module, head: str = "") -> None:
        super().__init__()
        self.network = network
        self.head = head
        """The name that the layer had in the network."""
        self._layer: tuple[nn.Module, ...] = ()

    @classmethod
    def cut(cls, network: nn.Module, head: str) -> "Backbone":
        """The network without the layer of that name, unverified: `split_last_layer` verifies."""
        layer = network.get_submodule(head)
        backbone = cls(_without(network, layer, {}), head)
        backbone._layer = (layer,)  # in a tuple it is not a submodule
        return backbone

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves the layer that was cut off as well: the network it is shared with stays in one place."""
        for layer in self._layer:
            layer._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features (N, P) of the inputs, which are what the network takes."""
        with evaluation_mode(self.network):
            return self.network(*args, **kwargs)  # type: ignore[no-any-return]


def call_network(network: nn.Module, x: Any) -> Any:
    """The network's output for one batch of inputs, as `read_batches` gives them."""
    args, kwargs = call_arguments(network, x)
    return network(*args, **kwargs)


def call_arguments(network: nn.Module, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How one batch of inputs goes into a network.

    A dictionary goes in as keywords where the network's `forward` knows the keys; its only entry goes in by itself where
    it does not; failing both, the dictionary is the argument.
    """
    if not isinstance(x, Mapping):
        return (x,), {}
    inner = network.network if isinstance(network, Backbone) else network
    parameters = inspect.signature(inner.forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if takes_any or all(key in parameters for key in x):
        return (), dict(x)
    return (next(iter(x.values())) if len(x) == 1 else x,), {}


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
        backbone = Backbone.cut(network, name)
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
        output = call_network(network, example)
    except Exception as error:  # whatever the user's forward raises
        raise ValueError(
            f"`network` must take the inputs it is given, but on the first batch it fails with {type(error).__name__}: "
            f"{error}. Pass inputs of the shape, type and form that it was trained on."
        ) from error
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
        features = call_network(backbone, example)
        if not isinstance(features, Tensor) or features.shape != (len(output), model.linear_head.num_features):
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


def extract_features(
    backbone: nn.Module,
    data: Iterable[Any] | Mapping[str, Any] | tuple[Any, ...],
    *,
    device: torch.device | str | None = None,
    batch_size: int = 512,
) -> Batch:
    """Runs the backbone once over the data, in eval mode and without gradients, and keeps features and targets.

    Args:
        backbone: a module that returns features (N, P), as `split_last_layer` gives it.
        data: a loader whose batches are `(x, targets)`, `(x, targets, weights)` or dictionaries with the targets under
            "labels", "targets" or "y"; or one such tuple or dictionary of tensors or arrays; or a `Dataset`.
        device: where features stay; the backbone's own when not given, which is also where inputs go.
        batch_size: rows per pass where `data` does not come in batches.

    Returns:
        A `Batch`; half-precision features are kept as float32.
    """
    return extract_named("data", backbone, data, device=device, batch_size=batch_size)


@torch.no_grad()
def extract_named(
    name: str, backbone: nn.Module, data: Any, *, device: torch.device | str | None = None, batch_size: int = 512
) -> Batch:
    """`extract_features` for an argument of another name, for messages."""
    check_at_least("batch_size", batch_size, 1)
    home, dtype = place_of(backbone, device)
    where = home if device is None else torch.device(device)
    chunks: list[list[Tensor]] = []
    with evaluation_mode(backbone):
        for x, *rest in read_batches(name, data, batch_size):
            try:
                features = call_network(backbone, to_device(x, home, dtype))
            except Exception as error:  # whatever the user's forward raises
                raise ValueError(
                    f"`{name}` must hold inputs that the network takes, but on batch {len(chunks) + 1} it fails with "
                    f"{type(error).__name__}: {error}"
                ) from error
            if not bool(torch.isfinite(features).all()):
                raise ValueError(
                    f"`{name}` must give finite features, got NaN or infinity in batch {len(chunks) + 1}. "
                    "Check the network's activations on these points, or drop them."
                )
            features = features.to(where, torch.float64 if features.dtype == torch.float64 else torch.float32)
            chunks.append([features, *(part.to(where) for part in rest)])
            if len({len(part) for part in chunks[-1]}) != 1:
                raise ValueError(
                    f"`{name}` must give columns of one length in every batch, got {[len(part) for part in chunks[-1]]} "
                    f"(features first) in batch {len(chunks)}. Check that inputs and targets come from the same split."
                )
            if len(chunks[-1]) != len(chunks[0]):
                raise ValueError(
                    f"`{name}` must give the same columns in every batch, got {len(chunks[0])}, then {len(chunks[-1])}. "
                    "Give weights with all batches or with none."
                )
    if not chunks:
        raise ValueError(f"`{name}` must hold at least one batch, got an empty loader. Check the data set and the sampler.")
    return Batch(*(torch.cat(column) for column in zip(*chunks, strict=True)))


def place_of(module: nn.Module, otherwise: torch.device | str | None = None) -> tuple[torch.device, torch.dtype | None]:
    """Device and floating-point type of a module's parameters; of one without any, the other device and no type."""
    tensors = [*module.parameters(), *module.buffers()]
    dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    device = tensors[0].device if tensors else torch.device("cpu" if otherwise is None else otherwise)
    return device, dtypes[0] if dtypes else None
