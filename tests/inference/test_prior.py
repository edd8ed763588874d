"""Prior tuning: against exact evidences, brute force over the path, and the bounds."""

import math

import pytest
import torch
from problems import classification, features, regression, regression_truth

from burnish.batches import Batch
from burnish.inference.laplace import fit_laplace
from burnish.inference.mode import find_mode
from burnish.inference.prior import prior_mean_candidates, tune_prior
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.target import Target


def held_out(target: Target, seed: int = 50, num_points: int = 400) -> Batch:
    """New points labelled by the classifier that labelled the target's own."""
    fresh = classification(num_points=num_points, seed=0)
    inputs = features(num_points, target.model.head.num_features, seed)
    theta = torch.randn(target.dim, generator=make_generator(1), dtype=torch.float64)
    probs = target.model.likelihood.probs(target.model(theta, inputs))
    assert fresh.dim == target.dim
    return Batch(inputs, torch.multinomial(probs, 1, generator=make_generator(seed)).squeeze(1))


def test_evidence_of_conjugate_regression_is_maximal_where_the_exact_one_is():
    target = regression()
    tuned = tune_prior(target)
    grid = [10 ** (k / 40) for k in range(-80, 81)]
    exact = {precision: regression_truth(target.with_prior(precision))[2] for precision in grid}
    best = max(exact, key=exact.__getitem__)
    assert math.log(tuned.prior_precision / best) == pytest.approx(0.0, abs=0.1)
    assert tuned.tuning is not None
    assert tuned.tuning.criterion == "evidence"
    scores = {c.precision: c.score for c in tuned.tuning.candidates}
    exact_there = regression_truth(target.with_prior(tuned.prior_precision))[2]
    assert scores[tuned.prior_precision] == pytest.approx(exact_there, abs=1e-6)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e4])
def test_evidence_is_maximal_with_every_candidate_at_its_own_mode(start):
    target = classification(num_points=100, prior_precision=start)
    tuned = tune_prior(target)
    best = float(fit_laplace(tuned).log_evidence)
    around = [fit_laplace(tuned.with_prior(tuned.prior_precision * factor)).log_evidence for factor in (0.8, 1.25)]
    assert best > max(around)


def test_evidence_at_a_bound_is_said():
    """Labels without any relation to the features: the stronger the prior, the better."""
    labels = torch.randint(3, (50,), generator=make_generator(3))
    target = Target.last_layer(features(50, 2), labels, prior_precision=1.0, bias=False)
    with pytest.warns(UserWarning, match="best at the bound of the prior precision, 100 .*or search wider"):
        tuned = tune_prior(target, precisions=[0.01, 100.0])
    assert tuned.tuning is not None
    assert tuned.tuning.at_bound
    assert tuned.prior_precision == pytest.approx(100.0)


@pytest.mark.filterwarnings("ignore:the validation is best at the bound")
def test_held_out_scores_are_those_of_monte_carlo():
    target = classification(num_points=40)
    validation = held_out(target)
    tuned = tune_prior(target, validation=validation, precisions=[3.0, 0.3])
    assert tuned.tuning is not None
    for precision, score in ((c.precision, c.score) for c in tuned.tuning.candidates):
        posterior = fit_laplace(target.with_prior(precision), structure="kron").posterior
        prediction = predict(target.model, posterior, validation.inputs, num_samples=4000, generator=make_generator(0))
        nll = -float(prediction.probs.log().gather(1, validation.targets.unsqueeze(1)).mean())
        assert -score == pytest.approx(nll, abs=0.02)


@pytest.mark.filterwarnings("ignore:the validation is best at the bound")
def test_held_out_scores_of_regression_are_exact():
    """The predictive is Gaussian, with the posterior's variance plus the noise; also where the former dominates."""
    target = regression(num_points=6, std=0.05)
    validation = Batch(features(50, 4, seed=7), features(50, 2, seed=8))
    tuned = tune_prior(target, validation=validation, precisions=[100.0, 1.0])
    assert tuned.tuning is not None
    for precision, score in ((c.precision, c.score) for c in tuned.tuning.candidates):
        mean, covariance, _ = regression_truth(target.with_prior(precision))
        head, design = target.model.head, target.model.head.augment(validation.inputs)
        block = covariance[:4, :4], covariance[:4, 8:9], covariance[8:9, 8:9]
        joint = torch.cat([torch.cat([block[0], block[1]], 1), torch.cat([block[1].T, block[2]], 1)])
        variance = (design @ joint * design).sum(1, keepdim=True) + 0.05**2
        predictive = torch.distributions.Normal(head(mean, validation.inputs), variance.sqrt())
        assert score == pytest.approx(float(predictive.log_prob(validation.targets).sum(1).mean()), rel=1e-8)


@pytest.mark.filterwarnings("ignore:the validation is best at the bound")
def test_the_best_held_out_candidate_is_taken():
    target = classification(num_points=40)
    validation = held_out(target)
    truth = torch.randn(target.dim, generator=make_generator(1), dtype=torch.float64)
    tuned = tune_prior(target, validation=validation, prior_means=prior_mean_candidates(target.model, truth, validation))
    assert tuned.tuning is not None
    scores = {(c.prior_mean, c.precision): c.score for c in tuned.tuning.candidates}
    assert {name for name, _ in scores} == {"zero", "head", "scaled head"}
    assert max(scores, key=scores.__getitem__) == (tuned.tuning.prior_mean, tuned.prior_precision)
    assert tuned.tuning.prior_mean in ("head", "scaled head")  # the true parameters are the better guess
    assert isinstance(tuned.prior_mean, torch.Tensor)


def test_the_scaled_head_has_the_temperature_of_the_validation_data():
    target = classification()
    theta = 5.0 * find_mode(target).theta
    candidates = prior_mean_candidates(target.model, theta, target.data)
    assert candidates["zero"] == 0.0
    assert candidates["head"] is theta
    ratio = theta / candidates["scaled head"]
    assert float(ratio.std()) < 1e-9
    assert float(ratio[0]) > 2.0


def test_nothing_else_changes():
    target = classification()
    tuned = tune_prior(target)
    assert tuned.data is target.data
    assert tuned.model is target.model
    assert target.tuning is None


def test_it_is_deterministic_and_leaves_the_global_generator_alone():
    target, state = classification(num_points=40), torch.get_rng_state()
    first, second = (tune_prior(target, validation=held_out(target)) for _ in range(2))
    assert first.tuning == second.tuning
    assert torch.equal(torch.get_rng_state(), state)


def test_wrong_arguments_are_refused():
    target = classification()
    with pytest.raises(ValueError, match="`precisions` must be positive and finite, got -1"):
        tune_prior(target, precisions=[1.0, -1.0])
    with pytest.raises(ValueError, match="`precisions` must hold at least one value"):
        tune_prior(target, precisions=[])
    with pytest.raises(ValueError, match="`prior_means` must hold at least one candidate"):
        tune_prior(target, prior_means={})
    with pytest.raises(ValueError, match=r"`validation.inputs` must have shape \(N, 3\) for this head, got \(5, 2\)"):
        tune_prior(target, validation=Batch(torch.zeros(5, 2).double(), torch.zeros(5, dtype=torch.long)))
    with pytest.raises(ValueError, match=r"`targets` must lie in 0\.\.3"):
        tune_prior(target, validation=Batch(torch.zeros(5, 3).double(), torch.full((5,), 9)))
    with pytest.raises(ValueError, match="`structure` must be one of"):
        tune_prior(target, structure="block")
    with pytest.raises(TypeError, match="`validation` must be a Batch, got tuple"):
        tune_prior(target, validation=(target.data.inputs, target.data.targets))
    with pytest.raises(TypeError, match=r"`validation\.inputs` must be torch\.float64"):
        tune_prior(target, validation=target.data.to(dtype=torch.float32))
    with pytest.raises(TypeError, match="`precisions` must be several numbers"):
        tune_prior(target, precisions=3.0)
    with pytest.raises(TypeError, match="`prior_means` must map names to means, got list"):
        tune_prior(target, prior_means=[0.0])
    with pytest.raises(ValueError, match="must be one number to be tuned, got 16 of them"):
        tune_prior(target.with_prior(torch.ones(16, dtype=torch.float64)))


def test_candidates_for_regression_have_no_temperature():
    target = regression()
    assert set(prior_mean_candidates(target.model, torch.zeros(10, dtype=torch.float64), target.data)) == {"zero", "head"}
