"""Many draws of a poor posterior against few draws of a good one, and against an approximation without draws."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from burnish import metrics
from burnish.predictive import predict
from burnish.studies.draw_scores import grouped_probs
from burnish.studies.image_methods import LayerMethods
from burnish.studies.image_posteriors import BURNISH, HMC, LA, RECENTRED
from burnish.studies.paper_base import fit_paper_base
from burnish.studies.paper_scores import paper_ece
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.summaries import is_comparable, method_names, method_rows, printed_text, spread

__all__ = ["run_seed", "summary"]

_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 600)
_MANY, _FEW = 10_000, 10
_BLOCK = 500  # draws in memory at a time
_MAX_SETS = 30  # whose scores are averaged


def run_seed(methods: LayerMethods) -> dict[str, Any]:
    """Scores of the paper's Laplace posterior by very many draws and by none, of HMC by few and all, and all by count."""
    problem = methods.problem
    settings, labels, inputs = problem.setting.settings, problem.setting.labels("test"), problem.features("test")
    base, _ = fit_paper_base(problem)
    generator = problem.stream("few-vs-many")
    probs = torch.zeros(len(inputs), problem.setting.benchmark.num_classes, device=problem.device)
    count = min(_MANY, 20 * settings.num_draws)
    for start in range(0, count, _BLOCK):
        block = base.sample(min(_BLOCK, count - start), generator=generator)
        probs += grouped_probs(problem.model, block, inputs, len(block)).squeeze(0) * (len(block) / count)
    averaged = cache(partial(_averaged, methods))  # most rows are points of the curves
    rows = {
        f"LA S={count}": _score(probs, labels),
        f"HMC S={_FEW}": averaged(HMC, _FEW),
        f"HMC S={settings.num_draws}": averaged(HMC, settings.num_draws),
        "MPA": _score(predict(problem.model, base, inputs, method="probit").probs, labels),
        f"{RECENTRED} S={_FEW}": averaged(RECENTRED, _FEW),
        f"{BURNISH} S={_FEW}": averaged(BURNISH, _FEW),
    }
    counts = [number for number in _COUNTS if number <= settings.num_draws]
    curves = {name: [averaged(name, number) for number in counts] for name in (LA, RECENTRED, BURNISH, HMC)}
    return {"rows": rows, "counts": counts, "curves": curves}


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: NLL and calibration errors, means and standard errors over seeds."""
    title = BENCHMARKS[record["config"]["dataset"]].title
    parts, comparable = list(record["seeds"].values()), is_comparable(record["config"])
    header, rows = ["method", "NLL", "the paper's ECE, %", "ECE, %"], []
    for name in method_names(parts):
        found = method_rows(parts, name)
        cells = [
            spread([row["nll"] for row in found], 4),
            spread([row["paper_ece"] for row in found], 1, 100.0),
            spread([row["ece"] for row in found], 1, 100.0),
        ]
        known = [printed_text("few_vs_many_samples", title, name, key) for key in ("nll", "ece")]
        rows.append([name, *cells, *(known if comparable else ())])
    return header + (["printed NLL", "printed ECE, %"] if comparable else []), rows


def _averaged(methods: LayerMethods, name: str, count: int) -> dict[str, float]:
    """Scores by so many draws, over several sets of them."""
    labels = methods.setting.labels("test")
    scores = [_score(probs, labels) for probs in methods.sets(name, "test", count, _MAX_SETS)]
    return {key: sum(score[key] for score in scores) / len(scores) for key in scores[0]}


def _score(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "paper_ece": paper_ece(probs, labels),
        "accuracy": metrics.accuracy(probs, labels),
    }
