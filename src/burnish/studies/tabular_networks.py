"""Networks with one hidden layer, many at once: weights are stacked, and all of them are trained by the same products."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from burnish._checks import check_at_least, check_memory

__all__ = ["Networks", "Training", "draw_networks", "train_networks"]


@dataclass(frozen=True)
class Training:
    """How networks are trained."""

    batch_size: int = 128
    num_epochs: int = 60
    min_steps: int = 1500
    max_steps: int = 4000
    learning_rate: float = 0.01
    """Of Adam, at the start of a cosine."""

    def num_steps(self, num_points: int) -> int:
        """For so many training points."""
        wanted = self.num_epochs * math.ceil(num_points / self.batch_size)
        return min(max(wanted, self.min_steps), self.max_steps)


@dataclass(frozen=True, eq=False)
class Networks:
    """K networks of the same size: ReLU units between two linear layers."""

    weight1: Tensor
    """(K, P, H)."""
    bias1: Tensor
    """(K, 1, H)."""
    weight2: Tensor
    """(K, H, C)."""
    bias2: Tensor
    """(K, 1, C)."""

    def __len__(self) -> int:
        return len(self.weight1)

    def __getitem__(self, which: slice | Tensor) -> "Networks":
        return Networks(*(tensor[which] for tensor in self.tensors()))

    def __add__(self, others: "Networks") -> "Networks":
        """These, then the others."""
        return Networks(*map(torch.cat, zip(self.tensors(), others.tensors(), strict=True)))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All parameters."""
        return self.weight1, self.bias1, self.weight2, self.bias2

    def hidden(self, inputs: Tensor) -> Tensor:
        """(K, N, H) activations for inputs (K, N, P)."""
        return torch.baddbmm(self.bias1, inputs, self.weight1).relu()

    def __call__(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """(K, N, C) outputs for inputs (K, N, P); `mask` (K, N, H) multiplies the hidden units."""
        hidden = self.hidden(inputs)
        return torch.baddbmm(self.bias2, hidden if mask is None else hidden * mask, self.weight2)

    def dropped(self, inputs: Tensor, masks: Tensor) -> Tensor:
        """(K, S, N, C) outputs under masks (K, S, H) of the hidden units, as one product.

        A mask is shared by all points of a draw: that changes nothing about the prediction for any one of them.
        """
        (num, points, _), draws, outputs = inputs.shape, masks.shape[1], self.weight2.shape[-1]
        needed = 8 * num * points * draws * outputs
        check_memory(f"predicting with {draws} masks", needed, inputs.device, "use fewer draws or fewer splits.")
        weights = (masks.unsqueeze(-1) * self.weight2.unsqueeze(1)).transpose(1, 2).reshape(num, -1, draws * outputs)
        found = torch.bmm(self.hidden(inputs), weights).view(num, points, draws, outputs).transpose(1, 2)
        return found + self.bias2.unsqueeze(1)

    def module(self, number: int) -> nn.Sequential:
        """One of them as a module, in eval mode."""
        weight1, bias1, weight2, bias2 = (tensor[number] for tensor in self.tensors())
        shapes = [weight.shape for weight in (weight1, weight2)]
        # without a draw from the global generator
        layers = [nn.Linear(wide, out, device="meta").to_empty(device=weight1.device) for wide, out in shapes]
        with torch.no_grad():
            for layer, weight, bias in zip(layers, (weight1, weight2), (bias1, bias2), strict=True):
                layer.weight.copy_(weight.T)
                layer.bias.copy_(bias[0])
        return nn.Sequential(layers[0], nn.ReLU(), layers[1]).eval()


def draw_networks(num: int, num_inputs: int, num_hidden: int, num_outputs: int, *, generator: torch.Generator) -> Networks:
    """Random ones, with He's variances and no biases."""
    check_at_least("num", num, 1)
    weight1 = torch.randn(num, num_inputs, num_hidden, generator=generator) * math.sqrt(2.0 / num_inputs)
    weight2 = torch.randn(num, num_hidden, num_outputs, generator=generator) * math.sqrt(1.0 / num_hidden)
    return Networks(weight1, torch.zeros(num, 1, num_hidden), weight2, torch.zeros(num, 1, num_outputs))


def train_networks(
    start: Networks,
    inputs: Tensor,
    targets: Tensor,
    training: Training,
    *,
    weight_decay: Tensor,
    offsets: Tensor,
    generator: torch.Generator,
    dropout: Tensor | None = None,
) -> Networks:
    """Trains all of them at once, by AdamW with a cosine: squared errors for numbers, cross-entropy for classes.

    Args:
        start: K networks.
        inputs: (D, N, P), of D data sets; network k learns from data set k modulo D.
        targets: (D, N), class indices or standardised numbers.
        training: how.
        weight_decay: (K,), AdamW's of each network.
        offsets: (K,) integers. The order of rows is drawn once for all; that of a network is shifted by its own, so networks
            see other batches, and yet the same ones however many are trained beside them.
        generator: of the order of rows, and of masks.
        dropout: (K,) shares of hidden units that are left out at each step; none when not given.
    """
    count, (num_sets, num_points, _) = len(start), inputs.shape
    if count % num_sets or targets.shape != inputs.shape[:2]:
        raise ValueError(
            f"`inputs` must hold as many sets as divide the {count} networks, with one target for each row, got "
            f"{tuple(inputs.shape)} and targets {tuple(targets.shape)}. Stack one set for each split."
        )
    owner = (torch.arange(count) % num_sets).unsqueeze(1)
    parameters = [tensor.clone().requires_grad_() for tensor in start.tensors()]
    networks = Networks(*parameters)
    optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)
    steps, size = training.num_steps(num_points), min(training.batch_size, num_points)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order, position = torch.randperm(num_points, generator=generator), 0
    for _ in range(steps):
        if position + size > num_points:
            order, position = torch.randperm(num_points, generator=generator), 0
        rows = (order[position : position + size] + offsets.unsqueeze(1)) % num_points
        position += size
        mask = None if dropout is None else draw_masks(dropout, size, start.weight2.shape[1], generator=generator)
        optimizer.zero_grad(set_to_none=True)
        _loss(networks(inputs[owner, rows], mask), targets[owner, rows]).backward()  # type: ignore[no-untyped-call]
        shrink = 1.0 - schedule.get_last_lr()[0] * weight_decay[:, None, None]  # AdamW's, of which an optimizer has but one
        with torch.no_grad():
            for tensor in parameters:
                tensor.mul_(shrink)
        optimizer.step()
        schedule.step()
    return Networks(*(tensor.detach() for tensor in parameters))


def draw_masks(dropout: Tensor, num_rows: int, num_hidden: int, *, generator: torch.Generator) -> Tensor:
    """(K, rows, H): zero for units left out, and what keeps the mean for the others."""
    kept = (1.0 - dropout)[:, None, None]
    return (torch.rand(len(dropout), num_rows, num_hidden, generator=generator) < kept) / kept


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum over networks of their mean losses: no network's gradient sees another."""
    if targets.is_floating_point():
        return 0.5 * (outputs.squeeze(-1) - targets).square().mean(1).sum()
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum") / targets.shape[1]
