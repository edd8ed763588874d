"""Held-out points in parts, what is fitted without a part, and the weights of training and held-out points together."""

from dataclasses import replace

import pytest
import torch
from problems import NUM_TRAIN, NUM_VALIDATION, regression, with_held_out

from burnish.batches import point_weights
from burnish.inference import folds
from burnish.inference.folds import combine, make_folds
from burnish.inference.selection import choose_target
from burnish.inference.temperature import recalibrate, residual_std


@pytest.mark.parametrize("count", [10, 11, 60])
def test_folds_are_disjoint_complete_and_of_one_size(count):
    model, truth, train, validation, _ = with_held_out()
    validation = validation.subset(slice(0, count))
    folds = make_folds(model, truth, train, validation)
    index = torch.cat([fold.index for fold in folds.parts])
    assert sorted(index.tolist()) == list(range(count))
    sizes = [len(fold.held_out) for fold in folds.parts]
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 1
    for fold in folds.parts:
        assert torch.equal(fold.held_out.inputs, validation.inputs[fold.index])
        assert torch.equal(fold.held_out.targets, validation.targets[fold.index])
        rest = sorted(set(range(count)) - set(fold.index.tolist()))
        assert torch.equal(fold.rest.inputs, validation.inputs[rest])


@pytest.mark.parametrize("data", folds.DATA)
def test_what_is_fitted_for_a_fold_has_not_seen_its_points(data):
    model, truth, train, validation, _ = with_held_out()
    folds = make_folds(model, truth, train, validation)
    for fold in folds.parts:
        target = folds.target(fold, data, "scaled head", 3.0)
        seen = {tuple(row) for row in target.data.inputs.tolist()}
        assert not seen & {tuple(row) for row in fold.held_out.inputs.tolist()}
        scaled = recalibrate(model, truth, fold.rest)[1]
        torch.testing.assert_close(target.prior_mean, scaled)
        torch.testing.assert_close(fold.recalibrated_theta, scaled)


def test_estimated_noise_is_estimated_without_the_fold():
    target = regression(num_points=60)
    model, train, validation = target.model, target.data.subset(slice(0, 30)), target.data.subset(slice(30, 60))
    theta = torch.zeros(target.dim, dtype=torch.float64)
    for estimated in (False, True):
        for fold in make_folds(model, theta, train, validation, "head", estimated_noise=estimated).parts:
            std = residual_std(model, theta, fold.rest) if estimated else model.likelihood.std
            assert fold.model.likelihood.std == pytest.approx(std)
            assert fold.recalibrated_model.likelihood.std == pytest.approx(residual_std(model, theta, fold.rest))


def test_the_baseline_of_a_fold_is_temperature_scaling():
    model, truth, train, validation, _ = with_held_out()
    for fold in make_folds(model, 3 * truth, train, validation).parts:
        logits = model(fold.recalibrated_theta, fold.held_out.inputs)
        expected = -torch.nn.functional.cross_entropy(logits, fold.held_out.targets, reduction="none")
        torch.testing.assert_close(fold.baseline, expected)


def test_folds_are_the_same_every_time(untouched_rng):
    model, truth, train, validation, _ = with_held_out()
    first, second = (make_folds(model, truth, train, validation) for _ in range(2))
    assert all(torch.equal(a.index, b.index) for a, b in zip(first.parts, second.parts, strict=True))


def test_too_few_points_to_choose_by():
    model, truth, train, validation, _ = with_held_out()
    with pytest.raises(ValueError, match=r"`validation` must hold at least 10 points to choose by, got 9\. Hold out more"):
        choose_target(model, truth, train, validation.subset(slice(0, 9)))


@pytest.mark.parametrize("bias", [False, True])
def test_precisions_are_measured_in_the_scale_of_the_weights(bias):
    """Features a thousand times as large: weights a thousandth as large, precisions a million times as large."""
    model, truth, train, validation, _ = with_held_out(bias=bias)
    factor = torch.full_like(truth, 1000.0)
    factor[model.head.num_outputs * model.head.num_features :] = 1.0  # the bias stays
    small = make_folds(model, truth, train, validation)
    large = make_folds(
        model,
        truth / factor,
        replace(train, inputs=1000 * train.inputs),
        replace(validation, inputs=1000 * validation.inputs),
    )
    assert large.unit == pytest.approx(1e6 * small.unit)


def test_a_head_of_zeros_has_a_unit_too():
    model, truth, train, validation, _ = with_held_out()
    assert make_folds(model, 0 * truth, train, validation).unit == 1.0


@pytest.mark.parametrize("weighted", [False, True])
def test_of_both_sets_the_training_points_weigh_as_much_as_the_held_out_ones(weighted):
    _, _, train, validation, _ = with_held_out(weighted=weighted)
    both = combine("both", train, validation)
    assert len(both) == len(train) + len(validation)
    mass = [float(part.sum()) for part in both.weights.split([len(train), len(validation)])]
    assert mass[0] == pytest.approx(mass[1])
    torch.testing.assert_close(both.weights[len(train) :], point_weights(validation))
    ratio = both.weights[: len(train)] / point_weights(train)
    torch.testing.assert_close(ratio, ratio[0].expand(len(train)))
    assert torch.equal(both.inputs, torch.cat([train.inputs, validation.inputs]))
    assert torch.equal(both.targets, torch.cat([train.targets, validation.targets]))


def test_training_points_are_never_made_heavier():
    _, _, train, validation, _ = with_held_out()
    both = combine("both", train.subset(slice(0, 10)), validation)
    assert both.weights.tolist() == [1.0] * (10 + NUM_VALIDATION)


def test_one_of_the_sets_alone():
    _, _, train, validation, _ = with_held_out()
    assert combine("training", train, validation) is train
    assert combine("validation", train, validation) is validation


@pytest.mark.parametrize("weighted", [False, True])
def test_thinning_keeps_the_mass(weighted):
    _, _, train, _, _ = with_held_out(weighted=weighted)
    few = folds._thin(train, 40)
    assert len(few) == 40
    assert float(few.weights.sum()) == pytest.approx(float(point_weights(train).sum()))
    rows = {tuple(row) for row in train.inputs.tolist()}
    assert len({tuple(row) for row in few.inputs.tolist()} & rows) == 40
    assert folds._thin(train, NUM_TRAIN) is train
