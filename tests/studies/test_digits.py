"""The demo's data and images, and a small run of it from end to end."""

import json

import pytest
import torch

from burnish import metrics
from burnish.noise import make_generator
from burnish.studies import digits, imagery

SMALL = digits.Settings(sizes=(300, 150, 100), num_epochs=15, num_outside=40, num_samples=5, num_draws=100)
NAMES = [digits.NETWORK, digits.TEMPERATURE, digits.AT_NETWORK, digits.RECENTRED, digits.PAPER, digits.BURNISH]


@pytest.fixture(scope="module")
def demo():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    demo = digits.run_demo(1, settings=SMALL, progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    return demo


def rows_of(images):
    return {tuple(image.flatten().tolist()) for image in images}


def test_the_split_is_disjoint_seeded_and_scaled():
    split = digits.load_split(0)
    parts = (split.train, split.validation, split.test)
    assert [len(part) for part in parts] == list(imagery.SIZES)
    assert sum(imagery.SIZES) == 1797
    images = torch.cat([part.inputs for part in parts])
    assert len(rows_of(images)) == 1797  # no image twice, in whatever part
    assert images.shape == (1797, 1, 8, 8)
    assert float(images.min()) == 0.0
    assert float(images.max()) == 1.0
    again, other = digits.load_split(0), digits.load_split(1)
    assert torch.equal(split.test.inputs, again.test.inputs)
    assert not torch.equal(split.test.targets, other.test.targets)


@pytest.mark.parametrize("sizes", [(1797, 1, 1), (0, 5, 5)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="`sizes` must"):
        digits.load_split(0, sizes=sizes)


def test_training_is_seeded_and_leaves_the_global_state_alone(untouched_rng):
    split = digits.load_split(0, sizes=(100, 10, 10))
    first, second, other = (digits.train_network(seed, split=split, num_epochs=2) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert not first.training


@pytest.mark.parametrize("make", [imagery.noise_images, imagery.letter_images])
def test_generated_images_are_seeded_differ_and_lie_in_range(make, untouched_rng):
    images = make(60, generator=make_generator(0))
    assert images.shape == (60, 1, 8, 8)
    assert images.dtype == torch.float32
    assert 0.0 <= float(images.min()) < float(images.max()) <= 1.0
    assert len(rows_of(images)) == 60
    assert torch.equal(images, make(60, generator=make_generator(0)))
    assert not torch.equal(images, make(60, generator=make_generator(1)))


def test_letters_look_like_the_digits_in_all_but_shape():
    letters, images = imagery.letter_images(200, generator=make_generator(0)), digits.load_split(0).train.inputs
    assert torch.equal(letters * 16, (letters * 16).round())  # counts of a block of sixteen pixels
    assert abs(float(letters.mean() - images.mean())) < 0.08
    assert float((letters.amax((1, 2, 3)) > 0.9).float().mean()) > 0.9
    filled = ((letters.amax(3) > 0.2).sum(2) >= 7).float().mean()  # rows with strokes in them
    assert float(filled) > 0.95
    assert set(imagery.LETTERS).isdisjoint("BCDGIJLOQSTUZ")


def test_the_images_outside_are_no_digits_and_no_turned_zeros():
    test = digits.load_split(0).test
    sets = imagery.outside_images(test, 30, seed=0)
    assert [len(images) for images in sets.values()] == [30, int((test.targets != 0).sum()), 30]
    for images in sets.values():
        assert rows_of(images).isdisjoint(rows_of(test.inputs))
    upright = test.inputs[test.targets != 0]
    assert torch.equal(sets["digits on their side"], upright.transpose(2, 3).flip(2))  # counter-clockwise


def test_the_demo_has_its_rows_in_order_and_every_number(demo):
    assert [row.name for row in demo.rows] == NAMES
    for row in demo.rows:
        assert row.probs.shape == (100, 10)
        assert row.nll == metrics.nll(row.probs, demo.test.targets)
        assert row.accuracy > 0.7
        assert [probs.shape[1] for probs in row.outside.values()] == [10] * 3
        posterior = row.name not in (digits.NETWORK, digits.TEMPERATURE)
        assert (row.elbo is not None) == (row.draws is not None) == posterior
        assert row.draws is None or row.draws.shape == (100, len(demo.theta))
        flows = (digits.PAPER, digits.BURNISH) if "flow" in demo.rungs[-1].method else (digits.PAPER,)
        assert (row.trace is not None) == (row.name in flows)
    assert torch.equal(demo.prediction.probs, demo.row(digits.BURNISH).probs)


def test_posteriors_share_one_target_and_recentring_does_not_lose(demo):
    bounds = {row.name: row.elbo for row in demo.rows if row.elbo is not None}
    at_network, recentred = bounds[digits.AT_NETWORK], bounds[digits.RECENTRED]
    assert recentred.value > at_network.value - 4 * (at_network.standard_error + recentred.standard_error)
    own = bounds[digits.BURNISH]
    assert own.value > recentred.value - 4 * (own.standard_error + recentred.standard_error)
    assert own.value == pytest.approx(demo.verdict.elbo, abs=6 * own.standard_error + 0.5)
    assert demo.log_evidence > own.value - 4 * own.standard_error


def test_the_record_is_plain_json_without_arrays(demo):
    record = json.loads(json.dumps(demo.record(), allow_nan=False))
    assert [row["name"] for row in record["rows"]] == NAMES
    assert set(record["rows"][0]["outside"]["letters"]) == {"mean_confidence", "auroc"}
    assert record["settings"]["sizes"] == [300, 150, 100]
    assert {"trusted", "reason", "khat", "text"} <= set(record["verdict"])

    def longest(value):
        if isinstance(value, dict):
            return max(map(longest, value.values()), default=0)
        return max([len(value), *map(longest, value)]) if isinstance(value, list) else 0

    assert longest(record) <= len(NAMES)


def test_numbers_that_json_has_not_become_words():
    assert digits._plain({"a": (float("inf"), [float("nan")]), "b": 1.5}) == {"a": ["inf", ["nan"]], "b": 1.5}


def test_too_few_draws_are_refused_before_any_work():
    with pytest.raises(ValueError, match=r"`settings.num_draws` must be at least 25"):
        digits.run_demo(settings=digits.Settings(num_draws=3))
