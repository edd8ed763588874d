"""The figure of the study of few points: distances to HMC and NLL against their number."""

from collections.abc import Mapping
from typing import Any

from burnish.report.image_panels import BAND, draw_curve, format_log, legend_outside, line_style, wide_figure
from burnish.studies.few_shot import by_count
from burnish.studies.few_shot_methods import METHODS, SCRATCH, TARGETS
from burnish.studies.image_methods import LABELS, MAP
from burnish.studies.image_posteriors import BURNISH, FLOW, RECENTRED
from burnish.studies.protocols import BENCHMARKS

__all__ = ["draw_few_shot"]


def draw_few_shot(record: Mapping[str, Any]) -> str:
    """For each target, total variation to HMC with the range of HMC's own halves, and NLL; as SVG text."""
    names = [name for name in METHODS if name != MAP]  # whose NLL the points do not change
    entries: dict[str, Mapping[str, Any]] = {LABELS.get(name, name): line_style(name) for name in names}
    config = record["config"]
    heading = f"{BENCHMARKS[config['dataset']].title}: a last layer fitted to few held-out points"
    with wide_figure(heading, 5.6) as (figure, svg):
        panels = figure.subplots(len(TARGETS), 2, squeeze=False)
        for (left, right), kind in zip(panels, TARGETS, strict=True):
            groups = by_count(record, kind)
            counts = list(groups)
            ranges = [max(part["judge"]["largest_tv"] for part in parts) for parts in groups.values()]
            left.fill_between(counts, 0.0, ranges, color=BAND, linewidth=0, zorder=1.0)
            for axes, methods in ((left, (RECENTRED, FLOW, BURNISH)), (right, names)):
                for name in methods:
                    found = [[part["rows"][name] for part in parts] for parts in groups.values()]
                    values = [[row["tv"] if axes is left else row["few"]["nll"] for row in rows] for rows in found]
                    curves = [list(curve) for curve in zip(*values, strict=True)]
                    draw_curve(axes, counts, curves, 1.0, **line_style(name))
            left.set(xscale="log", yscale="log", ylabel="TV to HMC", title=kind)
            right.set(xscale="log", ylabel="NLL", title=kind)
            if kind == SCRATCH:  # where it falls by a factor
                right.set_yscale("log")
                format_log(right.yaxis)
            format_log(left.yaxis)
        for axes in panels.flat:
            axes.set_xlabel("points N")
            format_log(axes.xaxis)
        legend_outside(figure, entries)
    return svg()
