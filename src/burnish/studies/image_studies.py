"""Runs a study of the paper's image tables: networks, posteriors and results of each seed, and the record of all of them."""

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from burnish._checks import check_at_least, check_choice
from burnish.errors import FitError
from burnish.progress import Stages
from burnish.studies.data import Images, describe, load_images
from burnish.studies.image_methods import ImageMethods
from burnish.studies.image_posteriors import prepare
from burnish.studies.image_problem import BASELINES, ImageProblem, ImageSettings, Setting, train_missing
from burnish.studies.made_images import made_images
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS
from burnish.studies.records import finite, origin
from burnish.studies.workspace import VERSION, Workspace

__all__ = ["IMAGE_STUDIES", "record_image_study"]

# the studies by name, and what each is about
IMAGE_STUDIES = {
    "image-calibration": "every method on test images, and its distance to HMC",
    "ood": "images of other data sets told from test images by how sure a method is",
    "shift": "test images turned or corrupted more and more",
    "few-vs-many": "many draws of a poor posterior against few of a good one",
    "flow-from-prior": "the paper's flow from a standard normal in place of a Laplace posterior",
    "marginals": "densities of single weights under each posterior",
    "correlation": "distance to HMC against NLL over all methods",
}
_WITHOUT_BASELINES = ("few-vs-many", "flow-from-prior", "marginals", "correlation")
_WITHOUT_FLOWS = ("few-vs-many", "flow-from-prior")


def record_image_study(
    name: str,
    *,
    dataset: str = "fashion-mnist",
    seeds: Sequence[int] | None = None,
    protocol: str = "ours",
    device: str | torch.device = "cpu",
    data: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str] = "burnish-work",
    settings: ImageSettings | None = None,
    small: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of a study and describes all of it: configuration, origin, and the results of every seed.

    A seed that fails is described under "failures", and the others go on.

    Args:
        name: one of `IMAGE_STUDIES`.
        dataset: "fashion-mnist", "cifar-10" or "cifar-100".
        seeds: of the networks; those of the data set's tables when not given.
        protocol: "paper" for the paper's to the letter, "ours" for one without its defects.
        device: where networks are trained and posteriors fitted.
        data: folder with the data sets: see `load_images`.
        work: folder that keeps networks, draws and results of seeds, for this study and others, now and later.
        settings: other sizes than the paper's.
        small: made images and small sizes, to try it out.
        progress: whether to say on a terminal what is going on.
    """
    check_choice("name", name, IMAGE_STUDIES)
    check_choice("dataset", dataset, BENCHMARKS)
    check_choice("protocol", protocol, PROTOCOLS)
    device = _check_device(device)
    if settings is None:
        settings = ImageSettings.small() if small else ImageSettings()
    chosen = tuple((0, 1) if small else BENCHMARKS[dataset].seeds) if seeds is None else tuple(seeds)
    _check_seeds(chosen)
    source = _Cached(made_images if small else lambda what, split: load_images(what, split, data))
    setting = Setting(dataset, protocol, settings, source, Workspace(Path(work)), device)
    began = time.perf_counter()
    parts, failures = _run(name, setting, chosen, progress)
    config = {"dataset": dataset, "protocol": protocol, "seeds": list(chosen), "made_images": small, **asdict(settings)}
    used = {} if small else {what: describe(what, split, data) for what, split in sorted(source.used)}
    seconds = time.perf_counter() - began
    record = {"study": name, "version": VERSION, "config": config, **origin(device), "seconds": seconds, "data": used}
    described: dict[str, Any] = finite({**record, "failures": failures, "seeds": parts})
    return described


def _run(name: str, setting: Setting, seeds: Sequence[int], progress: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """The results of seeds, and what went wrong with others."""
    study = importlib.import_module(f"burnish.studies.{name.replace('-', '_')}")
    failures = {
        str(seed): text for seed, text in train_missing(setting, setting.protocol, tuple(seeds), progress=progress).items()
    }
    compared = () if name in _WITHOUT_BASELINES else tuple(seeds)[: setting.settings.num_baseline_seeds]
    for kind in BASELINES:
        failed = train_missing(setting, kind, compared, progress=progress)
        failures |= {f"{kind} {seed}": text for seed, text in failed.items()}
        compared = tuple(seed for seed in compared if seed not in failed)
    waiting = [seed for seed in seeds if str(seed) not in failures]
    parts: dict[str, Any] = {}
    with Stages(name, show=progress) as stages:
        with stages.stage("networks"):
            problems = [ImageProblem(setting, seed) for seed in waiting]
        missing = [problem for problem in problems if _part(name, problem) is None]
        if missing and name not in _WITHOUT_FLOWS:
            with stages.stage("the paper's flows"), contextlib.suppress(FitError, MemoryError):
                prepare(missing)  # where that fails, each seed tries for itself
        with stages.stage("seeds", len(problems)):
            for problem in stages.track(problems):
                try:
                    parts[str(problem.seed)] = _finish(name, study, problem, problem.seed in compared)
                except (FitError, MemoryError) as error:
                    failures[str(problem.seed)] = f"{type(error).__name__}: {error}"
    return parts, failures


def _finish(name: str, study: Any, problem: ImageProblem, has_baselines: bool) -> dict[str, Any]:
    """The results of one seed: from their file, or made and put there."""
    found = _part(name, problem)
    if found is not None:
        return found
    began = time.perf_counter()
    part = study.run_seed(ImageMethods(problem, has_baselines))
    part |= {"seconds_in_all": time.perf_counter() - began, "origin": origin(problem.device)}
    problem.setting.workspace.write_part(_part_name(name, problem), problem.config(), finite(part))
    found = _part(name, problem)
    assert found is not None
    return found


def _part(name: str, problem: ImageProblem) -> dict[str, Any] | None:
    return problem.setting.workspace.read_part(_part_name(name, problem), problem.config())


def _part_name(name: str, problem: ImageProblem) -> str:
    return f"{name}-{problem.setting.dataset}-{problem.setting.protocol}-{problem.seed}"


class _Cached:
    """Images that have been read stay in memory; which ones were used is remembered."""

    def __init__(self, source: Callable[[str, str], Images]) -> None:
        self._source, self._kept = source, dict[tuple[str, str], Images]()

    def __call__(self, name: str, split: str) -> Images:
        if (name, split) not in self._kept:
            self._kept[name, split] = self._source(name, split)
        return self._kept[name, split]

    @property
    def used(self) -> set[tuple[str, str]]:
        """Data sets and splits."""
        return set(self._kept)


def _check_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"`device` must be a device such as 'cpu' or 'cuda', got {device!r}. Pass 'cpu'.") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` must be one that torch can use, got {device!r}, but there is no GPU. Pass 'cpu'.")
    return found


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be different and at least one, got {list(seeds)}. Pass 0,1,2, say.")
    for seed in seeds:
        check_at_least("seeds", seed, 0)
