"""Two weights: the order of the posteriors by their distance to HMC, and how draws are thinned and compared."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.studies import toy_logistic
from burnish.studies.toy_logistic import HMC, LA, RECENTRED, REFINED, VB, Settings, make_target, run, summary, train

SMALL = Settings(num_datasets=2, num_sets=4, num_splits=400, side=15)


@cache
def small():
    return run(0, SMALL, progress=False)


def test_refined_is_as_close_to_hmc_as_hmc_is_and_gaussians_are_not():
    for row in small()["datasets"]:
        methods = row["methods"]
        assert methods[RECENTRED]["biased"] > methods[VB]["biased"] > methods[REFINED]["biased"]
        assert methods[LA]["biased"] > 2 * methods[REFINED]["biased"]
        assert methods[REFINED]["biased"] <= methods[HMC]["biased"] + toy_logistic.MARGIN
        assert methods[REFINED]["inside"]
        assert not methods[RECENTRED]["inside"]
        low, high = row["range"]
        assert low < 0 < high


def test_the_checks_count_data_sets():
    checks = small()["checks"]
    assert checks["datasets"] == checks["within_margin"] == checks["first_inside"] == 2


def test_there_are_more_effective_draws_than_are_used():
    for row in small()["datasets"]:
        for fit in row["hmc"]:
            assert fit["used"] == 4 * 600
            assert fit["ess_bulk"] >= fit["used"]
            assert fit["rhat"] < 1.01


def test_la_stands_where_weak_weight_decay_ends_and_not_at_the_mode():
    target = make_target(SMALL.prior_precision, SMALL, make_generator(0))
    trained, mode = train(target, SMALL), fit_laplace(target).posterior.mean
    gradients = [float(target.log_prob_and_grad(theta)[1].norm()) for theta in (trained, mode)]
    assert gradients[0] > 0.1
    assert gradients[1] < 1e-3
    assert trained.norm() > mode.norm()  # the weaker prior allows larger weights


def test_every_thinned_draw_is_used_once_and_sets_reach_along_the_chains():
    settings = Settings(num_chains=4, draws_per_chain=3, num_sets=5)
    draws = torch.arange(4 * 31 * 2, dtype=torch.float64).view(4, 31, 2)
    fit = SimpleNamespace(posterior=SimpleNamespace(draws=draws), ess_bulk=100.0)
    sets = toy_logistic._thinned(fit, settings)
    assert sets.shape == (5, 4, 3, 2)
    assert len(sets.flatten(0, 2).unique(dim=0)) == 60
    times = (sets[0, 0, :, 0] / 2).tolist()
    assert times == [0.0, 10.0, 20.0]


def test_too_few_effective_draws_are_refused():
    fit = SimpleNamespace(posterior=SimpleNamespace(draws=torch.zeros(4, 31, 2)), ess_bulk=59.0)
    with pytest.raises(RuntimeError, match="at least 60 effective draws, got 59"):
        toy_logistic._thinned(fit, Settings(num_chains=4, draws_per_chain=3, num_sets=5))


def test_the_picture_has_the_exact_density_and_the_draws_that_were_compared():
    picture = small()["picture"]
    density = torch.tensor(picture["log_density"])
    assert density.shape == (15, 15)
    assert float(density.max()) == 0.0
    assert set(picture["draws"]) == {LA, RECENTRED, VB, REFINED, HMC}
    assert [len(column) for column in picture["draws"][HMC]] == [600, 600]
    json.dumps(small(), allow_nan=False)


def test_the_table_has_the_papers_values_beside_ours():
    header, rows = summary(small())
    assert [row[-1] for row in rows] == ["0.040", "", "0.016", "0.002", ""]
    assert all(len(row) == len(header) for row in rows)
