"""Splitting networks and caching features: what is found, what is refused, and that the network stays as it was."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from burnish.batches import Batch
from burnish.features import Backbone, extract_features, split_last_layer
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=make_generator(seed)).to(dtype)


def randomise(network):
    """Weights and statistics from one seed, so that no test depends on the global random state."""
    generator = make_generator(11)
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator).abs() + 0.1)
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.sub_(layer.weight.mean())
    return network


class Functional(nn.Module):
    """Flattens and activates in `forward`, with batch normalisation and dropout in between."""

    def __init__(self, bias=True):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(5, 3, bias=bias)

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(torch.flatten(x, 1))))
        return self.fc(self.drop(hidden))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Functional()

    def forward(self, x):
        return self.body(x)


class TwoNames(nn.Module):
    """The head under two names, one of them in a container."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU())
        self.fc = nn.Linear(5, 3)
        self.heads = nn.ModuleDict({"main": self.fc, "spare": nn.Linear(5, 3)})

    def forward(self, x):
        return self.heads["main"](self.body(x))


class Unused(nn.Module):
    """A linear layer that is registered last and never called, and one called first but registered after the head."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.body = nn.Linear(6, 5)
        self.spare = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.body(x.flatten(1))))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


NETWORKS = {
    "mlp": (mlp, "3"),
    "functional": (Functional, "fc"),
    "functional without bias": (lambda: Functional(bias=False), "fc"),
    "nested": (Nested, "body.fc"),
    "two names": (TwoNames, "fc"),
    "unused layers": (Unused, "fc"),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    make, head = NETWORKS[request.param]
    return randomise(make()), head


@pytest.fixture
def x():
    return draw(7, 2, 3)


def photograph(network):
    """All that a split could disturb."""
    return {
        "state": {name: value.clone() for name, value in network.state_dict().items()},
        "places": [tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())],
        "flags": [(p.requires_grad, p.grad) for p in network.parameters()],
        "modes": [part.training for part in network.modules()],
        "hooks": [
            (len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks)) for part in network.modules()
        ],
        "parts": [(name, id(part)) for name, part in network.named_modules(remove_duplicate=False)],
    }


def assert_unchanged(network, before):
    after = photograph(network)
    states = before.pop("state"), after.pop("state")
    assert after == before
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def mixed_modes(network):
    """Training mode, but for every second module."""
    for number, part in enumerate(network.modules()):
        part.training = number % 2 == 0
    return network


@pytest.mark.parametrize("named", [True, False])
def test_split_reproduces_the_network(case, named, x):
    network, head = case
    backbone, model, theta = split_last_layer(network, head if named else None, example=x)
    layer = network.get_submodule(head)
    assert theta.tolist() == [*layer.weight.flatten().tolist(), *([] if layer.bias is None else layer.bias.tolist())]
    assert not theta.requires_grad
    assert model.likelihood == Categorical()
    fresh = draw(4, 2, 3, seed=1)
    torch.testing.assert_close(model(theta, backbone(fresh)), network.eval()(fresh))


@pytest.mark.parametrize("name", ["fc", "heads.main"])
def test_either_name_of_a_head(name, x):
    network = randomise(TwoNames())
    backbone, model, theta = split_last_layer(network, name, example=x)
    torch.testing.assert_close(model(theta, backbone(x)), network(x))


def test_network_is_untouched(case, x):
    network, _ = case
    mixed_modes(network)
    next(iter(network.parameters())).requires_grad_(False)
    before = photograph(network)
    backbone, _, _ = split_last_layer(network, example=x)
    backbone(x)
    extract_features(backbone, (x, torch.zeros(7)))
    assert_unchanged(network, before)


def test_split_does_not_draw_random_numbers(case, x, untouched_rng):
    network, _ = case
    split_last_layer(network.train(), example=x)


def test_backbone_ignores_train(x):
    network = randomise(Functional())
    backbone, _, _ = split_last_layer(network, example=x)
    expected = backbone(x)
    before = photograph(network.train())
    assert torch.equal(backbone.train()(x), expected)
    assert network.drop.training
    assert network.norm.training
    assert_unchanged(network, before)


def test_submodules_are_shared(case, x):
    network, head = case
    backbone, _, theta = split_last_layer(network, example=x)
    owned = {parameter.data_ptr() for parameter in network.parameters()}
    taken = {parameter.data_ptr() for parameter in backbone.parameters()}
    layer = {parameter.data_ptr() for parameter in network.get_submodule(head).parameters()}
    assert taken == owned - layer
    assert theta.data_ptr() not in owned


def test_backbone_follows_the_network(x):
    network = randomise(mlp())
    backbone, _, _ = split_last_layer(network, example=x)
    with torch.no_grad():
        network[1].weight.mul_(2.0)
    assert torch.equal(backbone(x), network[:3](x))


def test_gradients_flow_through_the_backbone(x):
    network = randomise(Functional())
    backbone, _, _ = split_last_layer(network, example=x)
    backbone(x).sum().backward()
    assert network.first.weight.grad.abs().sum() > 0


def test_a_linear_layer_alone():
    network = randomise(nn.Linear(4, 2))
    backbone, model, theta = split_last_layer(network, example=draw(3, 4))
    assert torch.equal(backbone(draw(3, 4)), draw(3, 4))
    torch.testing.assert_close(model(theta, draw(3, 4)), network(draw(3, 4)))


@pytest.mark.parametrize("likelihood", [Bernoulli(), GaussianNoise(0.5)])
def test_one_output(likelihood, x):
    network = randomise(nn.Sequential(nn.Flatten(), nn.Linear(6, 1)))
    _, model, _ = split_last_layer(network, example=x, likelihood=likelihood)
    assert model.likelihood is likelihood
    with pytest.raises(ValueError, match=r"`likelihood` Categorical needs at least 2 outputs, got 1\. Pass `Bernoulli\(\)`"):
        split_last_layer(network, example=x)


def test_float64_network(x):
    network = randomise(mlp().double())
    backbone, model, theta = split_last_layer(network, example=x.double())
    assert theta.dtype == backbone(x.double()).dtype == torch.float64
    torch.testing.assert_close(model(theta, backbone(x.double())), network(x.double()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_network_gives_float32(dtype, x):
    network = randomise(mlp()).to(dtype)
    backbone, model, theta = split_last_layer(network, example=x.to(dtype))
    batch = extract_features(backbone, (x.to(dtype), torch.zeros(7)))
    assert theta.dtype == batch.inputs.dtype == torch.float32
    torch.testing.assert_close(model(theta, batch.inputs), network(x.to(dtype)).float(), rtol=2e-2, atol=2e-2)


class Tail(nn.Module):
    """A network with something after its head."""

    def __init__(self, tail, num_outputs=3):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU())
        self.fc = nn.Linear(5, num_outputs)
        self.tail = tail

    def forward(self, x):
        return self.tail(self.fc(self.body(x)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(torch.relu(self.fc(x.flatten(1))))


class Bypass(nn.Module):
    """Reads a weight of its head without calling it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return nn.functional.linear(self.body(x.flatten(1)), self.fc.weight, self.fc.bias)


class Sizes(Functional):
    """Looks at its head's attributes, which the backbone's stand-in does not have."""

    def forward(self, x):
        return super().forward(x)[:, : self.fc.out_features]


REMEDY = "Remove it and return the logits: the likelihood applies it"
REFUSALS = {
    "softmax": (lambda: Tail(nn.Softmax(-1)), None, f"a Softmax follows 'fc'. {REMEDY}"),
    "log-softmax": (lambda: Tail(nn.LogSoftmax(-1)), None, f"a LogSoftmax follows 'fc'. {REMEDY}"),
    "sigmoid": (lambda: Tail(nn.Sigmoid()), None, f"a Sigmoid follows 'fc'. {REMEDY}"),
    "functional softmax": (lambda: Tail(lambda o: o.softmax(-1)), None, f"a Softmax follows 'fc'. {REMEDY}"),
    "relu": (lambda: Tail(nn.ReLU()), None, "its output differs from that of 'fc'"),
    "relu in place": (lambda: Tail(nn.ReLU(inplace=True)), None, "'fc'"),
    "batch norm": (lambda: Tail(nn.BatchNorm1d(3)), None, "its output differs from that of 'fc'"),
    "squeeze": (lambda: Tail(lambda o: o.squeeze(-1), 1), None, "reshaped to (7,). Remove the last reshape or squeeze"),
    "tuple": (lambda: Tail(lambda o: (o, o)), None, "`network` must return a tensor of outputs, got tuple. Wrap it"),
    "dictionary": (
        lambda: Tail(lambda o: {"logits": o}),
        None,
        "`network` must return a tensor of outputs, got dict. Wrap it",
    ),
    "no linear layer": (lambda: nn.Sequential(nn.Flatten(), nn.ReLU()), None, "it executed no nn.Linear on `example`"),
    "bypassed head": (Bypass, None, "its output differs from that of 'body'"),
    "bypassed named head": (Bypass, "fc", "it executed the layer 'fc' not at all"),
    "no such head": (mlp, "fc", "got 'fc' (no such module). The linear layers are: '1', '3'"),
    "head not linear": (mlp, "2", "got '2' (ReLU). The linear layers are: '1', '3'"),
    "head not last": (mlp, "1", "its output differs from that of '1'"),
    "head used twice": (Twice, None, "`head` 'fc' does not reproduce the network"),
    "head looked at": (Sizes, None, "the rest of the network fails with AttributeError"),
    "more than one row a point": (
        lambda: nn.Linear(3, 3),
        None,
        "outputs of shape (N, C), got (7, 2, 3). Flatten all but the last",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case, x):
    make, head, message = REFUSALS[case]
    network = mixed_modes(randomise(make()))
    before = photograph(network)
    with pytest.raises((ValueError, TypeError)) as caught:
        split_last_layer(network, head, example=x)
    assert message in str(caught.value)
    assert str(caught.value).startswith(("`network` must", "`head` "))
    assert_unchanged(network, before)


def test_failing_forward_leaves_the_network_alone():
    network = mixed_modes(randomise(mlp()))
    before = photograph(network)
    with pytest.raises(
        ValueError, match=r"`network` must take the inputs it is given, .* fails with RuntimeError: mat1 and"
    ):
        split_last_layer(network, example=draw(7, 5))
    assert_unchanged(network, before)


@pytest.mark.parametrize("network", [None, "resnet", lambda x: x, nn.Linear])
def test_not_a_module(network, x):
    with pytest.raises(TypeError, match=r"`network` must be a torch\.nn\.Module, got .*Pass the trained module"):
        split_last_layer(network, example=x)


def test_not_a_likelihood(x):
    network = randomise(mlp())
    before = photograph(network)
    with pytest.raises(TypeError, match="`likelihood` must be a Likelihood, got 'softmax'"):
        split_last_layer(network, example=x, likelihood="softmax")
    assert_unchanged(network, before)


def test_example_without_points():
    with pytest.raises(ValueError, match="`example` must"):
        split_last_layer(randomise(mlp()), example=draw(0, 2, 3))


@pytest.fixture
def backbone():
    return mixed_modes(Backbone(randomise(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)))))


def manual(backbone, x):
    with torch.no_grad():
        return copy.deepcopy(backbone.network).eval()(x)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_features_of_a_tuple(backbone, batch_size, x):
    targets = torch.arange(7)
    batch = extract_features(backbone, (x, targets), batch_size=batch_size)
    torch.testing.assert_close(batch.inputs, manual(backbone, x), rtol=1e-6, atol=1e-6)
    assert torch.equal(batch.targets, targets)
    assert batch.weights is None
    assert not batch.inputs.requires_grad


@pytest.mark.parametrize("weighted", [False, True])
def test_features_of_a_loader(backbone, weighted, x):
    columns = (x, torch.arange(7), torch.arange(1.0, 8.0))[: 3 if weighted else 2]
    batch = extract_features(backbone, DataLoader(TensorDataset(*columns), batch_size=3))
    torch.testing.assert_close(batch.inputs, manual(backbone, x), rtol=1e-6, atol=1e-6)
    assert batch.targets.tolist() == list(range(7))
    assert (batch.weights is None) if not weighted else (batch.weights.tolist() == [1, 2, 3, 4, 5, 6, 7])


def test_features_of_arrays_and_weights(backbone, x):
    batch = extract_features(backbone, (x.numpy(), np.arange(7), np.arange(1, 8)), batch_size=2)
    torch.testing.assert_close(batch.inputs, manual(backbone, x), rtol=1e-6, atol=1e-6)
    assert batch.weights.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch.weights.dtype == torch.float32


def test_inputs_need_not_be_tensors():
    class Words(nn.Module):
        def forward(self, text):
            return torch.tensor([[float(len(word))] for word in text])

    batch = extract_features(Words(), [(["a", "bcd"], [0, 1]), (["ef"], [1])])
    assert batch.inputs.tolist() == [[1.0], [3.0], [2.0]]
    assert batch.targets.tolist() == [0, 1, 1]


def test_extraction_runs_any_module_in_eval_mode(backbone, x, untouched_rng):
    module = backbone.network.train()
    batch = extract_features(module, (x, torch.zeros(7)))
    torch.testing.assert_close(batch.inputs, manual(backbone, x), rtol=1e-6, atol=1e-6)
    assert all(part.training for part in module.modules())


def test_extraction_leaves_the_module_alone(backbone, x, untouched_rng):
    before = photograph(backbone)
    extract_features(backbone, (x, torch.zeros(7)))
    assert_unchanged(backbone, before)


def test_extraction_restores_modes_after_a_failure(backbone):
    before = photograph(backbone)
    with pytest.raises(ValueError, match=r"`data` must hold inputs that the network takes, .* batch 1 .*: mat1 and mat2"):
        extract_features(backbone, (draw(7, 5), torch.zeros(7)))
    assert_unchanged(backbone, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_feature_dtype(dtype):
    assert extract_features(nn.Identity(), (draw(3, 2, dtype=dtype), torch.zeros(3))).inputs.dtype == dtype


BAD_DATA = {
    "empty loader": ([], "`data` must hold at least one batch, got an empty loader. Check the data set and the sampler"),
    "empty tensors": ((draw(0, 2), draw(0)), "`data` must hold at least one batch"),
    "lengths": ((draw(3, 2), draw(2)), "`data` must have columns of one length, got [3, 2]. Check that inputs and targets"),
    "one column": (
        (draw(3, 2),),
        "`data` must give (x, targets) or (x, targets, weights), got 1 column(s). Wrap the loader",
    ),
    "four columns": ((draw(3, 2),) * 4, "`data` must give (x, targets) or (x, targets, weights), got 4 column(s)"),
    "loader of inputs": ([draw(3, 2)], "`data` must give (x, targets) or (x, targets, weights), got 1 column(s)"),
    "loader of lengths": ([(draw(3, 2), draw(2))], "`data` must have columns of one length, got [3, 2]"),
    "loader of changing columns": ([(draw(1, 2), draw(1)), (draw(1, 2), draw(1), draw(1))], "`data` must"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(case):
    data, message = BAD_DATA[case]
    with pytest.raises(ValueError) as caught:
        extract_features(nn.Identity(), data)
    assert message in str(caught.value)


def test_bad_batch_size(x):
    with pytest.raises(ValueError, match=r"`batch_size` must be at least 1, got 0\."):
        extract_features(nn.Identity(), (x, x), batch_size=0)


def with_entry(value):
    inputs = torch.zeros(3, 2)
    inputs[1, 0] = value
    return inputs


COLUMNS = {"inputs": torch.zeros(3, 2), "targets": torch.zeros(3), "weights": torch.ones(3)}
BAD_BATCHES = {
    "nan": (
        {"inputs": with_entry(math.nan)},
        "`inputs` must be finite, got 1 NaN or infinite of 6 entries",
    ),
    "infinite": ({"inputs": with_entry(-math.inf)}, "`inputs` must be finite"),
    "integers": (
        {"inputs": torch.ones(3, 2).int()},
        "`inputs` must be float32 or float64 features of shape (N, P), got torch.int32",
    ),
    "vector": (
        {"inputs": torch.zeros(3)},
        "`inputs` must be float32 or float64 features of shape (N, P), got torch.float32 of shape",
    ),
    "empty": ({"inputs": torch.zeros(0, 2)}, "`inputs` must hold at least one point, got none. Check that the loader"),
    "lengths": ({"targets": torch.zeros(2)}, "`targets` must have one row for each of the 3 inputs, got shape (2,). Check"),
    "scalar": ({"targets": torch.tensor(0)}, "`targets` must have one row for each of the 3 inputs, got shape ()"),
    "zero weight": ({"weights": torch.tensor([1, 0, 1])}, "`weights` must be positive and finite, got 0 (1 of 3"),
    "negative weight": ({"weights": torch.tensor([1, -1, 1])}, "got -1 (1 of 3 entries are not). Leave out points"),
    "nan weight": ({"weights": torch.tensor([1, math.nan, 1])}, "`weights` must be positive and finite, got nan"),
    "weights' shape": ({"weights": torch.ones(3, 1)}, "`weights` must have shape (3,), one for each point, got (3, 1)"),
    "weights' length": ({"weights": torch.ones(2)}, "`weights` must have shape (3,), one for each point, got (2,)"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batch(case):
    columns, message = BAD_BATCHES[case]
    with pytest.raises(ValueError) as caught:
        Batch(**{**COLUMNS, **columns})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["inputs", "targets", "weights"])
def test_batch_of_arrays(name):
    with pytest.raises(
        TypeError, match=rf"`{name}` must be a torch\.Tensor, got ndarray\. Convert it with `torch\.as_tensor`"
    ):
        Batch(**{**COLUMNS, name: np.ones(3)})


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([2, 0, 2]), torch.tensor([True, False, False, True])])
@pytest.mark.parametrize("weighted", [True, False])
def test_subset(index, weighted):
    batch = Batch(draw(4, 2), torch.arange(4), torch.arange(1.0, 5.0) if weighted else None)
    part = batch.subset(index)
    assert torch.equal(part.inputs, batch.inputs[index])
    assert torch.equal(part.targets, batch.targets[index])
    assert len(part) == len(batch.inputs[index])
    assert torch.equal(part.weights, batch.weights[index]) if weighted else part.weights is None


@pytest.mark.parametrize("targets", [torch.arange(4), draw(4, 1)])
def test_to_changes_floating_point_values_only(targets):
    batch = Batch(draw(4, 2), targets, torch.arange(1, 5)).to(dtype=torch.float64)
    assert batch.inputs.dtype == batch.weights.dtype == torch.float64
    assert batch.targets.dtype == (torch.float64 if targets.is_floating_point() else torch.int64)
    assert torch.equal(batch.to().inputs, batch.inputs)
    assert torch.equal(batch.to("cpu").targets.float(), targets.float())
