"""The table of calibration: distances to HMC that are what they should be, scores that are those of the predictions."""

import json
import statistics

import pytest
import torch
from image_cases import SETTINGS, make_record, make_setting, scores

from burnish import metrics
from burnish.diagnostics import mmd
from burnish.studies.claims import calibration_claims
from burnish.studies.image_calibration import _Judge, run_baseline, run_seed, summary
from burnish.studies.image_methods import MAP, TEMPERATURE, LayerMethods, NetworkMethods
from burnish.studies.image_posteriors import FLOW, HMC, LA, RECENTRED, REFINE, posterior
from burnish.studies.image_problem import train_missing
from burnish.studies.paper_scores import paper_ece, paper_mmd

pytestmark = pytest.mark.filterwarnings("ignore:the validation is best at the bound")


@pytest.fixture(scope="module", params=["paper", "ours"])
def calibrated(request):
    """Methods of a protocol, and their part."""
    methods = request.getfixturevalue(request.param)
    return methods, run_seed(methods)


class AllHmc(LayerMethods):
    """Every method is the first half of HMC's chains."""

    def fit(self, name):
        return posterior(self.problem, HMC)


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_the_same_draws_are_at_no_distance(protocol, request):
    judge = _Judge(AllHmc(request.getfixturevalue(protocol).problem))
    found = judge.distances(FLOW)
    assert found["tv"] == pytest.approx(0.0, abs=1e-6)
    assert found["mmd_biased"] == pytest.approx(0.0, abs=1e-12)
    assert found["mmd_paper"] == found["mmd_paper_weights"] == pytest.approx(0.0, abs=1e-12)
    assert found["mmd"] < 0.0  # of a sample with itself, the unbiased estimate is too low
    assert found["mmd_contrasts"] < 0.0


def test_hmc_is_compared_with_its_other_half(calibrated):
    methods, part = calibrated
    draws = posterior(methods.problem, HMC).draws
    first, second = draws[: len(draws) // 2], draws[len(draws) // 2 :]
    row, judge = part["rows"][HMC], part["judge"]
    assert row["mmd"] == pytest.approx(mmd(second, first, bandwidth=judge["bandwidth"]))
    assert row["mmd_paper"] == pytest.approx(paper_mmd(second, first))
    assert judge["range"][0] < 0.0 < judge["range"][1]
    assert row["inside"]
    assert judge["draws"] == len(first)
    assert judge["contrast_range"][0] < 0.0 < judge["contrast_range"][1]
    assert 0.5 * row["tv"] < judge["largest_tv"] < 2.0 * row["tv"]


def test_distances_are_those_of_the_draws(calibrated):
    methods, part = calibrated
    reference = posterior(methods.problem, HMC).draws[: SETTINGS.num_draws]
    for name in (LA, RECENTRED):
        draws = posterior(methods.problem, name).draws
        assert part["rows"][name]["mmd_paper"] == pytest.approx(paper_mmd(draws, reference))
        weights = slice(0, methods.problem.num_weights)
        assert part["rows"][name]["mmd_paper_weights"] == pytest.approx(paper_mmd(draws[:, weights], reference[:, weights]))
        model, theta = methods.seen(reference)
        own = methods.predict(name, "test", len(draws)).probs
        other = torch.softmax(model(theta, methods.problem.features("test")), -1).mean(0)
        assert part["rows"][name]["tv"] == pytest.approx(float((own - other).abs().sum(1).mean()) / 2, abs=1e-6)
    theta = methods.problem.theta
    assert part["rows"][MAP]["mmd_paper"] == pytest.approx(paper_mmd(theta.expand_as(reference), reference))
    scaled = theta if methods.setting.protocol == "paper" else theta / methods.temperature
    assert part["rows"][TEMPERATURE]["mmd_paper"] == pytest.approx(paper_mmd(scaled.expand_as(reference), reference))


def test_the_mode_is_closer_to_hmc_than_the_network(calibrated):
    rows = calibrated[1]["rows"]
    for key in ("mmd", "mmd_paper", "mmd_contrasts", "tv"):
        assert rows[RECENTRED][key] < rows[LA][key]
    assert rows[RECENTRED]["inside"]
    assert not rows[MAP]["inside"]


def test_scores_are_those_of_the_predictions(calibrated):
    methods, part = calibrated
    labels = methods.setting.labels("test")
    for name in methods.names:
        few = SETTINGS.num_draws if name == HMC and methods.setting.protocol == "paper" else SETTINGS.few
        sets = methods.sets(name, "test", few)
        row = part["rows"][name]
        assert row["draws"] == few
        assert row["sets"] == len(sets) == (1 if name in (MAP, TEMPERATURE) else SETTINGS.num_draws // few)
        for key in ("nll", "accuracy", "brier", "ece"):
            score = getattr(metrics, key)
            assert row["few"][key] == pytest.approx(statistics.fmean(score(probs, labels) for probs in sets))
            assert row["many"][key] == pytest.approx(score(sets.mean(0), labels))
        assert row["few"]["paper_ece"] == pytest.approx(statistics.fmean(paper_ece(probs, labels) for probs in sets))


def test_a_part_says_what_it_is_about(calibrated):
    methods, part = calibrated
    assert list(part["rows"]) == methods.names
    assert "mmd" not in part["rows"][REFINE]  # whose target is another
    assert part["rows"][HMC]["fit"] == posterior(methods.problem, HMC).facts
    assert [name for name, row in part["rows"].items() if "fit" not in row] == [MAP, TEMPERATURE]
    target = part["target"]
    assert (target["parameters"], target["points"]) == (methods.problem.target.dim, len(methods.problem.target.data))
    assert target["test_points"] == len(methods.setting.labels("test"))
    assert max(target["grid"], key=lambda pair: pair[1])[0] == target["found_precision"]
    assert part["temperature"] == methods.temperature
    json.dumps(part, allow_nan=False)


def test_networks_from_scratch_have_scores_alone(tmp_path):
    setting = make_setting("ours", tmp_path, num_epochs=4)
    train_missing(setting, "csghmc", (0,), progress=False)
    methods = NetworkMethods(setting, "csghmc", 0)
    (row,) = run_baseline(methods)["rows"].values()
    probs = methods.predict("CSGHMC", "test", 4).probs
    assert row["few"] == row["many"]
    assert row["few"]["nll"] == pytest.approx(metrics.nll(probs, setting.labels("test")))
    assert set(row) == {"few", "many", "draws", "sets", "fit"}
    assert row["fit"]["seconds"] == methods.trained.seconds > 0.0


def make_part(shift=0.0):
    rows = {name: {"few": scores(0.3 + shift), "many": scores(0.2)} for name in (MAP, "VB", LA, RECENTRED)}
    for name in (MAP, LA, RECENTRED):
        rows[name] |= {"mmd": 0.5, "mmd_paper": 0.7, "tv": 0.01}
    for name in (LA, RECENTRED):
        rows[name]["fit"] = {"seconds": 2.0, "elbo": -1234.4}
    return {"rows": rows}


def test_the_papers_table_has_the_printed_values_below_ours():
    header, rows = summary(make_record("fashion-mnist", "paper", make_part(), make_part(0.2)))
    columns = ["method", "MMD, biased", "NLL", "NLL, all draws", "accuracy, %", "Brier", "the paper's ECE, %", "ECE, %"]
    columns += ["seconds, median"]
    assert header == columns
    assert all(len(row) == len(header) for row in rows)
    assert [row[0] for row in rows] == ["network (MAP)", "  printed", "VB", "  printed", "LA", "  printed", "recentred LA"]
    by_name = dict(zip(columns, rows[0], strict=True))
    assert by_name["NLL"] == "0.4000 ± 0.1000"
    assert by_name["NLL, all draws"] == "0.2000 ± 0.0000"
    assert by_name["accuracy, %"] == "90.0 ± 0.0"
    assert by_name["seconds, median"] == ""
    assert rows[1] == ["  printed", "1.093", "0.3116", "", "90.4", "0.1445", "11.7", "", ""]
    assert rows[2][1] == ""  # of other layers too, so without a distance
    assert rows[4][1] == "0.700 ± 0.000"
    assert rows[6][-1] == "2.0"


@pytest.mark.parametrize("other", [{"made": True}, {"num_epochs": 20}])
def test_printed_values_are_not_put_beside_made_images_or_fewer_epochs(other):
    _, rows = summary(make_record("fashion-mnist", "paper", make_part(), **other))
    assert "  printed" not in [row[0] for row in rows]
    assert calibration_claims(make_record("fashion-mnist", "paper", make_part(), **other)) == []


def test_our_table_has_none():
    header, rows = summary(make_record("fashion-mnist", "ours", make_part()))
    columns = ["method", "MMD", "TV to HMC", "NLL", "NLL, all draws", "accuracy, %", "Brier", "ECE, %", "ELBO"]
    assert header == [*columns, "seconds, median"]
    assert [row[0] for row in rows] == ["network (MAP)", "VB", "LA", "recentred LA"]
    assert rows[2] == ["LA", "0.50000", "0.0100", "0.3000", "0.2000", "90.0", "0.1500", "5.0", "-1234", "2.0"]


def test_a_score_that_is_no_number_leaves_its_cell_empty():
    part = make_part()
    part["rows"][LA]["few"]["paper_ece"] = None
    _, rows = summary(make_record("cifar-10", "paper", part))
    (row,) = (row for row in rows if row[0] == "LA")
    assert row[6] == ""
