"""Networks on small tables of the UCI collection: burnish against the network, temperature, dropout and ensembles.

Test log-likelihoods over many splits. Splits overlap, so differences on them are not independent and plain intervals would
be too narrow; those here are widened after Nadeau and Bengio (2003).
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from burnish._checks import check_at_least, check_choice
from burnish.noise import make_generator
from burnish.studies.data.tables import (
    TABLES,
    Table,
    describe_table,
    load_table,
    split_rows,
    stratified_splits,
)
from burnish.studies.parts import gather_parts
from burnish.studies.records import finite, origin
from burnish.studies.summaries import spread
from burnish.studies.tabular_methods import (
    ALL_LAYERS,
    DROPOUT,
    LAPLACE,
    METHODS,
    MODE,
    NETWORK,
    REFINE,
    run_methods,
)
from burnish.studies.tabular_networks import Training
from burnish.studies.tabular_problem import Problem
from burnish.studies.workspace import VERSION, Workspace

__all__ = ["MADE", "Duel", "Settings", "at_ends", "difference", "duels", "made_table", "record_tabular", "summary"]

MADE = ("made classes", "made numbers")
# methods, what they choose by the validation rows, and from which sizes
_CHOICES = (
    (NETWORK, "weight_decay", "weight_decays"),
    (DROPOUT, "dropout", "dropouts"),
    (LAPLACE, "precision", "layer_precisions"),
    (MODE, "precision", "precisions"),
    (ALL_LAYERS, "precision", "precisions"),
)
_WIDE = ("protein",)  # sets whose networks have twice the units, as is usual


@dataclass(frozen=True)
class Settings:
    """Sizes of the study."""

    num_hidden: int = 50
    num_members: int = 5
    """Of an ensemble."""
    weight_decays: tuple[float, ...] = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0)
    """Of the networks, that the validation rows choose from; ensembles and networks with dropout have the same."""
    dropouts: tuple[float, ...] = (0.0, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5)
    num_draws: int = 100
    layer_precisions: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
    """Of priors of the last layer that the validation rows choose from; each costs next to nothing."""
    precisions: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    """The same for the modes of all layers."""
    search_steps: int = 100
    """Towards the mode of all layers."""
    flow_steps: int = 200
    max_splits: int = 20
    """Of each data set: the usual number, fewer where fewer are usual."""
    seed: int = 0
    training: Training = field(default_factory=Training)

    @classmethod
    def small(cls) -> "Settings":
        """For trying the study out on made tables."""
        training = Training(batch_size=32, num_epochs=5, min_steps=60, max_steps=60)
        return cls(8, 2, (0.01, 0.1), (0.01, 0.1), 10, (1.0, 10.0), (1.0, 10.0), 20, 30, max_splits=2, training=training)


@dataclass(frozen=True)
class Duel:
    """On how many data sets a method is better than a rival, as good, and worse; sets that lack one of them are left out."""

    method: str
    rival: str
    wins: int
    ties: int
    losses: int


def record_tabular(
    *,
    datasets: Sequence[str] | None = None,
    num_splits: int | None = None,
    data: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str],
    settings: Settings | None = None,
    small: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of the study and describes all of it: configuration, origin, and the results of every data set.

    Args:
        datasets: of `TABLES`, or of `MADE` with `small`; all of them when not given.
        num_splits: of each data set, the first ones; those of the settings when not given, or two with `small`.
        data: folder with the packed files: see `load_table`.
        work: folder that keeps the results of each data set.
        settings: other sizes than the study's own.
        small: made tables and small sizes, to try it out.
        progress: whether to say on a terminal what is going on.
    """
    known = MADE if small else TABLES
    names = tuple(known if datasets is None else datasets)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"`datasets` must be names of data sets, each once, got {names}. Leave it out for all of them.")
    for name in names:
        check_choice("datasets", name, known)
    settings = settings or (Settings.small() if small else Settings())
    num_splits = settings.max_splits if num_splits is None else num_splits
    check_at_least("num_splits", num_splits, 2, "One split has no spread.")
    source = cache(made_table if small else lambda name: load_table(name, data))
    used = {name: "made" if small else describe_table(name, data) for name in names}  # refused before any work
    sizes: dict[str, Any] = finite(asdict(settings))
    common = {"num_splits": num_splits, "made_tables": small, **sizes}
    device = torch.device("cpu")
    parts, failures = gather_parts(
        Workspace(Path(work)),
        "tabular",
        {name: {"dataset": name, "data": used[name], **common} for name in names},
        lambda name: _run_table(source(name), num_splits, settings),
        device=device,
        progress=progress,
    )
    record = {"study": "tabular", "version": VERSION, "config": {"datasets": names, **common}, **origin(device)}
    record |= {"data": used, "seconds": sum(part["seconds_in_all"] for part in parts.values())}
    described: dict[str, Any] = finite({**record, "failures": failures, "parts": parts})
    return described


def _run_table(table: Table, num_splits: int, settings: Settings) -> dict[str, Any]:
    rows = split_rows(table, num_splits)
    hidden = settings.num_hidden * (2 if table.name in _WIDE else 1)
    problem = Problem(
        rows=rows,
        num_classes=table.num_classes,
        num_hidden=hidden,
        training=settings.training,
        weight_decays=settings.weight_decays,
        num_members=settings.num_members,
        dropouts=settings.dropouts,
        num_draws=settings.num_draws,
        layer_precisions=settings.layer_precisions,
        precisions=settings.precisions,
        search_steps=settings.search_steps,
        flow_steps=settings.flow_steps,
        seed=settings.seed,
    )
    sizes = {name: getattr(rows, name)[1].shape[1] for name in ("train", "validation", "test")}
    facts = {"kind": "regression" if table.num_classes is None else "classification", "sizes": sizes, "hidden": hidden}
    return {**facts, "inputs": rows.train[0].shape[-1], "rows": run_methods(problem)}


def made_table(name: str) -> Table:
    """A table in place of a real one, the same at every call: two overlapping classes, or a curve under noise."""
    generator = make_generator(MADE.index(name))
    inputs = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    inputs[:, 2] = torch.randint(3, (200,), generator=generator).double()
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    curve = (2.0 * inputs[:, 0]).sin() + inputs[:, 1] + 0.5 * (inputs[:, 2] == 1)
    categorical = torch.tensor([False, False, True])
    if name == MADE[0]:
        labels = (curve + noise > 0).long()
        return Table(name, inputs, labels, categorical, stratified_splits(labels, 20, generator=generator), 2)
    tests = torch.stack([torch.randperm(200, generator=generator)[:20] for _ in range(20)])
    return Table(name, inputs, 3.0 * curve + 0.6 * noise, categorical, tests)


def difference(part: Mapping[str, Any], method: str, rival: str) -> tuple[float, float] | None:
    """Mean over splits of the test log-likelihood of a method less its rival's, and half of its 95 % interval.

    By the corrected variance of Nadeau and Bengio: training sets of splits overlap, so 1/n alone would be too small. None
    where a method is not there or has no finite likelihood.
    """
    scores = [part["rows"].get(name, {}).get("log_likelihood") for name in (method, rival)]
    if any(values is None or None in values for values in scores):
        return None
    gains = [one - other for one, other in zip(*scores, strict=True)]
    sizes, count = part["sizes"], len(gains)
    share = 1.0 / count + sizes["test"] / (sizes["train"] + sizes["validation"])
    return statistics.fmean(gains), _quantile(count - 1) * math.sqrt(share * statistics.variance(gains))


def duels(record: Mapping[str, Any]) -> list[Duel]:
    """Wins, ties and losses of `burnish.refine` and of burnish on all layers against each rival, over data sets.

    A win is a paired difference of test log-likelihoods whose 95 % interval is above zero, a loss one below it.
    """
    found = []
    for method in (REFINE, ALL_LAYERS):
        for rival in METHODS:
            pairs = [difference(part, method, rival) for part in record["parts"].values()]
            known = [pair for pair in pairs if pair is not None]
            if rival == method or not known:
                continue
            wins, losses = (sum(sign * mean > half for mean, half in known) for sign in (1.0, -1.0))
            found.append(Duel(method, rival, wins, len(known) - wins - losses, losses))
    return found


def at_ends(record: Mapping[str, Any]) -> list[str]:
    """Data sets on most of whose splits a method has chosen the end of its grid, so that it might want to go further."""
    found = []
    for method, chosen, grid in _CHOICES:
        sizes = record["config"][grid]
        ends: dict[float, list[str]] = {end: [] for end in (min(sizes), max(sizes)) if end > 0.0}
        for name, part in record["parts"].items():
            values = part["rows"].get(method, {}).get(chosen, [])
            for end, names in ends.items():
                if 2 * sum(math.isclose(value, end, rel_tol=1e-6) for value in values) > len(values):  # float32 among them
                    names.append(name.replace("_", " "))
        for end, names in ends.items():
            if names:
                found.append(f"{method}: {chosen.replace('_', ' ')} {end:g} on {', '.join(names)}")
    return found


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: test log-likelihoods, mean ± standard error over splits, the best of a row with a star; duels."""
    parts = record["parts"]
    order = sorted(parts, key=lambda name: parts[name]["kind"] != "classification")
    rows = []
    for name in order:
        found = {
            method: parts[name]["rows"][method]["log_likelihood"] for method in METHODS if method in parts[name]["rows"]
        }
        means = {method: statistics.fmean(values) for method, values in found.items() if None not in values}
        best = max(means, key=lambda method: means[method], default=None)
        cells = [spread(found.get(method, []), 3) + ("*" if method == best else "") for method in METHODS]
        rows.append([name.replace("_", " "), *cells])
    known = {(duel.method, duel.rival): duel for duel in duels(record)}
    for method in (REFINE, ALL_LAYERS):
        found_duels = [known.get((method, rival)) for rival in METHODS]
        cells = ["" if duel is None else f"{duel.wins} / {duel.ties} / {duel.losses}" for duel in found_duels]
        rows.append([f"{method}: wins / ties / losses", *cells])
    return ["test log-likelihood", *METHODS], rows


def _quantile(freedom: int) -> float:
    """Of Student's distribution, for 95 % around zero."""
    from scipy.stats import t  # type: ignore[import-untyped]

    return float(t.ppf(0.975, freedom))
