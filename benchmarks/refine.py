"""`burnish.refine` with its defaults against the network and temperature scaling, on points that none of them has seen.

A LeNet-5 on Fashion-MNIST, three seeds, the test set cut into 2,000 points for validation and 8,000 to test on, five
times; and the network of `burnish demo` on scikit-learn's digits, thirty seeds with a split each. Without validation data,
too, for what happens then. Writes results/refine.json.

    python benchmarks/refine.py [--data DIR] [--splits 5] [--digits 30]
"""

import argparse
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

import burnish
from burnish import metrics
from burnish.studies.digits import load_split, train_network
from fashion_mnist import read_set, trained_lenet
from records import RESULTS, print_table, write_record

SEEDS = (0, 1, 2)
FIRST_DIGITS_SEED = 70  # how `choose_target` decides was settled with those before in view
NUM_VALIDATION = 2000
NUM_BINS = 10


def run(network: nn.Module, train: Any, validation: Any, test: tuple[Tensor, Tensor], seed: int) -> dict[str, Any]:
    """One refinement with defaults: every predictor's scores on the test points, and what was decided and warned of."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn = burnish.refine(network, train, validation=validation, seed=seed, progress=False)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        logits = torch.cat([network.eval()(piece) for piece in test[0].split(1000)])
    predictions = {"network": logits.softmax(-1), "burnish": bnn.predict(test[0], keep_samples=False).probs}
    temperature = bnn.refinement.temperature
    if temperature is not None:
        predictions["temperature scaling"] = (logits / temperature).softmax(-1)
    return {
        "seconds": seconds,
        "stages": bnn.seconds,
        "warnings": [str(warning.message) for warning in caught],
        "trusted": bnn.verdict.trusted,
        "verdict": str(bnn.verdict),
        "khat": bnn.verdict.khat,
        "elbo_gain": bnn.verdict.elbo_gain,
        "fitted_on": bnn.tuning.data,
        "prior_mean": bnn.tuning.prior_mean,
        "prior_precision": bnn.tuning.precision,
        "temperature": temperature,
        "test": {name: scores(probs, test[1]) for name, probs in predictions.items()},
    }


def scores(probs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Metrics of one predictor, and its reliability: mean confidence and accuracy in bins of equal mass."""
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    bins = [
        [float(confidence[part].double().mean()), float((predicted[part] == targets[part]).double().mean())]
        for part in order.tensor_split(NUM_BINS)
    ]
    values = {name: getattr(metrics, name)(probs, targets) for name in ("accuracy", "nll", "ece", "brier")}
    return {**values, "reliability": bins}


def interval(differences: Sequence[float]) -> dict[str, float]:
    """Mean of paired differences, and the 95 % interval of Student's t."""
    values = torch.tensor(differences, dtype=torch.float64)
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std() / math.sqrt(len(values)))
    return {"mean": float(values.mean()), "low": float(values.mean()) - half, "high": float(values.mean()) + half}


def compare(groups: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Test NLL of burnish less that of each rival: runs of one group (a network) are averaged, groups are the sample."""

    def difference(result: dict[str, Any], rival: str) -> float:
        return float(result["test"]["burnish"]["nll"] - result["test"][rival]["nll"])

    summary = {}
    for rival in ("network", "temperature scaling"):
        means = [sum(difference(result, rival) for result in group) / len(group) for group in groups]
        every = [difference(result, rival) for group in groups for result in group]
        summary[rival] = {
            "by_network": means,
            "interval": interval(means),
            "first_split": interval([difference(group[0], rival) for group in groups]),
            "worst": max(every),
        }
    return summary


def fashion_mnist(folder: str | None, num_splits: int) -> dict[str, Any]:
    """LeNets on Fashion-MNIST, with validation data and without."""
    train, test = read_set(folder, "train"), read_set(folder, "t10k")
    groups, without = [], []
    for seed in SEEDS:
        network = trained_lenet(train, torch.device("cpu"), seed=seed)
        group = []
        for split in range(num_splits):
            order = torch.randperm(len(test[0]), generator=burnish.make_generator(100 * seed + split))
            held_out, rest = order[:NUM_VALIDATION], order[NUM_VALIDATION:]
            parts = [tuple(column[index] for column in test) for index in (held_out, rest)]
            group.append(run(network, train, parts[0], parts[1], seed))
            print(f"LeNet {seed}, split {split}: {group[-1]['verdict'].splitlines()[0]}", flush=True)
        without.append(run(network, train, None, test, seed))
        print(f"LeNet {seed}, no validation data: {without[-1]['verdict'].splitlines()[0]}", flush=True)
        groups.append(group)
    return {"runs": groups, "differences": compare(groups), "without_validation": without}


def digits(num_seeds: int) -> dict[str, Any]:
    """The demo's network, another split and another training for every seed."""
    groups, without = [], []
    for seed in range(FIRST_DIGITS_SEED, FIRST_DIGITS_SEED + num_seeds):
        split = load_split(seed)
        network = train_network(seed, split=split)
        train, validation, test = ((part.inputs, part.targets) for part in (split.train, split.validation, split.test))
        groups.append([run(network, train, validation, test, seed)])
        without.append(run(network, train, None, test, seed))
        print(f"digits {seed}: {groups[-1][0]['verdict'].splitlines()[0]}", flush=True)
    return {"runs": groups, "differences": compare(groups), "without_validation": without}


def main() -> None:
    """Runs both, prints the means, writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--splits", type=int, default=5, help="of Fashion-MNIST's test set, for each network")
    parser.add_argument("--digits", type=int, default=30, help="seeds of the digits network")
    options = parser.parse_args()
    results = {"fashion-mnist": fashion_mnist(options.data, options.splits), "digits": digits(options.digits)}
    rows = []
    for name, result in results.items():
        for rival, summary in result["differences"].items():
            rows.append({"data": name, "less": rival, **summary["interval"], "worst run": summary["worst"]})
    print_table(rows)
    digits_seeds = list(range(FIRST_DIGITS_SEED, FIRST_DIGITS_SEED + options.digits))
    config = {"seeds": SEEDS, "splits": options.splits, "digits": digits_seeds, "num_validation": NUM_VALIDATION}
    write_record(RESULTS / "refine.json", config, results, torch.device("cpu"))


if __name__ == "__main__":
    main()
