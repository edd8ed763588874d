"""Every predictive approximation against the integral it stands for.

For two classes the judge is quadrature, over a grid of means and standard deviations of the logit. For more, it is a million
draws of the logits: of Gaussians made at random, and of those that the last layer of a LeNet has on Fashion-MNIST, under
Laplace's posterior at the mode. Distances are total variation, the mean over points.

    python benchmarks/predictives.py --data DIR
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish import (
    Bernoulli,
    Categorical,
    Dense,
    Diagonal,
    Gaussian,
    LinearHead,
    Model,
    Target,
    fit_laplace,
    integrals,
    make_generator,
    predict,
)
from burnish.output_gaussian import output_gaussians
from fashion_mnist import load_last_layer
from records import RESULTS, print_table, write_record

CLASSES = (3, 10, 100)
SPREADS = (0.3, 1.0, 3.0)  # standard deviations of the logits
SAMPLES = (20, 100, 1000)
NUM_DRAWS, NUM_POINTS, NUM_REPEATS = 1_000_000, 10, 10


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--seed", type=int, default=0, help="of the network, the random Gaussians and all draws")
    parser.add_argument("--out", type=Path, default=RESULTS / "predictives.json")
    options = parser.parse_args()
    results = {"two classes": two_classes(options.seed), "more classes": []}
    print_table(results["two classes"])
    for num_classes in CLASSES:
        for spread in SPREADS:
            model, posterior, inputs = random_problem(num_classes, spread, options.seed)
            known = {"classes": num_classes, "logits": f"at random, spread {spread:g}"}
            results["more classes"] += [known | row for row in compare(model, posterior, inputs, options.seed)]
    for num_points, precision in ((600, 5.0), (60_000, 40.0)):
        model, posterior, inputs = real_problem(options.data, num_points, precision, options.seed)
        known = {"classes": 10, "logits": f"Fashion-MNIST, N = {num_points:,}, precision {precision:g}"}
        results["more classes"] += [known | row for row in compare(model, posterior, inputs, options.seed)]
    print_table(results["more classes"])
    config = {"seed": options.seed, "draws": NUM_DRAWS, "points": NUM_POINTS, "repeats": NUM_REPEATS}
    write_record(options.out, config, results, torch.device("cpu"))


def two_classes(seed: int) -> list[dict[str, Any]]:
    """Errors of the probability of class 1 over means in [-10, 10] and standard deviations in (0, 10]."""
    mean, std = torch.meshgrid(torch.linspace(-10, 10, 41).double(), torch.linspace(0.25, 10, 40).double(), indexing="ij")
    inputs = torch.stack([mean.flatten(), std.flatten()], dim=1)
    # a head whose two weights are N(1, 0) and N(0, 1), but for rounding, has the logit N(mean, std^2) there
    posterior = Gaussian(torch.tensor([1.0, 0.0]).double(), Diagonal(torch.tensor([1e-12, 1.0]).double()))
    model = Model(LinearHead(2, 1, bias=False), Bernoulli())
    truth = integrals.trapezoid(torch.sigmoid, inputs[:, 0], inputs[:, 1].square())
    generator = make_generator(seed)
    rows = []
    for method, sizes in (("gauss-hermite", (0,)), ("probit", (0,)), ("bridge", (0,)), *(
        (name, (20, 100, 10_000)) for name in ("mc", "mc-outputs")
    )):  # fmt: skip
        for size in sizes:
            options: dict[str, Any] = {"num_samples": size, "generator": generator} if size else {}
            errors = [
                (predict(model, posterior, inputs, method=method, keep_samples=False, **options).probs[:, 1] - truth).abs()
                for _ in range(NUM_REPEATS if size else 1)
            ]
            mean, largest = (sum(float(f(error)) for error in errors) / len(errors) for f in (torch.mean, torch.amax))
            rows.append({"method": method, "samples": size, "mean": mean, "max": largest})
    return rows


def random_problem(num_classes: int, spread: float, seed: int) -> tuple[Model, Gaussian, Tensor]:
    """A linear head with weights that are correlated at random; `spread` is about the standard deviation of its outputs."""
    generator = make_generator(1000 * num_classes + seed)
    features = 8
    head = LinearHead(features, num_classes, bias=False)
    mean = 2.0 * torch.randn(head.dim, generator=generator, dtype=torch.float64) / features**0.5
    root = torch.randn(head.dim, head.dim, generator=generator, dtype=torch.float64)
    covariance = spread**2 * (root @ root.T / head.dim + 0.1 * torch.eye(head.dim, dtype=torch.float64)) / features
    inputs = torch.randn(NUM_POINTS, features, generator=generator, dtype=torch.float64)
    return Model(head, Categorical()), Gaussian(mean, Dense.from_covariance(covariance)), inputs


def real_problem(data: str | None, num_points: int, precision: float, seed: int) -> tuple[Model, Gaussian, Tensor]:
    """Laplace's posterior of a LeNet's last layer at the mode, and test points."""
    layer = load_last_layer(data, torch.device("cpu"), seed=seed)
    rows = torch.randperm(len(layer.train), generator=make_generator(seed))[:num_points]
    posterior = fit_laplace(Target(layer.model, layer.train.subset(rows), precision)).posterior
    return layer.model, posterior, layer.test.inputs[:: len(layer.test) // (10 * NUM_POINTS)]


def compare(model: Model, posterior: Gaussian, inputs: Tensor, seed: int) -> list[dict[str, Any]]:
    """Distances of every method to a million draws."""
    generator = make_generator(seed)
    truth = million_draws(model, posterior, inputs, generator)
    rows = []
    plain = model(posterior.mean, inputs).softmax(-1)
    rows.append({"method": "the mean's own", "samples": 0, "distance": distance(plain, truth), "ms": None})
    for method in ("probit", "bridge"):
        began = time.perf_counter()
        found = predict(model, posterior, inputs, method=method).probs
        milliseconds = 1e3 * (time.perf_counter() - began)
        rows.append({"method": method, "samples": 0, "distance": distance(found, truth), "ms": milliseconds})
    for method in ("mc", "mc-outputs"):
        for size in SAMPLES:
            options: dict[str, Any] = {"method": method, "num_samples": size, "generator": generator, "keep_samples": False}
            began = time.perf_counter()
            found = [predict(model, posterior, inputs, **options).probs for _ in range(NUM_REPEATS)]
            milliseconds = 1e3 * (time.perf_counter() - began) / NUM_REPEATS
            mean = sum(distance(one, truth) for one in found) / NUM_REPEATS
            rows.append({"method": method, "samples": size, "distance": mean, "ms": milliseconds})
    return rows


def million_draws(model: Model, posterior: Gaussian, inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Averages over draws of the logits, a block of draws at a time."""
    total = torch.zeros(len(inputs), model.head.num_outputs, dtype=torch.float64)
    block = 5000
    for outputs in output_gaussians(model.head, posterior, inputs, joint=True):
        assert len(outputs.mean) == len(inputs)
        for _ in range(NUM_DRAWS // block):
            noise = torch.randn(block, *outputs.mean.shape, generator=generator, dtype=inputs.dtype)
            total += (outputs.mean + outputs.deviations(noise)).softmax(-1).sum(0)
    return total / NUM_DRAWS


def distance(one: Tensor, other: Tensor) -> float:
    """Mean total variation distance."""
    return float(0.5 * (one.double() - other.double()).abs().sum(-1).mean())


if __name__ == "__main__":
    main()
