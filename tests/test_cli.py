"""The command line as a user meets it: help that explains itself, exit codes, and the demo."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import burnish
from burnish.cli import app
from burnish.studies import digits


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def small_demo(monkeypatch):
    """The demo with a network, images and draws that take seconds."""
    settings = digits.Settings(sizes=(300, 150, 100), num_epochs=15, num_outside=20, num_draws=100)
    full = digits.run_demo
    monkeypatch.setattr(digits, "run_demo", lambda seed, progress: full(seed, settings=settings, progress=progress))


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
