"""Small targets with known answers, shared by the tests of inference methods."""

import math
from functools import cache

import torch
from torch import Tensor

from burnish.heads import LinearHead
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from burnish.noise import make_generator
from burnish.target import Target

NUM_TRAIN, NUM_VALIDATION = 150, 60


def features(num_points: int, num_features: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num_points, num_features, generator=make_generator(seed), dtype=torch.float64).to(dtype)


def classification(
    num_points: int = 60,
    num_features: int = 3,
    num_outputs: int = 4,
    *,
    prior_precision: float | Tensor = 2.0,
    bias: bool = True,
    weighted: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    likelihood: Likelihood | None = None,
) -> Target:
    """Labels drawn from a random linear classifier."""
    generator = make_generator(seed + 1)
    inputs = features(num_points, num_features, seed, dtype)
    likelihood = Categorical() if likelihood is None else likelihood
    head = LinearHead(num_features, num_outputs, bias)
    theta = torch.randn(head.dim, generator=generator, dtype=torch.float64).to(dtype)
    probs = likelihood.probs(head(theta, inputs)).double().contiguous()  # labels are drawn in the order of memory
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    weights = torch.rand(num_points, generator=generator) + 0.5 if weighted else None
    return Target.last_layer(
        inputs,
        labels,
        prior_precision=prior_precision,
        likelihood=likelihood,
        bias=bias,
        weights=weights,
        num_outputs=num_outputs,
    )


def binary(**options: object) -> Target:
    return classification(num_outputs=1, likelihood=Bernoulli(), **options)  # type: ignore[arg-type]


def regression(
    num_points: int = 30, num_features: int = 4, num_outputs: int = 2, *, std: float = 0.3, seed: int = 0
) -> Target:
    """Conjugate: the posterior is Gaussian and the evidence known."""
    generator = make_generator(seed + 1)
    inputs = features(num_points, num_features, seed)
    outputs = inputs @ torch.randn(num_features, num_outputs, generator=generator, dtype=torch.float64)
    noise = std * torch.randn(num_points, num_outputs, generator=generator, dtype=torch.float64)
    return Target.last_layer(inputs, outputs + noise, prior_precision=1.7, prior_mean=0.2, likelihood=GaussianNoise(std))


def regression_truth(target: Target) -> tuple[Tensor, Tensor, float]:
    """Mean and covariance of the exact posterior, and the exact log evidence, from the joint Gaussian of the targets."""
    assert isinstance(target.model.likelihood, GaussianNoise)
    head, variance = target.model.head, target.model.likelihood.std**2
    precision = float(target.prior_precision)
    design = head.augment(target.data.inputs)
    covariance = torch.linalg.inv(design.T @ design / variance + precision * torch.eye(design.shape[1], dtype=torch.float64))
    rows = (target.data.targets.T @ design / variance + precision * float(target.prior_mean)) @ covariance
    identity = torch.eye(head.num_outputs, dtype=torch.float64)
    full = torch.kron(identity, covariance.contiguous())
    order = head.from_matrix(torch.arange(head.dim).view(head.num_outputs, -1))
    marginal = variance * torch.eye(len(design), dtype=torch.float64) + design @ design.T / precision
    centre = (float(target.prior_mean) * design.sum(1)).unsqueeze(1)
    residual = target.data.targets - centre
    quadratic = float((residual * torch.linalg.solve(marginal, residual)).sum())
    logdet = float(torch.linalg.slogdet(marginal)[1])
    count = len(design) * head.num_outputs
    log_evidence = -0.5 * (quadratic + head.num_outputs * logdet + count * math.log(2 * math.pi))
    return head.from_matrix(rows), full[order][:, order], log_evidence


def noise(dim, seed=7):
    return torch.randn(dim, generator=make_generator(seed), dtype=torch.float64)


@cache
def with_held_out(make=classification, **options):
    """A model, the parameters that made the labels, and three sets of points."""
    full = make(num_points=NUM_TRAIN + NUM_VALIDATION + 400, **options)
    truth = noise(full.dim, seed=1)  # as in `classification`
    train = full.data.subset(slice(0, NUM_TRAIN))
    validation = full.data.subset(slice(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))
    return full.model, truth, train, validation, full.data.subset(slice(NUM_TRAIN + NUM_VALIDATION, None))
