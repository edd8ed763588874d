"""Whether a posterior that is closer to HMC's in weight space predicts better: MMD against NLL over all methods."""

import statistics
from collections.abc import Mapping
from typing import Any

from scipy.stats import rankdata  # type: ignore[import-untyped]

from burnish.studies.image_calibration import run_seed as calibrate
from burnish.studies.image_methods import LABELS, TEMPERATURE, LayerMethods
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, RECENTRED
from burnish.studies.summaries import method_names, method_rows, spread

__all__ = ["from_calibration", "run_seed", "summary"]


def run_seed(methods: LayerMethods) -> dict[str, Any]:
    """Distance and NLL of every method that approximates the target."""
    return _points(calibrate(methods), methods.problem.setting.protocol)


def from_calibration(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of this study that one of image-calibration holds, also where its networks and draws are gone."""
    config = {**record["config"], "baseline_seeds": []}  # networks trained otherwise have no distance to HMC
    parts = {}
    for seed, part in record["seeds"].items():
        kept = {"network": part["network"], "source": record["study"], "seconds_in_all": 0.0, "origin": part["origin"]}
        parts[seed] = _points(part, config["protocol"]) | kept
    return {**record, "study": "correlation", "config": config, "seeds": parts}


def _points(part: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """What results of calibration say about distance and NLL."""
    column = "mmd_paper" if protocol == "paper" else "mmd"
    rows = {
        name: {"mmd": row[column], "nll": row["few"]["nll"]}
        for name, row in part["rows"].items()
        if column in row and name not in (HMC, TEMPERATURE)  # which have no distance, or that of another method
    }
    return {"rows": rows, "hmc_nll": part["rows"][HMC]["few"]["nll"]}


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: means over seeds of both, and how they go together."""
    parts = list(record["seeds"].values())
    names = method_names(parts)
    means = {
        name: [statistics.fmean(row[key] for row in method_rows(parts, name)) for key in ("mmd", "nll")] for name in names
    }
    rows = []
    for name in names:
        found = method_rows(parts, name)
        rows.append([LABELS.get(name, name), *(spread([row[key] for row in found], 4) for key in ("mmd", "nll"))])
    own = (RECENTRED, FLOW, BURNISH)
    for label, chosen in (("all methods", names), ("the paper's", [name for name in names if name not in own])):
        distance, nll = zip(*(means[name] for name in chosen), strict=True)
        ranks = [rankdata(values).tolist() for values in (distance, nll)]
        together = [statistics.correlation(distance, nll), statistics.correlation(*ranks)]
        rows.append([f"correlation of the means of {label}: of values, of ranks", *(f"{value:.2f}" for value in together)])
    return ["method", "MMD to HMC", "NLL"], rows
