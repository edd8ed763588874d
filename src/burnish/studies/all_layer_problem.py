"""The problem of the study of all layers: a trained network, the posterior of all its weights, and points to score on."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish import metrics
from burnish.batches import Batch
from burnish.diagnostics import elbo
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior, Posterior
from burnish.predictive import predict
from burnish.studies.all_layer_settings import Settings
from burnish.studies.architectures import make_network
from burnish.studies.data import Images, Tokens
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.recipes import Recipe
from burnish.studies.records import finite
from burnish.studies.sources import data_source
from burnish.studies.training import read_trained, train_networks
from burnish.studies.workspace import Workspace
from burnish.target import Target

__all__ = ["DATASET", "Problem", "Setting", "quick_products", "train_missing"]

DATASET = "fashion-mnist"
_KIND = "all-layer"  # of network
_SPLIT_SEED, _NUM_VALIDATION, _MAX_SHARE = 42, 2000, 5
_NUM_EXAMPLES = 8


@contextmanager
def quick_products() -> Iterator[None]:
    """Matrix products in TF32 on a GPU: ascents and chains are noisier than that; HMC measures what it does to a density."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True, eq=False)
class Setting:
    """What all networks of the study share."""

    settings: Settings
    source: Callable[[str, str], Images | Tokens]
    """Images by name of a data set and split."""
    workspace: Workspace
    made_images: bool = False
    """Whether images are made, to try things out."""

    @classmethod
    def of(
        cls, settings: Settings, data: str | os.PathLike[str] | None, work: str | os.PathLike[str], small: bool
    ) -> "Setting":
        """With images from files, or made ones."""
        return cls(settings, data_source(DATASET, "paper", data, small), Workspace(Path(work)), small)

    @property
    def architecture(self) -> str:
        """Of the networks."""
        return "tiny-mlp" if self.settings.tiny else "mlp"

    @property
    def recipe(self) -> Recipe:
        """How networks are trained: as the paper trains its others."""
        known = BENCHMARKS[DATASET].recipe
        return replace(known, num_epochs=self.settings.num_epochs, batch_size=self.settings.batch_size)

    def network(self, seed: int) -> Path:
        """The file of a trained network."""
        return self.workspace.network(f"made-{DATASET}" if self.made_images else DATASET, _KIND, seed)

    def config(self, seed: int, kind: str, digest: str) -> dict[str, Any]:
        """What the files of a part are made with, the network among it: one that is trained anew may be another."""
        about = {"dataset": DATASET, "made_images": self.made_images, "seed": seed, "kind": kind, "network": digest}
        found: dict[str, Any] = finite(about | self.settings.of_part(kind))
        return found

    @cached_property
    def train(self) -> Batch:
        """The training points of the target."""
        return _batch(self.source(DATASET, "train"), torch.arange(self.settings.num_points))

    @cached_property
    def held_out(self) -> tuple[Batch, Batch]:
        """Validation and test points: the paper's split of the test set, in the order of its shuffle.

        `protocols.split_rows` has the same points sorted; here the first ones are those that HMC's chains are followed at.
        """
        images = self.source(DATASET, "test")
        order = torch.randperm(len(images), generator=make_generator(_SPLIT_SEED))
        count = min(_NUM_VALIDATION, len(images) // _MAX_SHARE)
        return _batch(images, order[:count]), _batch(images, order[count:])


class Problem:
    """One trained network, the posterior of all its weights, and the points to score on, on one device."""

    def __init__(self, setting: Setting, seed: int, device: torch.device) -> None:
        self.setting, self.settings, self.seed, self.device = setting, setting.settings, seed, device
        network = make_network(setting.architecture, BENCHMARKS[DATASET].num_classes, seed)
        trained = read_trained(setting.network(seed), setting.recipe, seed=seed)
        trained.load(network)
        self.validation, self.test = (_on(batch, device) for batch in setting.held_out)
        self.model, self.theta = flatten_network(network.to(device).eval(), example=self.test.inputs[:_NUM_EXAMPLES])
        self.target = Target(self.model, _on(setting.train, device), self.settings.precision)

    def generator(self, offset: int = 0) -> torch.Generator:
        """The same for every method, and another for every seed."""
        return make_generator(100 * self.seed + offset, self.device)

    def score(self, name: str, probs: Tensor, **known: Any) -> dict[str, Any]:
        """A row of the table from predictive probabilities (N, C), which it keeps."""
        if not bool(probs.isfinite().all()):
            raise FitError(f"{name} predicts something else than probabilities; its fit has left the finite numbers.")
        scores = {key: getattr(metrics, key)(probs, self.test.targets) for key in ("nll", "accuracy", "brier", "ece")}
        row = {"posterior": name, "few_nll": scores["nll"], **scores, "elbo": None, "elbo_error": None}
        return row | {"steps": None, "seconds": None, "device": self.device.type} | known | {"probs": probs.half().cpu()}

    def judge(self, name: str, posterior: DensityPosterior, seconds: float, **known: Any) -> dict[str, Any]:
        """A row from a posterior with a density: predictions with few and with many draws, and its ELBO."""
        settings = self.settings
        bound = elbo(self.target, posterior, num_samples=settings.num_elbo_draws, generator=self.generator(7))
        known |= {"few_nll": self.few_nll(posterior), "elbo": bound.value, "elbo_error": bound.standard_error}
        return self.score(name, self.predict(posterior, settings.many, settings.num_sets), seconds=seconds, **known)

    def few_nll(self, posterior: Posterior) -> float:
        """NLL by few draws, averaged over sets of them."""
        numbers = range(self.settings.num_sets)
        sets = (self.predict(posterior, self.settings.few, number) for number in numbers)
        return sum(metrics.nll(probs, self.test.targets) for probs in sets) / len(numbers)

    def predict(self, posterior: Posterior, num_samples: int, number: int) -> Tensor:
        """Predictive probabilities of the test points; another set of draws for another number."""
        generator = self.generator(10 + number)
        options: dict[str, Any] = {"num_samples": num_samples, "generator": generator, "keep_samples": False}
        return predict(self.model, posterior, self.test.inputs, **options).probs


def train_missing(setting: Setting, seeds: Sequence[int], device: torch.device, *, progress: bool) -> dict[int, str]:
    """Trains networks that have no file yet, side by side, and says what went wrong, by seed."""
    places = {seed: setting.network(seed) for seed in seeds}
    for seed, place in places.items():
        if place.exists():
            read_trained(place, setting.recipe, seed=seed)  # refuses networks of another scale before others are trained
    if all(place.exists() for place in places.values()):
        return {}
    images = setting.source(DATASET, "train")
    assert images.labels is not None
    with setting.workspace.lock(f"{DATASET}-{_KIND}"):
        return train_networks(
            lambda seed: make_network(setting.architecture, BENCHMARKS[DATASET].num_classes, seed),
            images.stored.to(device),
            images.labels.to(device),
            setting.recipe,
            places,
            progress=progress,
        )


def _batch(images: Images | Tokens, rows: Tensor) -> Batch:
    """Those of these rows that there are."""
    assert isinstance(images, Images)
    chosen = images.take(rows[: len(images)])
    assert chosen.labels is not None
    return Batch(chosen.inputs(), chosen.labels)


def _on(batch: Batch, device: torch.device) -> Batch:
    return Batch(batch.inputs.to(device), batch.targets.to(device))
