"""Newton's method on the ELBO of a full Gaussian: exact ones, stationarity where none is known, and weak priors."""

import math

import pytest
import torch
from problems import binary, classification, regression, regression_truth

from burnish.diagnostics import elbo
from burnish.inference import full_gaussian
from burnish.inference.curvature import full_hessian
from burnish.inference.flow import fit_flow
from burnish.inference.full_gaussian import climb_rounds
from burnish.inference.laplace import fit_laplace
from burnish.linear_bijections import Shift, Triangular
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.scales import Dense
from burnish.studies.toy_logistic import Settings, make_target

OPTIONS = {"num_samples": 256, "max_rounds": 50, "stop_early": True, "plateau": 1e-3}


def climb(target, start, **options):
    return climb_rounds(target, start, **{**OPTIONS, **options}, generator=make_generator(0))


def test_one_round_finds_an_exact_gaussian_from_anywhere():
    target = regression()
    mean, covariance, log_evidence = regression_truth(target)
    far = Gaussian(mean + 3.0, Dense(3.0 * torch.eye(len(mean), dtype=torch.float64)))
    rounds = climb(target, far, max_rounds=1)
    torch.testing.assert_close(rounds.gaussian.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rounds.gaussian.scale.covariance(), covariance, rtol=1e-9, atol=1e-9)
    assert elbo(target, rounds.gaussian, generator=make_generator(1)).value == pytest.approx(log_evidence, abs=1e-8)


@pytest.mark.parametrize("make", [binary, classification])
def test_it_ends_where_averages_are_those_of_the_best_gaussian(make):
    """Gradients average to zero, and the precision is what the curvature is on average, by many other draws."""
    target = make(num_points=30, prior_precision=0.3)
    start = fit_laplace(target).posterior
    rounds = climb(target, start, num_samples=4096)
    assert rounds.converged
    slopes = []  # in standard deviations
    for gaussian in (start, rounds.gaussian):
        draws = gaussian.sample(40_000, generator=make_generator(5), noise="antithetic")
        slopes.append(float(gaussian.scale.transpose_matmul(target.log_prob_and_grad(draws)[1].mean(0)).norm()))
    assert slopes[1] < min(0.1, 0.2 * slopes[0])
    root = rounds.gaussian.scale
    curvature = torch.stack([full_hessian(target, theta) for theta in draws[:: len(draws) // 4000]]).mean(0)
    curvature.diagonal().add_(target.prior_precision)
    turned = root.transpose_matmul(root.transpose_matmul(curvature).T)  # the unit matrix, where they agree
    assert float((turned - torch.eye(target.dim, dtype=torch.float64)).norm()) < 0.2
    at_mode = start.scale.transpose_matmul(start.scale.transpose_matmul(curvature).T)
    assert float((at_mode - torch.eye(target.dim, dtype=torch.float64)).norm()) > 0.25


def test_averages_over_draws_cost_one_hessian_and_are_unbiased():
    target = classification(num_points=300)
    draws = torch.randn(64, target.dim, generator=make_generator(2), dtype=torch.float64)
    truth = torch.stack([full_hessian(target, theta) for theta in draws]).mean(0)
    turns = [full_hessian(target, draws.roll(shift, 0)) for shift in range(len(draws))]  # every point at every draw, once
    torch.testing.assert_close(torch.stack(turns).mean(0), truth, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_rows", [1, 7, 64, 1000])
def test_each_point_is_taken_at_one_draw_in_turn(num_rows, monkeypatch):
    monkeypatch.setattr("burnish.inference.curvature._MIN_ROWS", num_rows)
    monkeypatch.setattr("burnish.inference.curvature._CHUNK_ENTRIES", {"cpu": 1})
    target = classification(num_points=100, weighted=True)
    draws = torch.randn(6, target.dim, generator=make_generator(2), dtype=torch.float64)
    parts = []
    for number, theta in enumerate(draws):
        part = target.data.subset(torch.arange(number, 100, 6))
        parts.append(full_hessian(type(target)(target.model, part, 1.0), theta))
    torch.testing.assert_close(full_hessian(target, draws), torch.stack(parts).sum(0), rtol=1e-10, atol=1e-10)


def test_noise_of_gradients_hardly_moves_the_mean(monkeypatch):
    """Of several runs, in squared standard deviations of all directions together: less than without the last move."""
    target = classification(num_points=400, num_features=20, num_outputs=8, prior_precision=1.0)
    start = fit_laplace(target).posterior

    def spread():
        runs = [climb_rounds(target, start, **OPTIONS, generator=make_generator(seed)).gaussian for seed in range(6)]
        means = torch.stack([start.scale.solve(run.mean) for run in runs])
        return float(means.var(0).sum())

    settled = spread()
    monkeypatch.setattr(full_gaussian, "_settled", lambda target, gaussian, *others: gaussian)
    assert 0.0 < settled < 0.8 * spread()


def test_the_last_move_of_the_mean_does_not_lower_the_elbo():
    """Gradients point far where the posterior is far from Gaussian."""
    target = binary(num_points=30, prior_precision=1e-6)
    start = fit_laplace(target).posterior
    rounds = climb(target, start)
    reached = elbo(target, rounds.gaussian, num_samples=4000, generator=make_generator(1))
    assert reached.value > float(rounds.trace[:, 0].max()) - 5.0 * (reached.standard_error + float(rounds.trace[-1, 1]))


@pytest.mark.parametrize("seed", range(3))
def test_rounds_that_swing_end_where_gradients_do(seed):
    """Whole ways overshoot there and back between a Gaussian that is too narrow and one that is too wide."""
    settings = Settings()
    target = make_target(settings.prior_precision, settings, make_generator(seed))
    start = fit_laplace(target).posterior
    rounds = climb(target, start, num_samples=4096)
    layers = [Triangular.identity(start.mean), Shift.identity(start.mean)]
    slow = fit_flow(target, start, bijections=layers, generator=make_generator(1), num_samples=32, epsilon=1.0)
    reached = elbo(target, rounds.gaussian, num_samples=20_000, generator=make_generator(2))
    assert reached.value > slow.elbo - 4.0 * math.hypot(reached.standard_error, slow.elbo_standard_error)


def test_rounds_that_swing_for_long_still_go_on(monkeypatch):
    """They become shorter, but no shorter than what is tried at all, and do not pass for converged."""
    monkeypatch.setattr(full_gaussian, "_turns_back", lambda *arguments: True)
    target = classification(num_points=60)
    laplace = fit_laplace(target).posterior
    far = Gaussian(laplace.mean + 5.0, Dense(3.0 * laplace.scale.factor))
    rounds = climb(target, far, max_rounds=10, stop_early=False)
    assert len(rounds.trace) == 10
    assert not rounds.converged
    assert float(rounds.trace[-1, 0]) > float(rounds.trace[4, 0])


def test_all_rounds_are_run_unless_they_may_stop():
    target = classification(num_points=40)
    start = fit_laplace(target).posterior
    few, many = (climb(target, start, max_rounds=12, stop_early=stop) for stop in (True, False))
    assert len(few.trace) < len(many.trace) <= 12


@pytest.mark.parametrize("num_points", [1, 2, 5])
def test_two_draws_and_a_point_are_enough_to_go_on(num_points):
    target = classification(num_points=num_points, dtype=torch.float32)
    rounds = climb(target, fit_laplace(target).posterior, num_samples=2, max_rounds=3)
    assert bool(torch.isfinite(rounds.gaussian.mean).all())
    assert 1 <= len(rounds.trace) <= 3


def test_weak_priors_take_shorter_ways_and_never_fall():
    """Where the whole way lowers the ELBO, a part of it is gone."""
    target = classification(num_points=40, prior_precision=0.003)
    start = fit_laplace(target).posterior
    rounds = climb(target, start)
    trace, errors = rounds.trace.unbind(1)
    assert rounds.converged
    assert bool((trace.diff() > -3.0 * torch.hypot(errors[1:], errors[:-1])).all())
    assert float(trace[-1] - trace[0]) > 20.0
    best = elbo(target, rounds.gaussian, num_samples=2000, generator=make_generator(1))
    assert best.value == pytest.approx(float(trace[-1]), abs=5 * (best.standard_error + float(errors[-1])))
