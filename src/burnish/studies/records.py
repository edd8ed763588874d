"""Records of runs: what was measured, by which code, with what and where."""

import importlib
import json
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from burnish._checks import check_at_least, check_choice

__all__ = ["STUDIES", "commit", "finite", "origin", "record_study", "record_text", "summarise"]

# the studies by name, and what each is about
STUDIES = {
    "logistic-integral": "Monte Carlo and the probit approximation for the average of a sigmoid over a Gaussian",
    "linearised-vs-mc": "a regression network with an exact-Hessian posterior: sampled, linearised, and by HMC",
    "mpa-vs-mc": "confidence of a classification network: sampled, linearised, and by the multi-class probit approximation",
    "toy-logistic": "Laplace, variational and refined posteriors of two weights against HMC",
}
_HERE = Path(__file__).resolve().parent
_NUMBERS = re.compile(r"\[\s+((?:[-+.\de]+|null|true|false)(?:,\s+(?:[-+.\de]+|null|true|false))*)\s+\]")


def record_study(name: str, *, seed: int = 0, settings: Any = None, progress: bool = True) -> dict[str, Any]:
    """Runs a study and describes the run: configuration, commit, versions, device, seconds and results, in JSON's types.

    Args:
        name: one of `STUDIES`.
        seed: of everything that is drawn.
        settings: other sizes than the study's own, a `Settings` of its module.
        progress: whether to say on a terminal what is going on.
    """
    check_choice("name", name, STUDIES)
    check_at_least("seed", seed, 0)
    study = _module(name)
    settings = study.Settings() if settings is None else settings
    began = time.perf_counter()
    results = study.run(seed, settings, progress=progress)
    config = {"seed": seed, **asdict(settings)}
    where = origin(torch.device("cpu"))
    seconds = time.perf_counter() - began
    record: dict[str, Any] = finite({"study": name, "config": config, **where, "seconds": seconds, "results": results})
    return record


def summarise(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table of a study's record: ours beside what the paper prints."""
    study = _module(record["study"])
    # a study of several networks keeps their results apart
    table: tuple[list[str], list[list[str]]] = study.summary(record.get("results", record))
    return table


def record_text(record: Mapping[str, Any]) -> str:
    """The record as JSON, with a list of numbers on one line."""
    text = json.dumps(record, indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)


def origin(device: torch.device) -> dict[str, Any]:
    """By which code, with what and where something is measured."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    return {"commit": commit(), "versions": versions, "device": _describe(device)}


def commit() -> str:
    """Of the code that runs, with a plus where files differ from it; "unknown" where it is not in its repository."""
    if "BURNISH_COMMIT" in os.environ:  # for machines that have the files but no history
        return os.environ["BURNISH_COMMIT"]
    # an installed package may lie in somebody else's repository, whose commit says nothing about it
    root = _git("rev-parse", "--show-toplevel")
    if not root or Path(root).resolve() / "src" / "burnish" / "studies" != _HERE:
        return "unknown"
    dirty = _git("status", "--porcelain", ":/src", ":/benchmarks")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if dirty else "")


def finite(value: Any) -> Any:
    """The record with null for NaN and infinities, which JSON does not have, and lists for tuples."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _module(name: str) -> Any:
    return importlib.import_module(f"burnish.studies.{name.replace('-', '_')}")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_HERE, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
