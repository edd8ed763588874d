"""Whether predictions stay where they are when a posterior's draws are moved by transitions that keep the exact posterior.

Metropolis-corrected transitions leave the exact posterior as it is. So predictions averaged over its draws move by no more
than Monte Carlo noise, and predictions averaged over draws of anything else drift towards the exact ones. This looks at
what is wanted of a posterior, its predictions, and works in any dimension. It cannot see a mode that no chain visits.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.errors import FitError
from burnish.heads import LinearHead, Model
from burnish.inference.coordinates import Coordinates
from burnish.inference.laplace import fit_laplace
from burnish.inference.sampler import State, advance, begin
from burnish.likelihoods import GaussianNoise
from burnish.linear_bijections import Affine
from burnish.posteriors import FlowPosterior, Gaussian, Posterior, SamplePosterior
from burnish.scales import Diagonal
from burnish.target import Target

__all__ = ["Drift"]

_NUM_WARMUP, _NUM_KEPT = 18, 16  # transitions that find step size and scales and lead away from the start, and that count
_MAX_ROUNDS = 4  # of both, while chains have not got anywhere
_MAX_STEPS, _TARGET_ACCEPT = 16, 0.8  # of a trajectory
_MIN_ACCEPT, _MIN_LENGTH = 0.5, 0.5  # below which chains have hardly moved, so that no drift means nothing
_OUTGROWN, _GROWTH, _GROWTH_ERROR = 4.0, 1.05, 0.25  # variances, by the posterior's own, and by those some transitions ago
_PRODUCTS = 2**30  # multiplications for one gradient, where that allows between 16 and 96 chains
_PREDICTION_ENTRIES = 2**13  # probabilities looked at for each draw: as many inputs as that allows
_SPREADS = 0.05, 20.0  # standard deviations of samples, by those of a Laplace posterior, that are believed
_MAX_SAMPLES = 4000  # of a posterior that is samples
_MOMENT_DRAWS = 500  # of a density that is neither a Gaussian nor a flow
_FEW, _NUM_SETS, _NUM_SPLITS = 20, 64, 16
_NUM_BINS = 20  # that the targets of a regression are cut into
_MATTERS = 0.01  # total variation distance that matters, however little noise there is
_BOUNDARY = 0.7  # of what is clearly wrong: half of it is clearly right, and this is the middle


@dataclass(frozen=True)
class Drift:
    """How far predictions moved, as mean total variation distance over inputs, and what to compare that with."""

    distance: float
    """Between the predictions of the posterior and those after the transitions, the noise taken off; 1, the largest there
    is, where chains could not move along some direction and nothing was measured.
    """
    noise: float
    """What the distance would be on average if the posterior were exact, by the spread between chains."""
    few_draws: float
    """How far predictions from 20 exact draws are from those of the exact posterior, on average."""
    accept_rate: float
    length: float
    """Of a trajectory in radians; a quarter turn crosses a standard normal."""
    growing: bool
    """Whether the variance of the draws still grew in the end, along directions where it has outgrown the posterior's."""
    num_chains: int
    num_inputs: int

    @property
    def tolerance(self) -> float:
        """The distance up to which predictions count as exact: by that of a few exact draws, and by what matters at all."""
        return _BOUNDARY * max(_MATTERS, 2.0 * self.few_draws)

    @property
    def moved(self) -> bool:
        """Whether the chains moved far and often enough, and got there, for the distance to mean anything."""
        return self.accept_rate >= _MIN_ACCEPT and self.length >= _MIN_LENGTH and not self.growing

    @property
    def exact(self) -> bool:
        """Whether the posterior's predictions are those of the exact posterior, for all that can be seen."""
        return self.moved and self.distance <= self.tolerance


@torch.no_grad()
def measure_drift(target: Target, posterior: Posterior, inputs: Tensor, *, generator: torch.Generator) -> Drift:
    """Moves draws of a posterior, and compares its predictions for inputs (M, P) with those of the draws after that."""
    head = target.model.head
    regression = isinstance(target.model.likelihood, GaussianNoise)
    cells = head.num_outputs * (_NUM_BINS if regression else 1)
    inputs = _some(inputs, max(1, _PREDICTION_ENTRIES // cells), generator)
    num_chains = min(96, max(16, _PRODUCTS // (len(target.data) * head.dim)))
    own = coordinates = _coordinates(target, posterior, generator)
    theta = posterior.sample(num_chains, generator=generator)
    for _ in range(_MAX_ROUNDS):
        state = begin(target, coordinates, theta, _NUM_WARMUP, target_accept=_TARGET_ACCEPT)
        try:
            for _ in range(_NUM_WARMUP + _NUM_KEPT):
                advance(state, target, generator=generator, max_steps=_MAX_STEPS)
        except FitError:  # no chain moves along some direction, so there is nothing to standardise it by
            return Drift(1.0, 0.0, 0.0, 0.0, 0.0, False, num_chains, len(inputs))
        drift = _compare(target, posterior, inputs, state, own, generator)
        if drift.moved or drift.distance > drift.tolerance:
            break
        coordinates, theta = state.coordinates, state.chains.theta  # still on their way: they go on, in longer strides
    return drift


def _compare(
    target: Target, posterior: Posterior, inputs: Tensor, state: State, own: Coordinates, generator: torch.Generator
) -> Drift:
    """The posterior's predictions and those of the chains; `own` are the posterior's coordinates."""
    assert state.accepted is not None
    regression, num_chains = isinstance(target.model.likelihood, GaussianNoise), len(state.chains.z)
    drawn = torch.stack(state.draws, dim=1).flatten(0, 1)
    edges = _edges(target.model, drawn, inputs) if regression else None
    ours = _probs(target.model, _draws(posterior, len(drawn), generator), inputs, edges)
    exact = _probs(target.model, drawn, inputs, edges)
    mean, by_chain = exact.mean(0), exact.view(num_chains, _NUM_KEPT, *exact.shape[1:]).mean(1)
    exact_noise = _noise(by_chain, generator)
    # the noise of samples is a part of them; that of draws made for this comparison is not the posterior's
    own_noise = 0.0 if isinstance(posterior, SamplePosterior) else _noise(ours, generator)
    raw = _distance(ours.mean(0), mean)
    few = sum(_distance(_some(exact, _FEW, generator).mean(0), mean) for _ in range(_NUM_SETS)) / _NUM_SETS
    noise = math.hypot(exact_noise, own_noise)
    return Drift(
        distance=math.sqrt(max(0.0, raw**2 - noise**2)),
        noise=noise,
        few_draws=math.hypot(few, exact_noise),
        accept_rate=float(state.accepted) / _NUM_KEPT,
        length=min(state.tuning.length, _MAX_STEPS * state.tuning.step_size),
        growing=_growing(state.draws, own),
        num_chains=num_chains,
        num_inputs=len(inputs),
    )


def _coordinates(target: Target, posterior: Posterior, generator: torch.Generator) -> Coordinates:
    """Those of a Gaussian or a flow; others have none, but moments in the coordinates of a Laplace posterior."""
    if isinstance(posterior, Gaussian | FlowPosterior):
        return Coordinates.of(posterior, generator=generator)
    draws, linear = _draws(posterior, _MOMENT_DRAWS, generator), isinstance(target.model.head, LinearHead)
    # a network has many modes, and the curvature where a draw is will do
    laplace = fit_laplace(target, None if linear else draws[0], structure="auto", recentre=linear).posterior
    white = laplace.scale.solve(draws - laplace.mean)
    base = Gaussian(white.mean(0), Diagonal(white.std(0, correction=0).clamp(*_SPREADS)))
    return Coordinates(FlowPosterior(base, (Affine(laplace.mean, laplace.scale),)), "affine")


def _growing(draws: tuple[Tensor, ...], coordinates: Coordinates) -> bool:
    """Chains that start much too close together spread slowly: their predictions have not drifted yet, but they will."""
    z = coordinates.inverse(torch.cat(draws)).view(2, -1, draws[0].shape[1])
    early, late = z.double().var(1)
    if not bool((early * late > 0.0).all()):
        return True  # they differ by less than numbers can show
    outgrown = (early * late).sqrt() > _OUTGROWN  # by both alike: large by chance, either would make the ratio so too
    count = int(outgrown.sum())
    if not count:
        return False
    ratio = float((late[outgrown] / early[outgrown]).log().mean().exp())
    return ratio > max(_GROWTH, 1.0 + _GROWTH_ERROR / math.sqrt(count))  # one ratio is known to a tenth or so


def _draws(posterior: Posterior, num_draws: int, generator: torch.Generator) -> Tensor:
    if isinstance(posterior, SamplePosterior):
        return _some(posterior.samples, _MAX_SAMPLES, generator)
    return posterior.sample(num_draws, generator=generator)


def _probs(model: Model, theta: Tensor, inputs: Tensor, edges: Tensor | None) -> Tensor:
    """Probabilities (S, M, K) of the classes, or of the intervals between edges."""
    outputs = model(theta, inputs)
    if edges is None:
        return model.likelihood.probs(outputs)
    assert isinstance(model.likelihood, GaussianNoise)
    below = torch.special.ndtr((edges - outputs.unsqueeze(-1)) / model.likelihood.std)
    ends = below.new_zeros(1).expand(*below.shape[:-1], 1)
    shares: Tensor = torch.cat([ends, below, 1.0 - ends], dim=-1).diff(dim=-1)
    return shares.flatten(2) / outputs.shape[2]


def _edges(model: Model, theta: Tensor, inputs: Tensor) -> Tensor:
    """Of intervals of the targets (M, C, bins - 1) that are about equally probable."""
    assert isinstance(model.likelihood, GaussianNoise)
    outputs = model(theta, inputs)
    spread = (outputs.var(0) + model.likelihood.std**2).sqrt()
    quantiles = torch.arange(1, _NUM_BINS, device=theta.device, dtype=theta.dtype) / _NUM_BINS
    normal: Tensor = torch.special.ndtri(quantiles)
    return outputs.mean(0).unsqueeze(-1) + spread.unsqueeze(-1) * normal


def _distance(one: Tensor, other: Tensor) -> float:
    return float(0.5 * (one - other).abs().sum(-1).mean())


def _noise(rows: Tensor, generator: torch.Generator) -> float:
    """How far the average of independent rows (S, M, K) is from its expectation, by averages of random halves of them."""
    half, total = len(rows) // 2, 0.0
    for _ in range(_NUM_SPLITS):
        order = torch.randperm(len(rows), generator=generator, device=rows.device)
        total += 0.5 * _distance(rows[order[:half]].mean(0), rows[order[half : 2 * half]].mean(0))
    return total / _NUM_SPLITS


def _some(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At random: a stride would meet whatever has a period."""
    return rows[torch.randperm(len(rows), generator=generator, device=rows.device)[:count]]
