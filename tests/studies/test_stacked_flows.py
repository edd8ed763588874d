"""Flows and log posteriors in one set of tensors: each must be what it is by itself."""

import dataclasses

import pytest
import torch

from burnish.bijections import Radial
from burnish.heads import LinearHead, Model
from burnish.noise import make_generator
from burnish.studies.stacked_flows import StackedFlows, StackedTargets
from burnish.target import Target

NUM_POINTS, NUM_FEATURES, NUM_CLASSES = 50, 3, 4


def make_target(seed, precision, bias=True):
    generator = make_generator(seed)
    inputs = torch.randn(NUM_POINTS, NUM_FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(NUM_CLASSES, (NUM_POINTS,), generator=generator)
    return Target.last_layer(inputs, labels, prior_precision=precision, bias=bias, num_outputs=NUM_CLASSES)


def test_stacked_flows_are_those_of_the_layers():
    generator, lengths = make_generator(0), [5, 3, 1]
    draws = torch.randn(3, 16, generator=generator, dtype=torch.float64)
    layers = [[Radial.uniform(draws[0], generator=generator) for _ in range(5)] for _ in draws]
    flows = StackedFlows.start(layers, lengths)
    assert flows.sizes == (9, 6, 6, 3, 3)
    images, logdets = flows.forward(draws)
    for rank, length in enumerate(lengths):
        for problem, image in enumerate(draws):
            own = flows.layers(rank, problem)
            assert len(own) == length
            logdet = torch.zeros((), dtype=torch.float64)
            for one, layer in zip(own, layers[problem], strict=False):
                assert all(torch.equal(value, layer.parameters()[name]) for name, value in one.parameters().items())
                image, part = layer.forward(image)
                logdet = logdet + part
            torch.testing.assert_close(images[rank, problem], image)
            torch.testing.assert_close(logdets[rank, problem], logdet)


def test_layers_taken_out_share_no_memory():
    generator = make_generator(0)
    layers = [Radial.uniform(torch.zeros(4, dtype=torch.float64), generator=generator) for _ in range(2)]
    flows = StackedFlows.start([layers], [2])
    values = [value for layer in flows.layers(0, 0) for value in layer.parameters().values()]
    assert len({value.untyped_storage().data_ptr() for value in [*values, flows.center, flows.raw]}) == 2 * 3 + 2
    assert not any(value.requires_grad for value in values)


@pytest.mark.parametrize("bias", [True, False])
def test_stacked_targets_are_the_targets(bias):
    targets = [make_target(0, 1.0, bias), make_target(1, torch.linspace(1.0, 2.0, 12 + 4 * bias).double(), bias)]
    targets[0] = targets[0].with_prior(1.5, mean=0.3)
    theta = torch.randn(3, 2, targets[0].dim, generator=make_generator(0), dtype=torch.float64)
    stacked = StackedTargets.of(targets, targets[0].model.linear_head, bias)
    rows = torch.stack([torch.randperm(NUM_POINTS, generator=make_generator(seed)) for seed in (0, 1)])
    values = stacked.log_prob(theta, rows, torch.ones(2, NUM_POINTS, dtype=torch.float64))
    for problem, target in enumerate(targets):
        torch.testing.assert_close(values[:, problem], target.log_prob(theta[:, problem]))


def test_weights_count_points():
    """A point with weight two counts twice, one with weight zero not at all."""
    target = make_target(0, 2.0)
    rows, weights = torch.tensor([[4, 7, 9]]), torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    theta = torch.randn(1, 1, target.dim, generator=make_generator(0), dtype=torch.float64)
    value = StackedTargets.of([target], target.model.linear_head, bias=True).log_prob(theta, rows, weights)
    counted = dataclasses.replace(target, data=target.data.subset(torch.tensor([4, 4, 9])))
    torch.testing.assert_close(value[0], counted.log_prob(theta[0]))


def test_a_bias_left_out_of_the_likelihood_keeps_its_prior():
    target = make_target(0, 2.0)
    bare = dataclasses.replace(target, model=Model(LinearHead(NUM_FEATURES, NUM_CLASSES, bias=False)))
    stacked = StackedTargets.of([target], target.model.linear_head, bias=False)
    theta = torch.randn(1, 1, target.dim, generator=make_generator(0), dtype=torch.float64)
    value = stacked.log_prob(theta, torch.arange(NUM_POINTS)[None], torch.ones(1, NUM_POINTS, dtype=torch.float64))
    weights, biases = theta[0].split([12, 4], dim=1)
    expected = bare.log_prob(weights) + torch.distributions.Normal(0.0, 2.0**-0.5).log_prob(biases).sum()
    torch.testing.assert_close(value[0], expected)
