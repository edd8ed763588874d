"""The figure of the study of costs: seconds by number of classes, of points, and of parameters."""

from collections.abc import Mapping
from typing import Any

from burnish.report.image_panels import PRINTED, format_log, hollow, legend_outside, line_style, wide_figure
from burnish.studies.costs import by_classes, printed_seconds
from burnish.studies.image_posteriors import BURNISH, LA, flow_name

__all__ = ["draw_costs"]

_SERIES = {"the paper's flow": flow_name(5), "our base": LA, "our refinement of it": BURNISH}


def draw_costs(record: Mapping[str, Any]) -> str:
    """Seconds of the paper's flow, of our base and of its refinement, in one run on one device; as SVG text."""
    styles: dict[str, Mapping[str, Any]] = {
        label: line_style(name) | {"marker": "o", "markersize": 3.5} for label, name in _SERIES.items()
    }
    parts, config = record["parts"], record["config"]
    panels: list[tuple[str, list[int], list[list[float]]]] = []
    if found := by_classes(record):
        seconds = [[part["rows"][name]["seconds"] for part in found] for name in ("paper", "base", "refined")]
        about = f"{config['num_features']:,} features, {config['num_points']:,} points"
        panels.append((f"classes\n({about})", [part["classes"] for part in found], seconds))
    curves = {
        "points": f"{config['curve_features']} features, {config['curve_classes']} classes",
        "parameters": f"{config['curve_points']:,} points, {config['curve_classes']} classes",
    }
    for key, about in curves.items():
        if key in parts:
            rows = parts[key]["rows"]
            seconds = [
                [row["paper"]["seconds"] for row in rows],
                [row["base_seconds"] for row in rows],
                [row["refined"]["seconds"] for row in rows],
            ]
            panels.append((f"{key}\n({about})", [row[key] for row in rows], seconds))
    entries = dict(styles)
    with wide_figure(f"What refinement costs, on {record['device']}", 3.4) as (figure, svg):
        shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (label, sizes, seconds) in zip(shown, panels, strict=True):
            for style, values in zip(styles.values(), seconds, strict=True):
                axes.plot(sizes, values, **style)
            axes.set(xscale="log", yscale="log", xlabel=label)
            if label.startswith("classes"):
                known = [(count, printed_seconds(record, count)) for count in sizes]
                points = [(count, value) for count, value in known if value is not None]
                if points:
                    entries[PRINTED] = hollow(styles["the paper's flow"]["color"])
                    axes.plot(*zip(*points, strict=True), **entries[PRINTED])
            for axis in (axes.xaxis, axes.yaxis):
                format_log(axis)
        shown[0].set_ylabel("seconds")
        legend_outside(figure, entries)
    return svg()
