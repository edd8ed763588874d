"""Where the files of a set are looked for, and whether they are intact."""

import dataclasses
import gzip

import pytest
from made_files import idx
from small_sets import PACKED, PIXELS, md5, put, small_set

from burnish.studies.data.layouts import Dataset, File, Layout, locate, locate_all, missing_files
from burnish.studies.data.places import look_at


@pytest.fixture
def folders(tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
    return paths


def test_splits_come_from_the_layouts():
    assert small_set().splits == ("train", "test")


def test_nothing_is_found_in_empty_folders(folders):
    assert locate(small_set(), "train", folders) is None
    assert locate(small_set(), "train", []) is None


def test_upstream_comes_before_a_stand_in_in_the_same_folder(folders):
    put(folders[0], copy=True)
    found = locate(small_set(), "test", folders)
    assert str(found) == "Small: test, a copy (copies)"
    put(folders[0])
    found = locate(small_set(), "test", folders)
    assert str(found) == "Small: test, 4 images (upstream files)"
    assert found.paths == (folders[0] / "small/test-images.gz", folders[0] / "small/test-labels.gz")
    assert [item.layout.title for item in locate_all(small_set(), "test", folders)] == ["upstream files", "copies"]


def test_the_first_folder_that_has_the_set_wins(folders):
    put(folders[0], copy=True)
    put(folders[1])
    assert locate(small_set(), "test", folders).layout.title == "copies"
    assert locate(small_set(), "test", folders[::-1]).layout.title == "upstream files"


def test_files_may_be_spread_over_folders(folders):
    put(folders[0], names=["test-images.gz"])
    put(folders[1], names=["test-labels.gz"])
    found = locate(small_set(), "test", folders)
    assert found.paths == (folders[0] / "small/test-images.gz", folders[1] / "small/test-labels.gz")
    assert locate(small_set(), "test", folders[:1]) is None
    assert locate(small_set(), "train", folders) is None
    assert missing_files(small_set(), "test", folders[:1]) == {
        "upstream files": ["small/test-labels.gz"],
        "copies": ["copy-test-images.gz", "copy-test-labels.gz"],
    }


def test_a_folder_with_the_name_of_a_file_is_not_the_file(folders):
    put(folders[0], names=["test-labels.gz"])
    (folders[0] / "small/test-images.gz").mkdir()
    assert locate(small_set(), "test", folders) is None


def test_every_place_is_listed_once_and_first_what_is_located(folders):
    put(folders[0], names=["test-images.gz"])
    put(folders[1])
    put(folders[1], copy=True)
    dataset = small_set()
    places = list(locate_all(dataset, "test", folders))
    assert places[0] == locate(dataset, "test", folders)
    one, two = (folder / "small" for folder in folders)
    assert [found.paths[:2] for found in places] == [
        (two / "test-images.gz", two / "test-labels.gz"),
        (folders[1] / "copy-test-images.gz", folders[1] / "copy-test-labels.gz"),
        (one / "test-images.gz", two / "test-labels.gz"),
    ]


def test_a_folder_that_may_not_be_entered_is_named(restricted):
    put(restricted.folder)
    inner = restricted.folder / "small"
    for forbidden in (inner, restricted.folder):
        with (
            restricted.mode(forbidden, 0o600),
            pytest.raises(PermissionError, match=r"got '\S+/small' \(Permission denied\)\. Give yourself the permission"),
        ):
            locate(small_set(), "test", [restricted.folder])
    assert locate(small_set(), "test", [restricted.folder]) is not None


def test_names_that_no_file_can_have_are_not_there(tmp_path):
    assert look_at(tmp_path / "a\0b") is None
    assert look_at(tmp_path / (1000 * "a")) is None
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert look_at(tmp_path / "loop") is None
    assert look_at(tmp_path).st_mode == tmp_path.stat().st_mode


def test_names_are_tried_in_order(folders):
    file = File(("a/x.gz", "a-x.gz", "a/x"))
    part = dataclasses.replace(small_set().layouts[0].parts["test"], files=(file,))
    dataset = Dataset("x", "X", "noise", "http://home", "none", 10, (Layout("one file", {"test": part}),))
    (folders[0] / "a").mkdir()
    for name in reversed(file.names):
        (folders[0] / name).write_bytes(b"")
        assert locate(dataset, "test", folders).paths == (folders[0] / name,)


def test_checksums_of_a_file_and_of_what_is_in_it(tmp_path):
    name, content = "test-images.gz", idx(PIXELS["test"])
    packed, repacked, plain = tmp_path / "x.gz", tmp_path / "again.gz", tmp_path / "x"
    packed.write_bytes(PACKED[name])
    repacked.write_bytes(gzip.compress(content, 1, mtime=7))
    plain.write_bytes(content)
    by_file = File(("x.gz", "x"), md5(PACKED[name]))
    assert [by_file.is_intact(path) for path in (packed, repacked, plain)] == [True, False, None]
    by_content = File(("x.gz", "x"), md5(PACKED[name]), md5(content))
    assert [by_content.is_intact(path) for path in (packed, repacked, plain)] == [True, True, True]
    assert File(("x.gz",)).is_intact(packed) is None
    plain.write_bytes(content[:-1])
    assert by_content.is_intact(plain) is False
    packed.write_bytes(PACKED[name][:-1])
    with pytest.raises(ValueError, match=r"x\.gz is damaged"):
        by_content.is_intact(packed)


def test_sha256_is_known_too(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    known = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert File(("x",), known).is_intact(tmp_path / "x") is True
