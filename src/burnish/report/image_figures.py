"""Figures of the image studies, each drawn from its record alone, in the style of the other figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from burnish._checks import check_choice
from burnish.report.image_curves import draw_few_vs_many, draw_flow_from_prior, draw_marginals, draw_shift
from burnish.report.image_panels import (
    BAND,
    BESIDE,
    PRINTED,
    Mark,
    Results,
    average,
    draw_dots,
    draw_printed,
    format_log,
    hollow,
    legend_outside,
    method_colour,
    method_panels,
    wide_figure,
)
from burnish.report.plots import _INK
from burnish.studies.data import DATASETS
from burnish.studies.image_methods import LABELS
from burnish.studies.image_posteriors import HMC
from burnish.studies.image_problem import BASELINES
from burnish.studies.ood import PRINTED_NAMES
from burnish.studies.summaries import printed_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_image_study"]

_Styles = dict[str, Mapping[str, Any]]
_DOT: Mapping[str, Any] = {"color": _INK, "marker": "o", "markersize": 5.0, "linestyle": "none"}
_SQUARE: Mapping[str, Any] = {"marker": "s", "markersize": 3.2}
_ARROW: Mapping[str, Any] = {"marker": "<", "markersize": 5.5, "clip_on": False}
_BEYOND: Mapping[str, Any] = {**_ARROW, "marker": ">"}
_ROOM = 0.6  # of the range of the last layer's NLLs, in which those of networks trained from scratch still have dots
_SCORES: _Styles = {  # beside the largest probability
    "entropy": {"marker": "|", "markersize": 6.0, "markeredgewidth": 1.1},
    "mutual information": {"marker": "x", "markersize": 3.6, "markeredgewidth": 1.0},
}
_MARKERS = "osD^v<>phX"
_WIDE = 8.0  # largest over smallest, beyond which an axis is logarithmic


def draw_image_study(record: Mapping[str, Any]) -> str:
    """The figure of an image study's record as SVG text."""
    figures: dict[str, Callable[[Results], str]] = {
        "image-calibration": _image_calibration,
        "ood": _ood,
        "shift": draw_shift,
        "few-vs-many": draw_few_vs_many,
        "flow-from-prior": draw_flow_from_prior,
        "marginals": draw_marginals,
        "correlation": _correlation,
        "text": _image_calibration,
    }
    check_choice("study", record["study"], figures)
    return figures[record["study"]](Results(record))


def _image_calibration(results: Results) -> str:
    """NLL, distance to HMC and calibration error of every method."""
    known = {key: _printed(results, key) for key in ("nll", "mmd", "ece")}
    entries: _Styles = {"mean ± standard error": _DOT}
    with wide_figure(results.heading, _height(results)) as (figure, svg):
        nll, distance, ece = method_panels(figure, results.names, 3)
        _draw_nll(nll, results.marks(lambda row: row["few"]["nll"]), known["nll"])
        nll.set_xlabel(f"NLL by {results.config['few']} draws")
        is_cut = _draw_distances(distance, results, known["mmd"])
        _draw_scores(ece, results.marks(lambda row: row["few"]["ece"], 100.0), known["ece"])
        ece.set_xlabel("ECE, %")
        if results.is_paper:
            marks = results.marks(lambda row: row["few"]["paper_ece"], 100.0)
            draw_dots(ece, marks, beside=BESIDE, **_SQUARE)
            entries["by the paper's ECE"] = {**_DOT, **_SQUARE}
        if results.is_comparable:
            entries[PRINTED] = hollow(_INK)
        entries["HMC against HMC"] = {"facecolor": BAND}
        legend_outside(figure, entries | ({"below the axis": {**_DOT, **_ARROW}} if is_cut else {}), ncols=5)
    return svg()


def _printed(results: Results, key: str) -> dict[str, Mark]:
    dataset, shown = results.config["dataset"], results.is_comparable
    known = {name: printed_score(dataset, name, key) if shown else None for name in results.names}
    return {name: (value.mean, value.stderr or 0.0) if value else (math.nan, 0.0) for name, value in known.items()}


def _ood(results: Results) -> str:
    """FPR95 of every method on each set outside, by the largest probability and, smaller, by other scores."""
    outside = list(results.parts[0]["sizes"])
    entries: _Styles = {"largest probability ± standard error": _DOT}
    entries |= {score: {**_DOT, **style} for score, style in _SCORES.items()}
    with wide_figure(results.heading, _height(results)) as (figure, svg):
        for axes, key in zip(method_panels(figure, results.names, len(outside)), outside, strict=True):
            title = PRINTED_NAMES.get(key, key)
            known = {name: results.printed("ood_fpr95_detail", title, name) for name in results.names}
            if any(math.isfinite(mean) for mean, _ in known.values()):
                entries[PRINTED] = hollow(_INK)
            for score, style in _SCORES.items():
                marks = results.marks(_rate(key, score), 100.0)
                draw_dots(axes, {name: (mean, 0.0) for name, (mean, _) in marks.items()}, **style)
            _draw_scores(axes, results.marks(_rate(key, "confidence"), 100.0), known)
            axes.set(title=DATASETS[key].title, xlabel="FPR95, %")
        legend_outside(figure, entries)
    return svg()


def _rate(outside: str, score: str) -> Callable[[Any], float | None]:
    return lambda row: row[outside].get(score, {}).get("fpr95")


def _height(results: Results) -> float:
    return 1.35 + 0.25 * len(results.names)


def _draw_scores(axes: "Axes", marks: Mapping[str, Mark], known: Mapping[str, Mark]) -> None:
    """Dots, with those of the paper, and a line where HMC is."""
    axes.axvline(marks[HMC][0], color=method_colour(HMC), linewidth=0.8, zorder=1.5)
    draw_printed(axes, known)
    draw_dots(axes, marks)
    if _are_wide([mean for mean, _ in marks.values()]):
        axes.set_xscale("log")
        format_log(axes.xaxis)
    else:
        axes.locator_params(axis="x", nbins=4)


def _draw_nll(axes: "Axes", marks: Mapping[str, Mark], known: Mapping[str, Mark]) -> None:
    """On an axis for methods of the last layer; arrows stand for other networks beyond it, which would take its room."""
    means = [part[name][0] for part in (marks, known) for name in marks if name.lower() not in BASELINES]
    means = [mean for mean in means if math.isfinite(mean)]
    high = max(means) + _ROOM * (max(means) - min(means)) if means else math.inf
    inside = [{name: mark for name, mark in part.items() if not mark[0] > high} for part in (marks, known)]
    nowhere = dict.fromkeys(marks, (math.nan, 0.0))  # which keep the rows of the others
    _draw_scores(axes, nowhere | inside[0], nowhere | inside[1])
    draw_dots(axes, {name: (high if mean > high else math.nan, 0.0) for name, (mean, _) in marks.items()}, **_BEYOND)
    for row, (mean, _) in enumerate(marks.values()):
        if mean > high:
            axes.annotate(
                f"{mean:.2f}", (high, row), (-6.0, 0.0), textcoords="offset points", ha="right", va="center", fontsize=7.0
            )


def _draw_distances(axes: "Axes", results: Results, known: Mapping[str, Mark]) -> bool:
    """MMD on a logarithmic axis, over the range that HMC has to itself; whether arrows stand for what lies below it."""
    column = "mmd_paper" if results.is_paper else "mmd"
    marks = results.marks(lambda row: row.get(column))
    floor, _ = marks[HMC] if results.is_paper else average(part["judge"]["range"][1] for part in results.parts)
    axes.set_xlabel("MMD to HMC, biased" if results.is_paper else "MMD to HMC")
    shown = [mean for mean, _ in (*marks.values(), *known.values(), (floor, 0.0)) if mean > 0.0]
    if not shown:
        return False
    low = max(min(shown) / 2.0, floor / 10.0 if floor > 0.0 else 0.0)
    axes.set(xscale="log", xlim=(low, 2.0 * max(shown)))
    axes.axvspan(low, max(low, floor), color=BAND, linewidth=0, zorder=0.5)
    draw_printed(axes, known)
    draw_dots(axes, marks)
    draw_dots(axes, {name: (low if mean < low else math.nan, 0.0) for name, (mean, _) in marks.items()}, **_ARROW)
    format_log(axes.xaxis)
    return any(mean < low for mean, _ in marks.values())


def _correlation(results: Results) -> str:
    """Distance to HMC against NLL: large the means over seeds, small the seeds, hollow what the paper prints."""
    own = [results.marks(itemgetter(key)) for key in ("mmd", "nll")]
    known = [_printed(results, key) for key in ("mmd", "nll")]
    entries: _Styles = {}
    points: list[Mark] = []
    level: dict[str, Any] = {"color": method_colour(HMC), "linewidth": 0.9}
    with wide_figure(results.heading, 3.9) as (figure, svg):
        axes = figure.subplots()
        for number, name in enumerate(results.names):
            marker = _MARKERS[number % len(_MARKERS)]
            look: dict[str, Any] = {"color": method_colour(name), "marker": marker, "linestyle": "none"}
            # large ones below small ones: where methods coincide, all of them remain visible
            size = {
                "markersize": 9.5 - 4.0 * number / len(results.names),
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
            }
            entries[LABELS.get(name, name)] = look | size
            seeds = [(row["mmd"], row["nll"]) for row in results.rows(name) if None not in row.values()]
            for point in seeds:
                axes.plot(*point, **look, markersize=3.0, alpha=0.55, zorder=2)
            (x, y), (known_x, known_y) = ([marks[name][0] for marks in both] for both in (own, known))
            axes.plot(x, y, **entries[LABELS.get(name, name)], zorder=3)
            axes.plot(known_x, known_y, **hollow(look["color"]) | {"marker": marker, "markersize": 6.0}, zorder=2.5)
            points += [*seeds, (x, y), (known_x, known_y)]
        axes.axhline(average(part["hmc_nll"] for part in results.parts)[0], **level)
        _scale_both(axes, [point for point in points if all(map(math.isfinite, point))])
        axes.set(xlabel="MMD to HMC, biased" if results.is_paper else "MMD to HMC", ylabel="NLL")
        entries |= {"NLL of HMC": level, "a seed": {**_DOT, "markersize": 3.0}}
        legend_outside(
            figure, entries | ({PRINTED: hollow(_INK)} if results.is_comparable else {}), "outside right center", 1
        )
    return svg()


def _scale_both(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    """MMD on a logarithmic axis, which is linear below the largest of negative ones; NLL on one where it must be."""
    from matplotlib.ticker import FuncFormatter

    distances, nll = zip(*points, strict=True) if points else ((), ())
    if _are_wide(nll):
        axes.set_yscale("log")
        format_log(axes.yaxis)
    if not distances or max(distances) <= 0.0:
        return
    if min(distances) > 0.0:
        axes.set(xscale="log", xlim=(min(distances) / 1.6, 1.6 * max(distances)))
        format_log(axes.xaxis)
        return
    low, high = 1.6 * min(distances), 1.6 * max(distances)
    threshold = 10.0 ** math.ceil(math.log10(max(-low, 1e-4 * high)))
    axes.set_xscale("symlog", linthresh=threshold, linscale=0.4)
    axes.set_xlim(min(low, -0.2 * threshold), max(high, threshold))
    powers = (threshold * 10.0**k for k in range(5))
    axes.set_xticks([0.0, *(power for power in powers if power <= high)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()


def _are_wide(values: Sequence[float]) -> bool:
    """Whether they are too far apart for a linear axis."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and max(known) > _WIDE * min(known) > 0.0
