"""Networks as functions of one vector: outputs and gradients against the network's own, what is refused, what stays."""

import copy
import math

import pytest
import torch
from torch import nn

from burnish import predictive
from burnish import target as target_module
from burnish.batches import Batch
from burnish.flat_network import FlatNetwork, flatten_network
from burnish.inference.flow import fit_flow
from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.prior import tune_prior
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import Gaussian, SamplePosterior
from burnish.predictive import predict
from burnish.target import Target
from burnish.verdict import judge
from networks import randomised, state_of


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64).to(dtype)


class Recurrent(nn.Module):
    """Its weights cannot be batched."""

    def __init__(self):
        super().__init__()
        self.rnn, self.last = nn.LSTM(2, 3, num_layers=2, batch_first=True), nn.Linear(3, 4)

    def forward(self, x):
        return self.last(self.rnn(x)[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Attention(nn.Module):
    """Linear layers that are not called as modules, on sequences."""

    def __init__(self):
        super().__init__()
        self.query, self.value, self.last = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)

    def forward(self, x):
        scores = self.query(x) @ x.transpose(-1, -2)
        return nn.functional.linear((scores.softmax(-1) @ self.value(x)).mean(1), self.last.weight, self.last.bias)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2, dilation=2, bias=False),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


# name: network, shape of one point
NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 4, bias=False), nn.Tanh()), (3,)),
    "cnn": (convolutional, (2, 7, 7)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 4)), (2, 4)),
    "lstm": (Recurrent, (5, 2)),
    "tied": (Tied, (3,)),
    "attention": (Attention, (3, 4)),
}


def build(name, dtype=torch.float64):
    """A network in eval mode, and inputs for it."""
    make, shape = NETWORKS[name]
    return randomised(make().to(dtype).eval()), draw(6, *shape, seed=1, dtype=dtype)


def flat(name, parameters=None, **options):
    network, inputs = build(name)
    model, theta = flatten_network(network, parameters, example=inputs[:2], **options)
    return network, inputs, model, theta


@torch.no_grad()
def outputs_of(network, head, theta, inputs):
    """Those of a copy that holds theta: no functional call, no batching."""
    duplicate = copy.deepcopy(network).eval()
    every = dict(duplicate.named_parameters()) | dict(duplicate.named_buffers())
    start = 0
    for name in head.names:
        size = every[name].numel()
        every[name].copy_(theta[start : start + size].view(every[name].shape))
        start += size
    assert start == len(theta)
    return duplicate(inputs)


close = {"rtol": 1e-10, "atol": 1e-12}


# Outputs


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_own_parameters_give_the_networks_outputs(name, dtype):
    network, inputs = build(name, dtype)
    model, theta = flatten_network(network, example=inputs[:2])
    assert theta.dtype == dtype
    assert theta.shape == (model.head.dim,) == (sum(parameter.numel() for parameter in network.parameters()),)
    assert model.head.names == tuple(name for name, _ in network.named_parameters())
    assert model.head.num_outputs == 4
    assert model.head.input_shape == inputs.shape[1:]
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else close
    with torch.no_grad():
        torch.testing.assert_close(model(theta, inputs), network(inputs), **tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_other_parameters_one_at_a_time_and_together(name):
    network, inputs, model, theta = flat(name)
    rows = theta + 0.5 * draw(5, len(theta), seed=2)
    expected = torch.stack([outputs_of(network, model.head, row, inputs) for row in rows])
    with torch.no_grad():
        torch.testing.assert_close(torch.stack([model(row, inputs) for row in rows]), expected, **close)
        torch.testing.assert_close(model(rows, inputs), expected, **close)
        torch.testing.assert_close(model(rows[:1], inputs), expected[:1], **close)
        torch.testing.assert_close(model(rows[:4].view(2, 2, -1), inputs), expected[:4].view(2, 2, 6, 4), **close)
    assert float((expected[0] - expected[1]).abs().max()) > 0.01


def test_what_cannot_be_batched_runs_one_after_the_other():
    assert not flat("lstm")[2].head.vectorised
    for name in ("mlp", "cnn", "tied", "attention"):
        assert flat(name)[2].head.vectorised


def test_a_branch_on_numbers_runs_one_after_the_other():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 4)

        def forward(self, x):
            outputs = self.last(x)
            return 2.0 * outputs if float(outputs.detach().sum()) > 0 else outputs

    network, inputs = randomised(Branching().double().eval()), draw(6, 3)
    model, theta = flatten_network(network, example=inputs)
    assert not model.head.vectorised
    with torch.no_grad():
        outputs = model(torch.stack([theta, -theta]), inputs)
        torch.testing.assert_close(outputs[0], network(inputs), **close)
    assert {round(float(a / b), 6) for a, b in zip(outputs[0].flatten(), -outputs[1].flatten(), strict=True)} <= {0.5, 2.0}


def test_outputs_that_are_wrong_when_batched_are_not():
    """A network that looks at a batch dimension which is not there is run one vector at a time."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, x):
            batched = torch._C._functorch.is_batchedtensor(self.weight)
            return x @ self.weight + (1.0 if batched else 0.0)

    network, inputs = randomised(Odd().double().eval()), draw(6, 3)
    model, theta = flatten_network(network, example=inputs)
    assert not model.head.vectorised
    with torch.no_grad():
        torch.testing.assert_close(model(theta.expand(2, -1), inputs)[1], network(inputs), **close)


# Some of the parameters


@pytest.mark.parametrize(
    ("name", "parameters", "names"),
    [
        ("cnn", ["8", "0"], ("0.weight", "0.bias", "8.weight", "8.bias")),
        ("cnn", ["8.bias", "3.weight"], ("3.weight", "8.bias")),
        ("cnn", "8", ("8.weight", "8.bias")),
        ("cnn", ["1", "1.weight"], ("1.weight", "1.bias")),
        ("lstm", ["last"], ("last.weight", "last.bias")),
        ("lstm", ("rnn.bias_ih_l1", "last.weight"), ("rnn.bias_ih_l1", "last.weight")),
        ("tied", ["last", "second"], ("first.weight", "second.bias", "last.weight", "last.bias")),
        ("tied", ["second.weight"], ("first.weight",)),
    ],
)
def test_some_parameters_in_the_networks_own_order(name, parameters, names):
    network, inputs, model, theta = flat(name, parameters)
    assert model.head.names == names
    every = dict(network.named_parameters())
    assert torch.equal(theta, torch.cat([every[part].detach().flatten() for part in names]))
    rows = theta + 0.5 * draw(3, len(theta), seed=2)
    expected = torch.stack([outputs_of(network, model.head, row, inputs) for row in rows])
    with torch.no_grad():
        torch.testing.assert_close(model(rows, inputs), expected, **close)
    assert float((expected[0] - expected[1]).abs().max()) > 0.001


def test_a_name_is_not_the_beginning_of_another():
    network = nn.ModuleDict({"fc": nn.Linear(3, 3), "fc2": nn.Linear(3, 2)})
    network.forward = lambda x: network["fc2"](network["fc"](x))
    model, _ = flatten_network(network.eval(), ["fc"], example=torch.zeros(1, 3))
    assert model.head.names == ("fc.weight", "fc.bias")


def test_the_others_keep_the_values_that_the_network_has():
    network, inputs, model, theta = flat("mlp", ["2"])
    with torch.no_grad():
        before = model(theta, inputs)
        network[0].weight.mul_(2.0)
        torch.testing.assert_close(model(theta, inputs), network(inputs), **close)
        network[2].weight.zero_()  # theta has that one
        assert torch.equal(model(theta, inputs), model(theta.clone(), inputs))
        assert not torch.equal(model(theta, inputs), before)
        assert float(model(theta, inputs).abs().max()) > 0.0


def test_buffers_are_a_part_of_theta_where_wanted():
    network, inputs, model, theta = flat("cnn", buffers=True)
    assert model.head.names[-2:] == ("1.running_mean", "1.running_var")
    assert torch.equal(theta[-8:], torch.cat([network[1].running_mean, network[1].running_var]))
    rows = theta + 0.1 * draw(3, len(theta), seed=2).abs()
    expected = torch.stack([outputs_of(network, model.head, row, inputs) for row in rows])
    with torch.no_grad():
        torch.testing.assert_close(model(rows, inputs), expected, **close)
    _, _, model, _ = flat("cnn", ["1"], buffers=True)
    assert model.head.names == ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    _, _, model, _ = flat("cnn", ["1.running_var"], buffers=True)
    assert model.head.names == ("1.running_var",)


# Between vectors and networks


@pytest.mark.parametrize(("name", "options"), [("cnn", {}), ("cnn", {"buffers": True}), ("tied", {}), ("lstm", {})])
def test_flatten_and_unflatten_are_inverse(name, options):
    network, inputs, model, theta = flat(name, **options)
    other = randomised(copy.deepcopy(network), seed=12)
    vector = model.head.flatten(other)
    assert not torch.equal(vector, theta)
    assert not vector.requires_grad
    named = model.head.unflatten(vector)
    assert list(named) == list(model.head.names)
    assert torch.equal(torch.cat([part.flatten() for part in named.values()]), vector)
    fresh = copy.deepcopy(network)
    unknown = fresh.load_state_dict(named, strict=False).unexpected_keys
    assert unknown == []
    assert torch.equal(model.head.flatten(fresh), vector)
    if options or name != "cnn":  # without buffers, the statistics are not theta's
        with torch.no_grad():
            torch.testing.assert_close(fresh(inputs), other(inputs), **close)
    assert torch.equal(model.head.flatten(network), theta)


def test_unflatten_takes_many():
    _, _, model, theta = flat("mlp")
    named = model.head.unflatten(theta.expand(3, 2, -1))
    assert [tuple(part.shape) for part in named.values()] == [(3, 2, 5, 3), (3, 2, 5), (3, 2, 4, 5)]


def test_networks_of_another_architecture_are_not_flattened():
    head = flat("mlp")[2].head
    wide = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    message = r"`network` must have the same parameters .*got '0\.weight' of shape \(6, 3\) where \(5, 3\) was \(3 differ\)"
    with pytest.raises(ValueError, match=message):
        head.flatten(wide)
    with pytest.raises(
        ValueError, match=r"got '2\.weight' of shape None where \(4, 5\) was \(1 differ\)\. Pass networks of one"
    ):
        head.flatten(nn.Sequential(nn.Linear(3, 5)))


# Gradients


def weighted_target(name, likelihood=None, parameters=None):
    network, inputs, model, theta = flat(name, parameters, likelihood=likelihood)
    targets = draw(6, 4, seed=3)
    targets = targets if isinstance(likelihood, GaussianNoise) else targets.argmax(-1)
    data = Batch(inputs, targets, draw(6, seed=4).exp())
    return network, Target(model, data, 0.7, prior_mean=0.1), theta + 0.2 * draw(len(theta), seed=5)


def reference_gradient(network, target, theta):
    """Log posterior and gradient by the parameters of a copy."""
    duplicate = copy.deepcopy(network).eval()
    every = dict(duplicate.named_parameters())
    parameters = [every[name] for name in target.model.head.names]
    with torch.no_grad():
        nn.utils.vector_to_parameters(theta, parameters)
    outputs, targets = duplicate(target.data.inputs), target.data.targets
    if isinstance(target.model.likelihood, GaussianNoise):
        log_probs = torch.distributions.Normal(outputs, target.model.likelihood.std).log_prob(targets).sum(-1)
    else:
        log_probs = -nn.functional.cross_entropy(outputs, targets, reduction="none")
    prior = torch.distributions.Normal(*torch.tensor([0.1, 0.7**-0.5], dtype=torch.float64))
    value = (target.data.weights * log_probs).sum() + sum(prior.log_prob(parameter).sum() for parameter in parameters)
    grads = torch.autograd.grad(value, parameters)
    return value.detach(), torch.cat([grad.flatten() for grad in grads])


@pytest.mark.parametrize("likelihood", [None, GaussianNoise(0.6)])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_against_autograd(name, likelihood):
    network, target, theta = weighted_target(name, likelihood)
    rows = torch.stack([theta, theta + 0.1, 0.5 * theta])
    expected = [reference_gradient(network, target, row) for row in rows]
    values, grads = target.log_prob_and_grad(rows)
    torch.testing.assert_close(values, torch.stack([value for value, _ in expected]), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(grads, torch.stack([grad for _, grad in expected]), rtol=1e-8, atol=1e-8)
    value, grad = target.log_prob_and_grad(theta)
    torch.testing.assert_close(value, expected[0][0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(grad, expected[0][1], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(target.log_prob(theta).detach(), expected[0][0], rtol=1e-8, atol=1e-8)
    assert not grads.requires_grad


@pytest.mark.parametrize("parameters", [["8"], ["1"], ["0.bias", "3"]])
def test_gradients_of_some_parameters(parameters):
    network, target, theta = weighted_target("cnn", parameters=parameters)
    value, grad = target.log_prob_and_grad(theta)
    expected = reference_gradient(network, target, theta)
    torch.testing.assert_close(value, expected[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(grad, expected[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_linearise_gives_the_transposed_jacobian(name):
    network, inputs, model, theta = flat(name)
    cotangents = draw(2, 6, 4, seed=3)
    rows = torch.stack([theta, 0.5 * theta])
    with torch.no_grad():
        outputs, pullback = model.head.linearise(rows, inputs)
        found = pullback(cotangents)
    assert not outputs.requires_grad
    for row, output, cotangent, pulled in zip(rows, outputs, cotangents, found, strict=True):
        torch.testing.assert_close(output, outputs_of(network, model.head, row, inputs), **close)
        leaf = row.clone().requires_grad_()
        (expected,) = torch.autograd.grad((model(leaf, inputs) * cotangent).sum(), leaf)
        torch.testing.assert_close(pulled, expected, rtol=1e-8, atol=1e-10)
    step = 1e-6 * draw(len(theta), seed=6)
    with torch.no_grad():
        moved = (model(theta + step, inputs) - model(theta - step, inputs)) / 2
    assert float((moved * cotangents[0]).sum()) == pytest.approx(float(found[0] @ step), rel=1e-4)


def test_second_derivatives_exist():
    _, inputs, model, theta = flat("mlp")
    hessian = torch.autograd.functional.hessian(lambda t: model(t, inputs).logsumexp(-1).sum(), theta)
    assert float(hessian.abs().max()) > 0.01
    torch.testing.assert_close(hessian, hessian.T)


# The network stays as it was


def check_same(network, expected):
    found = state_of(network)
    assert all(torch.equal(*pair) for pair in zip(found.pop("tensors"), expected["tensors"], strict=True))
    assert found == {key: value for key, value in expected.items() if key != "tensors"}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_is_never_modified(name, training):
    network, inputs = build(name)
    given = inputs.clone()
    next(network.parameters()).requires_grad_(False)
    expected, random = state_of(network), torch.get_rng_state()
    model, theta = flatten_network(network, example=inputs)
    check_same(network, expected)
    if training:
        network.train()
        next(iter(network.children())).eval()  # some parts in train mode, others not
        expected = state_of(network)
        assert any(expected["flags"])
    rows = theta + 0.3 * draw(3, len(theta), seed=2)
    before = outputs_of(network, model.head, rows[1], inputs)
    with torch.no_grad():
        torch.testing.assert_close(model(rows, inputs)[1], before, **close)
        torch.testing.assert_close(model(rows[1], inputs), before, **close)
    Target(model, Batch(inputs, torch.zeros(6, dtype=torch.long)), 1.0).log_prob_and_grad(rows)
    theta.zero_()  # nor does it share the memory of theta
    check_same(network, expected)
    assert torch.equal(inputs, given)
    assert torch.equal(torch.get_rng_state(), random)


def test_modes_are_restored_after_an_error():
    network, inputs, model, theta = flat("cnn")
    network.train()
    expected = state_of(network)
    with pytest.raises(RuntimeError):
        model(theta, inputs[:, :1])
    check_same(network, expected)


# Memory


class Functional(nn.Module):
    """A convolutional network whose activations no module returns."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter(draw(8, 2, 3, 3))
        self.last = nn.Linear(8 * 25, 4).double()

    def forward(self, x):
        hidden = nn.functional.conv2d(x, self.filters).tanh()
        return self.last(hidden.flatten(1))


@pytest.mark.parametrize("frozen", [False, True])
def test_entries_count_what_is_kept_to_differentiate(frozen):
    """However the network is written, and whether its parameters ask for a gradient or not."""
    inputs = draw(6, 2, 7, 7)
    for count in (1, 6):
        network = Functional().requires_grad_(not frozen)
        assert flatten_network(network, example=inputs[:count])[0].head.entries == 8 * 25 + 4  # tanh's images, and outputs
    assert flat("lstm")[2].head.entries > 4


def batches_of(network):
    """The sizes of the batches that the network is given from now on."""
    sizes = []
    network.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    return sizes


def test_chunks_are_bounded_by_the_entries(monkeypatch):
    network, _, model, theta = flat("mlp")
    entries = model.head.entries
    assert entries > 4
    inputs = draw(300, 3)
    target = Target(model, Batch(inputs, torch.zeros(300, dtype=torch.long)), 1.0)
    whole = target.log_prob_and_grad(theta.expand(2, -1))
    averages = predict(model, SamplePosterior(theta.expand(5, -1)), inputs, generator=make_generator(0)).mean
    batch = target.subsampled(250)
    of_batch = batch.log_prob_and_grad(theta.expand(2, -1), generator=make_generator(1))
    monkeypatch.setattr(target_module, "_NETWORK_ENTRIES", {"cpu": 100 * 2 * entries})
    monkeypatch.setattr(predictive, "_CHUNK_ENTRIES", 90 * 5 * entries)
    sizes = batches_of(network)
    for found, expected in zip(target.log_prob_and_grad(theta.expand(2, -1)), whole, strict=True):
        torch.testing.assert_close(found, expected, **close)
    assert sizes == [100, 100, 100]
    sizes.clear()
    target.log_prob(theta.expand(2, -1))
    assert sizes == [100, 100, 100]
    sizes.clear()
    for found, expected in zip(
        batch.log_prob_and_grad(theta.expand(2, -1), generator=make_generator(1)), of_batch, strict=True
    ):
        torch.testing.assert_close(found, expected, **close)
    assert sizes == [100, 100, 50]
    sizes.clear()
    chunked = predict(model, SamplePosterior(theta.expand(5, -1)), inputs, num_samples=5, generator=make_generator(0))
    assert sizes == [90, 90, 90, 30]
    torch.testing.assert_close(chunked.mean, averages, **close)


# What is refused


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, x):
        return nn.functional.dropout(self.last(x), 0.5, training=True)


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.last, self.function = nn.Linear(3, 4), function

    def forward(self, x):
        return self.function(self.last(x))


def spoilt(network, value):
    with torch.no_grad():
        next(network.parameters()).view(-1)[1] = value
    return network


def mlp():
    return build("mlp", torch.float32)[0]


X = torch.ones(5, 3)

REFUSED = {
    "no module": (lambda: len, {}, TypeError, r"`network` must be a torch.nn.Module, got builtin_function_or_method"),
    "an array": (mlp, {"example": [[1.0]]}, TypeError, r"`example` must be a torch.Tensor, got list\. Convert"),
    "no points": (
        mlp,
        {"example": X[:0]},
        ValueError,
        r"`example` must be a batch of at least one point, got shape \(0, 3\)",
    ),
    "one point": (mlp, {"example": X[0]}, ValueError, r"`example` must be a batch of at least one point, got shape \(3,\)"),
    "unknown": (
        mlp,
        {"parameters": ["0.wieght"]},
        ValueError,
        r"`parameters` must name parameters or modules of the network, got '0\.wieght', which .*closest are: '0\.weight'",
    ),
    "unknown module": (mlp, {"parameters": ["7"]}, ValueError, r"got '7', which it does not have\. The closest are: '"),
    "a number": (mlp, {"parameters": 3}, TypeError, r"`parameters` must be names, got 3\. Pass a list of those of"),
    "no names": (mlp, {"parameters": []}, ValueError, r"`parameters` must name at least one parameter, got none\. Leave it"),
    "no parameters": (lambda: nn.Sequential(nn.ReLU()).eval(), {}, ValueError, r"`network` must have parameters, got none"),
    "a buffer": (
        lambda: build("cnn")[0],
        {"parameters": ["1.running_mean"]},
        ValueError,
        r"got '1\.running_mean', which it does not have",
    ),
    "batch norm in train mode": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        {},
        ValueError,
        r"`network` must be in eval mode, got BatchNorm1d '1' in train mode, .*Call `network.eval\(\)` first",
    ),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval(),
        {},
        ValueError,
        r"must normalise every point by itself, got BatchNorm1d '1' without running statistics\. Train .* or use LayerNorm",
    ),
    "instance norm in train mode": (
        lambda: nn.Sequential(nn.Conv1d(3, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True)),
        {},
        ValueError,
        r"got InstanceNorm1d '1' in train mode",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)),
        {},
        ValueError,
        r"`network` must be in eval mode, got Dropout '1' in train mode, whose outputs are random\. Call",
    ),
    "recurrent dropout": (
        lambda: Returns(nn.LSTM(3, 4, num_layers=2, dropout=0.5)),
        {},
        ValueError,
        r"got LSTM 'function' in train mode, whose outputs are random",
    ),
    "dropout of attention": (
        lambda: Returns(nn.MultiheadAttention(4, 2, dropout=0.1)),
        {},
        ValueError,
        r"got MultiheadAttention 'function' in train mode, whose outputs are random",
    ),
    "functional dropout": (
        lambda: randomised(Random().eval()),
        {},
        ValueError,
        r"must give the same outputs every time, got different ones .*functional dropout with training=True",
    ),
    "half precision": (
        lambda: mlp().half(),
        {"example": X.half()},
        TypeError,
        r"`network` must be float32 or float64, got torch.float16\. Convert it with `network.float\(\)`",
    ),
    "bfloat16": (lambda: mlp().bfloat16(), {}, TypeError, r"`network` must be float32 or float64, got torch.bfloat16"),
    "two precisions": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4).double()).eval(),
        {},
        TypeError,
        r"`network: 1\.weight` must be torch.float32 on cpu like its '0\.weight', got torch.float64",
    ),
    "not a number": (
        lambda: spoilt(mlp(), math.nan),
        {},
        ValueError,
        r"`network` must be finite, got 1 NaN or infinite of 40 .*check the training",
    ),
    "infinite": (lambda: spoilt(mlp(), math.inf), {}, ValueError, r"`network` must be finite, got 1 NaN or infinite"),
    "not a number elsewhere": (
        lambda: spoilt(mlp(), math.nan),
        {"parameters": ["2"]},
        ValueError,
        r"`network\(example\)` must be finite, .*Check the network's weights and the example",
    ),
    "wrong inputs": (
        mlp,
        {"example": torch.ones(5, 4)},
        ValueError,
        r"`network` must take the `example` it is given, but fails with RuntimeError: .*shape, type and device",
    ),
    "wrong precision": (mlp, {"example": X.double()}, ValueError, r"must take the `example` it is given, but fails with"),
    "an error": (
        lambda: Returns(lambda x: {}["missing"]).eval(),
        {},
        ValueError,
        r"must take the `example` it is given, but fails with KeyError: 'missing'",
    ),
    "a sequence": (
        lambda: Returns(lambda x: x.unsqueeze(1)).eval(),
        {},
        ValueError,
        r"`network` must return outputs of shape \(5, C\), got \(5, 1, 4\)\. Wrap it",
    ),
    "a vector": (lambda: Returns(lambda x: x.sum(1)).eval(), {}, ValueError, r"of shape \(5, C\), got \(5,\)"),
    "a sum": (lambda: Returns(lambda x: x.sum(0, keepdim=True)).eval(), {}, ValueError, r"of shape \(5, C\), got \(1, 4\)"),
    "a tuple": (lambda: Returns(lambda x: (x, x)).eval(), {}, ValueError, r"of shape \(5, C\), got tuple"),
    "two outputs for one logit": (mlp, {"likelihood": Bernoulli()}, ValueError, r"Bernoulli needs exactly 1 output, got 4"),
    "no likelihood": (mlp, {"likelihood": "softmax"}, TypeError, r"`likelihood` must be a Likelihood, got 'softmax'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, options, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        flatten_network(make(), **{"example": X, **options})


def test_errors_of_the_network_are_the_cause():
    with pytest.raises(ValueError, match="KeyError") as caught:
        flatten_network(Returns(lambda x: {}["missing"]).eval(), example=X)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("case", ["wrong inputs", "an error", "functional dropout", "a tuple"])
def test_a_refused_network_is_left_alone(case):
    make, options, error, _ = REFUSED[case]
    network = make()
    expected = state_of(network)
    with pytest.raises(error):
        flatten_network(network, **{"example": X, **options})
    check_same(network, expected)


def test_dropout_that_drops_nothing_is_no_obstacle():
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0))  # in train mode
    model, theta = flatten_network(network, example=X)
    with torch.no_grad():
        torch.testing.assert_close(model(theta, X), network(X))


@pytest.mark.parametrize("training", [False, True])
def test_instance_norm_is_no_obstacle(training):
    network = nn.Sequential(nn.Conv1d(2, 3, 3), nn.InstanceNorm1d(3), nn.Flatten(), nn.Linear(15, 4)).train(training)
    inputs = draw(6, 2, 7).float()
    model, theta = flatten_network(network, example=inputs)
    rows = theta + 0.1 * draw(3, len(theta)).float()
    with torch.no_grad():
        torch.testing.assert_close(model(theta, inputs), network(inputs))
        torch.testing.assert_close(model(rows, inputs)[1], model(rows[1], inputs))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (41,)])
def test_theta_of_the_wrong_length(shape):
    _, inputs, model, theta = flat("mlp")
    message = r"`theta` must have 40 entries in its last dimension, got shape .*Pass what `flatten_network` gave"
    with pytest.raises(ValueError, match=message):
        model(torch.zeros(shape, dtype=theta.dtype), inputs)


@pytest.mark.parametrize("shape", [(6, 2), (6, 2, 7), (6, 2, 7, 8), (6, 3, 7, 7)])
def test_inputs_of_the_wrong_shape(shape):
    _, _, model, theta = flat("cnn")
    inputs = draw(*shape)
    message = r"must have shape \('N', 2, 7, 7\) for this network, got .*Pass raw inputs, in the form of the `example`"
    with pytest.raises(ValueError, match=f"`data.inputs` {message}"):
        Target(model, Batch(inputs, torch.zeros(6, dtype=torch.long)), 1.0)
    with pytest.raises(ValueError, match=f"`inputs` {message}"):
        predict(model, SamplePosterior(theta.unsqueeze(0)), inputs, generator=make_generator(0))


@pytest.mark.parametrize("parameters", [None, ["2"]])
def test_inputs_of_another_precision_than_the_network(parameters):
    model, theta = flatten_network(mlp(), parameters, example=X)
    message = r"must be torch.float32 on cpu like the network, got torch.float64 on cpu\. Convert it with `\.to"
    with pytest.raises(TypeError, match=f"`data.inputs` {message}"):
        Target(model, Batch(X.double(), torch.zeros(len(X), dtype=torch.long)), 1.0)
    with pytest.raises(TypeError, match=f"`inputs` {message}"):
        predict(model, SamplePosterior(theta.unsqueeze(0)), X.double(), generator=make_generator(0))


# A posterior of a network, from end to end


def tiny():
    """Two classes that a line separates, and a network with three hidden units for them."""
    network = randomised(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval(), seed=3)
    inputs = draw(20, 2, seed=1)
    model, theta = flatten_network(network, example=inputs)
    return Target(model, Batch(inputs, (inputs.sum(1) > 0).long()), 6.0), theta


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), GaussianNoise(0.5)])
def test_predictions_are_averages_over_networks(likelihood):
    count = 1 if isinstance(likelihood, Bernoulli) else 2
    network = randomised(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, count)).double().eval())
    inputs = draw(7, 2)
    model, theta = flatten_network(network, example=inputs, likelihood=likelihood)
    rows = theta + 0.5 * draw(4, len(theta), seed=2)
    outputs = torch.stack([outputs_of(network, model.head, row, inputs) for row in rows])
    expected = outputs if isinstance(likelihood, GaussianNoise) else likelihood.probs(outputs)
    found = predict(model, SamplePosterior(rows), inputs, num_samples=4, generator=make_generator(0))
    torch.testing.assert_close(found.mean, expected.mean(0), **close)
    torch.testing.assert_close(found.epistemic_variance, expected.var(0), **close)


def test_flows_chains_and_verdicts_of_a_network():
    target, theta = tiny()
    before = state_of(target.model.head.network)
    base = fit_laplace(target, theta).posterior
    assert isinstance(base, Gaussian)
    assert isinstance(target.model.head, FlatNetwork)
    for options in ({"batch_size": 5, "control_variate": False}, {}):
        flow = fit_flow(target, base, generator=make_generator(0), max_steps=10, **options)
        assert flow.gain >= 0.0
        assert math.isfinite(flow.elbo)
    chains = fit_hmc(
        target, base, generator=make_generator(0), num_chains=4, num_warmup=30, min_draws=50, max_draws=50, min_ess=10.0
    )
    assert chains.accept_rate > 0.5
    assert chains.posterior.samples.shape == (200, target.dim)
    probs = predict(target.model, chains.posterior, target.data.inputs, generator=make_generator(0)).probs
    accuracy = float((probs.argmax(-1) == target.data.targets).double().mean())
    assert accuracy > 0.8
    verdict = judge(target, flow.posterior, base=base, num_draws=50, generator=make_generator(0))
    assert verdict.drift.moved
    assert verdict.drift.distance < 0.2
    of_samples = judge(target, chains.posterior, generator=make_generator(0))  # that have no coordinates of their own
    assert of_samples.drift.moved
    assert of_samples.drift.exact
    check_same(target.model.head.network, before)


def test_inputs_that_a_network_changes_are_refused_and_left_alone():
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
    inputs = draw(5, 3)
    before = inputs.clone()
    with pytest.raises(ValueError, match=r"`network` must leave its inputs as they are, but a layer changes them in place"):
        flatten_network(network, example=inputs)
    assert torch.equal(inputs, before)


def test_buffers_cannot_be_differentiated():
    network, inputs = build("cnn")
    model, theta = flatten_network(network, example=inputs, buffers=True)
    target = Target(model, Batch(inputs, torch.zeros(len(inputs), dtype=torch.long)), 1.0)
    with pytest.raises(ValueError, match=r"`theta` must hold parameters only .*Flatten the network with `buffers=False`"):
        target.log_prob_and_grad(theta)


def test_a_prior_of_a_network_is_not_tuned():
    target, _ = tiny()
    with pytest.raises(
        TypeError, match=r"must have a linear head here, got FlatNetwork.*compare priors by `compare_evidence`"
    ):
        tune_prior(target)


def test_parameters_themselves_are_no_names():
    network = nn.Sequential(nn.Linear(3, 2)).eval()
    with pytest.raises(
        TypeError, match=r"`parameters` must be names, got Parameter. Pass those of `network.named_parameters"
    ):
        flatten_network(network, network.parameters(), example=torch.zeros(2, 3))
