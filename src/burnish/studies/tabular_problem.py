"""All splits of one table: networks, the noise around them, and the modes of their posteriors."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from burnish.batches import Batch
from burnish.flat_network import flatten_network
from burnish.inference.mode import find_mode
from burnish.likelihoods import Categorical, GaussianNoise, Likelihood
from burnish.noise import make_generator
from burnish.studies.data.tables import Rows
from burnish.studies.tabular_networks import Networks, Training, draw_networks, train_networks
from burnish.studies.tabular_scores import choose_scale
from burnish.target import Target

__all__ = ["Mode", "Problem", "run_groups"]


@dataclass(frozen=True, eq=False)
class Mode:
    """A mode of a network's posterior on the rows of one split."""

    split: int
    target: Target
    theta: Tensor

    def outputs(self, inputs: Tensor) -> Tensor:
        """(1, N, C) on inputs (D, N, P) of all splits."""
        return self.target.model(self.theta, inputs[self.split]).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Problem:
    """All splits of a table, and sizes."""

    rows: Rows
    num_classes: int | None
    num_hidden: int
    training: Training
    weight_decays: tuple[float, ...]
    num_members: int
    dropouts: tuple[float, ...]
    num_draws: int
    layer_precisions: tuple[float, ...]
    precisions: tuple[float, ...]
    search_steps: int
    flow_steps: int
    seed: int

    @property
    def num_splits(self) -> int:
        """D."""
        return len(self.rows.target_std)

    @cached_property
    def members(self) -> Networks:
        """The networks of all splits, then the second members of all ensembles, and so on."""
        return self.network + self._train(self.num_members - 1, 3, self.weight_decay.repeat(self.num_members - 1))

    @property
    def network(self) -> Networks:
        """One for each split."""
        return self._chosen[0]

    @property
    def weight_decay(self) -> Tensor:
        """(D,): that of the network that suits the validation rows of its split best, scaled as they want it."""
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Networks, Tensor]:
        decays, count = torch.tensor(self.weight_decays), self.num_splits
        networks = self._train(len(decays), 0, decays.repeat_interleave(count))
        inputs, targets = self.rows.validation
        groups = [networks[number * count : (number + 1) * count] for number in range(len(decays))]
        values = torch.stack([choose_scale(run_groups(group, inputs, 1), targets)[1] for group in groups])
        best = values.argmax(0)
        return networks[best * count + torch.arange(count)], decays[best]

    @cached_property
    def network_noise(self) -> Tensor:
        """(D,): the noise of the network that suits the validation rows best."""
        return choose_scale(run_groups(self.network, self.rows.validation[0], 1), self.rows.validation[1])[0]

    @property
    def posterior_noise(self) -> Tensor:
        """(D,): that of the likelihood; classes have none, and their posteriors no temperature."""
        return torch.ones(self.num_splits, dtype=torch.float64) if self.num_classes else self.network_noise

    @cached_property
    def modes(self) -> list[list[Mode]]:
        """Of all layers, for each split under every prior."""
        return [self._modes(split) for split in range(self.num_splits)]

    def best_mode(self, split: int) -> int:
        """Which of the modes of a split suits its validation rows best, scaled as they want it."""
        outputs = torch.cat([mode.outputs(self.rows.validation[0]) for mode in self.modes[split]])
        targets = self.rows.validation[1][split].expand(len(outputs), -1)
        return int(choose_scale(outputs.unsqueeze(1), targets)[1].argmax())

    def _modes(self, split: int) -> list[Mode]:
        inputs, targets = (part[split] for part in self.rows.train)
        likelihood = self.likelihood(split)
        model, start = flatten_network(self.network.module(split), example=inputs[:8], likelihood=likelihood)
        wanted = [Target(model, Batch(inputs, targets), precision) for precision in self.precisions]
        return [Mode(split, target, find_mode(target, start, max_iterations=self.search_steps).theta) for target in wanted]

    def likelihood(self, split: int) -> Likelihood:
        """What posteriors are fitted with."""
        return Categorical() if self.num_classes else GaussianNoise(float(self.network_noise[split]))

    def dropped(self) -> Networks:
        """The networks of all splits for one share of units left out, then for the next, and so on."""
        shares = torch.tensor(self.dropouts).repeat_interleave(self.num_splits)
        return self._train(len(self.dropouts), 1, self.weight_decay.repeat(len(self.dropouts)), shares)

    def _train(self, groups: int, stream: int, weight_decay: Tensor, dropout: Tensor | None = None) -> Networks:
        generator = make_generator(1000 * self.seed + stream)
        inputs, targets = self.rows.train
        count = groups * self.num_splits
        start = draw_networks(count, inputs.shape[-1], self.num_hidden, self.num_classes or 1, generator=generator)
        offsets = torch.randint(inputs.shape[1], (count,), generator=generator)
        return train_networks(
            start,
            inputs,
            targets,
            self.training,
            weight_decay=weight_decay,
            offsets=offsets,
            generator=generator,
            dropout=dropout,
        )

    def generator(self, split: int) -> torch.Generator:
        """Of a posterior's draws; another for each split."""
        return make_generator(1000 * self.seed + 10 + split)


def run_groups(networks: Networks, inputs: Tensor, groups: int) -> Tensor:
    """(D, groups, N, C) outputs on inputs (D, N, P)."""
    outputs = networks(inputs.repeat(groups, 1, 1))
    return outputs.view(groups, len(inputs), *outputs.shape[1:]).transpose(0, 1)
