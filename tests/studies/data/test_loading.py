"""From names and folders to images: the real catalogue with made files of the real sizes."""

import os
from pathlib import Path

import numpy as np
import pytest
from made_files import idx, noise, write

from burnish.studies.data import DATASETS, describe, load_images

PIXELS, LABELS = np.tile(noise(100, 28, 28), (100, 1, 1)), np.tile(noise(100, below=10), 100)


def put_mnist(folder, images="mnist/t10k-images-idx3-ubyte", labels="mnist/t10k-labels-idx1-ubyte"):
    write(folder / images, idx(PIXELS))
    write(folder / labels, idx(LABELS))


@pytest.fixture
def mnist(tmp_path):
    put_mnist(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv("BURNISH_DATA", raising=False)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def test_images_of_a_folder(mnist):
    for folder in (mnist, str(mnist)):
        images = load_images("mnist", "test", folder)
        assert images.pixels.shape == (10_000, 1, 28, 28)
        assert np.array_equal(images.pixels[:, 0].numpy(), PIXELS)
        assert images.labels.tolist() == LABELS.tolist()
    assert describe("mnist", "test", mnist) == "MNIST: test, 10,000 images (IDX files)"


@pytest.mark.parametrize("place", ["mnist/", "mnist-", "MNIST/raw/"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_names_of_files_that_are_known(tmp_path, place, suffix):
    put_mnist(tmp_path, *(f"{place}t10k-{kind}-ubyte{suffix}" for kind in ("images-idx3", "labels-idx1")))
    assert len(load_images("mnist", "test", tmp_path)) == 10_000


def test_several_folders_and_the_variable(mnist, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (mnist / "mnist/t10k-labels-idx1-ubyte").rename(other / "mnist-t10k-labels-idx1-ubyte")
    both = os.pathsep.join(["", str(other), str(mnist), ""])
    assert len(load_images("mnist", "test", both)) == 10_000
    assert len(load_images("mnist", "test", Path(both))) == 10_000
    monkeypatch.setenv("BURNISH_DATA", both)
    assert len(load_images("mnist", "test")) == 10_000
    with pytest.raises(FileNotFoundError, match=r"no mnist/t10k-labels-idx1-ubyte\.gz \(IDX files\)"):
        load_images("mnist", "test", mnist)


def test_a_folder_whose_name_has_the_separator_in_it(tmp_path):
    folder = tmp_path / f"a{os.pathsep}b"
    put_mnist(folder)
    assert len(load_images("mnist", "test", folder)) == 10_000


def test_what_is_missing_is_said_with_where_and_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_images("svhn", "test", tmp_path)
    message = str(caught.value)
    for part in ("svhn/test_32x32.mat", "svhn-test-part1.webp", str(tmp_path), "--data", "BURNISH_DATA", "fetch svhn"):
        assert part in message
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py/data_batch_1 and 4 more"):
        describe("cifar-10", "train", tmp_path)
    with pytest.raises(FileNotFoundError, match="mnist"):
        describe("mnist", "test")


@pytest.mark.parametrize("name", DATASETS)
def test_unknown_splits_are_refused_with_the_known_ones(name, tmp_path):
    with pytest.raises(ValueError, match=f"`split` must be .*'test' for {name}, got 'validation'"):
        load_images(name, "validation", tmp_path)


def test_other_arguments_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"`name` must be one of 'fashion-mnist', .*, got 'imagenet'"):
        load_images("imagenet", "test", tmp_path)
    with pytest.raises(ValueError, match="`folder` must name a folder, got ''"):
        load_images("mnist", "test", "")
    with pytest.raises(FileNotFoundError, match=r"`folder` must name existing folders, got '\S+/absent'"):
        load_images("mnist", "test", f"{tmp_path}{os.pathsep}{tmp_path / 'absent'}")
    monkeypatch.setenv("BURNISH_DATA", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="`BURNISH_DATA` must name existing folders"):
        load_images("mnist", "test")


def test_a_set_that_is_cut_short_is_refused(mnist):
    write(mnist / "mnist/t10k-images-idx3-ubyte", idx(PIXELS)[:-5])
    with pytest.raises(ValueError, match=r"mnist/t10k-images-idx3-ubyte is damaged.*shorter than 7840000 bytes\. Delete it"):
        load_images("mnist", "test", mnist)
