"""Thresholds on familiarity: answers known by hand, the guarantee in simulation, ties, and what is refused."""

import math

import pytest
import torch

from burnish.abstention import Abstention, fit_abstention
from burnish.noise import make_generator
from burnish.prediction import Prediction


def binary(confidence, right):
    """Probabilities of two classes with these confidences, and targets that they get right or not."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 1.0 - confidence], 1)
    return probs, 1 - torch.as_tensor(right).long()


def spread(count):
    """Confidences from high to low, all different."""
    return torch.linspace(0.99, 0.6, count, dtype=torch.float64)


def draw(count, accuracy_of, generator):
    """Held-out points whose confidence is uniform between 0.5 and 1, right with the probability that is told."""
    confidence = 0.5 + 0.5 * torch.rand(count, generator=generator, dtype=torch.float64)
    right = torch.rand(count, generator=generator, dtype=torch.float64) < accuracy_of(confidence)
    return binary(confidence, right)


# Known answers


def test_a_share_of_the_points():
    probs, targets = binary([0.9, 0.8, 0.7, 0.6], [True, True, False, True])
    fit = fit_abstention(probs, targets, coverage=0.5)
    assert (fit.coverage, fit.accuracy, fit.num_points, fit.by, fit.level) == (0.5, 1.0, 4, "confidence", 0.95)
    assert fit.threshold == pytest.approx(0.7)
    assert fit.accuracy_bound == pytest.approx(0.05 ** (1 / 2))  # two of two: p^2 = 0.05
    assert fit.accepts(probs).tolist() == [True, True, False, False]
    assert fit_abstention(probs, targets, coverage=0.51).coverage == 0.75  # at least that share
    assert fit_abstention(probs, targets, coverage=1e-12).coverage == 0.25


def test_all_points():
    probs, targets = binary([0.9, 0.8], [True, False])
    fit = fit_abstention(probs, targets, coverage=1.0)
    assert (fit.coverage, fit.accuracy, fit.threshold) == (1.0, 0.5, -math.inf)
    assert fit.accepts(torch.full((3, 2), 0.5)).all()


def test_all_wrong():
    fit = fit_abstention(*binary([0.9, 0.8], [False, False]), coverage=1.0)
    assert (fit.accuracy, fit.accuracy_bound) == (0.0, 0.0)


def test_all_right():
    """So many points without a mistake show an accuracy of 0.9."""
    probs, targets = binary(spread(100), [True] * 100)
    fit = fit_abstention(probs, targets, accuracy=0.9)
    assert (fit.coverage, fit.accuracy, fit.accuracy_bound) == (1.0, 1.0, 0.9)
    assert "answers 100 of 100 held-out points, 100.0 % of them rightly" in str(fit)


def test_mistakes_at_the_end():
    """200 right, then 200 wrong: with k mistakes of 200 + k, `P(Binomial(200 + k, 0.1) <= k) <= 0.05` ends at k = 13."""
    from scipy.stats import binom

    probs, targets = binary(spread(400), [True] * 200 + [False] * 200)
    fit = fit_abstention(probs, targets, accuracy=0.9)
    kept = round(400 * fit.coverage)
    assert kept % 4 == 0  # steps of one percent
    assert binom.cdf(kept - 200, kept, 0.1) <= 0.05
    assert binom.cdf(kept + 4 - 200, kept + 4, 0.1) > 0.04  # of 0.05, some may be left at earlier starts
    assert int(fit.accepts(probs).sum()) == kept


def test_mistakes_at_the_beginning_do_not_end_the_search():
    """The most familiar point is wrong, and the first test fails: one that begins later succeeds."""
    right = [False] + [True] * 999
    fit = fit_abstention(*binary(spread(1000), right), accuracy=0.95)
    assert fit.coverage == 1.0


def test_too_few_points():
    fit = fit_abstention(*binary(spread(20), [True] * 20), accuracy=0.95)
    assert (fit.threshold, fit.coverage, fit.accuracy_bound) == (math.inf, 0.0, 0.0)
    assert math.isnan(fit.accuracy)
    needed = math.ceil(math.log(0.01) / math.log(0.95))
    assert f"20 held-out points cannot show an accuracy of 95 % at level 0.95, {needed} without a mistake" in fit.reason
    assert not fit.accepts(torch.tensor([[1.0, 0.0]])).any()


def test_never_accurate_enough():
    fit = fit_abstention(*binary(spread(400), [True, False] * 200), accuracy=0.9)
    assert (fit.threshold, fit.coverage) == (math.inf, 0.0)
    assert "no threshold is shown to have an accuracy of 90 %" in fit.reason
    assert fit.num_points == 400


# Ties


def test_points_of_one_score_stay_together():
    probs, targets = binary([0.9, 0.8, 0.8, 0.8, 0.6], [True] * 5)
    fit = fit_abstention(probs, targets, coverage=0.4)
    assert fit.coverage == 0.8
    assert int(fit.accepts(probs).sum()) == 4


def test_ties_in_a_search_for_accuracy():
    """Half of the points saturated at one score, as confidences in float32 are: all of them in."""
    confidence = torch.cat([torch.ones(200, dtype=torch.float64), spread(200)])
    probs, targets = binary(confidence, [True] * 200 + [True, False] * 100)
    fit = fit_abstention(probs, targets, accuracy=0.9)
    assert fit.coverage >= 0.5
    assert fit.accepts(probs)[:200].all()
    assert fit.accepts(probs).double().mean() == fit.coverage


def test_one_score_for_all():
    probs, targets = binary([0.7] * 100, [True] * 98 + [False] * 2)
    assert fit_abstention(probs, targets, coverage=0.2).coverage == 1.0
    assert fit_abstention(probs, targets, accuracy=0.9).coverage == 1.0
    assert fit_abstention(probs, targets, accuracy=0.97).coverage == 0.0


# What predictions are taken


def test_scores_and_forms(generator):
    logits = 3.0 * torch.randn(20, 200, 3, generator=generator)
    samples = logits.softmax(-1)
    expected = -(samples * samples.log()).sum(-1).mean(0)
    prediction = Prediction(samples.mean(0), samples.var(0), expected)
    targets = torch.randint(3, (200,), generator=generator)
    for by in ("confidence", "entropy", "mutual_information"):
        fit = fit_abstention(prediction, targets, coverage=0.3, by=by)
        most = prediction.familiarity(by).topk(60).indices
        assert set(fit.accepts(prediction).nonzero().squeeze(1).tolist()) == set(most.tolist())
        if by != "mutual_information":
            assert fit == fit_abstention(prediction.probs, targets, coverage=0.3, by=by)
            assert torch.equal(fit.accepts(prediction), fit.accepts(prediction.probs))


# The guarantee


def violations(accuracy_of, selective_accuracy, wanted, level, count=400, num_points=500):
    """Share of held-out sets whose threshold has a true accuracy below the wanted one, and their coverages."""
    generator, broken, coverages = make_generator(0), 0, []
    for _ in range(count):
        fit = fit_abstention(*draw(num_points, accuracy_of, generator), accuracy=wanted, level=level)
        broken += fit.coverage > 0 and selective_accuracy(fit.threshold) < wanted
        coverages.append(fit.coverage)
    return broken / count, torch.tensor(coverages)


def test_the_guarantee_holds_at_its_level():
    """Calibrated confidences: above t, (1 + t) / 2 of the points are right, so 0.9 above t = 0.8, 40 % of them."""
    share, coverages = violations(lambda c: c, lambda t: (1.0 + max(t, 0.5)) / 2.0, 0.9, 0.9)
    assert share <= 0.1 + 3.0 * math.sqrt(0.09 / 400)
    assert (coverages > 0).double().mean() > 0.5  # and it is worth something
    assert float(coverages[coverages > 0].mean()) > 0.15


def test_the_guarantee_holds_where_no_threshold_is_good_enough():
    """Every answer is a violation, and every hypothesis gets its chance to be rejected wrongly."""
    share, _ = violations(lambda c: torch.full_like(c, 0.899), lambda t: 0.899, 0.9, 0.9)
    assert share <= 0.1 + 3.0 * math.sqrt(0.09 / 400)


def test_coverage_on_new_points():
    generator = make_generator(1)
    for wanted in (0.2, 0.5, 0.9):
        fit = fit_abstention(*draw(2000, lambda c: c, generator), coverage=wanted)
        fresh, _ = draw(20000, lambda c: c, generator)
        error = 3.0 * math.sqrt(wanted * (1.0 - wanted) * (1 / 2000 + 1 / 20000))
        assert float(fit.accepts(fresh).double().mean()) == pytest.approx(wanted, abs=error)


def test_the_bound_of_a_coverage_holds():
    generator, broken = make_generator(2), 0
    for _ in range(400):
        fit = fit_abstention(*draw(200, lambda c: c, generator), coverage=0.5, level=0.9)
        broken += fit.accuracy_bound > (1.0 + fit.threshold) / 2.0
    assert broken / 400 <= 0.1 + 3.0 * math.sqrt(0.09 / 400)


# What is refused

PROBS, TARGETS = binary([0.9, 0.8], [True, True])
REGRESSION = Prediction(torch.zeros(2, 1), torch.ones(2, 1), noise_variance=1.0)
BAD = {
    "neither": ((PROBS, TARGETS), {}, ValueError, "one of `accuracy` and `coverage` must be given, got none"),
    "both": ((PROBS, TARGETS), {"accuracy": 0.9, "coverage": 0.9}, ValueError, "must be given, got both"),
    "accuracy of one": ((PROBS, TARGETS), {"accuracy": 1.0}, ValueError, "`accuracy` must be above 0 and below 1, got 1"),
    "accuracy in percent": ((PROBS, TARGETS), {"accuracy": 95}, ValueError, "`accuracy` must be above 0 and below 1"),
    "no coverage": ((PROBS, TARGETS), {"coverage": 0.0}, ValueError, "`coverage` must be above 0 and at most 1, got 0"),
    "much coverage": ((PROBS, TARGETS), {"coverage": 1.1}, ValueError, "`coverage` must be above 0 and at most 1, got 1.1"),
    "a level of one": ((PROBS, TARGETS), {"coverage": 0.5, "level": 1.0}, ValueError, "`level` must be above 0 and below 1"),
    "not a number": ((PROBS, TARGETS), {"coverage": math.nan}, ValueError, "`coverage` must be above 0 and at most 1"),
    "a text": ((PROBS, TARGETS), {"accuracy": "0.9"}, TypeError, "`accuracy` must be a number, got str"),
    "no points": ((PROBS[:0], TARGETS[:0]), {"coverage": 0.5}, ValueError, "with N >= 1"),
    "another length": ((PROBS, TARGETS[:1]), {"coverage": 0.5}, ValueError, "`targets` must have shape (2,)"),
    "no targets": ((PROBS, [0, 0]), {"coverage": 0.5}, TypeError, "`targets` must be a torch.Tensor, got list"),
    "logits": ((9 * PROBS, TARGETS), {"coverage": 0.5}, ValueError, "Pass probabilities, not logits"),
    "one row alone": ((PROBS[0], TARGETS), {"coverage": 0.5}, ValueError, "`prediction` must have shape (N, K), got (2,)"),
    "an array": ((PROBS.numpy(), TARGETS), {"coverage": 0.5}, TypeError, "`prediction` must be a Prediction or a tensor"),
    "regression": ((REGRESSION, TARGETS), {"coverage": 0.5}, TypeError, "must be one of classes, got a regression"),
    "another score": ((PROBS, TARGETS), {"coverage": 0.5, "by": "margin"}, ValueError, "`by` must be one of 'confidence'"),
    "no samples": (
        (PROBS, TARGETS),
        {"coverage": 0.5, "by": "mutual_information"},
        TypeError,
        "`by` 'mutual_information' needs a Prediction",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_refused(bad):
    arguments, options, kind, message = BAD[bad]
    with pytest.raises(kind) as caught:
        fit_abstention(*arguments, **options)
    assert message in str(caught.value)


def test_other_predictions_are_refused_when_it_is_used():
    fit = fit_abstention(PROBS, TARGETS, coverage=0.5)
    assert isinstance(fit, Abstention)
    with pytest.raises(TypeError, match="got a regression"):
        fit.accepts(REGRESSION)
    with pytest.raises(ValueError, match="not logits"):
        fit.accepts(9 * PROBS)
