"""Data of every form: what becomes of it, and what is refused."""

import math
from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from burnish.batches import Batch, mean_and_error, num_batches, num_rows, point_weights, read_batches, split_rows, to_device

X, Y, W = torch.arange(14.0).view(7, 2), torch.arange(7), torch.arange(1.0, 8.0)
Pair = namedtuple("Pair", ["x", "y"])


class Rows(Dataset):
    """Points as dictionaries."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"pixels": X[index], "label": Y[index], "sample_weight": W[index]}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def loader(*columns, **options):
    return DataLoader(TensorDataset(*columns), batch_size=3, **options)


FORMS = {
    "tuple": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "labels in a list": (X, Y.tolist()),
    "named tuple": Pair(X, Y),
    "loader": loader(X, Y),
    "list of tuples": [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "list of lists": [[X[:3], Y[:3]], [X[3:], Y[3:]]],
    "list of named tuples": [Pair(X[:3], Y[:3]), Pair(X[3:], Y[3:])],
    "data set": TensorDataset(X, Y),
    "stream": Stream(),
    "loader of a stream": DataLoader(Stream(), batch_size=3),
}
WEIGHTED = {
    "tuple": (X, Y, W),
    "loader": loader(X, Y, W),
    "arrays": (X.numpy(), Y.numpy(), W.double().numpy()),
}
DICTIONARIES = {
    "dictionary": {"pixels": X, "label": Y, "sample_weight": W},
    "targets first": {"y": Y, "weight": W, "pixels": X},
    "another mapping": UserDict({"pixels": X, "targets": Y, "weights": W}),
    "list of dictionaries": [
        {"pixels": X[:3], "labels": Y[:3], "weights": W[:3]},
        {"pixels": X[3:], "labels": Y[3:], "weights": W[3:]},
    ],
    "data set of dictionaries": Rows(),
}


def collect(data, batch_size=3):
    batches = list(read_batches("data", data, batch_size))
    xs, *rest = zip(*batches, strict=True)
    return xs, *(torch.cat(column) for column in rest)


@pytest.mark.parametrize("form", FORMS)
def test_two_columns(form):
    xs, targets = collect(FORMS[form])
    assert torch.equal(torch.cat([torch.as_tensor(x) for x in xs]), X)
    assert torch.equal(targets, Y)


@pytest.mark.parametrize("form", WEIGHTED)
def test_three_columns(form):
    xs, targets, weights = collect(WEIGHTED[form])
    assert torch.equal(torch.cat([torch.as_tensor(x) for x in xs]), X)
    assert torch.equal(targets, Y)
    assert weights.tolist() == W.tolist()


@pytest.mark.parametrize("form", DICTIONARIES)
def test_dictionaries(form):
    xs, targets, weights = collect(DICTIONARIES[form])
    assert all(set(x) == {"pixels"} for x in xs)
    assert torch.equal(torch.cat([x["pixels"] for x in xs]), X)
    assert torch.equal(targets, Y)
    assert weights.tolist() == W.tolist()


def test_a_generator_is_gone_through_once_and_lazily():
    drawn = []

    def batches():
        for start in range(0, 6, 2):
            drawn.append(start)
            yield X[start : start + 2], Y[start : start + 2]

    reader = read_batches("data", batches(), 3)
    assert drawn == []
    assert torch.equal(next(reader)[0], X[:2])
    assert drawn == [0]
    assert [len(batch[0]) for batch in reader] == [2, 2]
    assert drawn == [0, 2, 4]


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_whole_data_sets_are_cut(batch_size, sizes):
    for data in (FORMS["tuple"], DICTIONARIES["dictionary"], FORMS["data set"], Rows()):
        assert [len(batch[1]) for batch in read_batches("data", data, batch_size)] == sizes
        assert num_batches(data, batch_size) == len(sizes)


def test_the_number_of_batches_where_it_is_known():
    assert num_batches(loader(X, Y), 100) == 3  # the loader's own size counts
    assert num_batches(FORMS["list of tuples"], 1) == 2
    assert num_batches(iter(FORMS["list of tuples"]), 1) is None
    assert num_batches(FORMS["stream"], 1) is None
    assert num_batches(FORMS["loader of a stream"], 1) is None


REFUSALS = {
    "text": ("abc", TypeError, "must be a loader, a data set or a tuple (x, targets), got str. Pass a DataLoader"),
    "bytes": (b"abc", TypeError, "got bytes"),
    "none": (None, TypeError, "got NoneType"),
    "a number": (3, TypeError, "got int"),
    "inputs alone": (X, TypeError, "got Tensor. Pass a DataLoader, or the inputs together with their targets"),
    "inputs alone in a tuple": ((X,), ValueError, "must give (x, targets) or (x, targets, weights), got 1 column(s)"),
    "four columns": ((X, Y, W, W), ValueError, "got 4 column(s). Wrap the loader"),
    "a loader of inputs": ([X[:3]], ValueError, "got 1 column(s)"),
    "inputs and targets in a list": ([X, Y], ValueError, "got 1 column(s)"),
    "a loader of points": (DataLoader(TensorDataset(X, Y), batch_size=None), ValueError, "got one point alone. Pass a Data"),
    "lengths": ((X, Y[:5]), ValueError, "must have columns of one length, got [7, 5]. Check that inputs and targets"),
    "lengths of weights": ((X, Y, W[:5]), ValueError, "must have columns of one length, got [7, 7, 5]"),
    "lengths in a batch": ([(X, Y[:5])], ValueError, "must have columns of one length, got [7, 5]"),
    "lengths in a dictionary": ({"a": X, "b": X[:3], "y": Y}, ValueError, "must have columns of one length, got [7, 3, 7]"),
    "no targets": (
        {"x": X, "z": Y},
        ValueError,
        "targets under one of 'labels', 'label', 'targets', 'target', 'y', got the",
    ),
    "two targets": ({"x": X, "y": Y, "labels": Y}, ValueError, "got the keys 'x', 'y', 'labels'. Rename the key"),
    "two weights": ({"x": X, "y": Y, "weight": W, "weights": W}, ValueError, "got the keys 'x', 'y', 'weight', 'weights'"),
    "no inputs": ({"y": Y}, ValueError, "dictionaries with inputs and targets"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    data, kind, message = REFUSALS[case]
    with pytest.raises(kind) as caught:
        list(read_batches("validation", data, 3))
    assert str(caught.value).startswith("`validation` must ")
    assert message in str(caught.value)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        list(read_batches("data", (X, Y), 0))


# Inputs


def test_arrays_become_the_type_of_the_network_and_tensors_keep_theirs():
    cpu = torch.device("cpu")
    assert to_device(X.double().numpy(), cpu, torch.float32).dtype == torch.float32
    assert to_device(X.double().numpy(), cpu, torch.bfloat16).dtype == torch.bfloat16
    assert to_device(X.double().numpy(), cpu).dtype == torch.float64
    assert to_device(Y.numpy(), cpu, torch.float32).dtype == torch.int64
    assert to_device(X.double(), cpu, torch.float32).dtype == torch.float64
    nested = to_device({"a": [X.numpy(), X], "b": (Y, "text", 3)}, cpu, torch.float64)
    assert nested["a"][0].dtype == torch.float64
    assert isinstance(nested["b"], tuple)
    assert nested["b"][1:] == ("text", 3)


INPUTS = {
    "tensor": X,
    "array": X.numpy(),
    "dictionary": {"a": X, "b": Y},
    "list of texts": ["a", "bcd", "ef", "g", "hi", "j", "klm"],
    "list of tensors": [X, Y],
    "tuple of tensors": (X, Y),
}


def pieces_of(x):
    """The points of an input, one by one, in a form that can be compared."""
    if isinstance(x, dict):
        return list(zip(*(pieces_of(part) for part in x.values()), strict=True))
    if isinstance(x, tuple | list) and not isinstance(x[0], str):
        return list(zip(*map(pieces_of, x), strict=True))
    return [str(row) for row in x]


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("batch_size", [1, 2, 7, 100])
def test_cutting_an_input_loses_no_point(form, batch_size):
    x = INPUTS[form]
    assert num_rows(x) == 7
    pieces = list(split_rows(x, batch_size))
    assert len(pieces) == math.ceil(7 / batch_size)
    assert [row for piece in pieces for row in pieces_of(piece)] == pieces_of(x)
    assert all(isinstance(piece, type(x)) for piece in pieces)


def test_an_input_without_points_has_no_pieces():
    assert list(split_rows(X[:0], 3)) == []


# Weights


def test_means_and_errors():
    values = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    mean, error = mean_and_error(values, torch.ones(4, dtype=torch.float64))
    assert mean == pytest.approx(3.5)
    assert error == pytest.approx(float(values.std(correction=0)) / 2)
    # a weight of two is a point that occurs twice, for the mean
    weights = torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert mean_and_error(values, weights)[0] == pytest.approx(3.0)
    assert mean_and_error(values, 10 * weights) == pytest.approx(mean_and_error(values, weights))


def test_point_weights():
    assert point_weights(Batch(X, Y)).tolist() == [1.0] * 7
    assert point_weights(Batch(X.double(), Y)).dtype == torch.float64
    assert torch.equal(point_weights(Batch(X, Y, W)), W)


def test_a_batch_keeps_its_columns_together():
    batch = Batch(X, Y, W)
    part = batch.subset(torch.tensor([5, 1]))
    assert (part.inputs.tolist(), part.targets.tolist(), part.weights.tolist()) == ([[10, 11], [2, 3]], [5, 1], [6, 2])
    assert Batch(X, Y).subset(slice(2, 4)).weights is None
    double = batch.to(dtype=torch.float64)
    assert [t.dtype for t in (double.inputs, double.targets, double.weights)] == [torch.float64, torch.int64, torch.float64]
    assert np.array_equal(double.inputs.numpy(), X.numpy())
