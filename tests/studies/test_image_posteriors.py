"""Posteriors of image studies: the paper's base by its evidence, streams of their own, and files that are not made again."""

import hashlib
import types

import pytest
import torch
from image_cases import SETTINGS, make_problem, make_setting
from scipy import stats

from burnish.inference.curvature import diagonal_hessian, full_hessian
from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.predictive import predict_at
from burnish.studies import image_posteriors, paper_base
from burnish.studies.image_posteriors import (
    FLOW,
    HMC,
    LA,
    RECENTRED,
    REFINE,
    _spread,
    flow_name,
    posterior,
    prepare,
    temperature,
)
from burnish.studies.image_problem import Setting
from burnish.studies.paper_base import _evidence_maximum, fit_paper_base
from burnish.target import Target


def path_of(problem, name):
    return problem.setting.workspace.folder / "posteriors" / f"{problem.name(name)}.safetensors"


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_papers_precision_has_the_largest_evidence_of_all(paper, structure):
    problem = paper.problem
    target = Target(problem.model, problem.batch("train"), 1.0)
    if structure == "full":
        eigenvalues = torch.linalg.eigvalsh(full_hessian(target, problem.theta).double()).clamp_min(0.0)
    else:
        eigenvalues = diagonal_hessian(target, problem.theta)
    found = _evidence_maximum(problem.theta, eigenvalues)

    def evidence(precision):
        options = {"structure": structure, "recentre": False}
        return fit_laplace(target.with_prior(precision), problem.theta, **options).log_evidence

    grid = paper_base._PRECISIONS
    place = int((grid - found).abs().argmin())
    far = [evidence(float(precision)) for precision in grid[::100]]
    near = [evidence(float(grid[place + step])) for step in (-60, -20, 20, 60)]
    assert evidence(found) > max(far + near) - 1e-6
    assert max(far) - min(far) > 10.0  # it does depend on the precision


def test_the_papers_base_is_laplaces_posterior_at_the_network(paper):
    problem = paper.problem
    base, facts = fit_paper_base(problem)
    assert torch.equal(base.mean, problem.theta)
    target = Target(problem.model, problem.batch("train"), facts["precision"])
    expected = fit_laplace(target, problem.theta, recentre=False).posterior
    noise = torch.randn(3, base.dim, generator=make_generator(1))
    torch.testing.assert_close(base.from_noise(noise), expected.from_noise(noise), rtol=1e-3, atol=1e-4)


def test_a_diagonal_base_is_that_of_the_diagonal(tmp_path):
    problem = make_problem(make_setting("paper", tmp_path, dataset="cifar-100", num_epochs=4))
    base, facts = fit_paper_base(problem)
    target = Target(problem.model, problem.batch("train"), facts["precision"])
    expected = fit_laplace(target, problem.theta, structure="diagonal", recentre=False).posterior
    noise = torch.randn(3, base.dim, generator=make_generator(1))
    torch.testing.assert_close(base.from_noise(noise), expected.from_noise(noise))


def test_under_our_protocol_the_base_has_the_targets_prior(ours):
    base, facts = fit_paper_base(ours.problem)
    expected = fit_laplace(ours.problem.target, ours.problem.theta, recentre=False)
    assert facts["precision"] == ours.problem.target.prior_precision
    assert torch.equal(base.mean, expected.posterior.mean)
    noise = torch.randn(2, base.dim, generator=make_generator(1))
    assert torch.equal(base.from_noise(noise), expected.posterior.from_noise(noise))


def test_a_posterior_is_fitted_once_and_the_same_if_it_is_fitted_again(paper):
    problem = paper.problem
    first = posterior(problem, RECENTRED)
    path = path_of(problem, RECENTRED)
    written = path.stat().st_mtime_ns
    again = posterior(problem, RECENTRED)
    assert path.stat().st_mtime_ns == written
    assert torch.equal(first.draws, again.draws)
    assert first.facts == again.facts
    posterior(problem, LA)  # which draws from a stream of its own
    path.unlink()
    assert torch.equal(posterior(problem, RECENTRED).draws, first.draws)


def test_every_posterior_has_a_stream_of_its_own_that_is_the_same_everywhere(paper, ours):
    seeds = {methods.problem.stream(name).initial_seed() for methods in (paper, ours) for name in (LA, HMC, "flows")}
    assert len(seeds) == 6
    digest = hashlib.sha256(b"cifar-10-paper-0-HMC").digest()  # not `hash`, which differs between processes
    assert paper.problem.stream(HMC).initial_seed() == int.from_bytes(digest[:6], "big")


@pytest.mark.parametrize("protocol", ["paper", "ours"])
@pytest.mark.parametrize("name", [LA, flow_name(1), flow_name(2), RECENTRED, FLOW])
def test_draws_are_of_all_parameters(protocol, name, request):
    problem = request.getfixturevalue(protocol).problem
    fit = posterior(problem, name)
    assert fit.draws.shape == (SETTINGS.num_draws, len(problem.theta))
    assert fit.facts["batch_seconds" if name.startswith("LA-Refine") else "seconds"] > 0.0
    assert set(fit.facts["origin"]) == {"commit", "versions", "device"}
    assert ("elbo" in fit.facts) == (protocol == "ours" or name in (RECENTRED, FLOW))


def test_biases_of_the_papers_hmc_are_from_the_prior(paper):
    fit = posterior(paper.problem, HMC)
    assert fit.draws.shape == (2 * SETTINGS.num_draws, len(paper.problem.theta))
    biases = fit.draws[:, paper.problem.num_weights :].flatten().numpy()
    assert stats.kstest(biases, stats.norm(0.0, paper.problem.target.prior_precision**-0.5).cdf).pvalue > 0.001
    assert fit.facts["kept"] == 2 * SETTINGS.num_draws
    assert fit.facts["converged"]


def test_kept_draws_are_from_all_along_the_chains():
    draws = torch.arange(4.0).view(4, 1, 1) * 100 + torch.arange(11.0).view(1, 11, 1)  # by chain, then in time
    fit = types.SimpleNamespace(posterior=types.SimpleNamespace(draws=draws))
    assert torch.equal(_spread(fit, 3)[..., 0], torch.arange(4.0).view(4, 1) * 100 + torch.tensor([4.0, 7.0, 10.0]))
    assert torch.equal(_spread(fit, 1)[..., 0], torch.arange(4.0).view(4, 1) * 100 + 10.0)
    assert _spread(fit, 11).shape == draws.shape


def test_flows_of_several_seeds_are_those_of_each_alone(tmp_path):
    together, alone = (make_setting("paper", tmp_path / name, num_epochs=4) for name in ("together", "alone"))
    prepare([make_problem(together, seed) for seed in (0, 1)])
    for seed in (1, 0):
        problem = make_problem(alone, seed)
        for length in SETTINGS.lengths:
            own = posterior(problem, flow_name(length))
            other = posterior(make_problem(together, seed), flow_name(length))
            torch.testing.assert_close(own.draws, other.draws, rtol=1e-4, atol=1e-5)
            assert (own.facts["together"], other.facts["together"]) == (2, 4)


def test_flows_that_are_there_are_not_fitted_again(paper):
    names = [flow_name(length) for length in SETTINGS.lengths]
    prepare([paper.problem])
    written = [path_of(paper.problem, name).stat().st_mtime_ns for name in names]
    prepare([paper.problem])
    assert [path_of(paper.problem, name).stat().st_mtime_ns for name in names] == written


def test_draws_of_other_settings_are_refused(paper, image_work):
    posterior(paper.problem, LA)
    other = make_problem(make_setting("paper", image_work, num_splits=201))
    with pytest.raises(ValueError, match="must be made with `num_splits` 201, got 200"):
        posterior(other, LA)


def test_the_temperature_suits_the_held_out_points_best(paper):
    problem, found = paper.problem, temperature(paper.problem)

    def loss(value):
        probs = predict_at(problem.model, problem.theta.unsqueeze(0) / value, problem.features("validation")).probs
        return float(-probs.gather(1, problem.setting.labels("validation").unsqueeze(1)).log().mean())

    assert loss(found) <= min(loss(0.97 * found), loss(1.03 * found), loss(1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the result is not trusted", "ignore:`validation` has far fewer points")
def test_refine_and_its_ladder_leave_draws_and_say_how_far_they_went(tmp_path):
    problem = make_problem(make_setting("paper", tmp_path))
    for name in (image_posteriors.BURNISH, REFINE):
        fit = posterior(problem, name)
        assert fit.draws.shape == (SETTINGS.num_draws, len(problem.theta))
        assert fit.facts["rung"] in ("laplace", "flow", "long flow", "hmc")
    assert fit.facts["precision"] > 0.0


def test_draws_of_another_network_are_refused(tmp_path):
    setting = make_setting("ours", tmp_path)
    draws = posterior(make_problem(setting), RECENTRED).draws
    again = make_problem(setting)
    assert torch.equal(posterior(again, RECENTRED).draws, draws)
    other = make_problem(setting)
    other.digest = "of another one"
    with pytest.raises(ValueError, match=r"must be made with `network`.*Delete it"):
        posterior(other, RECENTRED)


def test_draws_of_another_structure_are_refused(tmp_path, monkeypatch):
    setting = make_setting("ours", tmp_path)
    problem = make_problem(setting)
    assert posterior(problem, RECENTRED).facts["structure"] == "auto"
    monkeypatch.setattr(Setting, "structure", "diagonal")
    problem = make_problem(setting)  # which remembers no Gaussian
    with pytest.raises(ValueError, match=r"must be made with `structure` diagonal, got auto.*Delete it"):
        posterior(problem, RECENTRED)
    path_of(problem, RECENTRED).unlink()
    assert posterior(problem, RECENTRED).facts["structure"] == "diagonal"
