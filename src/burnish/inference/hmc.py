"""Hamiltonian Monte Carlo: many chains as one batch, in coordinates that make the target nearly standard normal."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_like, check_memory, check_positive
from burnish.convergence import ess_tail, rhat
from burnish.errors import FitError
from burnish.inference.checkpoint import read_checkpoint, write_checkpoint
from burnish.inference.coordinates import Coordinates, Density
from burnish.inference.sampler import MAX_STEPS, State, advance, begin, leave_flow
from burnish.inference.stopping import Rule, stacked
from burnish.inference.trajectory import Chains
from burnish.noise import check_generator
from burnish.posteriors import FlowPosterior, Gaussian, Posterior, SamplePosterior
from burnish.progress import Stages
from burnish.target import Target

__all__ = ["HmcFit", "fit_hmc"]

_WARMUP, _WARMUP_ADAPTING = 90, 400  # transitions, where coordinates are given and where they have to be found
_MIN_WARMUP, _MIN_WARMUP_ADAPTING = 30, 60
_MANY_CHAINS, _SUPERCHAINS = 256, 16  # chains from which on they are taken to be short, and how many places they start at
_MIN_DRAWS, _MIN_DRAWS_NESTED = 50, 5
_PATIENCE = 20.0  # at least so many times as long as writing a checkpoint takes is sampled between two of them


@dataclass(frozen=True, eq=False)
class HmcFit:
    """Draws by chain, and whether they can be relied on."""

    posterior: SamplePosterior
    """Of all draws, chain after chain; `posterior.draws` has them by chain."""
    rhat: float
    """The largest rank-normalised split R-hat of all parameters."""
    nested_rhat: float | None
    """The largest nested R-hat, where chains started together in superchains."""
    ess_bulk: float
    """The smallest effective sample size of all parameters, for the centre of their distributions."""
    ess_tail: float
    """The same for the 5 % and 95 % quantiles."""
    converged: bool
    """Whether the rule held when sampling ended."""
    stopped_by: str
    """"rule", "max_draws" or "max_seconds"."""
    accept_rate: float
    divergences: int
    """Trajectories after the warm-up whose energy error was beyond all bounds."""
    relocated: int
    """Chains that could not move in a part of the warm-up and were put where another one was: where they started, there may
    be a mode that is now missing.
    """
    coordinates: str
    """"flow", "affine", or "adapted"; "affine after flow" where too many trajectories diverged in a flow's."""
    step_size: float
    length: float
    """Of a trajectory in radians, on average; a quarter turn crosses a standard normal."""
    num_warmup: int
    num_gradients: int
    """Evaluations of the target and its gradient for each chain, the warm-up included."""
    warmup_seconds: float
    seconds: float


def fit_hmc(
    target: Density,
    start: Posterior | Tensor | None = None,
    *,
    generator: torch.Generator,
    num_chains: int = 64,
    num_superchains: int | None = None,
    num_warmup: int | None = None,
    min_draws: int | None = None,
    max_draws: int = 2000,
    max_seconds: float | None = None,
    max_rhat: float = 1.01,
    min_ess: float = 400.0,
    target_accept: float = 0.8,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool = False,
) -> HmcFit:
    """Samples a target until its chains agree.

    It stops once the largest R-hat is below `max_rhat` and the smallest bulk effective sample size at least `min_ess`,
    looked at from `min_draws` draws on, whenever their number has grown by half; or when a budget ends. The result says why.
    Chains that started in superchains are judged by nested R-hat, which needs but a few draws of each.

    Args:
        target: anything with `dim` and `log_prob_and_grad(theta)`, such as a `Target`.
        start: a posterior, to draw the chains' starts from and to sample in its coordinates: a Gaussian whitens, a flow
            unbends, and its coordinates are left for affine ones if more than a few trajectories diverge in them. Or starts
            (C, d), or one for all (d,), or None for standard normal ones, in float64 unless the data of a `Target` are not;
            then coordinates are found during the warm-up.
        generator: on the device of the start.
        num_chains: moved together, one matrix product for all.
        num_superchains: places at which chains start together, for nested R-hat; from 256 chains on 16 when not given, where
            that divides their number and `start` is not a start for each of them, nor one for all.
        num_warmup: transitions in which step size, trajectory length and coordinates adapt; they are not kept.
        min_draws: of each chain before the rule is first looked at.
        max_draws: of each chain at most.
        max_seconds: at most, the warm-up included, looked at between transitions, each of which takes up to 512 gradients;
            draws then depend on the machine's speed.
        max_rhat: of the rule.
        min_ess: of the rule.
        target_accept: mean acceptance probability that the step size aims at; higher is slower and diverges less.
        checkpoint: a file to keep the state in. Where it exists, sampling goes on from it, to the same draws as if it had
            never stopped; `start` must be of the same kind and is not used, and the generator is set to the state it had. A
            process that is killed while it writes leaves the old state in place, and a `.burnish-*.tmp` beside it that may
            be deleted.
        checkpoint_seconds: between writing it, at least.
        progress: whether to show a bar with R-hat and effective sample size, if on a terminal.

    Raises:
        ValueError: where an argument does not fit, or the density is not finite at a start.
        FitError: where the time is up before there are `min_draws`, or no chain can move.
        MemoryError: where draws need more memory than there is.
    """
    began = time.perf_counter()
    several = not isinstance(start, Tensor) or (start.ndim == 2 and len(start) != num_chains)
    min_draws, num_superchains = _check_numbers(num_chains, num_superchains, several, min_draws, max_draws)
    rule = Rule(max_rhat, min_ess, num_superchains, min_draws, max_draws, max_seconds)
    adapting = start is None or isinstance(start, Tensor)
    least, usual = (_MIN_WARMUP_ADAPTING, _WARMUP_ADAPTING) if adapting else (_MIN_WARMUP, _WARMUP)
    num_warmup = usual if num_warmup is None else num_warmup
    check_at_least("num_warmup", num_warmup, least, "Step size and coordinates cannot adapt in fewer transitions.")
    options: dict[str, Any] = {"num_chains": num_chains, "num_superchains": num_superchains, "num_warmup": num_warmup}
    options["target_accept"] = target_accept
    check_positive("target_accept", target_accept, "Try 0.8, or 0.95 on divergences.")
    if target_accept >= 1.0:
        raise ValueError(f"`target_accept` must lie between 0 and 1, got {target_accept}. Try 0.8, or 0.95 on divergences.")
    check_positive("checkpoint_seconds", checkpoint_seconds, "Leave it out for half a minute.")
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise TypeError(f"`checkpoint` must be a path, got {type(checkpoint).__name__}. Pass the name of a file.")
    _check_target(target, min_draws * num_chains, generator)
    state = _start(target, start, options, generator)
    z = state.chains.z
    if checkpoint is not None and os.path.exists(checkpoint):
        state = read_checkpoint(checkpoint, target, z, generator, options)
    file = None if checkpoint is None else _File(checkpoint, checkpoint_seconds, options)
    earlier, ended = state.seconds, rule.look(state)  # a run that is resumed may have ended before
    if file is not None and ended is None:
        file.write(state, generator, now=True)  # what cannot be written is known before the work
    with Stages("hmc", show=progress) as stages, stages.stage("warm-up") as stage:
        while ended is None:
            advance(state, target, generator=generator)
            state.seconds = earlier + time.perf_counter() - began
            left = not rule.late(state) and leave_flow(state, target, generator=generator)
            if file is not None:
                file.write(state, generator, now=rule.late(state))  # before the rule may raise: more time can be given
            ended = None if left else rule.look(state)
            stage.describe(rule.describe(state))
    if file is not None:
        file.write(state, generator, now=True)
    fit = _result(state, rule, ended)
    return replace(fit, seconds=earlier + time.perf_counter() - began)


def _check_target(target: Density, num_draws: int, generator: torch.Generator) -> None:
    """Refuses what cannot be sampled, and draws that do not fit into memory."""
    if not hasattr(target, "log_prob_and_grad") or not hasattr(target, "dim"):
        raise TypeError(
            f"`target` must have `dim` and `log_prob_and_grad(theta)`, got {type(target).__name__}. Pass a `Target`."
        )
    check_at_least("target.dim", target.dim, 1, "It is the number of parameters.")
    check_generator(generator, getattr(generator, "device", torch.device("cpu")))
    size = 3 * num_draws * target.dim * 4  # as they come, by chain, and sorted to look at them; at least float32
    check_memory(f"{num_draws} draws of {target.dim} parameters", size, generator.device, "use fewer chains.")


def _check_numbers(
    num_chains: int, num_superchains: int | None, several: bool, min_draws: int | None, max_draws: int
) -> tuple[int, int | None]:
    """Refuses counts that do not fit each other; the first look at the rule, and the superchains."""
    check_at_least("num_chains", num_chains, 2, "R-hat compares chains.")
    if num_superchains is None and several and num_chains >= _MANY_CHAINS and num_chains % _SUPERCHAINS == 0:
        num_superchains = _SUPERCHAINS
    if num_superchains is not None:
        check_at_least("num_superchains", num_superchains, 2, "Nested R-hat compares superchains.")
        if num_chains % num_superchains or num_chains == num_superchains:
            raise ValueError(
                f"`num_superchains` must divide `num_chains` ({num_chains}) into groups of at least two, got "
                f"{num_superchains}. Pass a smaller divisor."
            )
        if not several:
            raise ValueError(
                f"`num_superchains` must come with a `start` for each of them, got {num_superchains} with one for each "
                f"chain or for all of them. Pass {num_superchains} starts, or leave it out."
            )
    check_at_least("max_draws", max_draws, 4, "R-hat needs that many draws of each chain.")
    if min_draws is None:
        min_draws = min(max_draws, _MIN_DRAWS if num_superchains is None else _MIN_DRAWS_NESTED)
    check_at_least("min_draws", min_draws, 4, "R-hat needs that many.")
    check_at_least("max_draws", max_draws, min_draws, "It is the budget of each chain; `min_draws` must fit into it.")
    return min_draws, num_superchains


def _start(target: Density, start: Posterior | Tensor | None, options: dict[str, Any], generator: torch.Generator) -> State:
    """The chains where they start, in the coordinates they start in."""
    num_chains: int = options["num_chains"]
    adapting = start is None or isinstance(start, Tensor)
    num_places = options["num_superchains"] or num_chains
    if start is None:
        dtype = target.data.inputs.dtype if isinstance(target, Target) else torch.float64
        start = torch.randn(num_places, target.dim, generator=generator, device=generator.device, dtype=dtype)
    if isinstance(start, Tensor):
        theta = _check_starts(start, target.dim, num_places, num_chains)
        check_generator(generator, theta.device)
        ones = torch.ones_like(theta[0])
        coordinates = Coordinates(FlowPosterior(Gaussian.standard(ones), ()), "adapted")
    else:
        _check_posterior(start, target.dim)
        theta = start.sample(num_places, generator=generator)
        try:
            coordinates = Coordinates.of(start, generator=generator)
        except FitError as error:
            raise ValueError("`start` must vary in every direction, got samples that do not. Pass more.") from error
    if isinstance(target, Target):
        check_like("start", theta, target.data.inputs, "`target.data.inputs`")
    theta = theta.repeat_interleave(num_chains // len(theta), 0)
    state = begin(
        target,
        coordinates,
        theta,
        options["num_warmup"],
        adapting=adapting,
        target_accept=options["target_accept"],
        chains_together=num_chains // num_places,
    )
    _check_density(state.chains)
    return state


def _check_posterior(start: Any, dim: int) -> None:
    if not callable(getattr(start, "sample", None)) or isinstance(start, type):
        raise TypeError(
            f"`start` must be a posterior, a tensor of starts (C, d), or None, got {type(start).__name__}. "
            "Pass `fit.posterior`, or convert an array with `torch.as_tensor`."
        )
    if getattr(start, "dim", None) != dim:
        raise ValueError(
            f"`start` must have the {dim} dimensions of the target, got {getattr(start, 'dim', type(start))}. "
            "Pass a posterior of the same parameters."
        )


def _check_density(chains: Chains) -> None:
    finite = torch.isfinite(chains.log_prob) & torch.isfinite(chains.grad).all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise ValueError(
            f"`target` must have a finite log density and gradient at every start, got a log density of "
            f"{float(chains.log_prob[first]):g} at chain {first} ({int((~finite).sum())} of {len(finite)} chains). "
            "Pass a `start` inside its support."
        )


def _check_starts(start: Tensor, dim: int, num_places: int, num_chains: int) -> Tensor:
    shapes = " or ".join(f"({count}, {dim})" for count in sorted({num_places, num_chains}))
    if start.shape[-1:] != (dim,) or start.ndim > 2 or (start.ndim == 2 and len(start) not in (num_places, num_chains)):
        raise ValueError(
            f"`start` must have shape ({dim},) or {shapes}, got {tuple(start.shape)}. "
            "Pass one row for all chains, one for each, or one for each superchain."
        )
    if not start.is_floating_point():
        raise TypeError(f"`start` must be floating point, got {start.dtype}. Convert it.")
    return start.detach().clone().expand(num_places, dim) if start.ndim == 1 else start.detach().clone()


@dataclass
class _File:
    """A checkpoint, written now and then."""

    path: str | os.PathLike[str]
    pause: float
    options: dict[str, Any]
    written: float = 0.0
    cost: float = 0.0

    def __post_init__(self) -> None:
        self.written = time.perf_counter()

    def write(self, state: State, generator: torch.Generator, *, now: bool) -> None:
        began = time.perf_counter()
        if now or began - self.written > max(self.pause, _PATIENCE * self.cost):
            write_checkpoint(self.path, state, generator, self.options)
            self.written = time.perf_counter()
            self.cost = self.written - began


def _result(state: State, rule: Rule, ended: str) -> HmcFit:
    """The fit, with what the last look saw."""
    draws = stacked(state)
    assert state.accepted is not None
    assert state.divergences is not None
    return HmcFit(
        posterior=SamplePosterior(draws.flatten(0, 1), num_chains=len(draws)),
        rhat=rule.rhat if rule.num_superchains is None else float(rhat(draws).max()),
        nested_rhat=rule.nested_rhat,
        ess_bulk=rule.ess,
        ess_tail=float(ess_tail(draws).min()),
        converged=ended == "rule",
        stopped_by=ended,
        accept_rate=float(state.accepted) / len(state.draws),
        divergences=int(state.divergences),
        relocated=state.relocated,
        coordinates=state.coordinates.kind + (" after flow" if state.left_flow else ""),
        step_size=state.tuning.step_size,
        length=min(state.tuning.length, MAX_STEPS * state.tuning.step_size),
        num_warmup=state.num_warmup,
        num_gradients=state.num_gradients,
        warmup_seconds=state.warmup_seconds,
        seconds=state.seconds,
    )
