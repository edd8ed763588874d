"""What becomes of the paper's VB with its divergence summed over all weights, and with none: one network each way.

Releases of the library behind the released code differ in whether a layer's divergence is a sum or a mean over its weights.
A mean leaves next to nothing of it, so that none stands for it here. Results of a data set are added to the record.

python benchmarks/vb_divergence.py --dataset cifar-10 --data DIR --device cuda
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from burnish import metrics
from burnish.studies.image_methods import NetworkMethods
from burnish.studies.image_problem import Setting, train_missing
from burnish.studies.image_settings import ImageSettings
from burnish.studies.recipes import Recipe
from burnish.studies.sources import data_source
from burnish.studies.workspace import Workspace
from records import RESULTS, origin, print_table, write_record

WAYS = {"summed": 0.1, "none": 0.0}  # how much of the divergence is left: the paper tempers it by a tenth
SEED, DRAWS = 0, 20


@dataclass(frozen=True, eq=False)
class Trial(Setting):
    """A setting whose VB has so much of its divergence."""

    kl_weight: float = 0.0

    def recipe(self, kind: str, num_points: int) -> Recipe:
        """The paper's, but for that."""
        return replace(super().recipe(kind, num_points), kl_weight=self.kl_weight)


def score(trial: Trial) -> dict[str, Any]:
    """Trains a network, unless there is one, and scores its predictions on the paper's test points."""
    failed = train_missing(trial, "vb", (SEED,), progress=True)
    if failed:
        raise SystemExit(f"training failed: {failed[SEED]}")
    methods, labels = NetworkMethods(trial, "vb", SEED), trial.labels("test")
    probs = methods.predict("VB", "test", DRAWS).probs
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels),
        "origin": origin(trial.device),
    }


def main() -> None:
    """Adds one data set to the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion-mnist", choices=("fashion-mnist", "cifar-10", "cifar-100"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, help="folder with the data; a downloaded copy if not given")
    parser.add_argument("--work", type=Path, default=Path(".cache") / "vb-divergence")
    parser.add_argument("--out", type=Path, default=RESULTS / "vb-divergence.json")
    options = parser.parse_args()
    device, source = torch.device(options.device), data_source(options.dataset, "paper", options.data, False)
    settings = ImageSettings.usual(options.dataset, "paper")
    results = json.loads(options.out.read_bytes())["results"] if options.out.exists() else {}
    results[options.dataset] = known = {}
    for way, weight in WAYS.items():
        workspace = Workspace(options.work / way)
        known[way] = score(Trial(options.dataset, "paper", settings, source, workspace, device, kl_weight=weight))
    shown = ("accuracy", "nll", "brier", "ece")
    print_table([{"divergence": way, **{key: row[key] for key in shown}} for way, row in known.items()])
    write_record(options.out, {"seed": SEED, "draws": DRAWS, "weights": WAYS}, results, device)


if __name__ == "__main__":
    main()
