"""The paper's tables of calibration on images and texts: every method's scores on test points, and its distance to HMC."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from burnish.diagnostics import class_contrasts, median_bandwidth, mmd, resplit_range
from burnish.noise import make_generator
from burnish.studies.draw_scores import grouped_probs, score_sets
from burnish.studies.image_methods import (
    LABELS,
    TEMPERATURE,
    LayerMethods,
    Methods,
    NetworkMethods,
    num_samples,
)
from burnish.studies.image_posteriors import HMC, REFINE
from burnish.studies.paper_scores import paper_mmd
from burnish.studies.summaries import is_comparable, method_names, method_rows, printed_score, spread

__all__ = ["run_baseline", "run_seed", "summary"]

# what is shown: its heading, digits, scale, and what the paper calls it
_SHARED: dict[str, tuple[str, int, float, str]] = {
    "nll": ("NLL", 4, 1.0, "nll"),
    "nll_many": ("NLL, all draws", 4, 1.0, ""),
    "accuracy": ("accuracy, %", 1, 100.0, "accuracy"),
    "brier": ("Brier", 4, 1.0, "brier"),
}
_SECONDS = {"seconds": ("seconds, median", 1, 1.0, "")}
_PAPER_COLUMNS = {
    "mmd_paper": ("MMD, biased", 3, 1.0, "mmd"),
    **_SHARED,
    "paper_ece": ("the paper's ECE, %", 1, 100.0, "ece"),
    "ece": ("ECE, %", 1, 100.0, ""),
    **_SECONDS,
}
_COLUMNS = {
    "mmd": ("MMD", 5, 1.0, ""),
    "tv": ("TV to HMC", 4, 1.0, ""),
    **_SHARED,
    "ece": ("ECE, %", 1, 100.0, ""),
    "elbo": ("ELBO", 0, 1.0, ""),
    **_SECONDS,
}
_NUM_TV_SPLITS = 100


def run_baseline(methods: NetworkMethods) -> dict[str, Any]:
    """The rows of networks that were trained from scratch."""
    fit = {"fit": {"seconds": methods.trained.seconds}}
    draws = {name: {"draws": num_samples(methods.setting, name)} for name in methods.names}
    return {"rows": {name: draws[name] | _scores(methods, name) | fit for name in methods.names}}


def run_seed(methods: LayerMethods) -> dict[str, Any]:
    """The rows of one seed, and what is known about its target and its judge."""
    problem = methods.problem
    judge = _Judge(methods)
    rows = {}
    for name in methods.names:
        fit = methods.fit(name)
        facts = {} if fit is None else dict(fit.facts)
        scores = facts.pop("scores", None) or _scores(methods, name)
        rows[name] = {"draws": num_samples(methods.setting, name)} | scores | judge.distances(name)
        if fit is not None:
            rows[name]["fit"] = facts
    search = problem.tuned_target.tuning
    assert search is not None
    return {
        "rows": rows,
        "judge": judge.describe(),
        "target": {
            "precision": float(problem.target.prior_precision),
            "parameters": problem.target.dim,
            "points": len(problem.target.data),
            "test_points": len(problem.setting.labels("test")),
            "found_precision": search.precision,
            "warnings": problem.warnings,
            "grid": [[candidate.precision, candidate.score] for candidate in search.candidates],
        },
        "temperature": methods.temperature,
        "training": problem.training,
    }


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: means and standard errors over seeds, and under the paper's protocol what it prints."""
    parts = list(record["seeds"].values())
    paper = record["config"]["protocol"] == "paper"
    columns = _PAPER_COLUMNS if paper else _COLUMNS
    rows = []
    for name in method_names(parts):
        cells = [spread(_values(parts, name, key), digits, scale) for key, (_, digits, scale, _) in columns.items()]
        rows.append([LABELS.get(name, name), *cells])
        known = [printed_score(record["config"]["dataset"], name, key) if key else None for *_, key in columns.values()]
        if is_comparable(record["config"]) and any(known):
            rows.append(["  printed", *(f"{value.mean:g}" if value else "" for value in known)])
    return ["method", *(label for label, *_ in columns.values())], rows


class _Judge:
    """HMC's draws and predictions, and how far others are from them."""

    def __init__(self, methods: LayerMethods) -> None:
        self._methods, problem = methods, methods.problem
        settings = problem.setting.settings
        fit = methods.fit(HMC)
        assert fit is not None
        chains = fit.draws.view(settings.num_chains, -1, fit.draws.shape[1])
        # halves of the chains, not of their draws: draws of one chain are not independent
        self.reference, self._again = (part.flatten(0, 1) for part in chains.chunk(2))
        self.bandwidth = median_bandwidth(self.reference)
        options: dict[str, Any] = {"num_splits": settings.num_splits, "generator": make_generator(0, problem.device)}
        self.range = resplit_range(chains, bandwidth=self.bandwidth, **options)
        self._contrasts = self._contrast(self.reference)
        self._contrast_bandwidth = median_bandwidth(self._contrasts)
        contrasts = self._contrast(fit.draws).view(*chains.shape[:2], -1)
        self.contrast_range = resplit_range(contrasts, bandwidth=self._contrast_bandwidth, **options)
        self._probs = self._average(self.reference)
        self.largest_tv = self._resplit_tv(fit.draws, options["generator"])

    def distances(self, name: str) -> dict[str, Any]:
        """Between a method and half of HMC's chains; HMC's are those of the other half."""
        problem, count = self._methods.problem, len(self.reference)
        fit = self._methods.fit(name)
        own = self._average(self._again) if name == HMC else self._methods.sets(name, "test", count).mean(0)
        tv = {"tv": float(0.5 * (own - self._probs).abs().sum(-1).mean())}
        if name == REFINE:
            return tv  # its target is another
        theta = problem.theta
        if name == TEMPERATURE and problem.setting.protocol == "ours":  # the paper's table has that of the network here
            theta = theta / self._methods.temperature
        draws = theta.expand_as(self.reference) if fit is None else fit.draws[:count]
        draws = self._again if name == HMC else draws
        weights = slice(0, problem.num_weights)
        values = {
            "mmd": mmd(draws, self.reference, bandwidth=self.bandwidth),
            "mmd_contrasts": mmd(self._contrast(draws), self._contrasts, bandwidth=self._contrast_bandwidth),
            "mmd_biased": mmd(draws, self.reference, bandwidth=self.bandwidth, unbiased=False),
            "mmd_paper": paper_mmd(draws, self.reference),
            "mmd_paper_weights": paper_mmd(draws[:, weights], self.reference[:, weights]),
        }
        inside = {
            "inside": self.range[0] <= values["mmd"] <= self.range[1],
            "inside_contrasts": self.contrast_range[0] <= values["mmd_contrasts"] <= self.contrast_range[1],
            "inside_tv": tv["tv"] <= self.largest_tv,
        }
        return {**tv, **values, **inside}

    def describe(self) -> dict[str, Any]:
        """How it compares with itself."""
        ranges = {"range": list(self.range), "contrast_range": list(self.contrast_range), "largest_tv": self.largest_tv}
        return {**ranges, "bandwidth": self.bandwidth, "draws": len(self.reference)}

    def _resplit_tv(self, draws: Tensor, generator: torch.Generator) -> float:
        """What 99 % of random halves of the chains differ by at most in their predictions."""
        settings, inputs = self._methods.problem.setting.settings, self._methods.problem.features("test")
        by_chain = grouped_probs(*self._methods.seen(draws), inputs, len(draws) // settings.num_chains)
        count = len(by_chain)
        found = []
        for _ in range(_NUM_TV_SPLITS):
            order = torch.randperm(count, generator=generator, device=draws.device)
            halves = [by_chain[rows].mean(0) for rows in order.chunk(2)]
            found.append(float(0.5 * (halves[0] - halves[1]).abs().sum(-1).mean()))
        return sorted(found)[math.ceil(0.99 * len(found)) - 1]

    def _average(self, draws: Tensor) -> Tensor:
        inputs = self._methods.problem.features("test")
        return grouped_probs(*self._methods.seen(draws), inputs, len(draws)).squeeze(0)

    def _contrast(self, draws: Tensor) -> Tensor:
        model, seen = self._methods.seen(draws)
        return class_contrasts(seen, model.linear_head)


def _scores(methods: Methods, name: str) -> dict[str, Any]:
    """On test points: by as many draws as tables are of, over several sets of them, and by all."""
    sets = methods.sets(name, "test", num_samples(methods.setting, name))
    return score_sets(sets, methods.setting.labels("test"))


def _values(parts: list[Any], name: str, column: str) -> list[float | None]:
    rows = method_rows(parts, name)
    if column in ("seconds", "elbo"):
        found = [row["fit"][column] for row in rows if column in row.get("fit", {})]
        # what is used for the first time takes longer, so seconds are shown by their median
        return [statistics.median(found)] if found and column == "seconds" else found
    flat = [row | row["few"] | {"nll_many": row["many"]["nll"]} for row in rows]
    return [row[column] for row in flat if column in row]
