"""What `fit_paper_flows` climbs: the flows and the log posteriors of many problems, each as one set of tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from burnish._checks import check_memory
from burnish.bijections import Radial
from burnish.heads import LinearHead
from burnish.target import Target

__all__ = ["StackedFlows", "StackedTargets"]


@dataclass(frozen=True, eq=False)
class StackedFlows:
    """Radial flows of all lengths and problems: the longest first, and those of one length in the order of the problems.

    The flows that have a layer are then the first ones, so that every layer acts on a slice. Parameters lie by layer, then
    by flow; a layer that a flow does not have takes no place.
    """

    center: Tensor
    """(layers of all flows, d)."""
    raw: Tensor
    """(layers of all flows, 2): raw_alpha and raw_gamma."""
    flow: Tensor
    """(layers of all flows,): whose layer it is."""
    sizes: tuple[int, ...]
    """How many flows have each layer."""
    lengths: tuple[int, ...]

    @classmethod
    def start(cls, layers: Sequence[Sequence[Radial]], lengths: Sequence[int]) -> "StackedFlows":
        """All lengths, in falling order, from the same layers (problems, longest)."""
        copies = [sum(length > depth for length in lengths) for depth in range(lengths[0])]
        stacked = [problem[depth] for depth, count in enumerate(copies) for _ in range(count) for problem in layers]
        center = torch.stack([layer.center for layer in stacked])
        raw = torch.stack([torch.stack([layer.raw_alpha, layer.raw_gamma]) for layer in stacked])
        sizes = tuple(count * len(layers) for count in copies)
        flow = torch.cat([torch.arange(size, device=center.device) for size in sizes])
        return cls(center.requires_grad_(), raw.requires_grad_(), flow, sizes, tuple(lengths))

    def forward(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Images (lengths, problems, d) of draws (problems, d), and log-determinants: `Radial.forward` in fewer calls."""
        shape = (len(self.lengths), *draw.shape)
        z = draw.expand(shape).flatten(0, 1)
        alpha, gamma = torch.split(softplus(self.raw), 1, dim=1)
        parts = [torch.split(part, list(self.sizes)) for part in (self.center, alpha, gamma - alpha)]
        done, radii = [], []
        for center, shift, beta in zip(*parts, strict=True):
            if len(center) < len(z):
                done.append(z[len(center) :])
                z = z[: len(center)]
            offset = z - center
            radii.append(torch.linalg.vector_norm(offset, dim=1, keepdim=True))
            z = torch.addcmul(z, offset, beta / (radii[-1] + shift))
        radius = torch.cat(radii)
        across = (radius + gamma).log() - (radius + alpha).log()
        along = (radius * (radius + 2 * alpha) + alpha * gamma).log() - 2 * (radius + alpha).log()
        logdets = ((draw.shape[1] - 1) * across + along).squeeze(1).double()
        logdet = logdets.new_zeros(self.sizes[0]).index_add(0, self.flow, logdets)
        return torch.cat([z, *reversed(done)]).view(shape), logdet.view(shape[:2])

    def layers(self, rank: int, problem: int) -> tuple[Radial, ...]:
        """The layers of one flow, with tensors of their own."""
        flow = rank * (self.sizes[0] // len(self.lengths)) + problem
        rows = (self.flow == flow).nonzero().squeeze(1)
        parts = zip(self.center.detach()[rows], *self.raw.detach()[rows].unbind(1), strict=True)
        return tuple(Radial(*(part.clone() for part in layer)) for layer in parts)


@dataclass(frozen=True, eq=False)
class StackedTargets:
    """The log posteriors of all problems, estimated from batches."""

    head: LinearHead
    bias: bool
    """Whether outputs have the bias that the parameters may have."""
    inputs: Tensor
    """(problems, N, P)."""
    labels: Tensor
    precision: Tensor
    """(problems, d), of the priors; so is `center`."""
    center: Tensor

    @classmethod
    def of(cls, targets: Sequence[Target], head: LinearHead, bias: bool) -> "StackedTargets":
        """The problems of several targets with one head."""
        first = targets[0].data.inputs
        num_bytes = len(targets) * first.numel() * first.element_size()
        check_memory(f"Stacking the features of {len(targets)} targets", num_bytes, first.device, "pass fewer at a time.")
        inputs, labels = (torch.stack([getattr(t.data, name) for t in targets]) for name in ("inputs", "targets"))
        values = ([t.prior_precision for t in targets], [t.prior_mean for t in targets])
        prior = [torch.stack([torch.as_tensor(v).to(first).expand(head.dim) for v in column]) for column in values]
        return cls(head, bias, inputs, labels, *prior)

    def log_prob(self, theta: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """At parameters (lengths, problems, d), float64, from points `rows` (problems, B) with weights (problems, B)."""
        count, classes = len(theta), self.head.num_outputs
        problems = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        features = self.inputs[problems, rows].transpose(1, 2)
        labels = self.labels[problems, rows][:, None, None].expand(-1, count, 1, -1)
        by_problem, size = theta.transpose(0, 1), classes * self.head.num_features
        outputs = by_problem[..., :size].reshape(len(rows), count * classes, -1) @ features
        outputs = outputs.view(len(rows), count, classes, -1)
        if self.bias:
            outputs = outputs + by_problem[..., size:].unsqueeze(-1)
        log_probs = outputs.log_softmax(2).gather(2, labels).squeeze(2)
        likelihood = (log_probs * weights.unsqueeze(1)).sum(-1, dtype=torch.float64)
        squares = (self.precision * (theta - self.center) ** 2).sum(-1, dtype=torch.float64)
        return likelihood.T + 0.5 * ((self.precision.double() / (2.0 * math.pi)).log().sum(-1) - squares)
