"""The figure of the study of tables: how much more likely test values are than under an ensemble."""

from collections.abc import Mapping
from typing import Any

from burnish.report.image_panels import legend_outside, wide_figure
from burnish.studies.tabular import difference
from burnish.studies.tabular_methods import ALL_LAYERS, DROPOUT, ENSEMBLE, REFINE

__all__ = ["draw_tabular"]

_STYLES: Mapping[str, Mapping[str, Any]] = {
    DROPOUT: {"color": "#8c8c8c", "marker": "s"},
    REFINE: {"color": "#0a4f9e", "marker": "o"},
    ALL_LAYERS: {"color": "#c84e00", "marker": "D"},
}
_NARROW = 0.02  # nats, within which the axis is linear


def draw_tabular(record: Mapping[str, Any]) -> str:
    """Of each table, test log-likelihood less the ensemble's, with 95 % intervals over splits; as SVG text."""
    from matplotlib.ticker import FuncFormatter

    parts = record["parts"]
    names = sorted(parts, key=lambda name: parts[name]["kind"] != "classification")
    heading = f"Small tables: test log-likelihood less that of {ENSEMBLE}s, 95 % intervals"
    entries = {name: {"linestyle": "none", "markersize": 4.0, **style} for name, style in _STYLES.items()}
    with wide_figure(heading, 1.4 + 0.24 * len(names)) as (figure, svg):
        axes = figure.subplots()
        for shift, (method, style) in zip((-0.25, 0.0, 0.25), entries.items(), strict=True):
            pairs = [difference(parts[name], method, ENSEMBLE) for name in names]
            known = [(row, *pair) for row, pair in enumerate(pairs) if pair is not None]
            if known:
                rows, means, halves = zip(*known, strict=True)
                places = [row + shift for row in rows]
                axes.errorbar(means, places, xerr=halves, elinewidth=0.9, **style)
        axes.axvline(0.0, color="#333333", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=_NARROW)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # powers of ten are no text here
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(f"nats a test point, linear within ±{_NARROW}; right is better")
        axes.grid(axis="y", linewidth=0.4, color="#dddddd")
        legend_outside(figure, entries)
    return svg()
