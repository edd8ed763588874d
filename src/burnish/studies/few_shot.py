"""A last layer fitted to few held-out points: where a Gaussian at the mode fails, and where refinement does not."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnish._checks import check_choice
from burnish.studies.claims import Claim, paired_interval
from burnish.studies.data import describe
from burnish.studies.few_shot_methods import (
    ADAPTED,
    METHODS,
    TARGETS,
    FewShotCase,
    Settings,
    few_points,
    make_target,
    run_case,
)
from burnish.studies.image_methods import LABELS, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, RECENTRED
from burnish.studies.image_problem import ImageProblem, Setting, train_missing
from burnish.studies.image_settings import ImageSettings
from burnish.studies.parts import SEEDS, check_device, check_seeds, gather_parts
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import finite, origin
from burnish.studies.sources import data_source
from burnish.studies.summaries import spread
from burnish.studies.workspace import VERSION, Workspace

__all__ = ["NEAR", "Settings", "by_count", "claims", "few_ratio", "record_few_shot", "summary"]

_STUDY, _PROTOCOL = "few-shot", "ours"  # whose held-out points are of the training set, and all test points are unseen
NEAR = 1.1  # and its inverse: ratios to HMC's own distance that count as one, as that of a network is known to a few percent


def record_few_shot(
    *,
    dataset: str,
    seeds: Sequence[int] | None = None,
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    work: str | os.PathLike[str] = "burnish-work",
    settings: Settings | None = None,
    image_settings: ImageSettings | None = None,
    small: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of the study and describes all of it; a part is a network, a number of points and a target.

    Args:
        dataset: of images or texts, one that has a network in the studies of these.
        seeds: of the networks, which are trained where they are missing; three when not given.
        device: where networks are trained and posteriors fitted.
        data: folder with the data sets: see `load_images`.
        work: folder that keeps networks and parts, for this study and others.
        settings: other sizes than the study's own.
        image_settings: of the networks, as in the image studies.
        small: made images and small sizes, to try it out.
        progress: whether to say on a terminal what is going on.
    """
    check_choice("dataset", dataset, BENCHMARKS)
    chosen = SEEDS[: 2 if small else 3] if seeds is None else tuple(seeds)
    check_seeds(chosen)
    place = check_device(device)
    settings = settings or (Settings.small() if small else Settings())
    image_settings = image_settings or (ImageSettings.small() if small else ImageSettings.usual(dataset, _PROTOCOL))
    source = data_source(dataset, _PROTOCOL, data, small)
    setting = Setting(dataset, _PROTOCOL, image_settings, source, Workspace(Path(work)), place, small)
    pool = len(setting.images["validation"])  # before networks are trained, which the lack of data would end
    counts = [count for count in settings.counts if count <= pool]
    if not counts:
        raise ValueError(f"`settings.counts` must have one of at most the {pool} held-out points. Pass smaller ones.")
    setting.check_memory()
    failed = train_missing(setting, _PROTOCOL, chosen, progress=progress)
    problems = {seed: ImageProblem(setting, seed) for seed in chosen if seed not in failed}
    cases = {
        f"{dataset}-{seed}-{count}-{kind.replace(' ', '-')}": (seed, count, kind)
        for seed in problems
        for count in counts
        for kind in TARGETS
    }

    def config(seed: int, count: int, kind: str) -> dict[str, Any]:
        sizes = asdict(settings) | {"counts": list(counts)}
        made = {"few_shot": sizes, "flow": "as of refine", "count": count, "target": kind}
        return finite({**problems[seed].config(), **made})  # type: ignore[no-any-return]

    def run(name: str) -> dict[str, Any]:
        seed, count, kind = cases[name]
        points = few_points(problems[seed], count)
        target = make_target(problems[seed], points, kind, settings.precision)
        found = run_case(FewShotCase(problems[seed], settings, points, kind, target))
        return {"seed": seed, "count": count, "kind": kind, **found}

    configs = {name: config(*case) for name, case in cases.items()}
    parts, failures = gather_parts(setting.workspace, _STUDY, configs, run, device=place, progress=progress)
    failures |= {str(seed): reason for seed, reason in failed.items()}
    used = {} if small else {f"{dataset} {split}": describe(dataset, split, data) for split in setting.splits}
    sizes = asdict(settings) | {"counts": counts}
    training = {key: getattr(image_settings, key) for key in ("num_epochs", "batch_size", "num_train")}
    described = {"dataset": dataset, "protocol": _PROTOCOL, "made_images": small, "seeds": chosen, **sizes, **training}
    record = {"study": _STUDY, "version": VERSION, "config": described, **origin(place), "data": used}
    # of all parts, whenever they were made, and without training
    record["seconds"] = sum(part["seconds_in_all"] for part in parts.values())
    networks = {str(seed): problem.training for seed, problem in problems.items()}
    whole: dict[str, Any] = finite({**record, "networks": networks, "failures": failures, "parts": parts})
    return whole


def by_count(record: Mapping[str, Any], kind: str) -> dict[int, list[Any]]:
    """The parts of one of `TARGETS`, of all networks, by number of points."""
    found: dict[int, list[Any]] = {}
    for part in sorted(record["parts"].values(), key=lambda part: (part["count"], part["seed"])):
        if part["kind"] == kind:
            found.setdefault(part["count"], []).append(part)
    return found


def few_ratio(parts: Sequence[Mapping[str, Any]], name: str) -> float:
    """By how many times few draws of a posterior are as far from HMC as few of HMC's own draws; mean over networks."""
    return statistics.fmean(part["rows"][name]["tv_few"] / part["rows"][HMC]["tv_few"] for part in parts)


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: NLL by few draws of every method for each target and number of points, and distances to HMC."""
    compared = (RECENTRED, FLOW, BURNISH)
    header = ["target, points", *(f"NLL: {LABELS.get(name, name)}" for name in METHODS)]
    header += [*(f"TV to HMC: {LABELS.get(name, name)}" for name in compared), "HMC to itself, at most"]
    rows = []
    for kind in TARGETS:
        for count, parts in by_count(record, kind).items():
            cells = [spread([part["rows"][name]["few"]["nll"] for part in parts], 4) for name in METHODS]
            cells += [spread([part["rows"][name]["tv"] for part in parts], 4) for name in compared]
            rows.append([f"{kind}, {count:,}", *cells, f"{max(part['judge']['largest_tv'] for part in parts):.4f}"])
    return header, rows


def claims(record: Mapping[str, Any]) -> list[Claim]:
    """Where a posterior predicts like HMC, and whether fitting few points costs anything against temperature scaling."""
    found = [
        measure(record, kind, name)
        for measure in (_as_far, _same_nll, _same_predictions)
        for kind in TARGETS
        for name in (RECENTRED, FLOW, BURNISH)
    ]
    label = LABELS.get(BURNISH, BURNISH)
    for count, parts in by_count(record, ADAPTED).items():
        gains = [part["rows"][BURNISH]["few"]["nll"] - part["rows"][TEMPERATURE]["few"]["nll"] for part in parts]
        statement = f"{ADAPTED}, {count:,} points: NLL of {label} cannot be told to be above temperature scaling's (95 %)"
        if len(gains) > 1:
            gap = paired_interval(gains)
            text = f"{gap.value:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})"
            found.append(Claim(statement, text, gap.low <= 0.0))
    converged = [part["rows"][HMC]["fit"]["nested_rhat"] for part in record["parts"].values()]
    found.append(Claim("HMC has converged", f"largest nested R-hat {max(converged):.4f}", max(converged) < 1.01))
    return found


def _as_far(record: Mapping[str, Any], kind: str, name: str) -> Claim:
    """Nearer than HMC's own is no better: draws that are too much alike are near to each other."""
    few = record["config"]["few"]
    ratios = {count: few_ratio(parts, name) for count, parts in by_count(record, kind).items()}
    what = f"{few} draws of {LABELS.get(name, name)} are as far from HMC as {few} of its own"
    texts = ", ".join(f"{count:,} points {ratio:.2f} times" for count, ratio in ratios.items())
    holds = all(1.0 / NEAR <= ratio <= NEAR for ratio in ratios.values())
    return Claim(f"{kind}: {what}, by total variation, within a tenth", texts, holds)


def _same_nll(record: Mapping[str, Any], kind: str, name: str) -> Claim:
    lines, holds = [], []
    for count, parts in by_count(record, kind).items():
        inside, gaps = 0, []
        for part in parts:
            row = part["rows"][name]
            inside += abs(row["nll_gap"]) <= part["judge"]["largest_nll_gap"]
            gaps.append(row["nll_gap"] / (row["many"]["nll"] - row["nll_gap"]))
        lines.append(f"{count:,} points {inside} of {len(parts)} ({100.0 * statistics.fmean(gaps):+.1f} %)")
        holds.append(inside == len(parts))
    what = f"NLL of {record['config']['num_draws']} draws of {LABELS.get(name, name)}"
    return Claim(f"{kind}: {what} is as near to HMC's as HMC's to its own (99 % range)", ", ".join(lines), all(holds))


def _same_predictions(record: Mapping[str, Any], kind: str, name: str) -> Claim:
    lines, holds = [], []
    for count, parts in by_count(record, kind).items():
        inside = sum(part["rows"][name]["tv"] <= part["judge"]["largest_tv"] for part in parts)
        lines.append(f"{count:,} points {inside} of {len(parts)}")
        holds.append(inside == len(parts))
    what = f"predictions of {record['config']['num_draws']} draws of {LABELS.get(name, name)}"
    return Claim(f"{kind}: {what} are as near to HMC's as HMC's to its own (99 % range)", ", ".join(lines), all(holds))
