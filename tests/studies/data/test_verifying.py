"""Which files are intact, which are not, and of which nothing is known."""

import dataclasses
import errno
import gzip
import hashlib
import os
from functools import partial

import numpy as np
import pytest
from made_files import noise, records, sheet
from small_sets import PACKED, md5, put, small_set

from burnish.studies.data.layouts import Dataset, File, Layout, Part, locate
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


@pytest.mark.parametrize("copy", [False, True], ids=["with a checksum", "without"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(restricted, copy):
    put(restricted.folder, copy=copy, names=["test-images.gz", "test-labels.gz"])
    path = restricted.folder / ("copy-test-labels.gz" if copy else "small/test-labels.gz")
    with restricted.mode(path, 0):
        (finding,) = verify(small_set(), [restricted.folder])
    assert finding.problems == {}
    assert path not in finding.unknown
    assert list(finding.unreadable) == [path]
    assert finding.unreadable[path].strerror.startswith(f"{path} cannot be read (Permission denied). Give yourself")


def test_a_disk_that_fails_while_a_file_is_read(tmp_path, monkeypatch):
    """No disk fails when it is asked to, so the system's answer is put in its place."""
    put(tmp_path, copy=True, names=["test-images.gz", "test-labels.gz"])

    def fail(file, size=-1):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(gzip.GzipFile, "read", fail)
    (finding,) = verify(small_set(), [tmp_path])
    ((path, error),) = finding.unreadable.items()
    assert path == tmp_path / "copy-test-images.gz"
    assert str(error).endswith(" cannot be read (Input/output error). Check the disk, or name a folder with another copy.")


def test_what_is_loaded_is_looked_at_first(tmp_path):
    """One folder has good images alone; the other has the whole set, with bad images, and that is what is loaded."""
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, names=["test-images.gz"])
    put(two, names=["test-images.gz", "test-labels.gz"])
    bad = two / "small/test-images.gz"
    bad.write_bytes(PACKED["test-images.gz"][:-1])
    dataset = small_set()
    first, *others = verify(dataset, [one, two])
    assert first.found == locate(dataset, "test", [one, two])
    assert list(first.problems) == [bad]
    assert [finding.found.paths[0] for finding in others] == [one / "small/test-images.gz"]


def test_files_of_a_known_copy_belong_together_and_other_copies_are_unknown(restricted):
    folder = restricted.folder
    contents = {name: gzip.decompress(PACKED[name]) for name in ("test-images.gz", "test-labels.gz")}
    part = small_set().layouts[1].parts["test"]
    files = tuple(File((f"copy-{name}",), copies=(md5(b""), md5(content))) for name, content in contents.items())
    layout = Layout("copies", {"test": dataclasses.replace(part, files=files)})
    dataset = dataclasses.replace(small_set(), layouts=(layout,))
    paths = [folder / f"copy-{name}" for name in contents]

    def finding(*changed):
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(gzip.compress(content[:-1] + b"\x05" if path in changed else content))
        (only,) = verify(dataset, [folder])
        return only.problems, only.unknown

    assert finding() == ({}, ())
    problem = "its checksum is not the one of the copy that its other files are from"
    for path in paths:
        assert finding(path) == ({path: problem}, ())
    assert finding(*paths) == ({}, tuple(paths))
    finding()
    with restricted.mode(paths[0], 0):  # nothing is known of what cannot be read
        (only,) = verify(dataset, [folder])
    assert (only.problems, list(only.unreadable), only.unknown) == ({}, paths[:1], ())


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
