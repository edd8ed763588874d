"""How close few samples come to the exact predictions: drawn at random, by structured noise, selected, and by HMC.

On the last layer of LeNets on Fashion-MNIST. The distance is the mean total variation distance to a long run of HMC on
the test set; samples are selected by training inputs that the posterior was not fitted to, without their labels.

    python benchmarks/sample_efficiency.py --data DIR --device cuda
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish import (
    FlowPosterior,
    HmcFit,
    Prediction,
    Target,
    WeightedSamples,
    fit_flow,
    fit_hmc,
    fit_laplace,
    make_generator,
    predict,
    select_samples,
)
from burnish.predictive import predict_at
from fashion_mnist import LastLayer, load_last_layer
from records import RESULTS, measured, print_table, write_record

PROBLEMS = ((600, 5.0), (60_000, 40.0))
SIZES = (4, 10, 20, 50, 100)


def main() -> None:
    """Runs the benchmark, prints its table and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the networks")
    parser.add_argument("--sets", type=int, default=50, help="drawn at random for each number of samples")
    parser.add_argument("--selections", type=int, default=5, help="from different candidates, for each number of samples")
    parser.add_argument("--unlabelled", type=int, default=4000, help="inputs to select by")
    parser.add_argument("--out", type=Path, default=RESULTS / "sample-efficiency.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    results: list[dict[str, Any]] = []
    for seed in options.seeds:
        layer = load_last_layer(options.data, device, seed=seed)
        order = torch.randperm(len(layer.train), generator=make_generator(seed)).to(device)
        for num_points, precision in PROBLEMS:
            target = Target(layer.model, layer.train.subset(order[:num_points]), precision)
            unlabelled = layer.train.inputs[order[-options.unlabelled :]]
            known = {"seed": seed, "points": num_points, "precision": precision}
            rows = compare(target, layer, unlabelled, seed, options.sets, options.selections)
            results += [known | row for row in rows]
            print_table([row for row in results[-len(rows) :] if row["samples"] in (0, 20)])
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out, config | {"sizes": list(SIZES)}, results, device)


def compare(
    target: Target, layer: LastLayer, unlabelled: Tensor, seed: int, num_sets: int, num_selections: int
) -> list[dict[str, Any]]:
    """For every way to come by samples and every number of them, the distances of the sets to the judge."""
    device, inputs = unlabelled.device, layer.test.inputs
    generator = make_generator(seed, device)
    flow = fit_flow(target, fit_laplace(target).posterior, generator=generator).posterior
    runs = [fit_hmc(target, flow, generator=make_generator(100 * seed + run, device), min_draws=150) for run in (1, 2)]
    judge = predict_at(target.model, runs[0].posterior.samples, inputs, keep_samples=False)
    many = predict(target.model, flow, inputs, num_samples=8000, generator=generator, keep_samples=False)
    other = predict_at(target.model, runs[1].posterior.samples, inputs, keep_samples=False)
    rows = [row("flow, 8,000 draws", 0, [many], judge), row("HMC, another run", 0, [other], judge)]
    rows[1]["rhat"] = max(run.rhat for run in runs)
    ways: dict[str, Callable[[int], Tensor]] = {
        "drawn": lambda size: flow.sample(size, generator=generator),
        "antithetic": lambda size: flow.sample(size, noise="antithetic", generator=generator),
        "Sobol": lambda size: flow.sample(size, noise="sobol", generator=generator),
        "HMC, different chains": lambda size: draw_chains(runs[1], size, generator),
    }
    for size in SIZES:
        for name, draw in ways.items():
            found = [predict_at(target.model, draw(size), inputs, keep_samples=False) for _ in range(num_sets)]
            rows.append(row(name, size, found, judge))
        rows += selections(target, flow, unlabelled, inputs, size, num_selections, judge, generator)
    return rows


def selections(
    target: Target,
    flow: FlowPosterior,
    unlabelled: Tensor,
    inputs: Tensor,
    size: int,
    count: int,
    judge: Prediction,
    generator: torch.Generator,
) -> list[dict[str, Any]]:
    """Selected samples with even weights, with weights, and moved."""
    device = inputs.device
    found: dict[str, list[Prediction]] = {}
    seconds: dict[str, list[float]] = {}
    for _ in range(count):
        for name, num_steps in (("selected and weighted", 0), ("selected, weighted and moved", 100)):
            with measured(device) as cost:
                chosen = select_samples(
                    target.model, flow, unlabelled, num_samples=size, num_steps=num_steps, generator=generator
                ).posterior
            seconds.setdefault(name, []).append(cost["seconds"])
            found.setdefault(name, []).append(predicted(target, chosen, inputs))
            if num_steps == 0:
                even = WeightedSamples(chosen.samples, torch.full_like(chosen.weights, 1.0 / size))
                found.setdefault("selected", []).append(predicted(target, even, inputs))
    order = ("selected", "selected and weighted", "selected, weighted and moved")
    return [
        row(name, size, found[name], judge) | {"seconds": statistics.median(seconds.get(name, [float("nan")]))}
        for name in order
    ]


def predicted(target: Target, chosen: WeightedSamples, inputs: Tensor) -> Prediction:
    """With weighted samples."""
    return predict(target.model, chosen, inputs, keep_samples=False)


def draw_chains(fit: HmcFit, size: int, generator: torch.Generator) -> Tensor:
    """Draws of different chains while there are enough of them, at random times."""
    draws = fit.posterior.draws
    chains = torch.randperm(len(draws), generator=generator, device=draws.device).repeat(-(-size // len(draws)))[:size]
    return draws[chains, torch.randint(draws.shape[1], (size,), generator=generator, device=draws.device)]


def row(name: str, size: int, predictions: list[Prediction], judge: Prediction) -> dict[str, Any]:
    """Distances of several sets: of probabilities, and of mutual information in nats."""
    distances = [float(0.5 * (one.probs - judge.probs).abs().sum(-1).mean()) for one in predictions]
    information = [float((one.mutual_information - judge.mutual_information).abs().mean()) for one in predictions]
    return {
        "way": name,
        "samples": size,
        "distance": statistics.mean(distances),
        "spread": statistics.stdev(distances) if len(distances) > 1 else 0.0,
        "information_error": statistics.mean(information),
        "judge_information": float(judge.mutual_information.mean()),
        "seconds": None,
        "rhat": None,
    }


if __name__ == "__main__":
    main()
