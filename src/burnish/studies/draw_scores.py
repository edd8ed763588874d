"""Scores on test points by draws: of one block of them, or over several, where points are so few that draws make noise."""

import statistics
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from burnish import metrics
from burnish.heads import Model
from burnish.studies.paper_scores import paper_ece

__all__ = ["grouped_probs", "score_blocks", "score_sets"]

_CHUNK_ENTRIES = 2**24  # entries of one block of outputs
_SCORES = ("accuracy", "nll", "brier", "ece")
_MAX_SETS = 30  # of few draws each, whose scores are averaged


def score_sets(sets: Tensor, labels: Tensor) -> dict[str, Any]:
    """Of probabilities (sets, N, C) by few draws each: "few", averaged over sets, and "many", by all their draws."""
    parts = [_score(probs, labels) for probs in sets[:_MAX_SETS]]
    return {"few": _average(parts), "many": _score(sets.mean(0), labels), "sets": len(parts)}


def score_blocks(model: Model, blocks: Iterable[Tensor], inputs: Tensor, labels: Tensor, few: int) -> dict[str, Any]:
    """The same for blocks of draws (S, d), averaged over them: what S draws of a posterior score in expectation."""
    found = [score_sets(grouped_probs(model, block, inputs, few), labels) for block in blocks]
    sets = sum(part["sets"] for part in found)
    return {key: _average([part[key] for part in found]) for key in ("few", "many")} | {"sets": sets, "blocks": len(found)}


@torch.no_grad()
def grouped_probs(model: Model, theta: Tensor, inputs: Tensor, num_samples: int) -> Tensor:
    """Probabilities (sets, N, C) by disjoint sets of so many of the draws (S, d); draws left over are not used."""
    theta = theta[: len(theta) // num_samples * num_samples]
    rows = max(1, _CHUNK_ENTRIES // (len(theta) * model.head.num_outputs))
    parts = []
    for x in torch.split(inputs, rows):
        probs = model.likelihood.probs(model(theta, x)).transpose(-1, -2)  # (S, C, n), as heads lay outputs out
        parts.append(probs.reshape(-1, num_samples, *probs.shape[1:]).mean(1))
    return torch.cat(parts, dim=-1).transpose(-1, -2)


def _score(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {name: getattr(metrics, name)(probs, labels) for name in _SCORES} | {"paper_ece": paper_ece(probs, labels)}


def _average(parts: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(part[key] for part in parts) for key in parts[0]}
