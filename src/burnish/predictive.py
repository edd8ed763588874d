"""From a posterior to predictions: the model averaged over parameters, by Monte Carlo, at a tangent, or in closed form.

What each method approximates, and where it fails, is in docs/predictives.md.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from burnish import integrals
from burnish._checks import check_at_least, check_choice, check_finite, check_like, check_tensor
from burnish.derivatives import jvp
from burnish.flat_network import FlatNetwork
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Bernoulli, GaussianNoise, Likelihood
from burnish.noise import NOISES, check_generator
from burnish.output_gaussian import OutputGaussian, output_gaussians
from burnish.posteriors import FlowPosterior, Gaussian, Posterior, WeightedSamples
from burnish.prediction import Prediction, entropy

__all__ = ["predict"]

_METHODS = ("mc", "mc-outputs", "linearised", "probit", "bridge", "gauss-hermite", "trapezoid")
_SAMPLED = ("mc", "mc-outputs", "linearised")
_CHUNK_ENTRIES = 2**24  # entries of one (S, n, C) block of outputs
_CERTAIN = 1e-12  # a variance of logits below which nothing is left to average


@torch.no_grad()
def predict(
    model: Model,
    posterior: Posterior,
    inputs: Tensor,
    *,
    method: str = "mc",
    num_samples: int = 20,
    noise: str = "iid",
    generator: torch.Generator | None = None,
    keep_samples: bool = True,
) -> Prediction:
    """Predictions averaged over a posterior.

    The first three methods draw, and need a `generator`; all but the first need a `Gaussian` posterior.

    - "mc": draws of the parameters. Right for every posterior and model as their number grows.
    - "mc-outputs": draws of the C outputs in place of the d parameters; for a linear head, whose outputs are then Gaussian.
    - "linearised": draws from the network made linear at the mean; in closed form, without draws, for regression.
    - "probit": every linearised logit shrunk by its variance, for one logit or more of them.
    - "bridge": a Dirichlet distribution in place of the linearised softmax; for two classes that is the mean's own.
    - "gauss-hermite" and "trapezoid": quadrature over the linearised logit, or the difference of two.

    Args:
        model: head and likelihood.
        posterior: anything with `sample`; `WeightedSamples`, such as `select_samples(...).posterior`, are used as they are.
        inputs: features (N, P), or what a network takes for a `FlatNetwork`.
        method: one of the above.
        num_samples: draws of the posterior, or of the outputs.
        noise: what draws are made of: "iid"; "antithetic", for methods "mc" and "mc-outputs"; "sobol", for method "mc".
        generator: on the device of the posterior.
        keep_samples: whether the result holds every sample's own prediction; without, memory is that of the averages.
    """
    check_choice("method", method, _METHODS)
    check_at_least("num_samples", num_samples, 1)
    check_tensor("inputs", inputs)
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a Model, got {type(model).__name__}. Pass `Model(head, likelihood)`.")
    if not hasattr(posterior, "sample"):
        raise TypeError(
            f"`posterior` must have `sample`, got {type(posterior).__name__}. Pass a fit's `.posterior`, or wrap draws in "
            "`SamplePosterior`."
        )
    model.head.check_inputs("inputs", inputs)
    check_finite("inputs", inputs, "Check the network's activations on these points.")
    check_choice("noise", noise, NOISES)
    with torch.autocast(inputs.device.type, enabled=False):  # averages need the digits
        return _predict(model, posterior, inputs, method, num_samples, noise, generator, keep_samples)


def _predict(
    model: Model,
    posterior: Posterior,
    inputs: Tensor,
    method: str,
    num_samples: int,
    noise: str,
    generator: torch.Generator | None,
    keep_samples: bool,
) -> Prediction:
    if method == "mc":
        if isinstance(posterior, WeightedSamples):
            check_like("inputs", inputs, posterior.samples, "the posterior")
            return predict_at(model, posterior.samples, inputs, weights=posterior.weights, keep_samples=keep_samples)
        theta = _draw(posterior, num_samples, noise, generator)
        check_like("inputs", inputs, theta, "the posterior")
        return predict_at(model, theta, inputs, independent=noise != "antithetic", keep_samples=keep_samples)
    gaussian = _check_gaussian(method, posterior, model)
    check_like("inputs", inputs, gaussian.mean, "the posterior")
    if noise == "sobol" or (noise != "iid" and method != "mc-outputs"):
        fits = "methods 'mc' and 'mc-outputs'" if noise == "antithetic" else "method 'mc'"
        raise ValueError(f"`noise` {noise!r} is for {fits}, got method {method!r}. Leave one of them out.")
    likelihood = model.likelihood
    if method not in _SAMPLED or (method == "linearised" and isinstance(likelihood, GaussianNoise)):
        joint = method == "bridge" or (method != "probit" and model.head.num_outputs == 2)
        parts = output_gaussians(model.head, gaussian, inputs, joint=joint and not isinstance(likelihood, GaussianNoise))
        return _join([_closed_form(method, likelihood, outputs) for outputs in parts])
    check_generator(generator, inputs.device)
    assert generator is not None
    draws = _sampled_outputs(model, gaussian, inputs, num_samples, noise == "antithetic", generator)
    options: Any = {"independent": noise != "antithetic", "keep_samples": keep_samples}
    return _join([average_outputs(model, outputs, **options) for outputs in draws])


@torch.no_grad()
def predict_at(
    model: Model,
    theta: Tensor,
    inputs: Tensor,
    *,
    weights: Tensor | None = None,
    independent: bool = True,
    keep_samples: bool = True,
) -> Prediction:
    """Predictions for inputs (N, ...), averaged over given parameters (S, d), alike or by weights (S,) that sum to one."""
    rows = max(1, _CHUNK_ENTRIES // (len(theta) * model.head.entries))
    options: Any = {"independent": independent, "keep_samples": keep_samples}
    return _join([average_outputs(model, model(theta, x), weights, **options) for x in torch.split(inputs, rows)])


def average_outputs(
    model: Model, outputs: Tensor, weights: Tensor | None = None, *, independent: bool = True, keep_samples: bool = True
) -> Prediction:
    """Predictions from outputs (S, N, C) under samples that count alike, or by weights (S,) that sum to one.

    Of independent draws the variance is corrected for the mean, which comes from the same draws. In antithetic pairs the
    mean is exact to first order, and selected samples match the variance as it is: there is nothing to correct.
    """
    likelihood = model.likelihood
    noise = likelihood.std**2 if isinstance(likelihood, GaussianNoise) else None
    samples = (outputs if noise is not None else likelihood.probs(outputs)).contiguous()
    count = len(samples)
    corrected = independent and weights is None and count > 1
    if weights is None:
        weights = samples.new_full((count,), 1.0 / count)
    mean = torch.tensordot(weights, samples, 1)
    variance = torch.tensordot(weights, (samples - mean).square(), 1) * (count / (count - 1) if corrected else 1.0)
    expected = None if noise is not None else torch.tensordot(weights, entropy(samples), 1)
    return Prediction(mean, variance, expected, noise, samples if keep_samples else None)


def _draw(posterior: Posterior, num_samples: int, noise: str, generator: torch.Generator | None) -> Tensor:
    if noise == "iid":
        return posterior.sample(num_samples, generator=generator)  # type: ignore[arg-type]  # which refuses None
    if not isinstance(posterior, Gaussian | FlowPosterior):
        raise TypeError(
            f"`noise` {noise!r} needs a posterior that is made of noise, got {type(posterior).__name__}. "
            "Pass a Gaussian or a flow, or noise='iid'."
        )
    return posterior.sample(num_samples, noise=noise, generator=generator)  # type: ignore[arg-type]


def _check_gaussian(method: str, posterior: Posterior, model: Model) -> Gaussian:
    """The posterior, where the method can use it with this model."""
    head, likelihood = model.head, model.likelihood
    if not isinstance(posterior, Gaussian):
        raise TypeError(
            f"`posterior` must be a Gaussian for method {method!r}, got {type(posterior).__name__}. "
            "Use method='mc', which takes any posterior."
        )
    if posterior.dim != head.dim:
        raise ValueError(
            f"`posterior` must have the {head.dim} dimensions of the model's head, got {posterior.dim}. "
            "Pass a posterior of this model."
        )
    if not isinstance(head, LinearHead | FlatNetwork):
        raise TypeError(f"`model` must have a LinearHead or a FlatNetwork for method {method!r}, got {type(head).__name__}.")
    if method == "mc-outputs" and not isinstance(head, LinearHead):
        raise ValueError(
            "`method` 'mc-outputs' needs a linear head, whose outputs are Gaussian, got a network. "
            "Use method='linearised', which makes it linear first, or 'mc'."
        )
    if method not in _SAMPLED and isinstance(likelihood, GaussianNoise):
        raise ValueError(
            f"`method` {method!r} is for classes, and this is regression. Use method='linearised', which is in closed form."
        )
    if method in ("gauss-hermite", "trapezoid") and head.num_outputs > 2:
        raise ValueError(
            f"`method` {method!r} integrates over one logit or the difference of two, got {head.num_outputs} outputs. "
            "Use method='mc-outputs' with many samples as the reference."
        )
    return posterior


def _sampled_outputs(
    model: Model, gaussian: Gaussian, inputs: Tensor, num_samples: int, antithetic: bool, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draws of the outputs (S, n, C), for some points at a time: of a network at its tangent, in pairs if antithetic."""
    head = model.head
    rows = max(1, _CHUNK_ENTRIES // (num_samples * head.entries))
    if isinstance(head, FlatNetwork):
        tangents = gaussian.sample(num_samples, generator=generator) - gaussian.mean
        for chunk in torch.split(inputs, rows):
            yield head(gaussian.mean, chunk) + _along(head, gaussian.mean, chunk, tangents)
        return
    for chunk in torch.split(inputs, rows):
        for outputs in output_gaussians(head, gaussian, chunk, joint=True):
            count = (num_samples + 1) // 2 if antithetic else num_samples
            shape = (count, *outputs.mean.shape)
            noise = torch.randn(shape, generator=generator, dtype=inputs.dtype, device=inputs.device)
            deviations = outputs.deviations(noise)
            if antithetic:  # half the products, and the outputs' mean is exact
                deviations = torch.cat([deviations, -deviations])[:num_samples]
            yield outputs.mean + deviations


def _along(head: FlatNetwork, mean: Tensor, inputs: Tensor, tangents: Tensor) -> Tensor:
    """The derivatives (S, n, C) of the outputs along tangents (S, d)."""
    what, remedy = "`method` 'linearised' needs", "Use method='mc'."
    function = partial(head, inputs=inputs)
    if head.vectorised:
        return jvp(function, mean, tangents, what=what, remedy=remedy)
    return torch.stack([jvp(function, mean, tangent, what=what, remedy=remedy) for tangent in tangents])


def _closed_form(method: str, likelihood: Likelihood, outputs: OutputGaussian) -> Prediction:
    """Without draws: probabilities from Gaussian logits, or the moments of regression."""
    if isinstance(likelihood, GaussianNoise):
        return Prediction(outputs.mean, outputs.variance, noise_variance=likelihood.std**2)
    if method == "probit":
        if isinstance(likelihood, Bernoulli):
            pair = [integrals.probit(sign * outputs.mean, outputs.variance) for sign in (-1.0, 1.0)]
            return Prediction(torch.cat(pair, dim=-1))
        return Prediction(integrals.multiclass_probit(outputs.mean, outputs.variance))
    return _bridge(likelihood, outputs) if method == "bridge" else _quadrature(method, likelihood, outputs)


def _bridge(likelihood: Likelihood, outputs: OutputGaussian) -> Prediction:
    """The moments of the Dirichlet distribution that stands for the softmax of the outputs."""
    mean, variance = outputs.mean, outputs.contrast_variance
    if isinstance(likelihood, Bernoulli):  # one logit is the difference of two that sum to zero
        mean = torch.cat([-0.5 * mean, 0.5 * mean], dim=-1)
        variance = (0.25 * outputs.variance.double()).expand(-1, 2)
    concentration = integrals.bridge(mean, variance.clamp_min(_CERTAIN))
    total = concentration.sum(-1, keepdim=True)
    probs = concentration / total
    spread = probs * (1.0 - probs) / (total + 1.0)
    entropy = torch.digamma(total + 1.0).squeeze(-1) - (probs * torch.digamma(concentration + 1.0)).sum(-1)
    return Prediction(probs.to(mean.dtype), spread.to(mean.dtype), entropy.to(mean.dtype))


def _quadrature(method: str, likelihood: Likelihood, outputs: OutputGaussian) -> Prediction:
    """Averages over the one number that two classes depend on."""
    rule = integrals.gauss_hermite if method == "gauss-hermite" else integrals.trapezoid
    mean, variance = outputs.mean[:, 0].double(), outputs.variance[:, 0].double()
    if not isinstance(likelihood, Bernoulli):
        mean = (outputs.mean[:, 1] - outputs.mean[:, 0]).double()
        variance = 4.0 * outputs.contrast_variance[:, 0]  # each of two is half a difference away from their mean
    probs = torch.stack([rule(torch.sigmoid, sign * mean, variance) for sign in (-1.0, 1.0)], dim=-1)
    square = rule(lambda logit: logit.sigmoid().square(), mean, variance)
    spread = (square - probs[:, 1].square()).clamp_min(0.0).unsqueeze(-1).expand(-1, 2)
    entropies = rule(_binary_entropy, mean, variance)
    probs, spread, entropies = (value.to(outputs.mean.dtype) for value in (probs, spread, entropies))
    return Prediction(probs, spread, entropies)


def _binary_entropy(logit: Tensor) -> Tensor:
    softplus = torch.nn.functional.softplus
    return softplus(-logit) * logit.sigmoid() + softplus(logit) * (-logit).sigmoid()


def _join(parts: list[Prediction]) -> Prediction:
    """The predictions for some points after the other as one."""

    def cat(name: str, dim: int = 0) -> Tensor | None:
        tensors = [getattr(part, name) for part in parts]
        return None if tensors[0] is None else torch.cat(tensors, dim=dim)

    mean = torch.cat([part.mean for part in parts])
    return Prediction(mean, cat("epistemic_variance"), cat("expected_entropy"), parts[0].noise_variance, cat("samples", 1))
