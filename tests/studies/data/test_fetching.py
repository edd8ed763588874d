"""Fetching from a server on this machine: checksums, homes that fail, and disks that are full."""

import errno
import io
import os
import resource
import stat
import sys

import pytest
from small_sets import PACKED, put, small_set

from burnish.studies.data import loading
from burnish.studies.data.fetching import fetch
from burnish.studies.data.layouts import locate
from burnish.studies.data.loading import describe, load_images, read_part
from burnish.studies.data.places import cache_folder, search_folders


@pytest.fixture
def to(tmp_path):
    return tmp_path / "to"


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_fetched_is_found_and_read(home, to):
    dataset = small_set(home.url)
    paths = fetch(dataset, dataset.splits, to)
    assert files_in(to) == sorted(f"small/{name}" for name in PACKED)
    assert {path.name: path.read_bytes() for path in paths} == PACKED
    found = locate(dataset, "test", [to])
    assert found.layout.title == "upstream files"
    assert len(read_part(found)) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o644}


def test_only_the_splits_that_are_asked_for_are_fetched_and_only_once(home, to):
    dataset = small_set(home.url)
    fetch(dataset, ["test"], to)
    assert files_in(to) == ["small/test-images.gz", "small/test-labels.gz"]
    assert len(home.asked) == 2
    fetch(dataset, ["test"], to)
    assert len(home.asked) == 2
    (to / "small/test-labels.gz").write_bytes(b"damaged")
    fetch(dataset, ["test"], to)
    assert len(home.asked) == 3
    assert (to / "small/test-labels.gz").read_bytes() == PACKED["test-labels.gz"]


def test_a_terminal_shows_how_far_it_is_and_nothing_else_does(home, to, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fetch(small_set(home.url), ["test"], to)
    assert "test-images.gz" in terminal.getvalue()
    assert f"{len(PACKED['test-images.gz']) / 1000:.1f}" in terminal.getvalue()  # kB
    for shown, stream in ((False, Terminal()), (True, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", stream)
        fetch(small_set(home.url), ["train"], to, progress=shown)
        assert stream.getvalue() == ""
    assert files_in(to) == sorted(f"small/{name}" for name in PACKED)


def test_another_checksum_is_refused_and_leaves_nothing(home, to):
    (home.folder / "test-labels.gz").write_bytes(PACKED["test-labels.gz"][:-1])
    with pytest.raises(
        ValueError, match=r"not be fetched: http://127\S*/test-labels\.gz gives a file with another checksum"
    ):
        fetch(small_set(home.url), ["test"], to)
    assert files_in(to) == ["small/test-images.gz"]
    assert locate(small_set(), "test", [to]) is None


def test_a_bad_file_that_was_there_before_stays_for_its_owner_to_delete(home, to):
    put(to, names=["test-images.gz"])
    (to / "small/test-labels.gz").write_bytes(b"mine")
    (home.folder / "test-labels.gz").write_bytes(b"not right either")
    with pytest.raises(ValueError, match="another checksum"):
        fetch(small_set(home.url), ["test"], to)
    assert (to / "small/test-labels.gz").read_bytes() == b"mine"


def test_a_file_that_its_home_does_not_have(home, to):
    (home.folder / "test-images.gz").unlink()
    with pytest.raises(ConnectionError, match=r"test-images\.gz gives nothing \(status 404\)\. Try again later"):
        fetch(small_set(home.url), ["test"], to)
    assert not to.exists()


def test_homes_are_tried_in_turn(home, to):
    """One that nobody answers at, one without the file, one with another file, and the right one."""
    (home.folder / "wrong").mkdir()
    (home.folder / "wrong/test-images.gz").write_bytes(b"wrong")
    homes = ["http://127.0.0.1:9/", f"{home.url}nowhere/", f"{home.url}wrong/", home.url]
    fetch(small_set(*homes), ["test"], to)
    assert files_in(to) == ["small/test-images.gz", "small/test-labels.gz"]


def test_no_connection_is_said_with_a_remedy(to, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConnectionError, match=r":9/\S+ gives nothing \(ConnectionError\).*`--data` or BURNISH_DATA"):
        fetch(small_set("http://127.0.0.1:9/"), ["test"], to)
    assert files_in(to) == []


def test_a_disk_that_fills_up_leaves_nothing(home, to):
    """A real failure of the system: files may not grow beyond a thousand bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
        with pytest.raises(OSError, match=r"File too large\. Free some space, or choose another disk with `--to`") as caught:
            fetch(small_set(home.url), ["test"], to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert not isinstance(caught.value, ConnectionError)
    assert files_in(to) == []


def test_a_place_that_cannot_be_written(home, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="Choose a folder that can be written with `--to`"):
        fetch(small_set(home.url), ["test"], tmp_path / "file")


def test_without_pooch_the_extra_is_named(to, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'burnish\[data\]'"):
        fetch(small_set("http://127.0.0.1:9/"), ["test"], to)


@pytest.fixture
def small(home, tmp_path, monkeypatch):
    """The small set among the known ones, with a cache of its own and no folder named."""
    monkeypatch.delenv("BURNISH_DATA", raising=False)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "DATASETS", {"small": small_set(home.url)})
    return tmp_path / "cache"


def test_loading_fetches_into_the_cache_where_no_folder_is_named(small, home):
    assert len(load_images("small", "test")) == 4
    assert files_in(small) == ["small/test-images.gz", "small/test-labels.gz"]
    asked = len(home.asked)
    assert len(load_images("small", "test")) == 4
    assert len(home.asked) == asked


def test_loading_fetches_nothing_where_a_folder_is_named(small, home, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="burnish data fetch small"):
        load_images("small", "test", tmp_path)
    monkeypatch.setenv("BURNISH_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="burnish data fetch small"):
        load_images("small", "test")
    assert home.asked == []
    put(small)  # what was fetched is found beside BURNISH_DATA
    assert len(load_images("small", "test")) == 4
    with pytest.raises(FileNotFoundError):
        load_images("small", "test", tmp_path)


def test_the_cache_without_pooch(small, tmp_path, monkeypatch):
    """It can be named; where it cannot, folders that are named are enough."""
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert cache_folder() == small
    monkeypatch.delenv("BURNISH_CACHE")
    with pytest.raises(ModuleNotFoundError, match=r"burnish\[data\]"):
        load_images("small", "test")
    with pytest.raises(FileNotFoundError, match="got none: no small/test-images"):
        describe("small", "test")
    monkeypatch.setenv("BURNISH_DATA", f"{tmp_path}{os.pathsep}{tmp_path / 'home'}")
    assert search_folders(None) == ([tmp_path, tmp_path / "home"], True)


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("BURNISH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "burnish"
