"""The figure of the opening page: on every data set, how far each posterior is from HMC, and how well it predicts."""

import statistics
from typing import Any

from matplotlib.axes import Axes

from burnish.report.image_panels import BAND, average, legend_outside, method_colour, wide_figure
from burnish.studies.claims import MARGIN
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, LA, RECENTRED, REFINE, flow_name
from burnish.studies.protocols import BENCHMARKS
from reproduction_tables import usual_record

__all__ = ["draw_reproduction"]

_POSTERIORS = (LA, flow_name(5), RECENTRED, FLOW)
# of the axis that is linear around nothing, and logarithmic beyond
_SMALL_MMD, _SMALL_PERCENT = 1e-4, 1.0
_MMDS, _PERCENTS = (0.0, 1e-4, 1e-3, 0.01, 0.1, 1.0), (-10.0, -1.0, 0.0, 1.0, 10.0, 100.0)
_STYLES: dict[str, dict[str, Any]] = {
    MAP: {"marker": "x", "color": "#3a3a3a"},
    TEMPERATURE: {"marker": "s", "color": method_colour(TEMPERATURE), "markersize": 3.5},
    LA: {"marker": "o", "color": method_colour(LA)},
    flow_name(5): {"marker": "o", "color": method_colour(flow_name(5))},
    RECENTRED: {"marker": "o", "color": method_colour(RECENTRED)},
    FLOW: {"marker": "o", "color": method_colour(BURNISH)},
    REFINE: {"marker": "D", "color": method_colour(REFINE), "markersize": 3.5},
}


def draw_reproduction() -> str:
    """Squared MMD to HMC and NLL relative to HMC's, by our protocol, means over networks; as SVG text."""
    records = {benchmark.title: usual_record(dataset) for dataset, benchmark in BENCHMARKS.items()}
    names = list(_STYLES)
    heading = f"{len(records)} data sets: how far from the exact posterior, and what that means for predictions"
    with wide_figure(heading, 4.6) as (figure, svg):
        left, right = figure.subplots(1, 2, sharey=True)
        for row, record in enumerate(records.values()):
            parts = list(record["seeds"].values())
            low, high = (statistics.fmean(part["judge"]["range"][side] for part in parts) for side in (0, 1))
            left.barh(row, high - low, left=low, height=0.8, color=BAND, zorder=1.0)
            for number, name in enumerate(names):
                rows = [part["rows"][name] for part in parts]
                place = row + 0.62 * (number / (len(names) - 1) - 0.5)
                if name in _POSTERIORS:
                    _mark(left, [found["mmd"] for found in rows], place, name)
                exact = [part["rows"][HMC]["few"]["nll"] for part in parts]  # of the same network
                gaps = [found["few"]["nll"] / nll - 1.0 for found, nll in zip(rows, exact, strict=True)]
                _mark(right, [100.0 * gap for gap in gaps], place, name)
        right.axvspan(-100.0 * MARGIN, 100.0 * MARGIN, color=BAND, linewidth=0, zorder=1.0)
        left.set_xscale("symlog", linthresh=_SMALL_MMD)
        right.set_xscale("symlog", linthresh=_SMALL_PERCENT)
        for axes, ticks in ((left, _MMDS), (right, _PERCENTS)):
            axes.set_xticks(ticks, [f"{tick:g}" if abs(tick) >= 1e-4 else "0" for tick in ticks])
        left.set_yticks(range(len(records)), list(records))
        left.set(xlabel="squared MMD to HMC", ylim=(len(records) - 0.5, -0.5))
        right.set(xlabel="NLL of 20 draws, % above that of 20 of HMC")
        for axes in (left, right):
            axes.minorticks_off()
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x", color="#ececec", linewidth=0.6)
            axes.set_axisbelow(True)
        entries = {LABELS.get(name, name): {"linestyle": "none", **_STYLES[name]} for name in names}
        legend_outside(figure, entries | {f"HMC against itself; {100.0 * MARGIN:g} %": {"facecolor": BAND}})
    return svg()


def _mark(axes: Axes, values: list[float], place: float, name: str) -> None:
    """The mean over networks with a standard error to both sides."""
    look: dict[str, Any] = {"markersize": 4.5, "linestyle": "none", "zorder": 3.0} | _STYLES[name]
    mean, error = average(values)
    axes.plot([mean - error, mean + error], [place, place], color=look["color"], linewidth=0.9, zorder=2.5)
    axes.plot(mean, place, **look)
