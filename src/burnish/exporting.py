"""A Bayesian network as one graph without Python: an ONNX file, or a program of `torch.export`.

The graph holds the backbone and the samples of its last layer as constants, takes batches of any size, draws nothing, and
returns what a prediction consists of under names.
"""

import importlib.util
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from burnish._checks import check_choice
from burnish.batches import num_rows, to_device
from burnish.features import Backbone, call_arguments, call_network, place_of
from burnish.heads import Model
from burnish.likelihoods import Bernoulli, GaussianNoise
from burnish.storage import check_place, replace_file

__all__: list[str] = []

FORMATS = ("onnx", "torch")
_MAX_ONNX_BYTES = 2**31 - 2**24  # of a protobuf message, less some room for the graph itself
_ANY_SIZE = (
    "Take the number of points from the input where it is needed, as in `x.flatten(1)` or `x.reshape(x.shape[0], -1)`, and "
    "not as a number or by `int(...)`."
)


class NamedOutputs(nn.Module):
    """The backbone and the samples of its last layer as a function with named inputs and outputs, for `torch.export`."""

    samples: Tensor
    weights: Tensor

    def __init__(self, backbone: Backbone, model: Model, samples: Tensor, weights: Tensor | None, independent: bool) -> None:
        super().__init__()
        self.backbone, self.model = backbone, model
        alike = samples.new_full((len(samples),), 1.0 / len(samples))
        self.alike = weights is None
        self.register_buffer("samples", samples.detach())
        self.register_buffer("weights", alike if weights is None else weights.detach())
        self.correction = len(samples) / (len(samples) - 1) if independent and len(samples) > 1 else 1.0

    def name_inputs(self, names: list[str]) -> None:
        """Gives `forward` arguments of these names, by which torch.export calls inputs."""

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return self.outputs(self.backbone(*args, **kwargs))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        self.forward = forward

    @property
    def output_names(self) -> list[str]:
        """Of what the graph returns, in its order."""
        if isinstance(self.model.likelihood, GaussianNoise):
            return ["mean", "epistemic_variance", "variance"]
        return ["log_probs", "entropy", "mutual_information"]

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        """The formulas of `average_outputs`, with nothing that must be known before the graph runs."""
        likelihood = self.model.likelihood
        outputs = self.model(self.samples, features.to(self.samples.dtype))
        mean = likelihood.average(outputs, None if self.alike else self.weights)
        if isinstance(likelihood, GaussianNoise):
            spread = torch.tensordot(self.weights, (outputs - mean).square(), 1) * self.correction
            values = (mean, spread, spread + likelihood.std**2)
        else:
            binary = isinstance(likelihood, Bernoulli)
            log_probs = logsigmoid(torch.cat([-mean, mean], dim=-1)) if binary else mean
            each = logsigmoid(torch.cat([-outputs, outputs], dim=-1)) if binary else outputs.log_softmax(-1)
            entropy, expected = _entropy(log_probs), torch.tensordot(self.weights, _entropy(each), 1)
            values = (log_probs, entropy, (entropy - expected).clamp_min(0.0))
        return dict(zip(self.output_names, values, strict=True))


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


def export_network(path: str | os.PathLike[str], graph: NamedOutputs, example: Any, format: str) -> None:
    """Writes the graph to one file, at once or not at all; the network is as it was afterwards."""
    check_choice("format", format, FORMATS)
    check_place(path)
    home, dtype = place_of(graph.backbone, graph.samples.device)
    if format == "onnx":
        _check_onnx(graph.backbone, graph.samples)
    # states of generators come back, whatever the network does with them
    own = torch.random.fork_rng(devices=[home] if home.type == "cuda" else [])
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(home.type, enabled=False), own, _silence():
        x = _check_example(to_device(example, home, dtype))
        _check_batches(graph.backbone, graph.model, x)
        program, names = _trace(graph, x)
        content = _onnx_bytes(program, names, graph.output_names) if format == "onnx" else _torch_bytes(program)
    replace_file(path, content)


def _check_onnx(backbone: Backbone, samples: Tensor) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"`format` 'onnx' needs the package {' and '.join(missing)}. Install it with `pip install 'burnish[onnx]'`, or "
            "pass format='torch'."
        )
    tensors = [*backbone.parameters(), *backbone.buffers(), samples]
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        raise ValueError(
            "`format` 'onnx' needs a network in float32 or float16, which runtimes compute in, got one in bfloat16. "
            "Call `.float()` first, or pass format='torch'."
        )
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > _MAX_ONNX_BYTES:
        raise ValueError(
            f"`format` 'onnx' keeps all weights in one file of at most 2 GB, got {size / 1e9:.1f} GB. "
            "Pass format='torch', or export fewer samples."
        )


def _check_example(x: Any) -> Any:
    """A batch of tensors: entries that are None are left out of a dictionary."""
    if isinstance(x, Mapping):
        x = {key: part for key, part in x.items() if part is not None}
    parts = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, list | tuple) else [x]
    for part in parts:
        if not isinstance(part, Tensor) or part.ndim == 0:
            what = "a number" if isinstance(part, Tensor) else type(part).__name__
            raise TypeError(
                f"`example` must be a batch of tensors, one row per point, got {what}. "
                "Pass inputs as the network takes them: a tensor, or a dictionary of tensors."
            )
    if not parts or num_rows(x) == 0:
        raise ValueError("`example` must hold at least one point, got none. Pass a batch of inputs.")
    return x


def _rows(x: Any, count: int) -> Any:
    """A batch of that many points, some of them twice where there are not enough."""
    return _map(lambda tensor: tensor[torch.arange(count, device=tensor.device) % len(tensor)], x)


def _map(function: Callable[[Tensor], Any], x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: function(value) for key, value in x.items()}
    return type(x)(map(function, x)) if isinstance(x, list | tuple) else function(x)


def _check_batches(backbone: Backbone, model: Model, x: Any) -> None:
    """Refuses, in words of the network rather than of a tracer, what has no graph for every batch."""
    for count in (num_rows(x), 2, 3):
        try:
            features = call_network(backbone, _rows(x, count))
            size = tuple(features.shape)
        except Exception as error:  # whatever the user's forward raises
            if count == num_rows(x):
                raise ValueError(
                    f"`example` must be inputs that the network takes, but it fails with {type(error).__name__}: {error}. "
                    "Pass them as in training: shape, type and form."
                ) from error
            raise ValueError(
                f"`network` must take batches of any size, but with {count} points of `example` it fails with "
                f"{type(error).__name__}: {error}. {_ANY_SIZE}"
            ) from error
        if size != (count, model.linear_head.num_features):
            raise ValueError(
                f"`network` must give one row of {model.linear_head.num_features} features for each point, got shape {size} "
                f"for {count} points of `example`. {_ANY_SIZE}"
            )
    if not torch.equal(features, call_network(backbone, _rows(x, 3))) and bool(torch.isfinite(features).all()):
        raise ValueError(
            "`network` must give the same features for the same input, and it does not. Remove what draws random numbers "
            "in its forward, such as a dropout that ignores `.eval()`."
        )


def _trace(graph: NamedOutputs, x: Any) -> tuple[torch.export.ExportedProgram, list[str]]:
    """The program for a batch of any size, and the names of its inputs."""
    backbone = graph.backbone
    args, kwargs = call_arguments(backbone, _rows(x, 2))  # of 0 or 1 points, shapes would be taken for constants
    parameters = inspect.signature(backbone.network.forward).parameters
    known = [name for name in parameters if name in kwargs]
    kwargs = {name: kwargs[name] for name in (*known, *(key for key in kwargs if key not in known))}
    plain = [name for name, parameter in parameters.items() if parameter.kind in (0, 1)]  # those with a place
    signature = [*(plain or ["x"])[: len(args)], *kwargs]
    graph.name_inputs(signature)
    batch = torch.export.Dim("batch", min=1)
    values = dict(zip(signature, (*args, *kwargs.values()), strict=True))
    names = [name for key, value in values.items() for name in _leaf_names(key, value)]
    if shared := sorted(set(names) & set(graph.output_names)):
        raise ValueError(
            f"`network` must not have inputs with names of the graph's outputs, got {', '.join(map(repr, shared))}. Rename "
            "the argument of its forward, or wrap it."
        )
    shapes = {name: _map(lambda tensor: {0: batch}, value) for name, value in values.items()}
    try:
        program = torch.export.export(graph, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # of many kinds
        lines = str(error).strip().splitlines() or [""]
        if "specialized" in str(error) or "Constraints violated" in str(error):
            raise ValueError(
                f"`network` must take batches of any size, but its forward makes the number of points a constant: "
                f"{' '.join(lines[:2])[:300]} {_ANY_SIZE}"
            ) from error
        raise ValueError(
            f"`network` must be a graph of tensor operations, but `torch.export` fails with {type(error).__name__}: "
            f"{lines[0][:300]} Remove branches on values of tensors and calls of `.item()` from its forward."
        ) from error
    for node in program.graph.nodes:  # lines of the user's source, and where it lies, are nobody else's business
        node.meta.pop("stack_trace", None)
    return program, names


def _leaf_names(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return list(map(str, value))
    return [f"{name}_{index}" for index in range(len(value))] if isinstance(value, list | tuple) else [name]


def _torch_bytes(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _onnx_bytes(program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> bytes:
    try:
        converted = torch.onnx.export(program, f=None, input_names=inputs, output_names=outputs, dynamo=True, verbose=False)
    except Exception as error:  # operations that ONNX does not have
        raise ValueError(
            f"`network` must consist of operations that ONNX has, but the conversion fails with {type(error).__name__}: "
            f"{(str(error).strip().splitlines() or [''])[0][:300]} Pass format='torch'."
        ) from error
    assert converted is not None
    proto = converted.model_proto
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for dim in (dim for value in values for dim in value.type.tensor_type.shape.dim):
        if symbol and dim.dim_param:
            dim.dim_param = dim.dim_param.replace(symbol, "batch")
    for part in (
        proto.graph,
        *proto.graph.node,
        *proto.functions,
        *(node for each in proto.functions for node in each.node),
    ):
        del part.metadata_props[:]  # stack traces of the exporter among them
    content: bytes = proto.SerializeToString()
    return content


@contextmanager
def _silence() -> Iterator[None]:
    """No warnings and no log lines of the exporters, which tell users about packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
