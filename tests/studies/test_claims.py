"""Statements about records: each holds where it should, and only there."""

import copy
import math

import pytest
from scipy import stats

from burnish.studies.claims import calibration_claims, ood_claims, paired_interval

METHODS = ["MAP", "MAP-Temp", "LA", "LA-Refine-1", "LA-Refine-5", "recentred LA", "flow", "burnish", "refine", "HMC"]


def make_record(protocol, dataset="fashion-mnist"):
    """Three networks under which everything holds that can."""
    distances = {"MAP": 1.09, "LA": 0.42, "LA-Refine-1": 0.36, "LA-Refine-5": 0.02}
    losses = {"MAP": 0.31, "MAP-Temp": 0.2705, "LA": 0.30, "LA-Refine-1": 0.275}
    seeds = {}
    for seed in range(3):
        rows = {}
        for name in METHODS:
            nll = losses.get(name, 0.27) + 0.001 * seed + (1e-5 * seed if name == "burnish" else 0.0)
            scores = {"nll": nll, "accuracy": 0.904, "ece": 0.04, "paper_ece": 0.117}
            row = {"few": scores, "many": dict(scores), "inside": True, "inside_tv": True}
            row["mmd_paper"] = distances.get(name, 0.002) + 0.001 * seed
            rows[name] = row | {"mmd_paper_weights": row["mmd_paper"] + 1e-4}
        rows["burnish"]["fit"] = {"rung": "laplace"}
        rows["HMC"]["fit"] = {"nested_rhat": 1.005, "rhat": 1.02, "converged": True, "seconds": 10.0}
        seeds[str(seed)] = {"rows": rows}
    sizes = {"few": 20, "num_draws": 600, "made_images": False, "num_epochs": None}
    return {"config": {"dataset": dataset, "protocol": protocol, **sizes}, "seeds": seeds}


def changed(record, name, **values):
    """The record with other values of a method in all seeds."""
    record = copy.deepcopy(record)
    for part in record["seeds"].values():
        for key, value in values.items():
            for place in (part["rows"][name], *(part["rows"][name][which] for which in ("few", "many"))):
                if key in place:
                    place[key] = value
    return record


def failing(record):
    return [claim.statement for claim in calibration_claims(record) if not claim.holds]


def test_the_interval_is_students():
    values = [0.1, 0.3, -0.2, 0.4]
    interval = paired_interval(values)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert paired_interval([0.5]).low == -math.inf


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_all_holds_where_all_is_well(protocol):
    assert failing(make_record(protocol)) == []
    assert all(claim.measured for claim in calibration_claims(make_record(protocol)))


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("MAP", {"accuracy": 0.912}, "accuracy"),
        ("LA", {"mmd_paper": 0.35}, "MMD falls"),
        ("LA-Refine-5", {"mmd_paper": 0.11}, "MMD falls"),
        ("LA", {"nll": 0.33}, "printed order"),
        ("LA-Refine-5", {"nll": 0.31}, "printed order"),
        ("MAP", {"paper_ece": 0.05}, "calibration error"),
        ("LA", {"mmd_paper_weights": 0.43}, "with the biases"),
    ],
)
def test_what_does_not_hold_of_the_papers_protocol_is_said(name, values, words):
    assert any(words in statement for statement in failing(changed(make_record("paper"), name, **values)))


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("burnish", {"nll": 0.272}, "NLL of burnish, auto by 20 draws"),
        ("burnish", {"nll": 0.272}, "NLL of burnish, auto by 600 draws"),
        ("flow", {"inside": False}, "MMD of burnish, flow"),
        ("recentred LA", {"inside_tv": False}, "distance of predictions of recentred LA"),
        ("refine", {"nll": 0.28}, "`refine` with its defaults"),
    ],
)
def test_what_does_not_hold_of_ours_is_said(name, values, words):
    assert any(words in statement for statement in failing(changed(make_record("ours"), name, **values)))


def test_distances_that_differ_by_less_than_the_last_printed_digit_are_alike():
    record = make_record("paper")
    printed_alike = changed(record, "LA", mmd_paper=0.4180, mmd_paper_weights=0.41849)  # the same in all seeds
    assert failing(printed_alike) == []
    apart = changed(record, "LA", mmd_paper=0.4180, mmd_paper_weights=0.41851)
    assert ["with the biases" in statement for statement in failing(apart)] == [True]


def test_chains_that_have_not_converged_are_said():
    record = make_record("ours")
    record["seeds"]["1"]["rows"]["HMC"]["fit"]["nested_rhat"] = 1.02
    assert failing(record) == ["HMC has converged"]


def test_one_network_shows_no_equivalence_and_says_why():
    record = make_record("ours")
    record["seeds"] = {"0": record["seeds"]["0"]}
    claims = [claim for claim in calibration_claims(record) if "draws is HMC's" in claim.statement]
    assert len(claims) == 6
    assert not any(claim.holds for claim in claims)
    assert {claim.measured.split(",")[0] for claim in claims} == {"+0.00000 (one network gives no interval)"}


def test_nlls_are_in_the_order_that_the_paper_prints_for_the_data_set():
    """On CIFAR-100 its LA is worse than the network."""
    values = {"MAP": 0.93, "LA": 1.0, "LA-Refine-5": 0.9}
    for dataset, expected in (("cifar-100", True), ("cifar-10", False)):
        record = make_record("paper", dataset)
        for name, nll in values.items():
            record = changed(record, name, nll=nll)
        claim = next(claim for claim in calibration_claims(record) if "printed order" in claim.statement)
        assert claim.holds == expected


def test_networks_with_more_classes_may_differ_more_in_accuracy():
    record = changed(make_record("paper", "cifar-100"), "MAP", accuracy=0.756, paper_ece=0.137)
    assert not any("accuracy" in statement for statement in failing(record))


def test_pairs_of_sets_are_counted_over_all_records():
    def record(rates):
        rows = {"refine": rates, "MAP-Temp": dict.fromkeys(rates, 0.5)}
        wrapped = {name: {key: {"confidence": {"fpr95": rate}} for key, rate in row.items()} for name, row in rows.items()}
        return {"config": {"dataset": "cifar-10"}, "seeds": {"0": {"rows": wrapped, "sizes": dict.fromkeys(rates, 10)}}}

    (claim,) = ood_claims([record({"svhn": 0.4, "cifar-100": 0.45}), record({"svhn": 0.6})])
    assert claim.holds
    assert claim.measured.startswith("2 of 3, 0 of them by a 95 % interval: ")  # one network says nothing about others
    twice = record({"svhn": 0.4})
    twice["seeds"]["1"] = record({"svhn": 0.4001})["seeds"]["0"]
    (claim,) = ood_claims([twice])
    assert claim.measured.startswith("1 of 1, 1 of them by a 95 % interval: ")
    (claim,) = ood_claims([record({"svhn": 0.4, "cifar-100": 0.5})])
    assert not claim.holds
