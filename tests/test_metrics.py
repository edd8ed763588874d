"""Metrics against scikit-learn, torchmetrics, hand-computed values and the laws they obey."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score, roc_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from burnish.metrics import Interval, accuracy, auroc, bootstrap, brier, ece, fpr95, nll
from burnish.noise import make_generator

# Three points: right with confidence 0.7, wrong with 0.5, right with 0.9.
PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.05, 0.05, 0.9]], dtype=torch.float64)
TARGETS = torch.tensor([0, 1, 2])


def random_problem(seed, num_points=400, num_classes=5, dtype=torch.float64):
    generator = make_generator(seed)
    logits = 2.0 * torch.randn(num_points, num_classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((0.6 * logits).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1).to(dtype), targets


def binary_confidences(confidences, correct):
    """Two-class probabilities with the given confidences in class 0, and targets that make them right or wrong."""
    confidences = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([confidences, 1.0 - confidences], 1), torch.tensor([0 if hit else 1 for hit in correct])


def naive_auroc(inside, outside):
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside)
    return wins / (len(inside) * len(outside))


class TestKnownAnswers:
    def test_by_hand(self):
        assert accuracy(PROBS, TARGETS) == pytest.approx(2 / 3)
        assert nll(PROBS, TARGETS) == pytest.approx(-(math.log(0.7) + math.log(0.3) + math.log(0.9)) / 3)
        rows = (0.09 + 0.04 + 0.01, 0.25 + 0.49 + 0.04, 0.0025 + 0.0025 + 0.01)
        assert brier(PROBS, TARGETS) == pytest.approx(sum(rows) / 3)
        assert ece(PROBS, TARGETS) == pytest.approx((0.3 + 0.5 + 0.1) / 3)
        # One bin: accuracy and confidence are compared on the whole.
        assert ece(PROBS, TARGETS, num_bins=1) == pytest.approx(abs(2 / 3 - 0.7))

    @pytest.mark.parametrize("seed", range(3))
    def test_scikit_learn(self, seed):
        probs, targets = random_problem(seed)
        classes = list(range(probs.shape[1]))
        assert accuracy(probs, targets) == accuracy_score(targets, probs.argmax(1))
        assert nll(probs, targets) == pytest.approx(log_loss(targets, probs.numpy(), labels=classes), rel=1e-12)
        expected = brier_score_loss(targets, probs.numpy(), labels=classes, scale_by_half=False)
        assert brier(probs, targets) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("num_bins", [1, 10, 15])
    def test_torchmetrics_calibration_error(self, num_bins):
        probs, targets = random_problem(3)
        expected = multiclass_calibration_error(probs, targets, num_classes=5, n_bins=num_bins, norm="l1")
        assert ece(probs, targets, num_bins=num_bins) == pytest.approx(float(expected), rel=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_lower_precision(self, dtype):
        """The same numbers, up to the rounding of the probabilities themselves."""
        exact, targets = random_problem(4)
        rounded = exact.to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        assert nll(rounded, targets) == pytest.approx(nll(exact, targets), rel=tolerance)
        assert brier(rounded, targets) == pytest.approx(brier(exact, targets), rel=tolerance)
        assert ece(rounded, targets, num_bins=1) == pytest.approx(ece(exact, targets, num_bins=1), abs=tolerance)

    def test_probability_zero_is_infinitely_wrong(self):
        probs, targets = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0])
        assert nll(probs, targets) == math.inf

    def test_gradients_are_not_in_the_way(self):
        probs = PROBS.clone().requires_grad_()
        for metric in (accuracy, nll, brier, ece):
            assert metric(probs, TARGETS) == metric(PROBS, TARGETS)
        assert auroc(probs[0], probs[1]) == auroc(PROBS[0], PROBS[1])

    def test_any_integer_dtype(self):
        assert brier(PROBS, TARGETS.to(torch.uint8)) == brier(PROBS, TARGETS)


class TestCalibrationBins:
    def test_certainty_belongs_to_the_last_bin(self):
        """A confidence of 1 shares the bin of 0.95, where the gaps -1 and +0.05 are added before the absolute value."""
        probs, targets = binary_confidences([1.0, 0.95], [False, True])
        assert ece(probs, targets) == pytest.approx(0.475)

    def test_all_certain(self):
        probs, targets = binary_confidences([1.0] * 4, [True, False, True, True])
        assert ece(probs, targets) == pytest.approx(0.25)
        assert ece(probs, targets, binning="equal-mass") == pytest.approx(0.25)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_bins_are_closed_on_the_right(self, dtype):
        """With edges at 0.6 and 0.8, confidence 0.6 is below the first and 0.8 below the second, as written."""
        probs, targets = binary_confidences([0.55, 0.6, 0.7, 0.8], [True, False, True, False])
        expected = (abs(0.45 - 0.6) + abs(0.3 - 0.8)) / 4
        assert ece(probs.to(dtype), targets, num_bins=5) == pytest.approx(expected, abs=1e-6)

    def test_equal_mass_by_hand(self):
        """Five points in two bins: the lower one has three."""
        probs, targets = binary_confidences([0.9, 0.6, 0.8, 0.7, 0.95], [True, False, True, True, False])
        low = abs(2 - (0.6 + 0.7 + 0.8))
        high = abs(1 - (0.9 + 0.95))
        assert ece(probs, targets, num_bins=2, binning="equal-mass") == pytest.approx((low + high) / 5)

    def test_equal_mass_with_more_bins_than_points(self):
        """Each point has a bin of its own."""
        assert ece(PROBS, TARGETS, num_bins=50, binning="equal-mass") == pytest.approx((0.3 + 0.5 + 0.1) / 3)

    def test_equal_mass_keeps_ties_together(self):
        """Four of five points tie: no edge can part them, whichever comes first."""
        confidences, hits = [0.8, 0.8, 0.8, 0.8, 0.9], [True, True, False, False, True]
        expected = (abs(2 - 3.2) + 0.1) / 5
        for shift in range(5):
            rolled = confidences[shift:] + confidences[:shift], hits[shift:] + hits[:shift]
            assert ece(*binary_confidences(*rolled), num_bins=4, binning="equal-mass") == pytest.approx(expected)

    def test_equal_mass_bin_sizes(self):
        """Without ties, the binned sum equals that over blocks of the sorted points."""
        probs, targets = random_problem(5, num_points=150)
        order = probs.amax(1).argsort()
        gaps = ((probs.argmax(1) == targets).double() - probs.amax(1))[order]
        expected = gaps.reshape(15, 10).sum(1).abs().sum() / 150
        assert ece(probs, targets, binning="equal-mass") == pytest.approx(float(expected))


class TestOutOfDistribution:
    def test_auroc_by_hand(self):
        assert auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 0.0])) == 1.0
        assert auroc(torch.tensor([0.0]), torch.tensor([1.0])) == 0.0
        assert auroc(torch.ones(4), torch.ones(7)) == 0.5
        assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0])) == pytest.approx((0 + 1 + 0.5 + 1) / 4)
        assert auroc(torch.tensor([math.inf]), torch.tensor([-math.inf, math.inf])) == pytest.approx(0.75)

    @pytest.mark.parametrize("levels", [3, 10, 10**6])
    def test_auroc_with_ties(self, levels):
        """Against all pairs, and against scikit-learn."""
        generator = make_generator(levels)
        inside = torch.randint(levels, (60,), generator=generator) + levels // 5
        outside = torch.randint(levels, (45,), generator=generator)
        value = auroc(inside.float(), outside.float())
        assert value == pytest.approx(naive_auroc(inside.tolist(), outside.tolist()), abs=1e-14)
        labels = torch.cat([torch.ones(60), torch.zeros(45)])
        assert value == pytest.approx(roc_auc_score(labels, torch.cat([inside, outside])), abs=1e-14)

    @pytest.mark.parametrize("num_inside", [1, 19, 20, 101])
    def test_fpr95_is_the_first_point_of_the_curve_with_95_percent(self, num_inside):
        generator = make_generator(num_inside)
        inside = torch.randint(30, (num_inside,), generator=generator) + 8
        outside = torch.randint(30, (80,), generator=generator)
        labels = torch.cat([torch.ones(num_inside), torch.zeros(80)])
        false, true, _ = roc_curve(labels, torch.cat([inside, outside]), drop_intermediate=False)
        expected = false[(true >= 0.95 - 1e-12).argmax()]
        assert fpr95(inside.float(), outside.float()) == pytest.approx(expected, abs=1e-14)

    def test_fpr95_by_hand(self):
        """Of 100 scores 0..99 the threshold is 5, and what equals it passes."""
        inside = torch.arange(100.0).flip(0)
        assert fpr95(inside, torch.tensor([4.0, 5.0, 6.0, 4.9])) == 0.5


class TestLaws:
    @settings(max_examples=40, deadline=None)
    @given(
        logits=st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=25),
        seed=st.integers(0, 1000),
        num_bins=st.integers(1, 20),
        binning=st.sampled_from(["equal-width", "equal-mass"]),
    )
    def test_order_of_points_does_not_matter(self, logits, seed, num_bins, binning):
        """Small integer logits tie often."""
        generator = make_generator(seed)
        probs = torch.tensor(logits, dtype=torch.float64).softmax(1)
        targets = torch.randint(3, (len(probs),), generator=generator)
        order = torch.randperm(len(probs), generator=generator)
        for metric in (accuracy, nll, brier):
            assert metric(probs[order], targets[order]) == pytest.approx(metric(probs, targets), abs=1e-12)
        value = ece(probs, targets, num_bins=num_bins, binning=binning)
        assert 0.0 <= value <= 1.0
        assert ece(probs[order], targets[order], num_bins=num_bins, binning=binning) == pytest.approx(value, abs=1e-12)
        assert value >= ece(probs, targets, num_bins=1) - 1e-12  # splitting bins never lowers the sum of absolute gaps

    @settings(max_examples=60, deadline=None)
    @given(*[st.lists(st.integers(-4, 4), min_size=1, max_size=30)] * 2)
    def test_auroc_is_antisymmetric_and_depends_on_ranks_only(self, inside, outside):
        a, b = torch.tensor(inside, dtype=torch.float64), torch.tensor(outside, dtype=torch.float64)
        assert auroc(a, b) == pytest.approx(1.0 - auroc(b, a), abs=1e-14)
        assert auroc(a.exp(), b.exp()) == auroc(a, b)
        assert auroc(a.flip(0), b.sort().values) == auroc(a, b)
        assert 0.0 <= fpr95(a, b) <= 1.0


class TestBootstrap:
    def test_mean_has_its_normal_theory_width(self):
        """The width of a mean's interval is 2 * 1.96 standard errors; its own noise from 1000 resamples is a few percent."""
        data = torch.randn(500, generator=make_generator(0), dtype=torch.float64)
        interval = bootstrap(lambda x: float(x.mean()), data, generator=make_generator(1))
        expected = 2 * 1.959964 * float(data.std(correction=0)) / math.sqrt(500)
        assert interval.value == float(data.mean())
        assert interval.high - interval.low == pytest.approx(expected, rel=0.12)
        assert (interval.high + interval.low) / 2 == pytest.approx(interval.value, abs=0.1 * expected)
        assert interval.level == 0.95

    def test_lower_level_is_narrower(self):
        data = torch.randn(100, generator=make_generator(0), dtype=torch.float64)
        wide, narrow = (
            bootstrap(lambda x: float(x.mean()), data, num_resamples=300, level=level, generator=make_generator(1))
            for level in (0.95, 0.5)
        )
        assert wide.low < narrow.low < narrow.high < wide.high

    def test_same_generator_same_interval(self):
        probs, targets = random_problem(0, num_points=50)
        first, second, other = (
            bootstrap(nll, probs, targets, num_resamples=20, generator=make_generator(seed)) for seed in (7, 7, 8)
        )
        assert first == second
        assert first != other
        assert isinstance(first, Interval)

    def test_global_random_state_is_untouched(self):
        before = torch.random.get_rng_state()
        bootstrap(accuracy, PROBS, TARGETS, num_resamples=5, generator=make_generator(0))
        assert torch.equal(before, torch.random.get_rng_state())

    def test_paired_rows_stay_together(self):
        data = torch.randn(30, generator=make_generator(0))
        interval = bootstrap(
            lambda x, y: float((x - y).abs().max()), data, data, num_resamples=50, generator=make_generator(1)
        )
        assert (interval.low, interval.high) == (0.0, 0.0)

    def test_unpaired_rows_do_not(self):
        data = torch.randn(30, generator=make_generator(0))

        def gap(x, y):
            return float((x - y).abs().max())

        interval = bootstrap(gap, data, data, num_resamples=50, paired=False, generator=make_generator(1))
        assert interval.value == 0.0
        assert interval.low > 0.0

    def test_unpaired_lengths_may_differ(self):
        generator = make_generator(0)
        inside, outside = torch.randn(60, generator=generator) + 1.0, torch.randn(40, generator=generator)
        interval = bootstrap(auroc, inside, outside, num_resamples=200, paired=False, generator=generator)
        assert 0.5 < interval.low < interval.value < interval.high < 1.0

    def test_infinite_values_stay_infinite(self):
        """One impossible point in ten: most resamples hold it, some do not."""
        probs = torch.tensor([[0.5, 0.5]] * 9 + [[0.0, 1.0]])
        interval = bootstrap(nll, probs, torch.zeros(10, dtype=torch.long), num_resamples=200, generator=make_generator(0))
        assert (interval.value, interval.high) == (math.inf, math.inf)
        assert interval.low == pytest.approx(math.log(2))


class TestRefusals:
    @pytest.mark.parametrize("metric", [accuracy, nll, brier, ece])
    @pytest.mark.parametrize(
        ("probs", "targets", "error", "match"),
        [
            (PROBS.tolist(), TARGETS, TypeError, r"`probs` must be a torch.Tensor, got list.*as_tensor"),
            (PROBS, TARGETS.tolist(), TypeError, r"`targets` must be a torch.Tensor, got list"),
            (PROBS[0], TARGETS, ValueError, r"`probs` must be .* \(N, K\).*got torch.float64 of shape \(3,\)"),
            (torch.ones(3, 1), TARGETS, ValueError, r"K >= 2.*two columns for one logit"),
            (PROBS[:0], TARGETS[:0], ValueError, r"N >= 1"),
            (torch.eye(3, dtype=torch.long), TARGETS, ValueError, r"floating-point.*got torch.int64"),
            (PROBS.log(), TARGETS, ValueError, r"`probs` must not be negative, got -2.99.*softmax"),
            (PROBS * TARGETS.unsqueeze(1), TARGETS, ValueError, r"rows that sum to 1, got 0 in row 0.*softmax"),
            (PROBS.clone().fill_(math.nan), TARGETS, ValueError, r"`probs` must be finite, got 9 NaN"),
            (PROBS, TARGETS[:2], ValueError, r"`targets` must have shape \(3,\).*got \(2,\)"),
            (PROBS, torch.eye(3).long(), ValueError, r"`targets` must have shape \(3,\).*argmax"),
            (PROBS, TARGETS.float(), TypeError, r"`targets` must be integer.*got torch.float32.*long\(\)"),
            (PROBS, TARGETS + 1, ValueError, r"`targets` must lie in 0..2 .*got values from 1 to 3"),
            (PROBS, TARGETS - 1, ValueError, r"`targets` must lie in 0..2 .*got values from -1 to 1"),
        ],
    )
    def test_classification(self, metric, probs, targets, error, match):
        with pytest.raises(error, match=match):
            metric(probs, targets)

    def test_devices(self):
        with pytest.raises(TypeError, match=r"`targets` must be on cpu like `probs`, got meta"):
            nll(PROBS, TARGETS.to("meta"))
        with pytest.raises(TypeError, match=r"`arrays` must be on one device"):
            bootstrap(nll, PROBS, TARGETS.to("meta"), generator=make_generator(0))

    def test_ece_options(self):
        with pytest.raises(ValueError, match=r"`num_bins` must be at least 1, got 0"):
            ece(PROBS, TARGETS, num_bins=0)
        with pytest.raises(ValueError, match=r"`binning` must be one of 'equal-width', 'equal-mass', got 'quantile'"):
            ece(PROBS, TARGETS, binning="quantile")

    @pytest.mark.parametrize("metric", [auroc, fpr95])
    def test_scores(self, metric):
        scores = torch.tensor([0.1, 0.2])
        with pytest.raises(ValueError, match=r"`in_scores` must be a vector.*got shape \(2, 1\)"):
            metric(scores.unsqueeze(1), scores)
        with pytest.raises(ValueError, match=r"`out_scores` must be a vector.*got shape \(0,\)"):
            metric(scores, scores[:0])
        with pytest.raises(ValueError, match=r"`out_scores` must not be NaN, got 1 NaN of 2"):
            metric(scores, torch.tensor([0.1, math.nan]))
        with pytest.raises(TypeError, match=r"`in_scores` must be a torch.Tensor, got list"):
            metric([0.1], scores)

    def test_bootstrap(self):
        generator = make_generator(0)
        with pytest.raises(ValueError, match=r"`arrays` must hold at least one tensor"):
            bootstrap(nll, generator=generator)
        with pytest.raises(ValueError, match=r"equal lengths.*got \[3, 2\].*paired=False"):
            bootstrap(nll, PROBS, TARGETS[:2], generator=generator)
        with pytest.raises(ValueError, match=r"`level` must lie between 0 and 1, got 95"):
            bootstrap(nll, PROBS, TARGETS, level=95, generator=generator)
        with pytest.raises(ValueError, match=r"`num_resamples` must be at least 2, got 1"):
            bootstrap(nll, PROBS, TARGETS, num_resamples=1, generator=generator)
        with pytest.raises(ValueError, match=r"`arrays` must have one row per point and at least one, got shape \(0, 3\)"):
            bootstrap(nll, PROBS[:0], TARGETS[:0], generator=generator)
        with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got int"):
            bootstrap(nll, PROBS, TARGETS, generator=0)
