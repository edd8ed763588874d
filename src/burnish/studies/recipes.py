"""How the studies' networks are trained: optimisers, rates, and what is kept."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_choice, check_positive
from burnish.inference.variational_layers import ESTIMATORS

__all__ = ["Recipe"]

OPTIMIZERS = ("sgd", "adam", "sghmc")


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: batches without the few points left over, a cosine to zero in every cycle."""

    num_epochs: int = 100
    batch_size: int = 128
    optimizer: str = "sgd"
    """"sgd" with Nesterov's momentum, "adam" with its weight decay in the gradient, or "sghmc"."""
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    """Of SGD, and what friction leaves of the velocity of stochastic-gradient HMC at each step."""
    mixed_precision: bool = True
    """Whether networks are evaluated in bfloat16 where the device computes in it; parameters and losses are float32 in any
    case."""
    augment: bool = False
    """Whether images are mirrored by chance, and cropped after 4 pixels of black have been put around them."""
    num_cycles: int = 1
    kept_per_cycle: int = 1
    """Networks kept, after each of the last epochs of a cycle."""
    noisy_epochs: int = 0
    """Epochs with noise at the end of each cycle of stochastic-gradient HMC."""
    temperature: float = 0.0
    """That its noise stands for, in units of that of the posterior."""
    initial_std: float | None = None
    """Of the weights of a variational network; None for an ordinary one."""
    kl_weight: float = 0.0
    """Of the KL divergence from a prior of precision `prior_precision`; for variational ones."""
    prior_precision: float = 1.0
    mean_spread: float | None = None
    """Standard deviation of the means of variational weights at the start; None for the network's own weights."""
    estimator: str = "flipout"
    """How variational layers draw their weights: see `VariationalLayer`."""

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("estimator", self.estimator, ESTIMATORS)
        for name in ("num_epochs", "batch_size", "num_cycles", "kept_per_cycle"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("noisy_epochs", self.noisy_epochs, 0)
        check_positive("learning_rate", self.learning_rate)
        if self.initial_std is not None:
            check_positive("initial_std", self.initial_std, "Pass None for an ordinary network.")
            check_positive("prior_precision", self.prior_precision)
        if self.mean_spread is not None:
            check_positive("mean_spread", self.mean_spread, "Pass None for the network's own weights.")
            if self.initial_std is None:
                raise ValueError("`mean_spread` must be None without `initial_std`: an ordinary network keeps its weights.")
        for name in ("weight_decay", "temperature", "kl_weight"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be finite and not negative, got {getattr(self, name)}. Pass 0 for none.")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must lie in [0, 1), got {self.momentum}. Pass 0 for none.")
        if self.num_epochs % self.num_cycles or max(self.kept_per_cycle, self.noisy_epochs) > self.epochs_per_cycle:
            raise ValueError(
                f"`num_epochs` must be a multiple of the {self.num_cycles} cycles, with an epoch for each of the "
                f"{self.kept_per_cycle} networks that one leaves and of the {self.noisy_epochs} with noise, "
                f"got {self.num_epochs}. Pass more epochs."
            )

    @property
    def epochs_per_cycle(self) -> int:
        """All cycles are of the same length."""
        return self.num_epochs // self.num_cycles

    def keeps(self, epoch: int) -> bool:
        """Whether the network is kept after that epoch, counted from 0."""
        return (epoch % self.epochs_per_cycle) >= self.epochs_per_cycle - self.kept_per_cycle

    def rates(self, num_steps: int) -> Tensor:
        """The learning rate of every step, of which an epoch has so many."""
        length = self.epochs_per_cycle * num_steps
        position = torch.arange(self.num_epochs * num_steps, dtype=torch.float64) % length
        return (0.5 * self.learning_rate * (1.0 + torch.cos(math.pi * position / length))).float()

    def kicks(self, num_steps: int, num_points: int) -> Tensor:
        """The standard deviation of the noise of every step."""
        epoch = torch.arange(self.num_epochs * num_steps) // num_steps % self.epochs_per_cycle
        noisy = epoch >= self.epochs_per_cycle - self.noisy_epochs
        variance = 2.0 * (1.0 - self.momentum) * self.temperature / num_points * self.rates(num_steps)
        return variance.sqrt() * noisy
