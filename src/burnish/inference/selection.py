"""Choosing what to fit: the prior's mean, its precision, and the data, by the likelihood of points held out.

Features that a network has overfitted promise more than they keep, so neither the evidence nor the likelihood of the
training data can choose. Points that the network has not seen can: they are split into folds, every candidate is fitted
without a fold and scored on it, and temperature scaling, treated the same way, is what it has to beat.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish._checks import check_choice, check_like, check_positive
from burnish.batches import Batch, mean_and_error, point_weights
from burnish.errors import FitError
from burnish.heads import Model
from burnish.inference.folds import DATA, Folds, combine, make_folds, prior_means
from burnish.inference.laplace import choose_structure
from burnish.inference.mode import find_mode
from burnish.inference.prior import check_validation, held_out_predictive, tune_prior
from burnish.target import PriorCandidate, PriorTuning, Target

__all__ = ["choose_target"]

PRIOR_MEANS = ("scaled head", "head", "zero")
# The default prior says that the last layer's weights are right to about a fifth of their size: 1 / sqrt(20).
_DEFAULT_PRECISION = 20.0  # in units of the head's inverse mean square, as is the path below, in half decades
_PATH = tuple(_DEFAULT_PRECISION * 10.0 ** (k / 2) for k in range(4, -7, -1))
_PATIENCE = 3  # steps down the path without a new best after which it is left
_CONVINCING = 3.0  # standard errors by which a candidate must beat the default: of many, one is lucky by two
_TOLERANCE = 0.03  # posterior standard deviations to a mode that is only to be scored
_MANY_ENTRIES = 3 * 10**7  # thinned training points times parameters above which the search, taking minutes, is left out


def choose_target(
    model: Model,
    theta: Tensor,
    train: Batch,
    validation: Batch | None = None,
    *,
    prior_mean: str | float | Tensor = "auto",
    prior_precision: str | float | Tensor = "auto",
    data: str = "auto",
    estimated_noise: bool = False,
) -> Target:
    """The target whose posterior predicts best: prior mean, prior precision, and the data to fit on.

    With `validation`, points the network was not trained on, the last layer may be fitted on the training data, on the
    validation data, or on both, the training points then weighing together as much as the held-out ones. The default is
    both, with a prior around the temperature-scaled head. Other candidates are scored against it by cross-validation,
    with Kronecker-factored Laplace posteriors, and one replaces it only if it is better by three standard errors:
    smaller differences between NLLs of a few thousand points are luck. Without `validation`, a zero-mean prior on the
    training data, its precision by evidence. How the choice was made is in the result's `tuning`.

    Args:
        model: head and likelihood.
        theta: the network's own last layer (d,).
        train: features and targets that the network was trained on.
        validation: features and targets that it was not.
        prior_mean: "auto", one of "zero", "head" and "scaled head" (by temperature), a number, or a vector (d,).
        prior_precision: "auto", a number, or a vector (d,), for which the data are not chosen but the training set.
        data: "auto", or one of "both", "validation" and "training" to fit on these alone; for `validation` only.
        estimated_noise: whether a regressor's noise was estimated on `validation`, so that scoring must do without it.
    """
    check_choice("data", data, ("auto", *DATA))
    _ = model.linear_head  # refuses networks before any work
    check_prior(prior_mean, prior_precision, held_out=validation is not None)
    train = Target(model, train, 1.0).data  # with canonical targets, or refused
    check_like("theta", theta, train.inputs, "`train.inputs`")
    if validation is not None:
        validation = check_validation(model, validation, train.inputs)
    means = prior_means(model, theta, prior_mean, validation)
    name = next((known for known in PRIOR_MEANS if known in means), "given")  # where none is chosen by score
    mean = means[name]
    if isinstance(prior_precision, Tensor) and prior_precision.ndim:
        return Target(model, train, prior_precision, mean, PriorTuning("given", (), name, math.nan, False))
    if validation is not None:
        folds = make_folds(model, theta, train, validation, prior_mean, estimated_noise=estimated_noise)
        kinds = DATA if data == "auto" else (data,)
        tuning = _tune(folds, None if isinstance(prior_precision, str) else [float(prior_precision)], kinds)
        return Target(model, combine(tuning.data, train, validation), tuning.precision, means[tuning.prior_mean], tuning)
    if not isinstance(prior_precision, str):
        tuning = PriorTuning("given", (), name, float(prior_precision), False)
        return Target(model, train, float(prior_precision), mean, tuning)
    target = Target(model, train, 1.0, mean)
    return tune_prior(target, prior_means=means, structure=choose_structure(target))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A candidate, its mode on the first fold, and how it did at every point scored so far, fold by fold."""

    data: str
    prior_mean: str
    precision: float
    theta: Tensor
    margins: Tensor
    """Log-likelihood of the points over that by temperature scaling."""
    doubts: Tensor
    """Variance of the log-likelihood over the default's, were labels drawn by the default's probabilities."""
    weights: Tensor

    @property
    def choice(self) -> tuple[str, str, float]:
        """What is tried."""
        return self.data, self.prior_mean, self.precision

    def over(self, default: "_Trial", points: Tensor | slice = slice(None)) -> tuple[float, float]:
        """How much better than the default on the same points, and the standard error of that."""
        gains = self.margins - default.margins[: len(self.margins)]
        return mean_and_error(gains[points], self.weights[points])

    def doubt(self, points: Tensor | slice = slice(None)) -> float:
        """The standard error of the gain over the default, were the default's probabilities right.

        A candidate that is surer of itself gains a little at almost every point and loses much at a few. Where these few
        happen to be absent, the spread of the gains says nothing of the loss; the default's probabilities do. Zero for
        regression, where no point is of such a kind.
        """
        weights = self.weights[points]
        return float((weights.square() @ self.doubts[points]).sqrt() / weights.sum())


def _tune(folds: Folds, precisions: Sequence[float] | None, kinds: Sequence[str] = DATA) -> PriorTuning:
    """The default, or what is convincingly better. One fold decides what is worth scoring on the others."""
    path = [step * folds.unit for step in _PATH] if precisions is None else list(precisions)
    goal = _DEFAULT_PRECISION * folds.unit if precisions is None else path[0]
    means = [name for name in PRIOR_MEANS if name in folds.parts[0].prior_means] or ["given"]
    scored = [_score(folds, number, (kinds[0], means[0], goal), None, None) for number in range(len(folds.parts))]
    default, reference = _join([trial for trial, _ in scored]), [classes for _, classes in scored]
    first: list[_Trial] = []
    if len(folds.train) * folds.model.head.dim <= _MANY_ENTRIES:
        first = [trial for data in kinds for name in means for trial in _follow_path(folds, data, name, path, reference)]
    hopeful = [trial for trial in first if trial.choice != default.choice and sum(trial.over(default)) >= 0.0]
    trials = [default]
    for trial in hopeful:
        with suppress(FitError):
            trials.append(_complete(folds, trial, reference))
    best = _best(trials)
    owner = torch.cat([torch.full((len(fold.held_out),), number) for number, fold in enumerate(folds.parts)])
    without = [_best(trials, (owner != number).to(best.margins.device)) for number in range(len(folds.parts))]
    baseline = torch.cat([fold.baseline for fold in folds.parts])
    offset = float(best.weights @ baseline / best.weights.sum())

    def candidate(trial: _Trial) -> PriorCandidate:
        margin, error = mean_and_error(trial.margins, trial.weights)
        return PriorCandidate(trial.prior_mean, trial.precision, offset + margin, trial.data, margin, error)

    at_bound = precisions is None and best.precision in (path[0], path[-1])
    chosen = best.prior_mean, best.precision, at_bound, best.data
    return PriorTuning("validation", tuple(map(candidate, trials)), *chosen, tuple(map(candidate, without)))


def _best(trials: Sequence[_Trial], points: Tensor | slice = slice(None)) -> _Trial:
    """The first, which is the default, or the best of those that these points show to be convincingly better."""
    best, lead = trials[0], 0.0
    for trial in trials[1:]:
        gain, error = trial.over(trials[0], points)
        if gain > max(lead, _CONVINCING * error, _CONVINCING * trial.doubt(points)):
            best, lead = trial, gain
    return best


def _follow_path(
    folds: Folds, data: str, prior_mean: str, precisions: Sequence[float], reference: Sequence[Tensor | None]
) -> list[_Trial]:
    """The first fold, from strong to weak priors, each mode starting from the one before."""
    trials: list[_Trial] = []
    scores: list[float] = []
    for precision in precisions:
        start = trials[-1].theta if trials else None
        try:
            trials.append(_score(folds, 0, (data, prior_mean, precision), start, reference[0])[0])
        except FitError:  # weaker priors would only be harder
            break
        scores.append(mean_and_error(trials[-1].margins, trials[-1].weights)[0])
        if len(scores) - 1 - scores.index(max(scores)) >= _PATIENCE and precision < _DEFAULT_PRECISION * folds.unit:
            break
    return trials


def _complete(folds: Folds, trial: _Trial, reference: Sequence[Tensor | None]) -> _Trial:
    """The trial scored on the other folds as well."""
    others = range(1, len(folds.parts))
    return _join([trial, *(_score(folds, number, trial.choice, trial.theta, reference[number])[0] for number in others)])


def _score(
    folds: Folds, number: int, choice: tuple[str, str, float], start: Tensor | None, reference: Tensor | None
) -> tuple[_Trial, Tensor | None]:
    """A candidate fitted without one fold and scored on it, and its log-probabilities of all classes there.

    `reference` has those of the default; None for the default itself, and where there are no classes.
    """
    fold, (data, prior_mean, precision) = folds.parts[number], choice
    target = folds.target(fold, data, prior_mean, precision)
    theta = find_mode(target, start, tolerance=_TOLERANCE, spectrum=folds.spectra[data]).theta
    log_probs, classes = held_out_predictive(target, theta, fold.held_out)
    doubts = torch.zeros_like(log_probs)
    if reference is not None and classes is not None:
        gains = classes - reference
        expected = (reference.exp() * gains).sum(-1, keepdim=True)
        doubts = (reference.exp() * (gains - expected).square()).sum(-1)
    weights = point_weights(fold.held_out).double()
    return _Trial(*choice, theta, log_probs - fold.baseline, doubts, weights), classes


def _join(trials: Sequence[_Trial]) -> _Trial:
    """One candidate's trials on several folds as one."""
    parts = ((trial.margins, trial.doubts, trial.weights) for trial in trials)
    margins, doubts, weights = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return replace(trials[0], margins=margins, doubts=doubts, weights=weights)


def check_prior(prior_mean: str | float | Tensor, prior_precision: str | float | Tensor, *, held_out: bool) -> None:
    """Refuses what no data can make sense of."""
    if isinstance(prior_mean, str):
        check_choice("prior_mean", prior_mean, ("auto", *PRIOR_MEANS))
        if prior_mean == "scaled head" and not held_out:
            raise ValueError(
                "`prior_mean` 'scaled head' needs held-out data for its temperature, got no `validation`. "
                "Pass validation data, or 'head'."
            )
    if isinstance(prior_precision, str):
        check_choice("prior_precision", prior_precision, ("auto",))
    else:
        check_positive("prior_precision", prior_precision, "It is the inverse variance of the prior; 'auto' chooses it.")
