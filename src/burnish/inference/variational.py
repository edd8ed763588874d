"""Variational inference with a Gaussian: the mean and the scale that maximise the ELBO.

A full Gaussian over a linear head is found by Newton's method (full_gaussian.py), any other by stochastic gradient ascent: a
standard normal pushed through linear layers that `fit_flow` learns.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice, check_memory, check_positive
from burnish.bijections import Bijection
from burnish.heads import LinearHead
from burnish.inference.flow import PLATEAU, check_pairs, choose_evaluation_samples, elbo_terms, fit_flow, standard_error
from burnish.inference.full_gaussian import check_rounds_memory, climb_rounds
from burnish.linear_bijections import DiagonalScale, LowRankStretch, Shift, Triangular
from burnish.noise import check_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Dense, Diagonal, LowRank
from burnish.target import Target

__all__ = ["VbFit", "fit_vb"]

STRUCTURES = ("full", "low_rank", "diagonal", "start")
_COPIES = 12  # of a d x d matrix: parameters, their gradient, Adam's averages, and what automatic differentiation keeps
_FULL_SAMPLES = 32  # of a step along the gradient, for a full Gaussian
_ROUND_ENTRIES = 2**21  # outputs computed for a round, where that allows between 256 and 4096 samples


@dataclass(frozen=True, eq=False)
class VbFit:
    """A Gaussian, and how its ELBO rose."""

    posterior: Gaussian
    elbo: float
    """Evidence lower bound of the posterior in nats, on all data and fresh samples."""
    elbo_standard_error: float
    start_elbo: float
    """The same for the Gaussian that the ascent began at."""
    gain: float
    gain_standard_error: float
    trace: Tensor
    """(steps, 2): the ELBO estimated at each step, or round of Newton's method, and its standard error."""
    converged: bool
    """Whether the ELBO had stopped rising when the steps ended."""
    batch_size: int | None
    """Points seen at each step; None for all of them."""
    seconds: float


def fit_vb(
    target: Target,
    start: Gaussian,
    *,
    generator: torch.Generator,
    structure: str = "diagonal",
    rank: int = 10,
    num_samples: int | None = None,
    batch_size: int | str | None = "auto",
    learning_rate: float = 0.1,
    max_steps: int = 1000,
    stop_early: bool = True,
) -> VbFit:
    """Fits the Gaussian with the largest ELBO.

    A full one over a linear head in a few rounds, in each of which gradient and curvature are averaged over the Gaussian
    there is, and a Gaussian is put where they point. Others by stochastic gradient ascent with reparameterised samples, as
    linear layers that `fit_flow` learns: what is said there about samples, batches and stopping holds for these.

    Args:
        target: the log posterior of a linear head, or of a `FlatNetwork`.
        start: the Gaussian to begin at; of one with another structure than is asked for, mean and marginal widths. One of
            low rank keeps the directions along which it is wider than elsewhere.
        generator: on the device of the start.
        structure: "full" (of a network, only where d is small: d^2 parameters are learnt), "low_rank" (a diagonal, and wider
            along `rank` directions), "diagonal" (mean field), or "start": the start's own directions, for instance those of
            a Kronecker-factored Laplace posterior, with widths and a mean of their own, at the cost of mean field.
        rank: of "low_rank".
        num_samples: of the posterior at each step; when not given for "full" 256 in a round, or more where they cost
            little, and 32 for a network, whose many parameters fewer leave to chance, and otherwise as in `fit_flow`.
        batch_size: points at each step of an ascent; None for all, "auto" for as few as do no harm. A round sees all.
        learning_rate: of Adam; rounds have none.
        max_steps: an upper bound when stopping early, otherwise the number of steps; rounds end when none raises the ELBO.
        stop_early: whether to end once the ELBO has stopped rising.
    """
    began = time.perf_counter()
    check_choice("structure", structure, STRUCTURES)
    check_at_least("rank", rank, 1)
    if not isinstance(start, Gaussian):
        raise TypeError(
            f"`start` must be a Gaussian, got {type(start).__name__}. Pass `fit_laplace(target).posterior`, say."
        )
    target.check_theta(start.mean, "start")
    check_generator(generator, start.mean.device)
    linear = isinstance(target.model.head, LinearHead)
    if num_samples is None and structure == "full":
        size = len(target.data) * target.model.head.entries
        num_samples = 2 * min(2048, max(128, _ROUND_ENTRIES // (2 * size))) if linear else _FULL_SAMPLES
    base = _begin(start, structure, linear)
    if structure == "full" and linear:
        if batch_size not in ("auto", None):
            raise ValueError(f"`batch_size` must be left out for a full Gaussian, got {batch_size}. Rounds see all points.")
        check_positive("learning_rate", learning_rate, "Rounds have none: leave it out.")
        return _full(target, base, num_samples, max_steps, stop_early, generator, began)
    layers = _layers(base, start, structure, rank, generator)
    fit = fit_flow(
        target,
        base,
        generator=generator,
        bijections=layers,
        num_samples=num_samples,
        batch_size=batch_size,
        learning_rate=learning_rate,
        # what a stretch or a triangle adds to a row grows with many parameters at once: larger steps run away
        epsilon=1.0 if structure in ("low_rank", "full") else None,
        max_steps=max_steps,
        stop_early=stop_early,
    )
    posterior = _gaussian(base, fit.posterior.bijections[:-1])  # the last one whitens
    if structure == "low_rank" and _wide_directions(start) is not None:  # then the base is not what the ascent began at
        began_at = _gaussian(base, layers)
        return _judged(target, began_at, posterior, generator, fit.trace, fit.converged, fit.batch_size, began)
    return VbFit(
        posterior=posterior,
        elbo=fit.elbo,
        elbo_standard_error=fit.elbo_standard_error,
        start_elbo=fit.base_elbo,
        gain=fit.gain,
        gain_standard_error=fit.gain_standard_error,
        trace=fit.trace,
        converged=fit.converged,
        batch_size=fit.batch_size,
        seconds=time.perf_counter() - began,
    )


def _full(
    target: Target,
    base: Gaussian,
    num_samples: int | None,
    max_steps: int,
    stop_early: bool,
    generator: torch.Generator,
    began: float,
) -> VbFit:
    """By rounds, compared with where they began."""
    assert num_samples is not None
    check_pairs("num_samples", num_samples, True)
    check_at_least("max_steps", max_steps, 1)
    rounds = climb_rounds(
        target,
        base,
        num_samples=num_samples,
        max_rounds=max_steps,
        stop_early=stop_early,
        plateau=PLATEAU * base.dim,
        generator=generator,
    )
    return _judged(target, base, rounds.gaussian, generator, rounds.trace, rounds.converged, None, began)


def _judged(
    target: Target,
    start: Gaussian,
    found: Gaussian,
    generator: torch.Generator,
    trace: Tensor,
    converged: bool,
    batch_size: int | None,
    began: float,
) -> VbFit:
    """The better of the Gaussian that a fit began at and the one it found, by the same samples."""
    noise = standard_normal(choose_evaluation_samples(target), start.mean, generator=generator, noise="antithetic")
    first, last = (elbo_terms(target, FlowPosterior(each, ()), noise) for each in (start, found))
    if not float((last - first).mean()) > 0.0:
        found, last = start, first
    return VbFit(
        posterior=found,
        elbo=float(last.mean()),
        elbo_standard_error=float(standard_error(last, antithetic=True)),
        start_elbo=float(first.mean()),
        gain=float((last - first).mean()),
        gain_standard_error=float(standard_error(last - first, antithetic=True)),
        trace=trace,
        converged=converged,
        batch_size=batch_size,
        seconds=time.perf_counter() - began,
    )


def _begin(start: Gaussian, structure: str, linear: bool) -> Gaussian:
    """The start in the structure asked for."""
    if structure == "start":
        return start
    if structure == "full":
        instead = "use structure='low_rank' or 'diagonal' instead."
        if linear:
            check_rounds_memory(start.dim, start.mean, instead)
        else:
            size = _COPIES * start.dim**2 * start.mean.element_size()
            check_memory(f"a full Gaussian of {start.dim} parameters", size, start.mean.device, instead)
        if isinstance(start.scale, Dense):
            return start
        return Gaussian(start.mean, Dense.from_covariance(start.scale.covariance()))
    if structure == "low_rank" and (scale := _wide_directions(start)) is not None:
        return Gaussian(start.mean, Diagonal(scale.std))  # its directions are taken over too
    return Gaussian(start.mean, Diagonal(start.scale.variance().sqrt()))


def _layers(base: Gaussian, start: Gaussian, structure: str, rank: int, generator: torch.Generator) -> list[Bijection]:
    shift, width = Shift.identity(base.mean), DiagonalScale.identity(base.mean)
    if structure == "full":
        return [Triangular.identity(base.mean), shift]
    if structure == "low_rank":
        return [_stretch(base, start, rank, generator), width, shift]
    return [width, shift]


def _stretch(base: Gaussian, start: Gaussian, rank: int, generator: torch.Generator) -> LowRankStretch:
    """Along random directions, but for those in which a start of low rank is wider already."""
    stretch, scale = LowRankStretch.random(base.mean, rank, generator=generator), _wide_directions(start)
    if scale is None:
        return stretch
    wider = (scale.stretch > 1.0).nonzero().flatten()
    wider = wider[scale.stretch[wider].argsort(descending=True)][:rank]
    factor = stretch.factor
    factor[:, : len(wider)] = scale.vectors[:, wider] * (scale.stretch[wider] - 1.0).sqrt()
    return LowRankStretch.of(factor)


def _wide_directions(start: Gaussian) -> LowRank | None:
    """The scale of a start that is a diagonal, but for directions along which it is wider: the form of what is fitted."""
    scale = start.scale
    wider = isinstance(scale, LowRank) and scale.inner is None and bool((scale.stretch >= 1.0).all())
    return scale if wider and isinstance(scale, LowRank) else None


@torch.no_grad()
def _gaussian(base: Gaussian, layers: Sequence[Bijection]) -> Gaussian:
    """The base pushed through linear layers, in the base's coordinates."""
    mean, scale = base.mean, base.scale
    for layer in layers:
        if isinstance(layer, Triangular):
            assert isinstance(scale, Dense)
            scale = Dense((scale.factor.double() @ layer.matrix().double()).to(mean.dtype))
        elif isinstance(layer, LowRankStretch):
            assert isinstance(scale, Diagonal)
            vectors, values, _ = torch.linalg.svd(layer.factor.double(), full_matrices=False)
            scale = LowRank(scale.std, vectors.to(mean.dtype), (1.0 + values**2).to(mean.dtype))
        elif isinstance(layer, DiagonalScale) and isinstance(scale, LowRank) and scale is not base.scale:
            scale = LowRank(scale.std * layer.log_scale.exp(), scale.vectors, scale.stretch)  # outside of the stretch
        elif isinstance(layer, DiagonalScale):
            scale = scale.stretched(layer.log_scale.exp())
        elif isinstance(layer, Shift):
            mean = base.from_noise(layer.offset)
    return Gaussian(mean, scale)
