"""Variational training: estimators against closed forms and each other, fits against conjugate answers, and contracts."""

import copy
import math

import pytest
import torch
from problems import features, regression
from torch import nn
from torch.func import functional_call

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference.flipout import (
    VariationalConv2d,
    VariationalLayer,
    VariationalLinear,
    fit_flipout,
    kl_divergence,
    variational_network,
)
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator

CONVOLUTIONS = {
    "plain": {},
    "strided": {"stride": (2, 1), "padding": (1, 2)},
    "dilated": {"dilation": 2, "padding": 2},
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4, "bias": False},
    "same": {"padding": "same"},
    "valid": {"padding": "valid"},
    "circular": {"padding": (1, 2), "padding_mode": "circular"},
    "reflected": {"padding": "same", "padding_mode": "reflect", "dilation": 2},
}


def build(make):
    """A module in float64 with weights of its own seed; the global random state is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def convolution(**options):
    return build(lambda: nn.Conv2d(4, 8, 3, **options))


def mlp():
    return build(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))


def convolutional():
    return build(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 3)))


def normalised():
    """Convolution, BatchNorm, dropout: everything with a train mode of its own."""
    return build(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(12, 2)
        )
    )


def images(num_points=33, seed=0):
    inputs = features(num_points, 16, seed).view(-1, 1, 4, 4)
    return Batch(inputs, (inputs.mean((1, 2, 3)) > 0).long())


def noise(*shape, seed=5):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def with_random_moments(layer):
    """Means and standard deviations that all differ."""
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(0.7 * noise(*parameter.shape, seed=20 + number))
    return layer


def fixed_noise(monkeypatch, layer, perturbation, signs):
    """The layer's draws replaced by given ones, found by their shape."""
    monkeypatch.setattr(layer, "_normal", lambda like: perturbation[tuple(like.shape)])
    monkeypatch.setattr(layer, "_signs", lambda like: signs[like.shape[layer.channel_axis]])


@pytest.mark.parametrize("bias", [True, False])
def test_the_divergence_is_that_of_the_distributions(bias):
    network = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.ReLU(), nn.Conv2d(2, 3, 2)).double()
    network = variational_network(network, initial_std=0.1, generator=make_generator(0))
    layers = [with_random_moments(network[0]), with_random_moments(network[2])]
    moments = [pair for layer in layers for pair in layer.moments().values()]
    mean, std = (torch.cat([pair[part].flatten() for pair in moments]) for part in (0, 1))
    for precision, centre in ((3.0, 0.0), (0.2, -0.4), (noise(len(mean)).exp(), noise(len(mean), seed=6))):
        scale = torch.as_tensor(precision, dtype=torch.float64) ** -0.5
        prior = torch.distributions.Normal(torch.as_tensor(centre, dtype=torch.float64), scale)
        expected = torch.distributions.kl_divergence(torch.distributions.Normal(mean, std), prior).sum()
        assert kl_divergence(network, precision, centre).item() == pytest.approx(expected.item(), rel=1e-10)
    assert len(moments) == 3 + bias


def test_the_divergence_from_itself_is_zero_and_float64():
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 0.25)
    nn.init.constant_(layer.bias, 0.25)
    network = variational_network(layer, initial_std=0.5, generator=make_generator(0))
    value = kl_divergence(network, 4.0, 0.25)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("std", [1e-7, 1e-3, 0.05, 1.0, 30.0])
def test_layers_start_at_the_weights_and_the_given_std(std):
    original = mlp()
    layer = VariationalLinear(original[0], std, generator=make_generator(0))
    (mean, weight_std), (bias, bias_std) = layer.moments().values()
    assert torch.equal(mean, original[0].weight)
    assert torch.equal(bias, original[0].bias)
    assert torch.allclose(weight_std, torch.full_like(mean, std), rtol=1e-6, atol=0)
    assert torch.allclose(bias_std, torch.full_like(bias, std), rtol=1e-6, atol=0)
    assert mean.data_ptr() != original[0].weight.data_ptr()


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("shape", [(3, 4, 9, 8), (4, 9, 8)], ids=["batch", "one image"])
def test_eval_mode_is_the_layer_itself(options, shape, untouched_rng):
    original, generator = convolution(**options), make_generator(0)
    layer = VariationalConv2d(original, 0.3, generator=generator).eval()
    inputs = noise(*shape)
    assert torch.equal(layer(inputs), original(inputs))
    assert torch.equal(generator.get_state(), make_generator(0).get_state())


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_flipout_is_a_convolution_with_weights_for_each_point(options, monkeypatch):
    original = convolution(**options)
    layer = with_random_moments(VariationalConv2d(original, 0.3, generator=make_generator(0)))
    inputs, groups = noise(5, 4, 9, 8), original.groups
    perturbation = {tuple(mean.shape): noise(*mean.shape, seed=9) for mean, _ in layer.moments().values()}
    signs = {channels: noise(5, channels, 1, 1, seed=channels).sign() for channels in (4, 8)}
    fixed_noise(monkeypatch, layer, perturbation, signs)
    outputs = layer(inputs)
    for n, point in enumerate(inputs):
        parameters = {}
        for name, (mean, std) in layer.moments().items():
            shift = std * perturbation[tuple(mean.shape)] * signs[8][n].view(-1, *[1] * (mean.ndim - 1))
            if name == "weight":  # each output channel sees the inputs of its group
                seen = signs[4][n].view(groups, 1, -1).expand(-1, 8 // groups, -1).reshape(8, -1, 1, 1)
                shift = shift * seen
            parameters[name] = mean + shift
        assert torch.allclose(outputs[n], functional_call(original, parameters, (point,)), rtol=1e-10, atol=1e-12)


def test_flipout_is_a_linear_layer_with_weights_for_each_point(monkeypatch):
    layer = with_random_moments(VariationalLinear(build(lambda: nn.Linear(4, 3)), 0.3, generator=make_generator(0)))
    inputs = noise(5, 4)
    perturbation = {tuple(mean.shape): noise(*mean.shape, seed=9) for mean, _ in layer.moments().values()}
    signs = {channels: noise(5, channels, seed=channels).sign() for channels in (4, 3)}
    fixed_noise(monkeypatch, layer, perturbation, signs)
    (weight, weight_std), (bias, bias_std) = layer.moments().values()
    weights = weight + weight_std * perturbation[3, 4] * signs[3].unsqueeze(2) * signs[4].unsqueeze(1)
    biases = bias + bias_std * perturbation[3,] * signs[3]
    expected = torch.einsum("noi,ni->no", weights, inputs) + biases
    assert torch.allclose(layer(inputs), expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def passes(layer, inputs, count):
    return torch.stack([layer(inputs) for _ in range(count)])


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [("flipout", "linear"), ("local", "linear"), ("plain", "linear"), ("flipout", "conv"), ("plain", "conv")],
)
def test_outputs_have_the_mean_and_variance_of_the_closed_form(estimator, kind, untouched_rng):
    generator, count = make_generator(3), 4000
    options = {"generator": generator, "estimator": estimator}
    if kind == "linear":
        layer, inputs = VariationalLinear(build(lambda: nn.Linear(4, 3)), 0.3, **options), noise(2, 4)
    else:
        layer, inputs = VariationalConv2d(convolution(groups=2, padding=1), 0.3, **options), noise(2, 4, 3, 3)
    with_random_moments(layer)
    draws = passes(layer, inputs, count)
    (weight, weight_std), (bias, bias_std) = layer.moments().values()
    mean = layer.transform(inputs, weight, bias)
    variance = layer.transform(inputs**2, weight_std**2, bias_std**2)
    assert bool(((draws.mean(0) - mean).abs() < 5 * (variance / count).sqrt()).all())
    assert bool(((draws.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / count)).all())


@pytest.mark.parametrize(("estimator", "shared"), [("flipout", False), ("local", False), ("plain", True)])
def test_points_have_perturbations_of_their_own_except_in_plain(estimator, shared):
    layer = VariationalLinear(build(lambda: nn.Linear(4, 2)), 0.3, generator=make_generator(3), estimator=estimator)
    count = 2000
    draws = passes(layer, noise(1, 4).expand(5, 4), count)
    for output in range(2):
        correlation = torch.corrcoef(draws[:, :, output].T)
        others = correlation[~torch.eye(5, dtype=torch.bool)]
        if shared:
            assert torch.allclose(others, torch.ones_like(others), atol=1e-10)
        else:
            assert float(others.abs().max()) < 5 / math.sqrt(count)


def test_all_locations_of_a_point_share_their_weights():
    """A constant image has constant outputs, and equal positions of a sequence equal ones; points differ."""
    options = {"generator": make_generator(3)}
    image = VariationalConv2d(convolution(), 0.3, **options)(torch.ones(2, 4, 6, 6).double())
    assert torch.allclose(image, image[:, :, :1, :1].expand_as(image))
    sequence = VariationalLinear(build(lambda: nn.Linear(4, 3)), 0.3, **options)(noise(1, 1, 4).expand(2, 5, 4))
    assert torch.allclose(sequence, sequence[:, :1].expand_as(sequence))
    for outputs in (image, sequence):
        assert not torch.allclose(outputs[0], outputs[1])


@pytest.mark.parametrize("estimator", ["flipout", "local", "plain"])
def test_one_point_alone_is_a_batch_of_one(estimator):
    layer = VariationalLinear(build(lambda: nn.Linear(4, 3)), 0.3, generator=make_generator(0), estimator=estimator)
    alone = layer(noise(4))
    layer.generator = make_generator(0)
    assert torch.allclose(layer(noise(1, 4))[0], alone)


def likelihood_gradients(make, estimator, inputs, labels, repetitions, initial_std=0.1):
    """Gradients of the log-likelihood over a batch by all means and by all raw stds, (repetitions, d) each."""
    network = variational_network(make(), initial_std=initial_std, estimator=estimator, generator=make_generator(3))
    named = dict(network.train().named_parameters())
    groups = [[p for name, p in named.items() if name.endswith(end)] for end in ("_mean", "_raw_std")]
    rows = ([], [])
    for _ in range(repetitions):
        value = Categorical().log_prob(network(inputs), labels).sum()
        for group, row in zip(groups, rows, strict=True):
            row.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, group, retain_graph=True)]))
    return tuple(torch.stack(row) for row in rows)


@pytest.mark.parametrize(
    ("make", "shape", "estimators"),
    [(mlp, (6,), ("flipout", "local")), (convolutional, (2, 5, 5), ("flipout",))],
    ids=["mlp", "convolutional"],
)
def test_gradients_are_unbiased_and_less_noisy_than_plain_ones(make, shape, estimators):
    """Measured at 256 points: 0.1 to 0.3 of plain's variance by the means, 0.05 to 0.4 by the standard deviations."""
    repetitions = 300
    inputs = noise(256, *shape)
    labels = torch.randint(3, (256,), generator=make_generator(8))
    plain = likelihood_gradients(make, "plain", inputs, labels, repetitions)
    for estimator in estimators:
        other = likelihood_gradients(make, estimator, inputs, labels, repetitions)
        for ours, theirs in zip(other, plain, strict=True):
            assert float(ours.var(0).sum() / theirs.var(0).sum()) < 0.5
            error = ((ours.var(0) + theirs.var(0)) / repetitions).sqrt()
            offset = (ours.mean(0) - theirs.mean(0)) / error.clamp_min(1e-12)
            assert float(offset.abs().max()) < 5.5
            assert float(offset.square().mean()) == pytest.approx(1.0, abs=0.5)


def test_local_gradients_are_finite_where_outputs_have_no_variance():
    layer = VariationalLinear(nn.Linear(3, 2, bias=False), 0.1, generator=make_generator(0), estimator="local")
    layer(torch.zeros(4, 3)).sum().backward()
    assert torch.equal(layer.weight_raw_std.grad, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("estimator", "kl_weight", "batch_size", "mean_error", "std_error"),
    [
        ("flipout", 1.0, 600, 0.06, 0.25),
        ("flipout", 0.5, 201, 0.08, 0.25),
        ("local", 1.0, 600, 0.05, 0.04),
        ("plain", 1.0, 600, 0.4, 0.25),
    ],
)
def test_conjugate_regression_is_solved(estimator, kl_weight, batch_size, mean_error, std_error):
    """Mean-field has the exact mean, and the diagonal of the exact precision; tempering divides the noise variance.

    Twenty copies of each point, of a twentieth of its weight, leave the answer as it is and average the noise of
    estimators that treat points separately. All outputs have the same standard deviations, so these average too.
    """
    target = regression(num_points=30, num_features=3, num_outputs=50, std=1.0)
    weights = 0.5 + noise(30).abs()
    design = target.model.head.augment(target.data.inputs)
    weighted = design * weights.unsqueeze(1) / kl_weight
    precision = weighted.T @ design + 1.7 * torch.eye(4, dtype=torch.float64)
    mean = torch.linalg.solve(precision, weighted.T @ target.data.targets + 1.7 * 0.2).T
    fit = fit_flipout(
        build(lambda: nn.Linear(3, 50)),
        Batch(target.data.inputs.repeat(20, 1), target.data.targets.repeat(20, 1), weights.repeat(20) / 20),
        likelihood=GaussianNoise(1.0),
        prior_precision=1.7,
        prior_mean=0.2,
        kl_weight=kl_weight,
        estimator=estimator,
        num_epochs=800 * batch_size // 600,
        batch_size=batch_size,
        learning_rate=0.03,
        generator=make_generator(0),
    )
    std = precision.diagonal().rsqrt()
    errors = (target.model.head.to_matrix(fit.posterior.mean) - mean) / std
    ratios = target.model.head.to_matrix(fit.posterior.scale.std) / std
    assert float(errors.abs().max()) < mean_error
    assert float((ratios - 1).abs().max()) < std_error
    assert float((ratios.mean(0) - 1).abs().max()) < std_error / math.sqrt(50)


def test_the_trace_is_the_elbo_of_all_data():
    """At rest, each epoch estimates one number: here known in closed form."""
    target = regression(num_points=30, num_features=3, num_outputs=2, std=1.0)
    layer = build(lambda: nn.Linear(3, 2))
    options = {"likelihood": GaussianNoise(1.0), "prior_precision": 1.7, "kl_weight": 0.3, "generator": make_generator(0)}
    fit = fit_flipout(layer, target.data, num_epochs=100, batch_size=7, learning_rate=1e-12, initial_std=0.2, **options)
    with torch.no_grad():
        square = 0.2**2 * target.model.head.augment(target.data.inputs).square().sum() * 2
        expected = GaussianNoise(1.0).log_prob(layer(target.data.inputs), target.data.targets).sum() - 0.5 * square
        expected -= 0.3 * kl_divergence(variational_network(layer, initial_std=0.2, generator=make_generator(0)), 1.7)
    assert fit.trace.shape == (100,)
    assert fit.trace.dtype == torch.float64
    assert fit.trace.mean().item() == pytest.approx(expected.item(), abs=5 * float(fit.trace.std()) / math.sqrt(100))


def test_networks_learn():
    data = images(200)
    network = normalised()
    fit = fit_flipout(network, data, prior_precision=1.0, num_epochs=40, learning_rate=1e-2, generator=make_generator(0))
    assert fit.trace[-5:].mean() > fit.trace[:5].mean() + 50
    assert float((fit.network(data.inputs).argmax(1) == data.targets).double().mean()) > 0.9
    assert fit.seconds > 0


def test_the_posterior_is_over_the_listed_parameters_in_their_order():
    network = normalised()
    fit = fit_flipout(network, images(), prior_precision=1.0, num_epochs=2, generator=make_generator(0))
    listed = [name for name, _ in network.named_parameters() if not name.startswith("1.")]
    assert list(fit.names) == listed == ["0.weight", "5.weight", "5.bias"]
    sizes = [network.get_parameter(name).numel() for name in listed]
    assert fit.posterior.dim == sum(sizes)
    parts = zip(listed, fit.posterior.mean.split(sizes), strict=True)
    parameters = {name: part.view_as(network.get_parameter(name)) for name, part in parts}
    points = {name: value for name, value in fit.network.state_dict().items() if name.startswith("1.")}
    expected = functional_call(network.eval(), {**parameters, **points}, (images().inputs,))
    assert torch.allclose(fit.network(images().inputs), expected)
    assert torch.equal(fit.posterior.scale.std[: sizes[0]], fit.network[0].moments()["weight"][1].flatten())
    assert not fit.posterior.mean.requires_grad
    assert not fit.posterior.scale.std.requires_grad


def test_other_layers_are_trained_as_points_and_statistics_follow():
    network = normalised()
    fit = fit_flipout(network, images(), prior_precision=1.0, num_epochs=2, generator=make_generator(0))
    assert not torch.equal(fit.network[1].weight, network[1].weight)
    assert not torch.equal(fit.network[1].running_mean, network[1].running_mean)
    assert int(network[1].num_batches_tracked) == 0
    assert not fit.network.training


class Recorder(nn.Module):
    """Keeps what passes through in train mode."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, inputs):
        if self.training:
            self.seen.append(inputs.clone())
        return inputs


def test_an_epoch_has_every_point_once_in_shuffled_batches_of_equal_size():
    """Of BatchNorm's 33 points, batches of 16 would leave one alone."""
    data = Batch(noise(33, 6), torch.arange(33) % 3)
    network = build(lambda: nn.Sequential(Recorder(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    fit = attempt(network, data, num_epochs=2, batch_size=16)
    seen = fit.network[0].seen
    assert [len(batch) for batch in seen] == [11] * 6
    epochs = [torch.cat(seen[:3]), torch.cat(seen[3:])]
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert not torch.equal(epoch, data.inputs)
        assert torch.equal(epoch.sort(0).values, data.inputs.sort(0).values)


def test_frozen_parameters_stay_as_they_are():
    network = normalised()
    network[:2].requires_grad_(False)
    fit = fit_flipout(network, images(), prior_precision=1.0, num_epochs=1, generator=make_generator(0))
    assert torch.equal(fit.network[0].weight, network[0].weight)
    assert torch.equal(fit.network[1].weight, network[1].weight)
    assert fit.names
    assert not any(name.startswith(("0.", "1.")) for name in fit.names)
    assert not torch.equal(fit.plain[-1].weight, network[-1].weight)
    with pytest.raises(ValueError, match=r"nn\.Conv2d that is not frozen, got .*unfreeze one with `requires_grad_"):
        fit_flipout(network.requires_grad_(False), images(), prior_precision=1.0, generator=make_generator(0))


def test_the_given_network_is_not_modified():
    network = normalised().train()
    network[1].eval()
    before, modes = copy.deepcopy(network.state_dict()), [part.training for part in network.modules()]
    with torch.no_grad():  # gradients switched off outside must not matter
        fit_flipout(network, images(), prior_precision=1.0, num_epochs=2, generator=make_generator(0))
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [part.training for part in network.modules()] == modes
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone():
    """Also with dropout, which knows the global generator only."""
    traces = []
    for global_seed, seed in ((1, 7), (2, 7), (1, 8)):
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            state = torch.get_rng_state()
            fit = fit_flipout(normalised(), images(), prior_precision=1.0, num_epochs=3, generator=make_generator(seed))
            assert torch.equal(torch.get_rng_state(), state)
        traces.append((fit.trace, fit.posterior.mean, fit.posterior.scale.std))
    assert all(torch.equal(*pair) for pair in zip(*traces[:2], strict=True))
    assert not torch.equal(traces[0][0], traces[2][0])


def test_the_global_state_is_put_back_after_an_error():
    state = torch.get_rng_state()
    with pytest.raises(FitError):
        fit_flipout(normalised(), images(), prior_precision=1.0, learning_rate=1e308, generator=make_generator(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_eval_mode_is_deterministic_and_train_mode_is_not():
    network = variational_network(mlp(), initial_std=0.1, generator=make_generator(0))
    inputs = noise(3, 6)
    assert torch.equal(network.eval()(inputs), network(inputs))
    assert torch.equal(network(inputs), mlp()(inputs))
    assert not torch.equal(network.train()(inputs), network(inputs))


def test_a_network_can_be_copied_with_its_noise():
    network = variational_network(mlp(), initial_std=0.1, generator=make_generator(0))
    duplicate = copy.deepcopy(network)
    assert duplicate[0].generator is duplicate[2].generator
    assert torch.equal(network(noise(3, 6)), duplicate(noise(3, 6)))


def test_a_layer_by_itself_is_a_network():
    network = variational_network(nn.Linear(3, 2), initial_std=0.1, generator=make_generator(0))
    assert isinstance(network, VariationalLinear)
    assert "(2, 3), bias=True, estimator='flipout'" in repr(network)


def test_modes_are_kept_and_other_layers_stay():
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    shared = nn.Linear(3, 3)
    network = nn.Sequential(shared, Doubled(3, 3), nn.ModuleDict({"again": shared}), nn.BatchNorm1d(3)).eval()
    found = variational_network(network, initial_std=0.1, generator=make_generator(0))
    assert found[0] is found[2]["again"]
    assert isinstance(found[0], VariationalLayer)
    assert type(found[1]) is Doubled
    assert found[3] is not network[3]
    assert not any(part.training for part in found.modules())
    assert network[0] is shared


def test_every_likelihood_runs_in_single_precision():
    inputs = features(20, 3, dtype=torch.float32)
    cases = [
        (Categorical(), 2, (inputs[:, 0] > 0).long()),
        (Bernoulli(), 1, inputs[:, 0] > 0),
        (GaussianNoise(0.5), 1, inputs[:, 0].double()),
    ]
    for likelihood, outputs, targets in cases:
        fit = fit_flipout(
            nn.Linear(3, outputs),
            Batch(inputs, targets),
            likelihood=likelihood,
            prior_precision=1.0,
            num_epochs=2,
            generator=make_generator(0),
        )
        assert fit.posterior.mean.dtype == torch.float32
        assert fit.trace.dtype == torch.float64


def attempt(network=None, data=None, **options):
    network, data = (
        mlp() if network is None else network,
        Batch(noise(10, 6), torch.arange(10) % 3) if data is None else data,
    )
    return fit_flipout(network, data, **{"prior_precision": 1.0, "num_epochs": 1, "generator": make_generator(0), **options})


@pytest.mark.parametrize("name", ["initial_std", "prior_precision", "kl_weight", "learning_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_options_that_are_not_positive_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be positive and finite, got {value:g}"):
        attempt(**{name: value})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"network": nn.Sequential(nn.ReLU(), nn.Flatten())},
            ValueError,
            "must have an nn.Linear or nn.Conv2d that is not frozen, got Flat",
        ),
        ({"network": torch.relu}, TypeError, r"`network` must be a torch\.nn\.Module, got builtin"),
        ({"estimator": "flip"}, ValueError, "`estimator` must be one of 'flipout', 'local', 'plain', got 'flip'"),
        ({"network": convolutional(), "estimator": "local"}, ValueError, "got 'local'.* Use estimator='flipout'"),
        ({"num_epochs": 0}, ValueError, "`num_epochs` must be at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        ({"prior_precision": torch.ones(3)}, ValueError, r"`prior_precision` must be a number or have shape \(163,\)"),
        ({"prior_mean": math.nan}, ValueError, "`prior_mean` must be finite"),
        ({"data": (noise(10, 6), torch.arange(10))}, TypeError, "`data` must be a Batch, got tuple"),
        ({"data": Batch(noise(9, 6).float(), torch.arange(9))}, TypeError, r"`data\.inputs` must be torch\.float64 on cpu"),
        ({"data": Batch(noise(9, 5), torch.arange(9))}, ValueError, r"must be what the network takes, but .* RuntimeError"),
        ({"data": Batch(noise(9, 6), torch.arange(9))}, ValueError, r"`targets` must lie in 0\.\.2"),
        ({"data": Batch(noise(9, 4, 6), torch.arange(9))}, ValueError, r"outputs of shape \(N, C\), got \(2, 4, 3\)"),
        ({"likelihood": Bernoulli()}, ValueError, "Bernoulli needs exactly 1 output, got 3"),
        ({"likelihood": "categorical"}, TypeError, "`likelihood` must be a Likelihood, got 'categorical'"),
        ({"generator": 0}, TypeError, r"`generator` must be a torch\.Generator, got int"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        attempt(**options)


def test_a_generator_elsewhere_is_refused():
    with pytest.raises(ValueError, match="`generator` must live on meta, where the tensors are, got one on cpu"):
        variational_network(nn.Linear(3, 2, device="meta"), initial_std=0.1, generator=make_generator(0))


def test_tied_parameters_are_refused():
    network = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4))
    network[1].weight = network[0].weight
    with pytest.raises(ValueError, match=r"must not tie parameters .* shared by '0\.weight' and '1\.weight'"):
        variational_network(network, initial_std=0.1, generator=make_generator(0))


def test_sequences_are_refused_by_the_local_estimator():
    layer = VariationalLinear(nn.Linear(3, 2), 0.1, generator=make_generator(0), estimator="local")
    with pytest.raises(ValueError, match=r"inputs of shape \(N, P\) .* got \(5, 4, 3\).* Use estimator='flipout'"):
        layer(torch.zeros(5, 4, 3))


def test_a_divergence_needs_variational_layers():
    with pytest.raises(ValueError, match="must have variational layers, got none"):
        kl_divergence(mlp(), 1.0)


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_training_that_leaves_the_numbers_is_a_fit_error(num_epochs):
    """After one step, too, whose ELBO was still finite."""
    with pytest.raises(FitError, match=r"left the finite numbers in epoch 1 .*use a smaller `learning_rate`"):
        attempt(num_epochs=num_epochs, learning_rate=1e308)


def test_a_network_that_gives_nan_is_a_fit_error():
    class Root(nn.Module):
        def forward(self, inputs):
            return inputs.sqrt()

    with pytest.raises(FitError, match="check that `network` is finite on all of `data`"):
        attempt(nn.Sequential(Root(), nn.Linear(6, 3).double()))


def test_the_plain_network_predicts_with_the_means_and_takes_draws():
    """Also the running statistics and affine parameters of its batch norm are those of the training."""
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    inputs = torch.randn(40, 1, 4, 4, generator=make_generator(0), dtype=torch.float64) + 2.0
    data = Batch(inputs, (inputs.mean((1, 2, 3)) > 2.0).long())
    fit = fit_flipout(network, data, prior_precision=1.0, num_epochs=3, batch_size=10, generator=make_generator(1))
    torch.testing.assert_close(fit.plain(inputs), fit.network(inputs))
    assert not torch.allclose(fit.plain[1].running_mean, network[1].running_mean)
    model, theta = flatten_network(fit.plain, fit.names, example=inputs)
    assert torch.equal(theta, fit.posterior.mean)
    draw = fit.posterior.sample(1, generator=make_generator(2))
    assert not torch.allclose(model(draw, inputs)[0], fit.plain(inputs))
