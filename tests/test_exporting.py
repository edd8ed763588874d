"""Graphs without Python: ONNX files in onnxruntime and programs of torch.export against the network itself."""

import builtins
import copy
import io
import logging
import os
import stat
import sys
import warnings

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid

import burnish
from burnish import BayesianNetwork, exporting
from burnish.features import Backbone, call_arguments
from burnish.input_form import InputForm
from burnish.noise import make_generator
from burnish.posteriors import WeightedSamples
from networks import randomised
from test_refine import assert_same_photograph, case, guard, photograph, refined

SIZES = (1, 2, 7, 128, 1000)


def weighted(bnn, count=5):
    weights = torch.rand(count, generator=make_generator(0)) + 0.1
    return bnn.with_samples(WeightedSamples(bnn.samples[:count], weights / weights.sum()))


def around(network, bnn, head):
    """Another network with a last layer of the same shape, to be exported; what the posterior was fitted to is not used."""
    return BayesianNetwork(Backbone.cut(network, head), bnn.refinement)


def rows(x, count):
    def take(part):
        return part[torch.arange(count) % len(part)] + (0.01 * torch.arange(count).view(-1, *[1] * (part.ndim - 1))).to(part)

    return {key: take(part) for key, part in x.items()} if isinstance(x, dict) else take(x)


@torch.no_grad()
def expected(bnn, x):
    prediction = bnn.predict(x)
    if prediction.noise_variance is not None:
        return {name: getattr(prediction, name) for name in ("mean", "epistemic_variance", "variance")}
    args, kwargs = call_arguments(bnn.backbone, x)
    outputs = bnn(*args, **kwargs)
    log_probs = logsigmoid(torch.cat([-outputs, outputs], 1)) if outputs.shape[1] == 1 else outputs
    torch.testing.assert_close(log_probs.exp(), prediction.probs)
    return {
        "log_probs": log_probs,
        "entropy": prediction.entropy,
        "mutual_information": prediction.mutual_information,
    }


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    values = [x[name] for name in names] if isinstance(x, dict) and len(x) == len(names) > 1 else [x]
    values = list(values[0].values()) if isinstance(values[0], dict) else values
    found = session.run(None, {name: value.numpy() for name, value in zip(names, values, strict=True)})
    return {entry.name: torch.from_numpy(value) for entry, value in zip(session.get_outputs(), found, strict=True)}


def run_program(path, x, keywords=False):
    module = torch.export.load(path).module()
    x = next(iter(x.values())) if isinstance(x, dict) and len(x) == 1 else x
    found = module(**x) if keywords else module(x)
    return {name: value.detach() for name, value in found.items()}


def assert_close(found, wanted, tolerance=1e-5):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        # float32 has some 1e-7 of a value, which of a log-probability of -20 is 2e-6 at every step
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=tolerance)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "network.onnx"


NAMES = {
    "lenet": ["x"],
    "mlp": ["input"],
    "normed": ["x"],
    "binary": ["input"],
    "regression": ["input"],
    "keywords": ["left", "right"],
    "takes a dictionary": ["right", "left"],
}
PROGRAMS = ["lenet", "normed", "keywords", "takes a dictionary", "two outputs", "dictionary of one", "no bias", "bfloat16"]


@pytest.mark.parametrize("name", NAMES)
def test_onnx_runs_the_same(name, path, untouched_rng, capfd):
    made, bnn = case(name), refined(name)[0]
    before = photograph(made.network)
    bnn.export(path)
    assert capfd.readouterr() == ("", "")
    assert_same_photograph(before, photograph(made.network))
    assert os.listdir(path.parent) == [path.name]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert not [node.op_type for node in model.graph.node if "Random" in node.op_type or node.op_type == "Dropout"]
    assert [entry.name for entry in model.graph.input] == NAMES[name]
    assert {entry.type.tensor_type.shape.dim[0].dim_param for entry in model.graph.input} == {"batch"}
    for size in SIZES if name == "lenet" else (1, 7):
        x = rows(made.x, size)
        assert_close(run_onnx(path, x), expected(bnn, x))


def test_weighted_samples(path):
    bnn, x = weighted(refined("lenet")[0]), case("lenet").x
    bnn.export(path)
    assert_close(run_onnx(path, x), expected(bnn, x))


@pytest.mark.parametrize("name", ["regression", "binary"])
def test_weighted_samples_in_a_program(name, path):
    bnn, x = weighted(refined(name)[0]), case(name).x
    bnn.export(path, format="torch")
    assert_close(run_program(path, x), expected(bnn, x))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_the_same(name, tmp_path, untouched_rng):
    made, bnn = case(name), refined(name)[0]
    before, path = photograph(made.network), tmp_path / "network.pt2"
    with guard(name):
        bnn.export(path, format="torch")
        assert_same_photograph(before, photograph(made.network))
        assert os.listdir(tmp_path) == [path.name]
        for size in (1, 7):
            x = rows(made.x, size)
            assert_close(run_program(path, x, keywords=name == "keywords"), expected(bnn, x))


def test_float16_runs_in_onnx(path):
    made, bnn = case("float16"), refined("float16")[0]
    with guard("float16"):
        bnn.export(path)
        assert_close(run_onnx(path, made.x), expected(bnn, made.x), tolerance=5e-3)  # features of another order of sums


def test_bfloat16_is_refused_for_onnx(path):
    with pytest.raises(ValueError, match=r"got one in bfloat16. Call `.float\(\)` first, or pass format='torch'"):
        refined("bfloat16")[0].export(path)
    assert not path.exists()


def test_autocast_is_no_part_of_the_graph(path):
    made, bnn = case("mlp"), refined("mlp")[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bnn.export(path, format="torch")
    assert_close(run_program(path, made.x), expected(bnn, made.x))


# Examples


@pytest.mark.parametrize("count", [1, 2, 40])
def test_an_example_of_any_size(count, path):
    made, bnn = case("mlp"), refined("mlp")[0]
    without = BayesianNetwork(bnn.backbone, burnish.bayesian_network.replace(bnn.refinement, inputs=None))
    without.export(path, made.x[:count].double().numpy(), format="torch")  # an array, as `predict` takes it
    assert_close(run_program(path, made.x), expected(bnn, made.x))


def test_an_example_is_needed_where_the_form_is_not_known(path):
    bnn = refined("mlp")[0]
    without = BayesianNetwork(bnn.backbone, burnish.bayesian_network.replace(bnn.refinement, inputs=None))
    with pytest.raises(ValueError, match="`example` must be given, because the form of the inputs is not known"):
        without.export(path)


BAD_EXAMPLES = {
    "no points": (torch.zeros(0, 6), ValueError, "`example` must hold at least one point, got none"),
    "a number": (torch.tensor(1.0), TypeError, "`example` must be a batch of tensors, one row per point, got a number"),
    "texts": (["a", "b"], TypeError, "`example` must be a batch of tensors, one row per point, got str"),
    "another shape": (
        torch.zeros(3, 7),
        ValueError,
        "`example` must be inputs that the network takes, but it fails with RuntimeError",
    ),
}


@pytest.mark.parametrize("bad", BAD_EXAMPLES)
def test_bad_examples(bad, path):
    example, kind, message = BAD_EXAMPLES[bad]
    with pytest.raises(kind) as caught:
        refined("mlp")[0].export(path, example)
    assert message in str(caught.value)
    assert os.listdir(path.parent) == []


class NamedMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, mean):
        return self.out(mean)


def test_an_input_with_the_name_of_an_output_is_refused(path):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    bnn = burnish.refine(NamedMean(), (x[:40], x[:40, :1]), validation=(x[40:], x[40:, :1]), progress=False)
    with pytest.raises(ValueError, match="`network` must not have inputs with names of the graph's outputs, got 'mean'"):
        bnn.export(path)
    assert not path.exists()


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_file_says_nothing_about_where_it_was_made(path, format):
    refined("mlp")[0].export(path, format=format)
    content = path.read_bytes()
    assert os.fsencode(os.path.dirname(burnish.__file__)) not in content
    assert os.fsencode(os.path.dirname(__file__)) not in content


def test_half_precision_needs_no_example(path):
    bnn = copy.deepcopy(refined("mlp")[0]).half()
    bnn.export(path)
    assert path.exists()


def test_the_form_of_inputs():
    x = torch.zeros(5, 3, 2, dtype=torch.int64)
    assert InputForm.of(x) == InputForm(None, ((3, 2),), ("int64",))
    assert InputForm.of({"b": x, "a": x[:, 0, 0].half()}) == InputForm(("b", "a"), ((3, 2), ()), ("int64", "float16"))
    assert InputForm.of([x, x]) is None
    assert InputForm.of({"text": ["a"]}) is None
    example = InputForm.of({"b": x}).example(None)
    assert (example["b"].shape, example["b"].dtype) == ((2, 3, 2), torch.int64)
    with pytest.raises(ValueError, match="`dtypes` must be names of dtypes"):
        InputForm(None, ((3,),), ("save",))
    with pytest.raises(ValueError, match="must be of one length"):
        InputForm(("a", "b"), ((3,),), ("int64",))


# Networks


class Body(nn.Module):
    """A network (N, 6) to 3 whose body is told."""

    def __init__(self, body):
        super().__init__()
        self.layer, self.fc, self.body = nn.Linear(6, 8), nn.Linear(8, 3), body

    def forward(self, pixels, scale=None):
        return self.fc(self.body(torch.tanh(self.layer(pixels))))


BAD_NETWORKS = {
    "a number of points": (lambda h: h.view(40, -1), "`network` must take batches of any size, but with 2 points"),
    "rows gone": (lambda h: h[:1], "`network` must give one row of 8 features for each point, got shape (1, 8)"),
    "a constant": (lambda h: h + torch.zeros(int(h.shape[0]), 1), "makes the number of points a constant"),
    "a branch": (lambda h: h if h.sum() > 0 else -h, "`network` must be a graph of tensor operations"),
    "dropout always": (lambda h: nn.functional.dropout(h, 0.5), "must give the same features for the same input"),
}


@pytest.mark.parametrize("bad", BAD_NETWORKS)
def test_networks_without_a_graph(bad, path, untouched_rng):
    body, message = BAD_NETWORKS[bad]
    with torch.random.fork_rng():
        network = randomised(Body(body))
    before = photograph(network)
    with pytest.raises(ValueError) as caught:
        around(network, refined("mlp")[0], "fc").export(path, case("mlp").x)
    assert message in str(caught.value)
    assert_same_photograph(before, photograph(network))
    assert os.listdir(path.parent) == []


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None, **unused):
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.fc((hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True))


def test_tokens_and_masks(path):
    """As transformers take them: keywords, integers, and dropout in a network left in train mode."""
    with torch.random.fork_rng():
        network = randomised(Attention()).train()
    bnn, generator = around(network, refined("mlp")[0], "fc"), make_generator(0)
    x = {"attention_mask": torch.ones(7, 5, dtype=torch.int64), "input_ids": torch.randint(10, (7, 5), generator=generator)}
    x["attention_mask"][::2, 3:] = 0
    bnn.export(path, x)
    assert [entry.name for entry in onnx.load(path).graph.input] == ["input_ids", "attention_mask"]
    for size in (1, 7):
        part = {key: value[:size] for key, value in x.items()}
        assert_close(run_onnx(path, part), expected(bnn, part))
    assert all(part.training for part in network.modules())


# Files and surroundings


def test_places_that_cannot_be_written_to(tmp_path, monkeypatch):
    bnn = refined("mlp")[0]
    monkeypatch.setattr(exporting, "_trace", None)  # refused before the work
    with pytest.raises(OSError, match=r"`path` must be a file that can be written.*Create its folder first"):
        bnn.export(tmp_path / "missing" / "file")
    with pytest.raises(OSError, match=r"`path` must be a file that can be written.*it is a folder"):
        bnn.export(tmp_path)
    (tmp_path / "plain").write_text("kept")
    with pytest.raises(OSError, match="`path` must be a file that can be written"):
        bnn.export(tmp_path / "plain" / "file")
    assert os.listdir(tmp_path) == ["plain"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OSError, match="`path` must be a file that can be written"):
        refined("mlp")[0].export(tmp_path / "file")


def test_a_write_that_fails_keeps_the_old_file(path, monkeypatch):
    path.write_text("old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left on device"):
        refined("mlp")[0].export(path, format="torch")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


def test_formats(path):
    with pytest.raises(ValueError, match="`format` must be one of 'onnx', 'torch', got 'tflite'"):
        refined("mlp")[0].export(path, format="tflite")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_packages(package, path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs the package {package}. Install it with `pip install 'burnish\[onnx\]'`"):
        refined("mlp")[0].export(path)


def test_too_large_for_one_file(path, monkeypatch):
    monkeypatch.setattr(exporting, "_MAX_ONNX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"at most 2 GB, got 0\.0 GB. Pass format='torch', or export fewer"):
        refined("mlp")[0].export(path)


def test_nothing_is_said(path, capfd, caplog):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refined("mlp")[0].export(path)
        refined("mlp")[0].export(path, format="torch")
    assert not caught
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_the_same_file_twice_and_after_a_copy(path):
    bnn = refined("mlp")[0]
    bnn.export(path, format="torch")
    x = case("mlp").x
    copy.deepcopy(bnn).export(path, format="torch")
    module = torch.export.load(io.BytesIO(path.read_bytes())).module()
    assert_close({key: value.detach() for key, value in module(x).items()}, expected(bnn, x))


def test_a_program_needs_no_burnish(tmp_path):
    """Loaded by a process that cannot import it."""
    path = tmp_path / "network.pt2"
    refined("mlp")[0].export(path, format="torch")
    real = builtins.__import__

    def refuse(name, *args, **options):
        assert not name.startswith("burnish")
        return real(name, *args, **options)

    builtins.__import__ = refuse
    try:
        module = torch.export.load(path).module()
        assert set(module(case("mlp").x)) == {"log_probs", "entropy", "mutual_information"}
    finally:
        builtins.__import__ = real
