"""A network, or some of its parameters, as a function of one flat vector: the head for posteriors past the last layer."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from burnish._checks import check_finite, check_like, check_tensor
from burnish.evaluation import check_evaluation, evaluation_mode
from burnish.heads import Model
from burnish.likelihoods import Categorical, Likelihood

__all__ = ["FlatNetwork", "flatten_network"]


class _WideProducts(TorchFunctionMode):
    """Linear layers as `weight @ inputs^T`: under many weights, inputs that they share then go into one wide product."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear and not kwargs and args[0].ndim > 1:
            inputs, weight, bias = (*args, None)[:3]
            outputs = (weight @ inputs.mT).mT
            return outputs if bias is None else outputs + bias
        return func(*args, **(kwargs or {}))


def plain_attention() -> AbstractContextManager[None]:
    """Attention without fused kernels, which can neither be batched nor differentiated forwards."""
    return sdpa_kernel(SDPBackend.MATH)


@dataclass(frozen=True, eq=False)
class FlatNetwork:
    """A network as a function of some of its parameters, flat and one after the other; the rest stays as it is.

    It shares the network, which is never modified, and always runs it in eval mode. `flatten_network` makes and verifies it.
    """

    network: nn.Module
    names: tuple[str, ...]
    """Of the parameters, and buffers, that theta holds, in its order."""
    shapes: tuple[tuple[int, ...], ...]
    num_outputs: int
    input_shape: tuple[int, ...]
    """Of one point."""
    entries: int
    """Numbers kept for one point under one parameter vector: all activations."""
    vectorised: bool = True
    """Whether many parameter vectors run at once, or one after the other where a layer cannot."""

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [torch.Size(shape).numel() for shape in self.shapes]

    @cached_property
    def _holds_buffers(self) -> bool:
        return not set(self.names) <= {name for name, _ in self.network.named_parameters(remove_duplicate=False)}

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters of one vector (d,) by name, as views: what `load_state_dict(..., strict=False)` takes."""
        parts = torch.split(theta, self._sizes, dim=-1)
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(*theta.shape[:-1], *shape) for name, part, shape in named}

    def flatten(self, network: nn.Module) -> Tensor:
        """The flat vector (d,) of another network of the same architecture, for instance one trained from another seed."""
        state = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers(remove_duplicate=False))
        found = {name: tuple(state[name].shape) if name in state else None for name in self.names}
        wrong = [name for name, shape in zip(self.names, self.shapes, strict=True) if found[name] != shape]
        if wrong:
            expected = dict(zip(self.names, self.shapes, strict=True))[wrong[0]]
            raise ValueError(
                f"`network` must have the same parameters as the one that was flattened, got {wrong[0]!r} of shape "
                f"{found[wrong[0]]} where {expected} was ({len(wrong)} differ). Pass networks of one architecture."
            )
        return torch.cat([state[name].detach().flatten() for name in self.names])

    def __call__(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """Outputs (..., N, C) for parameters (..., d) and inputs (N, ...)."""
        if theta.shape[-1:] != (self.dim,):
            raise ValueError(
                f"`theta` must have {self.dim} entries in its last dimension, got shape {tuple(theta.shape)}. "
                "Pass what `flatten_network` gave, or samples of its posterior."
            )
        with evaluation_mode(self.network):
            if theta.ndim == 1:
                return self.run(theta, inputs)
            rows = theta.flatten(0, -2)
            if self.vectorised and len(rows) > 1:
                with _WideProducts(), plain_attention():
                    outputs: Tensor = torch.func.vmap(self.run, in_dims=(0, None))(rows, inputs)
            else:
                outputs = torch.stack([self.run(row, inputs) for row in rows])
        return outputs.view(*theta.shape[:-1], *outputs.shape[1:])

    def run(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """The outputs under one vector (d,), in whatever mode the network is."""
        outputs: Tensor = torch.func.functional_call(self.network, self.unflatten(theta), (inputs,))
        return outputs

    def linearise(self, theta: Tensor, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Outputs, and the transpose of their Jacobian by theta, to be used once."""
        if self._holds_buffers:
            raise ValueError(
                "`theta` must hold parameters only to be differentiated, got buffers as well, such as running statistics. "
                "Flatten the network with `buffers=False`."
            )
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            outputs = self(leaf, inputs)
        return outputs.detach(), lambda cotangents: torch.autograd.grad(outputs, leaf, cotangents)[0]

    def check_inputs(self, name: str, inputs: Tensor) -> None:
        """Refuses points of another shape than those the network was flattened with, or not of its parameters' kind."""
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise ValueError(
                f"`{name}` must have shape {('N', *self.input_shape)} for this network, got {tuple(inputs.shape)}. "
                "Pass raw inputs, in the form of the `example` that it was flattened with."
            )
        check_like(name, inputs, attrgetter(self.names[0])(self.network), "the network")


def flatten_network(
    network: nn.Module,
    parameters: Iterable[str] | None = None,
    *,
    example: Tensor,
    likelihood: Likelihood | None = None,
    buffers: bool = False,
) -> tuple[Model, Tensor]:
    """A network as a model of one flat vector: `model(theta, x) == network(x)`, verified on `example`.

    Args:
        network: a trained network in eval mode, which takes a tensor of inputs and returns outputs (N, C).
        parameters: names of parameters, or of modules for all parameters in them, for instance the last two layers; all of
            the network's when not given. The others keep their values.
        example: a batch of inputs, of at least one point.
        likelihood: how outputs explain targets; `Categorical()` when not given.
        buffers: whether floating-point buffers of the same modules, such as the running statistics of batch norm, are part
            of theta too: members of an ensemble differ in them. No prior makes sense for them.

    Returns:
        The model, whose head is a `FlatNetwork`, and the network's own parameters as one vector.

    Raises:
        ValueError: where a name does not exist, the network is not in eval mode or its outputs are random.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"`network` must be a torch.nn.Module, got {type(network).__name__}. Pass the trained module.")
    check_tensor("example", example)
    if example.ndim < 2 or len(example) == 0:
        raise ValueError(f"`example` must be a batch of at least one point, got shape {tuple(example.shape)}.")
    check_evaluation(network)
    tensors: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    if buffers:
        named = network.named_buffers(remove_duplicate=False)
        tensors |= {name: buffer for name, buffer in named if buffer.is_floating_point()}
    chosen = _choose(tensors, parameters)
    theta = torch.cat([tensor.detach().flatten() for tensor in chosen.values()])
    check_finite("network", theta, "Its parameters must be numbers; check the training.")
    outputs = _run(network, example)
    head = FlatNetwork(
        network=network,
        names=tuple(chosen),
        shapes=tuple(tuple(tensor.shape) for tensor in chosen.values()),
        num_outputs=outputs.shape[1],
        input_shape=tuple(example.shape[1:]),
        entries=outputs.shape[1],
    )
    head = replace(_verified(head, theta, example, outputs), entries=_count_entries(head, theta, example))
    return Model(head, Categorical() if likelihood is None else likelihood), theta


def _choose(tensors: dict[str, Tensor], parameters: Iterable[str] | None) -> dict[str, Tensor]:
    """Those of the names, or of the modules named, in the network's own order, and under their first name if tied."""
    if not tensors:
        raise ValueError("`network` must have parameters, got none. Pass a trained network.")
    first_names = {id(tensor): name for name, tensor in reversed(tensors.items())}
    chosen = {name: tensor for name, tensor in tensors.items() if first_names[id(tensor)] == name}
    if parameters is not None:
        if not isinstance(parameters, Iterable):
            raise TypeError(
                f"`parameters` must be names, got {parameters!r}. Pass a list of those of `network.named_parameters()`."
            )
        names = [parameters] if isinstance(parameters, str) else list(parameters)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"`parameters` must be names, got {type(name).__name__}. Pass those of `network.named_parameters()`."
                )
            if name not in tensors and not any(other.startswith(f"{name}.") for other in tensors):
                modules = {other.rpartition(".")[0] for other in tensors} - {""}
                close = get_close_matches(name, [*tensors, *modules], cutoff=0.0)
                raise ValueError(
                    f"`parameters` must name parameters or modules of the network, got {name!r}, which it does not have. "
                    f"The closest are: {', '.join(map(repr, close))}."
                )
        wanted = {id(v) for k, v in tensors.items() if any(k == name or k.startswith(f"{name}.") for name in names)}
        chosen = {name: tensor for name, tensor in chosen.items() if id(tensor) in wanted}
        if not chosen:
            raise ValueError("`parameters` must name at least one parameter, got none. Leave it out for all of them.")
    first = next(iter(chosen.values()))
    if first.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"`network` must be float32 or float64, got {first.dtype}. Convert it with `network.float()`.")
    for name, tensor in chosen.items():
        check_like(f"network: {name}", tensor, first, f"its {next(iter(chosen))!r}")
    return chosen


def _run(network: nn.Module, example: Tensor) -> Tensor:
    """The network's outputs (N, C); refuses a network that fails, or changes its inputs."""
    inputs = example.clone()  # a layer that works in place must not change the user's
    try:
        with torch.no_grad(), evaluation_mode(network):
            outputs = network(inputs)
    except Exception as error:  # whatever the user's forward raises
        raise ValueError(
            f"`network` must take the `example` it is given, but fails with {type(error).__name__}: {error}. "
            "Pass inputs of the shape, type and device that it was trained with."
        ) from error
    if not torch.equal(inputs, example):
        raise ValueError(
            "`network` must leave its inputs as they are, but a layer changes them in place. Make it `inplace=False`."
        )
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(example):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"`network` must return outputs of shape ({len(example)}, C), got {what}. Wrap it to return those.")
    check_finite("network(example)", outputs, "Check the network's weights and the example.")
    return outputs


def _count_entries(head: FlatNetwork, theta: Tensor, example: Tensor) -> int:
    """How many numbers are kept for one point to differentiate its outputs, besides parameters and inputs."""
    shared = [theta, example, *head.network.parameters(), *head.network.buffers()]
    own = {tensor.untyped_storage().data_ptr() for tensor in shared}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    buffers = {name for name, _ in head.network.named_buffers(remove_duplicate=False)}  # which have no derivatives
    with torch.enable_grad(), evaluation_mode(head.network), saved_tensors_hooks(count, lambda tensor: tensor):
        parts = head.unflatten(theta.detach().requires_grad_())
        parts = {name: part.detach() if name in buffers else part for name, part in parts.items()}
        outputs: Tensor = torch.func.functional_call(head.network, parts, (example,))  # held until all are counted
    return outputs.shape[1] - (-sum(kept.values()) // len(example))


@torch.no_grad()
def _verified(head: FlatNetwork, theta: Tensor, example: Tensor, outputs: Tensor) -> FlatNetwork:
    """The head, run one vector at a time if it must be; refuses one that does not reproduce the network."""
    scale = max(1.0, float(outputs.abs().max()))
    tolerance = 1e-3 if theta.dtype == torch.float32 else 1e-8  # sums in another order
    if float((head(theta, example) - outputs).abs().max()) > tolerance * scale:
        raise ValueError(
            "`network` must give the same outputs every time, got different ones for the same inputs. "
            "Switch off what is random in its forward pass, such as a functional dropout with training=True."
        )
    try:
        together = head(theta.expand(2, -1), example)
    except RuntimeError:  # a layer that cannot be batched over its weights, such as an LSTM
        return replace(head, vectorised=False)
    if float((together - outputs).abs().max()) > tolerance * scale:
        return replace(head, vectorised=False)
    return head
