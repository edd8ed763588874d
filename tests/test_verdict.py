"""The verdict: known answers on Gaussian targets, and when not to trust."""

import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from burnish.drift import Drift
from burnish.held_out import HeldOut, Score
from burnish.inference.flow import fit_flow
from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.posteriors import Gaussian, SamplePosterior
from burnish.scales import Diagonal
from burnish.verdict import Verdict, judge, with_held_out

sys.path.append(str(Path(__file__).parent / "inference"))
from problems import classification, regression


@cache
def laplace(make):
    target = make()
    return target, fit_laplace(target).posterior


# Against the target


def test_an_exact_posterior(generator):
    """Conjugate regression: the Gaussian is the posterior, every weight is equal, and nothing can be gained."""
    target, posterior = laplace(regression)
    verdict = judge(target, posterior, base=posterior, num_draws=200, generator=generator)
    assert verdict.khat < 0.1
    assert verdict.ess == pytest.approx(200, rel=1e-6)
    assert verdict.num_draws == 200
    assert verdict.elbo == pytest.approx(fit_laplace(target).log_evidence, abs=1e-6)
    assert (verdict.elbo_gain, verdict.elbo_gain_standard_error) == (0.0, 0.0)


def test_a_good_posterior(generator):
    target, posterior = laplace(classification)
    verdict = judge(target, posterior, num_draws=500, generator=generator)
    assert verdict.khat < 0.7
    assert 100 < verdict.ess < 500
    assert verdict.elbo < fit_laplace(target).log_evidence + 1.0


def test_a_posterior_that_is_far_too_narrow(generator):
    target, posterior = laplace(classification)
    narrow = Gaussian(posterior.mean, Diagonal(0.2 * posterior.scale.covariance().diagonal().sqrt()))
    verdict = judge(target, narrow, num_draws=500, generator=generator)
    assert verdict.khat > 0.7
    assert verdict.ess < 100


def test_what_a_flow_gains_is_what_its_fit_says(generator):
    target = classification(num_points=15, prior_precision=0.2)
    base = fit_laplace(target).posterior
    fit = fit_flow(target, base, generator=make_generator(1))
    verdict = judge(target, fit.posterior, base=base, num_draws=1000, generator=generator)
    assert verdict.elbo_gain > 3 * verdict.elbo_gain_standard_error
    assert verdict.elbo_gain == pytest.approx(fit.gain, abs=0.5)
    # the same draws for both: the difference is known better than either
    assert verdict.elbo_gain_standard_error < 0.2
    assert f"refinement gained {verdict.elbo_gain:.2f} ± " in str(verdict)
    assert verdict.trusted


def test_the_number_of_draws_follows_the_data(generator, monkeypatch):
    target, posterior = laplace(regression)
    for entries, expected in ((2**27, 1000), (30 * 2 * 300, 300), (1, 100)):
        monkeypatch.setattr("burnish.verdict._ENTRIES", entries)
        assert judge(target, posterior, generator=generator).num_draws == expected


def test_the_same_generator_gives_the_same_verdict(untouched_rng):
    target, posterior = laplace(classification)
    first, second = (judge(target, posterior, num_draws=100, generator=make_generator(3)) for _ in range(2))
    assert first == second
    assert first != judge(target, posterior, num_draws=100, generator=make_generator(4))


def test_too_few_draws(generator):
    target, posterior = laplace(regression)
    with pytest.raises(ValueError, match=r"`num_draws` must be at least 25, got 24\. The tail of the weights needs"):
        judge(target, posterior, num_draws=24, generator=generator)


def test_samples_have_no_weights_but_a_drift(generator):
    target, posterior = laplace(regression)
    samples = SamplePosterior(posterior.sample(600, generator=generator))
    verdict = judge(target, samples, generator=generator)
    assert verdict.trusted
    assert (verdict.khat, verdict.ess, verdict.elbo, verdict.rhat, verdict.num_draws) == (None, None, None, None, 600)
    assert len(str(verdict).split("\n")) == 2
    off = judge(target, SamplePosterior(samples.samples + 1.0), generator=generator)
    assert not off.trusted
    assert "its predictions differ from those of the exact posterior by" in off.reason


def test_chains_that_disagree(generator):
    """Each chain keeps to a half of the first weight's distribution: right together, and not converged."""
    target, posterior = laplace(regression)
    draws = posterior.sample(400, generator=generator)
    draws = draws[draws[:, 0].argsort()]
    verdict = judge(target, SamplePosterior(draws, num_chains=2), generator=generator)
    assert verdict.rhat > 1.1
    assert not verdict.trusted
    assert f"its chains have not converged: R-hat {verdict.rhat:.3f} after 400 draws." == verdict.reason


@pytest.mark.parametrize(("divergences", "trusted"), [(0, True), (1, True), (30, False)])
def test_the_run_that_samples_come_from(divergences, trusted, generator):
    target, posterior = laplace(regression)
    run = fit_hmc(target, posterior, generator=generator, min_draws=50, max_draws=50, min_ess=1.0, max_rhat=1.1)
    run = replace(run, divergences=divergences, rhat=1.005)
    verdict = judge(target, SamplePosterior(run.posterior.samples[::7]), run=run, generator=generator)
    assert (verdict.rhat, verdict.num_draws, verdict.divergences) == (run.rhat, 3200, divergences)
    assert verdict.trusted is trusted
    apart = judge(target, run.posterior, run=replace(run, rhat=1.02), generator=generator)
    assert not apart.trusted
    assert "its chains have not converged: R-hat 1.020" in apart.reason
    few = judge(target, run.posterior, run=replace(run, converged=False, ess_bulk=20.0, relocated=3), generator=generator)
    assert few.reason == "its chains have not converged: 20 effective of 3200 draws."
    assert not few.trusted
    assert "3 chains could not move and started elsewhere" in str(few)
    assert (f"{divergences} divergences" in str(verdict)) is (divergences > 0)


BAD = {
    "another dimension": (
        {"posterior": Gaussian(torch.zeros(3), Diagonal(torch.ones(3)))},
        ValueError,
        r"`posterior` must have the \d+ dimensions of the target, got 3\. Pass the target that it was fitted to",
    ),
    "no posterior": ({"posterior": torch.zeros(4)}, TypeError, "`posterior` must be samples, or have a density, got Tensor"),
    "raw inputs": (
        {"inputs": torch.zeros(5, 7, dtype=torch.float64)},
        ValueError,
        r"`inputs` must have shape \(N, \d\) for this head, got \(5, 7\)\. Pass features",
    ),
    "a run beside a density": (
        {"run": "anything"},
        ValueError,
        r"`run` must come with the samples it made, got a density beside it\. Pass `run.posterior`",
    ),
    "a base beside samples": (
        {"posterior": SamplePosterior(torch.zeros(9, 16, dtype=torch.float64)), "base": "anything"},
        ValueError,
        "`base` must come with a density, got samples beside it",
    ),
    "draws of samples": (
        {"posterior": SamplePosterior(torch.zeros(9, 16, dtype=torch.float64)), "num_draws": 50},
        ValueError,
        "`num_draws` must come with a density, got samples beside it",
    ),
    "no run": (
        {"posterior": SamplePosterior(torch.zeros(9, 16, dtype=torch.float64)), "run": "x"},
        TypeError,
        "`run` must be a HmcFit, got str",
    ),
    "no scores": ({"held_out": 0.3}, TypeError, "`held_out` must be a HeldOut, got float"),
    "no base": ({"base": "x"}, TypeError, "`base` must be a DensityPosterior, got str"),
    "a base of another dimension": (
        {"base": Gaussian(torch.zeros(3), Diagonal(torch.ones(3)))},
        ValueError,
        r"`base` must have the 16 dimensions of the target, got 3\.",
    ),
    "no generator": ({"generator": 0}, TypeError, "`generator` must be a torch.Generator, got int"),
    "no target": ({"target": object()}, TypeError, "`target` must be a Target, got object"),
    "no tensor": ({"inputs": [[1.0]]}, TypeError, "`inputs` must be a torch.Tensor, got list"),
}


@pytest.mark.parametrize("given", BAD)
def test_bad_input(given, generator):
    target, posterior = laplace(classification)
    arguments, error, message = BAD[given]
    with pytest.raises(error, match=message):
        judge(**{"target": target, "posterior": posterior, "generator": generator, **arguments})


# The words


def held_out(over_network=0.0, over_temperature=0.0, error=0.01):
    score = Score(0.5, 0.1)
    return HeldOut(
        1234,
        Score(0.5 + over_network, 0.1),
        Score(0.5 + over_temperature, 0.1),
        score,
        over_network,
        error,
        over_temperature,
        error,
    )


@pytest.mark.parametrize(
    ("scores", "trusted", "reason"),
    [
        (held_out(0.1, 0.1), True, "held-out NLL 0.5000, the network 0.6000, temperature scaling 0.6000 (1,234 points)"),
        (held_out(-0.019, -0.019), True, "It cannot be told from the network or temperature scaling"),
        (held_out(0.1, -0.019), True, "It cannot be told from temperature scaling"),
        (held_out(-0.03, 0.1, 0.02), False, "so few points cannot tell it from the network, and it looks worse"),
        (held_out(-0.0005, -0.0005, 0.0001), True, "It cannot be told from"),  # sure, but of nothing that matters
        (held_out(-0.01, -0.06, 0.02), False, "it predicts worse than temperature scaling"),
        (held_out(-0.021, 0.1), False, "it predicts worse than the network: held-out NLL 0.5000, the network 0.4790"),
        (held_out(0.1, -0.021), False, "worse than temperature scaling: held-out NLL 0.5000, the network 0.6000"),
        (held_out(math.nan, 0.1), False, "held-out NLL"),
        (held_out(0.1, -math.inf, math.nan), False, "held-out NLL"),
    ],
)
def test_whether_to_trust(scores, trusted, reason, generator):
    verdict = judge(*laplace(regression), held_out=scores, num_draws=25, generator=generator)
    assert verdict.trusted is trusted
    assert reason in verdict.reason
    assert verdict.held_out is scores
    first, second = str(verdict).split("\n")
    assert first == f"{'trusted' if trusted else 'not trusted'}: {verdict.reason}"
    assert second.startswith("posterior: predictions 0.0")
    assert "25 of 25 draws effective" in second


def test_without_points_held_out(generator):
    """The posterior is what is asked about; `refine` asks about the network as well."""
    verdict = judge(*laplace(regression), num_draws=25, generator=generator)
    assert verdict.trusted
    assert "its predictions are those of the exact posterior" in verdict.reason
    asked = with_held_out(verdict, None)
    assert not asked.trusted
    assert "no held-out data was given, so nothing shows that it predicts better than the network did" in asked.reason


def test_a_wrong_posterior_is_not_trusted_however_well_it_predicts(generator):
    target, posterior = laplace(regression)
    off = Gaussian(posterior.mean + 1.0, posterior.scale)
    verdict = judge(target, off, held_out=held_out(0.1, 0.1), generator=generator)
    assert not verdict.trusted
    assert "differ from those of the exact posterior" in verdict.reason
    assert verdict.held_out is not None


@pytest.mark.parametrize("khat", [-math.inf, 0.69, 0.7, math.inf, None])
def test_two_lines_whatever_khat_is(khat):
    drift = Drift(0.004, 0.002, 0.03, 0.8, 1.5, False, 96, 800)
    verdict = Verdict(True, "good.", drift, khat, 12.3, 100, -5.0, 0.0, 0.0)
    assert len(str(verdict).split("\n")) == 2
    assert ("k-hat" in str(verdict)) is (khat is not None)
    assert "flow" not in str(verdict)
