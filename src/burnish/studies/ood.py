"""Images of other data sets told from test images by how sure each method is."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from burnish import metrics
from burnish.prediction import Prediction
from burnish.studies.data import DATASETS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE, Methods, num_samples
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.summaries import is_comparable, method_names, method_rows, printed_text, spread

__all__ = ["PRINTED_NAMES", "run_baseline", "run_seed", "summary"]

PRINTED_NAMES = {"emnist-digits": "EMNIST", "mnist": "MNIST", "kmnist": "KMNIST", "svhn": "SVHN"} | {
    name: benchmark.title for name, benchmark in BENCHMARKS.items()
}


def run_seed(methods: Methods) -> dict[str, Any]:
    """FPR95 and AUROC of each method on each set outside, by three scores; by as many draws as the paper takes."""
    setting = methods.setting
    rows: dict[str, Any] = {}
    for name in methods.names:
        count = num_samples(setting, name)
        inside = _familiarity(methods.predict(name, "test", count), name)
        rows[name] = {}
        for outside in setting.benchmark.outside:
            scores = _familiarity(methods.predict(name, f"outside {outside}", count), name)
            rows[name][outside] = {key: _rates(inside[key], scores[key]) for key in inside}
    return {"rows": rows, "sizes": {name: len(setting.stored(f"outside {name}")) for name in setting.benchmark.outside}}


run_baseline = run_seed


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: FPR95 in percent by the largest probability, means and standard errors over seeds."""
    dataset = record["config"]["dataset"]
    parts = list(record["seeds"].values())
    outside = list(parts[0]["sizes"])
    rows = []
    for name in method_names(parts):
        found = method_rows(parts, name)
        rates = [[row[key]["confidence"]["fpr95"] for row in found] for key in outside]
        rows.append([LABELS.get(name, name), *(spread(values, 1, 100.0) for values in rates)])
        title = BENCHMARKS[dataset].title
        known = [printed_text("ood_fpr95_detail", title, PRINTED_NAMES.get(key, key), name) for key in outside]
        if is_comparable(record["config"]) and any(known):
            rows.append(["  printed", *known])
    sizes = parts[0]["sizes"]
    return ["FPR95, %", *(f"{DATASETS[key].title} ({sizes[key]:,})" for key in outside)], rows


def _familiarity(prediction: Prediction, name: str) -> dict[str, Tensor]:
    """Scores by which known points should be above others; one network alone has no mutual information."""
    scores = {"confidence": prediction.familiarity("confidence"), "entropy": prediction.familiarity("entropy")}
    if name not in (MAP, TEMPERATURE):
        scores["mutual information"] = prediction.familiarity("mutual_information")
    return scores


def _rates(inside: Tensor, outside: Tensor) -> dict[str, float]:
    return {"fpr95": metrics.fpr95(inside, outside), "auroc": metrics.auroc(inside, outside)}
