"""When a run of chains may stop: once they agree and are worth enough draws, or when a budget ends."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_memory, check_positive
from burnish.convergence import ess_bulk, nested_rhat, rhat
from burnish.errors import FitError
from burnish.inference.sampler import State, is_due

__all__: list[str] = []

_SCREENED = 64  # parameters that are looked at first


@dataclass
class Rule:
    """When to stop, and what was seen when it was last looked at."""

    max_rhat: float
    min_ess: float
    num_superchains: int | None
    min_draws: int
    max_draws: int
    max_seconds: float | None
    rhat: float = float("nan")
    nested_rhat: float | None = None
    ess: float = float("nan")

    def __post_init__(self) -> None:
        check_positive("max_rhat", self.max_rhat, "Leave it out for 1.01.")
        if self.max_rhat <= 1.0:
            raise ValueError(f"`max_rhat` must be above 1, got {self.max_rhat}. R-hat of perfect chains is 1.")
        check_positive("min_ess", self.min_ess, "Leave it out for 400.")
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds, "Leave it out for no limit.")

    def due(self, state: State) -> bool:
        """Whether to look now: at numbers of draws that do not depend on time, so that a run can be repeated."""
        return is_due(len(state.draws), self.min_draws) or len(state.draws) >= self.max_draws

    def late(self, state: State) -> bool:
        """Whether the time is up."""
        return self.max_seconds is not None and state.seconds > self.max_seconds

    def look(self, state: State) -> str | None:
        """Why to stop, or None to go on."""
        count, late = len(state.draws), self.late(state)
        if late and count < self.min_draws:
            raise FitError(
                f"`max_seconds` {self.max_seconds:g} were over after {state.iteration} transitions"
                f"{' in affine coordinates, those of the flow having been left' if state.left_flow else ''}, before "
                f"{state.num_warmup} of warm-up and {self.min_draws} draws; allow more time, or use fewer chains."
            )
        if not late and not self.due(state):
            return None
        draws = stacked(state)
        some = draws[..., :: -(-draws.shape[2] // _SCREENED)]
        # what does not hold for some parameters does not hold for all; with these the others need not be looked at
        if (late or count >= self.max_draws or self._holds(some)) and self._holds(draws):
            return "rule"
        if count >= self.max_draws:
            return "max_draws"
        return "max_seconds" if late else None

    def _holds(self, draws: Tensor) -> bool:
        """Looks at all parameters; NaN, of chains that never moved, is no."""
        self.ess = float(ess_bulk(draws).min())
        if self.num_superchains is not None:
            self.nested_rhat = float(nested_rhat(draws, self.num_superchains).max())
            return self.nested_rhat < self.max_rhat and self.ess >= self.min_ess
        self.rhat = float(rhat(draws).max())
        return self.rhat < self.max_rhat and self.ess >= self.min_ess

    def describe(self, state: State) -> str:
        """For the progress bar."""
        if not state.sampling:
            return f"warm-up {state.iteration} of {state.num_warmup}"
        value = self.rhat if self.nested_rhat is None else self.nested_rhat
        seen = "" if math.isnan(self.ess) else f", R-hat {value:.3f}, ESS {self.ess:.0f}"
        return f"{len(state.draws)} draws{seen}"


def stacked(state: State) -> Tensor:
    """The draws (C, n, d) by chain."""
    size = sum(part.numel() * part.element_size() for part in state.draws)
    check_memory("draws by chain", 2 * size, state.chains.z.device, "lower `max_draws` or `num_chains`.")
    return torch.stack(state.draws, dim=1)
