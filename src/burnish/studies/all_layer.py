"""The paper's table of all layers: its protocol, recentring, refinement, subspaces and HMC on a small network.

A 784-50-10 ReLU network on Fashion-MNIST, whose 39,760 parameters have a prior of precision 30. Validation points (for
temperature scaling, and the prior of the paper's base) and test points are the paper's, 2,000 and 8,000 of the test set.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.studies.all_layer_hmc import compare, hmc_row, pool_runs
from burnish.studies.all_layer_methods import flow_rows, gaussian_rows
from burnish.studies.all_layer_paper import paper_rows
from burnish.studies.all_layer_problem import DATASET, Problem, Setting, train_missing
from burnish.studies.all_layer_settings import BASES, HMC, Settings, kinds
from burnish.studies.all_layer_tables import by_posterior, claims, subspace_summary, summary
from burnish.studies.architectures import make_network
from burnish.studies.data import describe
from burnish.studies.parts import SEEDS, check_device, check_seeds, gather_parts
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import finite, origin
from burnish.studies.training import Trained, read_trained
from burnish.studies.workspace import VERSION

__all__ = ["Settings", "by_posterior", "claims", "record_all_layer", "subspace_summary", "summary"]

_STUDY = "all-layer"
_ROOM = "predictions"  # of the workspace
_CPU = torch.device("cpu")


def record_all_layer(
    *,
    seeds: Sequence[int] | None = None,
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str] = "burnish-work",
    settings: Settings | None = None,
    small: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of the study and describes all of it; a part is a network and a kind of posteriors.

    Args:
        seeds: of the networks, which are trained where they are missing; three when not given.
        device: where networks are trained and posteriors fitted, but the paper's, which run on one core of a CPU.
        data: folder with the data set: see `load_images`.
        work: folder that keeps networks, parts, predictions and the state of HMC.
        settings: other sizes than those of the study.
        small: made images and small sizes, to try it out.
        progress: whether to say on a terminal what is going on.
    """
    chosen = SEEDS[: 2 if small else 3] if seeds is None else tuple(seeds)
    check_seeds(chosen)
    place = check_device(device)
    settings = settings or (Settings.small() if small else Settings())
    setting = Setting.of(settings, data, work, small)
    labels = setting.held_out[1].targets  # before networks are trained, which the lack of data would end
    failed = train_missing(setting, chosen, place, progress=progress)
    networks = {
        seed: read_trained(setting.network(seed), setting.recipe, seed=seed) for seed in chosen if seed not in failed
    }
    study = _Parts(setting, place, networks)
    parts, failures = study.gather(progress)
    judge = study.compare(parts, labels)
    failures |= {str(seed): reason for seed, reason in failed.items()}
    record = {"study": _STUDY, "version": VERSION, "config": _describe(setting, chosen), **origin(place)}
    record["data"] = {} if small else {f"{DATASET} {split}": describe(DATASET, split, data) for split in ("train", "test")}
    record["origins"] = _different(part["origin"] for part in parts.values())
    # of all parts, whenever they were made, and without training
    record["seconds"] = sum(part["seconds_in_all"] for part in parts.values())
    record["networks"] = {str(seed): _training(trained) for seed, trained in networks.items()}
    whole: dict[str, Any] = finite({**record, "failures": failures, "judge": judge, "parts": parts})
    return whole


@dataclass(frozen=True, eq=False)
class _Parts:
    """Makes the parts that are missing, and compares all with HMC."""

    setting: Setting
    device: torch.device
    networks: Mapping[int, Trained]
    _problems: dict[tuple[int, str], Problem] = field(default_factory=dict)

    def gather(self, progress: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """All parts by name, those of a network together, and what went wrong with others."""
        every = {f"{kind}-{seed}": (seed, kind) for seed in self.networks for kind in kinds(self.setting.settings)}
        found: dict[str, Any] = {}
        failures: dict[str, str] = {}
        for is_paper in (False, True):
            device = _CPU if is_paper else self.device
            configs = {name: self._config(*part) for name, part in every.items() if _is_paper(part[1]) == is_paper}
            with _threads(1 if is_paper else None):
                parts, failed = gather_parts(
                    self.setting.workspace,
                    _STUDY,
                    configs,
                    lambda name: self._run(name, *every[name]),
                    device=device,
                    progress=progress,
                )
            found |= parts
            failures |= failed
        return {name: found[name] for name in every if name in found}, failures

    def compare(self, parts: dict[str, Any], labels: Tensor) -> dict[str, Any] | None:
        """Puts distances to HMC into all rows, and says how far HMC's runs agree; nothing where there is none."""
        tensors = {name: self._predictions(name, part) for name, part in parts.items()}
        runs = [tensors[name] for name, part in parts.items() if part["kind"] == "hmc"]
        judge = pool_runs([{"probs": run[HMC], "followed": run["followed"]} for run in runs], labels) if runs else None
        for seed in self.networks:
            own = [name for name, part in parts.items() if part["seed"] == seed]
            rows = {key: row for name in own for key, row in parts[name]["rows"].items()}
            probs = {key: value for name in own for key, value in tensors[name].items()}
            compared = compare(rows, probs, judge, self.setting.settings)
            for name in own:
                parts[name]["rows"] = {key: compared[key] for key in parts[name]["rows"]}
        return None if judge is None else judge[1]

    def _run(self, name: str, seed: int, kind: str) -> dict[str, Any]:
        """A part: rows by posterior; predictive probabilities, which distances need, go into a file of their own."""
        problem = self._problem(seed, _CPU if _is_paper(kind) else self.device)
        with torch.no_grad():
            rows = _rows(problem, kind)
        tensors = {row["posterior"]: row.pop("probs") for row in rows}
        if kind == "hmc":
            tensors["followed"] = rows[0].pop("followed")
        self.setting.workspace.write_tensors(_ROOM, f"{_STUDY}-{name}", self._config(seed, kind), {}, tensors)
        by_name = {row.pop("posterior"): row for row in rows}
        return {"seed": seed, "kind": kind, "network": self.networks[seed].digest, "rows": by_name}

    def _predictions(self, name: str, part: Mapping[str, Any]) -> dict[str, Tensor]:
        place = f"{_STUDY}-{name}"
        found = self.setting.workspace.read_tensors(_ROOM, place, self._config(part["seed"], part["kind"]))
        if found is None:
            room = self.setting.workspace.folder / _ROOM
            raise ValueError(
                f"`work` must hold the predictions of the part {place}, got none in {room}. "
                "Delete that part, so that it is made again, or work in another folder (`--work`)."
            )
        return found[1]

    def _problem(self, seed: int, device: torch.device) -> Problem:
        """The last one that was asked for is kept: its parts follow each other."""
        key = seed, str(device)
        if key not in self._problems:
            self._problems.clear()
            self._problems[key] = Problem(self.setting, seed, device)
        return self._problems[key]

    def _config(self, seed: int, kind: str) -> dict[str, Any]:
        return self.setting.config(seed, kind, self.networks[seed].digest)


def _rows(problem: Problem, kind: str) -> list[dict[str, Any]]:
    if _is_paper(kind):
        base, _, length = kind.partition("-")
        return paper_rows(problem, base, int(length))
    if kind == "hmc":
        return [hmc_row(problem)]
    return {"flows": flow_rows, "gaussians": gaussian_rows}[kind](problem)


def _is_paper(kind: str) -> bool:
    return kind.partition("-")[0] in BASES


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many for torch: the paper's flows see one sample and 128 points a step, which more would but wait for."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _describe(setting: Setting, seeds: Sequence[int]) -> dict[str, Any]:
    network = make_network(setting.architecture, BENCHMARKS[DATASET].num_classes, 0)
    about = {"dataset": DATASET, "made_images": setting.made_images, "seeds": seeds, **asdict(setting.settings)}
    return about | {"num_parameters": sum(parameter.numel() for parameter in network.parameters())}


def _training(trained: Trained) -> dict[str, Any]:
    return {"seconds": trained.seconds, "together": trained.together, "origin": trained.origin}


def _different(origins: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each once, in the order in which they come."""
    found: list[dict[str, Any]] = []
    for each in origins:
        found += [] if each in found else [each]
    return found
