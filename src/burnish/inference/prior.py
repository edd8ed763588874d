"""Choosing the prior: its precision by evidence, or its precision and mean by the likelihood of held-out data."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from burnish._checks import check_choice, check_positive
from burnish.features import Batch
from burnish.heads import Model
from burnish.inference.curvature import kronecker_hessian
from burnish.inference.laplace import STRUCTURES, fit_laplace
from burnish.inference.mode import find_mode
from burnish.inference.temperature import fit_temperature
from burnish.scales import Kronecker
from burnish.target import PriorTuning, Target

__all__ = ["prior_mean_candidates", "tune_prior"]

_BOUNDS = (1e-4, 1e6)
_GRID = tuple(10.0 ** (k / 2) for k in range(10, -9, -1))  # half decades, from 1e5 down to 1e-4
_PATIENCE = 4  # steps down the path without a new best after which it is left
_CLOSE = 0.05  # in log precision: where the search for the best evidence ends
_NUM_POINTS = 128  # quasi-random points over which a predictive is averaged


def prior_mean_candidates(model: Model, theta: Tensor, validation: Batch) -> dict[str, float | Tensor]:
    """Zero, the network's head, and the head scaled by the temperature that suits the held-out data best."""
    temperature = fit_temperature(model, theta, validation).temperature
    return {"zero": 0.0, "head": theta, "scaled head": theta / temperature}


def tune_prior(
    target: Target,
    *,
    validation: Batch | None = None,
    prior_means: Mapping[str, float | Tensor] | None = None,
    precisions: Sequence[float] | None = None,
    structure: str = "full",
) -> Target:
    """The same target under a better prior; how it was chosen is in its `tuning`.

    With `validation`, the data the network was not trained on: the mean and precision under which the predictive of a
    Kronecker-factored Laplace posterior has the lowest NLL there, along a path from strong priors to weak ones on which
    each mode starts from the one before. Without it: the precision with the largest Laplace evidence, every candidate
    at its own mode. The evidence of features that the network has overfitted prefers far too weak a prior.

    Args:
        target: model, data and a first prior; with evidence, the search starts at its precision.
        validation: held-out features and targets.
        prior_means: candidates by name, as `prior_mean_candidates` gives them; only the target's own when not given. The
            evidence compares them too.
        precisions: the path's, when the default (1e5 to 1e-4 in half decades, finer around the best) does not fit;
            with evidence, the lowest and the highest are its bounds.
        structure: of the Laplace posterior whose evidence is climbed, as in `fit_laplace`.
    """
    check_choice("structure", structure, STRUCTURES)
    means = {"given": target.prior_mean} if prior_means is None else dict(prior_means)
    if not means:
        raise ValueError("`prior_means` must hold at least one candidate, got none. Leave it out to keep the target's own.")
    if precisions is not None:
        if not precisions:
            raise ValueError("`precisions` must hold at least one value, got none. Leave it out for the default path.")
        for value in precisions:
            check_positive("precisions", float(value), "They are inverse variances of the prior.")
    if validation is not None:
        validation = _check_validation(target, validation)
    candidates: list[tuple[str, float, float]] = []
    for name, mean in means.items():
        if validation is None:
            found = _climb_evidence(target.with_prior(_scalar(target), mean), precisions, structure)
        else:
            found = _follow_path(target.with_prior(_scalar(target), mean), validation, precisions)
        candidates += [(name, precision, score) for precision, score in found]
    name, precision, _ = max(candidates, key=lambda candidate: candidate[2])
    low, high = (min(precisions), max(precisions)) if precisions else (_GRID[-1], _GRID[0]) if validation else _BOUNDS
    at_bound = not low * 1.001 < precision < high * 0.999 and low < high
    criterion = "evidence" if validation is None else "validation"
    if at_bound:
        warnings.warn(
            f"the {criterion} is best at the bound of the prior precision, {precision:g} (searched {low:g} to {high:g}); "
            "pass wider `precisions`, or, where the classes can be separated, a precision of your own.",
            stacklevel=2,
        )
    tuning = PriorTuning(criterion, tuple(candidates), name, precision, at_bound)
    return replace(target, prior_precision=precision, prior_mean=means[name], tuning=tuning)


def _scalar(target: Target) -> float:
    return float(torch.as_tensor(target.prior_precision, dtype=torch.float64).mean())


def _check_validation(target: Target, validation: Batch) -> Batch:
    head, likelihood = target.model.head, target.model.likelihood
    if validation.inputs.ndim != 2 or validation.inputs.shape[1] != head.num_features:
        raise ValueError(
            f"`validation` must have features of shape (N, {head.num_features}), got {tuple(validation.inputs.shape)}. "
            "Extract them with the same backbone."
        )
    return replace(validation, targets=likelihood.check_targets(validation.targets, head.num_outputs))


def _follow_path(target: Target, validation: Batch, precisions: Sequence[float] | None) -> list[tuple[float, float]]:
    """(precision, minus held-out NLL), from strong to weak priors; then twice as fine around the best."""
    start: Tensor | None = None
    found: list[tuple[float, float]] = []

    def visit(precision: float, start: Tensor | None) -> Tensor:
        candidate = target.with_prior(precision)
        theta = find_mode(candidate, start).theta
        found.append((precision, -_held_out_nll(candidate, theta, validation)))
        return theta

    path = sorted(_GRID if precisions is None else map(float, precisions), reverse=True)
    for precision in path:
        start = visit(precision, start)
        best = max(range(len(found)), key=lambda i: found[i][1])
        if precisions is None and len(found) - 1 - best >= _PATIENCE:
            break
    if precisions is None:
        best_precision = max(found, key=lambda pair: pair[1])[0]
        for factor in (10**0.25, 10**-0.25):
            if path[-1] < best_precision * factor < path[0]:
                start = visit(best_precision * factor, start)
    return found


@torch.no_grad()
def _held_out_nll(target: Target, theta: Tensor, validation: Batch) -> float:
    """Mean NLL of the predictive of a Kronecker-factored Laplace posterior at theta, without randomness.

    Under that posterior, the outputs of one point are independent Gaussians once rotated by `left`: a few
    quasi-random points in as many dimensions as there are outputs replace samples of all parameters.
    """
    head, curvature = target.model.head, kronecker_hessian(target, theta)
    scale = Kronecker.from_precision(curvature.left, curvature.right, _scalar(target), head)
    rotated = head.augment(validation.inputs) @ scale.right
    std = (rotated**2 @ (scale.std**2).T).sqrt()
    sobol = torch.quasirandom.SobolEngine(head.num_outputs)  # type: ignore[no-untyped-call]
    noise = torch.special.ndtri(sobol.draw(_NUM_POINTS + 1, dtype=torch.float64)[1:]).to(theta)  # the first is zero
    outputs = target.model(theta, validation.inputs) + (noise.unsqueeze(1) * std) @ scale.left.T
    log_prob = target.model.likelihood.log_prob(outputs, validation.targets).double()
    predictive = log_prob.logsumexp(0) - math.log(_NUM_POINTS)
    weights = torch.ones_like(predictive) if validation.weights is None else validation.weights.double()
    return -float(weights @ predictive / weights.sum())


def _climb_evidence(target: Target, precisions: Sequence[float] | None, structure: str) -> list[tuple[float, float]]:
    """(precision, log evidence) for every precision tried, each with the mode and the curvature it leads to.

    A parabola search in the logarithm. Re-estimating the precision at a fixed mode would need fewer fits, but ends
    elsewhere: it ignores that the curvature moves with the mode.
    """
    low, high = (min(precisions), max(precisions)) if precisions else _BOUNDS
    found: dict[float, float] = {}
    start: Tensor | None = None

    def evidence_at(log_precision: float) -> float:
        nonlocal start
        precision = math.exp(log_precision)
        if precision not in found:
            fit = fit_laplace(target.with_prior(precision), start, structure=structure)
            start, found[precision] = fit.posterior.mean, fit.log_evidence
        return found[precision]

    _parabola_search(evidence_at, math.log(_scalar(target)), math.log(low), math.log(high))
    return list(found.items())


def _parabola_search(score: Callable[[float], float], center: float, low: float, high: float) -> None:
    """Narrows a maximum of `score` between bounds: uphill in steps of `width`, then parabolas through ever closer points."""

    def clamp(x: float) -> float:
        return min(max(x, low), high)

    center, width = clamp(center), math.log(10.0)
    while width > _CLOSE:
        left, right = clamp(center - width), clamp(center + width)
        values = score(left), score(center), score(right)
        if max(values) > values[1]:
            center = left if values[0] > values[2] else right
            if center in (low, high):  # at a bound: look closer there
                width /= 4
            continue
        bend = values[0] - 2 * values[1] + values[2]
        if left < center < right and bend < 0:
            center = clamp(center + 0.5 * width * (values[0] - values[2]) / bend)
        width /= 4
