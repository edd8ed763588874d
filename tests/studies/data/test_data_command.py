"""`burnish data` as a user meets it."""

import sys

import pytest
from small_sets import PACKED, put, small_set
from typer.testing import CliRunner

from burnish.cli import app
from burnish.studies import data as package
from burnish.studies.data import DATASETS
from burnish.studies.data.layouts import Dataset, File, Layout, Part


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("BURNISH_DATA", raising=False)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(home, monkeypatch):
    monkeypatch.setattr(package, "DATASETS", {"small": small_set(home.url)})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_help_says_what_there_is():
    output = run("--help").output
    assert all(command in output for command in ("list", "fetch", "verify"))
    assert run().exit_code == 2
    for command in ("list", "fetch", "verify"):
        assert run(command, "--help").exit_code == 0


def test_list_has_every_set_with_its_terms_and_says_what_is_not_here():
    result = run("list")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    for name, dataset in DATASETS.items():
        (line,) = [line for line in lines if line.strip().startswith(f"{name} ")]
        assert dataset.terms.split()[0] in line
        assert "not here" in line


@pytest.mark.usefixtures("small")
def test_list_says_where_a_set_was_found_and_what_it_is(folder, cache, monkeypatch):
    put(folder, copy=True, names=["test-images.gz", "test-labels.gz"])
    put(cache)
    monkeypatch.setenv("COLUMNS", "400")
    output = run("list", "--data", folder).output
    assert f"test, a copy: {folder} (copies)" in output
    assert "train: not here" in output
    output = run("list").output
    assert f"train, 8 images: {cache / 'small'} (upstream files)" in output
    monkeypatch.setenv("BURNISH_DATA", str(folder))
    output = run("list").output
    assert f"test, a copy: {folder} (copies)" in output
    assert f"train, 8 images: {cache / 'small'} (upstream files)" in output


@pytest.mark.usefixtures("small")
def test_brackets_in_the_name_of_a_folder_are_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    folder = tmp_path / "[bold]data[/bold]"
    put(folder)
    assert str(folder / "small") in run("list", "--data", folder).output


@pytest.mark.usefixtures("small")
def test_fetch_into_a_folder_or_into_the_cache(tmp_path, cache):
    for options, place in ((["--to", tmp_path / "new" / "to"], tmp_path / "new" / "to"), ([], cache)):
        result = run("fetch", "small", *options)
        assert result.exit_code == 0, result.output
        assert all(str(place / "small" / name) in result.output for name in PACKED)
        assert {path.name: path.read_bytes() for path in (place / "small").iterdir()} == PACKED
        assert run("verify", "small", *(["--data", place] if options else [])).exit_code == 0


@pytest.mark.usefixtures("small")
def test_fetch_that_fails_says_why_and_leaves_with_1(home, folder, monkeypatch):
    (home.folder / "test-labels.gz").write_bytes(b"something else")
    result = run("fetch", "small", "--to", folder)
    assert result.exit_code == 1
    assert "another checksum" in result.output
    (home.folder / "test-labels.gz").unlink()
    result = run("fetch", "small", "--to", folder)
    assert result.exit_code == 1
    assert "status 404" in result.output
    monkeypatch.setitem(sys.modules, "pooch", None)
    result = run("fetch", "small", "--to", folder)
    assert result.exit_code == 1
    assert "pip install 'burnish[data]'" in result.output


def test_fetch_into_a_place_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("fetch", "mnist", "--to", tmp_path / "file" / "below")
    assert result.exit_code == 2
    assert "`--to` must be a folder that can be made" in result.output


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_unknown_names_are_refused_with_the_known_ones(command):
    result = run(command, "mnist", "imagenet")
    assert result.exit_code == 2
    assert "got 'imagenet'" in result.output
    assert all(name in result.output for name in DATASETS)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_folders_that_are_not_there_are_refused(command, tmp_path):
    result = run(command, "--data", tmp_path / "absent")
    assert result.exit_code == 2
    assert result.output.startswith("`--data` must name existing folders")


def test_fetch_needs_a_name():
    assert run("fetch").exit_code == 2


def test_verify_without_data_lists_everything_as_missing_and_is_content(folder):
    result = run("verify", "--data", folder)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{name} {split}: not here" for name, dataset in DATASETS.items() for split in dataset.splits
    ]


def test_verify_of_a_set_that_was_named_and_is_missing_leaves_with_1(folder):
    result = run("verify", "svhn", "--data", folder)
    assert result.exit_code == 1
    assert result.output == "svhn test: not here\n"


@pytest.mark.usefixtures("small")
def test_verify_says_what_is_intact_what_is_unknown_and_what_is_bad(folder):
    put(folder)
    result = run("verify", "--data", folder)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"small train: intact (upstream files in {folder / 'small'})",
        f"small test: intact (upstream files in {folder / 'small'})",
    ]
    put(folder, copy=True, names=["train-images.gz", "train-labels.gz"])
    result = run("verify", "--data", folder)
    assert result.exit_code == 0
    assert f"small train: read; no checksum is known for 2 of its files (copies in {folder})" in result.output
    for name in ("test-images.gz", "test-labels.gz"):
        (folder / "small" / name).write_bytes(b"")
    result = run("verify", "--data", folder)
    assert result.exit_code == 1
    assert [line.split(" is bad: ")[0] for line in result.stderr.splitlines()] == [
        f"small test: {folder / 'small' / name}" for name in ("test-images.gz", "test-labels.gz")
    ]


def test_a_bad_archive_of_several_splits_has_one_line(folder, monkeypatch):
    archive = File(("both.tar",), f"md5:{32 * '0'}")
    parts = {split: Part(split, 1, (archive,), lambda paths: None) for split in ("train", "test")}
    dataset = Dataset("both", "Both", "noise", "http://home", "none", None, (Layout("archive", parts),))
    monkeypatch.setattr(package, "DATASETS", {"both": dataset})
    (folder / "both.tar").write_bytes(b"")
    result = run("verify", "--data", folder)
    assert result.exit_code == 1
    problem = f"{folder / 'both.tar'} is bad: its checksum is not the published one. Delete it, and get it anew."
    assert result.output == f"both train: {problem}\n"


def test_without_pooch_and_folders_there_is_nothing_to_list(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("BURNISH_CACHE")
    result = run("list")
    assert result.exit_code == 0
    assert "not here" in result.output
