"""One network in training: its steps as tensor operations alone, so that a GPU can replay them without waiting for Python.

Parameters lie in one flat vector and gradients in another: an update is a few operations on all of them at once. The clock,
the learning rates and the order of the points are tensors too, and a step reads where it is from the clock; hence a step
that was captured as a CUDA graph is the whole step. Random numbers of an epoch come from its number and the seed, so that
what has been interrupted after an epoch goes on as if it had not been.
"""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from burnish.encoding import plain_copy
from burnish.inference.flipout import kl_divergence, variational_network
from burnish.inference.variational_layers import VariationalLayer
from burnish.studies.recipes import Recipe

__all__ = ["Run", "network_inputs"]

_ALIGNMENT = 64  # entries that each parameter begins at a multiple of
_MARGIN = 4  # pixels around an image that crops may reach into
_WARMUPS = 3  # steps before a graph is captured, in which libraries choose their kernels
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Run:
    """A network with its data, its optimiser and its clock, all on one device."""

    def __init__(self, network: nn.Module, pixels: Tensor, labels: Tensor, recipe: Recipe, seed: int) -> None:
        if len(pixels) < recipe.batch_size:
            raise ValueError(
                f"`batch_size` must be at most {len(pixels)}, the number of points, got {recipe.batch_size}. "
                "Pass a smaller one."
            )
        device = pixels.device
        self.seed, self.recipe, self.device = seed, recipe, device
        self.mixed = recipe.mixed_precision and _computes_in_bfloat16(device)
        self.noise = torch.Generator(device)
        self.shuffle = torch.Generator(device)
        network = network.to(device)
        if recipe.initial_std is not None:
            options: Any = {"initial_std": recipe.initial_std, "estimator": recipe.estimator}
            network = variational_network(network, generator=self.noise, **options)
            if recipe.mean_spread is not None:
                _draw_means(network, recipe.mean_spread, seed)
        self.network = network.train()
        self.num_steps = len(pixels) // recipe.batch_size
        self._source, self._labels = pixels, labels
        self._pixels = pixels.clone() if recipe.augment else pixels
        self._order = torch.zeros(self.num_steps, recipe.batch_size, dtype=torch.int64, device=device)
        self._rates = recipe.rates(self.num_steps).to(device)
        self._kicks = recipe.kicks(self.num_steps, len(pixels)).to(device)
        self._flat, self._grad = _flatten(self.network)
        names = {"sgd": ("velocity",), "sghmc": ("velocity",), "adam": ("first", "second")}[recipe.optimizer]
        self._moments = {name: torch.zeros_like(self._flat) for name in names}
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), device=device)
        self._graph: Any = None
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._wait()  # that stream does not wait for what is still being made in another

    def state(self) -> dict[str, Tensor]:
        """All that steps change: tensors that `copy_` into restores."""
        buffers = {f"buffer.{name}": buffer for name, buffer in self.network.named_buffers()}
        return {"flat": self._flat, "clock": self._clock, **self._moments, **buffers}

    def weights(self) -> dict[str, Tensor]:
        """A copy of the network's own state, on the CPU."""
        self._wait()
        return {name: plain_copy(value) for name, value in self.network.state_dict().items()}

    def is_finite(self) -> bool:
        """Whether all that steps change is; once the epoch is finished."""
        return all(bool(torch.isfinite(value).all()) for value in self.state().values())

    def begin(self, epoch: int) -> None:
        """A new order of the points, and another look of the images."""
        with self._in_stream():
            self.noise.manual_seed(_derived(self.seed, epoch, "noise"))
            self.shuffle.manual_seed(_derived(self.seed, epoch, "shuffle"))
            order = torch.randperm(len(self._source), generator=self.shuffle, device=self.device)
            self._order.copy_(order[: self._order.numel()].view_as(self._order))
            if self.recipe.augment:
                self._pixels.copy_(augmented(self._source, generator=self.shuffle))
            self._loss.zero_()

    def step(self) -> None:
        """One step; on a GPU it is only queued."""
        if self._stream is None:
            self._advance()
            return
        if self._graph is None:
            self._graph = self._captured()
        with self._in_stream():
            self._graph.replay()

    def finish(self) -> float:
        """The mean loss of the epoch."""
        self._wait()
        return float(self._loss) / self.num_steps

    def _advance(self) -> None:
        rows = self._order.index_select(0, self._clock % self.num_steps).squeeze(0)
        inputs = network_inputs(self._pixels.index_select(0, rows))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            outputs = self.network(inputs)
        loss = cross_entropy(outputs.float(), self._labels.index_select(0, rows))
        self._loss.add_(loss.detach())
        if self.recipe.initial_std is not None and self.recipe.kl_weight > 0.0:
            num_points = len(self._source)
            divergence = kl_divergence(self.network, self.recipe.prior_precision)
            loss = loss + self.recipe.kl_weight / num_points * divergence
        self._grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        self._clock.add_(1)

    @torch.no_grad()
    def _update(self) -> None:
        recipe, grad = self.recipe, self._grad
        rate = self._rates.index_select(0, self._clock)
        grad.add_(self._flat, alpha=recipe.weight_decay)
        if recipe.optimizer == "adam":
            first, second = self._moments["first"], self._moments["second"]
            first.lerp_(grad, 1.0 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(grad, grad, value=1.0 - _BETAS[1])
            count = (self._clock + 1).double()
            shrink, widen = ((1.0 - beta**count).float() for beta in _BETAS)
            self._flat.sub_(rate / shrink * first / ((second / widen).sqrt() + _EPSILON))
            return
        velocity = self._moments["velocity"]
        if recipe.optimizer == "sgd":
            velocity.mul_(recipe.momentum).add_(grad)
            self._flat.sub_(rate * grad.add_(velocity, alpha=recipe.momentum))
            return
        kick = torch.randn(len(velocity), generator=self.noise, device=self.device)
        velocity.mul_(recipe.momentum).sub_(rate * grad).add_(self._kicks.index_select(0, self._clock) * kick)
        self._flat.add_(velocity)

    def _captured(self) -> Any:
        """A step as a CUDA graph; what the steps that warm it up have changed is put back."""
        before = {name: value.clone() for name, value in self.state().items()}
        self._wait()
        with self._in_stream():
            for _ in range(_WARMUPS):
                self._advance()
                self._clock.copy_(before["clock"])  # there may be fewer steps left than these
        self._wait()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.noise)
        with torch.cuda.graph(graph, stream=self._stream):
            self._advance()
        for name, value in self.state().items():
            value.detach().copy_(before[name])
        self._loss.zero_()
        self.noise.manual_seed(self.noise.initial_seed())  # a graph is captured before the first step of an epoch
        self._wait()
        return graph

    def _in_stream(self) -> Any:
        return torch.cuda.stream(self._stream)  # without one, nothing

    def _wait(self) -> None:
        if self._stream is not None:
            torch.cuda.synchronize(self.device)


def network_inputs(stored: Tensor) -> Tensor:
    """What a network takes, from what is stored: pixels between 0 and 1, channels last; words as they are."""
    if stored.dtype != torch.uint8:
        return stored
    return (stored.float() / 255.0).contiguous(memory_format=torch.channels_last)  # as tensor cores want it


def augmented(pixels: Tensor, *, generator: torch.Generator) -> Tensor:
    """Images (N, C, H, W), each mirrored by chance and cropped by chance out of itself with a margin of black."""
    count, _, height, width = pixels.shape
    device = pixels.device
    padded = pad(pixels, (_MARGIN,) * 4)
    corners = torch.randint(2 * _MARGIN + 1, (2, count, 1), generator=generator, device=device)
    mirrored = torch.randint(2, (count, 1), generator=generator, device=device, dtype=torch.bool)
    columns = torch.arange(width, device=device).expand(count, width)
    columns = corners[1] + torch.where(mirrored, columns.flip(1), columns)
    rows = corners[0] + torch.arange(height, device=device)
    chosen = torch.arange(count, device=device).view(-1, 1, 1)
    return padded[chosen, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def _computes_in_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for it: a CPU without them would emulate it, and take longer than in float32."""
    if device.type != "cpu":
        return True
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not say
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


@torch.no_grad()
def _draw_means(network: nn.Module, std: float, seed: int) -> None:
    """Means of variational layers, drawn anew."""
    generator = torch.Generator().manual_seed(_derived(seed, 0, "weights"))
    for layer in (part for part in network.modules() if isinstance(part, VariationalLayer)):
        for mean, _ in layer.moments().values():
            mean.copy_(std * torch.randn(mean.shape, generator=generator))


def _flatten(network: nn.Module) -> tuple[Tensor, Tensor]:
    """Moves parameters and gradients into one vector each, of which they become views, and returns these."""
    parameters = list(network.parameters())
    starts = [0]
    for parameter in parameters:
        starts.append(starts[-1] + math.ceil(parameter.numel() / _ALIGNMENT) * _ALIGNMENT)
    flat, grad = (torch.zeros(starts[-1], device=parameters[0].device) for _ in range(2))
    for start, parameter in zip(starts, parameters, strict=False):
        span = slice(start, start + parameter.numel())
        view = _shaped(flat[span], parameter.shape)
        view.copy_(parameter.detach())
        parameter.data, parameter.grad = view, _shaped(grad[span], parameter.shape)
    return flat, grad


def _shaped(values: Tensor, shape: torch.Size) -> Tensor:
    """A view; of kernels with the channels last, which is how tensor cores want them."""
    if len(shape) != 4:
        return values.view(shape)
    return values.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)


def _derived(seed: int, epoch: int, purpose: str) -> int:
    """Another seed for each purpose and epoch."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch} {purpose}".encode()).digest()[:7], "big")
