"""Marginals of single weights: distances and densities against SciPy's."""

import json

import numpy as np
import pytest
import torch
from image_cases import SETTINGS, make_record
from scipy import stats

from burnish.studies import marginals
from burnish.studies.image_posteriors import HMC, LA, RECENTRED, posterior
from burnish.studies.marginals import _distances, _kernel_density


@pytest.fixture(scope="module")
def part(ours):
    return marginals.run_seed(ours)


@pytest.mark.parametrize(("rows", "others"), [(50, 50), (30, 71), (1, 9)])
def test_distances_are_kolmogorov_and_smirnovs(rows, others, generator):
    draws = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    reference = 0.7 * torch.randn(others, 6, generator=generator, dtype=torch.float64) + 0.2
    reference[: min(rows, others) // 2, 2] = draws[: min(rows, others) // 2, 2]  # ties
    expected = [stats.ks_2samp(draws[:, k].numpy(), reference[:, k].numpy()).statistic for k in range(6)]
    np.testing.assert_allclose(_distances(draws, reference).numpy(), expected, atol=1e-12)


def test_distances_of_the_same_and_of_separate_draws(generator):
    draws = torch.randn(20, 3, generator=generator)
    assert torch.equal(_distances(draws, draws.flip(0)), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(_distances(draws, draws + 100.0), torch.ones(3, dtype=torch.float64))


def test_densities_integrate_to_one_and_are_scipys(generator):
    values = torch.randn(200, generator=generator, dtype=torch.float64) ** 3
    grid = torch.linspace(-40.0, 40.0, 20_001, dtype=torch.float64)
    density = _kernel_density(values, grid)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(density.numpy(), stats.gaussian_kde(values.numpy(), "silverman")(grid.numpy()), atol=1e-12)


def test_rows_are_mean_distances_to_chains_that_the_row_of_hmc_does_not_have(ours, part):
    problem = ours.problem
    draws = posterior(problem, HMC).draws[:, : problem.num_weights]
    first, second = draws[: SETTINGS.num_draws], draws[SETTINGS.num_draws :]
    assert part["rows"][HMC]["ks"] == pytest.approx(float(_distances(first, second).mean()))
    own = posterior(problem, LA).draws[:, : problem.num_weights]
    assert part["rows"][LA]["ks"] == pytest.approx(float(_distances(own, second).mean()))
    assert part["rows"][RECENTRED]["ks"] < part["rows"][LA]["ks"]
    assert set(part["rows"]) == set(ours.names) - {"MAP", "MAP-Temp", "refine"}


def test_densities_are_of_weights_on_a_grid_over_all_draws(ours, part):
    problem = ours.problem
    json.dumps(part, allow_nan=False)
    assert len(part["weights"]) == 6
    indices = [entry["index"] for entry in part["weights"]]
    assert indices == sorted(set(indices))
    assert max(indices) < problem.num_weights
    for entry in part["weights"]:
        columns = [posterior(problem, name).draws[: SETTINGS.num_draws, entry["index"]] for name in entry["densities"]]
        assert entry["grid"][0] == pytest.approx(float(torch.stack(columns).min()), abs=1e-5)
        assert entry["grid"][-1] == pytest.approx(float(torch.stack(columns).max()), abs=1e-5)
        own = posterior(problem, HMC).draws[: SETTINGS.num_draws, entry["index"]]
        near = [value for value in entry["grid"] if float(own.min()) - 1e-5 <= value <= float(own.max()) + 1e-5]
        assert len(near) > len(entry["grid"]) / 2
        assert entry["network"] == float(problem.theta[entry["index"]])
        assert {len(values) for values in entry["densities"].values()} == {len(entry["grid"])}
    assert marginals.run_seed(ours)["weights"] == part["weights"]


def test_the_table_has_a_row_for_each_posterior():
    parts = [{"rows": {"LA": {"ks": value}, "flow": {"ks": 0.1}}} for value in (0.4, 0.6)]
    assert marginals.summary(make_record("cifar-10", "ours", *parts)) == (
        ["method", "mean distance of marginals to HMC's"],
        [["LA", "0.5000 ± 0.1000"], ["burnish, flow", "0.1000 ± 0.0000"]],
    )
