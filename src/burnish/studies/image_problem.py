"""A trained network on one of the paper's sets of images or texts: its last layer, the features of all points, the target.

Under the paper's protocol the target is that of the printed numbers: the prior precision is the paper's, and the likelihood
does not see the biases, which therefore stay at the prior. Under ours they are part of the layer, and the precision is the
one of a grid that predicts held-out points best.
"""

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.batches import Batch
from burnish.features import split_last_layer
from burnish.heads import LinearHead, Model
from burnish.inference.curvature import check_dense_memory
from burnish.inference.flow import FlowFit
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.inference.prior import tune_prior
from burnish.ladder import refine_gaussian
from burnish.noise import make_generator
from burnish.studies.architectures import make_network
from burnish.studies.corruptions import corrupted_mix
from burnish.studies.data import DATASETS, Images, Tokens
from burnish.studies.image_settings import ImageSettings
from burnish.studies.made_images import MAX_CLASSES
from burnish.studies.protocols import BENCHMARKS, Benchmark, split_rows
from burnish.studies.recipes import Recipe
from burnish.studies.rotations import rotate
from burnish.studies.training import read_trained, train_networks
from burnish.studies.training_steps import network_inputs
from burnish.studies.workspace import Workspace
from burnish.target import Target

__all__ = ["ImageProblem", "Setting", "refine_laplace", "train_missing"]

BASELINES = ("vb", "csghmc")
ANGLES = tuple(range(0, 181, 15))
_CHUNKS = {"cpu": 500, "cuda": 2000}  # images that pass through a network at a time
_SUBSET_SEED = 0
_NUM_SHIFTED = 10_000  # drawn at each level of corruption


@dataclass(frozen=True, eq=False)
class Setting:
    """What all seeds of a study share."""

    dataset: str
    protocol: str
    settings: ImageSettings
    source: Callable[[str, str], Images | Tokens]
    """Images or texts by name of a data set and split."""
    workspace: Workspace
    device: torch.device
    made_images: bool = False
    """Whether images or texts are made, to try things out."""

    @property
    def benchmark(self) -> Benchmark:
        """The data set's; to try things out, with a network that trains in a second."""
        known = BENCHMARKS[self.dataset]
        small = {"wide-resnet": "tiny", "gru": "tiny-gru"}.get(known.architecture) if self.settings.tiny else None
        return (
            known if small is None else replace(known, architecture=small, num_classes=min(known.num_classes, MAX_CLASSES))
        )

    def config(self, seed: int) -> dict[str, Any]:
        """What files of a seed are made with."""
        made = {"made_images": self.made_images}
        return {"dataset": self.dataset, "protocol": self.protocol, "seed": seed, **made, **asdict(self.settings)}

    def network(self, kind: str, seed: int) -> Path:
        """The file of a trained network; the kind is its protocol, or the method that trained it."""
        return self.workspace.network(f"made-{self.dataset}" if self.made_images else self.dataset, kind, seed)

    def recipe(self, kind: str, num_points: int) -> Recipe:
        """How networks are trained: by a protocol, or as "vb" or "csghmc" is."""
        recipe = self.benchmark.recipe
        if kind == "vb":
            recipe = self.benchmark.variational(num_points)
        elif kind == "csghmc":
            recipe = self.benchmark.cyclical(num_points)
        if self.settings.num_epochs is None:
            return recipe
        return replace(
            recipe,
            num_epochs=self.settings.num_epochs,
            batch_size=self.settings.batch_size or recipe.batch_size,
            noisy_epochs=min(1, recipe.noisy_epochs),
            kept_per_cycle=1,
        )

    def training_images(self, kind: str) -> Images | Tokens:
        """What networks are trained on: by VB and CSGHMC, which hold nothing out, all of the training set if all is used."""
        whole = kind in BASELINES and self.settings.num_train is None
        return self.source(self.dataset, "train") if whole else self.images["train"]

    @property
    def splits(self) -> tuple[str, ...]:
        """Of the data set that are used: where it brings points for validation, our protocol takes those."""
        brings = self.protocol == "ours" and not self.made_images and "validation" in DATASETS[self.dataset].splits
        return ("train", "validation", "test") if brings else ("train", "test")

    @cached_property
    def images(self) -> dict[str, Images | Tokens]:
        """The images or texts of "train", "validation" and "test"."""
        whole = {split: self.source(self.dataset, split) for split in self.splits}
        rows = split_rows(self.protocol, len(whole["train"]), len(whole["test"]))
        if "validation" in whole:
            rows = {split: (split, torch.arange(len(points))) for split, points in whole.items()}
        split, index = rows["train"]
        if self.settings.num_train is not None:
            order = torch.randperm(len(index), generator=torch.Generator().manual_seed(_SUBSET_SEED))
            rows["train"] = split, index[order[: self.settings.num_train].sort().values]
        return {name: whole[split].take(index) for name, (split, index) in rows.items()}

    def stored(self, name: str) -> Tensor:
        """The pixels or words of a part of the data, of "outside NAME", or of "shift LEVEL"."""
        kind, _, what = name.partition(" ")
        if kind == "outside":
            pixels = self.source(what, "test").stored
            # the paper takes EMNIST as its file has it, rows for columns
            return pixels.transpose(-1, -2) if what == "emnist-digits" and self.protocol == "paper" else pixels
        if kind == "shift":
            return self.shifted(int(what))[0]
        return self.images[name].stored

    def labels(self, name: str) -> Tensor:
        """Of "train", "validation", "test" or "shift LEVEL", on the device."""
        kind, _, level = name.partition(" ")
        labels = self.shifted(int(level))[1] if kind == "shift" else self.images[name].labels
        assert labels is not None
        return labels.to(self.device)

    def shifted(self, level: int) -> tuple[Tensor, Tensor]:
        """Test images turned by so many degrees, or corrupted at that level, and their labels."""
        if level not in self._shifts:
            self._shifts[level] = self._shift(level)
        return self._shifts[level]

    @cached_property
    def _shifts(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Those that have been made, which every method asks for."""
        return {}

    def _shift(self, level: int) -> tuple[Tensor, Tensor]:
        test = self.images["test"]
        assert isinstance(test, Images)
        assert test.labels is not None
        if self.dataset == "fashion-mnist":
            return rotate(test.pixels, float(level)), test.labels
        if level == 0:
            return test.pixels, test.labels
        if self.protocol == "paper":  # which draws among its validation points too
            test = self.source(self.dataset, "test")
        assert isinstance(test, Images)
        assert test.labels is not None
        count = min(_NUM_SHIFTED, len(test))
        return corrupted_mix(test.pixels, test.labels, level, count=count, seed=0)[:2]

    @property
    def structure(self) -> str:
        """Of Gaussians at the mode, as in `fit_laplace`: full on a GPU, where that takes seconds even for CIFAR-100."""
        return self.settings.structure or ("full" if self.device.type == "cuda" else "auto")

    def check_memory(self) -> None:
        """Refuses, before networks are trained for hours, a last layer whose full covariance would not fit."""
        if self.structure == "full":
            layer = make_network(self.benchmark.architecture, self.benchmark.num_classes, 0)[-1]
            dim = sum(parameter.numel() for parameter in layer.parameters())
            remedy = "study a data set with fewer classes, or use a machine with more memory."
            check_dense_memory(dim, self.device, torch.float32, remedy)

    @property
    def levels(self) -> tuple[int, ...]:
        """Of the shift."""
        return ANGLES if self.dataset == "fashion-mnist" else (0, 1, 2, 3, 4, 5)


class ImageProblem:
    """One seed of a setting: the trained network, split, with features that are computed once."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed, self.device = setting, seed, setting.device
        benchmark = setting.benchmark
        network = make_network(benchmark.architecture, benchmark.num_classes, seed)
        train = setting.images["train"]
        path = setting.network(setting.protocol, seed)
        trained = read_trained(path, setting.recipe(setting.protocol, len(train)), seed=seed)
        trained.load(network)
        self.digest = trained.digest
        self.network = network.to(self.device).eval()
        self.training = {"seconds": trained.seconds, "together": trained.together, "origin": trained.origin}
        example = network_inputs(train.stored[:4].to(self.device))
        self.backbone, self.model, theta = split_last_layer(self.network, example=example)
        self.theta = theta.detach()
        self._features: dict[str, Tensor] = {}
        self.warnings: list[str] = []
        """What was said while the target was made, for the record."""

    def config(self) -> dict[str, Any]:
        """What draws of this problem are made with, the network among it: one that is trained anew may be another."""
        made = {"network": self.digest, "structure": self.setting.structure, "flow_base": "largest ELBO"}
        return self.setting.config(self.seed) | made

    def name(self, what: str) -> str:
        """A file's name."""
        return f"{self.setting.dataset}-{self.setting.protocol}-{self.seed}-{what.replace(' ', '-')}"

    def stream(self, name: str) -> torch.Generator:
        """Another stream for each seed and posterior, whatever has been fitted before."""
        digest = hashlib.sha256(self.name(name).encode()).digest()
        return make_generator(int.from_bytes(digest[:6], "big"), self.device)

    def features(self, name: str) -> Tensor:
        """Of the images or texts of that name: see `Setting.stored`."""
        if name not in self._features:
            self._features[name] = forward(self.backbone, self.setting.stored(name), self.device)
        return self._features[name]

    def batch(self, name: str) -> Batch:
        """Features and labels."""
        return Batch(self.features(name), self.setting.labels(name))

    @cached_property
    def target(self) -> Target:
        """The log posterior that every method is after; under the paper's protocol without its biases, see `lift`."""
        if self.setting.protocol == "paper":
            return Target(self.without_bias, self.batch("train"), self.setting.benchmark.precision)
        return self._tuned(Target(self.model, self.batch("train"), 1.0))

    @cached_property
    def tuned_target(self) -> Target:
        """The target with the precision of the grid that predicts held-out points best, under either protocol."""
        if self.setting.protocol == "ours":
            return self.target
        return self._tuned(self.target)

    def _tuned(self, target: Target) -> Target:
        with warnings.catch_warnings(record=True) as said:  # of precisions at a bound, which the grid in the record shows
            warnings.simplefilter("always")
            tuned = tune_prior(target, validation=self.batch("validation"), precisions=self.setting.settings.precisions)
        self.warnings += [str(each.message) for each in said]
        return tuned

    @cached_property
    def laplace(self) -> LaplaceFit:
        """At the mode of the target: what several posteriors start from, and on a CPU minutes of work for CIFAR-100."""
        return fit_laplace(self.target, self.theta[: self.target.dim], structure=self.setting.structure)

    @cached_property
    def refined(self) -> tuple[FlowFit, dict[str, Any]]:
        """The flow that `burnish` makes of that, from which HMC starts, too; and its base and seconds, all included."""
        return refine_laplace(self.target, self.laplace, self.stream("refined"))

    @cached_property
    def without_bias(self) -> Model:
        """The last layer without its biases."""
        head = self.model.linear_head
        return Model(LinearHead(head.num_features, head.num_outputs, False), self.model.likelihood)

    @property
    def num_weights(self) -> int:
        """Parameters of the layer that are no biases."""
        return self.without_bias.linear_head.dim

    def lift(self, draws: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draws of the target with the biases that its likelihood does not see, from the prior; others as they are."""
        missing = self.model.linear_head.dim - draws.shape[-1]
        noise = torch.randn(*draws.shape[:-1], missing, generator=generator, dtype=draws.dtype, device=draws.device)
        return torch.cat([draws, noise * float(self.target.prior_precision) ** -0.5], dim=-1)


def refine_laplace(target: Target, laplace: LaplaceFit, generator: torch.Generator) -> tuple[FlowFit, dict[str, Any]]:
    """The flow that `burnish` makes of a Gaussian at the mode; and what it stands on, and seconds, all included."""
    began = time.perf_counter()
    flow, base = refine_gaussian(target, laplace.posterior, generator=generator)
    kind = "mode" if base is laplace.posterior else "largest ELBO"
    return flow, {"base": kind, "seconds": laplace.seconds + time.perf_counter() - began}


@torch.no_grad()
def forward(network: nn.Module, stored: Tensor, device: torch.device) -> Tensor:
    """A network's outputs for images or texts, in float32."""
    return torch.cat([network(network_inputs(part.to(device))) for part in torch.split(stored, _CHUNKS[device.type])])


def train_missing(setting: Setting, kind: str, seeds: tuple[int, ...], *, progress: bool) -> dict[int, str]:
    """Trains networks that have no file yet, side by side, and says what went wrong, by seed."""
    if not seeds:
        return {}
    places = {seed: setting.network(kind, seed) for seed in seeds}
    train = setting.training_images(kind)
    assert train.labels is not None
    benchmark, recipe = setting.benchmark, setting.recipe(kind, len(train))
    for seed, place in places.items():
        if place.exists():
            read_trained(place, recipe, seed=seed)  # refuses networks of another scale before the others are trained
    if all(place.exists() for place in places.values()):
        return {}
    with setting.workspace.lock(f"{setting.dataset}-{kind}"):
        return train_networks(
            lambda seed: make_network(benchmark.architecture, benchmark.num_classes, seed),
            train.stored.to(setting.device),
            train.labels.to(setting.device),
            recipe,
            places,
            progress=progress,
        )
