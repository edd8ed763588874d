"""Predictions by every method against closed forms, quadrature and each other; uncertainties against their definitions."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical as TorchCategorical

from burnish import integrals
from burnish.flat_network import flatten_network
from burnish.heads import LinearHead, Model
from burnish.inference.laplace import fit_laplace
from burnish.layer_scales import Kronecker
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import Gaussian, SamplePosterior, WeightedSamples
from burnish.predictive import predict
from burnish.scales import Dense, Diagonal
from burnish.target import Target
from networks import randomised

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


def dense(dim: int, std: float = 0.7, seed: int = 0) -> Gaussian:
    """A Gaussian whose coordinates are correlated."""
    generator = make_generator(seed)
    root = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    mean = torch.randn(dim, generator=generator, dtype=torch.float64)
    covariance = std**2 * (root @ root.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64))
    return Gaussian(mean, Dense.from_covariance(covariance))


def logit_truth(posterior: Gaussian, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of one logit under the posterior, written out."""
    rows = torch.cat([INPUTS, torch.ones(7, 1, dtype=torch.float64)], dim=1)
    return rows @ posterior.mean, ((rows @ posterior.scale.covariance()) * rows).sum(1)


@pytest.mark.parametrize("method", ["gauss-hermite", "trapezoid"])
@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()])
def test_two_classes_against_many_draws(method, likelihood):
    outputs = 1 if isinstance(likelihood, Bernoulli) else 2
    model = Model(LinearHead(3, outputs), likelihood)
    posterior = dense(4 * outputs)
    found = predict(model, posterior, INPUTS, method=method)
    drawn = predict(model, posterior, INPUTS, num_samples=400_000, generator=make_generator(1), keep_samples=False)
    tolerance = {"atol": 5 * 0.5 / math.sqrt(400_000), "rtol": 0}
    torch.testing.assert_close(found.probs, drawn.probs, **tolerance)
    torch.testing.assert_close(found.epistemic_variance, drawn.epistemic_variance, **tolerance)
    torch.testing.assert_close(found.mutual_information, drawn.mutual_information, atol=5e-3, rtol=0)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(7, dtype=torch.float64))


def test_one_logit_by_every_method_against_quadrature():
    model = Model(LinearHead(3, 1), Bernoulli())
    posterior = dense(4, std=1.5)
    mean, variance = logit_truth(posterior, model)
    truth = integrals.trapezoid(torch.sigmoid, mean, variance)
    exact = predict(model, posterior, INPUTS, method="trapezoid")
    torch.testing.assert_close(exact.probs[:, 1], truth)
    torch.testing.assert_close(
        predict(model, posterior, INPUTS, method="probit").probs[:, 1], integrals.probit(mean, variance)
    )
    for method in ("mc", "mc-outputs", "linearised"):
        drawn = predict(model, posterior, INPUTS, method=method, num_samples=100_000, generator=make_generator(2))
        error = 5 * (exact.epistemic_variance[:, 1] / 100_000).sqrt()
        assert bool(((drawn.probs[:, 1] - truth).abs() < error).all()), method
    assert float((predict(model, posterior, INPUTS, method="probit").probs[:, 1] - truth).abs().max()) < 0.02
    assert float((predict(model, posterior, INPUTS, method="bridge").probs[:, 1] - truth).abs().max()) < 0.2


@pytest.mark.parametrize("structure", ["diagonal", "dense", "kronecker"])
@pytest.mark.parametrize("num_classes", [3, 10, 100])
def test_draws_of_outputs_predict_as_draws_of_parameters_do(num_classes, structure):
    """Against 1e6 draws of the outputs, written out here; more classes, more numbers that may differ by chance."""
    head = LinearHead(3, num_classes)
    model = Model(head, Categorical())
    posterior = {"diagonal": gaussian, "dense": dense}.get(structure, lambda dim: kronecker(head))(head.dim)
    inputs = INPUTS[: 1 if num_classes == 100 else 2]
    rows = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
    jacobian = torch.stack([head.from_matrix(torch.eye(num_classes).double().unsqueeze(-1) * row) for row in rows])
    root = torch.linalg.cholesky(jacobian @ posterior.scale.covariance() @ jacobian.mT)
    total = torch.zeros(len(inputs), num_classes, dtype=torch.float64)
    generator = make_generator(7)
    for _ in range(20):
        noise = torch.randn(50_000, num_classes, generator=generator, dtype=torch.float64)
        draws = head(posterior.mean, inputs).unsqueeze(1) + noise @ root.mT
        total += draws.softmax(-1).mean(1) / 20
    for method in ("mc", "mc-outputs"):
        count = 20_000
        found = predict(model, posterior, inputs, method=method, num_samples=count, generator=generator)
        error = 5.5 * ((found.epistemic_variance / count) + (found.epistemic_variance / 1e6)).sqrt() + 1e-6
        assert bool(((found.probs - total).abs() < error).all()), method


def kronecker(head: LinearHead) -> Gaussian:
    generator = make_generator(3)
    roots = [torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (head.num_outputs, head.num_features + 1)]
    left, right = (root @ root.T / len(root) for root in roots)
    mean = torch.randn(head.dim, generator=generator, dtype=torch.float64)
    return Gaussian(mean, Kronecker.from_precision(left, right, 1.0, head))


@pytest.mark.parametrize("method", ["linearised", "mc-outputs"])
def test_regression_of_a_linear_head(method):
    model = Model(LinearHead(3, 2), GaussianNoise(0.4))
    posterior = dense(8)
    found = predict(model, posterior, INPUTS, method=method, num_samples=40_000, generator=make_generator(0))
    jacobian = torch.func.jacrev(lambda theta: model(theta, INPUTS))(posterior.mean)
    variance = (jacobian @ posterior.scale.covariance() @ jacobian.mT).diagonal(dim1=1, dim2=2)
    exact = method == "linearised"
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if exact else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(found.mean, model(posterior.mean, INPUTS), **tolerance)
    torch.testing.assert_close(found.epistemic_variance, variance, **tolerance)
    torch.testing.assert_close(found.variance, found.epistemic_variance + 0.16)
    assert (found.samples is None) is exact


def tanh_network(num_outputs: int, num_inputs: int = 3) -> nn.Module:
    return randomised(nn.Sequential(nn.Linear(num_inputs, 4), nn.Tanh(), nn.Linear(4, num_outputs))).double().eval()


def test_a_linearised_network_against_its_jacobian():
    network = tanh_network(3)
    model, theta = flatten_network(network, example=INPUTS)
    posterior = Gaussian(theta, dense(len(theta), std=0.5).scale)
    found = predict(model, posterior, INPUTS, method="linearised", num_samples=30, generator=make_generator(4))
    jacobian = torch.func.jacrev(lambda value: model(value, INPUTS))(theta)
    tangents = posterior.sample(30, generator=make_generator(4)) - theta
    outputs = network(INPUTS) + torch.einsum("ncd,sd->snc", jacobian, tangents)
    torch.testing.assert_close(found.samples, outputs.softmax(-1))
    covariance = jacobian @ posterior.scale.covariance() @ jacobian.mT
    variance = covariance.diagonal(dim1=1, dim2=2)
    probit = predict(model, posterior, INPUTS, method="probit")
    torch.testing.assert_close(probit.probs, integrals.multiclass_probit(network(INPUTS), variance))
    projection = torch.eye(3, dtype=torch.float64) - 1 / 3
    contrasts = (projection @ covariance @ projection).diagonal(dim1=1, dim2=2)
    concentration = integrals.bridge(network(INPUTS), contrasts)
    bridge = predict(model, posterior, INPUTS, method="bridge")
    torch.testing.assert_close(bridge.probs, concentration / concentration.sum(-1, keepdim=True))
    dirichlet = torch.distributions.Dirichlet(concentration)
    torch.testing.assert_close(bridge.epistemic_variance, dirichlet.variance)


def test_the_entropy_that_the_bridge_expects_is_that_of_draws():
    model = Model(LinearHead(3, 4), Categorical())
    found = predict(model, dense(16), INPUTS, method="bridge")
    assert found.expected_entropy is not None
    total = found.probs * (1 - found.probs) / found.epistemic_variance - 1  # the sum of concentrations, from any class
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = torch.distributions.Dirichlet(found.probs * total).sample((40_000,))
    entropy = TorchCategorical(draws).entropy()
    error = 5 * entropy.std(0) / 200
    assert bool(((found.expected_entropy - entropy.mean(0)).abs() < error).all())


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_bridge_in_single_precision_where_the_common_shift_varies_most(structure):
    """Softmax gives no curvature to what all logits share, so that under a weak prior its variance drowns the others."""
    generator = make_generator(0)
    inputs = torch.randn(2000, 8, generator=generator, dtype=torch.float64)
    labels = (inputs[:, :4] + 0.5 * torch.randn(2000, 4, generator=generator, dtype=torch.float64)).argmax(1)
    found = []
    for dtype in (torch.float64, torch.float32):
        target = Target.last_layer(inputs.to(dtype), labels, prior_precision=1e-4, num_outputs=4)
        posterior = fit_laplace(target, structure=structure).posterior
        found.append(predict(target.model, posterior, inputs[:100].to(dtype), method="bridge").probs.double())
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=0)


def test_the_variance_over_antithetic_draws_is_not_too_large():
    """Of a linear head and regression it is known; pairs have their mean exactly, so nothing is to be corrected."""
    model = Model(LinearHead(3, 1), GaussianNoise(0.1))
    posterior = dense(4)
    exact = predict(model, posterior, INPUTS, method="linearised").epistemic_variance
    for method, noise in (("mc", "antithetic"), ("mc-outputs", "antithetic"), ("mc", "iid"), ("mc-outputs", "iid")):
        options = {"method": method, "noise": noise, "num_samples": 4, "generator": make_generator(0)}
        found = torch.stack([predict(model, posterior, INPUTS, **options).epistemic_variance for _ in range(4000)]).mean(0)
        torch.testing.assert_close(found, exact, rtol=0.12, atol=0)


@pytest.mark.parametrize("method", ["mc", "mc-outputs", "linearised", "probit", "bridge"])
def test_no_inputs_no_predictions(method):
    model = Model(LinearHead(3, 4), Categorical())
    found = predict(model, dense(16), INPUTS[:0], method=method, generator=make_generator(0))
    assert found.probs.shape == (0, 4)


def test_autocast_does_not_round_averages():
    model = Model(LinearHead(3, 4), Categorical())
    posterior = Gaussian(dense(16).mean.float(), Diagonal(torch.ones(16)))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = [
            predict(model, posterior, INPUTS.float(), method=m, generator=make_generator(0)) for m in ("mc", "probit")
        ]
    exact = [predict(model, posterior, INPUTS.float(), method=m, generator=make_generator(0)) for m in ("mc", "probit")]
    for one, other in zip(rounded, exact, strict=True):
        assert torch.equal(one.probs, other.probs)


def test_quadrature_keeps_small_variances_in_single_precision():
    model = Model(LinearHead(1, 1, bias=False), Bernoulli())
    posterior = Gaussian(torch.tensor([5.0]), Diagonal(torch.tensor([0.01])))
    found = predict(model, posterior, torch.ones(1, 1), method="trapezoid").epistemic_variance
    slope = float(torch.tensor(5.0).sigmoid() * torch.tensor(-5.0).sigmoid())
    assert float(found[0, 1]) == pytest.approx((0.01 * slope) ** 2, rel=0.01)


def test_a_linear_head_is_its_own_tangent():
    model = Model(LinearHead(3, 4), Categorical())
    same = [
        predict(model, dense(16), INPUTS, method=method, generator=make_generator(1))
        for method in ("linearised", "mc-outputs")
    ]
    assert torch.equal(same[0].probs, same[1].probs)


def test_networks_that_run_one_by_one_are_linearised_too():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    network = randomised(Recurrent().double()).eval()
    inputs = torch.randn(3, 4, 2, generator=make_generator(0), dtype=torch.float64)
    model, theta = flatten_network(network, example=inputs)
    posterior = Gaussian(theta, Diagonal(torch.full_like(theta, 1e-4)))
    found = predict(model, posterior, inputs, method="probit")
    torch.testing.assert_close(found.probs, network(inputs).softmax(-1).detach(), atol=1e-4, rtol=0)


def test_quasi_random_and_antithetic_draws_through_predict():
    model = Model(LinearHead(3, 4), Categorical())
    posterior = dense(16, std=0.2)
    truth = predict(model, posterior, INPUTS, num_samples=200_000, generator=make_generator(0), keep_samples=False).probs
    errors = {
        noise: torch.stack(
            [
                (predict(model, posterior, INPUTS, num_samples=16, noise=noise, generator=make_generator(k)).probs - truth)
                for k in range(40)
            ]
        ).square().mean().sqrt()
        for noise in ("iid", "antithetic", "sobol")
    }  # fmt: skip
    assert float(errors["antithetic"]) < 0.5 * float(errors["iid"])
    assert float(errors["sobol"]) < 0.5 * float(errors["iid"])


@pytest.mark.parametrize("num_samples", [1, 5, 6])
def test_antithetic_draws_of_outputs(num_samples):
    """Each is as one that is drawn alone, and they come in pairs around the outputs' mean."""
    model = Model(LinearHead(3, 2), GaussianNoise(0.1))
    posterior = dense(8)
    options = {"method": "mc-outputs", "noise": "antithetic", "generator": make_generator(0)}
    found = predict(model, posterior, INPUTS, num_samples=num_samples, **options)
    assert found.samples.shape == (num_samples, 7, 2)
    half = (num_samples + 1) // 2
    for one, other in zip(found.samples[: num_samples - half], found.samples[half:], strict=True):
        torch.testing.assert_close(0.5 * (one + other), model(posterior.mean, INPUTS))


def test_weighted_samples_are_used_as_they_are():
    model = Model(LinearHead(3, 4), Categorical())
    samples = dense(16).sample(5, generator=make_generator(0))
    weights = torch.tensor([0.4, 0.1, 0.2, 0.05, 0.25], dtype=torch.float64)
    found = predict(model, WeightedSamples(samples, weights), INPUTS)
    each = model(samples, INPUTS).softmax(-1)
    torch.testing.assert_close(found.probs, (weights.view(-1, 1, 1) * each).sum(0))
    even = WeightedSamples(samples, torch.full_like(weights, 0.2))
    alike = predict(model, even, INPUTS)
    torch.testing.assert_close(alike.epistemic_variance, each.var(0, correction=0))  # samples that stand for the posterior
    torch.testing.assert_close(alike.expected_entropy, TorchCategorical(each).entropy().mean(0))
    with pytest.raises(TypeError, match=r"`inputs` must be torch\.float64"):
        predict(model, even, INPUTS.float())


def test_scores_are_higher_for_familiar_inputs():
    model = Model(LinearHead(3, 3), Categorical())
    prediction = predict(model, dense(12), INPUTS, generator=make_generator(0))
    assert torch.equal(prediction.familiarity(), prediction.probs.amax(1))
    assert torch.equal(prediction.familiarity("entropy"), -prediction.entropy)
    assert torch.equal(prediction.familiarity("mutual_information"), -prediction.mutual_information)
    with pytest.raises(ValueError, match="`by` must be one of 'confidence', 'entropy', 'mutual_information', got 'energy'"):
        prediction.familiarity("energy")


def test_what_the_probit_approximation_does_not_know():
    model = Model(LinearHead(3, 3), Categorical())
    prediction = predict(model, dense(12), INPUTS, method="probit")
    assert bool((prediction.entropy > 0).all())
    with pytest.raises(TypeError, match="`mutual_information` needs the entropy of single draws, which this prediction"):
        _ = prediction.mutual_information
    with pytest.raises(TypeError, match="`variance` is not known to this prediction: the probit approximation has none"):
        _ = prediction.variance


def test_methods_that_do_not_fit_are_refused():
    model = Model(LinearHead(3, 5), Categorical())
    draws = SamplePosterior(torch.zeros(4, 20, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"`method` must be one of 'mc', .* got 'laplace'"):
        predict(model, gaussian(20), INPUTS, method="laplace")
    for method in ("mc-outputs", "linearised", "probit", "bridge", "gauss-hermite", "trapezoid"):
        message = f"`posterior` must be a Gaussian for method '{method}', got SamplePosterior. Use method='mc'"
        with pytest.raises(TypeError, match=message):
            predict(model, draws, INPUTS, method=method, generator=make_generator(0))
    with pytest.raises(ValueError, match="integrates over one logit or the difference of two, got 5 outputs"):
        predict(model, gaussian(20), INPUTS, method="trapezoid")
    with pytest.raises(ValueError, match="`posterior` must have the 20 dimensions of the model's head, got 19"):
        predict(model, gaussian(19), INPUTS, method="probit")
    with pytest.raises(ValueError, match="`method` 'probit' is for classes, and this is regression"):
        predict(Model(LinearHead(3, 5), GaussianNoise(1.0)), gaussian(20), INPUTS, method="probit")
    with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got NoneType"):
        predict(model, gaussian(20), INPUTS, method="mc-outputs")
    with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got NoneType"):
        predict(model, gaussian(20), INPUTS)
    with pytest.raises(ValueError, match="`noise` 'sobol' is for method 'mc', got method 'mc-outputs'"):
        predict(model, gaussian(20), INPUTS, method="mc-outputs", noise="sobol", generator=make_generator(0))
    with pytest.raises(ValueError, match="`noise` 'antithetic' is for methods 'mc' and 'mc-outputs', got method 'probit'"):
        predict(model, gaussian(20), INPUTS, method="probit", noise="antithetic")
    with pytest.raises(TypeError, match="`noise` 'antithetic' needs a posterior that is made of noise, got SamplePosterior"):
        predict(model, draws, INPUTS, noise="antithetic", generator=make_generator(0))
    network, theta = flatten_network(tanh_network(3), example=INPUTS)
    with pytest.raises(ValueError, match="`method` 'mc-outputs' needs a linear head, whose outputs are Gaussian, got a net"):
        predict(network, gaussian(len(theta)), INPUTS, method="mc-outputs", generator=make_generator(0))
    with pytest.raises(TypeError, match="`model` must be a Model, got LinearHead"):
        predict(LinearHead(3, 5), gaussian(20), INPUTS, generator=make_generator(0))


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
