"""Records: by which code, in JSON's types, and a study of every name."""

import json
import math

import pytest
import torch

from burnish.studies import logistic_integral, records

SMALL = logistic_integral.Settings(
    num_means=6, num_stds=5, num_samples=10, max_samples=20, num_repetitions=2, num_points=100, num_curves=3
)


def test_a_record_says_what_was_run_and_where(monkeypatch):
    monkeypatch.setenv("BURNISH_COMMIT", "abc1234")
    record = records.record_study("logistic-integral", seed=3, settings=SMALL, progress=False)
    assert record["study"] == "logistic-integral"
    assert record["config"]["seed"] == 3
    assert record["config"]["num_means"] == 6
    assert record["commit"] == "abc1234"
    assert record["versions"]["torch"] == torch.__version__
    assert record["seconds"] > 0
    assert json.loads(records.record_text(record)) == record


def test_a_list_of_numbers_stands_on_one_line_and_nothing_is_changed():
    record = {"a": [1, -2.5e-06, None, True], "b": ["x, [1,\n 2]", [3.0]], "c": [], "d": {"e": [[1, 2], [3, 4]]}}
    text = records.record_text(record)
    assert json.loads(text) == record
    assert ' "a": [1, -2.5e-06, null, true],' in text.splitlines()


def test_unknown_studies_and_seeds_are_refused():
    with pytest.raises(ValueError, match=r"`name` must be one of 'logistic-integral', .*'toy-logistic', got 'toy'"):
        records.record_study("toy", progress=False)
    with pytest.raises(ValueError, match="`seed` must be at least 0"):
        records.record_study("toy-logistic", seed=-1, progress=False)


@pytest.mark.parametrize("name", records.STUDIES)
def test_every_study_can_be_run_and_summarised(name):
    study = records._module(name)
    assert callable(study.run)
    assert callable(study.summary)
    assert study.Settings() == study.Settings()


def test_what_json_has_not_is_null():
    assert records.finite({"a": [math.nan, (1.0, -math.inf)], "b": "inf"}) == {"a": [None, [1.0, None]], "b": "inf"}


def test_the_commit_is_that_of_the_environment_or_of_the_repository(monkeypatch):
    monkeypatch.setenv("BURNISH_COMMIT", "1234567")
    assert records.commit() == "1234567"
    monkeypatch.delenv("BURNISH_COMMIT")
    monkeypatch.setattr(records, "_git", lambda *arguments: "")
    assert records.commit() == "unknown"  # no repository


def test_the_commit_has_a_plus_where_files_differ(monkeypatch):
    monkeypatch.delenv("BURNISH_COMMIT", raising=False)
    root = str(records._HERE.parents[2])
    answers = {"--show-toplevel": root, "--porcelain": " M src/x.py", "--short": "1234567"}
    monkeypatch.setattr(records, "_git", lambda *arguments: answers[arguments[1]])
    assert records.commit() == "1234567+"
    answers["--porcelain"] = ""
    assert records.commit() == "1234567"
    answers["--show-toplevel"] = "/somewhere/else"  # a package installed into another project's repository
    assert records.commit() == "unknown"


def test_a_machine_without_git_does_not_matter(monkeypatch):
    monkeypatch.delenv("BURNISH_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert records.commit() == "unknown"
