"""The command line as a user meets it: help that explains itself, exit codes, the demo and the studies."""

import copy
import errno
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import types
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import burnish
from burnish.cli import app
from burnish.errors import FitError
from burnish.report import image_figures
from burnish.studies import costs, digits, image_studies, logistic_integral, marginals, records, sources, tabular, workspace
from burnish.studies.image_settings import ImageSettings
from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.part_studies import PART_STUDIES
from burnish.studies.workspace import VERSION


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def small_demo(monkeypatch):
    """The demo with a network, images and draws that take seconds."""
    settings = digits.Settings(sizes=(300, 150, 100), num_epochs=15, num_outside=20, num_draws=100)
    full = digits.run_demo
    monkeypatch.setattr(digits, "run_demo", lambda seed, progress: full(seed, settings=settings, progress=progress))


@pytest.fixture
def small_study(monkeypatch):
    """The study of the logistic integral on a few cells."""
    settings = logistic_integral.Settings(
        num_means=6, num_stds=6, num_samples=10, max_samples=100, num_repetitions=2, num_points=100, num_curves=5
    )
    full = records.record_study
    monkeypatch.setattr(
        records, "record_study", lambda name, seed, progress: full(name, seed=seed, settings=settings, progress=progress)
    )


@pytest.fixture
def quick_marginals(monkeypatch):
    """The study of marginals without networks: seeds that fail can be put into the set."""
    failing = set()

    def run_seed(methods):
        if methods.problem.seed in failing:
            raise FitError("the chains diverged; use more.")
        return {"rows": {"LA": {"ks": 0.25}}, "weights": []}

    monkeypatch.setattr(marginals, "run_seed", run_seed)
    monkeypatch.setattr(image_studies, "prepare", lambda problems: None)
    monkeypatch.setattr(image_studies, "train_missing", lambda setting, kind, seeds, progress: {})
    monkeypatch.setattr(
        image_studies,
        "ImageProblem",
        lambda setting, seed: types.SimpleNamespace(setting=setting, seed=seed, digest="network"),
    )
    monkeypatch.setattr(image_figures, "draw_image_study", lambda record: "<svg/>")
    return failing


def run_marginals(folder, *more):
    return run("study", "marginals", "--small", "--seeds", "0-2", "--out", str(folder), *more)


def assert_refused(result, code, *texts):
    """One line that says it all, and no traceback."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for text in texts:
        assert text in result.stderr
    assert result.stdout == ""


def test_the_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"burnish {burnish.__version__}\n"


def test_help_says_where_to_begin():
    result = run("--help")
    assert result.exit_code == 0
    assert "burnish demo" in result.output
    assert "burnish.refine" in result.output


def test_no_arguments_show_the_help():
    result = run()
    assert "Usage: burnish" in result.output
    assert result.exit_code == 2  # as for any command line that asks for nothing


def test_unknown_commands_and_options_are_refused():
    for arguments in (["demonstrate"], ["demo", "--sed", "1"], ["demo", "--seed", "-1"], ["demo", "--seed", "one"]):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output


@pytest.mark.usefixtures("small_demo")
def test_the_demo_prints_a_table_and_where_the_report_is(tmp_path):
    result = run("demo", "--out", str(tmp_path / "new" / "folder"), "--seed", "1")
    assert result.exit_code == 0, result.output
    for name in (digits.NETWORK, digits.TEMPERATURE, digits.AT_NETWORK, digits.RECENTRED, digits.PAPER, digits.BURNISH):
        assert name in result.output
    report = Path(result.output.split("The report: ")[1].strip())
    assert report == (tmp_path / "new" / "folder" / "report.html").resolve()
    assert "<html" in report.read_text()
    record = json.loads((report.parent / "record.json").read_text())
    assert record["seed"] == 1
    assert sorted(path.name for path in report.parent.iterdir()) == ["record.json", "report.html"]


@pytest.mark.usefixtures("small_demo")
def test_the_demo_prints_its_record_as_json(tmp_path):
    result = run("demo", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((tmp_path / "record.json").read_text())


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    began = time.perf_counter()
    result = run("demo", "--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 2
    assert "`--out` must be a folder that can be made" in result.output
    assert time.perf_counter() - began < 5.0


@pytest.mark.usefixtures("small_study")
def test_a_study_prints_a_table_and_leaves_a_figure_and_a_record(tmp_path):
    folder = tmp_path / "new" / "folder"
    result = run("study", "logistic-integral", "--out", str(folder), "--seed", "2")
    assert result.exit_code == 0, result.output
    assert "0.18" in result.output  # what the paper prints
    figure = Path(result.output.split("The figure: ")[1].strip())
    assert figure == (folder / "logistic-integral.svg").resolve()
    assert figure.read_text().startswith("<svg")
    record = json.loads((folder / "logistic-integral.json").read_text())
    assert record["study"] == "logistic-integral"
    assert record["config"]["seed"] == 2
    assert sorted(path.name for path in folder.iterdir()) == ["logistic-integral.json", "logistic-integral.svg"]


@pytest.mark.usefixtures("small_study")
def test_a_study_prints_its_record_as_json(tmp_path):
    result = run("study", "logistic-integral", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((tmp_path / "logistic-integral.json").read_text())


def test_an_unknown_study_is_refused_with_the_names_and_nothing_is_made(tmp_path):
    result = run("study", "toy", "--out", str(tmp_path / "folder"))
    assert result.exit_code == 2
    for name in records.STUDIES:
        assert name in result.output
    assert "got 'toy'" in result.output
    assert not (tmp_path / "folder").exists()
    assert run("study").exit_code == 2


def test_the_help_of_a_study_names_all_of_them():
    output = run("study", "--help").output
    assert all(name in output for name in records.STUDIES)


def test_a_folder_for_a_study_that_cannot_be_made_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("study", "toy-logistic", "--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 2
    assert "`--out` must be a folder that can be made" in result.output


def test_a_study_whose_data_are_missing_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    result = run("study", "ood", "--short", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "out"))
    assert_refused(result, 1, "`--data` must")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.usefixtures("quick_marginals")
def test_a_short_study_is_told_from_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "load_images", lambda name, split, data: sources.made_images(name, split))
    monkeypatch.setattr(image_studies, "describe", lambda name, split, data: f"{name} {split}")
    result = run("study", "marginals", "--short", "--seeds", "0", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "(fashion-mnist, protocol ours, short, 1 network)" in " ".join(result.output.split())
    place = tmp_path / "marginals-fashion-mnist-ours-short.json"
    config = json.loads(place.read_text())["config"]
    assert (config["made_images"], config["num_train"]) == (False, ImageSettings.short().num_train)
    assert sorted(path.name for path in tmp_path.iterdir()) == [place.name, place.with_suffix(".svg").name, "work-short"]


@pytest.mark.usefixtures("quick_marginals")
def test_an_image_study_prints_a_table_and_leaves_a_figure_and_a_record(tmp_path):
    result = run_marginals(tmp_path, "--protocol", "paper", "--dataset", "cifar-10")
    assert result.exit_code == 0, result.output
    assert "0.2500 ± 0.0000" in result.output
    assert "(cifar-10, made data, protocol paper, 3 networks)" in " ".join(result.output.split())
    place = tmp_path / "marginals-cifar-10-paper-small"
    assert Path(result.output.split("The figure: ")[1].strip()) == place.with_suffix(".svg").resolve()
    record = json.loads(place.with_suffix(".json").read_text())
    assert record["config"]["seeds"] == [0, 1, 2]
    assert record["failures"] == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{place.name}.json", f"{place.name}.svg", "work-small"]


@pytest.mark.usefixtures("quick_marginals")
def test_a_record_of_an_image_study_is_added_to(tmp_path):
    first = run("study", "marginals", "--small", "--seeds", "1", "--out", str(tmp_path))
    assert first.exit_code == 0, first.output
    place = tmp_path / "marginals-fashion-mnist-ours-small.json"
    before = json.loads(place.read_text())
    shutil.rmtree(tmp_path / "work-small")
    found = run_marginals(tmp_path, "--extend")
    assert found.exit_code == 0, found.output
    after = json.loads(place.read_text())
    assert list(after["seeds"]) == ["0", "1", "2"]
    assert after["seeds"]["1"] == before["seeds"]["1"]


def test_correlation_is_made_from_a_record_of_calibration(tmp_path):
    rows = {name: {"mmd": k / 8, "few": {"nll": 1.0 + k}} for k, name in enumerate(("HMC", "flow", "LA", "MAP"))}
    part = {"network": "abc", "rows": rows, "seconds_in_all": 1.0, "origin": {}}
    config = {"dataset": "fashion-mnist", "protocol": "ours", "made_images": True, **asdict(ImageSettings.small())}
    config |= {"seeds": [0, 1], "baseline_seeds": [0]}
    parts = {str(seed): part for seed in config["seeds"]}
    calibration = {"study": "image-calibration", "version": VERSION, "config": config, "data": {}, "seeds": parts}
    options = ("study", "correlation", "--small", "--extend", "--out", str(tmp_path))
    place = tmp_path / "image-calibration-fashion-mnist-ours-small.json"
    own = tmp_path / "correlation-fashion-mnist-ours-small.json"
    assert_refused(run(*options), 2, f"`--extend` must find the record {own} or {place}, got neither. Leave it out")
    place.write_text(json.dumps(calibration | {"version": 0}))
    assert_refused(run(*options), 1, f"`--extend`: {place}", "`version`")
    place.write_text(json.dumps(calibration))
    more = calibration | {"config": config | {"seeds": [0, 1, 2]}, "seeds": parts | {"2": part}}
    # from that record, from what the first run left, and from one that has got a seed more
    for text, seeds in ((calibration, "01"), (calibration, "01"), (more, "012")):
        place.write_text(json.dumps(text))
        result = run(*options)
        assert result.exit_code == 0, result.output
        found = json.loads(own.read_text())
        assert list(found["seeds"]) == list(seeds)
        assert list(found["seeds"]["0"]["rows"]) == ["flow", "LA", "MAP"]
        assert found["seeds"]["0"]["rows"]["LA"] == {"mmd": 0.25, "nll": 3.0}
    anew = copy.deepcopy(more)
    anew["seeds"]["0"]["rows"]["LA"]["mmd"] = 0.5
    place.write_text(json.dumps(anew))
    assert run(*options).exit_code == 0
    assert json.loads(own.read_text())["seeds"]["0"]["rows"]["LA"]["mmd"] == 0.5  # what was there is no longer so
    place.write_text(json.dumps(calibration))  # which lacks a seed that the record has
    before = json.loads(own.read_text())["seeds"]
    assert run(*options, "--seeds", "0,1,2").exit_code == 0
    assert json.loads(own.read_text())["seeds"] == before
    place.write_text(json.dumps(anew))
    own.write_text("{")  # damaged, with all of it beside it
    assert run(*options).exit_code == 0


@pytest.mark.usefixtures("quick_marginals")
def test_a_record_with_more_seeds_is_not_replaced(tmp_path):
    assert run_marginals(tmp_path).exit_code == 0
    place = tmp_path / "marginals-fashion-mnist-ours-small.json"
    before = place.read_bytes()
    fewer = run("study", "marginals", "--small", "--seeds", "1", "--out", str(tmp_path))
    assert_refused(fewer, 2, "`--seeds` must have all seeds of the record", "got none for 0, 2", "Pass --extend")
    assert place.read_bytes() == before
    assert run_marginals(tmp_path).exit_code == 0


@pytest.mark.usefixtures("quick_marginals")
def test_a_record_that_cannot_be_added_to_is_refused_and_left_as_it_is(tmp_path):
    missing = run_marginals(tmp_path, "--extend")
    assert_refused(missing, 2, "`--extend` must find the record", "No such file", "Leave it out")
    place = tmp_path / "marginals-fashion-mnist-ours-small.json"
    for text, code, words in (("{", 2, "a damaged file"), ("[]", 1, "must be a record of an image study")):
        place.write_text(text)
        assert_refused(run_marginals(tmp_path, "--extend"), code, str(place), words)
        assert place.read_text() == text


@pytest.mark.usefixtures("quick_marginals")
def test_an_image_study_prints_its_record_as_json_and_works_where_it_is_told_to(tmp_path):
    result = run_marginals(tmp_path / "out", "--json", "--work", str(tmp_path / "elsewhere"), "--baselines", "none")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "out" / "marginals-fashion-mnist-ours-small.json").read_text())
    assert record["config"]["baseline_seeds"] == []
    assert (tmp_path / "elsewhere" / "parts").is_dir()
    assert not (tmp_path / "out" / "work-small").exists()


def test_a_seed_that_fails_is_said_the_others_are_shown_and_the_exit_code_is_one(tmp_path, quick_marginals):
    quick_marginals.add(1)
    result = run_marginals(tmp_path)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr == "Seed 1 failed: FitError: the chains diverged; use more.\n"
    assert "2 networks" in " ".join(result.stdout.split())
    record = json.loads((tmp_path / "marginals-fashion-mnist-ours-small.json").read_text())
    assert record["failures"] == {"1": "FitError: the chains diverged; use more."}
    assert list(record["seeds"]) == ["0", "2"]
    quick_marginals.clear()
    assert run_marginals(tmp_path).exit_code == 0
    assert list(json.loads((tmp_path / "marginals-fashion-mnist-ours-small.json").read_text())["seeds"]) == ["0", "1", "2"]


def test_where_all_seeds_fail_there_is_no_record(tmp_path, quick_marginals):
    quick_marginals.update((0, 1, 2))
    result = run_marginals(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("failed: FitError") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["work-small"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--dataset", "mnist"], "`--dataset` must be one of 'fashion-mnist', 'cifar-10', 'cifar-100', got 'mnist'"),
        (["--protocol", "theirs"], "`--protocol` must be one of 'paper', 'ours', got 'theirs'"),
        (["--seeds", "0,x"], "`--seeds` must be numbers such as 0,1,2 or 0-4, at most 1,000 in a range, got '0,x'"),
        (["--seeds", "2-1"], "`--seeds` must be numbers such as 0,1,2 or 0-4, at most 1,000 in a range, got '2-1'"),
        *((["--seeds", text], f"got {text!r}") for text in ("", "-1", "0-", "1,,2", "²", "1.5", "0-99999", "9" * 30)),
        (["--seeds", "1,0-2"], "`--seeds` must be different and at least one, got [1, 0, 1, 2]"),
        (
            ["--baselines", "first"],
            "`--baselines` must be numbers such as 0,1,2 or 0-4, at most 1,000 in a range, got 'first'",
        ),
        (["--seeds", "0,1", "--baselines", "2"], "`--baselines` must be among the seeds [0, 1], got [2]"),
        (["--data", "here"], "`--data` must be left out with `--small`, got here"),
        (["--short"], "`--short` must be left out with `--small`, got both"),
        (["--device", "gpu"], "`--device` must be a device such as 'cpu' or 'cuda', got 'gpu'"),
        (["--seed", "3"], "`--seed` must be left out for ood, got 3: it is an option of other studies"),
    ],
)
def test_wrong_options_of_an_image_study_are_refused_and_nothing_is_made(tmp_path, arguments, text):
    assert_refused(run("study", "ood", "--small", "--out", str(tmp_path / "out"), *arguments), 2, text)
    assert not (tmp_path / "out").exists()


def test_baselines_of_a_study_that_has_none_are_refused(tmp_path):
    result = run_marginals(tmp_path / "out", "--baselines", "0")
    assert_refused(result, 2, "`--baselines` must be left out for marginals, which has no baselines. Leave them out.")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        *((["--dataset", "cifar-10"], "dataset"), (["--seeds", "0"], "seeds"), (["--baselines", "none"], "baselines")),
        *((["--protocol", "ours"], "protocol"), (["--device", "cpu"], "device"), (["--data", "here"], "data")),
        *((["--work", "here"], "work"), (["--small"], "small"), (["--short"], "short"), (["--extend"], "extend")),
    ],
)
def test_options_of_image_studies_are_refused_for_others(tmp_path, arguments, option):
    result = run("study", "toy-logistic", "--out", str(tmp_path / "out"), *arguments)
    assert_refused(result, 2, f"`--{option}` must be left out for toy-logistic", "it is an option of other studies")
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = run("study", "ood", "--small", "--device", "cuda", "--out", str(tmp_path / "out"))
    assert_refused(result, 2, "`--device` must be one that torch can use, got 'cuda', but torch sees no GPU. Pass 'cpu'.")


@pytest.mark.usefixtures("quick_marginals")
@pytest.mark.parametrize("option", ["--out", "--work"])
def test_a_folder_of_an_image_study_that_cannot_be_made_is_refused(tmp_path, option):
    (tmp_path / "file").write_text("in the way")
    more = [option, str(tmp_path / "file" / "below")]
    assert_refused(run_marginals(tmp_path / "out", *more), 2, f"`{option}` must be a folder that can be made", "below")


@pytest.mark.usefixtures("quick_marginals")
def test_data_that_are_missing_or_damaged_are_said_in_one_line(tmp_path):
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    for folder in (empty, broken / "fashion-mnist"):
        folder.mkdir(parents=True)
    for stem in ("t10k", "train"):
        (broken / "fashion-mnist" / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(1000))[:20])
        (broken / "fashion-mnist" / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(1000))[:20])
    options = ["study", "marginals", "--out", str(tmp_path / "out"), "--data"]
    assert_refused(run(*options, str(empty)), 1, "must hold the test split of fashion-mnist", str(empty))
    assert_refused(run(*options, str(broken)), 1, str(broken), "is damaged", "burnish data fetch")
    assert_refused(run(*options, str(tmp_path / "nowhere")), 1, "must name existing folders", "nowhere")
    assert not (tmp_path / "out" / "work" / "parts").exists()


@pytest.mark.usefixtures("quick_marginals")
def test_a_full_disk_is_said_in_one_line_and_the_next_run_completes(tmp_path, monkeypatch):
    fsync, written = os.fsync, []

    def full(file):
        written.append(file)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    result = run_marginals(tmp_path)
    assert_refused(result, 1, "marginals-fashion-mnist-ours-1.json", "No space left on device. Free some space")
    (first,) = (tmp_path / "work-small" / "parts").iterdir()
    kept = first.name, first.read_bytes(), first.stat().st_mtime_ns
    assert kept[0] == "marginals-fashion-mnist-ours-0.json"
    assert run_marginals(tmp_path).exit_code == 0
    assert (first.name, first.read_bytes(), first.stat().st_mtime_ns) == kept
    assert list(json.loads((tmp_path / "marginals-fashion-mnist-ours-small.json").read_text())["seeds"]) == ["0", "1", "2"]


@pytest.mark.usefixtures("quick_marginals")
def test_a_record_that_cannot_be_written_is_said_in_one_line_and_what_was_there_stays(tmp_path, monkeypatch):
    assert run_marginals(tmp_path).exit_code == 0
    record = tmp_path / "marginals-fashion-mnist-ours-small.json"
    before = record.read_bytes()

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert_refused(run_marginals(tmp_path), 1, str(record), "No space left on device")
    assert record.read_bytes() == before


@pytest.mark.usefixtures("quick_marginals")
@pytest.mark.parametrize("damage", ["truncated", "version", "settings", "folder"])
def test_a_part_that_is_not_what_is_wanted_is_said_in_one_line_and_kept(tmp_path, damage):
    assert run_marginals(tmp_path).exit_code == 0
    part = tmp_path / "work-small" / "parts" / "marginals-fashion-mnist-ours-1.json"
    content = json.loads(part.read_text())
    if damage == "truncated":
        part.write_bytes(part.read_bytes()[:100])
    elif damage == "version":
        part.write_text(json.dumps(content | {"study_version": workspace.VERSION + 1}))
    elif damage == "settings":
        part.write_text(json.dumps(content | {"config": content["config"] | {"few": 3}}))
    else:
        part.unlink()
        part.mkdir()
    before = part.read_bytes() if part.is_file() else None
    assert_refused(run_marginals(tmp_path), 1, str(part))
    assert (part.read_bytes() if part.is_file() else None) == before


@pytest.mark.usefixtures("quick_marginals")
def test_running_out_of_memory_has_a_name(tmp_path, monkeypatch):
    def exhausted(name, split):
        raise MemoryError

    monkeypatch.setattr(sources, "made_images", exhausted)
    assert_refused(run_marginals(tmp_path), 1, "MemoryError")


def test_the_help_names_all_studies_of_networks():
    output = run("study", "--help").output
    assert all(name in output for name in [*IMAGE_STUDIES, *PART_STUDIES])


def test_a_study_in_parts_leaves_a_figure_and_a_record_and_keeps_its_parts(tmp_path, monkeypatch):
    arguments = ("study", "costs", "--small", "--seed", "3", "--out", str(tmp_path))
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "Seconds and ELBOs of refinement" in result.output
    record = json.loads((tmp_path / "costs-small.json").read_text())
    assert (record["config"]["seed"], record["failures"]) == (3, {})
    assert (tmp_path / "costs-small.svg").read_text().startswith("<svg")
    monkeypatch.setattr(costs, "make_mixture", None)  # what is there is not made again
    again = run(*arguments, "--json")
    assert json.loads(again.stdout)["parts"] == record["parts"]


def test_a_part_that_fails_is_said_and_the_others_are_shown(tmp_path, monkeypatch):
    whole = tabular.run_methods

    def failing(problem):
        if problem.num_classes is None:
            raise FitError("the chains diverged; use more.")
        return whole(problem)

    monkeypatch.setattr(tabular, "run_methods", failing)
    result = run("study", "tabular", "--small", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "made numbers failed: FitError: the chains diverged" in result.output
    assert list(json.loads((tmp_path / "tabular-small.json").read_text())["parts"]) == ["made classes"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["few-shot", "--small", "--dataset", "mnist"], "`--dataset` must be one of 'fashion-mnist'"),
        (["few-shot", "--small", "--seeds", "1,1"], "`--seeds` must be different and at least one, got [1, 1]"),
        (["few-shot", "--protocol", "ours"], "`--protocol` must be left out for few-shot"),
        (["all-layer", "--small", "--seeds", "1,1"], "`--seeds` must be different and at least one, got [1, 1]"),
        (["all-layer", "--dataset", "cifar-10"], "`--dataset` must be left out for all-layer"),
        (["costs", "--device", "gpu"], "`--device` must be a device such as 'cpu' or 'cuda', got 'gpu'"),
        (["costs", "--dataset", "cifar-10"], "`--dataset` must be left out for costs"),
        (["tabular", "--small", "--data", "here"], "`--data` must be left out with `--small`, got here"),
        (["tabular", "--short"], "`--short` must be left out for tabular, got it: it is an option of other studies"),
        (["text", "--short"], "`--short` must be left out for texts, got it: their sets are small as they are"),
        (["few-shot", "--dataset", "sst-fine", "--short"], "`--short` must be left out for texts"),
    ],
)
def test_wrong_options_of_a_study_in_parts_are_refused_and_nothing_is_made(tmp_path, arguments, text):
    assert_refused(run("study", *arguments, "--out", str(tmp_path / "out")), 2, text)
    assert not (tmp_path / "out").exists()


def test_a_study_in_parts_without_its_data_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    result = run("study", "tabular", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "out"))
    assert_refused(result, 1, "`--data` must hold uci_classification.npz")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_whole_demo_takes_less_than_a_minute(tmp_path):
    began = time.perf_counter()
    command = [sys.executable, "-m", "burnish", "demo", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - began < 60.0
    record = json.loads((tmp_path / "record.json").read_text())
    nll = {row["name"]: row["nll"] for row in record["rows"]}
    assert nll[digits.BURNISH] < nll[digits.NETWORK]
    elbo = {row["name"]: row["elbo"]["value"] for row in record["rows"] if row["elbo"]}
    assert elbo[digits.BURNISH] == max(elbo.values())
