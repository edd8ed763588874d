"""One call, on networks and data of every form: what comes out, what stays untouched, and what is refused.

Networks are trained for a few dozen steps, once for all tests, and refined with little effort (`SHORT`, `QUICK`).
"""

import copy
import gc
import inspect
import types
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import burnish
from burnish import metrics
from burnish.batches import Batch
from burnish.features import split_last_layer
from burnish.inference import selection
from burnish.inference.temperature import fit_temperature, recalibrate
from burnish.layer_scales import Kronecker
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Dense, Diagonal

NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 307, 127, 40  # numbers that no posterior has by chance
QUICK = {"prior_mean": "head", "prior_precision": 20.0, "method": "laplace", "progress": False}
SHORT = {
    "prior_mean": "head",
    "prior_precision": 20.0,
    "method": "flow",
    "flow": {"max_steps": 3, "num_evaluation_samples": 64},
}


# Networks


def mlp(num_outputs=3, bias=True):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, num_outputs, bias=bias))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU()
        )
        self.fc1 = nn.Linear(8 * 2 * 2, 10)
        self.fc2 = nn.Linear(10, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(torch.flatten(self.features(x), 1))))


class Nested(nn.Module):
    """The head inside a submodule, beside layers of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.classifier = nn.Sequential(nn.Tanh(), nn.ModuleDict({"unused": nn.Linear(8, 3)})["unused"])

    def forward(self, x):
        return self.classifier(self.body(x))


class Normed(nn.Module):
    """Batch normalisation and dropout, left in train mode, and a parameter that is frozen."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 3)
        self.body[0].bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x))


class Tied(nn.Module):
    """One layer twice, and a head that shares its weight with another."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.other = nn.Linear(6, 3)
        self.head = nn.Linear(6, 3)
        self.head.weight = self.other.weight

    def forward(self, x):
        hidden = torch.tanh(self.again(torch.tanh(self.first(x))))
        return self.head(hidden + self.other(hidden).tanh().mean(1, keepdim=True))


class Keywords(nn.Module):
    """Two inputs by name, the order of which is another in the data."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, left, right=None):
        return self.head(torch.tanh(self.body(torch.cat([left, right], 1))))


class TakesDictionary(Keywords):
    def forward(self, batch):
        return super().forward(batch["left"], batch["right"])


class TwoHeads(nn.Module):
    """Two linear layers of one shape, executed one after the other; the output is that of the first."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.wanted = nn.Linear(8, 3)
        self.auxiliary = nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        outputs = self.wanted(hidden)
        self.auxiliary(hidden)
        return outputs


# Data


@cache
def points(kind="classes", dtype=torch.float32):
    """Inputs (N, 6) and targets for training, validation and test."""
    generator = make_generator(0)
    count = NUM_TRAIN + NUM_VALIDATION + NUM_TEST
    x = torch.randn(count, 6, generator=generator)
    outputs = x @ torch.randn(6, 3, generator=generator) + torch.randn(count, 3, generator=generator)
    targets = {
        "classes": outputs.argmax(1),
        "binary": (outputs[:, :1] > 0).long().squeeze(1),
        "real": outputs[:, :1],
        "two reals": outputs[:, :2],
    }[kind]
    return tuple(torch.split(part, [NUM_TRAIN, NUM_VALIDATION, NUM_TEST]) for part in (x.to(dtype), targets))


@cache
def images():
    y = points()[1]
    generator = make_generator(3)
    grids = torch.randn(3, 1, 8, 8, generator=generator)
    return [grids[t] + torch.randn(len(t), 1, 8, 8, generator=generator) for t in y], y


def train(network, x, y, loss, steps=40):
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        for layer in network.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.03)
        for _ in range(steps):
            optimiser.zero_grad()
            loss(network(*x), y).backward()
            optimiser.step()
        optimiser.zero_grad()
    return network


@dataclass(frozen=True)
class Case:
    """A trained network, its data as `refine` takes them, and new inputs."""

    network: nn.Module
    train: Any
    validation: Any
    x: Any
    head: str
    likelihood: type = Categorical
    options: dict = field(default_factory=dict)

    def refine(self, **options):
        return burnish.refine(self.network, self.train, validation=self.validation, **{**SHORT, **self.options, **options})


def plain_case(make, head, kind="classes", loss=cross_entropy, likelihood=Categorical, dtype=torch.float32, options=None):
    x, y = points(kind)
    network = train(make(), (x[0],), y[0].float() if loss is not cross_entropy else y[0], loss).to(dtype)
    x = [part.to(dtype) for part in x]
    return Case(network, (x[0], y[0]), (x[1], y[1]), x[2], head, likelihood, options or {})


def binary_loss(outputs, targets):
    return binary_cross_entropy_with_logits(outputs.squeeze(1), targets)


def dictionary_case(make):
    x, y = points()
    network = train(Keywords(), (x[0][:, :3], x[0][:, 3:]), y[0], cross_entropy)
    other = make()
    other.load_state_dict(network.state_dict())
    whole = [{"right": part[:, 3:], "left": part[:, :3]} for part in x]
    loader = DataLoader(
        [{"right": r[3:], "labels": t, "left": r[:3]} for r, t in zip(x[0], y[0], strict=True)], batch_size=64, shuffle=True
    )
    return Case(other, loader, {**whole[1], "labels": y[1]}, whole[2], "head")


def single_entry_case():
    case = plain_case(mlp, "2")
    wrap = ({"pixel_values": pair[0], "target": pair[1]} for pair in (case.train, case.validation))
    return Case(case.network, *wrap, {"pixel_values": case.x}, "2")


def lenet_case():
    x, y = images()
    network = train(LeNet(), (x[0],), y[0], cross_entropy)
    return Case(network, (x[0], y[0]), (x[1], y[1]), x[2], "fc2")


CASES = {
    "mlp": lambda: plain_case(mlp, "2"),
    "lenet": lenet_case,
    "nested head": lambda: plain_case(Nested, "classifier.1"),
    "binary": lambda: plain_case(lambda: mlp(1), "2", "binary", binary_loss, Bernoulli),
    "regression": lambda: plain_case(lambda: mlp(1), "2", "real", mse_loss, GaussianNoise),
    "two outputs": lambda: plain_case(lambda: mlp(2), "2", "two reals", mse_loss, GaussianNoise),
    "keywords": lambda: dictionary_case(Keywords),
    "takes a dictionary": lambda: dictionary_case(TakesDictionary),
    "dictionary of one": single_entry_case,
    "bfloat16": lambda: plain_case(mlp, "2", dtype=torch.bfloat16),
    "float16": lambda: plain_case(mlp, "2", dtype=torch.float16),
    "float64": lambda: plain_case(mlp, "2", dtype=torch.float64),
    "normed": lambda: plain_case(Normed, "head"),
    "tied": lambda: plain_case(Tied, "head"),
    "no bias": lambda: plain_case(lambda: mlp(bias=False), "2"),
    "named head": lambda: plain_case(TwoHeads, "wanted", options={"head": "wanted"}),
    "linear layer alone": lambda: plain_case(lambda: nn.Linear(6, 3), ""),
}
HALVES = ("bfloat16", "float16")


@contextmanager
def guard(name):
    """Half precision without oneDNN, which dies of an illegal instruction where a virtual machine promises too much."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and name not in HALVES)  # `torch.backends.mkldnn.flags` warns
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@cache
def case(name):
    with guard(name), torch.random.fork_rng():  # layers draw their first weights from the global state
        made = CASES[name]()
    if name == "normed":
        made.network.train()
        made.network.body[3].eval()  # every module has a mode of its own
    return made


def photograph(network):
    """All of a network that could be disturbed."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors},
        "places": [(name, tensor.data_ptr(), tensor.requires_grad, tensor.grad) for name, tensor in tensors],
        "modes": [part.training for part in network.modules()],
        "hooks": [
            [len(value) for name, value in vars(part).items() if name.endswith("hooks")] for part in network.modules()
        ],
        "parts": [(name, id(part)) for name, part in network.named_modules(remove_duplicate=False)],
        "attributes": [sorted(vars(part)) for part in network.modules()],
    }


def assert_same_photograph(before, after):
    assert all(torch.equal(value, after["values"][name]) for name, value in before["values"].items())
    for key in ("places", "modes", "hooks", "parts", "attributes"):
        assert before[key] == after[key]


@cache
def refined(name):
    """The result for a case, the network before and after, and whether the global random state stayed."""
    made = case(name)
    before, state = photograph(made.network), torch.get_rng_state()
    with guard(name):
        bnn = made.refine()
    return bnn, before, photograph(made.network), torch.equal(torch.get_rng_state(), state)


def call(bnn, x):
    """What `bnn(x)` is for inputs of a case."""
    if isinstance(x, dict) and "right" in inspect.signature(bnn.backbone.network.forward).parameters:
        return bnn(**x)
    return bnn(x["pixel_values"]) if isinstance(x, dict) and len(x) == 1 else bnn(x)


@pytest.fixture(params=CASES)
def name(request):
    with guard(request.param):
        yield request.param


# What comes out


def test_the_result_is_complete(name):
    made, (bnn, *_) = case(name), refined(name)
    layer = made.network.get_submodule(made.head)
    head = bnn.model.head
    assert bnn.backbone.head == made.head
    assert (head.num_outputs, head.num_features, head.bias) == (*layer.weight.shape, layer.bias is not None)
    assert isinstance(bnn.model.likelihood, made.likelihood)
    dtype = torch.float64 if name == "float64" else torch.float32
    assert bnn.samples.shape == (20, head.dim)
    assert bnn.samples.dtype == dtype
    assert isinstance(bnn.posterior, FlowPosterior)
    assert [rung.method for rung in bnn.rungs] == ["flow"]
    assert bnn.rungs[0].verdict.drift == bnn.verdict.drift
    assert bnn.posterior.dim == bnn.prior.dim == head.dim
    theta = torch.cat([layer.weight.flatten(), *([] if layer.bias is None else [layer.bias])])
    assert torch.equal(bnn.prior.mean, theta.to(dtype))
    torch.testing.assert_close(bnn.prior.scale.std, torch.full((head.dim,), 20.0**-0.5, dtype=dtype))
    assert (bnn.tuning.criterion, bnn.tuning.prior_mean, bnn.tuning.precision) == ("validation", "head", 20.0)
    assert list(bnn.seconds) == ["features of validation", "features of data", "prior and data", "posterior", "check"]
    assert all(seconds > 0 for seconds in bnn.seconds.values())
    assert bnn.verdict.held_out.num_points == NUM_VALIDATION
    assert bnn.verdict.trusted
    numbers = [value for value in vars(bnn.verdict.held_out).values() if isinstance(value, float)]
    numbers += [getattr(bnn.verdict.held_out, kind).nll for kind in ("network", "temperature", "refined")]
    assert len(numbers) == 7
    assert all(np.isfinite(numbers))
    assert len(str(bnn.verdict).split("\n")) == 2
    assert (bnn.refinement.temperature is None) is (made.likelihood is GaussianNoise)


def test_forward_and_predict_agree(name):
    made, (bnn, *_) = case(name), refined(name)
    prediction, outputs = bnn.predict(made.x), call(bnn, made.x)
    assert prediction.samples.shape == (20, NUM_TEST, prediction.mean.shape[1])
    if made.likelihood is GaussianNoise:
        torch.testing.assert_close(outputs, prediction.mean)
        assert outputs.shape == (NUM_TEST, bnn.model.head.num_outputs)
        assert float(prediction.noise_variance) == bnn.model.likelihood.std**2
    elif made.likelihood is Bernoulli:
        assert outputs.shape == (NUM_TEST, 1)
        torch.testing.assert_close(outputs, prediction.probs[:, 1:].logit(), rtol=1e-4, atol=1e-4)
    else:
        torch.testing.assert_close(outputs.exp(), prediction.probs)
        torch.testing.assert_close(prediction.probs.sum(1), torch.ones(NUM_TEST).to(prediction.probs))


def test_predictions_are_those_of_the_samples_on_the_networks_features(name):
    """From the network alone: its last layer replaced by one sample after the other."""
    made, (bnn, *_) = case(name), refined(name)
    network = copy.deepcopy(made.network).eval().double()
    layer = network.get_submodule(made.head)
    layer.weight = nn.Parameter(layer.weight.clone())  # no longer tied
    x = {key: value.double() for key, value in made.x.items()} if isinstance(made.x, dict) else made.x.double()
    outputs = []
    with torch.no_grad():
        for sample in bnn.samples.double():
            layer.weight.copy_(sample[: layer.weight.numel()].view_as(layer.weight))
            if layer.bias is not None:
                layer.bias.copy_(sample[layer.weight.numel() :])
            outputs.append(burnish.features.call_network(network, x))
    stacked = torch.stack(outputs)
    expected = stacked.mean(0) if made.likelihood is GaussianNoise else bnn.model.likelihood.probs(stacked).mean(0)
    tolerance = {"bfloat16": 0.1, "float16": 1e-2}.get(name, 1e-5)
    torch.testing.assert_close(bnn.predict(made.x).mean.double(), expected, rtol=tolerance, atol=tolerance)


def test_the_network_and_the_global_random_state_are_untouched(name):
    _, before, after, state_kept = refined(name)
    assert_same_photograph(before, after)
    assert state_kept


def test_the_backbone_is_shared(name):
    made, (bnn, *_) = case(name), refined(name)
    own = {parameter.data_ptr() for parameter in made.network.parameters()}
    assert {parameter.data_ptr() for parameter in bnn.parameters()} <= own


def reachable_tensors(root):
    """Every tensor that can be got at from an object: through attributes, containers, closures and bound methods."""
    found, seen, queue = [], set(), [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.CodeType | torch.dtype | torch.device):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, types.FunctionType):  # without its globals, which lead everywhere
            queue += [cell.cell_contents for cell in item.__closure__ or ()] + list(item.__defaults__ or ())
        else:
            queue += gc.get_referents(item)
    return found


def test_no_training_data_is_kept(name):
    made, (bnn, *_) = case(name), refined(name)
    shared = {tensor.untyped_storage().data_ptr() for tensor in (*made.network.parameters(), *made.network.buffers())}
    tensors = [t for t in reachable_tensors(bnn) if t.untyped_storage().data_ptr() not in shared]
    assert any(t.data_ptr() == bnn.rows.data_ptr() for t in tensors)
    assert any(t.data_ptr() == bnn.posterior.base.mean.data_ptr() for t in tensors)
    for tensor in tensors:
        kept = tensor.untyped_storage().nbytes() // tensor.element_size()
        assert kept <= max(20, bnn.model.head.dim) * bnn.model.head.dim
        assert not {NUM_TRAIN, NUM_VALIDATION, NUM_TRAIN + NUM_VALIDATION} & set(tensor.shape)
        assert kept not in (NUM_TRAIN, NUM_VALIDATION, NUM_TRAIN + NUM_VALIDATION)


# Randomness


@pytest.fixture(scope="module")
def mlp_case():
    return case("mlp")


def test_a_seed_decides_everything(mlp_case, untouched_rng):
    bnn, *_ = refined("mlp")
    again, other = mlp_case.refine(), mlp_case.refine(seed=1)
    assert torch.equal(again.samples, bnn.samples)
    assert torch.equal(again.posterior.base.mean, bnn.posterior.base.mean)
    assert again.verdict == bnn.verdict
    assert again.tuning == bnn.tuning
    assert not torch.equal(other.samples, bnn.samples)


def test_the_gaussian_has_the_structure_that_is_asked_for():
    made = case("mlp")
    bnn = made.refine(**QUICK, flow=None, structure="diagonal")
    assert isinstance(bnn.posterior.scale, Diagonal)
    assert isinstance(reference().posterior.scale, Dense)
    assert torch.equal(bnn.posterior.mean, reference().posterior.mean)
    assert bnn.verdict.held_out != reference().verdict.held_out


def test_a_full_covariance_that_does_not_fit_is_refused_before_the_prior_is_chosen(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**10)
    monkeypatch.setitem(burnish.refine.__globals__, "choose_target", None)
    with pytest.raises(MemoryError, match=r"the full Hessian of .* parameters .*structure='kron' or structure='diagonal'"):
        case("mlp").refine(**QUICK, flow=None, structure="full")


@pytest.mark.parametrize("structure", ["kron", "diagonal"])
def test_a_flow_on_another_structure_is_saved_and_read(structure, tmp_path):
    made = case("mlp")
    bnn = made.refine(structure=structure)
    assert isinstance(bnn.posterior.bijections[-1].scale, Kronecker if structure == "kron" else Diagonal)
    bnn.save(tmp_path / "refined")
    again = burnish.load(tmp_path / "refined", made.network)
    assert torch.equal(again.predict(made.x).probs, bnn.predict(made.x).probs)


def test_a_seed_of_numpy():
    made = case("mlp")
    bnn = made.refine(**QUICK, flow=None, seed=np.int64(0), num_samples=np.int64(20))
    assert torch.equal(bnn.samples, reference().samples)


def test_a_loader_that_shuffles_gives_the_same_bits_twice(mlp_case, untouched_rng):
    loaders = [DataLoader(TensorDataset(*mlp_case.train), batch_size=64, shuffle=True) for _ in range(2)]
    first, second = (burnish.refine(mlp_case.network, loader, validation=mlp_case.validation, **QUICK) for loader in loaders)
    assert torch.equal(first.samples, second.samples)
    third = burnish.refine(mlp_case.network, loaders[0], validation=mlp_case.validation, **QUICK)
    assert torch.equal(first.samples, third.samples)


# Data of every form


class DictionaryRows(Dataset):
    def __init__(self, pair):
        self.pair = pair

    def __len__(self):
        return len(self.pair[0])

    def __getitem__(self, index):
        return {"input": self.pair[0][index], "labels": self.pair[1][index]}


Pair = namedtuple("Pair", ["inputs", "labels"])


def batches(pair):
    return [(pair[0][start : start + 50], pair[1][start : start + 50]) for start in range(0, len(pair[0]), 50)]


FORMS = {
    "loader": lambda pair: DataLoader(TensorDataset(*pair), batch_size=64),
    "list of batches": batches,
    "list of lists": lambda pair: [list(batch) for batch in batches(pair)],
    "list of named tuples": lambda pair: [Pair(*batch) for batch in batches(pair)],
    "generator": lambda pair: (batch for batch in batches(pair)),
    "float64 arrays": lambda pair: (pair[0].double().numpy(), pair[1].numpy()),
    "batches of float64 arrays": lambda pair: [(x.double().numpy(), y.numpy()) for x, y in batches(pair)],
    "dictionary": lambda pair: {"input": pair[0], "y": pair[1]},
    "dictionary of one foreign key": lambda pair: {"targets": pair[1], "pixels": pair[0].numpy()},
    "data set": lambda pair: TensorDataset(*pair),
    "data set of dictionaries": DictionaryRows,
    "weights of one": lambda pair: (*pair, torch.ones(len(pair[0]))),
    "weights of one by key": lambda pair: {"input": pair[0], "y": pair[1], "weight": np.ones(len(pair[0]))},
    "int32": lambda pair: (pair[0], pair[1].int()),
    "uint8 array": lambda pair: (pair[0], pair[1].numpy().astype(np.uint8)),
    "list of labels": lambda pair: (pair[0], pair[1].tolist()),
}


@cache
def reference():
    made = case("mlp")
    return burnish.refine(made.network, made.train, validation=made.validation, **QUICK)


@pytest.mark.parametrize("form", FORMS)
def test_data_of_every_form(form, mlp_case):
    made = FORMS[form]
    bnn = burnish.refine(mlp_case.network, made(mlp_case.train), validation=made(mlp_case.validation), **QUICK)
    torch.testing.assert_close(bnn.posterior.mean, reference().posterior.mean, rtol=1e-4, atol=1e-4)
    assert bnn.tuning.data == reference().tuning.data
    assert bnn.verdict.held_out.refined.nll == pytest.approx(reference().verdict.held_out.refined.nll, abs=1e-3)


def test_weights_count(mlp_case):
    """A weight of three, and the point three times."""
    x, y = mlp_case.train
    weights = torch.where(torch.arange(NUM_TRAIN) < 40, 3.0, 1.0)
    heavy = burnish.refine(mlp_case.network, (x, y, weights), validation=mlp_case.validation, **QUICK)
    index = torch.cat([torch.arange(NUM_TRAIN), torch.arange(40), torch.arange(40)])
    often = burnish.refine(mlp_case.network, (x[index], y[index]), validation=mlp_case.validation, **QUICK)
    torch.testing.assert_close(heavy.posterior.mean, often.posterior.mean, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(heavy.posterior.mean, reference().posterior.mean, rtol=1e-3, atol=1e-3)


BINARY_TARGETS = {
    "float": lambda y: y.float(),
    "float column": lambda y: y.float().unsqueeze(1),
    "bool": lambda y: y.bool(),
    "int32 column": lambda y: y.int().unsqueeze(1),
}


@pytest.mark.parametrize("form", BINARY_TARGETS)
def test_binary_targets_as_binary_losses_take_them(form):
    made, change = case("binary"), BINARY_TARGETS[form]
    expected = made.refine(**QUICK, flow=None)
    (x, y), (held_out_x, held_out_y) = made.train, made.validation
    bnn = burnish.refine(made.network, (x, change(y)), validation=(held_out_x, change(held_out_y)), **QUICK)
    assert bnn.model.likelihood == Bernoulli()
    assert torch.equal(bnn.samples, expected.samples)
    assert bnn.verdict == expected.verdict


@pytest.mark.parametrize("flat", ["data", "validation"])
def test_targets_of_a_regressor_flat_in_one_set_and_a_column_in_the_other(flat):
    made = case("regression")
    pairs = {"data": made.train, "validation": made.validation}
    pairs[flat] = pairs[flat][0], pairs[flat][1].squeeze(1)
    options = {**QUICK, "prior_precision": "auto"}
    bnn = burnish.refine(made.network, pairs["data"], validation=pairs["validation"], **options)
    expected = burnish.refine(made.network, made.train, validation=made.validation, **options)
    assert torch.equal(bnn.samples, expected.samples)


def test_integers_with_one_output_are_regression_unless_all_are_zero_or_one():
    made = case("regression")
    (x, y), (held_out_x, held_out_y) = made.train, made.validation
    bnn = burnish.refine(made.network, (x, y.round().long()), validation=(held_out_x, held_out_y.round().long()), **QUICK)
    assert isinstance(bnn.model.likelihood, GaussianNoise)


def test_the_noise_of_a_regressor_is_that_of_its_held_out_residuals():
    made = case("regression")
    bnn, *_ = refined("regression")
    for pair, score in ((made.validation, None), (made.train, bnn.verdict.held_out.network.nll)):
        with torch.no_grad():
            std = float((made.network(pair[0]) - pair[1]).square().mean().sqrt())
            densities = torch.distributions.Normal(made.network(made.validation[0]), std).log_prob(made.validation[1])
        if score is None:
            assert bnn.model.likelihood.std == pytest.approx(std, rel=1e-5)
        else:
            assert score == pytest.approx(-float(densities.mean()), rel=1e-4)
    known = made.refine(**QUICK, flow=None, likelihood=GaussianNoise(1.01 * bnn.model.likelihood.std))
    assert known.model.likelihood == GaussianNoise(1.01 * bnn.model.likelihood.std)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(context, mlp_case):
    with context():
        bnn = mlp_case.refine()
    torch.testing.assert_close(bnn.samples, refined("mlp")[0].samples)


# Choices


def test_everything_by_default(mlp_case):
    """Nothing given but the data: the record says what was tried, and the verdict is about the choice."""
    bnn = burnish.refine(mlp_case.network, mlp_case.train, validation=mlp_case.validation, flow={"max_steps": 3})
    tuning = bnn.tuning
    assert tuning.criterion == "validation"
    assert tuning.data in ("both", "validation", "training")
    assert (tuning.candidates[0].data, tuning.candidates[0].prior_mean) == ("both", "scaled head")
    chosen = [
        c
        for c in tuning.candidates
        if (c.data, c.prior_mean, c.precision) == (tuning.data, tuning.prior_mean, tuning.precision)
    ]
    assert len(chosen) == 1
    assert chosen[0].margin == pytest.approx(bnn.verdict.held_out.gain_over_temperature, abs=0.02)
    assert chosen[0].margin_error > 0
    torch.testing.assert_close(bnn.prior.scale.std, torch.full((27,), tuning.precision**-0.5))
    assert [rung.method for rung in bnn.rungs] == ["laplace"]  # which is enough, so that no flow is needed
    assert isinstance(bnn.posterior, Gaussian)


NO_VALIDATION = (
    r"no `validation` data: the prior is chosen by the evidence of the training data.*Pass points that it was not"
)


def test_without_validation(mlp_case):
    with pytest.warns(UserWarning, match=NO_VALIDATION) as caught:
        bnn = burnish.refine(mlp_case.network, mlp_case.train, method="laplace")
    assert [str(warning.filename) for warning in caught] == [__file__]
    assert bnn.verdict.trusted is False
    assert bnn.verdict.held_out is None
    assert bnn.refinement.temperature is None
    assert (bnn.tuning.criterion, bnn.tuning.data, bnn.tuning.prior_mean) == ("evidence", "training", "zero")
    assert "features of validation" not in bnn.seconds
    torch.testing.assert_close(bnn.predict(mlp_case.x).probs, bnn(mlp_case.x).exp())


@pytest.mark.parametrize("precision", [20.0, torch.full((27,), 20.0)])
def test_without_validation_but_with_a_prior(precision, mlp_case):
    with pytest.warns(UserWarning, match="no `validation` data: nothing shows that the result predicts better") as caught:
        bnn = burnish.refine(mlp_case.network, mlp_case.train, **{**QUICK, "prior_precision": precision})
    assert len(caught) == 1
    assert not bnn.verdict.trusted
    assert (bnn.tuning.criterion, bnn.tuning.data, bnn.tuning.prior_mean) == ("given", "training", "head")


@pytest.mark.parametrize("mean", ["zero", "head", "scaled head", 0.25, "vector"])
def test_a_prior_mean_is_honoured(mean, mlp_case):
    theta = torch.cat([mlp_case.network[2].weight.flatten(), mlp_case.network[2].bias]).detach()
    vector = torch.linspace(-1, 1, 27)
    given = vector if mean == "vector" else mean
    bnn = mlp_case.refine(**{**QUICK, "prior_mean": given, "prior_precision": 5.0}, flow=None)
    temperature = bnn.refinement.temperature
    expected = {"zero": 0 * theta, "head": theta, "scaled head": theta / temperature, "vector": vector}
    torch.testing.assert_close(bnn.prior.mean, expected.get(mean, torch.full((27,), 0.25)))
    assert bnn.tuning.prior_mean == (mean if mean in ("zero", "head", "scaled head") else "given")
    assert bnn.tuning.precision == 5.0
    assert {c.precision for c in bnn.tuning.candidates} == {5.0}


def test_the_temperature_is_that_of_the_held_out_data(mlp_case):
    _, model, theta = split_last_layer(mlp_case.network, example=mlp_case.x)
    with torch.no_grad():
        held_out = Batch(mlp_case.network[:2](mlp_case.validation[0]), mlp_case.validation[1])
    assert refined("mlp")[0].refinement.temperature == pytest.approx(fit_temperature(model, theta, held_out).temperature)


def test_a_precision_for_every_parameter_is_honoured(mlp_case):
    precision = torch.linspace(1.0, 50.0, 27)
    bnn = mlp_case.refine(**{**QUICK, "prior_precision": precision}, flow=None)
    torch.testing.assert_close(bnn.prior.scale.std, precision**-0.5)
    assert (bnn.tuning.criterion, bnn.tuning.data) == ("given", "training")
    assert bnn.verdict.held_out is not None


def test_laplace_leaves_the_gaussian_as_it_is():
    bnn = reference()
    assert isinstance(bnn.posterior, Gaussian)
    assert (bnn.verdict.elbo_gain, bnn.verdict.elbo_gain_standard_error) == (0.0, 0.0)
    assert "flow" not in str(bnn.verdict)


def test_options_of_the_flow_are_passed_on(mlp_case):
    layers = [burnish.Shift.identity(torch.zeros(27))]
    bnn = mlp_case.refine(flow={"bijections": layers, "max_steps": 2, "keep_best": False}, method="flow")
    kinds = [type(layer) for layer in bnn.posterior.bijections]
    assert burnish.Shift in kinds
    assert not {burnish.SinhArcsinh, burnish.Radial} & set(kinds)


@pytest.mark.filterwarnings("ignore:the result is not trusted")  # with a single draw, and rightly so
@pytest.mark.parametrize("num_samples", [1, 2, 7])
def test_any_number_of_samples(num_samples, mlp_case):
    bnn = mlp_case.refine(**QUICK, flow=None, num_samples=num_samples)
    assert len(bnn.samples) == num_samples
    prediction = bnn.predict(mlp_case.x)
    assert prediction.samples.shape[0] == num_samples
    torch.testing.assert_close(bnn(mlp_case.x).exp(), prediction.probs)
    assert bool((prediction.epistemic_variance > 0).all()) is (num_samples > 1)
    if num_samples == 2:  # a pair of opposite noise
        torch.testing.assert_close(bnn.samples.mean(0), bnn.posterior.mean, rtol=1e-4, atol=1e-5)


# The verdict


def folds_of(made):
    """Out-of-fold logits of temperature scaling, written again: five parts of one permutation."""
    x, y = made.validation
    _, model, theta = split_last_layer(made.network, example=x[:2])
    with torch.no_grad():
        features, logits = made.network[:2](x), made.network(x)
    order, scaled = torch.randperm(len(y), generator=make_generator(0)), logits.clone()
    for number in range(5):
        inside = torch.zeros(len(y), dtype=torch.bool)
        inside[order[number::5]] = True
        scaled[inside] *= float(recalibrate(model, theta, Batch(features[~inside], y[~inside]))[1][0] / theta[0])
    return logits, scaled, y


def test_held_out_scores_are_those_of_torch_and_metrics(mlp_case):
    logits, scaled, y = folds_of(mlp_case)
    held_out = refined("mlp")[0].verdict.held_out
    for score, outputs in ((held_out.network, logits), (held_out.temperature, scaled)):
        assert score.nll == pytest.approx(float(cross_entropy(outputs, y)), rel=1e-5)
        assert score.ece == pytest.approx(metrics.ece(outputs.softmax(-1), y), abs=1e-5)
    assert held_out.gain_over_network == pytest.approx(held_out.network.nll - held_out.refined.nll)
    assert held_out.gain_over_temperature == pytest.approx(held_out.temperature.nll - held_out.refined.nll)


@pytest.mark.filterwarnings("ignore:the result is not trusted")
def test_the_result_is_scored_without_having_seen_the_points(mlp_case, monkeypatch):
    """Fitted on few validation points alone with next to no prior, it looks far too good on those it was fitted to."""
    monkeypatch.setattr(selection, "DATA", ("validation",))
    x, y = (part[:40] for part in mlp_case.validation)
    options = {**QUICK, "prior_precision": 1e-2, "prior_mean": "zero"}
    bnn = burnish.refine(mlp_case.network, mlp_case.train, validation=(x, y), **options)
    assert bnn.tuning.data == "validation"
    assert bnn.verdict.held_out.refined.nll > 2 * metrics.nll(bnn.predict(x).probs, y)


def test_a_result_that_is_worse_is_not_handed_back_in_silence(mlp_case):
    options = {**QUICK, "prior_mean": 0.0, "prior_precision": 1e6}
    with pytest.warns(UserWarning, match="the result is not trusted: it predicts worse than the network: held-out NLL"):
        bnn = mlp_case.refine(**options, flow=None)
    assert bnn.verdict.trusted is False
    assert str(bnn.verdict).startswith("not trusted: it predicts worse than the network")
    assert bnn.verdict.held_out.refined.nll == pytest.approx(np.log(3), abs=0.05)


def test_a_network_that_is_sure_and_wrong():
    """Its NLL is large, not infinite, and keeping its head is not to be trusted."""
    made = case("mlp")
    network = copy.deepcopy(made.network)
    with torch.no_grad():
        network[2].weight.mul_(100.0)
        network[2].bias.mul_(100.0)
        nll = float(cross_entropy(network(made.validation[0]), made.validation[1]))
    with pytest.warns(UserWarning, match="the result is not trusted"):
        bnn = burnish.refine(network, made.train, validation=made.validation, **{**QUICK, "prior_precision": 1e6})
    assert bnn.verdict.held_out.network.nll == pytest.approx(nll, rel=1e-3)
    assert not bnn.verdict.trusted


@pytest.mark.filterwarnings("ignore:the result is not trusted")
@pytest.mark.parametrize("num_points", [12, 40])
def test_a_network_that_makes_no_mistake_on_the_held_out_points(num_points):
    """No temperature is too low for them: on new points, what was made of that is no worse, or not trusted."""
    generator = make_generator(3)
    y = torch.randint(3, (1500,), generator=generator)
    x = 2.2 * torch.eye(3).repeat(1, 2)[y] + 0.9 * torch.randn(1500, 6, generator=generator)
    with torch.random.fork_rng():
        network = train(mlp(), (x[:300],), y[:300], cross_entropy)
    with torch.no_grad():
        right = (network(x).argmax(1) == y)[300:].nonzero().squeeze(1)[:num_points] + 300
    bnn = burnish.refine(network, (x[:300], y[:300]), validation=(x[right], y[right]), method="laplace", progress=False)
    with torch.no_grad():
        own, new = (float(cross_entropy(model(x[1000:]), y[1000:])) for model in (network, bnn))
    assert new < own + 0.05 or not bnn.verdict.trusted


# What is refused


class Counting(nn.Module):
    """Counts its calls; anything may follow the head."""

    def __init__(self, tail=None, num_outputs=3):
        super().__init__()
        trained = case("mlp").network
        self.body, self.head = copy.deepcopy(trained[:2]), copy.deepcopy(trained[2])
        if num_outputs != 3:
            self.head = copy.deepcopy(case("binary").network[2])
        self.tail = tail
        self.calls = []  # one list for the network and for its backbone
        self.body.eval()

    def forward(self, x):
        self.calls.append(len(x))
        outputs = self.head(self.body(x))
        return outputs if self.tail is None else self.tail(outputs)


class Failing(Counting):
    def forward(self, x):
        raise RuntimeError("out of order")


def part(name, **changes):
    """The data of the first case, with columns changed."""
    x, y = (column[("train", "validation").index(name)] for column in points())
    return changes.get("x", lambda x: x)(x), changes.get("y", lambda y: y)(y)


def spoil(values, index, value):
    values = values.clone()
    values[index] = value
    return values


NAN_LATE = batches(part("train", x=lambda x: spoil(x, (299, 0), float("nan"))))
# network, arguments, exception, what the message says, how often the network may have been run
REFUSED = {
    "not a module": (lambda x: x, {}, TypeError, "`network` must be a torch.nn.Module, got function. Pass the trained", 0),
    "softmax": (lambda: Counting(nn.Softmax(-1)), {}, ValueError, "a Softmax follows 'head'. Remove it and return", 1),
    "no linear layer": (lambda: nn.Flatten(), {}, ValueError, "`network` must end in a linear layer", 1),
    "unknown head": (
        Counting,
        {"head": "fc"},
        ValueError,
        "`head` must name an nn.Linear of the network, got 'fc' (no such",
        0,
    ),
    "a head that is none": (Counting, {"head": "body"}, ValueError, "got 'body' (Sequential)", 0),
    "likelihood by name": (
        Counting,
        {"likelihood": "softmax"},
        TypeError,
        "`likelihood` must be a Likelihood, got 'softmax'",
        0,
    ),
    "likelihood class": (
        Counting,
        {"likelihood": Categorical},
        TypeError,
        "`likelihood` must be a Likelihood, got <class",
        0,
    ),
    "one output": (
        lambda: Counting(num_outputs=1),
        {"likelihood": Categorical()},
        ValueError,
        "`likelihood` Categorical needs at least 2 outputs, got 1",
        2,
    ),
    "label too large": (
        Counting,
        {"data": part("train", y=lambda y: spoil(y, 299, 3))},
        ValueError,
        "`data`: `targets` must lie in 0..2 for 3 outputs, got values from 0 to 3",
        2,
    ),
    "negative label": (
        Counting,
        {"validation": part("validation", y=lambda y: spoil(y, 100, -1))},
        ValueError,
        "`validation`: `targets` must lie in 0..2 for 3 outputs, got values from -1 to 2",
        2,
    ),
    "float labels": (
        Counting,
        {"data": part("train", y=Tensor.float), "likelihood": Categorical()},
        TypeError,
        "`data`: `targets` must be integer class indices, got torch.float32",
        2,
    ),
    "float labels in validation": (
        Counting,
        {"validation": part("validation", y=Tensor.float), "likelihood": Categorical()},
        TypeError,
        "`validation`: `targets` must be integer class indices, got torch.float32",
        2,
    ),
    "one-hot": (
        Counting,
        {"data": part("train", y=one_hot)},
        ValueError,
        "`data`: `targets` must be a vector of class indices, got shape (307, 3). Turn one-hot rows into indices",
        2,
    ),
    "one-hot validation": (
        Counting,
        {"validation": part("validation", y=one_hot)},
        ValueError,
        "`validation`: `targets` must be a vector of class indices, got shape (127, 3)",
        2,
    ),
    "one-hot floats in validation": (
        Counting,
        {"validation": part("validation", y=lambda y: one_hot(y).float())},
        ValueError,
        "`validation`: `targets` must be a vector of class indices",
        9,
    ),
    "label too large in a later batch": (
        Counting,
        {"data": batches(part("train", y=lambda y: spoil(y, 299, 3)))},
        ValueError,
        "`data`: `targets` must lie in 0..2",
        99,
    ),
    "NaN": (Counting, {"data": part("train", x=lambda x: spoil(x, (0, 0), float("nan")))}, ValueError, "must be finite", 1),
    "NaN in a later batch": (Counting, {"data": NAN_LATE}, ValueError, "`data` must ", 99),
    "NaN in validation": (
        Counting,
        {"validation": part("validation", x=lambda x: spoil(x, (0, 0), float("nan")))},
        ValueError,
        "`validation` must ",
        3,
    ),
    "no batches": (
        Counting,
        {"data": []},
        ValueError,
        "`data` must hold at least one batch, got none. Check the data set",
        0,
    ),
    "no points": (
        Counting,
        {"data": part("train", x=lambda x: x[:0], y=lambda y: y[:0])},
        ValueError,
        "`data` must hold",
        0,
    ),
    "empty validation": (Counting, {"validation": []}, ValueError, "`validation` must hold at least one batch, got none", 2),
    "lengths": (
        Counting,
        {"data": part("train", y=lambda y: y[:299])},
        ValueError,
        "`data` must have columns of one length, got [307, 299]",
        0,
    ),
    "lengths in validation": (
        Counting,
        {"validation": part("validation", y=lambda y: y[:9])},
        ValueError,
        "`validation` must have columns of one length, got [127, 9]",
        2,
    ),
    "width of validation": (
        Counting,
        {"validation": part("validation", x=lambda x: x[:, :5])},
        ValueError,
        "`validation` must hold inputs that the network takes, but on batch 1 it fails with RuntimeError: mat1",
        3,
    ),
    "too few held out": (
        Counting,
        {"validation": part("validation", x=lambda x: x[:9], y=lambda y: y[:9])},
        ValueError,
        "`validation` must hold at least 10 points to choose by, got 9. Hold out more",
        3,
    ),
    "unknown method": (
        Counting,
        {"method": "nuts"},
        ValueError,
        "`method` must be one of 'auto', 'laplace', 'flow', 'long flow', 'hmc', got 'nuts'",
        0,
    ),
    "unknown structure": (
        Counting,
        {"structure": "dense"},
        ValueError,
        "`structure` must be one of 'auto', 'full', 'kron', 'diagonal', got 'dense'",
        0,
    ),
    "unknown option": (
        Counting,
        {"flow": {"steps": 3}},
        ValueError,
        "`flow` must hold options of `fit_flow`, got 'steps'",
        0,
    ),
    "options that are none": (
        Counting,
        {"flow": [3]},
        TypeError,
        "`flow` must be options of `fit_flow` by name, got list",
        0,
    ),
    "flow and laplace": (
        Counting,
        {"flow": {"max_steps": 3}, "method": "laplace"},
        ValueError,
        "`flow` has options, but `method` 'laplace' has no flow",
        0,
    ),
    "precision 0": (
        Counting,
        {"prior_precision": 0.0},
        ValueError,
        "`prior_precision` must be positive and finite, got 0",
        0,
    ),
    "precision -1": (
        Counting,
        {"prior_precision": -1},
        ValueError,
        "`prior_precision` must be positive and finite, got -1",
        0,
    ),
    "precision NaN": (Counting, {"prior_precision": float("nan")}, ValueError, "must be positive and finite, got nan", 0),
    "precisions NaN": (
        Counting,
        {"prior_precision": torch.full((27,), float("nan"))},
        ValueError,
        "`prior_precision` must be positive and finite, got nan (27 of 27 entries are not)",
        0,
    ),
    "precision by a wrong name": (
        Counting,
        {"prior_precision": "evidence"},
        ValueError,
        "`prior_precision` must be one of",
        0,
    ),
    "no precision": (Counting, {"prior_precision": None}, TypeError, "`prior_precision` must be a number, got NoneType", 0),
    "precisions too few": (
        Counting,
        {"prior_precision": torch.ones(5)},
        ValueError,
        "`prior_precision` must be a number or have shape (27,), got (5,)",
        2,
    ),
    "means too few": (
        Counting,
        {"prior_mean": torch.ones(5)},
        ValueError,
        "`prior_mean` must be a number or have shape (27,), got (5,)",
        2,
    ),
    "mean NaN": (Counting, {"prior_mean": float("nan")}, ValueError, "`prior_mean` must be finite, got nan", 2),
    "mean in a list": (Counting, {"prior_mean": [0.0] * 27}, TypeError, "`prior_mean` must be a number or a tensor", 2),
    "mean by a wrong name": (
        Counting,
        {"prior_mean": "mode"},
        ValueError,
        "`prior_mean` must be one of 'auto', 'scaled head', 'head', 'zero', got 'mode'",
        0,
    ),
    "scaled head without validation": (
        Counting,
        {"prior_mean": "scaled head", "validation": None},
        ValueError,
        "`prior_mean` 'scaled head' needs held-out data for its temperature",
        0,
    ),
    "no samples": (Counting, {"num_samples": 0}, ValueError, "`num_samples` must be at least 1, got 0", 0),
    "half a sample": (Counting, {"num_samples": 2.5}, TypeError, "`num_samples` must be an integer, got float", 0),
    "negative seed": (Counting, {"seed": -1}, ValueError, "`seed` must be at least 0, got -1", 0),
    "inputs alone": (Counting, {"data": part("train")[0]}, TypeError, "`data` must be a loader, a data set or a tuple", 0),
    "text": (
        Counting,
        {"data": "train.csv"},
        TypeError,
        "`data` must be a loader, a data set or a tuple (x, targets), got str",
        0,
    ),
    "nothing": (
        Counting,
        {"data": None},
        TypeError,
        "`data` must be a loader, a data set or a tuple (x, targets), got None",
        0,
    ),
    "validation by name": (Counting, {"validation": "val"}, TypeError, "`validation` must be a loader, a data set or", 2),
    "no labels": (
        Counting,
        {"data": {"x": part("train")[0], "classes": part("train")[1]}},
        ValueError,
        "`data` must give dictionaries with inputs and targets under one of 'labels'",
        0,
    ),
    "labels twice": (
        Counting,
        {"data": [{"x": part("train")[0], "y": part("train")[1], "labels": part("train")[1]}]},
        ValueError,
        "got the keys 'x', 'y', 'labels'. Rename the key of the targets",
        0,
    ),
    "a network that fails": (Failing, {}, ValueError, "on the first batch it fails with RuntimeError: out of order", 0),
    "negative weights": (
        Counting,
        {"data": (*part("train"), -torch.ones(NUM_TRAIN))},
        ValueError,
        "`weights` must be positive and finite, got -1 (307 of 307 entries are not)",
        99,
    ),
}


@pytest.mark.parametrize("case_name", REFUSED)
def test_refusals(case_name, untouched_rng):
    make, changes, kind, message, most_calls = REFUSED[case_name]
    network = make if isinstance(make, types.FunctionType) and case_name == "not a module" else make()
    arguments = {"data": part("train"), "validation": part("validation"), "progress": False, **changes}
    before = photograph(network) if isinstance(network, nn.Module) else None
    with pytest.raises(kind) as caught:
        burnish.refine(network, arguments.pop("data"), **arguments)
    assert message in str(caught.value)
    if before is not None:
        assert_same_photograph(before, photograph(network))
        assert len(getattr(network, "calls", [])) <= most_calls


def test_one_hot_rows_of_floats_are_not_taken_for_regression():
    """A classifier's targets, encoded: no regression of its logits."""
    x, y = part("train")
    held_out_x, held_out_y = part("validation")
    rows = one_hot(y).float(), one_hot(held_out_y).float()
    with pytest.raises(ValueError, match=r"`data`: .*argmax"):
        burnish.refine(Counting(), (x, rows[0]), validation=(held_out_x, rows[1]), **QUICK)


MISTAKEN = {
    "several labels": ("mlp", lambda y: (torch.arange(3) <= y.unsqueeze(1)).float(), "rows of 0 and 1"),
    "signs": ("binary", lambda y: 2 * y - 1, "must be 0 and 1 for a binary classifier, got only the values -1 and 1"),
    "smoothed": ("binary", lambda y: 0.9 * y + 0.05, "must be 0 and 1 for a binary classifier, got only the values 0.05"),
    "outputs of other sizes": (
        "two outputs",
        lambda y: y * torch.tensor([1.0, 1e4]),
        "residuals of similar size in all outputs",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_targets_that_look_like_something_else_are_refused(mistake):
    name, change, message = MISTAKEN[mistake]
    made = case(name)
    (x, y), (held_out_x, held_out_y) = made.train, made.validation
    with pytest.raises(ValueError, match=message):
        burnish.refine(made.network, (x, change(y)), validation=(held_out_x, change(held_out_y)), **QUICK)


def test_the_training_data_are_no_validation_data():
    pair = part("train")
    points = TensorDataset(*pair)
    same = {
        "tuple": (pair, pair),
        "inputs": (pair, (pair[0], pair[1].clone())),
        "dictionary": ({"x": pair[0], "y": pair[1]}, {"x": pair[0], "y": pair[1]}),
        "loaders": (DataLoader(points, batch_size=50, shuffle=True), DataLoader(points, batch_size=60)),
    }
    for data, validation in same.values():
        with pytest.raises(ValueError, match="`validation` must be data that the network was not trained on, got `data`"):
            burnish.refine(Counting(), data, validation=validation)


def test_samplers_may_cut_one_data_set_in_two():
    made = case("mlp")
    points = TensorDataset(*(torch.cat(columns) for columns in zip(made.train, made.validation, strict=True)))
    count = len(made.train[0])
    parts = [range(count), range(count, len(points))]
    data, validation = (DataLoader(points, batch_size=50, sampler=SubsetRandomSampler(part)) for part in parts)
    assert len(burnish.refine(made.network, data, validation=validation, **QUICK).samples) > 0


def test_a_class_that_is_missing_from_the_validation_data_is_named():
    made = case("mlp")
    x, y = made.validation
    with pytest.warns(UserWarning, match=r"far fewer points .* of class 2 \(0, not about \d+\)"):
        burnish.refine(made.network, made.train, validation=(x[y != 2], y[y != 2]), **QUICK)


@pytest.mark.parametrize("name", ["data", "validation"])
def test_no_data_at_all(name):
    given = {"data": part("train"), "validation": part("validation")} | {name: ()}
    with pytest.raises(ValueError, match=f"`{name}` must give"):
        burnish.refine(Counting(), given["data"], validation=given["validation"])


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_devices_that_are_not_there(device):
    with pytest.raises(ValueError, match="`device` must be one that torch can use here"):
        burnish.refine(Counting(), part("train"), validation=part("validation"), device=device)


def test_too_few_held_out_points_are_refused_before_the_fit(monkeypatch):
    """Also where a precision for every parameter leaves nothing to choose."""

    def fit(*args, **options):
        raise AssertionError("fitted before the data were checked")

    x, y = part("validation")
    monkeypatch.setattr("burnish.ladder.fit_laplace", fit)
    with pytest.raises(ValueError, match="at least 10 points"):
        burnish.refine(Counting(), part("train"), validation=(x[:9], y[:9]), prior_precision=torch.ones(27), progress=False)


def test_the_network_is_untouched_where_the_fit_fails(monkeypatch, untouched_rng):
    def fit(*args, **options):
        raise burnish.FitError("no luck")

    made = case("normed")
    before = photograph(made.network)
    monkeypatch.setattr("burnish.ladder.fit_laplace", fit)
    with pytest.raises(burnish.FitError, match="no luck"):
        made.refine()
    assert_same_photograph(before, photograph(made.network))
