"""The sets themselves, where they are: sizes, class counts, published means and first labels."""

import os

import numpy as np
import pytest
import torch
from made_files import idx, write

from burnish.studies.data import DATASETS, load_images
from burnish.studies.data.idx import read_emnist
from burnish.studies.data.layouts import locate
from burnish.studies.data.places import search_folders
from burnish.studies.data.verifying import verify

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not os.environ.get("BURNISH_DATA"), reason="needs data sets under BURNISH_DATA"),
]


def load(name, split="test"):
    folders, _ = search_folders(None)
    found = locate(DATASETS[name], split, folders)
    if found is None:
        pytest.skip(f"{name} is not under BURNISH_DATA")
    return load_images(name, split), found


def moments(images):
    inputs = images.inputs().double()
    return inputs.mean((0, 2, 3)), inputs.std((0, 2, 3), correction=0)


@pytest.mark.parametrize(("split", "count"), [("train", 60_000), ("test", 10_000)])
def test_fashion_mnist(split, count):
    images, _ = load("fashion-mnist", split)
    assert images.pixels.shape == (count, 1, 28, 28)
    assert images.labels.bincount().tolist() == 10 * [count // 10]
    first = {"train": [9, 0, 0, 3, 0], "test": [9, 2, 1, 1, 6]}
    assert images.labels[:5].tolist() == first[split]
    if split == "train":
        mean, std = moments(images)
        assert mean.item() == pytest.approx(0.2860, abs=5e-5)
        assert std.item() == pytest.approx(0.3530, abs=5e-5)


def test_mnist():
    images, _ = load("mnist")
    assert images.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert images.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@pytest.mark.parametrize("name", ["kmnist", "emnist-digits", "notmnist"])
def test_relatives_of_mnist(name):
    images, _ = load(name)
    assert images.pixels.shape == (10_000, 1, 28, 28)
    assert images.labels.bincount().tolist() == 10 * [1000]


def test_emnist_lies_as_mnist_does():
    """The mean image of a digit is more like MNIST's than like MNIST's with rows and columns exchanged."""

    def means(images):
        inputs = images.inputs()[:, 0]
        return torch.stack([inputs[images.labels == digit].mean(0) for digit in range(10)])

    ours, theirs = means(load("emnist-digits")[0]), means(load("mnist")[0])
    upright, turned = ((ours - other).square().sum((1, 2)) for other in (theirs, theirs.transpose(1, 2)))
    assert (upright < turned).all()


def test_omniglot():
    images, found = load("omniglot")
    assert len(images) == found.part.size
    assert images.pixels.shape[1:] == (1, 28, 28)
    assert images.pixels.amax((1, 2, 3)).float().median() == 255.0
    assert images.pixels.float().mean() < 64.0  # white on black


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar-10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar-100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ],
)
def test_cifar(name, mean, std):
    num_classes = DATASETS[name].num_classes
    images, _ = load(name, "train")
    assert images.pixels.shape == (50_000, 3, 32, 32)
    assert images.labels.bincount().tolist() == num_classes * [50_000 // num_classes]
    channels = images.pixels.transpose(0, 1).flatten(1)
    counts = torch.stack([channel.bincount(minlength=256) for channel in channels]).double() / channels.shape[1]
    level = torch.arange(256) / 255.0
    average = counts @ level.double()
    assert average.tolist() == pytest.approx(mean, abs=6e-5)
    assert (counts @ level.double().square() - average.square()).sqrt().tolist() == pytest.approx(std, abs=6e-5)
    test, _ = load(name)
    assert test.labels.bincount().tolist() == num_classes * [10_000 // num_classes]
    if name == "cifar-10":
        assert images.labels[:5].tolist() == [6, 9, 9, 4, 1]
        assert test.labels[:5].tolist() == [3, 8, 8, 0, 6]


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_that_is_here_is_intact(name):
    findings = verify(DATASETS[name], search_folders(None)[0])
    if not findings:
        pytest.skip(f"{name} is not under BURNISH_DATA")
    assert all((finding.problems, finding.unreadable) == ({}, {}) for finding in findings)


@pytest.mark.parametrize("exchanged", [False, True])
def test_emnist_with_a_flipped_bit_still_lies_upright_and_is_refused_when_it_is_loaded(tmp_path, exchanged):
    images, _ = load("emnist-digits")
    stored = images.pixels[:, 0].numpy().copy()
    if exchanged:
        stored = stored.transpose(0, 2, 1).copy()
    paths = [tmp_path / f"emnist-mnist-test-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    write(paths[0], idx(stored))
    write(paths[1], idx(images.labels.numpy().astype(np.uint8)))
    (finding,) = verify(DATASETS["emnist-digits"], [tmp_path])
    assert (finding.problems, finding.unknown) == ({}, ())
    stored[5000, 14, 14] ^= 1
    write(paths[0], idx(stored))
    assert int((read_emnist(paths, num_images=10_000).pixels != images.pixels).sum()) == 1
    with pytest.raises(ValueError, match=r"images-idx3-ubyte is damaged.*its checksum is not the one of the copy"):
        load_images("emnist-digits", "test", tmp_path)


def test_svhn():
    """The published means are those of all 26,032 digits; an extract is near them."""
    images, found = load("svhn")
    mean, std = moments(images)
    near = 1e-4 if found.part.size == 26_032 else 3e-3
    assert mean.tolist() == pytest.approx((0.4524, 0.4525, 0.4690), abs=near)
    assert std.tolist() == pytest.approx((0.2194, 0.2266, 0.2285), abs=near)
    assert images.labels.bincount().argmax() == 1


def test_a_flipped_bit_in_a_sheet_is_noticed(tmp_path):
    found = load("svhn")[1]
    if found.paths[0].suffix != ".webp":
        pytest.skip("svhn is not here as a sheet")
    content = bytearray(found.paths[0].read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / found.paths[0].name).write_bytes(content)
    (tmp_path / found.paths[1].name).symlink_to(found.paths[1])
    with pytest.raises(ValueError, match=r"svhn-test-part1\.webp is damaged.*its checksum is not the published one"):
        load_images("svhn", "test", tmp_path)


def test_tiny_imagenet():
    images, found = load("tiny-imagenet")
    assert images.labels is None
    assert images.pixels.shape == (found.part.size, 3, 32, 32)
    assert moments(images)[0].tolist() == pytest.approx((0.480, 0.448, 0.398), abs=0.03)  # of the whole set, as published
