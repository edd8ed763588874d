"""What is trained, held out and tested on each data set, as in the paper and as it should be.

The paper's protocol holds validation points out of the test set. Ours holds them out of the training set, so that the test
set stays whole and unseen; its networks are trained on what is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from burnish._checks import check_choice
from burnish.studies.recipes import Recipe

__all__ = ["BENCHMARKS", "PROTOCOLS", "Benchmark", "split_rows"]

PROTOCOLS = ("paper", "ours")
_SPLIT_SEED, _NUM_VALIDATION = 42, 2000
_MAX_SHARE = 5  # of a set, at most one in so many points is held out


@dataclass(frozen=True)
class Benchmark:
    """A data set of the paper's tables: its network, and what the paper fixes."""

    title: str
    """As the paper calls it, before a comma: it does not say which classes of a set it took."""
    architecture: str
    num_classes: int
    recipe: Recipe
    precision: float
    """Of the target's prior, as the paper found it by a search."""
    base: str
    """Structure of the covariance of the paper's Laplace posterior."""
    outside: tuple[str, ...]
    """Data sets that are not of this kind, to be told from it."""
    seeds: tuple[int, ...]

    @property
    def kl_weight(self) -> float:
        """Of VB's divergence: the paper's on the small network, none on wide ones, for which see docs/decisions/0020."""
        return 0.1 if self.architecture == "lenet" else 0.0

    def variational(self, num_points: int) -> Recipe:
        """The paper's VB, as in its code but for the divergence of wide networks; its means start at random.

        The prior is meant to stand for the weight decay, but its variance is taken for a standard deviation: hence the
        square of its precision. Flipout reaches the first and the last layer of the wide network alone: here it has none.
        Convolutions around blocks have plain weights.
        """
        return replace(
            self.recipe,
            weight_decay=0.0,
            initial_std=0.05,
            mean_spread=0.1,
            kl_weight=self.kl_weight,
            prior_precision=(self.recipe.weight_decay * num_points) ** 2,
            estimator="flipout" if self.architecture == "lenet" else "plain",
        )

    def cyclical(self, num_points: int) -> Recipe:
        """The paper's CSGHMC, as in its code: four cycles of fifty epochs, three networks of each, and hardly any noise."""
        return replace(
            self.recipe,
            num_epochs=2 * self.recipe.num_epochs,
            num_cycles=4,
            kept_per_cycle=3,
            noisy_epochs=3,
            optimizer="sghmc",
            learning_rate=0.1,
            momentum=0.1,
            temperature=1.0 / num_points,
        )


_ADAM = Recipe(optimizer="adam", learning_rate=1e-3, mixed_precision=False)
_SGD = Recipe(augment=True)
# the paper names the epochs alone: the rest is as in the code that it took the network and the data sets from
_TEXT = Recipe(10, 64, optimizer="adam", learning_rate=1e-2, weight_decay=0.0, mixed_precision=False)


def _text(title: str, num_classes: int) -> "Benchmark":
    return Benchmark(title, "gru", num_classes, _TEXT, 40.0, "full", outside=(), seeds=(0, 1, 2))


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "fashion-mnist": Benchmark(
            *("F-MNIST", "lenet", 10, _ADAM, 510.0, "full"),
            outside=("emnist-digits", "mnist", "kmnist", "notmnist"),
            seeds=(0, 1, 2, 3, 4),
        ),
        "cifar-10": Benchmark(
            *("CIFAR-10", "wide-resnet", 10, _SGD, 40.0, "full"),
            outside=("svhn", "cifar-100", "tiny-imagenet"),
            seeds=(0, 1, 2, 3, 4),
        ),
        "cifar-100": Benchmark(
            *("CIFAR-100", "wide-resnet", 100, _SGD, 40.0, "diagonal"),
            outside=("svhn", "cifar-10", "tiny-imagenet"),
            seeds=(0, 1, 2),
        ),
        "20-newsgroups": _text("20NG", 20),
        "sst-binary": _text("SST, 2 classes", 2),
        "sst-fine": _text("SST, 5 classes", 5),
        "trec-coarse": _text("TREC, 6 classes", 6),
        "trec-fine": _text("TREC, 50 classes", 50),
    }
)


def split_rows(protocol: str, num_train: int, num_test: int) -> dict[str, tuple[str, Tensor]]:
    """For "train", "validation" and "test" the part of the data, "train" or "test", and the rows of it.

    The paper's split is that of its authors: the first 2,000 of a shuffle of the test set, seeded by 42.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    source, count = ("test", num_test) if protocol == "paper" else ("train", num_train)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out = min(_NUM_VALIDATION, count // _MAX_SHARE)
    rest = source, order[held_out:].sort().values
    whole = {"train": ("train", torch.arange(num_train)), "test": ("test", torch.arange(num_test))}
    return {**whole, source: rest, "validation": (source, order[:held_out].sort().values)}
