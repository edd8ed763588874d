"""Runs a study of the paper's last layers: networks, posteriors and results of each seed, and the record of all of them."""

import contextlib
import copy
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from burnish._checks import check_choice
from burnish.progress import Stages
from burnish.studies import correlation
from burnish.studies.data import IMAGES, TEXTS, describe
from burnish.studies.image_methods import LayerMethods, NetworkMethods
from burnish.studies.image_posteriors import prepare
from burnish.studies.image_problem import BASELINES, ImageProblem, Setting, train_missing
from burnish.studies.image_settings import ImageSettings
from burnish.studies.parts import FAILURES, check_device, check_seeds, keep_part
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS
from burnish.studies.records import finite, origin
from burnish.studies.sources import data_source
from burnish.studies.workspace import VERSION, Workspace

__all__ = ["IMAGE_STUDIES", "check_options", "datasets_of", "record_image_study"]

# the studies by name, and what each is about
IMAGE_STUDIES = {
    "image-calibration": "every method on test images, and its distance to HMC",
    "ood": "images of other data sets told from test images by how sure a method is",
    "shift": "test images turned or corrupted more and more",
    "few-vs-many": "many draws of a poor posterior against few of a good one",
    "flow-from-prior": "the paper's flow from a standard normal in place of a Laplace posterior",
    "marginals": "densities of single weights under each posterior",
    "correlation": "distance to HMC against NLL over all methods",
    "text": "every method on test texts, and its distance to HMC",
}
WITH_BASELINES = ("image-calibration", "ood", "shift")
_SIZES_BEFORE = {"num_blocks": 1}  # of records from before there was a choice
_WITHOUT_FLOWS = ("few-vs-many", "flow-from-prior")


def datasets_of(name: str) -> tuple[str, ...]:
    """The data sets that a study of that name can be of; the first of them when none is given."""
    return tuple(dataset for dataset in BENCHMARKS if dataset in (TEXTS if name == "text" else IMAGES))


def record_image_study(
    name: str,
    *,
    dataset: str | None = None,
    seeds: Sequence[int] | None = None,
    baseline_seeds: Sequence[int] | None = None,
    protocol: str = "ours",
    device: str | torch.device = "cpu",
    data: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str] = "burnish-work",
    settings: ImageSettings | None = None,
    small: bool = False,
    earlier: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of a study and describes all of it: configuration, origin, and the results of every seed.

    A seed that fails is described under "failures", and the others go on.

    Args:
        name: one of `IMAGE_STUDIES`.
        dataset: one of `datasets_of(name)`, the first when not given.
        seeds: of the networks; those of the data set's tables when not given.
        baseline_seeds: of those for which VB and CSGHMC train networks from scratch; the first two when not given.
        protocol: "paper" for the paper's, defects included, "ours" for one without them.
        device: where networks are trained and posteriors fitted.
        data: folder with the data sets: see `load_images`.
        work: folder that keeps networks, draws and results of seeds, for this study and others, now and later.
        settings: other sizes than the paper's.
        small: made images and small sizes, to try it out.
        earlier: a record of the same study, to which seeds and baselines that it lacks are added; for correlation, one of
            image-calibration does as well.
        progress: whether to say on a terminal what is going on.
    """
    if earlier is not None and baseline_seeds is None:
        baseline_seeds = ()  # those it has stay
    chosen, compared, device = check_options(name, dataset, seeds, baseline_seeds, protocol, device, small)
    dataset = dataset or datasets_of(name)[0]
    if settings is None:
        settings = ImageSettings.small() if small else ImageSettings.usual(dataset, protocol)
    sizes: dict[str, Any] = finite(asdict(settings))
    common = {"dataset": dataset, "protocol": protocol, "made_images": small, **sizes}
    if earlier is not None:
        earlier = _check_earlier(earlier, name, common)
    known = {} if earlier is None else earlier["seeds"]
    source = data_source(dataset, protocol, data, small)
    setting = Setting(dataset, protocol, settings, source, Workspace(Path(work)), device, small)
    outside = setting.benchmark.outside if name == "ood" else ()
    needed = [*((dataset, split) for split in sorted(setting.splits)), *((what, "test") for what in sorted(outside))]
    for what, split in needed:  # before the work, which the lack of one would end
        setting.source(what, split)
    used = {} if small else {f"{what} {split}": describe(what, split, data) for what, split in needed}
    if earlier is not None and earlier["data"] != used:
        raise ValueError(f"`earlier` must be of the data {used}, got {earlier['data']}. Leave it out to make a record anew.")
    results = _Results(name, setting, known)
    _run(results, name, setting, chosen, compared, progress)
    if earlier is not None:
        chosen = tuple(sorted({*chosen, *earlier["config"]["seeds"]}))
        compared = tuple(sorted({*compared, *earlier["config"]["baseline_seeds"]}))
    config = {**common, "seeds": chosen, "baseline_seeds": compared}
    record = {"study": name, "version": VERSION, "config": config, **origin(device), "data": used}
    parts = {str(seed): results.parts[str(seed)] for seed in chosen if str(seed) in results.parts}
    # of all seeds, whenever they were made: without training, and without what other studies had left
    record["seconds"] = sum(part["seconds_in_all"] for part in parts.values())
    described: dict[str, Any] = finite({**record, "failures": results.failures, "seeds": parts})
    return described


def check_options(
    name: str,
    dataset: str | None = None,
    seeds: Sequence[int] | None = None,
    baseline_seeds: Sequence[int] | None = None,
    protocol: str = "ours",
    device: str | torch.device = "cpu",
    small: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...], torch.device]:
    """Refuses options of `record_image_study` that can be refused before any work; else all seeds, and the device."""
    check_choice("name", name, IMAGE_STUDIES)
    dataset = dataset or datasets_of(name)[0]
    check_choice("dataset", dataset, datasets_of(name))
    check_choice("protocol", protocol, PROTOCOLS)
    chosen = tuple((0, 1) if small else BENCHMARKS[dataset].seeds) if seeds is None else tuple(seeds)
    compared = chosen[: 1 if small else 2] if baseline_seeds is None else tuple(baseline_seeds)
    check_seeds(chosen)
    if not set(compared) <= set(chosen):
        raise ValueError(f"`baseline_seeds` must be among the seeds {list(chosen)}, got {list(compared)}. Leave others out.")
    if baseline_seeds and name not in WITH_BASELINES:
        raise ValueError(f"`baseline_seeds` must be left out for {name}, which has no baselines. Leave them out.")
    return chosen, compared if name in WITH_BASELINES else (), check_device(device)


class _Results:
    """Results of a study by seed: of an earlier record, of files, or made and put there."""

    def __init__(self, name: str, setting: Setting, earlier: Mapping[str, Any]) -> None:
        self.parts: dict[str, Any] = copy.deepcopy(dict(earlier))
        self.failures: dict[str, str] = {}
        self._name, self._setting = name, setting

    def missing(self, kind: str, seeds: Sequence[int]) -> tuple[int, ...]:
        """Those of the seeds that have no results yet; the kind is one of `BASELINES`, or nothing for posteriors."""
        return tuple(seed for seed in seeds if not self._known(kind, seed) and self._read(kind, seed) is None)

    def fail(self, kind: str, seed: int, reason: str) -> None:
        """What went wrong with a seed."""
        self.failures[f"{kind} {seed}".strip()] = reason

    def add(self, kind: str, seed: int, run: Callable[[], dict[str, Any]]) -> None:
        """The results of one seed, or what went wrong."""
        if self._known(kind, seed):
            return
        setting, place = self._setting, _part_name(self._name, self._setting, kind, seed)
        try:
            found = keep_part(setting.workspace, place, setting.config(seed), run, setting.device)
        except FAILURES as error:
            self.fail(kind, seed, f"{type(error).__name__}: {error}")
            return
        if not kind:
            self.parts[str(seed)] = found
        elif str(seed) in self.parts:  # one more row of the network with the same seed
            whole = self.parts[str(seed)]
            whole["rows"] |= found["rows"]
            whole.setdefault("baselines", {})[kind] = {key: value for key, value in found.items() if key != "rows"}

    def check_network(self, kind: str, seed: int, digest: str) -> None:
        """Refuses results of another network than the one that is there now."""
        part = self.parts.get(str(seed), {})
        found = (part.get("baselines", {}).get(kind) if kind else part) or self._read(kind, seed) or {}
        if found.get("network", digest) != digest:
            name = _part_name(self._name, self._setting, kind, seed)
            raise ValueError(
                f"`work` must hold the network that the results of {name} are of, {found['network']}, got {digest}. "
                "Delete the results, or work in another folder (`--work`)."
            )

    def _known(self, kind: str, seed: int) -> bool:
        part = self.parts.get(str(seed))
        return part is not None and (not kind or kind in part.get("baselines", {}))

    def _read(self, kind: str, seed: int) -> dict[str, Any] | None:
        place = _part_name(self._name, self._setting, kind, seed)
        return self._setting.workspace.read_part(place, self._setting.config(seed))


def _run(
    results: _Results, name: str, setting: Setting, seeds: Sequence[int], baseline_seeds: Sequence[int], progress: bool
) -> None:
    """Adds what is missing."""
    study = _module(name)
    lacking = results.missing("", seeds)
    if not all(_is_trained(setting, seed) for seed in lacking):  # posteriors of those that are may be there as well
        setting.check_memory()
    failed = train_missing(setting, setting.protocol, lacking, progress=progress)
    for seed, reason in failed.items():
        results.fail("", seed, reason)
    with Stages(name, show=progress) as stages:
        with stages.stage("networks"):
            trained = [seed for seed in seeds if seed in lacking or _is_trained(setting, seed)]
            problems = {seed: ImageProblem(setting, seed) for seed in trained if seed not in failed}
            for seed in problems:
                results.check_network("", seed, problems[seed].digest)
        if problems.keys() & set(lacking) and name not in _WITHOUT_FLOWS:
            with stages.stage("the paper's flows"), contextlib.suppress(*FAILURES):
                prepare(list(problems.values()))  # where that fails, each seed tries for itself
        with stages.stage("seeds", len(seeds)):
            for seed in stages.track([seed for seed in seeds if seed not in failed]):
                results.add("", seed, partial(_run_seed, study, problems, seed))
                problems.pop(seed, None)  # its features and its covariance may be gigabytes
    for kind in BASELINES if name in WITH_BASELINES else ():
        failed = train_missing(setting, kind, results.missing(kind, baseline_seeds), progress=progress)
        for seed in baseline_seeds:
            if seed in failed:
                results.fail(kind, seed, failed[seed])
                continue
            methods = NetworkMethods(setting, kind, seed)
            if setting.network(kind, seed).exists():
                results.check_network(kind, seed, methods.trained.digest)
            results.add(kind, seed, partial(_run_baseline, study, methods))


def _is_trained(setting: Setting, seed: int) -> bool:
    """Not so where all that is left of a seed is its results."""
    return setting.network(setting.protocol, seed).exists()


def _run_seed(study: Any, problems: Mapping[int, ImageProblem], seed: int) -> dict[str, Any]:
    found: dict[str, Any] = study.run_seed(LayerMethods(problems[seed]))
    return {"network": problems[seed].digest} | found


def _run_baseline(study: Any, methods: NetworkMethods) -> dict[str, Any]:
    found: dict[str, Any] = study.run_baseline(methods)
    return {"network": methods.trained.digest} | found


def _part_name(name: str, setting: Setting, kind: str, seed: int) -> str:
    return "-".join(part for part in (name, setting.dataset, setting.protocol, kind, str(seed)) if part)


def _check_earlier(earlier: Mapping[str, Any], name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record of this study that can be gone on with."""
    remedy = "Leave it out to make a record anew."
    if not _is_record(earlier):
        raise ValueError(f"`earlier` must be a record of an image study, got something else. {remedy}")
    study = "image-calibration" if name == "correlation" and earlier.get("study") == "image-calibration" else name
    wanted = {"study": study, "version": VERSION, **config}
    described = {"study": earlier.get("study"), "version": earlier.get("version"), **_SIZES_BEFORE, **earlier["config"]}
    for key, value in wanted.items():
        if described.get(key) != value:
            raise ValueError(f"`earlier` must have `{key}` {value}, got {described.get(key)}. {remedy}")
    if study == name:
        return earlier
    try:
        return correlation.from_calibration(earlier)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"`earlier` must have network, distances and NLLs of every seed, got none: {error}. {remedy}"
        ) from error


def _is_record(record: Any) -> bool:
    """Whether it has the parts that every record of an image study has."""
    if not isinstance(record, Mapping) or not all(
        isinstance(record.get(key), Mapping) for key in ("config", "data", "seeds")
    ):
        return False
    lists = (record["config"].get(key) for key in ("seeds", "baseline_seeds"))
    parts = record["seeds"].values()
    return all(isinstance(each, list) for each in lists) and all(
        isinstance(part, Mapping) and {"seconds_in_all", "origin"} < part.keys() for part in parts
    )


def _module(name: str) -> Any:
    return importlib.import_module(f"burnish.studies.{name.replace('-', '_')}")
