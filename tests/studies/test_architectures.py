"""The studies' networks: their sizes, what they are initialised to, and the same weights for a seed everywhere."""

import math

import pytest
import torch
from torch import nn

from burnish.inference.flipout import variational_network
from burnish.inference.variational_layers import VariationalLayer
from burnish.studies.architectures import ARCHITECTURES, make_network
from burnish.studies.protocols import BENCHMARKS

SHAPES = {"lenet": (1, 28, 28), "mlp": (1, 28, 28), "wide-resnet": (3, 32, 32)}


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "num_classes", "size"),
    # the wide one has the published 2.7 million, and 257 for every class beyond ten
    [("lenet", 10, 44_426), ("mlp", 10, 39_760), ("wide-resnet", 10, 2_748_890), ("wide-resnet", 100, 2_772_020)],
)
def test_they_have_the_papers_sizes(name, num_classes, size, generator):
    network = make_network(name, num_classes, 0)
    assert count(network) == size
    images = torch.rand(2, *SHAPES[name], generator=generator)
    assert network.eval()(images).shape == (2, num_classes)


@pytest.mark.parametrize(
    ("name", "num_features"), [("lenet", 84), ("wide-resnet", 256), ("mlp", 50), ("tiny", 16), ("tiny-mlp", 8)]
)
def test_the_last_layer_is_linear_on_the_papers_features(name, num_features):
    assert make_network(name, 7, 0)[-1].weight.shape == (7, num_features)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_seed_gives_the_same_weights_and_no_other_does(name):
    first, again, other = (make_network(name, 10, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    assert any(not torch.equal(value, other[key]) for key, value in first.items())


def test_weights_are_those_of_a_seeded_global_generator():
    """Networks that were trained before can be trained again from the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = nn.Conv2d(1, 6, 5)
    assert torch.equal(make_network("lenet", 10, 5)[0].weight, expected.weight)


def test_no_global_random_state_is_touched(untouched_rng, monkeypatch):
    """Nor that of GPUs, which `torch.manual_seed` would seed."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    make_network("mlp", 10, 1)
    assert not seeded


def test_names_of_parameters_are_those_of_files_that_exist():
    lenet, mlp, wide = (make_network(name, 10, 0).state_dict() for name in ("lenet", "mlp", "wide-resnet"))
    assert list(lenet) == [f"{layer}.{kind}" for layer in (0, 3, 7, 9, 11) for kind in ("weight", "bias")]
    assert list(mlp) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert {"0.weight", "1.shortcut.weight", "6.body.3.weight", "7.running_var", "11.bias"} <= set(wide)
    assert {key.split(".")[0] for key in wide if "shortcut" in key} == {"1", "3", "5"}  # where the width changes


def test_convolutions_of_the_wide_network_are_initialised_by_kaimings_rule():
    network = make_network("wide-resnet", 10, 0)
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 16
    for part in convolutions:
        weight = part.weight.detach()
        std = math.sqrt(2.0 / (part.out_channels * part.kernel_size[0] * part.kernel_size[1]))
        assert float(weight.std()) == pytest.approx(std, rel=4.0 / math.sqrt(2 * weight.numel()))
        assert abs(float(weight.mean())) < 4.0 * std / math.sqrt(weight.numel())


def test_a_block_without_its_body_passes_on_what_comes_in(generator):
    network = make_network("wide-resnet", 10, 0).eval()
    wider, same = network[3], network[4]
    for block in (wider, same):
        nn.init.zeros_(block.body[-1].weight)
    x = torch.randn(2, 128, 4, 4, generator=generator)
    assert torch.equal(same(x), x)
    x = torch.randn(2, 64, 4, 4, generator=generator)
    assert torch.equal(wider(x), wider.shortcut(wider.ready(x)))  # normalised and rectified first
    assert wider(x).shape == (2, 128, 2, 2)


def test_variational_training_leaves_shortcuts_as_they_are(generator):
    network = variational_network(make_network("wide-resnet", 10, 0), initial_std=0.1, generator=generator)
    assert sum(isinstance(part, VariationalLayer) for part in network.modules()) == 14  # 13 convolutions and the last layer
    assert sum(isinstance(part, nn.Conv2d) for part in network.modules()) == 3
    assert all(isinstance(network[place].shortcut, nn.Conv2d) for place in (1, 3, 5))


def test_unknown_names_and_counts_are_refused():
    with pytest.raises(ValueError, match=r"`name` must be one of 'lenet', 'wide-resnet', .*got 'resnet'"):
        make_network("resnet", 10, 0)
    with pytest.raises(ValueError, match="`num_classes` must be at least 1, got 0"):
        make_network("mlp", 0, 0)
    with pytest.raises(ValueError, match="`seed` must be at least 0, got -1"):
        make_network("mlp", 10, -1)


def test_every_benchmark_has_its_network():
    for benchmark in BENCHMARKS.values():
        assert benchmark.architecture in ARCHITECTURES
