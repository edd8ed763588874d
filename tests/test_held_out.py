"""Scores on points held out, against independent computations."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from burnish import metrics
from burnish.batches import Batch
from burnish.held_out import compare_held_out, held_out_reason
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator

sys.path.append(str(Path(__file__).parent / "inference"))
from problems import binary, classification, regression


@cache
def held_out_case(make):
    """Two parts of some points, a network, its recalibrations, and samples of a posterior for each part."""
    target = make(num_points=90)
    parts = [target.data.subset(slice(0, 40)), target.data.subset(slice(40, 90))]
    draws = [torch.randn(7, target.dim, generator=make_generator(seed), dtype=torch.float64) for seed in (5, 6, 7)]
    model = target.model
    compared = compare_held_out(
        parts,
        network=[(model, draws[0][:1])] * 2,
        temperature=[(model, draws[0][:1] / 2), (model, draws[0][:1] / 3)],
        refined=[(model, draws[1]), (model, draws[2])],
    )
    return model, parts, draws, compared


def test_scores_of_a_classifier_are_those_of_torch_and_metrics():
    model, parts, draws, compared = held_out_case(classification)
    targets = torch.cat([part.targets for part in parts])
    network = torch.cat([model(draws[0][0], part.inputs) for part in parts])
    scaled = torch.cat([model(draws[0][0], part.inputs) / t for part, t in zip(parts, (2, 3), strict=True)])
    probs = torch.cat([model(d, part.inputs).softmax(-1).mean(0) for d, part in zip(draws[1:], parts, strict=True)])
    assert compared.num_points == 90
    for score, log_probs in zip(
        (compared.network, compared.temperature, compared.refined),
        (network.log_softmax(-1), scaled.log_softmax(-1), probs.log()),
        strict=True,
    ):
        assert score.nll == pytest.approx(float(cross_entropy(log_probs, targets)))
        assert score.ece == pytest.approx(metrics.ece(log_probs.exp(), targets))
    point = torch.arange(90)
    for gain, error, rival in (
        (compared.gain_over_network, compared.gain_over_network_error, network.log_softmax(-1)),
        (compared.gain_over_temperature, compared.gain_over_temperature_error, scaled.log_softmax(-1)),
    ):
        difference = probs.log()[point, targets] - rival[point, targets]
        assert gain == pytest.approx(float(difference.mean()))
        assert error == pytest.approx(float(difference.std(correction=0)) / 90**0.5)


def test_scores_of_a_binary_classifier():
    model, parts, draws, compared = held_out_case(binary)
    targets = torch.cat([part.targets for part in parts])
    logits = torch.cat([model(draws[0][0], part.inputs) for part in parts]).squeeze(-1)
    assert compared.network.nll == pytest.approx(float(binary_cross_entropy_with_logits(logits, targets.double())))
    both = torch.stack([(-logits).sigmoid(), logits.sigmoid()], -1)
    assert compared.network.ece == pytest.approx(metrics.ece(both, targets))


def test_scores_of_a_regressor():
    target = regression(num_points=90)
    theta = torch.randn(7, target.dim, generator=make_generator(5), dtype=torch.float64)
    loud = replace(target.model, likelihood=GaussianNoise(2.0))
    network, refined = [(loud, theta[:1])], [(target.model, theta)]
    compared = compare_held_out([target.data], network=network, temperature=network, refined=refined)
    densities = torch.distributions.Normal(target.model(theta, target.data.inputs), 0.3).log_prob(target.data.targets)
    mixture = densities.sum(-1).exp().mean(0).log()
    assert compared.refined.nll == pytest.approx(-float(mixture.mean()))
    alone = torch.distributions.Normal(target.model(theta[0], target.data.inputs), 2.0).log_prob(target.data.targets)
    assert compared.network.nll == pytest.approx(-float(alone.sum(-1).mean()))
    assert compared.network.ece is None
    assert compared.gain_over_temperature == pytest.approx(compared.network.nll - compared.refined.nll)


def test_weights_of_held_out_points_count():
    """A weight of two, and the point twice."""
    target = classification(num_points=40)
    theta = torch.randn(3, target.dim, generator=make_generator(5), dtype=torch.float64)
    weights = torch.where(torch.arange(40) < 10, 2.0, 1.0).double()
    heavy = Batch(target.data.inputs, target.data.targets, weights)
    index = torch.cat([torch.arange(40), torch.arange(10)])
    one, other = (
        compare_held_out(
            [batch],
            network=[(target.model, theta[:1])],
            temperature=[(target.model, theta[1:2])],
            refined=[(target.model, theta)],
        )
        for batch in (heavy, target.data.subset(index))
    )
    assert one.network.nll == pytest.approx(other.network.nll)
    assert one.gain_over_network == pytest.approx(other.gain_over_network)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_a_network_that_is_sure_and_wrong(dtype):
    """Probabilities that vanish in floating point have a logarithm all the same."""
    target = classification(num_points=60, dtype=dtype)
    theta = 1000.0 * torch.randn(2, target.dim, generator=make_generator(5), dtype=torch.float64).to(dtype)
    network, calm = [(target.model, theta[:1])], [(target.model, theta[:1] / 1000)]
    compared = compare_held_out([target.data], network=network, temperature=calm, refined=network)
    logits = target.model(theta[0], target.data.inputs)
    assert compared.network.nll == pytest.approx(float(cross_entropy(logits, target.data.targets)), rel=1e-4)
    assert compared.gain_over_network == 0.0
    assert compared.gain_over_temperature < -1.0
    assert not held_out_reason(compared)[0]
