"""The points held out, cut into parts: what is fitted without a part can be scored on it."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from burnish.batches import Batch, point_weights
from burnish.heads import Model
from burnish.inference.mode import HessianSpectrum
from burnish.inference.prior import prior_mean_candidates
from burnish.inference.temperature import recalibrate
from burnish.noise import make_generator
from burnish.target import Target

__all__: list[str] = []

DATA = ("both", "validation", "training")
_NUM_FOLDS, _MIN_POINTS = 5, 10
_THINNED = 4096  # training points, or twice the held-out ones if that is more, that stand for all of them while choosing


@dataclass(frozen=True, eq=False)
class Fold:
    """Some of the held-out points to score on, and what the rest of them teach."""

    held_out: Batch
    rest: Batch
    index: Tensor
    """Where the points to score on stand among all that are held out."""
    prior_means: dict[str, float | Tensor]
    model: Model
    """What the last layer is fitted with, its noise estimated on the rest where it is estimated at all."""
    recalibrated_model: Model
    recalibrated_theta: Tensor
    """The network after temperature scaling on the rest; a regressor with noise estimated there."""
    baseline: Tensor
    """Log-likelihood of the points to score on under that."""


@dataclass(frozen=True, eq=False)
class Folds:
    """The held-out points in parts, and training points, thinned out, that stand for all of them."""

    model: Model
    train: Batch
    parts: tuple[Fold, ...]
    unit: float
    """Inverse mean square of the head's weights: what precisions are measured in, to follow the scale of the features."""

    @cached_property
    def spectra(self) -> dict[str, HessianSpectrum | None]:
        """Of the Hessian at the head for each kind of data: the modes of all candidates are searched for with its help."""
        fold = self.parts[0]
        targets = {data: Target(self.model, combine(data, self.train, fold.rest), 1.0) for data in DATA}
        return {data: HessianSpectrum.at(target, fold.recalibrated_theta) for data, target in targets.items()}

    def target(self, fold: Fold, data: str, prior_mean: str, precision: float) -> Target:
        """What is fitted to score on a fold: it has not seen the fold's points, not even for the temperature."""
        return Target(fold.model, combine(data, self.train, fold.rest), precision, fold.prior_means[prior_mean])

    def targets(self, chosen: Target) -> list[Target]:
        """For each fold, what would have been chosen without its points, and without them to fit on."""
        tuning = chosen.tuning
        assert tuning is not None
        if tuning.without_fold:
            choices = zip(self.parts, tuning.without_fold, strict=True)
            return [self.target(fold, choice.data, choice.prior_mean, choice.precision) for fold, choice in choices]
        targets = [self.target(fold, tuning.data, tuning.prior_mean, 1.0) for fold in self.parts]
        return [target.with_prior(chosen.prior_precision) for target in targets]


def make_folds(
    model: Model,
    theta: Tensor,
    train: Batch,
    validation: Batch,
    prior_mean: str | float | Tensor = "auto",
    *,
    estimated_noise: bool = False,
) -> Folds:
    """Cuts the held-out points at random, the same way every time, into parts of equal size."""
    check_enough(validation)
    order = torch.randperm(len(validation), generator=make_generator(0)).to(validation.inputs.device)
    parts = []
    for number in range(_NUM_FOLDS):
        inside = torch.zeros(len(validation), dtype=torch.bool, device=order.device)
        inside[order[number::_NUM_FOLDS]] = True
        held_out, rest = validation.subset(inside), validation.subset(~inside)
        scaled_model, scaled_theta = recalibrate(model, theta, rest)
        outputs = scaled_model(scaled_theta, held_out.inputs)
        baseline = scaled_model.likelihood.log_prob(outputs, held_out.targets).double()
        means = prior_means(model, theta, prior_mean, rest)
        index, fitted = inside.nonzero().squeeze(1), scaled_model if estimated_noise else model
        parts.append(Fold(held_out, rest, index, means, fitted, scaled_model, scaled_theta, baseline))
    weight = parts[0].recalibrated_theta[
        : model.head.num_outputs * model.linear_head.num_features
    ]  # a bias has no such scale
    size = float(weight.double().square().mean())
    return Folds(model, _thin(train, max(_THINNED, 2 * len(validation))), tuple(parts), 1.0 / size if size else 1.0)


def combine(data: str, train: Batch, validation: Batch) -> Batch:
    """The points to fit on. Of "both", the training points weigh together at most as much as the held-out ones."""
    if data != "both":
        return train if data == "training" else validation
    share = min(1.0, _mass(validation) / _mass(train))
    weights = torch.cat([share * point_weights(train), point_weights(validation)])
    inputs, targets = (torch.cat([getattr(part, name) for part in (train, validation)]) for name in ("inputs", "targets"))
    return Batch(inputs, targets, weights)


def prior_means(
    model: Model, theta: Tensor, prior_mean: str | float | Tensor, held_out: Batch | None
) -> dict[str, float | Tensor]:
    """The candidates that were asked for, by name, as these held-out points make them."""
    if not isinstance(prior_mean, str):
        return {"given": prior_mean}
    known: dict[str, float | Tensor] = {"zero": 0.0, "head": theta}
    if held_out is not None:
        known = prior_mean_candidates(model, theta, held_out)
    if prior_mean == "auto":
        return {"zero": 0.0} if held_out is None else known
    if prior_mean not in known:
        raise ValueError(
            f"`prior_mean` 'scaled head' has no meaning for {model.likelihood}, which has no temperature. Pass 'head'."
        )
    return {prior_mean: known[prior_mean]}


def check_enough(validation: Batch) -> None:
    """Refuses fewer held-out points than folds can be made of."""
    if len(validation) < _MIN_POINTS:
        raise ValueError(
            f"`validation` must hold at least {_MIN_POINTS} points to choose by, got {len(validation)}. "
            "Hold out more, or leave it out and give `prior_precision`."
        )


def _mass(batch: Batch) -> float:
    return float(point_weights(batch).sum(dtype=torch.float64))


def _thin(train: Batch, limit: int) -> Batch:
    """At most `limit` points, chosen at random, that weigh together as much as all of them."""
    if len(train) <= limit:
        return train
    index = torch.randperm(len(train), generator=make_generator(0))[:limit].to(train.inputs.device)
    few = train.subset(index)
    return replace(few, weights=point_weights(few) * (_mass(train) / _mass(few)))
