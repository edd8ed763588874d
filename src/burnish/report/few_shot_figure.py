"""The figure of the study of few points: what predictions are away from HMC's, and NLL, against their number."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from burnish.report.image_panels import BAND, draw_curve, format_log, legend_outside, line_style, method_colour, wide_figure
from burnish.studies.few_shot import NEAR, by_count, few_ratio
from burnish.studies.few_shot_methods import METHODS, SCRATCH, TARGETS
from burnish.studies.image_methods import LABELS, MAP
from burnish.studies.image_posteriors import BURNISH, FLOW, RECENTRED
from burnish.studies.protocols import BENCHMARKS

__all__ = ["draw_few_shot"]


def draw_few_shot(record: Mapping[str, Any]) -> str:
    """For each target: distances of many draws and of few to HMC, with what HMC itself has, and NLL; as SVG text."""
    names = [name for name in METHODS if name != MAP]  # whose NLL the points do not change
    entries = {LABELS.get(name, name): _style(name) for name in names} | {"HMC against itself": {"facecolor": BAND}}
    config = record["config"]
    few, many = config["few"], config["num_draws"]
    heading = f"{BENCHMARKS[config['dataset']].title}: a last layer fitted to few held-out points"
    with wide_figure(heading, 4.8) as (figure, svg):
        panels = figure.subplots(len(TARGETS), 3, squeeze=False)
        for (left, middle, right), kind in zip(panels, TARGETS, strict=True):
            groups = by_count(record, kind)
            counts = list(groups)
            ranges = [statistics.fmean(part["judge"]["largest_tv"] for part in parts) for parts in groups.values()]
            left.fill_between(counts, 0.0, ranges, color=BAND, linewidth=0, zorder=1.0)
            middle.axhspan(1.0 / NEAR, NEAR, color=BAND, linewidth=0, zorder=1.0)
            kinds: list[tuple[Any, list[str], Callable[[Mapping[str, Any], str], float]]] = [
                (left, [RECENTRED, FLOW, BURNISH], lambda part, name: part["rows"][name]["tv"]),
                (middle, [RECENTRED, FLOW, BURNISH], lambda part, name: few_ratio([part], name)),
                (right, names, lambda part, name: part["rows"][name]["few"]["nll"]),
            ]
            for axes, methods, pick in kinds:
                for name in methods:
                    values = [[pick(part, name) for part in parts] for parts in groups.values()]
                    draw_curve(axes, counts, [list(curve) for curve in zip(*values, strict=True)], 1.0, **_style(name))
                axes.set(xscale="log", xlabel="points N")
                format_log(axes.xaxis)
            left.set(yscale="log", ylabel=f"{kind}\n\nTV to HMC")
            middle.set_ylabel("times HMC's own")
            if kind == SCRATCH:  # where they change by a factor
                middle.set_yscale("log")
                right.set_yscale("log")
            low, high = middle.get_ylim()
            middle.set_ylim(min(low, 0.8), max(high, 1.25))
            for axes in (left, middle, right):
                if axes.get_yscale() == "log":
                    format_log(axes.yaxis)
        titles = (f"{many} draws", f"{few} draws: TV to HMC", f"{few} draws: NLL")
        for axes, title in zip(panels[0], titles, strict=True):
            axes.set_title(title)
        legend_outside(figure, entries, ncols=5)
    return svg()


def _style(name: str) -> dict[str, Any]:
    """The two ways of `burnish` mostly lie upon each other."""
    own: dict[str, dict[str, Any]] = {
        FLOW: {"color": method_colour(BURNISH)},
        BURNISH: {"linestyle": (0, (1, 1.5)), "color": "black"},
    }
    return line_style(name) | own.get(name, {})
