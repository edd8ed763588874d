"""Laplace posteriors: exact where they should be, and consistent with their definition elsewhere."""

import math

import pytest
import torch
from problems import binary, classification, features, regression, regression_truth
from test_mode import DEGENERATE

from burnish.errors import FitError
from burnish.inference.curvature import diagonal_hessian, full_hessian
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import STRUCTURES, fit_laplace
from burnish.inference.prior import tune_prior
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.scales import Kronecker
from burnish.target import Target


def test_conjugate_regression_is_exact():
    target = regression()
    mean, covariance, log_evidence = regression_truth(target)
    fit = fit_laplace(target)
    assert torch.allclose(fit.posterior.mean, mean, atol=1e-10)
    assert torch.allclose(fit.posterior.scale.covariance(), covariance, atol=1e-12)
    assert fit.log_evidence == pytest.approx(log_evidence, abs=1e-8)


def test_kronecker_is_exact_for_conjugate_regression_too():
    target = regression()
    fit = fit_laplace(target, structure="kron")
    assert torch.allclose(fit.posterior.scale.covariance(), regression_truth(target)[1], atol=1e-12)
    assert fit.log_evidence == pytest.approx(regression_truth(target)[2], abs=1e-8)


@pytest.mark.parametrize("make", [classification, binary])
def test_precision_is_hessian_plus_prior(make):
    target = make(weighted=True)
    fit = fit_laplace(target)
    eye = torch.eye(target.dim, dtype=torch.float64)
    expected = full_hessian(target, fit.posterior.mean) + 2.0 * eye
    assert torch.allclose(torch.linalg.inv(fit.posterior.scale.covariance()), expected, rtol=1e-8, atol=1e-8)
    fit = fit_laplace(target, structure="diagonal")
    assert torch.allclose(1 / fit.posterior.scale.variance(), diagonal_hessian(target, fit.posterior.mean) + 2.0)


def test_vector_precisions():
    precision = torch.linspace(0.5, 4.0, 16, dtype=torch.float64)
    target = classification(prior_precision=precision)
    fit = fit_laplace(target)
    expected = full_hessian(target, fit.posterior.mean) + precision.diag()
    assert torch.allclose(torch.linalg.inv(fit.posterior.scale.covariance()), expected, rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="'kron' needs one prior precision"):
        fit_laplace(target, structure="kron")


def test_evidence_of_one_parameter_against_quadrature():
    target = binary(num_points=200, num_features=1, bias=False)
    grid = torch.linspace(-6, 6, 20_001, dtype=torch.float64).unsqueeze(1)
    truth = float(target.log_prob(grid).logsumexp(0)) + math.log(12 / 20_000)
    assert fit_laplace(target).log_evidence == pytest.approx(truth, abs=5e-3)


def test_without_recentring_the_mean_is_the_start():
    target = classification()
    start = torch.randn(target.dim, generator=make_generator(2), dtype=torch.float64)
    fit = fit_laplace(target, start, recentre=False)
    assert torch.equal(fit.posterior.mean, start)
    assert fit.iterations == 0
    assert fit.gradient_norm == pytest.approx(float(torch.func.grad(target.log_prob)(start).norm()))


def test_recentring_reports_its_work():
    fit = fit_laplace(classification(), structure="diagonal")
    assert fit.converged
    assert fit.iterations >= 1
    assert fit.gradient_norm < 1e-2
    assert fit.seconds > 0


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", DEGENERATE)
def test_degenerate_data_gives_finite_posteriors(make, structure):
    fit = fit_laplace(make(), structure=structure)
    draws = fit.posterior.sample(10, generator=make_generator(0))
    assert bool(torch.isfinite(draws).all())
    assert math.isfinite(fit.log_evidence)


def test_a_missing_class_keeps_the_uncertainty_of_the_prior_in_its_contrast():
    """Nothing is known of a class that was never seen but that it is rare: its weights vary almost as a priori."""
    target = DEGENERATE[1]()
    variance = target.model.head.to_matrix(fit_laplace(target).posterior.scale.variance())
    assert float(variance[2].mean()) > float(variance[[0, 1, 3]].mean())


def test_single_precision_agrees_with_double():
    rough = fit_laplace(classification(dtype=torch.float32)).posterior
    exact = fit_laplace(classification()).posterior
    assert rough.mean.dtype == torch.float32
    assert torch.allclose(rough.scale.covariance().double(), exact.scale.covariance(), atol=1e-5)


def test_kron_never_forms_a_full_matrix(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 0)
    assert isinstance(fit_laplace(classification(), structure="kron").posterior.scale, Kronecker)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`structure` must be one of 'full', 'kron', 'diagonal', got 'dense'"):
        fit_laplace(classification(), structure="dense")
    with pytest.raises(ValueError, match="`start` must be given without `recentre`"):
        fit_laplace(classification(), recentre=False)


def large_and_separable() -> Target:
    inputs = 30 * features(300, 20, dtype=torch.float32)
    return Target.last_layer(inputs, (inputs[:, 0] > 0).long(), prior_precision=1e-3)


def large_duplicates() -> Target:
    inputs = 10 * features(200, 4, dtype=torch.float32)
    labels = torch.arange(200) % 3
    return Target.last_layer(torch.cat([inputs, inputs], 1), labels, prior_precision=1e-4)


def one_class_only() -> Target:
    return Target.last_layer(
        features(60, 3, dtype=torch.float32), torch.zeros(60).long(), prior_precision=1e-4, num_outputs=3
    )


@pytest.mark.filterwarnings("ignore:the evidence is best at the bound")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", [large_and_separable, large_duplicates, one_class_only])
def test_single_precision_survives_weak_priors_and_degenerate_data(make, structure):
    """Rounding of a float32 Hessian is larger than such a prior: directions that only the prior holds must survive it."""
    target = make()
    fit = fit_laplace(target, structure=structure)
    exact = Target(target.model, target.data.to(dtype=torch.float64), target.prior_precision)
    reference = fit_laplace(exact, structure=structure)
    assert fit.converged
    assert fit.log_evidence == pytest.approx(reference.log_evidence, abs=0.5)
    refined = fit_flow(target, fit.posterior, generator=make_generator(0), max_steps=40)
    prediction = predict(target.model, refined.posterior, target.data.inputs, generator=make_generator(0))
    assert bool(torch.isfinite(prediction.probs).all())
    assert tune_prior(target, structure=structure).prior_precision > 0


def test_what_cannot_fit_is_refused_before_the_search(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**10)
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
    with pytest.raises(MemoryError, match="use structure='kron'"):
        fit_laplace(classification())


def test_targets_beyond_the_numbers_are_a_fit_error():
    target = Target.last_layer(
        features(20, 2, dtype=torch.float32), 1e25 * torch.ones(20), prior_precision=1.0, likelihood=GaussianNoise(1.0)
    )
    with pytest.raises(FitError, match="scale features and targets"):
        fit_laplace(target)
