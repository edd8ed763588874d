"""Studies in parts, each kept in a file: what was interrupted goes on, and a part that fails does not lose the others."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from burnish._checks import check_at_least
from burnish.errors import FitError
from burnish.progress import Stages
from burnish.studies.records import finite, origin
from burnish.studies.workspace import Workspace

__all__ = ["FAILURES", "SEEDS", "check_device", "check_seeds", "gather_parts", "keep_part"]

SEEDS = (0, 1, 2)
"""Of networks, where none are asked for."""
FAILURES = (FitError, MemoryError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""What may go wrong with one part, while others go on."""


def gather_parts(
    workspace: Workspace,
    study: str,
    configs: Mapping[str, Mapping[str, Any]],
    run: Callable[[str], dict[str, Any]],
    *,
    device: torch.device,
    progress: bool,
) -> tuple[dict[str, Any], dict[str, str]]:
    """All parts of a study by name, from files or made and put there, and what went wrong with those that are missing.

    Args:
        workspace: the folder with the files.
        study: its name.
        configs: what each part is made with, by name of the part.
        run: makes the part of a name.
        device: where it is made, for the record.
        progress: whether to show a bar on a terminal.
    """
    parts, failures = {}, {}
    with Stages(study, show=progress) as stages, stages.stage("parts", len(configs)):
        for name in stages.track(list(configs)):
            try:
                parts[name] = keep_part(workspace, f"{study}-{name}", configs[name], partial(run, name), device)
            except FAILURES as error:
                failures[name] = f"{type(error).__name__}: {error}"
    return parts, failures


def keep_part(
    workspace: Workspace,
    place: str,
    config: Mapping[str, Any],
    run: Callable[[], dict[str, Any]],
    device: torch.device,
) -> dict[str, Any]:
    """A part from its file, or made and put there; with its seconds, and by which code and where it was made."""
    found = workspace.read_part(place, config)
    if found is None:
        began = time.perf_counter()
        part = run()
        part |= {"seconds_in_all": time.perf_counter() - began, "origin": origin(device)}
        workspace.write_part(place, config, finite(part))
        found = workspace.read_part(place, config)
        assert found is not None
    return found


def check_device(device: str | torch.device) -> torch.device:
    """Refuses a device that parts cannot be made on, before any work."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"`device` must be a device such as 'cpu' or 'cuda', got {device!r}. Pass 'cpu'.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        seen = f"torch sees {count} GPUs" if count else "torch sees no GPU"
        raise ValueError(f"`device` must be one that torch can use, got {str(device)!r}, but {seen}. Pass 'cpu'.")
    return found


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuses none, and one that stands there twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be different and at least one, got {list(seeds)}. Pass 0,1,2, say.")
    for seed in seeds:
        check_at_least("seeds", seed, 0)
