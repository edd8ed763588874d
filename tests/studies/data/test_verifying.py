"""Which files are intact, which are not, and of which nothing is known."""

import hashlib
from functools import partial

import numpy as np
import pytest
from made_files import noise, records, sheet
from small_sets import PACKED, put, small_set

from burnish.studies.data.layouts import Dataset, File, Layout, Part
from burnish.studies.data.sheets import read_labelled_sheets
from burnish.studies.data.verifying import verify


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert verify(small_set(), [tmp_path]) == []


def test_intact_files(tmp_path):
    put(tmp_path)
    findings = verify(small_set(), [tmp_path])
    assert [(finding.split, finding.problems, finding.unknown) for finding in findings] == [
        ("train", {}, ()),
        ("test", {}, ()),
    ]


def test_copies_without_checksums_are_read_and_said_to_have_none(tmp_path):
    put(tmp_path, copy=True, names=["test-images.gz", "test-labels.gz"])
    (finding,) = verify(small_set(), [tmp_path])
    assert finding.found.layout.title == "copies"
    assert finding.problems == {}
    assert finding.unknown == (tmp_path / "copy-test-images.gz", tmp_path / "copy-test-labels.gz")
    (tmp_path / "copy-test-labels.gz").write_bytes(PACKED["test-labels.gz"][:-3])
    (finding,) = verify(small_set(), [tmp_path])
    assert list(finding.problems) == [tmp_path / "copy-test-labels.gz"]


def test_every_layout_and_every_bad_file_is_looked_at(tmp_path):
    put(tmp_path)
    put(tmp_path, copy=True, names=["test-images.gz", "test-labels.gz"])
    for name in ("test-images.gz", "test-labels.gz"):
        (tmp_path / "small" / name).write_bytes(PACKED[name] + b"\x00")
    train, test, copy = verify(small_set(), [tmp_path])
    assert (train.problems, copy.problems) == ({}, {})
    checksum = "its checksum is not the published one"
    assert test.problems == {tmp_path / "small" / name: checksum for name in ("test-images.gz", "test-labels.gz")}


def test_a_file_that_may_not_be_read_is_a_problem(tmp_path, monkeypatch):
    put(tmp_path, names=["test-images.gz", "test-labels.gz"])

    def refuse(self, path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(File, "is_intact", refuse)
    (finding,) = verify(small_set(), [tmp_path])
    assert set(finding.problems.values()) == {"it cannot be read (Permission denied)"}


@pytest.fixture
def sheets(tmp_path):
    """Two sheets of a hundred images, known by the checksums of their records."""
    pixels, labels = noise(200, 3, 32, 32), noise(200, below=10)
    np.savez(tmp_path / "labels.npz", train=labels)
    for number in range(2):
        sheet(tmp_path / f"{number}.webp", pixels[100 * number : 100 * number + 100])
    batches = tuple(hashlib.md5(records(pixels[part], labels[part])).hexdigest() for part in (slice(100), slice(100, 200)))
    files = tuple(File((name,)) for name in ("0.webp", "1.webp", "labels.npz"))
    read = partial(read_labelled_sheets, key="train", num_images=200, num_classes=10)
    layout = Layout("sheets", {"train": Part("train", 200, files, read, batches)})
    return Dataset("sheets", "Sheets", "noise", "http://home", "none", 10, (layout,)), tmp_path, pixels


def test_sheets_are_known_by_their_images_however_they_are_packed(sheets):
    dataset, folder, pixels = sheets
    (finding,) = verify(dataset, [folder])
    assert (finding.problems, finding.unknown) == ({}, ())
    pixels[150, 1, 2, 3] ^= 1
    sheet(folder / "1.webp", pixels[100:])
    (finding,) = verify(dataset, [folder])
    assert finding.problems == {folder / "1.webp": "its images and their labels are not those of the set"}
