"""The state of a run of chains, and how it advances: warm-up with adaptation, then draws."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.inference.coordinates import Coordinates, Density
from burnish.inference.trajectory import Chains, Transition, Tuning, fraction, reasonable_step, transition

__all__: list[str] = []

_FIRST_WINDOW, _GROWTH, _SHARE = 15, 1.5, 0.7  # transitions between changes of coordinates; their share of the warm-up
_MAX_STEPS, _MAX_STEPS_EARLY = 512, 32  # of a trajectory, and while the coordinates are still poor
_FEW_DIVERGENCES = 1e-3  # share of the trajectories that may diverge in a flow's coordinates before they are left
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
    iteration: int = 0
    """Transitions since the warm-up began."""
    num_gradients: int = 0
    warmup_divergences: int = 0
    """In the last quarter of the warm-up, when the step size has found its place."""
    left_flow: bool = False
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


def begin(target: Density, coordinates: Coordinates, theta: Tensor, num_warmup: int, adapting: bool, accept: float) -> State:
    """Chains at given parameters, before the first transition; the step size is yet to be found."""
    chains = Chains.at(target, coordinates, coordinates.inverse(theta))
    return State(coordinates, chains, Tuning(accept, 1.0), num_warmup, adapting)


def advance(state: State, target: Density, *, generator: torch.Generator, max_steps: int = _MAX_STEPS) -> None:
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


def retreat(state: State, target: Density, *, generator: torch.Generator) -> bool:
    """Leaves a flow's coordinates for affine ones if more than a few trajectories diverged in them; whether it did."""
    if state.coordinates.kind != "flow" or not state.sampling:
        return False
    diverged = state.warmup_divergences + (0 if state.divergences is None else int(state.divergences))
    looked_at = (state.num_warmup - _settled(state.num_warmup) + len(state.draws)) * len(state.chains.z)
    if diverged <= _FEW_DIVERGENCES * looked_at:
        return False
    straight = state.coordinates.straightened(generator=generator)
    fresh = begin(target, straight, state.chains.theta, state.num_warmup, False, state.tuning.target_accept)
    fresh.num_gradients, fresh.seconds, fresh.left_flow = state.num_gradients, state.seconds, True
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
    size = max(4, _WINDOW_ENTRIES // state.chains.z.numel())
    state.window = (*state.window, state.chains.z)[-size:]
    if state.iteration + 1 in window_ends(state.num_warmup, state.adapting):
        _end_window(state, target, generator)


def _end_window(state: State, target: Density, generator: torch.Generator) -> None:
    """Moves chains that are stuck, takes coordinates that fit the window's draws, and adapts to them from the beginning."""
    stuck = (state.window[0] == state.window[-1]).all(1)
    if bool(stuck.any()) and not bool(stuck.all()):
        # where the density is too steep for the others' step size, a chain rejects for ever; it may start elsewhere as well
        free = (~stuck).nonzero().squeeze(1)
        index = torch.arange(len(stuck), device=stuck.device)
        index[stuck] = free[torch.randint(len(free), (int(stuck.sum()),), generator=generator, device=stuck.device)]
        state.chains = Chains(*(part[index] for part in vars(state.chains).values()))
    late = torch.cat(state.window[len(state.window) // 3 :])
    coordinates = state.coordinates.standardised(late[~stuck.repeat(len(late) // len(stuck))], anew=state.adapting)
    z = coordinates.flow.base.scale.solve(
        state.coordinates.flow.base.from_noise(state.chains.z) - coordinates.flow.base.mean
    )
    state.coordinates, state.window = coordinates, ()
    state.chains = Chains.at(target, coordinates, z)
    _restart(state, target, generator)


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
