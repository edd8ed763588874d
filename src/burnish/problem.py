"""What a user hands over, a trained network and data in any form, read and checked: a model, its features, its targets."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from burnish.batches import Batch, num_batches, num_points, read_batches, to_device
from burnish.features import Backbone, extract_named, place_of, split_last_layer
from burnish.heads import Model
from burnish.inference.folds import check_enough
from burnish.inference.temperature import fit_temperature, residual_std
from burnish.input_form import InputForm
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from burnish.progress import Stages
from burnish.target import check_prior_value

__all__: list[str] = []

_BATCH_SIZE = 512


@dataclass(frozen=True, eq=False)
class Problem:
    """What was made of network and data."""

    backbone: Backbone
    model: Model
    network_model: Model
    """The same with the noise that the network's training residuals suggest; equal to `model` for classification."""
    theta: Tensor
    train: Batch
    validation: Batch | None
    temperature: float | None
    estimated_noise: bool
    """Whether a regressor's noise was estimated, on the held-out points where there are any."""
    inputs: InputForm | None
    """Shape and dtype of an input point."""


def read_problem(
    network: nn.Module,
    data: Any,
    validation: Any,
    head: str | None,
    likelihood: Likelihood | None,
    priors: Mapping[str, str | float | Tensor],
    device: torch.device | str | None,
    stages: Stages,
) -> Problem:
    """Splits the network, looks at what can be seen of the data beforehand, and computes the features."""
    home, dtype = place_of(network, device)
    first, batches = _open("data", data)
    # any likelihood will do until the targets have been seen
    example = to_device(first[0], home, dtype)
    backbone, split, theta = split_last_layer(network, head, example=example, likelihood=GaussianNoise(1.0))
    theta = theta.to(home if device is None else device)
    _check_targets("data", split, likelihood, _known_targets(data, first))
    for name, value in priors.items():
        if not isinstance(value, str):
            check_prior_value(name, value, split.head.dim, theta)
    held_out = None
    if validation is not None:  # first, being the smaller: what is wrong with it should not wait for the training set
        first, held_out_batches = _open("validation", validation)
        _check_targets("validation", split, likelihood, _known_targets(validation, first))
        held_out = _features("validation", backbone, held_out_batches, validation, theta, stages)
        check_enough(held_out)
    train = _features("data", backbone, batches, data, theta, stages)
    model, targets = _check_targets("data", split, likelihood, train.targets)
    train, network_model = replace(train, targets=targets), model
    if held_out is not None:
        held_out = replace(held_out, targets=_check_targets("validation", split, model.likelihood, held_out.targets)[1])
    estimated_noise = likelihood is None and isinstance(model.likelihood, GaussianNoise)
    if estimated_noise:
        network_model, model = (
            Model(split.head, GaussianNoise(residual_std(split, theta, batch, alike=True)))
            for batch in (train, train if held_out is None else held_out)
        )
    temperature = None
    if held_out is not None and not isinstance(model.likelihood, GaussianNoise):
        temperature = fit_temperature(model, theta, held_out).temperature
    form = InputForm.of(example)
    return Problem(backbone, model, network_model, theta, train, held_out, temperature, estimated_noise, form)


def _open(name: str, data: Any) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """The first batch, and all of them: the data are gone through once, so that a generator will do."""
    batches = read_batches(name, data, _BATCH_SIZE)
    first = next(batches, None)
    if first is None:
        raise ValueError(f"`{name}` must hold at least one batch, got none. Check the data set and the sampler.")
    return first, itertools.chain([first], batches)


def _known_targets(data: Any, first: tuple[Any, ...]) -> Tensor:
    """The targets that can be had without going through a loader: all, or the first batch's."""
    whole = next(read_batches("data", data, num_points(data))) if isinstance(data, tuple | Mapping) else first
    targets: Tensor = whole[1]
    return targets


def _check_targets(name: str, split: Model, likelihood: Likelihood | None, targets: Tensor) -> tuple[Model, Tensor]:
    """The model for these targets, and they in its form; without a likelihood, the one they look like."""
    try:
        likelihood = _guess_likelihood(split.head.num_outputs, targets) if likelihood is None else likelihood
        model = Model(split.head, likelihood)
        return model, likelihood.check_targets(targets, split.head.num_outputs)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{name}`: {error}") from None


def _guess_likelihood(num_outputs: int, targets: Tensor) -> Likelihood:
    """What the targets look like; refuses those that look like something else than they would be taken for."""
    binary = bool(((targets == 0) | (targets == 1)).all())
    if num_outputs == 1:
        low, high = float(targets.min()), float(targets.max())
        if not binary and low < high and bool(((targets == low) | (targets == high)).all()):
            raise ValueError(
                f"`targets` must be 0 and 1 for a binary classifier, got only the values {low:g} and {high:g}. "
                "Recode them, or pass `likelihood=GaussianNoise(std)` if this is regression."
            )
        return Bernoulli() if binary else GaussianNoise(1.0)
    if not targets.is_floating_point():
        return Categorical()
    if targets.ndim == 1:
        raise TypeError(f"`targets` must be integer class indices, got {targets.dtype}. Convert with `targets.long()`.")
    if binary:
        raise ValueError(
            "`targets` must be a vector of class indices for a classifier, got rows of 0 and 1. Turn one-hot rows into "
            "indices with `targets.argmax(-1)`, refine several labels one by one, or pass `likelihood=GaussianNoise(std)` "
            "if this is regression."
        )
    return GaussianNoise(1.0)


def _features(
    name: str, backbone: Backbone, batches: Iterator[tuple[Any, ...]], data: Any, theta: Tensor, stages: Stages
) -> Batch:
    """Features in the precision of the last layer, where the posterior is to be fitted."""
    with stages.stage(f"features of {name}", total=num_batches(data, _BATCH_SIZE)):
        batch = extract_named(name, backbone, stages.track(batches), device=theta.device)
    return batch.to(dtype=theta.dtype)


def check_different(data: Any, validation: Any) -> None:
    """Refuses the training data as validation data, as far as that can be seen without reading them."""
    source = _source(validation)
    if source is not None and source is _source(data):
        raise ValueError("`validation` must be data that the network was not trained on, got `data` itself. Hold some out.")


def _source(data: Any) -> Any:
    """The inputs of a tuple or a dictionary, the data set of a loader that goes through all of it, or the data."""
    if isinstance(data, tuple | Mapping):
        return next(iter(data.values() if isinstance(data, Mapping) else data), None)
    if isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler | RandomSampler):
        return data.dataset
    return data


def warn_of_shares(problem: Problem) -> None:
    """Says which classes have far fewer held-out points than their share of the training data suggests."""
    if problem.validation is None or isinstance(problem.model.likelihood, GaussianNoise):
        return
    num_classes = max(2, problem.model.head.num_outputs)
    train, found = (batch.targets.bincount(minlength=num_classes).double() for batch in (problem.train, problem.validation))
    expected = train * (found.sum() / train.sum())
    scarce = ((found < 0.5 * expected) & (expected - found > 3.0 * expected.sqrt())).nonzero().squeeze(1).tolist()
    if scarce:
        shown = ", ".join(f"{c} ({found[c]:.0f}, not about {expected[c]:.0f})" for c in scarce[:5])
        more = " and more" if len(scarce) > 5 else ""
        warnings.warn(
            f"`validation` has far fewer points than the shares in `data` suggest, of class {shown}{more}: what is chosen "
            "and judged by it may harm them. Hold out points that are drawn as the network will meet them.",
            stacklevel=3,
        )
