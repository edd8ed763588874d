"""Choosing the prior: its precision by evidence, or its precision and mean by the likelihood of held-out data."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor

from burnish._checks import check_choice, check_like, check_positive
from burnish.batches import Batch, mean_and_error, point_weights
from burnish.errors import FitError
from burnish.heads import Model
from burnish.inference.curvature import kronecker_hessian
from burnish.inference.laplace import STRUCTURES, fit_laplace
from burnish.inference.mode import find_mode
from burnish.inference.temperature import fit_temperature
from burnish.layer_scales import Kronecker
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator, standard_normal
from burnish.output_gaussian import output_gaussians
from burnish.posteriors import Gaussian
from burnish.target import PriorCandidate, PriorTuning, Target

__all__ = ["prior_mean_candidates", "tune_prior"]

_BOUNDS = (1e-4, 1e6)
_GRID = tuple(10.0 ** (k / 2) for k in range(10, -9, -1))  # half decades, from 1e5 down to 1e-4
_BOUND_REASONS = ("the classes may be separable", "the features may say nothing beyond the prior mean")
_PATIENCE = 4  # steps down the path without a new best after which it is left
_CLOSE = 0.05  # in log precision: where the search for the best evidence ends
_NUM_POINTS = 256  # samples of the outputs over which a predictive is averaged
_CHUNK_ENTRIES = 2**23  # entries of one block of such samples


def prior_mean_candidates(model: Model, theta: Tensor, validation: Batch) -> dict[str, float | Tensor]:
    """Zero, the network's head, and the head scaled by the temperature that suits the held-out data best.

    For regression, which has no temperature, the first two.
    """
    if isinstance(model.likelihood, GaussianNoise):
        return {"zero": 0.0, "head": theta}
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
        structure: of the Laplace posterior whose evidence is climbed, as in `fit_laplace`; without meaning for held-out
            data.
    """
    check_choice("structure", structure, STRUCTURES)
    _ = target.model.linear_head  # refuses networks before any work
    if isinstance(target.prior_precision, Tensor) and target.prior_precision.ndim:
        raise ValueError(
            f"`target.prior_precision` must be one number to be tuned, got {len(target.prior_precision)} of them. "
            "Start from `target.with_prior(1.0)`."
        )
    if prior_means is not None and not isinstance(prior_means, Mapping):
        raise TypeError(
            f"`prior_means` must map names to means, got {type(prior_means).__name__}. Pass `{{'head': theta}}`, say."
        )
    means = {"given": target.prior_mean} if prior_means is None else dict(prior_means)
    if not means:
        raise ValueError("`prior_means` must hold at least one candidate, got none. Leave it out to keep the target's own.")
    if precisions is not None:
        if isinstance(precisions, Real):
            raise TypeError("`precisions` must be several numbers, got one. Pass a list, or fix it with `with_prior`.")
        precisions = [float(value) for value in precisions]
        if not precisions:
            raise ValueError("`precisions` must hold at least one value, got none. Leave it out for the default path.")
        for value in precisions:
            check_positive("precisions", value, "They are inverse variances of the prior.")
    if validation is not None:
        validation = check_validation(target.model, validation, target.data.inputs)
    candidates: list[PriorCandidate] = []
    for name, mean in means.items():
        if validation is None:
            found = _climb_evidence(target.with_prior(_scalar(target), mean), precisions, structure)
        else:
            found = _follow_path(target.with_prior(_scalar(target), mean), validation, precisions)
        candidates += [PriorCandidate(name, precision, score) for precision, score in found]
    best = max(candidates, key=lambda candidate: candidate.score)
    name, precision = best.prior_mean, best.precision
    low, high = (min(precisions), max(precisions)) if precisions else (_GRID[-1], _GRID[0]) if validation else _BOUNDS
    at_bound = not low * 1.001 < precision < high * 0.999 and low < high
    criterion = "evidence" if validation is None else "validation"
    if at_bound:
        warnings.warn(
            f"the {criterion} is best at the bound of the prior precision, {precision:g} (searched {low:g} to {high:g}); "
            f"set a precision of your own, or search wider: {_BOUND_REASONS[precision > math.sqrt(low * high)]}.",
            stacklevel=2,
        )
    tuning = PriorTuning(criterion, tuple(candidates), name, precision, at_bound)
    return replace(target, prior_precision=precision, prior_mean=means[name], tuning=tuning)


def _scalar(target: Target) -> float:
    return float(torch.as_tensor(target.prior_precision, dtype=torch.float64).mean())


def check_validation(model: Model, validation: Batch, like: Tensor) -> Batch:
    """Held-out points with canonical targets; refuses what does not fit the model, or is not where `like` is."""
    if not isinstance(validation, Batch):
        raise TypeError(f"`validation` must be a Batch, got {type(validation).__name__}. Pass `extract_features(...)`.")
    check_like("validation.inputs", validation.inputs, like, "`target.data.inputs`")
    model.head.check_inputs("validation.inputs", validation.inputs)
    targets = model.likelihood.check_targets(validation.targets, model.head.num_outputs)
    targets = targets.to(validation.inputs.dtype) if targets.is_floating_point() else targets
    return replace(validation, targets=targets)


def _follow_path(target: Target, validation: Batch, precisions: Sequence[float] | None) -> list[tuple[float, float]]:
    """(precision, minus held-out NLL), from strong to weak priors; then twice as fine around the best."""
    start: Tensor | None = None
    found: list[tuple[float, float]] = []

    def visit(precision: float, start: Tensor | None) -> Tensor:
        candidate = target.with_prior(precision)
        theta = find_mode(candidate, start).theta
        log_probs, _ = held_out_predictive(candidate, theta, validation)
        found.append((precision, mean_and_error(log_probs, point_weights(validation).double())[0]))
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
def held_out_predictive(target: Target, theta: Tensor, held_out: Batch) -> tuple[Tensor, Tensor | None]:
    """Log predictive density of every held-out point (N,), float64, under a Kronecker-factored Laplace posterior at theta.

    And where there are classes, the log-probabilities (N, K) of all of them.

    Samples of the outputs replace those of all parameters. Every candidate sees the same noise: equal arguments, equal
    values.
    """
    head, likelihood, curvature = target.model.linear_head, target.model.likelihood, kronecker_hessian(target, theta)
    scale = Kronecker.from_precision(curvature.left, curvature.right, _scalar(target), head, theta.dtype)
    posterior = Gaussian(theta, scale)
    noise = _fixed_noise(head.num_outputs).to(theta)
    rows = max(1, _CHUNK_ENTRIES // (len(noise) * head.num_outputs))
    densities, classes = [], []
    for start in range(0, len(held_out), rows):
        inputs, targets = held_out.inputs[start : start + rows], held_out.targets[start : start + rows]
        (outputs,) = output_gaussians(head, posterior, inputs, joint=True)
        if isinstance(likelihood, GaussianNoise):  # Gaussian noise on a Gaussian output: no samples needed
            spread = outputs.variance + likelihood.std**2
            densities.append(-0.5 * ((targets - outputs.mean) ** 2 / spread + (2.0 * math.pi * spread).log()).sum(-1))
        else:
            average = likelihood.average(outputs.mean + outputs.deviations(noise.unsqueeze(1))).double()
            densities.append(likelihood.log_prob(average, targets))
            classes.append(likelihood.probs(average).clamp_min(torch.finfo(torch.float64).tiny).log())
    return torch.cat(densities).double(), torch.cat(classes) if classes else None


def _fixed_noise(num_outputs: int) -> Tensor:
    """Standard normal (S, C) from a generator of its own: pairs of opposite sign, and variance one in every column."""
    half = torch.zeros(num_outputs, dtype=torch.float64)
    noise = standard_normal(_NUM_POINTS, half, generator=make_generator(0), noise="antithetic")
    return noise / noise.square().mean(0).sqrt()


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
            try:
                fit = fit_laplace(target.with_prior(precision), start, structure=structure)
                start, found[precision] = fit.posterior.mean, fit.log_evidence
            except FitError:  # too weak a prior for the numbers at hand: not a candidate
                found[precision] = -math.inf
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
