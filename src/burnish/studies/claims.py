"""What the records of the image studies show, statement by statement: each with its numbers, and whether it holds."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit  # type: ignore[import-untyped]

from burnish.metrics import Interval
from burnish.studies.data import DATASETS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, LA, RECENTRED, REFINE, flow_name
from burnish.studies.printed import Printed, printed
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.summaries import is_comparable, method_rows, standard_error

__all__ = ["MARGIN", "Claim", "calibration_claims", "ood_claims", "paired_interval"]

_ACCURACY = {"fashion-mnist": 0.5, "cifar-10": 0.5, "cifar-100": 1.0}  # points by which networks may differ
MARGIN = 0.003  # of HMC's NLL, within which another posterior's counts as the same
_LARGEST_RHAT = 1.01
_INSIDE = {
    "inside": "the unbiased MMD",
    "inside_contrasts": "the unbiased MMD in contrasts of classes, which alone change predictions,",
    "inside_tv": "the distance of predictions",
}
_NEAR = 2.0  # points of the paper's calibration error
_PRINTED_DIGIT = 1e-3  # the last one of the paper's MMDs


@dataclass(frozen=True)
class Claim:
    """A statement, what was measured, and whether it holds."""

    statement: str
    measured: str
    holds: bool


def paired_interval(differences: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of differences and Student's interval around it; of one difference, without bounds."""
    mean, count = statistics.fmean(differences), len(differences)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, level)
    half = float(stdtrit(count - 1, 0.5 * (1.0 + level))) * statistics.stdev(differences) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, level)


def calibration_claims(record: Mapping[str, Any]) -> list[Claim]:
    """What a record of `image-calibration` shows; nothing where it is to be compared with the paper's and cannot be."""
    parts, config = list(record["seeds"].values()), record["config"]
    if config["protocol"] == "ours":
        return _own_claims(parts, record)
    return _paper_claims(parts, config["dataset"]) if is_comparable(config) else []


def ood_claims(records: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """How often `refine` tells other images apart better than temperature scaling, over the pairs of all records."""
    better, surely, pairs, lines = 0, 0, 0, []
    for record in records:
        parts = list(record["seeds"].values())
        for outside in parts[0]["sizes"]:
            own, rival = (
                [row[outside]["confidence"]["fpr95"] for row in method_rows(parts, name)] for name in (REFINE, TEMPERATURE)
            )
            less = paired_interval([100.0 * (first - second) for first, second in zip(own, rival, strict=True)])
            pairs, better, surely = pairs + 1, better + (less.value < 0.0), surely + (less.high < 0.0)
            pair = f"{BENCHMARKS[record['config']['dataset']].title} and {DATASETS[outside].title}"
            means = f"{100 * statistics.fmean(own):.1f} against {100 * statistics.fmean(rival):.1f} %"
            lines.append(f"{pair} {means} ({less.value:+.1f}, from {less.low:+.1f} to {less.high:+.1f})")
    statement = "FPR95 of `refine` is below that of temperature scaling on at least two thirds of the pairs"
    counted = f"{better} of {pairs}, {surely} of them by a 95 % interval"
    return [Claim(statement, f"{counted}: {'; '.join(lines)}", 3 * better >= 2 * pairs)]


def _paper_claims(parts: list[Any], dataset: str) -> list[Claim]:
    title = BENCHMARKS[dataset].title
    claims = [_accuracy(parts, dataset)]
    names = [MAP, LA, flow_name(1), flow_name(5)]
    if dataset == "fashion-mnist":
        distances = [_mean(parts, name, "mmd_paper") for name in names]
        falling = all(first > second for first, second in itertools.pairwise(distances))
        statement = "MMD falls from the network to LA, to one layer and to five, and is below 0.1 there"
        claims.append(Claim(statement, _listed(names, distances, 3), falling and distances[-1] < 0.1))
    claims.append(_order(parts, title))
    known = printed("calibration_last_layer", title, MAP, "ece")
    assert isinstance(known, Printed)
    ours, correct = (100.0 * _mean(parts, MAP, key) for key in ("paper_ece", "ece"))
    text = f"{ours:.1f} % by the paper's way, {known.mean:g} % printed; {correct:.1f} % where nothing is left out"
    claims.append(Claim("the network's calibration error comes out as printed", text, abs(ours - known.mean) < _NEAR))
    return [*claims, _bias(parts, title)]


def _order(parts: list[Any], title: str) -> Claim:
    """Whether LA and its refinement help, or do harm, as in the paper: on CIFAR-100 its LA is worse than the network."""
    names = [MAP, LA, flow_name(5)]
    known = {name: printed("calibration_last_layer", title, name, "nll") for name in names}
    means = {name: value.mean for name, value in known.items() if isinstance(value, Printed)}
    order = sorted(means, key=means.__getitem__)
    ours = {name: _mean(parts, name, "nll") for name in order}
    text = f"{_listed(order, list(ours.values()), 4)}; printed {_listed(order, [means[name] for name in order], 4)}"
    return Claim(
        "NLLs of network, LA and five layers come in the printed order", text, order == sorted(ours, key=ours.__getitem__)
    )


def _bias(parts: list[Any], title: str) -> Claim:
    """Whether printed distances can tell if biases, which the likelihood does not see, count among the parameters."""
    lines, alike = [], []
    for name in (MAP, LA, *(flow_name(length) for length in (1, 5, 10, 30))):
        known = printed("calibration_last_layer", title, name, "mmd")
        rows = method_rows(parts, name)
        if not isinstance(known, Printed) or not rows:
            continue
        with_biases, without = (_mean(parts, name, key) for key in ("mmd_paper", "mmd_paper_weights"))
        error = standard_error([row["mmd_paper"] for row in rows])
        alike.append(abs(with_biases - without) <= max(error, _PRINTED_DIGIT / 2))
        lines.append(f"{name} {with_biases:.4f} and {without:.4f}, standard error {error:.4f}, printed {known.mean:g}")
    statement = "MMDs with the biases, at their prior, and without them differ by less than print shows or networks do"
    return Claim(statement, "; ".join(lines), all(alike))


def _own_claims(parts: list[Any], record: Mapping[str, Any]) -> list[Claim]:
    settings = record["config"]
    claims = [
        _equivalence(parts, name, which, count)
        for name in (FLOW, BURNISH, RECENTRED)
        for which, count in (("few", settings["few"]), ("many", settings["num_draws"]))
    ]
    rungs = Counter(row["fit"]["rung"] for row in method_rows(parts, BURNISH))
    taken = ", ".join(f"{rung} on {count}" for rung, count in rungs.items())
    for key, what in _INSIDE.items():
        for name in (FLOW, BURNISH, RECENTRED):
            inside = [row[key] for row in method_rows(parts, name) if key in row]
            if not inside:
                continue
            text = f"{sum(inside)} of {len(inside)} networks" + (f"; the rung taken: {taken}" if name == BURNISH else "")
            claims.append(
                Claim(f"{what} of {LABELS.get(name, name)} to HMC is that of HMC to itself (99 % range)", text, all(inside))
            )
    fits = [row["fit"] for row in method_rows(parts, HMC)]
    worst = max(fit["nested_rhat"] if fit["nested_rhat"] is not None else fit["rhat"] for fit in fits)
    text = f"largest nested R-hat {worst:.4f}; {statistics.fmean(fit['seconds'] for fit in fits):.0f} s a network"
    claims.append(Claim("HMC has converged", text, worst < _LARGEST_RHAT and all(fit["converged"] for fit in fits)))
    differences = _differences(parts, REFINE, TEMPERATURE, "few")
    interval = paired_interval(differences)
    statement = "on average over networks, test NLL of `refine` with its defaults is not above temperature scaling's"
    text = f"{_bounded(interval, 4)}; the worst network {max(differences):+.4f}"
    return [*claims, Claim(statement, text, interval.value <= 0.0)]


def _bounded(interval: Interval, digits: int) -> str:
    """A difference and its interval, which one network does not have."""
    bounds = f"{interval.low:+.{digits}f} to {interval.high:+.{digits}f}"
    return f"{interval.value:+.{digits}f} ({bounds if math.isfinite(interval.low) else 'one network gives no interval'})"


def _equivalence(parts: list[Any], name: str, which: str, count: int) -> Claim:
    interval = paired_interval(_differences(parts, name, HMC, which))
    margin = MARGIN * statistics.fmean(row[which]["nll"] for row in method_rows(parts, HMC))
    statement = f"NLL of {LABELS.get(name, name)} by {count} draws is HMC's, within {100 * MARGIN:g} %"
    text = f"{_bounded(interval, 5)}, margin {margin:.5f}"
    return Claim(statement, text, -margin <= interval.low and interval.high <= margin)


def _accuracy(parts: list[Any], dataset: str) -> Claim:
    known = printed("calibration_last_layer", BENCHMARKS[dataset].title, MAP, "accuracy")
    assert isinstance(known, Printed)
    ours = 100.0 * _mean(parts, MAP, "accuracy")
    statement = f"the networks' accuracy is within {_ACCURACY[dataset]:g} points of the printed one"
    return Claim(statement, f"{ours:.2f} %, {known.mean:g} % printed", abs(ours - known.mean) <= _ACCURACY[dataset])


def _differences(parts: list[Any], name: str, rival: str, which: str) -> list[float]:
    return [part["rows"][name][which]["nll"] - part["rows"][rival][which]["nll"] for part in parts if name in part["rows"]]


def _mean(parts: list[Any], name: str, key: str) -> float:
    rows = [row | row["few"] for row in method_rows(parts, name)]
    return statistics.fmean(row[key] for row in rows)


def _listed(names: Sequence[str], values: Sequence[float], digits: int) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in zip(names, values, strict=True))
