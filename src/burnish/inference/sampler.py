"""The state of a run of chains, and how it advances: warm-up with adaptation, then draws."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.inference.coordinates import Coordinates, Density
from burnish.inference.trajectory import Chains, Transition, Tuning, fraction, reasonable_step, transition

__all__: list[str] = []

_FIRST_WINDOW, _GROWTH, _SHARE = 15, 1.5, 0.7  # transitions between changes of coordinates; their share of the warm-up
MAX_STEPS, _MAX_STEPS_EARLY = 512, 32  # of a trajectory, and while the coordinates are still poor
FEW_DIVERGENCES = 1e-3  # share of the trajectories that may diverge before a flow's coordinates, and trust, are lost
_FEW_BY_CHANCE = 3  # divergences that show nothing yet, however few trajectories there were
_FIRST_LOOK = 5  # draws of each chain after which divergences are first looked at
_WINDOW_ENTRIES = 2**26  # numbers kept to estimate coordinates from


@dataclass
class State:
    """All that the rest of a run depends on, beside the target and the generator."""

    coordinates: Coordinates
    chains: Chains
    tuning: Tuning
    num_warmup: int
    adapting: bool
    """Whether the warm-up looks for coordinates, or only standardises those it was given."""
    chains_together: int
    """Chains that follow each other and have started at the same place."""
    iteration: int = 0
    """Transitions since the warm-up began."""
    num_gradients: int = 0
    warmup_divergences: int = 0
    """In the last quarter of the warm-up, when the step size has found its place."""
    left_flow: bool = False
    relocated: int = 0
    """Chains that were put where another one was."""
    stuck: Tensor | None = None
    """Which chains (C,) have accepted nothing since the coordinates last changed."""
    accepted: Tensor | None = None
    """Sum of the chains' mean acceptance probabilities over all draws."""
    divergences: Tensor | None = None
    window: tuple[Tensor, ...] = ()
    """The chains' coordinates (C, d) after each transition since they last changed."""
    draws: tuple[Tensor, ...] = ()
    """Parameters (C, d) after each transition that counts, in the order of time."""
    warmup_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def sampling(self) -> bool:
        """Whether the warm-up is over."""
        return self.iteration >= self.num_warmup


def begin(
    target: Density,
    coordinates: Coordinates,
    theta: Tensor,
    num_warmup: int,
    *,
    adapting: bool = False,
    target_accept: float = 0.8,
    chains_together: int = 1,
) -> State:
    """Chains at given parameters, before the first transition; the step size is yet to be found."""
    chains = Chains.at(target, coordinates, coordinates.inverse(theta))
    return State(coordinates, chains, Tuning(target_accept, 1.0), num_warmup, adapting, chains_together)


def advance(state: State, target: Density, *, generator: torch.Generator, max_steps: int = MAX_STEPS) -> None:
    """One transition of at most so many steps, and what follows from it."""
    if state.iteration == 0:
        _restart(state, target, generator)
    early = state.adapting and state.iteration < _SHARE * state.num_warmup
    length, num_steps = state.tuning.plan(fraction(state.iteration), _MAX_STEPS_EARLY if early else max_steps)
    done = transition(target, state.coordinates, state.chains, length, num_steps, generator=generator)
    state.chains = done.chains
    state.num_gradients += num_steps
    if state.sampling:
        _keep(state, done)
    else:
        _adapt(state, target, done, generator)
    state.iteration += 1
    if state.iteration == state.num_warmup:
        state.tuning.settle()
        state.warmup_seconds = state.seconds


def is_due(num_draws: int, first: int) -> bool:
    """Whether to look at a run now: after `first` draws, and whenever their number has grown by half.

    It depends on nothing else, so that a run that was stopped and one that was not look at the same moments.
    """
    due = first
    while due < num_draws:
        due = max(due + 1, int(1.5 * due))
    return num_draws == due


def leave_flow(state: State, target: Density, *, generator: torch.Generator) -> bool:
    """Changes a flow's coordinates for affine ones if more than a few trajectories diverged in them; whether it did."""
    if state.coordinates.kind != "flow" or not state.sampling or not is_due(len(state.draws), _FIRST_LOOK):
        return False
    diverged = state.warmup_divergences + (0 if state.divergences is None else int(state.divergences))
    looked_at = (state.num_warmup - _settled(state.num_warmup) + len(state.draws)) * len(state.chains.z)
    if diverged <= max(_FEW_BY_CHANCE, FEW_DIVERGENCES * looked_at):
        return False
    straight = state.coordinates.straightened(generator=generator)
    accept, together = state.tuning.target_accept, state.chains_together
    theta, count = state.chains.theta, state.num_warmup
    fresh = begin(target, straight, theta, count, target_accept=accept, chains_together=together)
    fresh.num_gradients, fresh.relocated = state.num_gradients, state.relocated
    fresh.seconds, fresh.left_flow = state.seconds, True
    vars(state).update(vars(fresh))
    return True


def _settled(num_warmup: int) -> int:
    """The transition from which on the step size has found its place."""
    return 3 * num_warmup // 4


def _keep(state: State, done: Transition) -> None:
    accepted, diverged = done.accept_prob.mean(), done.diverged.sum()  # left on the device: nothing waits for them
    state.accepted = accepted if state.accepted is None else state.accepted + accepted
    state.divergences = diverged if state.divergences is None else state.divergences + diverged
    state.draws = (*state.draws, done.chains.theta)


def _adapt(state: State, target: Density, done: Transition, generator: torch.Generator) -> None:
    numbers = torch.stack([done.accept_prob.mean(), *done.jump, done.diverged.double().sum()])
    accept_prob, jump, jump_gradient, diverged = numbers.tolist()
    state.tuning.update(accept_prob, jump, jump_gradient)
    if state.iteration >= _settled(state.num_warmup):
        state.warmup_divergences += int(diverged)
    ends = window_ends(state.num_warmup, state.adapting)
    if state.iteration >= max(ends):
        return
    state.stuck = ~done.accepted if state.stuck is None else state.stuck & ~done.accepted
    size = max(4, _WINDOW_ENTRIES // state.chains.z.numel())
    state.window = (*state.window, state.chains.z)[-size:]
    if state.iteration + 1 in ends:
        _end_window(state, target, generator)


def _end_window(state: State, target: Density, generator: torch.Generator) -> None:
    """Moves chains that are stuck, takes coordinates that fit the window's draws, and adapts to them from the beginning."""
    assert state.stuck is not None
    stuck, state.stuck = state.stuck, None
    if bool(stuck.any()) and not bool(stuck.all()):
        _relocate(state, stuck, generator)
    late = torch.stack(state.window[len(state.window) // 3 :])[:, ~stuck]
    coordinates = state.coordinates.standardised(late, anew=state.adapting)
    z = coordinates.flow.base.scale.solve(
        state.coordinates.flow.base.from_noise(state.chains.z) - coordinates.flow.base.mean
    )
    state.coordinates, state.window = coordinates, ()
    state.chains = Chains.at(target, coordinates, z)
    _restart(state, target, generator)


def _relocate(state: State, stuck: Tensor, generator: torch.Generator) -> None:
    """Where the density is too steep for the others' step size, a chain rejects for ever; it may start elsewhere as well."""
    group = torch.arange(len(stuck), device=stuck.device) // state.chains_together
    lots = torch.rand(int(stuck.sum()), len(stuck), generator=generator, device=stuck.device)
    lots += (group[stuck].unsqueeze(1) == group).float()  # a chain of the same superchain, where one moves
    index = torch.arange(len(stuck), device=stuck.device)
    index[stuck] = lots.masked_fill(stuck, -1.0).argmax(1)
    state.chains = Chains(*(part[index] for part in vars(state.chains).values()))
    state.relocated += len(lots)


def _restart(state: State, target: Density, generator: torch.Generator) -> None:
    step, count = reasonable_step(target, state.coordinates, state.chains, generator=generator)
    state.num_gradients += 1 + count  # the chains have just been put into these coordinates
    state.tuning = Tuning(state.tuning.target_accept, step)


def window_ends(num_warmup: int, adapting: bool) -> set[int]:
    """Transitions after which coordinates change, with time left to adapt to the last ones.

    Given coordinates are looked at twice, before and after the chains have found their places; those that have to be found,
    in ever longer windows.
    """
    if not adapting:
        return {num_warmup // 3, 2 * num_warmup // 3}
    ends, length, end = set(), float(_FIRST_WINDOW), _FIRST_WINDOW
    while end <= _SHARE * num_warmup:
        ends.add(end)
        length *= _GROWTH
        end += int(length)
    return ends
