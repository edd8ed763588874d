"""The ladder: where it stops, what each rung is, and what is drawn from it."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from burnish import ladder as ladder_module
from burnish.diagnostics import elbo
from burnish.errors import FitError
from burnish.inference.laplace import fit_laplace
from burnish.inference.variational import fit_vb
from burnish.ladder import RUNGS, Ladder, draw_samples
from burnish.layer_scales import Kronecker
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Dense, Diagonal
from burnish.verdict import judge

sys.path.append(str(Path(__file__).parent / "inference"))
from problems import classification, regression

KINDS = {"laplace": Gaussian, "flow": FlowPosterior, "long flow": FlowPosterior, "hmc": SamplePosterior}
FEW = {"max_steps": 30}


def skewed():
    """Few points and a weak prior: not a Gaussian."""
    return classification(num_points=12, num_features=3, prior_precision=0.05)


def climb(target, method, seed=0, **flow):
    start = torch.zeros(target.dim, dtype=target.data.inputs.dtype)
    return Ladder(method, flow).climb(target, start, target.data.inputs, generator=make_generator(seed))


def test_the_first_rung_is_enough_where_the_posterior_is_gaussian():
    fitted, rungs = climb(regression(), "auto")
    assert [rung.method for rung in rungs] == ["laplace"]
    assert isinstance(fitted.posterior, Gaussian)
    assert rungs[0].verdict.trusted
    assert rungs[0].seconds > 0


@pytest.mark.parametrize(("structure", "kind"), [("full", Dense), ("kron", Kronecker), ("diagonal", Diagonal)])
def test_the_gaussian_has_the_structure_that_is_asked_for(structure, kind):
    target = classification(num_points=40)
    start = torch.zeros(target.dim, dtype=target.data.inputs.dtype)
    ladder = Ladder("laplace", structure=structure)
    fitted, _ = ladder.climb(target, start, target.data.inputs, generator=make_generator(0))
    expected = fit_laplace(target, start, structure=structure).posterior
    for posterior in (fitted.posterior, ladder.repeat("laplace", target, start, generator=make_generator(0)).posterior):
        assert isinstance(posterior.scale, kind)
        assert torch.equal(posterior.mean, expected.mean)
        torch.testing.assert_close(posterior.scale.logdet(), expected.scale.logdet())


def test_it_climbs_where_it_is_not():
    fitted, rungs = climb(skewed(), "auto")
    assert len(rungs) > 1
    assert [rung.method for rung in rungs] == list(RUNGS[: len(rungs)])
    assert [rung.verdict.trusted for rung in rungs] == [False] * (len(rungs) - 1) + [True]
    distances = [rung.verdict.drift.distance for rung in rungs]
    assert distances[-1] < 0.5 * distances[0]
    assert isinstance(fitted.posterior, KINDS[rungs[-1].method])


def test_it_climbs_to_the_top_while_nothing_is_trusted(monkeypatch):
    monkeypatch.setattr(ladder_module, "judge", lambda *a, **k: replace(judge(*a, **k), trusted=False))
    fitted, rungs = climb(classification(num_points=40), "auto", **FEW)
    assert [rung.method for rung in rungs] == list(RUNGS)
    assert isinstance(fitted.posterior, SamplePosterior)
    assert fitted.run.converged
    assert rungs[-1].verdict.rhat == fitted.run.rhat
    assert len(fitted.posterior.samples) <= 1024
    assert torch.equal(fitted.posterior.draws[:, -1], fitted.run.posterior.draws[:, -1])


@pytest.mark.parametrize("method", RUNGS)
def test_a_named_rung_alone_is_judged(method):
    fitted, rungs = climb(classification(num_points=40), method, **FEW)
    assert [rung.method for rung in rungs] == [method]
    assert isinstance(fitted.posterior, KINDS[method])
    assert (fitted.base is not None) is (method in ("flow", "long flow"))
    assert (fitted.run is not None) is (method == "hmc")


@pytest.mark.parametrize("method", RUNGS)
def test_a_rung_repeated_for_other_data(method):
    target = classification(num_points=40)
    start = fit_laplace(target).posterior.mean
    posterior = Ladder("auto", FEW).repeat(method, target, start, generator=make_generator(0)).posterior
    assert isinstance(posterior, KINDS[method])


def failing(*arguments, **options):
    raise FitError("it cannot be.")


def test_a_rung_that_cannot_be_fitted_is_left_out(monkeypatch):
    monkeypatch.setattr(ladder_module, "fit_flow", failing)
    with pytest.warns(UserWarning, match="flow' could not be fitted and is left out: it cannot be"):
        fitted, rungs = climb(skewed(), "auto")
    assert [rung.method for rung in rungs] == ["laplace", "hmc"]
    assert rungs[-1].verdict.trusted
    assert fitted.run.coordinates == "affine"
    with pytest.raises(FitError, match="it cannot be"):
        climb(skewed(), "flow")


def test_flows_stand_on_a_gaussian_that_has_learnt_its_covariance():
    target = classification(num_points=60, num_features=8, num_outputs=6, prior_precision=0.5)
    fitted, rungs = climb(target, "flow")
    assert not torch.equal(fitted.base.mean, fitted.gaussian.mean)
    own, start = (elbo(target, each, generator=make_generator(1)) for each in (fitted.base, fitted.gaussian))
    assert own.value > start.value + 5.0 * (own.standard_error + start.standard_error)
    gain = rungs[0].verdict.elbo_gain  # of all refinement
    assert gain == pytest.approx(rungs[0].verdict.elbo - start.value, abs=10.0 * start.standard_error)


@pytest.mark.parametrize("structure", ["kron", "diagonal"])
def test_flows_stand_at_the_mode_where_no_full_gaussian_does(structure):
    target = classification(num_points=40)
    start = torch.zeros(target.dim, dtype=target.data.inputs.dtype)
    ladder = Ladder("flow", FEW, structure=structure)
    fitted, _ = ladder.climb(target, start, target.data.inputs, generator=make_generator(0))
    assert fitted.base is fitted.gaussian


def test_a_flow_over_the_mode_is_kept_where_its_elbo_is_much_higher(monkeypatch):
    def far(target, start, **options):
        return replace(fit_vb(target, start, **options), posterior=Gaussian(start.mean + 3.0, start.scale))

    monkeypatch.setattr(ladder_module, "fit_vb", far)
    fitted, _ = climb(classification(num_points=40), "flow", **FEW)
    assert fitted.base is fitted.gaussian


def test_a_gaussian_that_cannot_learn_its_covariance_stays_at_the_mode(monkeypatch):
    def refuse(*arguments, **options):
        raise MemoryError("too large.")

    monkeypatch.setattr(ladder_module, "fit_vb", refuse)
    with pytest.warns(UserWarning, match="the Gaussian at the mode stays as it is: too large"):
        fitted, _ = climb(classification(num_points=40), "flow", **FEW)
    assert fitted.base is fitted.gaussian


def test_a_rung_that_cannot_be_repeated_falls_back(monkeypatch):
    target = classification(num_points=40)
    monkeypatch.setattr(ladder_module, "fit_flow", failing)
    with pytest.warns(UserWarning, match="'flow' could not be fitted without some points to score it on: it cannot be"):
        fitted = Ladder("auto").repeat("flow", target, torch.zeros(target.dim).double(), generator=make_generator(0))
    assert isinstance(fitted.posterior, Gaussian)


def test_seconds_include_what_a_rung_stands_on(monkeypatch):
    slow = ladder_module.fit_laplace

    def slowly(*arguments, **options):
        time.sleep(0.3)
        return slow(*arguments, **options)

    monkeypatch.setattr(ladder_module, "fit_laplace", slowly)
    _, rungs = climb(classification(num_points=40), "flow", **FEW)
    assert rungs[0].seconds > 0.3


def test_longer_flows_have_more_layers():
    target = classification(num_points=40)
    short, long = (climb(target, method, **FEW, keep_best=False)[0].posterior for method in ("flow", "long flow"))
    assert len(long.bijections) > len(short.bijections)


def test_draws_to_predict_with():
    generator = make_generator(0)
    target = regression()
    gaussian = fit_laplace(target).posterior
    draws = draw_samples(gaussian, 6, generator=generator)
    torch.testing.assert_close(draws.mean(0), gaussian.mean)  # opposite pairs
    assert draw_samples(gaussian, 5, generator=generator).shape == (5, gaussian.dim)
    samples = torch.arange(40.0).view(40, 1)
    chains = SamplePosterior(samples, num_chains=10)
    assert set(draw_samples(chains, 10, generator=generator).flatten().tolist()) == set(range(3, 40, 4))
    assert len(set(draw_samples(chains, 20, generator=generator).flatten().tolist())) == 20
