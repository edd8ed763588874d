"""Choosing prior and data: the rule, what is chosen where the answer is known, and what is recorded."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from problems import NUM_TRAIN, NUM_VALIDATION, binary, classification, noise, regression, with_held_out

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.heads import LinearHead, Model
from burnish.inference import folds, selection
from burnish.inference.folds import combine, make_folds
from burnish.inference.mode import find_mode
from burnish.inference.prior import held_out_predictive
from burnish.inference.selection import choose_target
from burnish.inference.temperature import recalibrate
from burnish.likelihoods import Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.target import Target


@cache
def chosen(kind):
    """The choice for a head that is right, three times too confident, spoilt, or without any relation to the labels."""
    model, truth, train, validation, _ = with_held_out()
    heads = {
        "confident": 3.0 * truth,
        "spoilt": truth + 0.8 * noise(len(truth)),
        "random": 3.0 * noise(len(truth)),
    }
    return choose_target(model, heads[kind], train, validation)


def nll(target, batch):
    """Mean NLL of new points under the Laplace posterior of a target."""
    return -float(held_out_predictive(target, find_mode(target).theta, batch)[0].mean())


# The rule


def test_a_fold_is_scored_with_what_the_others_choose(monkeypatch):
    """The rule is asked with all points, then without each fold's in turn; the fold's target is what it answers then."""
    model, truth, train, validation, _ = with_held_out()
    folds, asked = make_folds(model, truth, train, validation), []
    answers = [0, 1, 2, 3, 4, 5]

    def answer(trials, points=slice(None)):
        asked.append(torch.arange(NUM_VALIDATION)[points].tolist())
        return trials[answers[len(asked) - 1]]

    monkeypatch.setattr(selection, "_best", answer)
    target = choose_target(model, truth, train, validation)
    sizes = [len(fold.held_out) for fold in folds.parts]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    without = [
        [i for i in range(NUM_VALIDATION) if not end - size <= i < end] for end, size in zip(ends, sizes, strict=True)
    ]
    assert asked == [list(range(NUM_VALIDATION)), *without]
    candidates = target.tuning.candidates
    assert target.tuning.without_fold == candidates[1:6]
    for fold, choice, fitted in zip(folds.parts, candidates[1:6], folds.targets(target), strict=True):
        assert fitted.prior_precision == choice.precision
        assert torch.equal(torch.as_tensor(fitted.prior_mean), torch.as_tensor(fold.prior_means[choice.prior_mean]))
        assert torch.equal(fitted.data.inputs, combine(choice.data, folds.train, fold.rest).inputs)
        seen = {tuple(row) for row in fitted.data.inputs.tolist()}
        assert not seen & {tuple(row) for row in fold.held_out.inputs.tolist()}


def test_the_rule_looks_at_the_points_it_is_given_only():
    """A candidate that shines on the first half alone is taken by it, and not by the second half."""
    noise = 0.01 * torch.randn(200, dtype=torch.float64, generator=make_generator(0))
    first = torch.arange(200) < 100
    weights, theta = torch.ones(200, dtype=torch.float64), torch.zeros(1)
    default = selection._Trial("both", "head", 1.0, theta, 0 * noise, 0 * noise, weights)
    other = selection._Trial("both", "head", 2.0, theta, noise + first * 0.1, 0 * noise, weights)
    assert selection._best([default, other], first) is other
    assert selection._best([default, other], ~first) is default
    assert selection._best([default, other]) is other


def test_small_sure_gains_do_not_hide_the_loss_that_was_not_seen():
    """Every point is gained at, the same everywhere; were the default right, one in twenty would cost thirty times that."""
    gain, loss = math.log(0.99 / 0.95), math.log(0.01 / 0.05)
    doubt = 0.95 * 0.05 * (gain - loss) ** 2
    for count, convincing in ((100, False), (10_000, True)):
        theta, ones = torch.zeros(1), torch.ones(count, dtype=torch.float64)
        default = selection._Trial("both", "scaled head", 1.0, theta, 0 * ones, 0 * ones, ones)
        sharper = selection._Trial("both", "head", 1.0, theta, gain * ones, doubt * ones, ones)
        assert sharper.over(default) == pytest.approx((gain, 0.0))
        assert sharper.doubt() == pytest.approx(math.sqrt(doubt / count))
        assert (selection._best([default, sharper]) is sharper) == convincing


@pytest.mark.parametrize("make", [classification, binary])
def test_what_the_default_expects_of_a_candidate_is_what_its_labels_do(make):
    """Mean and variance of the gain over many labels drawn by the default's probabilities, point by point."""
    model, truth, train, validation, _ = with_held_out(make)
    folds = make_folds(model, truth, train, validation)
    default, other = ("both", "scaled head", 5.0), ("validation", "head", 0.5)
    _, reference = selection._score(folds, 0, default, None, None)
    trial, classes = selection._score(folds, 0, other, None, reference)
    labels = torch.multinomial(reference.exp(), 100_000, replacement=True, generator=make_generator(0))
    gains = (classes - reference).gather(1, labels)
    assert torch.allclose(reference.exp().sum(1), torch.ones(len(reference), dtype=torch.float64))
    assert torch.allclose(trial.doubts, gains.var(1), rtol=0.1, atol=1e-4)
    index = folds.parts[0].held_out.targets.unsqueeze(1)
    assert torch.allclose(trial.margins + folds.parts[0].baseline, classes.gather(1, index).squeeze(1))


def test_of_the_convincing_ones_the_best_is_taken():
    ones = torch.ones(100, dtype=torch.float64)

    def trial(gain, error, doubt):
        margins = gain * ones + 10 * error * (2 * (torch.arange(100) % 2) - 1)
        return selection._Trial("both", "head", gain, torch.zeros(1), margins, 100 * doubt**2 * ones, ones)

    default, good, better = trial(0.0, 0.0, 0.0), trial(0.4, 0.1, 0.1), trial(0.5, 0.16, 0.1)
    noisy, sharp = trial(0.6, 0.25, 0.1), trial(0.7, 0.1, 0.25)
    assert selection._best([default, noisy, sharp]) is default
    assert selection._best([default, noisy, good, sharp, better]) is better


def test_a_candidate_is_doubted_and_weighted_on_all_folds():
    model, truth, train, validation, _ = with_held_out()
    weights = torch.linspace(0.5, 2.0, NUM_VALIDATION, dtype=torch.float64)
    folds = make_folds(model, truth, train, replace(validation, weights=weights))
    default, other = ("both", "scaled head", 5.0), ("validation", "head", 0.5)
    reference = [selection._score(folds, number, default, None, None)[1] for number in range(len(folds.parts))]
    first, _ = selection._score(folds, 0, other, None, reference[0])
    trial = selection._complete(folds, first, reference)
    assert bool((trial.doubts > 0).all())
    assert torch.equal(trial.weights, torch.cat([weights[fold.index] for fold in folds.parts]))


def test_a_candidate_that_cannot_be_fitted_is_passed_over(monkeypatch):
    model, truth, train, validation, _ = with_held_out()
    score = selection._score

    def failing(folds, number, choice, start, reference):
        if choice[0] == "validation" or (choice[1] == "zero" and number > 0):
            raise FitError("no mode")
        return score(folds, number, choice, start, reference)

    monkeypatch.setattr(selection, "_score", failing)
    tuning = choose_target(model, truth, train, validation).tuning
    assert {(c.data, c.prior_mean) for c in tuning.candidates} <= {
        (data, mean) for data in ("both", "training") for mean in ("head", "scaled head")
    }


def test_a_given_precision_keeps_the_default_data_and_mean():
    model, truth, train, validation, _ = with_held_out()
    target = choose_target(model, truth, train, validation, prior_precision=7.0)
    first = target.tuning.candidates[0]
    assert (first.data, first.prior_mean, first.precision) == ("both", "scaled head", 7.0)


def test_very_large_heads_are_not_searched_for(monkeypatch):
    monkeypatch.setattr(selection, "_MANY_ENTRIES", 10)
    model, truth, train, validation, _ = with_held_out()
    target = choose_target(model, truth, train, validation)
    assert len(target.tuning.candidates) == 1
    assert (target.tuning.data, target.tuning.prior_mean) == ("both", "scaled head")


def test_choosing_sees_thinned_training_data_and_the_result_all_of_it(monkeypatch):
    model, truth, train, validation, _ = with_held_out()
    monkeypatch.setattr(folds, "_THINNED", 20)
    assert len(make_folds(model, truth, train, validation).train) == 2 * NUM_VALIDATION
    target = choose_target(model, truth, train, validation, prior_mean="zero", prior_precision=1.0)
    assert target.tuning.data == "both"
    assert len(target.data) == NUM_TRAIN + NUM_VALIDATION


# What is chosen


def test_nothing_better_than_the_default():
    """A head that is right but for its temperature: both sets, around the scaled head, at the default precision."""
    model, truth, train, validation, test = with_held_out()
    target = chosen("confident")
    assert (target.tuning.data, target.tuning.prior_mean) == ("both", "scaled head")
    assert target.prior_precision == pytest.approx(20.0 * make_folds(model, 3 * truth, train, validation).unit)
    assert not target.tuning.at_bound
    assert torch.allclose(target.prior_mean, recalibrate(model, 3 * truth, validation)[1])
    assert nll(target, test) < -float(model.likelihood.log_prob(model(truth, test.inputs), test.targets).mean()) + 0.05


@pytest.mark.parametrize("kind", ["spoilt", "random"])
def test_a_head_that_is_no_good_is_left(kind):
    """The training data know better than the head, and are listened to: nearly as good as the true parameters."""
    model, _, train, _, test = with_held_out()
    target = chosen(kind)
    assert target.tuning.data in ("training", "both")
    ideal = nll(Target(model, train, 1.0), test)
    assert nll(target, test) < ideal + 0.05


@pytest.mark.parametrize("kind", ["confident", "spoilt"])
def test_the_record(kind):
    tuning = chosen(kind).tuning
    assert tuning.criterion == "validation"
    record = {(c.data, c.prior_mean, c.precision): c for c in tuning.candidates}
    assert len(record) == len(tuning.candidates)
    best, default = record[tuning.data, tuning.prior_mean, tuning.precision], tuning.candidates[0]
    assert (default.data, default.prior_mean) == ("both", "scaled head")
    assert {c.data for c in tuning.candidates} <= set(selection.DATA)
    baselines = {round(c.score - c.margin, 9) for c in tuning.candidates}
    assert len(baselines) == 1  # all against the same temperature scaling
    assert all(c.margin_error > 0 for c in tuning.candidates)
    assert best.score >= default.score


def test_scores_are_held_out_ones_of_all_folds():
    """The default's score again, fold by fold, from the parts."""
    model, truth, train, validation, _ = with_held_out()
    folds, default = make_folds(model, 3 * truth, train, validation), chosen("confident").tuning.candidates[0]
    values = []
    for fold in folds.parts:
        target = folds.target(fold, "both", "scaled head", default.precision)
        values.append(held_out_predictive(target, find_mode(target).theta, fold.held_out)[0] - fold.baseline)
    margins = torch.cat(values)
    assert default.margin == pytest.approx(float(margins.mean()), abs=1e-3)
    assert default.margin_error == pytest.approx(float(margins.std()) / len(margins) ** 0.5, rel=0.05)


def test_the_choice_is_deterministic(untouched_rng):
    model, truth, train, validation, _ = with_held_out()
    first = chosen("confident")
    second = choose_target(model, 3 * truth, train, validation)
    assert second.tuning == first.tuning
    assert torch.equal(second.prior_mean, first.prior_mean)


def test_the_scale_of_features_does_not_matter():
    model, truth, train, validation, test = with_held_out(bias=False)
    results = []
    for factor in (1.0, 1000.0):
        parts = [replace(part, inputs=factor * part.inputs) for part in (train, validation, test)]
        target = choose_target(model, 3 * truth / factor, parts[0], parts[1])
        results.append((target, model.likelihood.probs(model(find_mode(target).theta, parts[2].inputs))))
    (one, probs), (other, others) = results
    assert (one.tuning.data, one.tuning.prior_mean) == (other.tuning.data, other.tuning.prior_mean)
    assert other.prior_precision == pytest.approx(1e6 * one.prior_precision)
    torch.testing.assert_close(others, probs, rtol=0, atol=1e-5)


# What is given


@pytest.mark.parametrize("name", ["zero", "head", "scaled head"])
def test_a_prior_mean_by_name(name):
    model, truth, train, validation, _ = with_held_out()
    target = choose_target(model, truth, train, validation, prior_mean=name, prior_precision=2.0)
    expected = {"zero": 0 * truth, "head": truth, "scaled head": recalibrate(model, truth, validation)[1]}[name]
    torch.testing.assert_close(target.prior.mean, expected)
    assert target.prior_precision == 2.0
    assert {(c.prior_mean, c.precision) for c in target.tuning.candidates} == {(name, 2.0)}
    assert not target.tuning.at_bound


@pytest.mark.parametrize("mean", [0.25, torch.full((16,), 0.25, dtype=torch.float64)])
@pytest.mark.parametrize("held_out", [True, False])
def test_a_prior_mean_as_a_value(mean, held_out):
    model, truth, train, validation, _ = with_held_out()
    target = choose_target(
        model, truth, train, validation if held_out else None, prior_mean=mean, prior_precision=torch.tensor(2.0)
    )
    assert bool((target.prior.mean == 0.25).all())
    assert target.prior_precision == 2.0
    assert target.tuning.prior_mean == "given"
    assert target.tuning.criterion == ("validation" if held_out else "given")


@pytest.mark.parametrize("held_out", [True, False])
def test_a_prior_precision_for_every_parameter(held_out):
    model, truth, train, validation, _ = with_held_out()
    precision = noise(16).abs() + 0.5
    target = choose_target(
        model, truth, train, validation if held_out else None, prior_mean="head", prior_precision=precision
    )
    assert torch.equal(target.prior_precision, precision)
    assert torch.equal(target.prior_mean, truth)
    assert (target.tuning.criterion, target.tuning.data) == ("given", "training")
    assert math.isnan(target.tuning.precision)
    assert len(target.data) == NUM_TRAIN


def test_without_validation_the_evidence_decides():
    model, truth, train, _, _ = with_held_out()
    target = choose_target(model, truth, train)
    assert target.tuning.criterion == "evidence"
    assert (target.tuning.prior_mean, target.tuning.data) == ("zero", "training")
    assert target.prior_mean == 0.0
    best = max(target.tuning.candidates, key=lambda candidate: candidate.score)
    assert best.precision == target.prior_precision
    head = choose_target(model, noise(16), train, prior_mean="head")
    assert torch.equal(head.prior_mean, noise(16))
    assert head.tuning.criterion == "evidence"


def test_regression_has_no_scaled_head():
    full = regression(num_points=60)
    train, validation = full.data.subset(slice(0, 40)), full.data.subset(slice(40, 60))
    target = choose_target(full.model, noise(full.dim), train, validation, prior_precision=1.0)
    assert {c.prior_mean for c in target.tuning.candidates} <= {"zero", "head"}
    with pytest.raises(ValueError, match=r"`prior_mean` 'scaled head' has no meaning for GaussianNoise.*Pass 'head'"):
        choose_target(full.model, noise(full.dim), train, validation, prior_mean="scaled head")


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_targets_of_any_shape_that_the_likelihood_takes(shape):
    """One output: targets (N,) and (N, 1) are the same thing, in either set."""
    model, truth, train, validation, _ = with_held_out(binary)
    expected = choose_target(model, truth, train, validation, prior_mean="head", prior_precision=1.0)
    other = replace(validation, targets=validation.targets.double().view(shape))
    found = choose_target(model, truth, train, other, prior_mean="head", prior_precision=1.0)
    assert found.tuning == expected.tuning


WRONG = {
    "unknown mean": (
        {"prior_mean": "mode"},
        "`prior_mean` must be one of 'auto', 'scaled head', 'head', 'zero', got 'mode'",
    ),
    "unknown precision": ({"prior_precision": "evidence"}, "`prior_precision` must be one of 'auto', got 'evidence'"),
    "zero precision": ({"prior_precision": 0.0}, "`prior_precision` must be positive and finite, got 0. It is the inverse"),
    "short mean": ({"prior_mean": torch.zeros(3).double()}, "`prior_mean` must be a number or have shape (16,), got (3,)"),
    "short precision": (
        {"prior_precision": torch.ones(3).double()},
        "`prior_precision` must be a number or have shape (16,), got (3,)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_priors_are_refused(case):
    model, truth, train, validation, _ = with_held_out()
    options, message = WRONG[case]
    with pytest.raises(ValueError) as caught:
        choose_target(model, truth, train, validation, **options)
    assert message in str(caught.value)


def test_wrong_data_are_refused():
    model, truth, train, validation, _ = with_held_out()
    with pytest.raises(ValueError, match="`prior_mean` 'scaled head' needs held-out data for its temperature"):
        choose_target(model, truth, train, prior_mean="scaled head")
    with pytest.raises(TypeError, match=r"`theta` must be torch\.float64 on cpu like `train\.inputs`, got torch\.float32"):
        choose_target(model, truth.float(), train, validation)
    with pytest.raises(ValueError, match=r"`validation.inputs` must have shape \(N, 3\) for this head, got \(60, 2\)"):
        choose_target(model, truth, train, Batch(validation.inputs[:, :2], validation.targets))
    with pytest.raises(TypeError, match="`validation` must be a Batch, got tuple"):
        choose_target(model, truth, train, (validation.inputs, validation.targets))
    with pytest.raises(ValueError, match=r"`data\.inputs` must have shape \(N, 5\) for this head"):
        choose_target(Model(LinearHead(5, 4), Categorical()), noise(24), train, validation)
    with pytest.raises(ValueError, match=r"must have shape \(N, 4\)"):
        choose_target(Model(model.head, GaussianNoise(1.0)), truth, train, validation)


@pytest.mark.parametrize("data", ["both", "validation", "training"])
def test_the_data_can_be_given(data):
    model, truth, train, validation, _ = with_held_out()
    target = choose_target(model, 3.0 * truth, train, validation, data=data)
    assert {candidate.data for candidate in target.tuning.candidates} == {data}
    assert len(target.data) == len(combine(data, train, validation))


def test_what_is_not_fitted_on_does_not_matter():
    model, truth, train, validation, _ = with_held_out()
    first = choose_target(model, 3.0 * truth, train, validation, data="validation")
    second = choose_target(model, 3.0 * truth, validation, validation, data="validation")
    assert first.tuning == second.tuning
    assert torch.equal(first.prior_mean, second.prior_mean)


def test_data_of_another_name_are_refused():
    model, truth, train, validation, _ = with_held_out()
    with pytest.raises(ValueError, match="`data` must be one of 'auto', 'both'"):
        choose_target(model, truth, train, validation, data="test")
