"""Sampling and linearising one Gaussian over a network: the judge's density, the mode, and who is closer to HMC."""

import json
from functools import cache

import pytest
import torch

from burnish.errors import FitError
from burnish.noise import make_generator
from burnish.studies import modes
from burnish.studies.linearised_vs_mc import HMC, LINEARISED, MC, Density, Settings, make_target, run, summary
from burnish.studies.modes import best_laplace

SMALL = Settings(
    num_points=20,
    width=3,
    noise=0.5,
    num_restarts=2,
    num_samples=1000,
    num_inputs=21,
    num_chains=16,
    num_warmup=60,
    num_draws=40,
)


@cache
def small():
    return run(0, SMALL, progress=False)


def test_the_density_is_that_of_the_target():
    target = make_target(SMALL, make_generator(0))
    theta = torch.randn(7, target.dim, generator=make_generator(1), dtype=torch.float64)
    value, gradient = Density(target, SMALL).log_prob_and_grad(theta)
    expected, expected_gradient = target.log_prob_and_grad(theta)
    assert torch.allclose(gradient, expected_gradient)
    assert torch.allclose(value - value[0], expected - expected[0])


def test_the_mode_is_the_highest_of_several_with_a_positive_definite_hessian(generator):
    target = make_target(SMALL, generator)
    fit, search = best_laplace(target, 4, generator)
    assert len(search["log_probs"]) + search["refused"] == 4
    assert search["log_prob"] == pytest.approx(max(search["log_probs"]), abs=1e-3)
    assert fit.converged
    precision = torch.linalg.inv(fit.posterior.scale.factor @ fit.posterior.scale.factor.T)
    assert search["smallest_eigenvalue"] == pytest.approx(float(torch.linalg.eigvalsh(precision)[0]))
    hessian = torch.func.hessian(lambda theta: -target.log_prob(theta))(fit.posterior.mean)
    assert torch.allclose(precision, hessian, rtol=1e-5, atol=1e-6)


def test_a_search_that_finds_no_mode_says_why(monkeypatch, generator):
    monkeypatch.setattr(modes, "_MAX_ITERATIONS", 1)
    with pytest.raises(FitError, match="positive definite"):
        best_laplace(make_target(Settings(), generator), 1, generator)


def test_sampling_is_wider_than_linearising_and_hmc_sides_with_linearising():
    results = small()
    assert results["mean_std"][MC]["all"] > results["mean_std"][LINEARISED]["all"]
    gaps = {tuple(row["pair"]): row["all"] for row in results["distances"]}
    assert gaps[MC, HMC]["std"] > gaps[LINEARISED, HMC]["std"]
    assert gaps[MC, LINEARISED]["std"] > 0.0


def test_the_judge_says_how_far_it_can_be_relied_on():
    judge = small()["hmc"]
    assert judge["draws"] == 16 * 40
    assert 0.99 < judge["rhat_predictions"] < 1.3


def test_distances_are_those_of_the_recorded_predictions():
    results = small()
    one, other = (torch.tensor(results["predictions"][name]["std"]) for name in (MC, HMC))
    assert results["distances"][1]["all"]["std"] == pytest.approx(float((one - other).abs().mean()), abs=2e-4)
    assert len(results["grid"]) == len(one) == 21
    json.dumps(results, allow_nan=False)


def test_the_table_has_a_row_for_each_pair():
    header, rows = summary(small())
    assert [row[0] for row in rows] == ["Monte Carlo and linearised", "Monte Carlo and HMC", "linearised and HMC"]
    assert all(len(row) == len(header) for row in rows)
