"""From names and folders to images: the real catalogue with made files of the real sizes."""

import dataclasses
import hashlib
import os
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_files import idx, noise, records, sheet, write
from small_sets import PACKED, put, small_set

from burnish.studies.data import DATASETS, TEXTS, describe, load_documents, load_images, loading
from burnish.studies.data.layouts import Dataset, File, Layout, Part
from burnish.studies.data.sheets import read_labelled_sheets

PIXELS, LABELS = np.tile(noise(100, 28, 28), (100, 1, 1)), np.tile(noise(100, below=10), 100)


def put_mnist(folder, images="mnist/t10k-images-idx3-ubyte", labels="mnist/t10k-labels-idx1-ubyte"):
    write(folder / images, idx(PIXELS))
    write(folder / labels, idx(LABELS))


def without_checksums(dataset):
    """So that made files may stand for real ones."""
    layouts = []
    for layout in dataset.layouts:
        parts = {
            split: dataclasses.replace(part, files=tuple(File(file.names) for file in part.files), batches=())
            for split, part in layout.parts.items()
        }
        layouts.append(dataclasses.replace(layout, parts=parts))
    return dataclasses.replace(dataset, layouts=tuple(layouts))


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(loading, "DATASETS", {name: without_checksums(dataset) for name, dataset in DATASETS.items()})


@pytest.fixture
def mnist(tmp_path, made):
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


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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


def test_what_is_missing_in_a_folder_that_is_named_is_fetched_into_that_folder(tmp_path, monkeypatch):
    """The cache is not looked into then; beside BURNISH_DATA it is."""
    folder = tmp_path / "my data"
    folder.mkdir()
    for call in (load_images, describe):
        with pytest.raises(FileNotFoundError) as caught:
            call("svhn", "test", f"{folder}{os.pathsep}{tmp_path}")
        assert caught.value.strerror.endswith(f"run `burnish data fetch svhn --to {shlex.quote(str(folder))}`.")
    monkeypatch.setenv("BURNISH_DATA", str(folder))
    with pytest.raises(FileNotFoundError) as caught:
        load_images("svhn", "test")
    assert caught.value.strerror.endswith("run `burnish data fetch svhn`.")


@pytest.mark.parametrize("name", DATASETS)
def test_unknown_splits_are_refused_with_the_known_ones(name, tmp_path):
    load = load_documents if name in TEXTS else load_images
    with pytest.raises(ValueError, match=f"`split` must be .*'test' for {name}, got 'held out'"):
        load(name, "held out", tmp_path)


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


@pytest.mark.parametrize("folder", [["a", "b"], ("a",), 3, b"data"], ids=lambda folder: type(folder).__name__)
def test_a_folder_of_another_type_is_refused_by_name(folder):
    for call in (load_images, describe):
        with pytest.raises(TypeError, match=f"`folder` must be a string or a path, got {type(folder).__name__}. Pass one"):
            call("mnist", "test", folder)


def test_a_set_that_is_cut_short_is_refused(mnist):
    write(mnist / "mnist/t10k-images-idx3-ubyte", idx(PIXELS)[:-5])
    with pytest.raises(ValueError, match=r"mnist/t10k-images-idx3-ubyte is damaged.*shorter than 7840000 bytes\. Delete it"):
        load_images("mnist", "test", mnist)


def test_files_with_another_checksum_than_the_known_one_are_refused(tmp_path):
    put_mnist(tmp_path)
    message = "mnist/t10k-images-idx3-ubyte is damaged.*: its checksum is not the published one. Delete it"
    for _ in range(2):  # what is bad is not remembered as good
        with pytest.raises(ValueError, match=message):
            load_images("mnist", "test", tmp_path)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "DATASETS", {"small": small_set()})
    put(tmp_path)
    return tmp_path


def test_a_flipped_bit_is_noticed_when_a_set_is_loaded_and_a_mended_file_is_welcome(small):
    """In the header of a gz, where nothing else notices it."""
    path, content = small / "small/test-labels.gz", bytearray(PACKED["test-labels.gz"])
    content[4] ^= 1  # of the time
    path.write_bytes(content)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"test-labels\.gz is damaged.*its checksum is not the published one") as caught:
        load_images("small", "test", small)
    assert "\n" not in str(caught.value)
    path.write_bytes(PACKED["test-labels.gz"])
    os.utime(path, ns=times)
    assert len(load_images("small", "test", small)) == 4


def test_checksums_are_compared_once_for_each_file_as_long_as_it_stays_as_it_is(small, monkeypatch):
    is_intact, asked = File.is_intact, []

    def counted(self, path):
        asked.append(path.name)
        return is_intact(self, path)

    monkeypatch.setattr(File, "is_intact", counted)
    for _ in range(3):
        load_images("small", "test", small)
    assert asked == ["test-images.gz", "test-labels.gz"]
    os.utime(small / "small/test-labels.gz", ns=(0, 0))
    load_images("small", "test", small)
    assert asked == ["test-images.gz", "test-labels.gz", "test-labels.gz"]


def test_a_flipped_bit_in_a_sheet_that_is_known_by_its_images_is_noticed(tmp_path, monkeypatch):
    pixels, labels = noise(100, 3, 32, 32), noise(100, below=10)
    np.savez(tmp_path / "labels.npz", train=labels)
    read = partial(read_labelled_sheets, key="train", num_images=100, num_classes=10)
    batches = (hashlib.md5(records(pixels, labels)).hexdigest(),)
    part = Part("train", 100, (File(("0.webp",)), File(("labels.npz",))), read, batches)
    dataset = Dataset("sheets", "Sheets", "noise", "http://home", "none", 10, (Layout("sheets", {"train": part}),))
    monkeypatch.setattr(loading, "DATASETS", {"sheets": dataset})
    sheet(tmp_path / "0.webp", pixels)
    for _ in range(2):
        assert len(load_images("sheets", "train", tmp_path)) == 100
    pixels[50, 1, 2, 3] ^= 1
    sheet(tmp_path / "0.webp", pixels)
    with pytest.raises(ValueError, match=r"0\.webp is damaged.*its images and their labels are not those of the set"):
        load_images("sheets", "train", tmp_path)


def test_a_file_or_folder_that_may_not_be_read_is_said_in_one_line(restricted, monkeypatch):
    monkeypatch.setattr(loading, "DATASETS", {"small": small_set()})
    put(restricted.folder, copy=True)
    path = restricted.folder / "copy-test-images.gz"
    with restricted.mode(path, 0), pytest.raises(OSError, match="Permission denied") as caught:
        load_images("small", "test", restricted.folder)
    assert caught.value.strerror == (
        f"{path} cannot be read (Permission denied). "
        "Give yourself the permission to read it, or name a folder with another copy."
    )
    inner = restricted.folder / "inner"
    inner.mkdir()
    with (
        restricted.mode(restricted.folder, 0o600),
        pytest.raises(PermissionError, match=f"got '{restricted.folder}' .Permission denied.") as caught,
    ):
        load_images("small", "test", inner)
    assert "\n" not in str(caught.value)
