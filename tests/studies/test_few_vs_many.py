"""Many draws of a poor posterior against few of a good one: which draws are behind each row."""

import json

import pytest
import torch
from image_cases import make_record, scores

from burnish import metrics
from burnish.predictive import predict, predict_at
from burnish.studies import few_vs_many
from burnish.studies.image_posteriors import HMC, LA, RECENTRED
from burnish.studies.paper_base import fit_paper_base


@pytest.fixture(scope="module")
def part(paper):
    return few_vs_many.run_seed(paper)


def test_rows_and_counts(part):
    assert list(part["rows"]) == ["LA S=480", "HMC S=10", "HMC S=24", "MPA", "recentred LA S=10", "burnish S=10"]
    assert part["counts"] == [1, 2, 5, 10, 20]
    assert all(len(curve) == 5 for curve in part["curves"].values())
    assert set(part["curves"]) == {"LA", "recentred LA", "burnish", "HMC"}
    json.dumps(part, allow_nan=False)


@pytest.mark.parametrize("block", [500, 100])
def test_very_many_draws_are_averaged_block_by_block(paper, part, block, monkeypatch):
    monkeypatch.setattr(few_vs_many, "_BLOCK", block)
    problem = paper.problem
    base, _ = fit_paper_base(problem)
    generator = problem.stream("few-vs-many")
    draws = torch.cat([base.sample(min(block, 480 - start), generator=generator) for start in range(0, 480, block)])
    probs = predict_at(problem.model, draws, problem.features("test")).probs
    found = (part if block == 500 else few_vs_many.run_seed(paper))["rows"]["LA S=480"]
    assert found["nll"] == pytest.approx(metrics.nll(probs, problem.setting.labels("test")), rel=1e-5)


def test_no_draws_at_all(paper, part):
    base, _ = fit_paper_base(paper.problem)
    probs = predict(paper.problem.model, base, paper.problem.features("test"), method="probit").probs
    assert part["rows"]["MPA"]["nll"] == metrics.nll(probs, paper.setting.labels("test"))


def test_curves_average_over_sets_of_draws(paper, part):
    labels = paper.setting.labels("test")
    for name in (LA, RECENTRED, HMC):
        for place, count in enumerate(part["counts"]):
            losses = [metrics.nll(probs, labels) for probs in paper.sets(name, "test", count)]
            assert part["curves"][name][place]["nll"] == pytest.approx(sum(losses) / len(losses))
    by_ten = part["curves"][HMC][part["counts"].index(10)]
    assert part["rows"]["HMC S=10"] == by_ten


def test_more_draws_predict_better_on_average(part):
    for curve in part["curves"].values():
        assert curve[-1]["nll"] < curve[0]["nll"]  # NLL is convex in the probabilities


def test_the_table_has_printed_columns_under_the_papers_protocol():
    part = {"rows": {"LA S=10000": scores(0.3), "HMC S=10": scores(0.27), "burnish S=10": scores(0.26)}}
    header, rows = few_vs_many.summary(make_record("fashion-mnist", "paper", part, part))
    assert header == ["method", "NLL", "the paper's ECE, %", "ECE, %", "printed NLL", "printed ECE, %"]
    assert rows[0] == ["LA S=10000", "0.3000 ± 0.0000", "10.0 ± 0.0", "5.0 ± 0.0", "0.311", "10.5"]
    assert rows[2][4:] == ["", ""]
    assert few_vs_many.summary(make_record("fashion-mnist", "ours", part))[0] == header[:4]
