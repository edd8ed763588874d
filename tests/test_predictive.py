"""Monte Carlo prediction against closed forms, and its uncertainty measures against their definitions."""

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical

from burnish.heads import LinearHead, Model
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import Gaussian, SamplePosterior
from burnish.predictive import predict
from burnish.scales import Diagonal

INPUTS = torch.randn(7, 3, generator=make_generator(0), dtype=torch.float64)


def gaussian(dim: int, std: float = 0.7) -> Gaussian:
    mean = torch.linspace(-1, 1, dim, dtype=torch.float64)
    return Gaussian(mean, Diagonal(torch.full_like(mean, std)))


def test_regression_moments_are_those_of_the_closed_form():
    model = Model(LinearHead(3, 2), GaussianNoise(0.4))
    posterior = gaussian(8)
    prediction = predict(model, posterior, INPUTS, num_samples=40_000, generator=make_generator(1))
    variance = 0.49 * (INPUTS.square().sum(1) + 1).unsqueeze(1).expand(7, 2)
    tolerance = 5 * float(variance.max().sqrt()) / 200
    assert torch.allclose(prediction.mean, model(posterior.mean, INPUTS), atol=tolerance)
    assert torch.allclose(prediction.epistemic_variance, variance, rtol=5 * math.sqrt(2 / 40_000))
    assert torch.equal(prediction.variance, prediction.epistemic_variance + 0.4**2)
    with pytest.raises(TypeError, match="`probs` exist for classification only"):
        _ = prediction.probs


def test_a_binary_logit_against_quadrature():
    model = Model(LinearHead(3, 1), Bernoulli())
    posterior = gaussian(4)
    prediction = predict(model, posterior, INPUTS, num_samples=100_000, generator=make_generator(1))
    mean = model(posterior.mean, INPUTS).squeeze(1)
    std = 0.7 * (INPUTS.square().sum(1) + 1).sqrt()
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = (-0.5 * grid**2).exp() / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    truth = ((mean.unsqueeze(1) + std.unsqueeze(1) * grid).sigmoid() * density).sum(1)
    assert prediction.probs.shape == (7, 2)
    assert torch.allclose(prediction.probs[:, 1], truth, atol=5 * 0.5 / math.sqrt(100_000))
    assert torch.allclose(prediction.probs.sum(1), torch.ones(7, dtype=torch.float64))


def test_uncertainties_follow_their_definitions():
    model = Model(LinearHead(3, 5), Categorical())
    prediction = predict(model, gaussian(20), INPUTS, num_samples=50, generator=make_generator(1))
    assert prediction.samples is not None
    assert prediction.samples.shape == (50, 7, 5)
    assert torch.allclose(prediction.probs, prediction.samples.mean(0))
    assert torch.allclose(prediction.entropy, TorchCategorical(prediction.probs).entropy())
    expected = TorchCategorical(prediction.samples).entropy().mean(0)
    assert torch.allclose(prediction.mutual_information, prediction.entropy - expected)
    assert bool((prediction.mutual_information >= 0).all())
    assert bool((prediction.entropy <= math.log(5)).all())


def test_one_sample_has_no_mutual_information():
    model = Model(LinearHead(3, 5), Categorical())
    certain = SamplePosterior(torch.randn(1, 20, generator=make_generator(2), dtype=torch.float64))
    prediction = predict(model, certain, INPUTS, num_samples=4, generator=make_generator(1))
    assert torch.allclose(prediction.mutual_information, torch.zeros(7, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(prediction.probs, model(certain.samples[0], INPUTS).softmax(-1))


def test_certain_predictions_have_zero_entropy_not_nan():
    model = Model(LinearHead(3, 2), Categorical())
    far = SamplePosterior(1e6 * torch.ones(1, 8, dtype=torch.float64).cumsum(1))
    assert bool(torch.isfinite(predict(model, far, INPUTS, generator=make_generator(1)).entropy).all())


@pytest.mark.parametrize("likelihood", [Categorical(), GaussianNoise(0.1)])
def test_chunks_do_not_change_the_result(likelihood, monkeypatch):
    model = Model(LinearHead(3, 5), likelihood)
    whole = predict(model, gaussian(20), INPUTS, generator=make_generator(1))
    monkeypatch.setattr("burnish.predictive._CHUNK_ENTRIES", 250)
    parts = predict(model, gaussian(20), INPUTS, generator=make_generator(1))
    assert torch.allclose(whole.mean, parts.mean)
    assert torch.allclose(whole.samples, parts.samples)
    without = predict(model, gaussian(20), INPUTS, generator=make_generator(1), keep_samples=False)
    assert without.samples is None
    assert torch.equal(without.mean, parts.mean)


def test_wrong_arguments_are_refused():
    model = Model(LinearHead(3, 5), Categorical())
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(N, 3\) for this head, got \(7, 4\)"):
        predict(model, gaussian(20), torch.zeros(7, 4).double(), generator=make_generator(1))
    with pytest.raises(TypeError, match="`posterior` must have `sample`, got Tensor"):
        predict(model, torch.zeros(20), INPUTS, generator=make_generator(1))
    with pytest.raises(TypeError, match=r"`inputs` must be a torch\.Tensor, got ndarray"):
        predict(model, gaussian(20), INPUTS.numpy(), generator=make_generator(1))
    with pytest.raises(ValueError, match="`num_samples` must be at least 1, got 0"):
        predict(model, gaussian(20), INPUTS, num_samples=0, generator=make_generator(1))
    with pytest.raises(ValueError, match="`inputs` must be finite, got 21 NaN"):
        predict(model, gaussian(20), INPUTS * float("nan"), generator=make_generator(1))
    with pytest.raises(TypeError, match=r"`inputs` must be torch\.float64"):
        predict(model, gaussian(20), INPUTS.float(), generator=make_generator(1))
