"""Ensembles: every member predicts as its network does, seeds are recorded, and networks that do not fit are refused."""

import copy
import math

import pytest
import torch
from torch import nn

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import FlatNetwork, flatten_network
from burnish.inference.ensemble import fit_ensemble
from burnish.inference.swag import fit_multiswag
from burnish.likelihoods import Bernoulli, GaussianNoise
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.target import Target


def inputs(count=7, dtype=torch.float32, seed=0):
    return torch.randn(count, 4, generator=make_generator(seed)).to(dtype)


def plain(num_outputs=3):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, num_outputs))


def normalised(num_outputs=3):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, num_outputs))


class Trainer:
    """Stands for a training: weights, and running statistics, that depend on the seed; keeps what it made."""

    def __init__(self, build=normalised, dtype=torch.float32):
        self.build, self.dtype, self.seeds, self.networks = build, dtype, [], []

    def __call__(self, seed):
        self.seeds.append(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = self.build().to(self.dtype)
            for _ in range(3):
                network(2.0 * torch.randn(20, 4, dtype=self.dtype) + torch.randn(4, dtype=self.dtype))
        self.networks.append(network)
        return network


def truth(network, x):
    """The network's probabilities, in eval mode, from a copy."""
    with torch.no_grad():
        return copy.deepcopy(network).eval()(x).softmax(-1)


@pytest.mark.parametrize("build", [plain, normalised])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_an_ensemble_of_one_is_the_network(build, dtype, tolerance):
    train, x = Trainer(build, dtype), inputs(50, dtype)
    fit = fit_ensemble(train, 1, example=x[:3], generator=make_generator(0))
    prediction = predict(fit.model, fit.posterior, x, num_samples=3, generator=make_generator(1))
    torch.testing.assert_close(prediction.probs, truth(train.networks[0], x), rtol=0.0, atol=tolerance)
    assert float(prediction.epistemic_variance.max()) < tolerance
    assert isinstance(fit.model.head, FlatNetwork)


def test_members_keep_their_own_running_statistics():
    train, x = Trainer(dtype=torch.float64), inputs(50, torch.float64)
    fit = fit_ensemble(train, 3, example=x[:3], generator=make_generator(0))
    means = [network[1].running_mean for network in train.networks]
    assert float((means[0] - means[1]).abs().max()) > 0.1  # and not at their start, zero
    outputs = fit.model(fit.posterior.samples, x).softmax(-1)
    expected = torch.stack([truth(network, x) for network in train.networks])
    torch.testing.assert_close(outputs, expected, rtol=0.0, atol=1e-14)
    prediction = predict(fit.model, fit.posterior, x, num_samples=3, generator=make_generator(1))
    torch.testing.assert_close(prediction.probs, expected.mean(0), rtol=0.0, atol=1e-14)


def test_parameters_alone_where_there_are_no_buffers():
    fit = fit_ensemble(Trainer(plain), 2, example=inputs(), generator=make_generator(0))
    assert fit.posterior.samples.shape == (2, 4 * 6 + 6 + 6 * 3 + 3)
    assert fit.posterior.num_chains is None


def test_seeds_are_different_recorded_and_what_train_was_given():
    train = Trainer(plain)
    fit = fit_ensemble(train, 5, example=inputs(), generator=make_generator(0))
    assert list(fit.seeds) == train.seeds
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in fit.seeds)
    assert len(set(fit.seeds)) == 5
    assert len(fit.member_seconds) == 5
    assert 0.0 < sum(fit.member_seconds) <= fit.seconds
    other = fit_ensemble(Trainer(plain), 5, example=inputs(), generator=make_generator(1))
    assert not set(fit.seeds) & set(other.seeds)


def test_seeds_that_were_drawn_twice_are_drawn_again(monkeypatch):
    monkeypatch.setattr("burnish.inference.ensemble._SEEDS", 4)
    fit = fit_ensemble(Trainer(plain), 4, example=inputs(), generator=make_generator(0))
    assert sorted(fit.seeds) == [0, 1, 2, 3]


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone(untouched_rng):
    first, again = (fit_ensemble(Trainer(), 2, example=inputs(), generator=make_generator(7)) for _ in range(2))
    assert first.seeds == again.seeds
    assert torch.equal(first.posterior.samples, again.posterior.samples)


def test_networks_are_left_as_they_were_and_may_change_later():
    train, x = Trainer(), inputs(20)
    fit = fit_ensemble(train, 2, example=x[:3], generator=make_generator(0))
    network = train.networks[0]
    again = Trainer()(fit.seeds[0])
    assert all(part.training for part in network.modules())
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in network.state_dict().items())
    before = fit.model(fit.posterior.samples, x)
    with torch.no_grad():
        for value in network.state_dict().values():
            value.zero_()
    assert torch.equal(fit.model(fit.posterior.samples, x), before)


def test_train_may_return_the_same_object_every_time():
    shared, x = normalised(), inputs(20)

    def train(seed):
        shared.load_state_dict(Trainer()(seed).state_dict())
        return shared

    fit = fit_ensemble(train, 2, example=x[:3], generator=make_generator(0))
    separate = fit_ensemble(Trainer(), 2, example=x[:3], generator=make_generator(0))
    assert torch.equal(fit.posterior.samples, separate.posterior.samples)
    torch.testing.assert_close(fit.model(fit.posterior.samples, x), separate.model(separate.posterior.samples, x))


@pytest.mark.parametrize(("likelihood", "num_outputs"), [(GaussianNoise(0.3), 2), (Bernoulli(), 1)])
def test_other_likelihoods(likelihood, num_outputs):
    x = inputs(20)
    train = Trainer(lambda: plain(num_outputs))
    fit = fit_ensemble(train, 2, example=x, likelihood=likelihood, generator=make_generator(0))
    prediction = predict(fit.model, fit.posterior, x, num_samples=2, generator=make_generator(1))
    with torch.no_grad():
        outputs = torch.stack([copy.deepcopy(network).eval()(x) for network in train.networks])
    mean = outputs.mean(0) if num_outputs == 2 else outputs.sigmoid().mean(0)
    torch.testing.assert_close(prediction.mean[:, -mean.shape[1] :], mean, rtol=0.0, atol=1e-6)


def after_one(build):
    """The usual network first, then another."""
    train, calls = Trainer(plain), []

    def second(seed):
        calls.append(seed)
        return train(seed) if len(calls) == 1 else build(train(seed))

    return second


def deeper(network):
    return nn.Sequential(*network, nn.Linear(3, 3))


def wider(network):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def shorter(network):
    return nn.Sequential(*list(network)[:3])


def with_other_activation(network):
    return nn.Sequential(network[0], nn.ReLU(), *network[2:])


def with_nan(network):
    with torch.no_grad():
        network[3].bias[1] = math.nan
    return network


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            deeper,
            r"of one architecture, got '4.weight' as \(3, 3\) torch.float32 on cpu in member 1 and nothing in member 0",
        ),
        (wider, r"of one architecture, got '0.weight' as \(8, 4\) .* in member 1 and \(6, 4\) .* in member 0"),
        (shorter, r"of one architecture, got '3.weight' as nothing in member 1"),
        (
            lambda network: network.double(),
            r"of one architecture, got '0.weight' as \(6, 4\) torch.float64 on cpu in member 1",
        ),
        (with_other_activation, r"differ in parameters and buffers only, got outputs of member 1 that .* miss by 0\.\d+"),
    ],
)
def test_another_architecture_is_refused(build, message):
    with pytest.raises(ValueError, match=f"`train` must return networks .*{message}"):
        fit_ensemble(after_one(build), 2, example=inputs(), generator=make_generator(0))


def test_members_that_diverged_are_named():
    with pytest.raises(FitError, match=r"member 1 \(seed \d+\) came back with NaN or infinite entries in '3.bias'"):
        fit_ensemble(after_one(with_nan), 3, example=inputs(), generator=make_generator(0))


def test_running_statistics_that_diverged_are_named():
    def train(seed):
        network = normalised()
        network[1].running_var[0] = math.inf
        return network

    with pytest.raises(FitError, match=r"member 0 .* in '1.running_var'; its training diverged"):
        fit_ensemble(train, 2, example=inputs(), generator=make_generator(0))


def test_train_must_return_a_network():
    with pytest.raises(TypeError, match=r"`train` must return a torch.nn.Module, got OrderedDict for member 0"):
        fit_ensemble(lambda seed: plain().state_dict(), 2, example=inputs(), generator=make_generator(0))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"train": 3}, TypeError, "`train` must be a function of a seed that returns a trained network, got int"),
        ({"train": plain()}, TypeError, "`train` must be a function of a seed .*, got Sequential"),
        ({"num_members": 0}, ValueError, "`num_members` must be at least 1, got 0"),
        ({"num_members": 2.0}, TypeError, "`num_members` must be an integer"),
        ({"example": None}, TypeError, r"`example` must be a torch\.Tensor, got NoneType"),
        ({"example": torch.zeros(4)}, ValueError, r"`example` must be a batch of at least one point, got shape \(4,\)"),
        ({"example": torch.zeros(0, 4)}, ValueError, "`example` must be a batch of at least one point"),
        ({"example": torch.full((2, 4), math.nan)}, ValueError, "`example` must be finite"),
        ({"generator": None}, TypeError, r"`generator` must be a torch\.Generator, got NoneType"),
        ({"likelihood": "gaussian"}, TypeError, "`likelihood` must be a Likelihood, got 'gaussian'"),
    ],
)
def test_wrong_arguments_are_refused_before_any_training(options, error, message):
    train = Trainer()
    options = {"train": train, "num_members": 2, "example": inputs(), "generator": make_generator(0), **options}
    with pytest.raises(error, match=message):
        fit_ensemble(**options)
    assert train.seeds == []


def test_parameters_are_starts_without_running_statistics():
    """With batch norm, draws hold its statistics as well, and no gradient method can move those."""

    def train(seed):
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=make_generator(seed), dtype=torch.float64))
        return network

    inputs = torch.randn(12, 3, generator=make_generator(0), dtype=torch.float64)
    fit = fit_ensemble(train, 2, example=inputs, generator=make_generator(0))
    network = train(fit.seeds[1]).eval()
    model, theta = flatten_network(network, example=inputs)
    assert torch.equal(fit.parameters[1], theta)
    target = Target(model, Batch(inputs, torch.arange(12) % 2), 1.0)
    options = {"learning_rate": 1e-3, "num_steps": 6, "snapshot_every": 2, "generator": make_generator(0)}
    with pytest.warns(UserWarning, match="running statistics of the target's network"):
        assert len(fit_multiswag(target, fit.parameters, **options).members) == 2
