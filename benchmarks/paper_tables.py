"""Tables of the paper in its order: the printed value, ours by its protocol, and ours without its defects."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from burnish.studies.data import DATASETS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, LA, RECENTRED, REFINE, flow_name
from burnish.studies.ood import PRINTED_NAMES
from burnish.studies.printed import printed
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS
from burnish.studies.records import summarise
from burnish.studies.summaries import method_rows, printed_score, printed_text, spread
from committed import has_record, read_record

__all__ = ["PAPER_TABLES"]

Table = tuple[list[str], list[list[str]]]
_Groups = dict[str, dict[str, list[str]]]  # cells of columns, by data set and by what they are of

_FLOWS = tuple(flow_name(length) for length in (1, 5, 10, 30))
_METHODS = (MAP, TEMPERATURE, LA, *_FLOWS, RECENTRED, FLOW, BURNISH, REFINE, HMC, "VB", "CSGHMC")
_LABELS = [LABELS.get(method, method) for method in _METHODS]
_IMAGES = ("fashion-mnist", "cifar-10", "cifar-100")
_TEXTS = ("20-newsgroups", "sst-binary", "sst-fine", "trec-coarse", "trec-fine")
_SCORES = {
    "mmd": (("mmd_paper", "mmd"), (3, 5), 1.0),
    "nll": (("nll", "nll"), (4, 4), 1.0),
    "ece": (("paper_ece", "ece"), (1, 1), 100.0),
    "accuracy": (("accuracy", "accuracy"), (1, 1), 100.0),
    "brier": (("brier", "brier"), (4, 4), 1.0),
}
"""Of each printed score its names in records of both protocols, digits, and what records have to be multiplied by."""


def scores(study: str, datasets: tuple[str, ...], score: str) -> Table:
    """One score of every method on several data sets; a column without values is left out."""
    groups: _Groups = {}
    for dataset in datasets:
        shown = [printed_score(dataset, method, score) for method in _METHODS]
        columns = {"printed": ["" if value is None else f"{value.mean:g}" for value in shown]}
        keys, digits, scale = _SCORES[score]
        for protocol, key, places in zip(PROTOCOLS, keys, digits, strict=True):
            parts = _parts(f"{study}-{dataset}-{protocol}")
            columns[f"`{protocol}`"] = [spread(_values(parts, method, key), places, scale) for method in _METHODS]
        groups[BENCHMARKS[dataset].title] = columns
    return _laid_out("method", _LABELS, groups)


def ood() -> Table:
    """FPR95 by the largest probability, averaged over the other data sets, as the paper's table has it."""
    groups: _Groups = {}
    for dataset in _IMAGES:
        title = BENCHMARKS[dataset].title
        groups[title] = {"printed": [printed_text("ood_fpr95_average", method, title) for method in _METHODS]}
        for protocol in PROTOCOLS:
            parts = _parts(f"ood-{dataset}-{protocol}")
            cells = []
            for method in _METHODS:
                rows = method_rows(parts, method)
                rates = [statistics.fmean(row[name]["confidence"]["fpr95"] for name in parts[0]["sizes"]) for row in rows]
                cells.append(spread(rates, 1, 100.0))
            groups[title][f"`{protocol}`"] = cells
    return _laid_out("FPR95, %", _LABELS, groups)


def few_vs_many(score: str) -> Table:
    """NLL or the paper's calibration error of many draws of LA, of few and all of HMC, and of none."""
    digits, scale = (4, 1.0) if score == "nll" else (1, 100.0)
    found = {dataset: [_parts(f"few-vs-many-{dataset}-{protocol}") for protocol in PROTOCOLS] for dataset in _IMAGES[:2]}
    methods = list(found["fashion-mnist"][0][0]["rows"])
    groups: _Groups = {}
    for dataset, both in found.items():
        title = BENCHMARKS[dataset].title
        groups[title] = {"printed": [printed_text("few_vs_many_samples", title, method, score) for method in methods]}
        for protocol, key, parts in zip(PROTOCOLS, _SCORES[score][0], both, strict=True):
            cells = [spread([row[key] for row in method_rows(parts, method)], digits, scale) for method in methods]
            groups[title][f"`{protocol}`"] = cells
    return _laid_out("method", methods, groups)


def mpa() -> Table:
    """Ten thousand draws of LA and the multi-class probit approximation of the same posterior, by both scores."""
    table = []
    for score, what in (("nll", "NLL"), ("ece", "ECE, %")):
        header, rows = few_vs_many(score)
        table += [[f"{row[0]}: {what}", *row[1:]] for row in rows if row[0] in ("LA S=10000", "MPA")]
    return header, table


def ood_detail(dataset: str) -> Table:
    """FPR95 by the largest probability, one other data set at a time."""
    title = BENCHMARKS[dataset].title
    found = {protocol: _parts(f"ood-{dataset}-{protocol}") for protocol in PROTOCOLS}
    groups: _Groups = {}
    for key in next(parts for parts in found.values() if parts)[0]["sizes"]:
        known = PRINTED_NAMES.get(key, key)
        columns = {"printed": [printed_text("ood_fpr95_detail", title, known, method) for method in _METHODS]}
        for protocol, parts in found.items():
            rates = [[row[key]["confidence"]["fpr95"] for row in method_rows(parts, method)] for method in _METHODS]
            columns[f"`{protocol}`"] = [spread(values, 1, 100.0) for values in rates]
        groups[DATASETS[key].title] = columns
    return _laid_out("FPR95, %", _LABELS, groups)


def all_layer() -> Table:
    """NLL of the paper's flows over all layers, by both priors that its base may have, and what comes nearest to HMC."""
    _, rows = summarise(read_record("all-layer"))
    nll = {row[0]: row[1] for row in rows}
    table = []
    for method, name in ((LA, "Laplace"), *((flow_name(length), f"{length} radial") for length in (1, 5, 10, 30))):
        known = printed_text("calibration_all_layer_fmnist", method, "nll")
        table.append([method, known, nll[f"paper: {name}"], nll[f"paper, target's prior: {name}"], ""])
    for name in (
        "network",
        "Laplace, Kronecker, recentred",
        "refined, Kronecker, recentred",
        "refined, Kronecker, then HMC",
    ):
        table.append([name, "", "", "", nll[name]])
    table.append([HMC, printed_text("calibration_all_layer_fmnist", HMC, "nll"), "", "", nll[HMC]])
    return ["NLL", "printed", "`paper`", "`paper`, the target's prior", "`ours`"], table


def flow_from_prior() -> Table:
    """NLL against the length of flows from a standard normal and from LA; the paper has it for CIFAR-10."""
    rows = []
    lengths: list[int] = []
    for start in ("N(0,I)+NF", "LA+NF"):
        known = printed("flow_from_prior_vs_from_laplace_cifar10_nll", start)
        assert isinstance(known, list)
        rows.append([f"{start}, CIFAR-10: printed", *(f"{value:.4f}" for value in known)])
        for dataset in _IMAGES[:2]:
            for protocol in PROTOCOLS:
                parts = _parts(f"flow-from-prior-{dataset}-{protocol}")
                if parts:
                    lengths = parts[0]["lengths"]
                    by_length = zip(*(part["nll"][start] for part in parts), strict=True)
                    label = f"{start}, {BENCHMARKS[dataset].title}: `{protocol}`"
                    rows.append([label, *(spread(values, 4) for values in by_length)])
    return ["NLL by layers", *map(str, lengths)], rows


def shift() -> Table:
    """NLL of corrupted CIFAR-10 against the level."""
    levels = printed("shift_corrupted_cifar10_nll", "intensity")
    assert isinstance(levels, list)
    both = {protocol: _parts(f"shift-cifar-10-{protocol}") for protocol in PROTOCOLS}
    rows = []
    shown = (MAP, TEMPERATURE, LA, flow_name(1), flow_name(5), flow_name(30), RECENTRED, FLOW, REFINE, HMC)
    for method in shown:
        known = printed("shift_corrupted_cifar10_nll", method)
        label = LABELS.get(method, method)
        if isinstance(known, list):
            rows.append([f"{label}: printed", *(f"{value:.3f}" for value in known)])
        for protocol, parts in both.items():
            found = [row["nll"] for row in method_rows(parts, method)]
            if found:
                rows.append([f"{label}: `{protocol}`", *(spread(values, 3) for values in zip(*found, strict=True))])
    return ["NLL by level", *(f"{level:g}" for level in levels)], rows


def marginals() -> Table:
    """How far single weights are from HMC's on average: the paper has pictures alone."""
    groups: _Groups = {}
    for dataset in _IMAGES:
        for protocol in PROTOCOLS:
            parts = _parts(f"marginals-{dataset}-{protocol}")
            cells = [spread([row["ks"] for row in method_rows(parts, method)], 3) for method in _METHODS]
            groups.setdefault(BENCHMARKS[dataset].title, {})[f"`{protocol}`"] = cells
    return _laid_out("method", _LABELS, groups)


def _parts(name: str) -> list[Any]:
    """What a record knows of every network; nothing where there is no record."""
    return list(read_record(name)["seeds"].values()) if has_record(name) else []


def _values(parts: list[Any], method: str, key: str) -> list[float | None]:
    flat = [row | row["few"] for row in method_rows(parts, method)]
    return [row[key] for row in flat if key in row]


def _laid_out(corner: str, labels: Sequence[str], groups: _Groups) -> Table:
    """Columns of every data set side by side, without those and without rows that have nothing."""
    header, columns = [corner], []
    for title, group in groups.items():
        filled = {kind: cells for kind, cells in group.items() if any(cells)}
        header += [kind if position else f"{title}: {kind}" for position, kind in enumerate(filled)]
        columns += filled.values()
    rows = [[label, *(cells[i] for cells in columns)] for i, label in enumerate(labels)]
    return header, [row for row in rows if any(row[1:])]


PAPER_TABLES: dict[str, Callable[[], Table]] = {
    **{f"paper-images-{score}": partial(scores, "image-calibration", _IMAGES, score) for score in _SCORES},
    **{f"paper-texts-{score}": partial(scores, "text", _TEXTS, score) for score in ("mmd", "nll")},
    **{f"paper-few-vs-many-{score}": partial(few_vs_many, score) for score in ("nll", "ece")},
    "paper-mpa": mpa,
    "paper-ood": ood,
    **{f"paper-ood-{dataset}": partial(ood_detail, dataset) for dataset in _IMAGES},
    "paper-all-layer": all_layer,
    "paper-flow-from-prior": flow_from_prior,
    "paper-shift": shift,
    "paper-marginals": marginals,
}
