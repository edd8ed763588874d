"""`burnish data` as a user meets it."""

import dataclasses
import sys

import pytest
from small_sets import PACKED, put, small_set
from typer.testing import CliRunner

from burnish.cli import app
from burnish.studies import data as package
from burnish.studies.data import DATASETS
from burnish.studies.data.layouts import Dataset, File, Layout, Part


def named_set(name, home):
    """The small set under another name, in a folder of that name."""
    dataset = small_set(home, standin=False)
    parts = {}
    for split, part in dataset.layouts[0].parts.items():
        files = [dataclasses.replace(file, names=(file.names[0].replace("small", name),)) for file in part.files]
        parts[split] = dataclasses.replace(part, files=tuple(files))
    return dataclasses.replace(dataset, name=name, title=name, layouts=(Layout("upstream files", parts),))


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
    blocks = result.output.split("\n\n")
    for block, (name, dataset) in zip(blocks, DATASETS.items(), strict=True):
        words = " ".join(block.split())
        assert words.startswith(f"{name}: {dataset.what} terms: {dataset.terms} ")
        assert words.endswith(" ".join(f"{split}: not here" for split in dataset.splits))


@pytest.mark.parametrize("columns", [None, 60, 200])
def test_list_is_as_wide_as_the_terminal_and_80_columns_without_one(columns, monkeypatch):
    """But for a folder, which is not broken, so that it can be copied."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(map(len, run("list").output.splitlines()))
    assert {None: 60 < widest <= 80, 60: widest <= 60, 200: 80 < widest <= 200}[columns]


@pytest.mark.usefixtures("small")
def test_list_does_not_break_the_names_of_folders(tmp_path):
    folder = tmp_path / ("a folder with a long name " * 4).strip()
    put(folder)
    assert f"    in {folder / 'small'}\n" in run("list", "--data", folder).output


@pytest.mark.usefixtures("small")
def test_list_says_where_a_set_was_found_and_what_it_is(folder, cache, monkeypatch):
    put(folder, copy=True, names=["test-images.gz", "test-labels.gz"])
    put(cache)
    copies = f"  test: a copy (copies)\n    in {folder}\n"
    upstream = f"  train: 8 images (upstream files)\n    in {cache / 'small'}\n"
    output = run("list", "--data", folder).output
    assert output == f"small: noise\n  terms: none\n  train: not here\n{copies}"
    assert upstream in run("list").output
    monkeypatch.setenv("BURNISH_DATA", str(folder))
    assert run("list").output == f"small: noise\n  terms: none\n{upstream}{copies}"


@pytest.mark.usefixtures("small")
def test_brackets_in_the_name_of_a_folder_are_printed(tmp_path):
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


def test_fetch_goes_on_after_a_failure_and_reports_each(home, cache, monkeypatch):
    names = ("absent", "small", "nowhere")
    homes = {"absent": f"{home.url}absent/", "small": home.url, "nowhere": "http://127.0.0.1:9/"}
    monkeypatch.setattr(package, "DATASETS", {name: named_set(name, homes[name]) for name in names})
    result = run("fetch", *names)
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["small"]
    absent, nowhere = result.stderr.splitlines()
    assert absent.startswith("absent could not be fetched: ")
    assert "status 404" in absent
    assert nowhere.startswith("nowhere could not be fetched: ")
    assert [path.name for path in cache.iterdir()] == ["small"]


def test_a_fetch_that_fails_leaves_no_folder_that_it_made(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(package, "DATASETS", {"nowhere": named_set("nowhere", "http://127.0.0.1:9/")})
    assert run("fetch", "nowhere").exit_code == 1
    assert not cache.exists()
    assert run("fetch", "nowhere", "--to", tmp_path / "new/to").exit_code == 1
    assert not (tmp_path / "new").exists()
    cache.mkdir()
    assert run("fetch", "nowhere").exit_code == 1
    assert list(cache.iterdir()) == []  # one that was there before stays


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


@pytest.mark.usefixtures("small")
def test_a_file_that_may_not_be_read_has_a_line_that_does_not_say_to_delete_it(restricted):
    put(restricted.folder, copy=True, names=["test-images.gz", "test-labels.gz"])
    path = restricted.folder / "copy-test-images.gz"
    assert run("verify", "small", "--data", restricted.folder).exit_code == 0
    with restricted.mode(path, 0):
        result = run("verify", "small", "--data", restricted.folder)
    assert result.exit_code == 1
    assert result.stdout == "small train: not here\n"
    assert result.stderr == (
        f"small test: {path} cannot be read (Permission denied). "
        "Give yourself the permission to read it, or name a folder with another copy.\n"
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_folder_that_may_not_be_entered_is_said_in_one_line(restricted, command):
    put(restricted.folder)
    assert run(command, "--data", restricted.folder).exit_code == 0
    with restricted.mode(restricted.folder / "small", 0o600):
        result = run(command, "--data", restricted.folder)
    assert result.exit_code == 1
    assert result.output == (
        f"`folder` must be one that can be looked into, got '{restricted.folder / 'small'}' (Permission denied). "
        "Give yourself the permission to enter it, or name another folder.\n"
    )
