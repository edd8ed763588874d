"""What every method of the image studies predicts: the network, its rivals trained from scratch, and all posteriors."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from burnish.heads import Model
from burnish.inference.flipout import variational_network
from burnish.inference.variational_layers import VariationalLayer
from burnish.noise import make_generator
from burnish.prediction import Prediction
from burnish.predictive import average_outputs, predict_at
from burnish.studies.architectures import make_network
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
from burnish.studies.image_problem import BASELINES, ImageProblem, forward
from burnish.studies.training import read_trained

__all__ = ["LABELS", "MAP", "TEMPERATURE", "ImageMethods", "grouped_probs"]

MAP, TEMPERATURE = "MAP", "MAP-Temp"
_BASELINES = {kind.upper(): kind for kind in BASELINES}
_CHUNK_ENTRIES = 2**24  # entries of one block of outputs
# under which name a method stands in tables, where it is not its own
LABELS = {
    MAP: "network (MAP)",
    TEMPERATURE: "temperature scaling",
    FLOW: "recentred LA, our flow",
    BURNISH: "burnish, same target",
    REFINE: "burnish.refine, own target",
}


@dataclass(frozen=True, eq=False)
class ImageMethods:
    """The methods of one problem by their names, which are the paper's where it has them."""

    problem: ImageProblem
    has_baselines: bool
    """Whether there are networks by VB and CSGHMC for this seed."""

    @property
    def names(self) -> list[str]:
        """In the order of tables."""
        flows = [flow_name(length) for length in self.problem.setting.settings.lengths]
        whole = list(_BASELINES) if self.has_baselines else []
        return [MAP, TEMPERATURE, *whole, LA, *flows, RECENTRED, FLOW, BURNISH, REFINE, HMC]

    def fit(self, name: str) -> Fit | None:
        """Draws of the last layer and what is known about them; None where a method has no posterior over it."""
        return None if name in (MAP, TEMPERATURE, *_BASELINES) else posterior(self.problem, name)

    def predict(self, name: str, images: str, num_samples: int) -> Prediction:
        """For images of a name that `Setting.pixels` knows; by so many draws where a method has draws."""
        if name in _BASELINES:
            return average_outputs(self.problem.model, self._outputs(name, images, num_samples), keep_samples=False)
        model, theta = self._layer(name)
        return predict_at(model, theta[:num_samples], self.problem.features(images), keep_samples=False)

    def sets(self, name: str, images: str, num_samples: int) -> Tensor:
        """Probabilities (sets, N, C) by disjoint sets of so many draws; one set where a method has no draws."""
        if name in (MAP, TEMPERATURE, *_BASELINES):
            return self.predict(name, images, num_samples).probs.unsqueeze(0)
        model, theta = self._layer(name)
        return grouped_probs(model, theta, self.problem.features(images), num_samples)

    def seen(self, draws: Tensor) -> tuple[Model, Tensor]:
        """The last layer as the target sees it, and draws of all parameters without those it does not."""
        if self.problem.setting.protocol == "paper":
            return self.problem.without_bias, draws[:, : self.problem.num_weights]
        return self.problem.model, draws

    def _layer(self, name: str) -> tuple[Model, Tensor]:
        """The last layer that a method predicts with, and its draws."""
        problem = self.problem
        if name == MAP:
            return problem.model, problem.theta.unsqueeze(0)
        if name == TEMPERATURE:
            return problem.model, problem.theta.unsqueeze(0) / self.temperature
        fit = self.fit(name)
        assert fit is not None
        draws = fit.draws[: problem.setting.settings.num_draws]
        return (problem.model, draws) if name in (LA, REFINE) else self.seen(draws)

    @cached_property
    def temperature(self) -> float:
        """Of temperature scaling."""
        return temperature(self.problem)

    def _outputs(self, name: str, images: str, num_samples: int) -> Tensor:
        pixels = self.problem.setting.pixels(images)
        return torch.stack([forward(member, pixels, self.problem.device) for member in self._members(name, num_samples)])

    def _members(self, name: str, num_samples: int) -> Iterator[Any]:
        """The networks that a baseline averages over, in turn: kept ones, or draws of one."""
        problem, kind = self.problem, _BASELINES[name]
        setting, benchmark = problem.setting, problem.setting.benchmark
        path = setting.workspace.network(setting.dataset, kind, problem.seed)
        trained = read_trained(path, setting.recipe(kind, len(setting.training_images(kind))))
        network: Any = make_network(benchmark.architecture, benchmark.num_classes, problem.seed).to(problem.device)
        if kind == "vb":
            generator = make_generator(problem.seed, problem.device)
            network = variational_network(network, initial_std=1.0, generator=generator)
            network.load_state_dict(trained.states[-1])
            network.eval()
            for layer in (part for part in network.modules() if isinstance(part, VariationalLayer)):
                layer.train()  # in which it draws
            yield from (network for _ in range(num_samples))
            return
        for state in trained.states:
            network.load_state_dict(state)
            yield network.eval()


@torch.no_grad()
def grouped_probs(model: Model, theta: Tensor, inputs: Tensor, num_samples: int) -> Tensor:
    """Probabilities (sets, N, C) by disjoint sets of so many of the draws (S, d); draws left over are not used."""
    theta = theta[: len(theta) // num_samples * num_samples]
    rows = max(1, _CHUNK_ENTRIES // (len(theta) * model.head.num_outputs))
    parts = []
    for x in torch.split(inputs, rows):
        probs = model.likelihood.probs(model(theta, x))
        parts.append(probs.view(-1, num_samples, *probs.shape[1:]).mean(1))
    return torch.cat(parts, dim=1)
