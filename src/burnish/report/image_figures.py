"""Figures of the image studies, each drawn from its record alone, in the style of the other figures."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from burnish._checks import check_choice
from burnish.report.image_panels import (
    BAND,
    PRINTED,
    Mark,
    Results,
    average,
    draw_below,
    draw_curve,
    draw_dots,
    format_log,
    hollow,
    legend_below,
    line_style,
    method_colour,
    method_panels,
    wide_figure,
)
from burnish.report.plots import _INK
from burnish.studies.data import DATASETS
from burnish.studies.flow_from_prior import STARTS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, HMC, LA, REFINE
from burnish.studies.ood import _PRINTED as PRINTED_SETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_image_study"]

_ROW = 0.25  # inches for a method
_DOT: Mapping[str, Any] = {"color": _INK, "marker": "o", "markersize": 5.0, "linestyle": "none"}
_LEVEL: Mapping[str, Any] = {"linewidth": 1.3}
_WIDE_RANGE = 4.0  # largest over smallest, beyond which an axis is logarithmic


def draw_image_study(record: Mapping[str, Any]) -> str:
    """The figure of an image study's record as SVG text."""
    figures: dict[str, Callable[[Results], str]] = {
        "image-calibration": _image_calibration,
        "ood": _ood,
        "shift": _shift,
        "few-vs-many": _few_vs_many,
        "flow-from-prior": _flow_from_prior,
        "marginals": _marginals,
        "correlation": _correlation,
    }
    check_choice("study", record["study"], figures)
    return figures[record["study"]](Results(record))


def _image_calibration(results: Results) -> str:
    """NLL, distance to HMC and calibration error of every method."""
    table = "calibration_last_layer"
    known = {key: {name: results.printed(table, name, key) for name in results.names} for key in ("nll", "mmd", "ece")}
    with wide_figure(results.heading, 1.35 + _ROW * len(results.names)) as (figure, svg):
        nll, distance, ece = method_panels(figure, results.names, 3)
        _draw_score(nll, results.marks(lambda row: row["few"]["nll"]), known["nll"])
        _spread_axis(nll)
        nll.set_xlabel(f"NLL, {results.config['few']} draws")
        _draw_distance(distance, results, known["mmd"])
        own = results.marks(lambda row: _percent(row["few"]["ece"]))
        _draw_score(ece, own, known["ece"])
        entries: dict[str, Mapping[str, Any]] = {"mean ± standard error": _DOT}
        if results.is_paper:
            square = {"marker": "s", "markersize": 3.2}
            draw_dots(ece, results.marks(lambda row: _percent(row["few"]["paper_ece"])), below=True, **square)
            entries |= {"the same by the paper's ECE": {**_DOT, **square}, PRINTED: hollow(_INK)}
        ece.set_xlabel("ECE, %")
        entries["HMC against HMC"] = {"facecolor": BAND}
        legend_below(figure, nll, entries)
    return svg()


def _draw_score(axes: "Axes", marks: Mapping[str, Mark], known: Mapping[str, Mark]) -> None:
    """Dots, those of the paper a little lower, and a line where HMC is."""
    axes.axvline(marks[HMC][0], color=method_colour(HMC), linewidth=0.8, zorder=1.5)
    draw_dots(axes, known, below=True, label=PRINTED)
    draw_dots(axes, marks)
    axes.locator_params(axis="x", nbins=4)


def _draw_distance(axes: "Axes", results: Results, known: Mapping[str, Mark]) -> None:
    """MMD on a logarithmic axis, over the range in which HMC is from itself."""
    column = "mmd_paper" if results.is_paper else "mmd"
    marks = results.marks(lambda row: row.get(column))
    floor = marks[HMC] if results.is_paper else average(part["judge"]["range"][1] for part in results.parts)
    means = [mean for mean, _ in (*marks.values(), *known.values(), floor) if mean > 0.0]
    axes.set_xlabel("MMD to HMC, biased" if results.is_paper else "MMD to HMC")
    if not means:
        return
    low = max(min(means) / 2.0, floor[0] / 10.0) if floor[0] > 0.0 else min(means) / 2.0
    axes.set(xscale="log", xlim=(low, 2.0 * max(means)))
    if floor[0] > low:
        axes.axvspan(low, floor[0], color=BAND, linewidth=0, zorder=0.5)
    draw_dots(
        axes, {name: mark if mark[0] > low else (math.nan, 0.0) for name, mark in known.items()}, below=True, label=PRINTED
    )
    draw_dots(axes, {name: mark if mark[0] > low else (math.nan, 0.0) for name, mark in marks.items()})
    draw_below(axes, marks, low)
    format_log(axes.xaxis)


def _ood(results: Results) -> str:
    """FPR95 of every method on each set outside, by the largest probability and smaller by the other scores."""
    outside = list(results.parts[0]["sizes"])
    small: dict[str, Mapping[str, Any]] = {
        "entropy": {"marker": "|", "markersize": 6.0, "markeredgewidth": 1.1},
        "mutual information": {"marker": "x", "markersize": 3.6, "markeredgewidth": 1.0},
    }
    with wide_figure(results.heading, 1.35 + _ROW * len(results.names)) as (figure, svg):
        panels = method_panels(figure, results.names, len(outside))
        any_known = False
        for axes, key in zip(panels, outside, strict=True):
            rate = _rate(key, "confidence")
            known = {name: results.printed("ood_fpr95_detail", PRINTED_SETS.get(key, key), name) for name in results.names}
            any_known |= any(math.isfinite(mean) for mean, _ in known.values())
            for score, style in small.items():
                marks = results.marks(_rate(key, score))
                draw_dots(axes, {name: (mean, 0.0) for name, (mean, _) in marks.items()}, **style)
            _draw_score(axes, results.marks(rate), known)
            axes.set(title=DATASETS[key].title, xlabel="FPR95, %")
        entries: dict[str, Mapping[str, Any]] = {"largest probability, ± standard error": _DOT}
        entries |= {score: {**_DOT, **style} for score, style in small.items()}
        legend_below(figure, panels[0], entries | ({PRINTED: hollow(_INK)} if any_known else {}))
    return svg()


def _rate(outside: str, score: str) -> Callable[[Any], float | None]:
    return lambda row: _percent(row[outside].get(score, {}).get("fpr95"))


def _shift(results: Results) -> str:
    """NLL and calibration error against the level of the shift."""
    chosen = (MAP, TEMPERATURE, LA, *results.flows[-1:], BURNISH, REFINE, HMC)
    names = [name for name in chosen if name in results.names]
    levels = results.parts[0]["levels"]
    what = "degrees turned" if results.config["dataset"] == "fashion-mnist" else "level of corruption"
    entries: dict[str, Mapping[str, Any]] = {LABELS.get(name, name): line_style(name) for name in names}
    with wide_figure(results.heading, 3.7) as (figure, svg):
        left, right = figure.subplots(1, 2)
        for name in names:
            rows = results.rows(name)
            draw_curve(left, levels, [row["nll"] for row in rows], **line_style(name))
            draw_curve(right, levels, [list(map(_percent, row["ece"])) for row in rows], **line_style(name))
            known = results.printed_row("shift_corrupted_cifar10_nll", name, dataset="cifar-10")
            if known:
                left.plot(levels, known, **hollow(method_colour(name)), zorder=3)
                entries[PRINTED] = hollow(_INK)
        left.set(xlabel=what, ylabel="NLL")
        right.set(xlabel=what, ylabel="ECE, %")
        legend_below(figure, left, entries)
    return svg()


def _few_vs_many(results: Results) -> str:
    """Scores against the number of draws; levels for very many draws and for none."""
    many = next(name for name in results.names if name.startswith(f"{LA} S="))
    levels = {
        many: {"color": method_colour(LA), "linestyle": (0, (3, 1.3)), **_LEVEL},
        "MPA": {"color": method_colour(MAP), "linestyle": (0, (1, 1)), **_LEVEL},
    }
    columns = {"nll": "NLL", "ece": "ECE, %"} | ({"paper_ece": "the paper's ECE, %"} if results.is_paper else {})
    counts = results.parts[0]["counts"]
    names = list(results.parts[0]["curves"])
    entries: dict[str, Mapping[str, Any]] = {LABELS.get(name, name): line_style(name) for name in names} | levels
    with wide_figure(results.heading, 3.2) as (figure, svg):
        panels = figure.subplots(1, len(columns))
        for axes, (key, label) in zip(panels, columns.items(), strict=True):
            scale = 1.0 if key == "nll" else 100.0
            axes.set(xscale="log", xlabel="draws S", ylabel=label)
            for name in names:
                curves = [[_percent(p[key], scale) for p in part["curves"][name]] for part in results.parts]
                draw_curve(axes, counts, curves, **line_style(name))
            for name, style in levels.items():
                axes.axhline(average(_percent(row[key], scale) for row in results.rows(name))[0], **style)
            if key != "ece" and _draw_known_counts(axes, results, "nll" if key == "nll" else "ece", counts[-1]):
                entries[PRINTED] = hollow(_INK)
            format_log(axes.xaxis)
        legend_below(figure, panels[0], entries)
    return svg()


def _draw_known_counts(axes: "Axes", results: Results, key: str, last: int) -> bool:
    """What the paper prints at its numbers of draws, and at the right for levels; whether there is anything."""
    drawn = False
    for name in results.names:
        mean, _ = results.printed("few_vs_many_samples", name, key)
        method, _, count = name.partition(" S=")
        if math.isfinite(mean):
            x = int(count) if method == HMC else last
            axes.plot(x, mean, **hollow(method_colour(MAP if name == "MPA" else method)), zorder=3, clip_on=False)
            drawn = True
    return drawn


def _flow_from_prior(results: Results) -> str:
    """NLL from both starts, and the seconds of one flow alone, against its length."""
    lengths = results.parts[0]["lengths"]
    styles = dict(zip(STARTS, (line_style(MAP), line_style(results.flows[-1])), strict=True))
    entries: dict[str, Mapping[str, Any]] = {**styles, "one flow alone": {"color": _INK, "marker": "o", "markersize": 4}}
    with wide_figure(results.heading, 3.2) as (figure, svg):
        left, right = figure.subplots(1, 2)
        for name, style in styles.items():
            draw_curve(left, lengths, [part["nll"][name] for part in results.parts], marker="o", markersize=4, **style)
            known = results.printed_row("flow_from_prior_vs_from_laplace_cifar10_nll", name, dataset="cifar-10")
            if known:
                left.plot(lengths, known, **hollow(style["color"]), zorder=3)
        draw_curve(right, lengths, [part["seconds"] for part in results.parts], **entries["one flow alone"])
    return svg()


def _marginals(results: Results) -> str:
    return ""


def _correlation(results: Results) -> str:
    return ""


def _percent(value: float | None, scale: float = 100.0) -> float | None:
    return None if value is None else scale * value


def _spread_axis(axes: "Axes") -> None:
    """Logarithmic where values are far apart."""
