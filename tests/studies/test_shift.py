"""Images turned or corrupted: scores of the predictions at each level."""

import json

import pytest
from image_cases import SETTINGS, make_record

from burnish import metrics
from burnish.studies import shift
from burnish.studies.image_posteriors import HMC, RECENTRED
from burnish.studies.printed import printed


@pytest.fixture(scope="module")
def part(paper):
    return shift.run_seed(paper)


def test_scores_are_those_of_the_predictions_at_each_level(paper, part):
    assert part["levels"] == [0, 1, 2, 3, 4, 5]
    assert list(part["rows"]) == paper.names
    for name, count in ((RECENTRED, SETTINGS.few), (HMC, SETTINGS.num_draws)):
        for level in (0, 4):
            probs = paper.predict(name, f"shift {level}", count).probs
            for key in ("nll", "accuracy", "ece"):
                score = getattr(metrics, key)(probs, paper.setting.labels(f"shift {level}"))
                assert part["rows"][name][key][level] == score
    json.dumps(part, allow_nan=False)


def test_the_lowest_level_is_the_test_set(paper, part):
    probs = paper.predict("MAP", "test", 1).probs
    assert part["rows"]["MAP"]["nll"][0] == metrics.nll(probs, paper.setting.labels("test"))


def test_corruption_costs_accuracy(part):
    assert part["rows"]["MAP"]["accuracy"][5] < part["rows"]["MAP"]["accuracy"][0]


def make_part(nll):
    return {"levels": [0, 1, 2, 3, 4, 5], "rows": {name: {"nll": [nll] * 6} for name in ("MAP", "recentred LA")}}


@pytest.mark.parametrize(("dataset", "protocol"), [("cifar-10", "paper"), ("cifar-10", "ours"), ("cifar-100", "paper")])
def test_the_table_shows_the_papers_figure_where_there_is_one(dataset, protocol):
    header, rows = shift.summary(make_record(dataset, protocol, make_part(0.2), make_part(0.4)))
    assert header == ["NLL at level, corrupted in the style of CIFAR-10-C", "0", "1", "2", "3", "4", "5"]
    assert rows[0] == ["network (MAP)", *["0.3000"] * 6]
    shown = [row for row in rows if row[0] == "  printed"]
    known = [f"{value:.4f}" for value in printed("shift_corrupted_cifar10_nll", "MAP")]
    assert shown == ([["  printed", *known]] if (dataset, protocol) == ("cifar-10", "paper") else [])


def test_levels_of_turned_images_are_angles():
    part = {"levels": [0, 15], "rows": {"MAP": {"nll": [0.5, 0.7]}}}
    assert shift.summary(make_record("fashion-mnist", "paper", part)) == (
        ["NLL at degrees", "0", "15"],
        [["network (MAP)", "0.5000", "0.7000"]],
    )
