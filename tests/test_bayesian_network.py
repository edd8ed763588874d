"""The product in use: a drop-in for the network, exported, moved, copied, saved, and loaded in another process."""

import copy
import math
import os
import pickle
import random
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import burnish
import test_refine
from burnish import BayesianNetwork, load, metrics, storage
from burnish.inference import laplace
from burnish.layer_scales import Kronecker
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.target import PriorTuning
from burnish.verdict import Verdict
from test_refine import CASES, HALVES, QUICK, assert_same_photograph, call, case, guard, photograph, refined


@pytest.fixture(params=CASES)
def name(request):
    with guard(request.param):
        yield request.param


@pytest.fixture(scope="module")
def mlp():
    return case("mlp"), refined("mlp")[0]


def separate(case_name="mlp"):
    """A network of one's own, and its Bayesian one, to be moved and spoilt."""
    network = copy.deepcopy(case(case_name).network)
    bnn = refined(case_name)[0]
    return network, BayesianNetwork(burnish.Backbone.cut(network, bnn.backbone.head), bnn.refinement)


# A drop-in


def test_an_ordinary_evaluation_loop(mlp):
    made, bnn = mlp
    x, y = made.validation
    prediction = bnn.predict(x)
    loss, correct, probs = 0.0, 0, []
    bnn.eval()
    with torch.no_grad():
        for start in range(0, len(x), 32):
            logits = bnn(x[start : start + 32])
            loss += float(cross_entropy(logits, y[start : start + 32], reduction="sum"))
            correct += int((logits.argmax(1) == y[start : start + 32]).sum())
            probs.append(logits.softmax(1))
    assert loss / len(x) == pytest.approx(metrics.nll(prediction.probs, y), rel=1e-5)
    assert correct / len(x) == pytest.approx(metrics.accuracy(prediction.probs, y))
    torch.testing.assert_close(torch.cat(probs), prediction.probs)


def test_a_prediction_has_what_it_promises(mlp):
    made, bnn = mlp
    prediction = bnn.predict(made.x)
    torch.testing.assert_close(prediction.samples.mean(0), prediction.probs)
    torch.testing.assert_close(prediction.epistemic_variance, prediction.samples.var(0, correction=0))  # antithetic pairs
    entropy = -(prediction.probs * prediction.probs.log()).sum(1)
    torch.testing.assert_close(prediction.entropy, entropy)
    assert bool((prediction.mutual_information >= 0).all())
    assert bool((prediction.mutual_information <= prediction.entropy).all())
    assert bnn.predict(made.x, keep_samples=False).samples is None
    assert not prediction.probs.requires_grad


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_batches_of_any_size_predict_the_same(batch_size, mlp):
    made, bnn = mlp
    torch.testing.assert_close(bnn.predict(made.x, batch_size=batch_size).samples, bnn.predict(made.x).samples)


def test_a_batch_of_one(name):
    made, bnn = case(name), refined(name)[0]
    one = {key: value[:1] for key, value in made.x.items()} if isinstance(made.x, dict) else made.x[:1]
    close = {"rtol": 2e-2, "atol": 2e-2} if name in HALVES else {}
    torch.testing.assert_close(bnn.predict(one).mean, bnn.predict(made.x).mean[:1], **close)
    torch.testing.assert_close(call(bnn, one), call(bnn, made.x)[:1], **close)


def test_arrays_are_taken(mlp):
    made, bnn = mlp
    assert torch.equal(bnn.predict(made.x.double().numpy()).probs, bnn.predict(made.x).probs)


def test_nothing_is_random(mlp, untouched_rng):
    made, bnn = mlp
    assert torch.equal(bnn(made.x), bnn(made.x))
    assert torch.equal(bnn.predict(made.x).samples, bnn.predict(made.x).samples)


BAD_INPUTS = {
    "no points": (torch.zeros(0, 6), ValueError, "`x` must hold at least one point, got none"),
    "nothing": (None, TypeError, "`x` must"),
    "a number": (torch.tensor(1.0), (TypeError, ValueError), "`x` must"),
    "one point alone": (torch.zeros(6), ValueError, "`x` must"),
}


@pytest.mark.parametrize("bad", BAD_INPUTS)
def test_bad_inputs(bad, mlp):
    x, kind, message = BAD_INPUTS[bad]
    with pytest.raises(kind) as caught:
        mlp[1].predict(x)
    assert message in str(caught.value)


def test_a_batch_size_of_nothing(mlp):
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        mlp[1].predict(mlp[0].x, batch_size=0)


def test_modes_change_nothing(name):
    """Neither those of the Bayesian network nor those of the user's."""
    made, bnn = case(name), refined(name)[0]
    before, expected = photograph(made.network), call(bnn, made.x)
    for mode in (True, False, True):
        bnn.train(mode)
        assert bnn.training is mode
        assert torch.equal(call(bnn, made.x), expected)
        assert_same_photograph(before, photograph(made.network))
    modes = [part.training for part in made.network.modules()]
    try:
        for mode in (True, False):
            made.network.train(mode)
            before = photograph(made.network)
            assert torch.equal(call(bnn, made.x), expected)
            assert torch.equal(bnn.predict(made.x).mean, bnn.predict(made.x).mean)
            assert_same_photograph(before, photograph(made.network))
    finally:
        for part, mode in zip(made.network.modules(), modes, strict=True):
            part.training = mode


def test_gradients_flow_to_the_input(mlp):
    made, bnn = mlp
    x = made.x[:3].double().requires_grad_()
    network, bnn = separate()
    bnn.double()
    assert torch.autograd.gradcheck(bnn, (x,), raise_exception=True)
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case_name", ["normed", "binary"])
def test_export(case_name, mode, strict):
    network, bnn = separate(case_name)
    getattr(network, mode)()
    before, x = photograph(network), case(case_name).x
    size = torch.export.Dim("n", min=1, max=1024)
    program = torch.export.export(bnn, (x,), dynamic_shapes=({0: size},), strict=strict)
    for count in (1, 5, len(x)):
        torch.testing.assert_close(program.module()(x[:count]), bnn(x[:count]))
    assert_same_photograph(before, photograph(network))


def test_export_of_keywords():
    _, bnn = separate("keywords")
    x = case("keywords").x
    program = torch.export.export(bnn, (), kwargs=x, strict=False)
    torch.testing.assert_close(program.module()(**x), bnn(**x))


# Moved and copied


def test_to_moves_the_network_too_and_back():
    network, bnn = separate("normed")
    x, expected = case("normed").x, refined("normed")[0].predict(case("normed").x).probs
    assert bnn.to(torch.float64) is bnn
    assert bnn.samples.dtype == network.head.weight.dtype == network.body[0].weight.dtype == torch.float64
    probs = bnn.predict(x.double()).probs
    assert probs.dtype == bnn(x.double()).dtype == torch.float64
    torch.testing.assert_close(probs.float(), expected, rtol=1e-4, atol=1e-5)
    assert network.eval()(x.double()).dtype == torch.float64
    bnn.to(torch.float32)
    torch.testing.assert_close(bnn.predict(x).probs, expected)
    assert network(x).dtype == torch.float32


def test_a_tied_head_stays_tied():
    network, bnn = separate("tied")
    x, expected = case("tied").x, bnn(case("tied").x)
    bnn.double().float()
    assert network.head.weight is network.other.weight
    assert torch.equal(bnn(x), expected)


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda bnn: pickle.loads(pickle.dumps(bnn))])
def test_copies_predict_the_same_and_share_nothing(copying, mlp):
    made, bnn = mlp
    twin = copying(bnn)
    assert torch.equal(twin(made.x), bnn(made.x))
    assert twin.verdict == bnn.verdict
    assert not {t.data_ptr() for t in twin.parameters()} & {t.data_ptr() for t in made.network.parameters()}
    twin.double()
    assert made.network[0].weight.dtype == torch.float32


def test_the_state_is_samples_and_backbone():
    network, bnn = separate()
    state = bnn.state_dict()
    assert list(state) == ["rows", "biases", "backbone.network.0.weight", "backbone.network.0.bias"]
    x, expected = case("mlp").x, bnn(case("mlp").x).detach()
    stored = {key: value.clone() for key, value in state.items()}
    with torch.no_grad():
        network[0].weight.zero_()
        bnn.rows.zero_()
    assert not torch.allclose(bnn(x), expected)
    bnn.load_state_dict(stored)
    assert torch.equal(bnn(x), expected)


def test_it_follows_the_network():
    """Shared, not copied: the docstring's word."""
    network, bnn = separate()
    x, before = case("mlp").x, bnn(case("mlp").x)
    with torch.no_grad():
        network[0].weight.mul_(0.5)
    assert not torch.allclose(bnn(x), before)


def test_it_says_what_it_is(mlp):
    assert "20 samples of 3 x 8 weights, Categorical()" in repr(mlp[1])
    seconds = mlp[1].seconds
    seconds.clear()
    assert mlp[1].seconds  # a copy was cleared


# Weighted samples


def some_weights(count, like, seed=0):
    weights = torch.rand(count, generator=burnish.make_generator(seed)).to(like) + 0.1
    return weights / weights.sum()


@pytest.mark.parametrize("case_name", ["mlp", "binary", "regression", "keywords", "float64"])
def test_samples_count_by_their_weights(case_name):
    """Weights of 1, 2 and 3 sixths are six samples, one of them once, one twice and one three times."""
    made, bnn = case(case_name), refined(case_name)[0]
    weights = torch.tensor([1.0, 2.0, 3.0]).to(bnn.samples) / 6.0
    twin = bnn.with_samples(burnish.WeightedSamples(bnn.samples[:3], weights))
    repeated = replace(bnn.refinement, samples=bnn.samples[[0, 1, 1, 2, 2, 2]])
    expected = BayesianNetwork(bnn.backbone, repeated)
    torch.testing.assert_close(call(twin, made.x), call(expected, made.x))
    found, wanted = twin.predict(made.x), expected.predict(made.x)
    torch.testing.assert_close(found.mean, wanted.mean)
    assert found.samples.shape[0] == 3
    if found.noise_variance is None:
        torch.testing.assert_close(found.mutual_information, wanted.mutual_information, rtol=1e-4, atol=1e-6)
    assert twin.backbone is bnn.backbone
    assert twin.verdict == bnn.verdict
    assert bnn.weights is None
    assert len(bnn.samples) == 20


def test_equal_weights_change_nothing(mlp):
    made, bnn = mlp
    twin = bnn.with_samples(burnish.WeightedSamples(bnn.samples, torch.full((20,), 0.05)))
    torch.testing.assert_close(twin(made.x), bnn(made.x))
    torch.testing.assert_close(twin.predict(made.x).epistemic_variance, bnn.predict(made.x).epistemic_variance)


def test_weights_are_saved_moved_and_copied(tmp_path):
    network, bnn = separate()
    bnn = bnn.with_samples(burnish.WeightedSamples(bnn.samples[:4], some_weights(4, bnn.samples)))
    x, expected = case("mlp").x, bnn(case("mlp").x)
    assert list(bnn.state_dict())[:3] == ["rows", "biases", "weights"]
    bnn.save(tmp_path / "file")
    again = load(tmp_path / "file", network)
    assert torch.equal(again.weights, bnn.weights)
    assert torch.equal(again(x), expected)
    assert torch.equal(copy.deepcopy(bnn)(x), expected)
    bnn.double()
    assert bnn.weights.dtype == torch.float64
    torch.testing.assert_close(bnn(x.double()).float(), expected)


def test_samples_of_another_layer_are_refused(mlp):
    bnn = mlp[1]
    with pytest.raises(ValueError, match="`samples` must have the 27 dimensions of the last layer, got 26"):
        bnn.with_samples(burnish.WeightedSamples(bnn.samples[:2, 1:], torch.tensor([0.5, 0.5])))
    with pytest.raises(TypeError, match="`samples` must be WeightedSamples, got Tensor"):
        bnn.with_samples(bnn.samples)
    half = burnish.WeightedSamples(bnn.samples[:2].half(), torch.tensor([0.5, 0.5]).half())
    with pytest.raises(TypeError, match=r"`samples` must be float32 or float64, got torch\.float16"):
        bnn.with_samples(half)


# Half precision


@pytest.mark.parametrize("case_name", ["lenet", "binary", "regression"])
@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, lambda bnn: bnn.to(torch.bfloat16)])
def test_only_the_backbone_is_rounded(cast, case_name):
    """What differs from float32 is what the backbone's features differ by: the head is the same, to the last digits."""
    network, bnn = separate(case_name)
    bnn = bnn.with_samples(burnish.WeightedSamples(bnn.samples[:5], some_weights(5, bnn.samples)))
    samples, weights, x = bnn.samples.clone(), bnn.weights.clone(), case(case_name).x
    with guard("bfloat16"), torch.no_grad():
        full = bnn(x)
        cast(bnn)
        dtype = next(network.parameters()).dtype
        assert dtype in (torch.float16, torch.bfloat16)
        assert torch.equal(bnn.samples, samples)
        assert torch.equal(bnn.weights, weights)
        features = bnn.backbone(x.to(dtype))
        assert features.dtype == dtype
        expected = bnn.model.likelihood.average(bnn.model(samples, features.float()), weights)
        found = bnn(x.to(dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        prediction = bnn.predict(x.to(dtype))
        assert prediction.mean.dtype == prediction.epistemic_variance.dtype == torch.float32
        torch.testing.assert_close(found, full, rtol=0.1, atol=0.1)  # eight bits, through a few layers
        assert bnn.float() is bnn
    assert torch.equal(bnn.samples, samples)
    assert torch.equal(bnn.weights, weights)
    assert next(network.parameters()).dtype == torch.float32


def test_autocast_rounds_only_the_backbone():
    _, bnn = separate("lenet")
    x = case("lenet").x
    with guard("bfloat16"), torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features, found, prediction = bnn.backbone(x), bnn(x), bnn.predict(x)
        assert features.dtype == torch.bfloat16
        assert found.dtype == prediction.mean.dtype == torch.float32
        expected = bnn.model.likelihood.average(bnn.model(bnn.samples, features.float()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(prediction.probs, expected.exp(), rtol=1e-5, atol=1e-5)


def test_doubles_become_floats_in_half_precision():
    _, bnn = separate("float64")
    with guard("bfloat16"):
        bnn.bfloat16()
        assert bnn.samples.dtype == bnn(case("float64").x.bfloat16()).dtype == torch.float32


def test_gradients_in_half_precision():
    _, bnn = separate()
    with guard("bfloat16"):
        x = case("mlp").x[:3].bfloat16().requires_grad_()
        bnn.bfloat16()(x).exp().square().sum().backward()
    assert bool(torch.isfinite(x.grad).all())


# Files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "posterior.safetensors"


def assert_same_refinement(one, other):
    for field in ("head", "model", "temperature", "seconds", "fingerprint"):
        assert getattr(one, field) == getattr(other, field)
    for field in ("verdict", "tuning"):
        assert repr(getattr(one, field)) == repr(getattr(other, field))  # a NaN does not equal itself
    assert one.inputs == other.inputs
    assert torch.equal(one.samples, other.samples)
    assert torch.equal(one.prior.mean, other.prior.mean)
    assert torch.equal(one.prior.scale.std, other.prior.scale.std)
    generators = (burnish.make_generator(5) for _ in range(2))
    first, second = (r.posterior.sample(3, generator=g) for r, g in zip((one, other), generators, strict=True))
    assert torch.equal(first, second)


def test_saved_and_loaded(name, path):
    made, bnn = case(name), refined(name)[0]
    before = photograph(made.network)
    bnn.save(path)
    again = load(path, made.network)
    assert_same_photograph(before, photograph(made.network))
    assert isinstance(again.posterior, FlowPosterior)
    assert_same_refinement(bnn.refinement, again.refinement)
    assert torch.equal(again.predict(made.x).samples, bnn.predict(made.x).samples)
    assert torch.equal(call(again, made.x), call(bnn, made.x))
    assert os.listdir(path.parent) == [path.name]


@cache
def laplace_only(structure, case_name="mlp"):
    made = case(case_name)
    dim, laplace._DENSE_DIM = laplace._DENSE_DIM, 0 if structure == "kron" else laplace._DENSE_DIM
    try:
        return made, burnish.refine(made.network, made.train, validation=made.validation, **QUICK)
    finally:
        laplace._DENSE_DIM = dim


@pytest.mark.parametrize("structure", ["full", "kron"])
@pytest.mark.parametrize("case_name", ["mlp", "no bias", "binary", "two outputs"])
def test_gaussians_saved_and_loaded(structure, case_name, path):
    made, bnn = laplace_only(structure, case_name)
    bnn.save(path)
    again = load(path, made.network)
    assert isinstance(again.posterior, Gaussian)
    assert isinstance(again.posterior.scale, Kronecker) is (structure == "kron")
    assert_same_refinement(bnn.refinement, again.refinement)
    assert torch.equal(again(made.x), bnn(made.x))


def test_a_flow_on_kronecker_factors(path, monkeypatch):
    monkeypatch.setattr(laplace, "_DENSE_DIM", 0)
    made = case("mlp")
    bnn = made.refine()
    assert any(isinstance(getattr(layer, "scale", None), Kronecker) for layer in bnn.posterior.bijections)
    bnn.save(path)
    assert_same_refinement(bnn.refinement, load(path, made.network).refinement)


@pytest.mark.parametrize("khat", [math.inf, -math.inf, 0.3])
@pytest.mark.parametrize("temperature", [None, 1.7])
def test_every_field_comes_back(khat, temperature, path, mlp):
    made, bnn = mlp
    verdict = replace(bnn.verdict, khat=khat, elbo=-1e300, trusted=False, reason="äöü \n \"'", held_out=None)
    tuning = PriorTuning("given", (), "given", math.nan, True, "validation")
    changed = replace(
        bnn.refinement, verdict=verdict, tuning=tuning, temperature=temperature, seconds={"b": 1e-9, "a": 2.0, "": 0.0}
    )
    BayesianNetwork(bnn.backbone, changed).save(path)
    again = load(path, made.network)
    assert_same_refinement(changed, again.refinement)
    assert isinstance(again.verdict, Verdict)
    assert again.verdict.khat == khat
    assert again.refinement.temperature == temperature


SCRIPT = """
import sys, torch, burnish
sys.path.insert(0, sys.argv[1])
names = sys.argv[3:]
for name in names:
    network, x, expected = torch.load(f"{sys.argv[2]}/{name}.pt", weights_only=False)
    bnn = burnish.load(f"{sys.argv[2]}/{name}.safetensors", network)
    found = bnn.predict(x)
    assert torch.equal(found.mean, expected.mean), name
    assert torch.equal(found.samples, expected.samples), name
    print(name, bnn.verdict.trusted)
"""


def test_a_new_process_predicts_the_same_bits(tmp_path):
    names = ["mlp", "lenet", "normed", "binary", "two outputs", "takes a dictionary", "float64"]
    for name in names:
        made, bnn = case(name), refined(name)[0]
        bnn.save(tmp_path / f"{name}.safetensors")
        torch.save((made.network, made.x, bnn.predict(made.x)), tmp_path / f"{name}.pt")
    arguments = [sys.executable, "-c", SCRIPT, str(Path(test_refine.__file__).parent), str(tmp_path), *names]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} True" for name in names]


def test_training_data_is_not_in_the_file(path, mlp):
    made, bnn = mlp
    bnn.save(path)
    content = path.read_bytes()
    assert bnn.samples[3].numpy().tobytes() in content  # the search would find it
    for x, y in (made.train, made.validation):
        with torch.no_grad():
            features = made.network[:2](x)
        for row in range(0, len(x), 10):
            assert x[row].numpy().tobytes() not in content
            assert features[row, :4].numpy().tobytes() not in content
            assert features[row, :4].double().numpy().tobytes() not in content
        assert y[:8].numpy().tobytes() not in content
    for parameter in made.network.parameters():  # nor the network's own weights, but for the prior's mean
        assert (
            parameter is made.network[2].weight
            or parameter.detach().flatten()[:8].numpy().tobytes() not in content
            or (parameter is made.network[2].bias)
        )
    dim = bnn.model.head.dim
    expected = 4 * (20 * dim + dim * dim + 10 * dim)  # samples, the Gaussian's factor, layers and vectors
    assert len(content) < expected + 30_000  # and the header, with every candidate


def test_loading_never_unpickles(path, mlp, monkeypatch):
    made, bnn = mlp
    bnn.save(path)

    def refuse(*args, **options):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert torch.equal(load(path, made.network)(made.x), bnn(made.x))
    path.write_bytes(b"\x80\x04\x95" + bytes(100))
    with pytest.raises(ValueError, match="`path` must be a burnish file"):
        load(path, made.network)


def other_weights(network):
    with torch.no_grad():
        network[0].weight[0, 0] += 1e-6
    return network


ANOTHER = {
    "retrained": (other_weights, ValueError, "got the same architecture, other weights: retrained, or in another precision"),
    "in double": (lambda network: network.double(), ValueError, "got one with other names, shapes or dtypes"),
    "in half": (lambda network: network.half(), ValueError, "got one with other names, shapes or dtypes"),
    "deeper": (
        lambda n: nn.Sequential(n[0], n[1], n[2], nn.Identity(), nn.Linear(3, 3)),
        ValueError,
        "got one with other names, shapes or dtypes",
    ),
    "wider input": (lambda n: nn.Sequential(nn.Linear(7, 8), n[1], n[2]), ValueError, "got one with other names"),
    "without the layer": (
        lambda n: n[:2],
        ValueError,
        "`network` must have a linear layer '2' from 8 to 3, got no such layer. Pass the network that this posterior",
    ),
    "another layer": (lambda n: nn.Sequential(n[0], n[1], nn.Tanh()), ValueError, "'2' from 8 to 3, got Tanh()"),
    "another head": (
        lambda n: nn.Sequential(n[0], n[1], nn.Linear(8, 4)),
        ValueError,
        "'2' from 8 to 3, got Linear(in_features=8, out_features=4",
    ),
    "a function": (
        lambda n: n.forward,
        TypeError,
        "`network` must be a torch.nn.Module, got method. Pass the trained module",
    ),
    "a state": (lambda n: n.state_dict(), TypeError, "`network` must be a torch.nn.Module, got OrderedDict"),
}


@pytest.mark.parametrize("another", ANOTHER)
def test_another_network_is_refused(another, path, mlp):
    change, kind, message = ANOTHER[another]
    mlp[1].save(path)
    with torch.random.fork_rng():
        network = change(copy.deepcopy(mlp[0].network))
    with pytest.raises(kind) as caught:
        load(path, network)
    assert message in str(caught.value)


def test_a_moved_network_is_saved_as_it_is(path):
    """Saved in double precision, loaded into the network as it was then."""
    network, bnn = separate()
    bnn.double()
    bnn.save(path)
    again = load(path, network)
    x = case("mlp").x.double()
    torch.testing.assert_close(again.predict(x).probs.double(), bnn.predict(x).probs, rtol=1e-5, atol=1e-6)


def test_files_from_before_weights_and_forms(path, mlp):
    """Without the fields that came later, as they were written then."""
    made, bnn = mlp
    bnn.save(path)
    header, tensors = storage.read_file(path)
    for field in ("weights", "inputs"):
        del header["refinement"]["fields"][field]
    storage.write_file(path, header, tensors)
    again = load(path, made.network)
    assert again.weights is again.refinement.inputs is None
    assert torch.equal(again(made.x), bnn(made.x))
    del header["refinement"]["fields"]["verdict"]
    storage.write_file(path, header, tensors)
    with pytest.raises(ValueError, match=r"missing fields \['verdict'\]"):
        load(path, made.network)


def test_there_is_no_such_file(tmp_path, mlp):
    with pytest.raises(FileNotFoundError, match="`path` must be an existing file"):
        load(tmp_path / "nothing", mlp[0].network)
    with pytest.raises(ValueError, match="`path` must be a regular file"):
        load(tmp_path, mlp[0].network)


def test_places_that_cannot_be_written_to(tmp_path, mlp):
    with pytest.raises(OSError, match=r"`path` must be a file that can be written.*Create its folder first"):
        mlp[1].save(tmp_path / "missing" / "file")
    (tmp_path / "plain").write_text("kept")
    with pytest.raises(OSError, match="`path` must be a file that can be written"):
        mlp[1].save(tmp_path / "plain" / "file")
    with pytest.raises(OSError, match=r"`path` must be a file that can be written.*Add a file name"):
        mlp[1].save(tmp_path)
    assert os.listdir(tmp_path) == ["plain"]
    assert (tmp_path / "plain").read_text() == "kept"


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_write_that_fails_keeps_the_old_file(failing, path, mlp, monkeypatch):
    mlp[1].save(path)
    old = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left on device"):
        laplace_only("full")[1].save(path)
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


def mutate(content, chance):
    """One random accident to a file."""
    content, start = bytearray(content), chance.randrange(len(content))
    stop = min(len(content), start + chance.choice([1, 1, 2, 8, 50, 1000]))
    match chance.randrange(6):
        case 0:
            content[start] ^= 1 << chance.randrange(8)
        case 1:
            del content[start:stop]
        case 2:
            content[start:start] = chance.randbytes(stop - start)
        case 3:
            del content[start:]
        case 4:
            content[start:stop] = bytes(stop - start)
        case 5:
            other = chance.randrange(len(content))
            content[start], content[other] = content[other], content[start]
    return bytes(content)


def test_a_thousand_accidents(path, mlp):
    made, bnn = mlp
    bnn.save(path)
    content, chance, refused, slowest = path.read_bytes(), random.Random(0), 0, 0.0
    for _ in range(1000):
        path.write_bytes(mutate(content, chance))
        start = time.perf_counter()
        try:
            again = load(path, made.network)
        except ValueError:
            refused += 1
        else:
            assert torch.equal(again.samples, bnn.samples)
        slowest = max(slowest, time.perf_counter() - start)
    assert refused > 900
    assert slowest < 1.0


WRONG_PARTS = {
    "samples of another head": lambda r: {"samples": r.samples[:, :-1]},
    "no samples": lambda r: {"samples": r.samples[:0]},
    "one sample alone": lambda r: {"samples": r.samples[0]},
    "a posterior of another head": lambda r: {"posterior": Gaussian(r.prior.mean[:5], burnish.Diagonal(torch.ones(5)))},
    "a prior of another head": lambda r: {"prior": Gaussian(r.prior.mean[:5], burnish.Diagonal(torch.ones(5)))},
    "no verdict": lambda r: {"verdict": None},
    "no name": lambda r: {"head": 2},
    "no posterior": lambda r: {"posterior": r.samples},
    "samples in half precision": lambda r: {"samples": r.samples.half()},
    "weights of other samples": lambda r: {"weights": torch.full((19,), 1 / 19)},
    "weights that sum to two": lambda r: {"weights": torch.full((20,), 0.1)},
    "inputs of no form": lambda r: {"inputs": (6,)},
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_parts_that_do_not_belong_together(wrong, mlp):
    refinement = mlp[1].refinement
    with pytest.raises((TypeError, ValueError), match=r"`.*` must"):
        replace(refinement, **WRONG_PARTS[wrong](refinement))
