"""The command line as a user meets it: help that explains itself, exit codes, the demo and the studies."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import burnish
from burnish.cli import app
from burnish.studies import digits, logistic_integral, records


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
