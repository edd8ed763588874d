"""The all-layer benchmark's problem: a trained network, the posterior of all its weights, and points to score on."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnish import Batch, Model, Posterior, Target, diagnostics, flatten_network, make_generator, metrics, predict
from fashion_mnist import read_set, trained_mlp

PRECISION = 30.0
FEW, NUM_SETS, MANY = 20, 5, 200


@contextmanager
def quick_products() -> Iterator[None]:
    """Matrix products in TF32 on a GPU: ascents and chains are noisier than that; HMC measures what it does to a density."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Problem:
    """One trained network, its target, and the points to score on."""

    def __init__(self, options: argparse.Namespace, seed: int, device: torch.device) -> None:
        train = read_set(options.data, "train")
        images, labels = (part.to(device) for part in read_set(options.data, "t10k"))
        network = trained_mlp(train, device, seed=seed)
        self.seed, self.device = seed, device
        self.model: Model
        self.model, self.theta = flatten_network(network, example=images[:8])
        few = slice(0, options.num_points)
        self.target = Target(self.model, Batch(train[0][few].to(device), train[1][few].to(device)), PRECISION)
        order = torch.randperm(len(images), generator=make_generator(42)).to(device)
        self.validation = Batch(images[order[:2000]], labels[order[:2000]])
        self.test = Batch(images[order[2000:]], labels[order[2000:]])

    def generator(self, offset: int = 0) -> torch.Generator:
        """The same for every method, and another for every seed."""
        return make_generator(100 * self.seed + offset, self.device)

    def score(self, name: str, probs: Tensor, **known: Any) -> dict[str, Any]:
        """A row of the table from predictive probabilities (N, C)."""
        numbers = {
            "nll": metrics.nll(probs, self.test.targets),
            "accuracy": metrics.accuracy(probs, self.test.targets),
            "brier": metrics.brier(probs, self.test.targets),
            "ece": metrics.ece(probs, self.test.targets),
        }
        row = {"posterior": name, "seed": self.seed, "few_nll": numbers["nll"], **numbers, "elbo": None, "elbo_error": None}
        return row | {"steps": None, "seconds": None, "device": self.device.type} | known | {"probs": probs.half().cpu()}

    def judge(self, name: str, posterior: Posterior, seconds: float, **known: Any) -> dict[str, Any]:
        """A row from a posterior with a density: predictions with few and with many draws, and its ELBO."""
        few = [self.predict(posterior, FEW, number) for number in range(NUM_SETS)]
        elbo = diagnostics.elbo(self.target, posterior, num_samples=64, generator=self.generator(7))
        few_nll = sum(metrics.nll(probs, self.test.targets) for probs in few) / NUM_SETS
        known |= {"few_nll": few_nll, "elbo": elbo.value, "elbo_error": elbo.standard_error, "seconds": seconds}
        return self.score(name, self.predict(posterior, MANY, NUM_SETS), **known)

    def predict(self, posterior: Posterior, num_samples: int, number: int) -> Tensor:
        """Predictive probabilities of the test points."""
        generator = self.generator(10 + number)
        options = {"num_samples": num_samples, "generator": generator, "keep_samples": False}
        return predict(self.model, posterior, self.test.inputs, **options).probs
