"""Confidence by three averages of one Gaussian: their order, and what distances and regions mean."""

import json
from functools import cache

import pytest
import torch

from burnish.studies import mpa_vs_mc
from burnish.studies.mpa_vs_mc import MODE, Settings, run, summary

SMALL = Settings(
    num_points=40, num_test=40, width=4, prior_precisions=(0.3, 100.0), shown=0.3, num_restarts=2, num_samples=300, side=11
)


@cache
def small():
    return run(0, SMALL, progress=False)


def test_averages_are_less_confident_than_the_network_and_sampling_weights_least():
    rows = small()["priors"][0]["methods"]
    for region in ("near", "confidence"):
        assert rows["Monte Carlo"][region] < rows["MPA"][region] < rows[MODE][region]
        assert rows["MPA"][region] < rows["linearised Monte Carlo"][region] + 0.02
    assert rows["Monte Carlo"]["confidence"] < rows["Monte Carlo"]["accuracy"] - 0.1  # underconfident


def test_under_a_strong_prior_the_network_is_nearly_linear_and_all_agree():
    weak, strong = ({tuple(row["pair"]): row["all"] for row in prior["distances"]} for prior in small()["priors"])
    for pair, distance in weak.items():
        assert strong[pair] < distance
    assert max(strong.values()) < 0.02


def test_the_hessian_is_positive_definite():
    for prior in small()["priors"]:
        assert prior["mode"]["smallest_eigenvalue"] > 0
        assert prior["mode"]["converged"]


def test_maps_are_of_the_prior_that_is_shown():
    results = small()
    assert set(results["maps"]) == {*mpa_vs_mc.METHODS, MODE}
    grid = torch.tensor(results["maps"]["MPA"])
    assert grid.shape == (11, 11)
    assert 0.25 <= float(grid.min()) <= float(grid.max()) <= 1.0
    json.dumps(results, allow_nan=False)


def test_the_distance_of_a_predictive_to_itself_is_zero_and_that_of_certain_ones_is_one():
    certain = torch.eye(2).repeat(3, 1)
    probs = {"a": certain, "b": certain.flip(1)}
    regions = {"near": torch.tensor([True] * 4), "far": torch.tensor([False, True, False, True])}
    assert mpa_vs_mc._distance(("a", "a"), probs, regions, 4)["all"] == 0.0
    row = mpa_vs_mc._distance(("a", "b"), probs, regions, 4)
    assert (row["all"], row["near"], row["far"]) == (1.0, 1.0, 1.0)


def test_scores_are_of_the_regions_and_the_test_points():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    regions = {"near": torch.tensor([True, False]), "far": torch.tensor([False, True])}
    row = mpa_vs_mc._scores(probs, regions, 2, torch.tensor([1, 1]))
    assert row["near"] == pytest.approx(0.9)
    assert row["far"] == pytest.approx(0.6)
    assert row["confidence"] == pytest.approx(0.75)
    assert row["accuracy"] == 0.5


def test_the_table_has_every_method_for_each_prior():
    header, rows = summary(small())
    assert len(rows) == 2 * 4
    assert rows[0][0] == "0.3: network at the mode"
    assert all(len(row) == len(header) for row in rows)
