"""The logistic-Gaussian integral: known answers, the size of Monte Carlo's error, and who is better from when on."""

import math
from functools import cache

import pytest
import torch

from burnish.studies import logistic_integral
from burnish.studies.logistic_integral import Settings, run, summary

SMALL = Settings(num_means=20, num_stds=20, max_samples=3000, num_repetitions=4, num_points=2000, num_curves=200)


@cache
def small(seed=0):
    return run(seed, SMALL, progress=False)


@pytest.mark.usefixtures("untouched_rng")
def test_the_same_seed_gives_the_same_results_and_another_does_not():
    tiny = Settings(num_means=5, num_stds=5, num_samples=10, max_samples=30, num_repetitions=2, num_points=200, num_curves=4)
    first, second, other = (run(seed, tiny, progress=False) for seed in (1, 1, 2))
    assert first == second
    assert first["monte_carlo"] != other["monte_carlo"]
    assert first["probit"] == other["probit"]


def test_probit_is_a_structured_error_of_the_known_size():
    probit = small()["probit"]
    assert 0.010 < probit["max"] < 0.020  # the distance of a logistic and a normal distribution function is 0.0177 at most
    assert 0 < probit["mean"] < probit["max"]
    assert abs(probit["at"][0]) > 5  # far from m = 0, where it is exact by symmetry


def test_the_error_of_100_draws_is_of_the_size_that_the_paper_prints_and_far_above_probits():
    carlo = small()["monte_carlo"]
    assert all(0.09 < error < 0.22 for error in carlo["max"])
    assert min(carlo["max"]) > 5 * small()["probit"]["max"]
    assert min(carlo["mean"]) > small()["probit"]["mean"]


def test_errors_fall_with_the_root_of_the_number_of_draws():
    by_size = small()["by_size"]
    ratio = by_size["mean"]["median"][by_size["sizes"].index(100)] / by_size["mean"]["median"][by_size["sizes"].index(1000)]
    assert ratio == pytest.approx(math.sqrt(10), rel=0.1)


def test_by_mean_error_monte_carlo_overtakes_earlier_than_by_largest_error():
    crossing = small()["crossing"]
    assert all(1000 < size < 4000 for size in crossing["mean"])
    assert all(size is None for size in crossing["max"])  # not within 3,000 draws: the paper says beyond 10,000


def test_a_crossing_is_where_errors_stay_below():
    errors = torch.tensor([[3.0, 0.5, 2.0, 0.5, 0.1], [0.5, 0.5, 0.5, 0.5, 0.5], [3.0, 3.0, 3.0, 3.0, 3.0]])
    assert logistic_integral._crossings(errors, torch.tensor(1.0), [1, 2, 3, 4, 5]) == [4, 1, None]


def test_standard_errors_are_those_of_the_integrand():
    curves = small()["standard_error"]
    assert curves["cells"][0]["integrand_std"] == pytest.approx(0.2083, abs=2e-4)  # m = 0, s = 1
    for cell in curves["cells"]:
        for size, found in zip(curves["sizes"], cell["empirical"], strict=True):
            assert found == pytest.approx(cell["integrand_std"] / math.sqrt(size), rel=0.25)  # five standard errors of 200
    stds = [cell["integrand_std"] for cell in curves["cells"]]
    assert stds == sorted(stds)


def test_the_map_of_the_record_keeps_the_largest_error():
    results = small()
    assert len(results["maps"]["probit"]) == 10
    assert max(map(max, results["maps"]["probit"])) == pytest.approx(results["probit"]["max"], abs=1e-5)
    assert max(map(max, results["maps"]["monte_carlo"])) == results["monte_carlo"]["max"][0]


def test_the_table_has_the_papers_value_beside_ours():
    header, rows = summary(small())
    assert header[-1] == "paper"
    assert rows[0][-1] == "0.18"
    assert rows[4][1] == "not in 4 of 4 repetitions"
    assert all(len(row) == len(header) for row in rows)


def test_fewer_draws_in_all_than_are_shown_are_refused():
    with pytest.raises(ValueError, match=r"`settings.max_samples` must be at least 100"):
        run(0, Settings(max_samples=50), progress=False)
