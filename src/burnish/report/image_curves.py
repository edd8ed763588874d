"""Figures of the image studies that are curves: scores against levels, draws and lengths, and densities of weights."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnish.report.image_panels import (
    BAND,
    PRINTED,
    Results,
    average,
    draw_curve,
    format_log,
    hollow,
    legend_outside,
    line_style,
    method_colour,
    wide_figure,
)
from burnish.report.plots import _INK
from burnish.studies.flow_from_prior import STARTS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, HMC, LA, RECENTRED, REFINE
from burnish.studies.protocols import BENCHMARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_few_vs_many", "draw_flow_from_prior", "draw_marginals", "draw_shift"]

_Styles = dict[str, Mapping[str, Any]]
_DOTS: Mapping[str, Any] = {"marker": "o", "markersize": 4.0}
_PRINTED_NLL = "flow_from_prior_vs_from_laplace_cifar10_nll"
_PRINTED_SECONDS = "refinement_seconds_rtx2080ti_20_epochs"
_VISIBLE = 0.01  # of a density's largest value, below which it needs no room


def draw_shift(results: Results) -> str:
    """NLL and calibration error against the level of the shift."""
    methods = (MAP, TEMPERATURE, LA, results.flows[-1], BURNISH, REFINE, "VB", "CSGHMC", HMC)
    names = [name for name in methods if name in results.names]
    is_cifar, table = results.config["dataset"] == "cifar-10", "shift_corrupted_cifar10_nll"
    what = "degrees turned" if results.config["dataset"] == "fashion-mnist" else "level of corruption"
    entries: _Styles = {LABELS.get(name, name): line_style(name) for name in names}
    with wide_figure(results.heading, 3.6) as (figure, svg):
        panels = figure.subplots(1, 2)
        for axes, key, label, scale in zip(panels, ("nll", "ece"), ("NLL", "ECE, %"), (1.0, 100.0), strict=True):
            for name in names:
                curves = [row[key] for row in results.rows(name)]
                draw_curve(axes, results.parts[0]["levels"], curves, scale, **line_style(name))
                known = results.printed_row(table, name) if is_cifar and key == "nll" else []
                if known:
                    axes.plot(results.printed_row(table, "intensity"), known, **hollow(method_colour(name)), zorder=3)
                    entries[PRINTED] = hollow(_INK)
            axes.set(xlabel=what, ylabel=label)
        legend_outside(figure, entries)
    return svg()


def draw_few_vs_many(results: Results) -> str:
    """Scores against the number of draws, with levels for very many draws and for none."""
    counts, names = results.parts[0]["counts"], list(results.parts[0]["curves"])
    many = next(name for name in results.names if name.startswith(f"{LA} S="))
    levels: _Styles = {
        many: {"color": method_colour(LA), "linestyle": (0, (3, 1.3)), "linewidth": 1.4},
        "MPA": {"color": method_colour(MAP), "linestyle": (0, (1, 1)), "linewidth": 1.8},
    }
    columns = {"nll": "NLL", "ece": "ECE, %"} | ({"paper_ece": "the paper's ECE, %"} if results.is_paper else {})
    entries: _Styles = {LABELS.get(name, name): line_style(name) for name in names} | levels
    with wide_figure(results.heading, 3.2) as (figure, svg):
        for axes, (key, label) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
            scale = 1.0 if key == "nll" else 100.0
            axes.set(xscale="log", xlabel="draws S", ylabel=label)
            for name in names:
                curves = [[score[key] for score in part["curves"][name]] for part in results.parts]
                draw_curve(axes, counts, curves, scale, **line_style(name))
            for name, style in levels.items():
                axes.axhline(average((row[key] for row in results.rows(name)), scale)[0], **style)
            if key != "ece" and _draw_printed_counts(axes, results, key.removeprefix("paper_")):
                entries[PRINTED] = hollow(_INK)
            format_log(axes.xaxis)
        legend_outside(figure, entries)
    return svg()


def _draw_printed_counts(axes: "Axes", results: Results, key: str) -> bool:
    """What the paper prints: HMC's at its numbers of draws, levels at the right edge; whether there is anything."""
    known = {name: results.printed("few_vs_many_samples", name, key)[0] for name in results.names}
    for name, mean in known.items():
        method, _, count = name.partition(" S=")
        place = (int(count), axes.transData) if method == HMC else (1.0, axes.get_yaxis_transform())
        look = hollow(method_colour(MAP if name == "MPA" else method))
        axes.plot(place[0], mean, transform=place[1], **look, zorder=3, clip_on=False)
    return any(map(math.isfinite, known.values()))


def draw_flow_from_prior(results: Results) -> str:
    """NLL from both starts, and the seconds of one flow alone, against its length."""
    parts, dataset = results.parts, results.config["dataset"]
    lengths, colours = parts[0]["lengths"], (method_colour(MAP), method_colour(results.flows[-1]))
    entries: _Styles = {name: {"color": colour, **_DOTS} for name, colour in zip(STARTS, colours, strict=True)}
    with wide_figure(results.heading, 3.3) as (figure, svg):
        left, right = figure.subplots(1, 2)
        for name, style in entries.items():
            draw_curve(left, lengths, [part["nll"][name] for part in parts], **style)
            if dataset == "cifar-10":
                _draw_printed_lengths(left, results, _PRINTED_NLL, name, style["color"])
        draw_curve(right, lengths, [part["seconds"] for part in parts], color=_INK, **_DOTS)
        if _draw_printed_lengths(right, results, _PRINTED_SECONDS, BENCHMARKS[dataset].title, _INK):
            entries[f"{PRINTED} (time: RTX 2080 Ti)"] = hollow(_INK)
        for axes, label in ((left, "NLL"), (right, "seconds of one flow")):
            axes.set(xlabel="layers of the flow", ylabel=label, xticks=lengths)
        left.set_yscale("log")
        format_log(left.yaxis)
        right.set_ylim(0, None)
        legend_outside(figure, entries)
    return svg()


def _draw_printed_lengths(axes: "Axes", results: Results, table: str, key: str, colour: str) -> bool:
    """What the paper prints, around ours where they are the same; whether there is anything."""
    known = results.printed_row(table, key)
    if known:
        look = hollow(colour) | {"markersize": 7.0, "markerfacecolor": "none"}
        axes.plot(results.printed_row(table, "flow_length"), known, **look, zorder=3)
    return bool(known)


def draw_marginals(results: Results) -> str:
    """Densities of some weights of the first network: HMC's as an area, the network's own value as a tick."""
    part = results.parts[0]
    chosen = dict.fromkeys((LA, results.flows[0], results.flows[-1], RECENTRED))
    names = [name for name in chosen if name in part["rows"]]
    rows = math.ceil(len(part["weights"]) / 3)
    entries: _Styles = {"HMC": {"facecolor": BAND}} | {LABELS.get(name, name): line_style(name) for name in names}
    with wide_figure(f"{results.subject}, seed {next(iter(results.record['seeds']))}", 0.9 + 1.5 * rows) as (figure, svg):
        panels = figure.subplots(rows, 3, squeeze=False).flatten()
        for axes, weight in zip(panels, part["weights"], strict=False):
            _draw_weight(axes, weight, names)
        for axes in panels[len(part["weights"]) :]:
            axes.remove()
        tick = {"color": _INK, "marker": "^", "markersize": 6.0, "linestyle": "none"}
        legend_outside(figure, entries | {"the network's weight": tick}, ncols=6)
    return svg()


def _draw_weight(axes: "Axes", weight: Mapping[str, Any], names: list[str]) -> None:
    """One panel, as wide as what is visible of the densities."""
    curves = {name: [math.nan if v is None else v for v in weight["densities"][name]] for name in (*names, HMC)}
    axes.fill_between(weight["grid"], curves[HMC], color=BAND, linewidth=0)
    for name in names:
        axes.plot(weight["grid"], curves[name], **line_style(name))
    if weight["network"] is not None:
        axes.plot(weight["network"], 0.0, marker="^", color=_INK, markersize=6, clip_on=False, zorder=4)
    tops = {name: max((v for v in values if math.isfinite(v)), default=0.0) for name, values in curves.items()}
    seen = [x for i, x in enumerate(weight["grid"]) if any(curves[name][i] > _VISIBLE * tops[name] for name in curves)]
    known = [x for x in (*seen, weight["network"]) if x is not None]
    if seen:
        axes.set_xlim(min(known), max(known))
    axes.set(title=f"weight {weight['index']}", yticks=[], ylim=(0, None))
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=4)
