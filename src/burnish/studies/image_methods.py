"""What every method of the image studies predicts: the network, its rivals trained from scratch, and all posteriors."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from burnish.heads import LinearHead, Model
from burnish.inference.flipout import variational_network
from burnish.inference.variational_layers import VariationalLayer
from burnish.likelihoods import Categorical
from burnish.noise import make_generator
from burnish.prediction import Prediction
from burnish.predictive import average_outputs, predict_at
from burnish.studies.architectures import make_network
from burnish.studies.draw_scores import grouped_probs
from burnish.studies.image_posteriors import (
    BURNISH,
    FLOW,
    HMC,
    LA,
    RECENTRED,
    REFINE,
    Fit,
    flow_name,
    posterior,
    temperature,
)
from burnish.studies.image_problem import ImageProblem, Setting, forward
from burnish.studies.recipes import Recipe
from burnish.studies.training import Trained, read_trained

__all__ = ["LABELS", "MAP", "TEMPERATURE", "LayerMethods", "Methods", "NetworkMethods", "num_samples"]

MAP, TEMPERATURE = "MAP", "MAP-Temp"
# under which name a method stands in tables, where it is not its own
LABELS = {
    MAP: "network (MAP)",
    TEMPERATURE: "temperature scaling",
    FLOW: "burnish, flow",
    BURNISH: "burnish, auto",
    REFINE: "burnish.refine, own target",
}


class Methods(Protocol):
    """Methods of one seed by their names, which are the paper's where it has them."""

    @property
    def setting(self) -> Setting:
        """What all seeds share."""

    @property
    def names(self) -> list[str]:
        """In the order of tables."""

    def predict(self, name: str, images: str, num_samples: int) -> Prediction:
        """For images of a name that `Setting.stored` knows; by so many draws where a method has draws."""

    def sets(self, name: str, images: str, num_samples: int, max_sets: int | None = None) -> Tensor:
        """Probabilities (sets, N, C) by disjoint sets of so many draws, all or the first of them; one without draws."""


@dataclass(frozen=True, eq=False)
class LayerMethods:
    """The network and every posterior of its last layer."""

    problem: ImageProblem

    @property
    def setting(self) -> Setting:
        """What all seeds share."""
        return self.problem.setting

    @property
    def names(self) -> list[str]:
        """In the order of tables."""
        flows = [flow_name(length) for length in self.setting.settings.lengths]
        return [MAP, TEMPERATURE, LA, *flows, RECENTRED, FLOW, BURNISH, REFINE, HMC]

    def fit(self, name: str) -> Fit | None:
        """Draws of the last layer and what is known about them; None where a method has no posterior over it."""
        return None if name in (MAP, TEMPERATURE) else posterior(self.problem, name)

    def predict(self, name: str, images: str, num_samples: int) -> Prediction:
        """For images of a name that `Setting.stored` knows; by so many draws where a method has draws."""
        model, theta = self._layer(name)
        return predict_at(model, theta[:num_samples], self.problem.features(images), keep_samples=False)

    def sets(self, name: str, images: str, num_samples: int, max_sets: int | None = None) -> Tensor:
        """Probabilities (sets, N, C) by disjoint sets of so many draws, all or the first of them; one without draws."""
        model, theta = self._layer(name)
        theta = theta if max_sets is None else theta[: max_sets * num_samples]
        return grouped_probs(model, theta, self.problem.features(images), min(num_samples, len(theta)))

    def seen(self, draws: Tensor) -> tuple[Model, Tensor]:
        """The last layer as the target sees it, and draws of all parameters without those it does not."""
        if self.setting.protocol == "paper":
            return self.problem.without_bias, draws[:, : self.problem.num_weights]
        return self.problem.model, draws

    @cached_property
    def temperature(self) -> float:
        """Of temperature scaling."""
        return temperature(self.problem)

    def _layer(self, name: str) -> tuple[Model, Tensor]:
        """The last layer that a method predicts with, and its draws."""
        problem = self.problem
        if name == MAP:
            return problem.model, problem.theta.unsqueeze(0)
        if name == TEMPERATURE:
            return problem.model, problem.theta.unsqueeze(0) / self.temperature
        fit = self.fit(name)
        assert fit is not None
        draws = fit.draws[: self.setting.settings.num_draws]
        return (problem.model, draws) if name in (LA, REFINE) else self.seen(draws)


@dataclass(frozen=True, eq=False)
class NetworkMethods:
    """Networks that VB or CSGHMC trained from scratch, all layers of them."""

    setting: Setting
    kind: str
    """One of `BASELINES`."""
    seed: int

    @property
    def names(self) -> list[str]:
        """The one method."""
        return [self.kind.upper()]

    def predict(self, name: str, images: str, num_samples: int) -> Prediction:
        """For images of a name that `Setting.stored` knows; by so many draws of VB, and by all networks of CSGHMC."""
        stored, device = self.setting.stored(images), self.setting.device
        outputs = torch.stack([forward(member, stored, device) for member in self._members(num_samples)])
        model = Model(LinearHead(1, outputs.shape[-1]), Categorical())  # of which only the likelihood is used
        return average_outputs(model, outputs, keep_samples=False)

    def sets(self, name: str, images: str, num_samples: int, max_sets: int | None = None) -> Tensor:
        """Probabilities (1, N, C)."""
        return self.predict(name, images, num_samples).probs.unsqueeze(0)

    @cached_property
    def trained(self) -> Trained:
        """What training left."""
        return read_trained(self.setting.network(self.kind, self.seed), self._recipe, seed=self.seed)

    @property
    def _recipe(self) -> Recipe:
        return self.setting.recipe(self.kind, len(self.setting.training_images(self.kind)))

    def _members(self, num_samples: int) -> Iterator[Any]:
        """The networks that are averaged over, in turn: kept ones, or draws of one."""
        benchmark, device, trained = self.setting.benchmark, self.setting.device, self.trained
        network: Any = make_network(benchmark.architecture, benchmark.num_classes, self.seed).to(device)
        if self.kind == "vb":
            options: Any = {"initial_std": 1.0, "estimator": self._recipe.estimator}
            network = variational_network(network, generator=make_generator(self.seed, device), **options)
            trained.load(network)
            network.eval()
            for layer in (part for part in network.modules() if isinstance(part, VariationalLayer)):
                layer.train()  # in which it draws
            yield from (network for _ in range(num_samples))
            return
        for kept in range(len(trained.states)):
            trained.load(network, kept)
            yield network.eval()


def num_samples(setting: Setting, name: str) -> int:
    """Draws behind a prediction: few; under the paper's protocol all of HMC's and half as many of VB's, as in its code."""
    if setting.protocol == "paper" and name == HMC:
        return setting.settings.num_draws
    return setting.settings.few // 2 if setting.protocol == "paper" and name == "VB" else setting.settings.few
