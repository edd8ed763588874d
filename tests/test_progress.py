"""Progress: silent away from terminals, a bar on one, and the seconds of every stage whatever happens."""

import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest

from burnish.progress import Stages


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A function that gives a terminal on stderr; called in the test, because pytest puts its own there after fixtures."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def open_terminal():
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return open_terminal


def work(show):
    with Stages("refine", show=show) as stages:
        with stages.stage("features", total=3):
            assert list(stages.track(iter("abc"))) == ["a", "b", "c"]
        with stages.stage("posterior"):
            time.sleep(0.02)
    return stages


@pytest.mark.parametrize("show", [True, False])
def test_silent_where_nobody_is_watching(show, capsys):
    stages = work(show)
    assert list(stages.seconds) == ["features", "posterior"]
    assert 0.02 <= stages.seconds["posterior"] < 1.0
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(terminal):
    screen = terminal()
    stages = work(True)
    shown = screen.getvalue()
    assert "refine: posterior" in shown
    assert list(stages.seconds) == ["features", "posterior"]
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is back
    assert shown.rstrip("\r").endswith("\x1b[2K\x1b[?25h")  # and the line of the bar is empty


def test_no_bar_where_none_is_wanted(terminal):
    screen = terminal()
    work(False)
    assert screen.getvalue() == ""


def test_the_bar_counts_what_has_been_dealt_with(terminal):
    terminal()
    with Stages("refine", show=True) as stages, stages.stage("features", total=3):
        counts = [stages._bar.tasks[0].completed for _ in stages.track("abc")]
        assert counts == [0, 1, 2]
        assert stages._bar.tasks[0].completed == 3
        assert stages._bar.tasks[0].total == 3


@pytest.mark.parametrize("show", [True, False])
def test_seconds_are_recorded_where_a_stage_fails(show, terminal):
    terminal()
    stages = Stages("refine", show=show)

    def fail():
        with stages, stages.stage("prior"):
            time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stages.seconds["prior"] >= 0.01
    if show:
        assert stages._bar.finished  # no task is left
        assert not stages._bar.live.is_started


def test_a_stage_that_is_entered_twice_adds_up():
    stages = Stages("refine", show=False)
    for _ in range(2):
        with stages, stages.stage("features"):
            time.sleep(0.01)
    assert stages.seconds["features"] >= 0.02


CODE = """
import json, sys
from burnish.progress import Stages
with Stages("refine", show={show}) as stages, stages.stage("features", total=2):
    list(stages.track("ab"))
json.dump([name for name in sys.modules if name.split(".")[0] == "rich"][:1], sys.stdout)
"""


@pytest.mark.parametrize("show", [True, False])
def test_rich_is_not_even_imported_away_from_terminals(show):
    done = subprocess.run([sys.executable, "-c", CODE.format(show=show)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert json.loads(done.stdout) == []


def test_a_real_terminal():
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    try:
        command = [sys.executable, "-c", CODE.format(show=True)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=child, text=True, check=True, env=environment)
        shown = os.read(parent, 100_000).decode()
    finally:
        os.close(parent)
        os.close(child)
    assert "refine: features" in shown
    assert json.loads(done.stdout) != []
