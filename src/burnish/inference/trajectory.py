"""One Metropolis-corrected Hamiltonian transition of many chains at once, and how its step and length adapt.

The coordinates make the target roughly standard normal, so each step turns positions and momenta exactly as under a
standard normal, and kicks the momenta by what the target's gradient differs from it. The error of a step is then that of
the coordinates: where they are good, one or two steps cross the posterior, whatever its dimension; where the difference is
all there is, this is the leapfrog method.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.inference.coordinates import Coordinates, Density

__all__: list[str] = []

_DIVERGED = 1000.0  # nats of energy error from which on a trajectory counts as divergent
_SHORTEST_STEP, _LONGEST_STEP = 1e-10, 2.0  # radians: at a half turn (pi) the step resonates with the rotation
_SHORTEST, _LONGEST = 0.2, 12.0  # radians of a trajectory
_QUARTER_TURN = math.pi / 2.0  # decorrelates a standard normal
_RATE, _MEMORY = 0.05, 0.9  # of the ascent on the logarithm of the length
_OVERSHOOT = 1.25  # of the length in the end
_COST = 0.1  # power of the length that the criterion is divided by: where it is flat, shorter is cheaper
_SHRINKAGE, _OFFSET, _DECAY = 0.05, 10.0, 0.75  # of dual averaging, as Hoffman and Gelman (2014) have them


@dataclass(frozen=True, eq=False)
class Chains:
    """Where every chain is: coordinates (C, d), parameters (C, d), log density of the coordinates (C,), gradient (C, d)."""

    z: Tensor
    theta: Tensor
    log_prob: Tensor
    grad: Tensor

    @classmethod
    def at(cls, target: Density, coordinates: Coordinates, z: Tensor) -> "Chains":
        """Chains at given coordinates."""
        return cls(z, *coordinates.log_prob_and_grad(target, z))


@dataclass(frozen=True, eq=False)
class Transition:
    """What one transition did."""

    chains: Chains
    accept_prob: Tensor
    """(C,)."""
    accepted: Tensor
    """(C,)."""
    diverged: Tensor
    """(C,)."""
    jump: Tensor
    """ChEES, the criterion for the length, and its derivative by the logarithm of the length (2,), float64."""


@torch.no_grad()
def transition(
    target: Density, coordinates: Coordinates, chains: Chains, length: float, num_steps: int, *, generator: torch.Generator
) -> Transition:
    """Fresh momenta, `num_steps` steps over `length` radians, and acceptance or rejection, each chain for itself."""
    noise = torch.randn(chains.z.shape, generator=generator, device=chains.z.device, dtype=chains.z.dtype)
    uniform = torch.rand(len(noise), generator=generator, device=noise.device, dtype=torch.float64)
    proposal, momentum = _move(target, coordinates, chains, noise, length / num_steps, num_steps)
    error = _energy(proposal, momentum) - _energy(chains, noise)
    finite = torch.isfinite(error)
    accept_prob = torch.where(finite, (-error).exp().clamp_max(1.0), 0.0)
    accepted = uniform < accept_prob
    pairs = zip(vars(proposal).values(), vars(chains).values(), strict=True)
    moved = Chains(*(torch.where(accepted.view(-1, *[1] * (new.ndim - 1)), new, old) for new, old in pairs))
    jump = _jump(chains.z, proposal.z, momentum, accept_prob, length)
    return Transition(moved, accept_prob, accepted, ~(finite & (error < _DIVERGED)), jump)


def _move(
    target: Density, coordinates: Coordinates, chains: Chains, momentum: Tensor, step: float, num_steps: int
) -> tuple[Chains, Tensor]:
    cos, sin = math.cos(step), math.sin(step)
    for _ in range(num_steps):
        momentum = momentum + 0.5 * step * (chains.grad + chains.z)
        z, momentum = cos * chains.z + sin * momentum, cos * momentum - sin * chains.z
        chains = Chains.at(target, coordinates, z)
        momentum = momentum + 0.5 * step * (chains.grad + chains.z)
    return chains, momentum


def _energy(chains: Chains, momentum: Tensor) -> Tensor:
    return 0.5 * momentum.double().square().sum(-1) - chains.log_prob


def _jump(before: Tensor, after: Tensor, momentum: Tensor, accept_prob: Tensor, length: float) -> Tensor:
    """A quarter of the squared change of the squared distance from the mean (Hoffman, Radul and Sountsov 2021)."""
    good = accept_prob > 0.0  # the others may be infinite
    weight = accept_prob.to(after.dtype) / accept_prob.sum().clamp_min(1e-30).to(after.dtype)
    after, momentum = (torch.where(good.unsqueeze(1), part, 0.0) for part in (after, momentum))
    start, end = before - before.mean(0), after - weight @ after
    change = end.square().sum(1) - start.square().sum(1)
    parts = torch.stack([0.25 * change.square(), length * change * (end * momentum).sum(1)])
    return (weight * parts).double().sum(1)


def reasonable_step(
    target: Density, coordinates: Coordinates, chains: Chains, *, generator: torch.Generator
) -> tuple[float, int]:
    """A first step size: halved until half of the proposals of a single step would be accepted; and how many were tried."""
    step, count = 1.0, 0
    while step > _SHORTEST_STEP:
        trial = transition(target, coordinates, chains, step, 1, generator=generator)
        count += 1
        if float(trial.accept_prob.mean()) > 0.5:
            break
        step /= 2.0
    return step, count


@dataclass
class Tuning:
    """Step size by dual averaging, length by ascent on ChEES; what is used in the end is an average over the adaptation."""

    target_accept: float
    step_size: float
    length: float = _QUARTER_TURN
    count: int = 0
    accept_error: float = 0.0
    anchor: float = 0.0
    mean_log_step: float = 0.0
    jump: float = 0.0
    jump_gradient: float = 0.0
    mean_log_length: float = math.log(_QUARTER_TURN)

    def __post_init__(self) -> None:
        if self.count == 0:
            self.anchor = math.log(2.0 * self.step_size)

    def plan(self, fraction: float, max_steps: int) -> tuple[float, int]:
        """Length and number of steps of the next trajectory; `fraction` in (0, 1) varies it by a quarter both ways."""
        length = (0.75 + 0.5 * fraction) * self.length
        num_steps = max(1, math.ceil(length / self.step_size))
        return (length, num_steps) if num_steps <= max_steps else (max_steps * self.step_size, max_steps)

    def update(self, accept_prob: float, jump: float, jump_gradient: float) -> None:
        """Learns from one transition: the chains' mean acceptance, the criterion for the length and its derivative."""
        self.count += 1
        share = 1.0 / (self.count + _OFFSET)
        self.accept_error += share * (self.target_accept - accept_prob - self.accept_error)
        log_step = self.anchor - math.sqrt(self.count) / _SHRINKAGE * self.accept_error
        log_step = min(max(log_step, math.log(_SHORTEST_STEP)), math.log(_LONGEST_STEP))
        weight = self.count**-_DECAY
        self.step_size = math.exp(log_step)
        self.mean_log_step += weight * (log_step - self.mean_log_step)
        if not (math.isfinite(jump) and math.isfinite(jump_gradient)):
            return
        self.jump += (1.0 - _MEMORY) * (jump - self.jump)
        self.jump_gradient += (1.0 - _MEMORY) * (jump_gradient - self.jump_gradient)
        slope = self.jump_gradient / self.jump - _COST if self.jump > 0.0 else 0.0
        log_length = math.log(self.length) + _RATE * max(-1.0, min(1.0, slope))
        self.length = min(max(math.exp(log_length), _SHORTEST), _LONGEST)
        self.mean_log_length += weight * (math.log(self.length) - self.mean_log_length)

    def settle(self) -> None:
        """Ends the adaptation.

        Rejections leave a chain where it was; trajectories that go a little past the quarter turn make up for them, because
        those that are accepted then end on the other side.
        """
        self.step_size = math.exp(self.mean_log_step)
        self.length = min(_OVERSHOOT * math.exp(self.mean_log_length), _LONGEST)


def fraction(index: int) -> float:
    """The van der Corput sequence in base 2: evenly spread over (0, 1) after any number of terms."""
    value, unit, index = 0.0, 0.5, index + 1
    while index:
        value, unit, index = value + unit * (index % 2), unit / 2.0, index // 2
    return value
