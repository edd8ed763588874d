"""What posteriors cost, on one LeNet on Fashion-MNIST: before prediction, at prediction, and in memory.

Last-layer Laplace (recentred) and its refinement are fitted outright. Training, and with it deep ensembles, SWAG and
MultiSWAG, are measured over a few epochs and extrapolated linearly, which the record says of each row. Beside every
measured cost stands a symbolic one, and that of the paper's table. Writes results/costs-cpu.json.

    python benchmarks/costs.py [--data DIR] [--num-members 5] [--rank 20] [--epochs-measured 2]
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish import (
    Batch,
    Model,
    Posterior,
    SamplePosterior,
    Target,
    extract_features,
    fit_ensemble,
    fit_flow,
    fit_laplace,
    fit_multiswag,
    fit_swag,
    flatten_network,
    make_generator,
    split_last_layer,
)
from burnish.encoding import encode
from burnish.posteriors import KINDS
from burnish.predictive import predict_at
from fashion_mnist import read_set, train_network, trained_lenet
from records import RESULTS, print_table, write_record

NUM_EPOCHS = 100  # of training, and of extrapolated training
BATCH = 128  # points, in training and prediction
NUM_SAMPLES = 20
FLOW_SAMPLES = 8  # at each step of refinement, the default in so many dimensions
PRECISION = 30.0  # of the prior: what weight decay of 5e-4 stands for with 60,000 points
SWAG = {"learning_rate": 1e-2, "batch_size": BATCH, "min_std": 1e-8}  # some weights of a ReLU network have died
FIT_ROUNDS, PREDICT_ROUNDS = 3, 100

SYMBOLS = {  # the first eight are the paper's
    "N": "training points",
    "M": "parameters of the network; the cost of one forward pass of one point",
    "C": "classes",
    "P": "features of the last layer",
    "F": "layers of the flow",
    "S": "draws that predictions are averaged over",
    "R": "snapshots of SWAG, one after each epoch",
    "K": "networks of an ensemble",
    "T": "epochs of training",
    "d": "C (P + 1), parameters of the last layer",
    "I": "Newton steps to the mode",
    "J": "steps of refinement",
    "B": "points times draws in one step of refinement: of a large data set a batch, whatever N is",
}
# Overhead over training one network, prediction for one point with draws at hand, numbers kept to draw anew; the first two
# up to constant factors.
OURS = {
    "network": ("0", "M", "M"),
    "last-layer Laplace": ("N M + I N d + N d^2 + d^3", "M + S d", "M + d^2"),
    "Laplace, refined": ("N M + I N d + N d^2 + d^3 + J (B d + d^2 + F d)", "M + S d", "M + d^2 + F d"),
    "SWAG": ("R N M", "S M", "(R + 2) M"),
    "deep ensemble": ("(K - 1) T N M", "K M", "K M"),
    "MultiSWAG": ("(K - 1) T N M + K R N M", "S M", "K (R + 2) M"),
}
PAPER = {
    "network": ("-", "M", "M"),
    "last-layer Laplace": ("N M + C^3 + P^3", "S C P", "M + C^2 + P^2"),
    "Laplace, refined": ("N M + C^3 + P^3 + N F C P", "S F C P", "M + C^2 + P^2 + F C P"),
    "SWAG": ("R N M", "S R M", "R M"),
    "deep ensemble": ("-", "K M", "K M"),
    "MultiSWAG": ("K R N M", "K S R M", "K R M"),
}
PAPER_SAYS = (
    "Laplace with Kronecker factors; making the draws is part of every prediction, through the flow or from all snapshots, "
    "and the backbone's pass is not; training the other networks of an ensemble counts as no overhead."
)
SHOWN = (
    "method",
    "seconds",
    "epochs",
    "trainings",
    "extrapolated",
    "predict_ms",
    "forwards",
    "draw_ms",
    "bytes",
    "networks",
)


@dataclass(frozen=True)
class Method:
    """A posterior that predicts, and what it took to get it beyond training one network."""

    model: Model
    posterior: Posterior
    seconds: float
    measured_seconds: float
    """The same without extrapolation."""
    extrapolated: bool
    num_draws: int
    transform: Callable[[Tensor], Tensor]
    """From images to what the model takes."""
    beside: int
    """Bytes that must be kept beside the posterior."""


def main() -> None:
    """Runs the benchmark, prints its table and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-members", type=int, default=5, help="of the ensembles")
    parser.add_argument("--rank", type=int, default=20, help="snapshots of SWAG, one after each epoch")
    parser.add_argument("--epochs-measured", type=int, default=2, help="of training and of SWAG, to extrapolate from")
    parser.add_argument("--num-points", type=int, default=60_000, help="of the training set, to try the benchmark out")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    train, test = read_set(options.data, "train"), read_set(options.data, "t10k")
    network = trained_lenet(train, device, seed=options.seed, num_epochs=NUM_EPOCHS).eval()
    inputs, labels = (part[: options.num_points].to(device) for part in train)
    last_layer, values = fit_last_layer(network, Batch(inputs, labels), options.seed)
    print("last layer fitted", flush=True)
    whole, epoch = fit_whole(network, Batch(inputs, labels), options)
    print("ensemble, SWAG and MultiSWAG fitted", flush=True)
    rows = measure(network, test[0][:BATCH].to(device), {**last_layer, **whole}, epoch, options.seed)
    print_table([{name: row[name] for name in SHOWN} for row in rows])
    values |= {"N": len(inputs), "M": sum(parameter.numel() for parameter in network.parameters()), "S": NUM_SAMPLES}
    values |= {"R": options.rank, "K": options.num_members, "T": NUM_EPOCHS}
    results = {
        "training": {"epoch_seconds": epoch, "seconds": NUM_EPOCHS * epoch, "epochs": NUM_EPOCHS, "extrapolated": True},
        "symbols": {name: {"meaning": meaning, "value": values[name]} for name, meaning in SYMBOLS.items()},
        "paper": PAPER_SAYS,
        "methods": rows,
    }
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    config |= {"batch": BATCH, "prior_precision": PRECISION, "fit_rounds": FIT_ROUNDS, "predict_rounds": PREDICT_ROUNDS}
    write_record(options.out or RESULTS / f"costs-{device.type}.json", config, results, device)


def fit_last_layer(network: nn.Module, data: Batch, seed: int) -> tuple[dict[str, Method], dict[str, Any]]:
    """Laplace at the mode and its refinement, features included: medians over rounds. And values of symbols."""
    device = data.inputs.device
    parts: dict[str, list[float]] = {"features": [], "laplace": [], "flow": []}
    for _ in range(FIT_ROUNDS):
        began = clock(device)
        backbone, model, theta = split_last_layer(network, example=data.inputs[:8])
        train = extract_features(backbone, (data.inputs, data.targets), device=device)
        parts["features"].append(clock(device) - began)
        target, began = Target(model, train, PRECISION), clock(device)
        laplace = fit_laplace(target, theta.detach())
        parts["laplace"].append(clock(device) - began)
        began = clock(device)
        flow = fit_flow(target, laplace.posterior, generator=make_generator(seed, device), num_samples=FLOW_SAMPLES)
        parts["flow"].append(clock(device) - began)
    features, mode, ascent = (statistics.median(seconds) for seconds in parts.values())
    shared = {"extrapolated": False, "num_draws": NUM_SAMPLES, "transform": backbone, "beside": num_bytes(network)}
    methods = {
        "last-layer Laplace": Method(model, laplace.posterior, features + mode, features + mode, **shared),
        "Laplace, refined": Method(model, flow.posterior, *[features + mode + ascent] * 2, **shared),
    }
    head, num_points = model.linear_head, flow.batch_size or len(data)
    values = {"C": head.num_outputs, "P": head.num_features, "d": head.dim, "I": laplace.iterations}
    values |= {"F": len(flow.posterior.bijections) - 1, "J": len(flow.trace), "B": num_points * FLOW_SAMPLES}
    return methods, values


def fit_whole(network: nn.Module, data: Batch, options: argparse.Namespace) -> tuple[dict[str, Method], float]:
    """Ensemble, SWAG and MultiSWAG over a few epochs, with seconds for all they need; and those of one epoch of training."""
    device, num_epochs = data.inputs.device, options.epochs_measured
    num_steps = num_epochs * math.ceil(len(data) / BATCH)
    swag_options = {
        **SWAG,
        "num_steps": num_steps,
        "snapshot_every": max(1, num_steps // options.rank),
        "rank": options.rank,
    }

    def train(seed: int) -> nn.Module:
        with tempfile.TemporaryDirectory() as folder:
            return train_network((data.inputs, data.targets), device, num_epochs, seed, Path(folder))

    with tempfile.TemporaryDirectory() as folder:  # the first of all trainings loads more code
        train_network((data.inputs[:BATCH], data.targets[:BATCH]), device, 1, 0, Path(folder))
    example = data.inputs[:8]
    ensemble = fit_ensemble(train, options.num_members, example=example, generator=make_generator(options.seed))
    epoch = statistics.median(ensemble.member_seconds) / num_epochs
    model, theta = flatten_network(network, example=example)
    target = Target(model, data, PRECISION)
    swag = fit_swag(target, theta, generator=make_generator(options.seed, device), **swag_options)
    starts = ensemble.parameters
    multiswag = fit_multiswag(target, starts, generator=make_generator(options.seed, device), **swag_options)
    others, measured = (options.num_members - 1) * NUM_EPOCHS * epoch, sum(ensemble.member_seconds[1:])
    swags, multiswags = swag.seconds, multiswag.seconds
    factor = options.rank / num_epochs
    shared = {"extrapolated": True, "transform": nn.Identity(), "beside": 0}
    few, many = {**shared, "num_draws": options.num_members}, {**shared, "num_draws": NUM_SAMPLES}
    methods = {
        "SWAG": Method(model, swag.posterior, factor * swags, swags, **many),
        "deep ensemble": Method(ensemble.model, ensemble.posterior, others, measured, **few),
        "MultiSWAG": Method(model, multiswag.posterior, others + factor * multiswags, measured + multiswags, **many),
    }
    return methods, epoch


@torch.no_grad()
def measure(
    network: nn.Module, images: Tensor, methods: Mapping[str, Method], epoch: float, seed: int
) -> list[dict[str, Any]]:
    """One row for the network and one for each method: prediction in turns, medians over rounds, and bytes kept."""
    generator = make_generator(seed, images.device)
    draws = {name: method.posterior.sample(method.num_draws, generator=generator) for name, method in methods.items()}

    def predict(name: str) -> Any:
        if name == "network":
            return network(images).softmax(-1)
        method = methods[name]
        return predict_at(method.model, draws[name], method.transform(images), keep_samples=False)

    predicting = in_turns({name: partial(predict, name) for name in ("network", *methods)}, images.device)
    drawn = {name: method for name, method in methods.items() if not isinstance(method.posterior, SamplePosterior)}
    drawing = in_turns(
        {name: partial(m.posterior.sample, m.num_draws, generator=generator) for name, m in drawn.items()}, images.device
    )
    own = num_bytes(network)
    rows = [describe("network", 0.0, 0.0, False, epoch) | {"draws": 1, **kept(own, own, own)}]
    for name, method in methods.items():
        row = describe(name, method.seconds, method.measured_seconds, method.extrapolated, epoch)
        sizes = stored_bytes(method.posterior), draws[name].numel() * draws[name].element_size()
        rows.append(row | {"draws": method.num_draws, **kept(own, *(method.beside + size for size in sizes))})
    for row in rows:
        seconds = predicting[row["method"]]
        row |= {"predict_ms": 1e3 * seconds, "forwards": seconds / predicting["network"]}
        row |= {"draw_ms": 1e3 * drawing.get(row["method"], 0.0)}
    return rows


def describe(name: str, seconds: float, measured: float, extrapolated: bool, epoch: float) -> dict[str, Any]:
    """What a method takes before it can predict, in seconds, epochs and trainings of one network, and in symbols."""
    columns = ("overhead", "prediction", "memory")
    return {
        "method": name,
        "seconds": seconds,
        "measured_seconds": measured,
        "extrapolated": extrapolated,
        "epochs": seconds / epoch,
        "trainings": seconds / (NUM_EPOCHS * epoch),
        "cost": dict(zip(columns, OURS[name], strict=True)),
        "paper": dict(zip(columns, PAPER[name], strict=True)),
    }


def kept(own: int, anew: int, fixed: int) -> dict[str, float]:
    """Bytes that must be kept to draw anew, and to predict with the same draws every time; and relative to the network."""
    return {
        "bytes": anew,
        "networks": anew / own,
        "bytes_with_draws": fixed,
        "networks_with_draws": fixed / own,
    }


def in_turns(calls: Mapping[str, Callable[[], Any]], device: torch.device) -> dict[str, float]:
    """Median seconds of each call; one after the other in every round, so that what else runs slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(PREDICT_ROUNDS):
        for name, call in calls.items():
            call()  # for caches, which the one before has filled with its own
            began = clock(device)
            call()
            seconds[name].append(clock(device) - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def clock(device: torch.device) -> float:
    """Seconds, once everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def num_bytes(network: nn.Module) -> int:
    """Of its parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())


def stored_bytes(posterior: Posterior) -> int:
    """Of the tensors that a file of the posterior holds."""
    return sum(tensor.numel() * tensor.element_size() for tensor in encode(posterior, KINDS)[1].values())


if __name__ == "__main__":
    main()
