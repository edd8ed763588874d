"""Test images turned, or corrupted, more and more: how each method's NLL grows."""

import statistics
from collections.abc import Mapping
from typing import Any

from burnish import metrics
from burnish.studies.image_methods import LABELS, Methods, num_samples
from burnish.studies.printed import printed
from burnish.studies.summaries import is_comparable, method_names, method_rows

__all__ = ["run_baseline", "run_seed", "summary"]


def run_seed(methods: Methods) -> dict[str, Any]:
    """NLL, accuracy and ECE of each method at each level of the shift."""
    setting = methods.setting
    rows: dict[str, Any] = {}
    for name in methods.names:
        count = num_samples(setting, name)
        scores = []
        for level in setting.levels:
            probs = methods.predict(name, f"shift {level}", count).probs
            labels = setting.labels(f"shift {level}")
            scores.append({key: getattr(metrics, key)(probs, labels) for key in ("nll", "accuracy", "ece")})
        rows[name] = {key: [score[key] for score in scores] for key in scores[0]}
    return {"levels": list(setting.levels), "rows": rows}


run_baseline = run_seed


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean NLL at each level, with what the paper's figure shows for CIFAR-10."""
    parts = list(record["seeds"].values())
    levels = parts[0]["levels"]
    rows = []
    for name in method_names(parts):
        found = [row["nll"] for row in method_rows(parts, name)]
        rows.append([LABELS.get(name, name), *(f"{statistics.fmean(values):.4f}" for values in zip(*found, strict=True))])
        if record["config"]["dataset"] == "cifar-10" and is_comparable(record["config"]):
            known = printed("shift_corrupted_cifar10_nll", name)
            if isinstance(known, list):
                rows.append(["  printed", *(f"{value:.4f}" for value in known)])
    what = "degrees" if record["config"]["dataset"] == "fashion-mnist" else "level, corrupted in the style of CIFAR-10-C"
    return [f"NLL at {what}", *map(str, levels)], rows
