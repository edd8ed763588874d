"""The paper's refinement of many last layers, by flows of many lengths, all in step.

One such flow is `fit_flow` with the options of `paper_protocol`. Its steps are so small that most of their time goes into
starting operations. Here one operation serves all flows of all problems, and on a GPU a whole step is one captured graph.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_like, check_positive
from burnish.bijections import Radial
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.likelihoods import Categorical
from burnish.noise import check_generator, make_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.studies.stacked_flows import StackedFlows, StackedTargets
from burnish.target import Target

__all__ = ["PaperFlows", "fit_paper_flows"]

_BLOCK = 64  # steps whose draws of a base are made at once: a product with one vector costs almost as much
_WARM_UP = 3  # steps before a graph is captured, as many as torch asks for; they count like all others


@dataclass(frozen=True, eq=False)
class PaperFlows:
    """Refined posteriors of several problems, by flows of several lengths."""

    posteriors: tuple[tuple[FlowPosterior, ...], ...]
    """By problem, then by length, in the order they were given in."""
    elbo: Tensor
    """(problems, lengths, steps), float64: the ELBO estimated at each step, from one sample and one batch."""
    seconds: float


def fit_paper_flows(
    targets: Sequence[Target],
    bases: Sequence[Gaussian],
    lengths: Sequence[int],
    *,
    generators: Sequence[torch.Generator],
    num_epochs: int = 20,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    likelihood_bias: bool = True,
    graph: bool | None = None,
    callback: Callable[[int], None] | None = None,
) -> PaperFlows:
    """Refines every base by radial flows of every length, as the paper did it.

    Layers act on raw parameters and start at `Radial.uniform`. A step sees one sample of each posterior and one batch of
    each problem's shuffled data, its log-likelihood scaled by N over the batch's own size; the last batch of an epoch may
    be smaller. Adam's learning rate falls to zero along a cosine over all steps.

    A problem draws its start, batches and samples from streams of its own, and its flows share them. So a result depends,
    up to rounding, on its own generator alone: neither on other problems, nor on its place among them, nor on other
    lengths.

    Args:
        targets: of linear heads with a categorical likelihood, equal in shape; data and priors may differ.
        bases: the Gaussian to refine for each target.
        lengths: numbers of layers, all different.
        generators: one for each target, no two the same object, on the device of the bases.
        num_epochs: passes over the data.
        batch_size: points at each step.
        learning_rate: of Adam at the first step.
        likelihood_bias: False leaves the bias out of the outputs, though not out of the parameters and their prior: the
            target behind the paper's printed numbers.
        graph: whether to capture a step as a CUDA graph; when None, on a GPU.
        callback: called after each epoch with the number of epochs done.
    """
    began = time.perf_counter()
    head = _check_problems(targets, bases, generators)
    _check_options(lengths, num_epochs, batch_size, learning_rate)
    on_gpu = bases[0].mean.is_cuda
    if graph and not on_gpu:
        raise ValueError(f"`graph` must be None or False on {bases[0].mean.device}, got True. Move the problems to a GPU.")
    descending = sorted(lengths, reverse=True)
    num_points = len(targets[0].data)
    sources = [
        Source.seeded(base, num_points, batch_size, num_epochs, generator=generator)
        for base, generator in zip(bases, generators, strict=True)
    ]
    flows = StackedFlows.start([source.layers(descending[0]) for source in sources], descending)
    ascent = _Ascent(StackedTargets.of(targets, head, likelihood_bias and head.bias), flows, sources, learning_rate)
    with torch.cuda.device(bases[0].mean.device) if on_gpu else contextlib.nullcontext():
        ascent.run(on_gpu if graph is None else graph, callback)
    ranks = [descending.index(length) for length in lengths]
    elbo = ascent.trace[:, ranks].permute(2, 1, 0).contiguous()
    bad = (~elbo.isfinite().all(2)).nonzero().tolist()
    if bad:
        which = ", ".join(f"problem {problem} with {lengths[place]} layers" for problem, place in bad)
        raise FitError(f"the ascent left the finite numbers on {which}; use a smaller `learning_rate`.")
    posteriors = tuple(
        tuple(FlowPosterior(base, flows.layers(rank, problem)) for rank in ranks) for problem, base in enumerate(bases)
    )
    return PaperFlows(posteriors, elbo, time.perf_counter() - began)


@dataclass(frozen=True, eq=False)
class Source:
    """Everything random about one problem: where its layers start, and the batches and samples of all steps."""

    base: Gaussian
    num_points: int
    batch_size: int
    num_epochs: int
    generators: tuple[torch.Generator, ...]
    """Of the start, the batches and the samples: none can disturb another."""

    @classmethod
    def seeded(
        cls, base: Gaussian, num_points: int, batch_size: int, num_epochs: int, *, generator: torch.Generator
    ) -> "Source":
        """A source that takes three seeds from the generator; a batch has all points where there are not more."""
        return cls(base, num_points, min(batch_size, num_points), num_epochs, tuple(_child(generator) for _ in range(3)))

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold all points once."""
        return math.ceil(self.num_points / self.batch_size)

    def layers(self, count: int) -> list[Radial]:
        """Layers before the first step."""
        return [Radial.uniform(self.base.mean, generator=self.generators[0]) for _ in range(count)]

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """A draw of the base (d,), its log density (), a batch of points (B,) and their weights (B,), for each step."""
        like, samples = self.base.mean, self._samples()
        missing = self.steps_per_epoch * self.batch_size - self.num_points
        full = like.new_full((self.batch_size,), self.num_points / self.batch_size)
        last = like.new_full((self.batch_size,), self.num_points / (self.batch_size - missing))
        last[self.batch_size - missing :] = 0.0  # a captured step has batches of one size
        for _ in range(self.num_epochs):
            order = torch.randperm(self.num_points, generator=self.generators[1], device=like.device)
            batches = torch.split(torch.cat([order, order[:missing]]), self.batch_size)
            for batch in batches[:-1]:
                yield *next(samples), batch, full
            yield *next(samples), batches[-1], last

    def _samples(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            noise = standard_normal(_BLOCK, self.base.mean, generator=self.generators[2])
            yield from zip(self.base.from_noise(noise), self.base.log_prob_of_noise(noise), strict=True)


def _child(generator: torch.Generator) -> torch.Generator:
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return make_generator(seed, generator.device)


class _Ascent:
    """Adam on all flows at once. What changes from step to step lies at fixed addresses, as a captured step needs it."""

    def __init__(
        self, targets: StackedTargets, flows: StackedFlows, sources: Sequence[Source], learning_rate: float
    ) -> None:
        self.targets, self.flows, self.sources = targets, flows, sources
        self.parameters = [flows.center, flows.raw]
        self.num_steps = sources[0].num_epochs * sources[0].steps_per_epoch
        progress = torch.arange(self.num_steps, dtype=torch.float64) / self.num_steps
        rates = 0.5 * learning_rate * (1.0 + torch.cos(math.pi * progress))
        self.rates = rates.to(flows.center.device, torch.float32)
        # fused: it keeps its count of steps on the device and reads the rate there, where a graph sees them change
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.rates[0].clone(), fused=True)
        self.trace = torch.empty(
            self.num_steps, len(flows.lengths), len(sources), dtype=torch.float64, device=self.rates.device
        )
        self.elbo = torch.empty_like(self.trace[0])
        self.slots: list[Tensor] = []

    def run(self, graph: bool, callback: Callable[[int], None] | None) -> None:
        """All steps."""
        advance, epoch = self._step_aside if graph else self._step, self.sources[0].steps_per_epoch
        for number, values in enumerate(zip(*(source.steps() for source in self.sources), strict=True)):
            self._load(values, self.rates[number])
            if graph and number == _WARM_UP:
                advance = self._capture().replay
            advance()
            self.trace[number].copy_(self.elbo)
            if callback is not None and (number + 1) % epoch == 0:
                callback((number + 1) // epoch)
        if self.rates.is_cuda:
            torch.cuda.synchronize()  # before the graph goes

    def _load(self, values: tuple[tuple[Tensor, ...], ...], rate: Tensor) -> None:
        stacked = [torch.stack(parts) for parts in zip(*values, strict=True)]
        if not self.slots:
            self.slots = [*map(torch.empty_like, stacked), self.optimizer.param_groups[0]["lr"]]
        for slot, value in zip(self.slots, (*stacked, rate), strict=True):
            slot.copy_(value)

    def _step(self) -> None:
        draw, log_density, rows, weights, _ = self.slots
        with torch.enable_grad():  # the caller may have switched gradients off
            theta, logdet = self.flows.forward(draw)
            value = self.targets.log_prob(theta, rows, weights) + logdet
            gradients = torch.autograd.grad(-value.sum(), self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.elbo.copy_(value.detach() - log_density)

    def _step_aside(self) -> None:
        """A step on another stream, where torch wants those before a capture."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            self._step()
        here.wait_stream(aside)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self.optimizer.param_groups[0]["capturable"] = True  # only now: torch warns of steps outside a graph
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph


def _check_problems(
    targets: Sequence[Target], bases: Sequence[Gaussian], generators: Sequence[torch.Generator]
) -> LinearHead:
    """The head of all targets; refuses problems that do not fit each other."""
    for name, values in (("bases", bases), ("generators", generators)):
        if not targets or len(targets) != len(values):
            raise ValueError(f"`{name}` must be one for each of at least one target, got {len(values)} for {len(targets)}.")
    head, shape = targets[0].model.linear_head, targets[0].data.inputs.shape
    for index, (target, base) in enumerate(zip(targets, bases, strict=True)):
        if not isinstance(base, Gaussian):
            raise TypeError(f"`bases` must be Gaussians, got {type(base).__name__} at {index}. Pass a fit's `.posterior`.")
        if not isinstance(target.model.likelihood, Categorical) or target.data.weights is not None:
            raise ValueError(f"`targets` must be categorical and without weights, got another at {index}. Use `fit_flow`.")
        if target.model.head != head or target.data.inputs.shape != shape:
            raise ValueError(
                f"`targets` must have one head and features of one shape, {head} and {tuple(shape)}, got "
                f"{target.model.head} and {tuple(target.data.inputs.shape)} at {index}. Fit others separately."
            )
        target.check_theta(base.mean, f"bases[{index}]")
        check_like(f"bases[{index}]", base.mean, bases[0].mean, "the first one")
    if len(set(map(id, generators))) < len(generators):
        raise ValueError("`generators` must be different objects, got one of them twice. Make one for each target.")
    for generator in generators:
        check_generator(generator, bases[0].mean.device)
    return head


def _check_options(lengths: Sequence[int], num_epochs: int, batch_size: int, learning_rate: float) -> None:
    for name, value in (("num_epochs", num_epochs), ("batch_size", batch_size), *(("lengths", n) for n in lengths)):
        check_at_least(name, value, 1)
    if not lengths or len(set(lengths)) < len(lengths):
        raise ValueError(f"`lengths` must be different numbers of layers, at least one, got {list(lengths)}.")
    check_positive("learning_rate", learning_rate)
