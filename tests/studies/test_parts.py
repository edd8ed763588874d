"""Studies in parts: what is there is not made again, and what fails loses nothing else."""

from typing import Any

import pytest
import torch

from burnish.errors import FitError
from burnish.studies.parts import gather_parts
from burnish.studies.workspace import Workspace

CPU = torch.device("cpu")
CONFIGS = {"first": {"seed": 0}, "second": {"seed": 1}}


def gather(workspace: Workspace, run: Any) -> Any:
    return gather_parts(workspace, "study", CONFIGS, run, device=CPU, progress=False)


def test_parts_are_made_once_and_come_back_the_same(tmp_path: Any) -> None:
    made: list[str] = []

    def run(name: str) -> dict[str, Any]:
        made.append(name)
        return {"score": len(made), "nothing": float("nan")}

    first = gather(Workspace(tmp_path), run)
    assert gather(Workspace(tmp_path), run) == first
    assert made == ["first", "second"]
    assert [part["score"] for part in first[0].values()] == [1, 2]
    assert first[0]["first"]["nothing"] is None
    assert {"seconds_in_all", "origin"} < first[0]["first"].keys()


def test_a_part_that_fails_loses_no_other_and_is_tried_again(tmp_path: Any) -> None:
    def fail(name: str) -> dict[str, Any]:
        if name == "first":
            raise FitError("no mode was found.")
        return {"score": 1}

    parts, failures = gather(Workspace(tmp_path), fail)
    assert list(parts) == ["second"]
    assert failures == {"first": "FitError: no mode was found."}
    parts, failures = gather(Workspace(tmp_path), lambda name: {"score": 2})
    assert {name: part["score"] for name, part in parts.items()} == {"first": 2, "second": 1}
    assert not failures


def test_a_mistake_in_the_code_is_no_failure_of_a_part(tmp_path: Any) -> None:
    def wrong(name: str) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gather(Workspace(tmp_path), wrong)
