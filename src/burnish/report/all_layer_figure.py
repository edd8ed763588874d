"""The figure of the study of all layers: NLL of every posterior against the distance of its predictions to HMC's."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.report.image_panels import PRINTED, hollow, legend_outside, method_colour, wide_figure
from burnish.report.plots import _COLOURS, _INK
from burnish.studies import image_posteriors
from burnish.studies.all_layer_settings import BASES, FINISHED, HMC, NETWORK, RECENTRED, TEMPERATURE, base_name, flow_name
from burnish.studies.all_layer_tables import by_posterior, printed_nll
from burnish.studies.protocols import BENCHMARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_all_layer"]

_Point = tuple[float, float, float]  # distance, NLL, and the standard deviation of the NLL over networks
_INK_COLOUR, _AMBER, _SKY, _GREEN, _PINK, _BLUE, _RED = _COLOURS
_PAPER = {"paper": (_AMBER, "s"), "own": (_SKY, "o")}
# colour, and the size of the first marker: a subspace hardly moves the Laplace posterior that it is refined from
_FAMILIES = {"Laplace": (_GREEN, 9.5), "Gaussian VB": (_PINK, 7.5), "subspace": (_RED, 6.5), "refined": (_BLUE, 7.5)}
_ALONE = {NETWORK: "X", TEMPERATURE: "P", RECENTRED: "d"}  # without draws
_MARKERS = "o^vD"
_FAR = 4.0  # times the median distance or NLL, beyond which a posterior would push all others together
_OUTSIDE = "beyond the axes"


def draw_all_layer(record: Mapping[str, Any]) -> str:
    """Means over networks with the standard deviation of NLL; the paper's flows by number of layers; as SVG text."""
    config = record["config"]
    title = BENCHMARKS[config["dataset"]].title + (" (made images)" if config["made_images"] else "")
    count = len(config["seeds"])
    heading = f"{title}: all {config['num_parameters']:,} parameters, {count} network{'s' if count > 1 else ''}"
    groups = by_posterior(record)
    points = {name: point for name, rows in groups.items() if (point := _point(rows)) is not None}
    entries: dict[str, Mapping[str, Any]] = {}
    with wide_figure(heading, 5.4) as (figure, svg):
        axes = figure.subplots()
        for base in _PAPER:
            entries |= _draw_paper(axes, record, points, base)
        for name, look in _styles(points):
            _draw_point(axes, points[name], look)
            entries[name] = look
        level: dict[str, Any] = {"color": method_colour(image_posteriors.HMC), "linewidth": 0.9}
        if record["judge"] is not None and record["judge"]["nll"] is not None:
            axes.axhline(record["judge"]["nll"], **level, zorder=1.0)
            entries["NLL of all of HMC"] = level
        if _draw_printed(axes, record, points):
            entries[PRINTED] = hollow(_INK)
        axes.set(xlabel="distance of predictions to HMC's, total variation", ylabel=f"NLL by {config['few']} draws")
        entries |= _cut(axes, points, {name: look["color"] for name, look in _styles(points)})
        legend_outside(figure, entries, "outside right center", 1)
    return svg()


def _draw_paper(
    axes: "Axes", record: Mapping[str, Any], known: Mapping[str, _Point], base: str
) -> dict[str, Mapping[str, Any]]:
    """The paper's base and its refinements, from short to long, with their lengths beside them."""
    colour, marker = _PAPER[base]
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5, "linewidth": 1.0}
    names = {base_name(base): "LA"} | {flow_name(base, length): str(length) for length in record["config"]["lengths"]}
    points = {label: known[name] for name, label in names.items() if name in known}
    if not points:
        return {}
    axes.plot([point[0] for point in points.values()], [point[1] for point in points.values()], **look, zorder=2)
    last = points.get(str(record["config"]["lengths"][-1]))
    for label, point in points.items():
        _draw_point(axes, point, {**look, "linestyle": "none"})
        is_left = base == "own" or last is None or point[0] < last[0]  # lines lie side by side, and one turns back
        place, side = ((-5, 4), "right") if is_left else ((5, -8), "left")
        axes.annotate(label, point[:2], place, textcoords="offset points", fontsize=7.5, color=colour, ha=side)
    return {f"{BASES[base]}: LA, and layers": look}


def _styles(points: Mapping[str, _Point]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of all posteriors but the paper's: a colour for each family, a marker for each of its members.

    Large ones lie below small ones: where posteriors coincide, all of them remain visible.
    """
    edge: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.5}
    for name, marker in _ALONE.items():
        if name in points:
            yield name, {"color": _INK_COLOUR, "marker": marker, "markersize": 7.5, **edge}
    for family, (colour, size) in _FAMILIES.items():
        members = sorted(name for name in points if name.startswith(family) and name != FINISHED)
        for number, (name, marker) in enumerate(zip(members, _MARKERS, strict=False)):
            yield name, {"color": colour, "marker": marker, "markersize": size - 0.7 * number, **edge}
    for name, colour in ((FINISHED, _BLUE), (HMC, method_colour(image_posteriors.HMC))):
        if name in points:
            yield name, {"color": colour, "marker": "*", "markersize": 9.0, **edge}


def _draw_printed(axes: "Axes", record: Mapping[str, Any], points: Mapping[str, _Point]) -> bool:
    """What the paper prints, at the distances that ours have; whether there is anything."""
    names = [base_name("own"), *(flow_name("own", length) for length in record["config"]["lengths"]), HMC]
    found = False
    for name in names:
        known = printed_nll(record, name)
        if name in points and known is not None:
            colour = method_colour(image_posteriors.HMC) if name == HMC else _PAPER["own"][0]
            axes.plot(points[name][0], known, **hollow(colour), zorder=2.5)
            found = True
    return found


def _cut(axes: "Axes", points: Mapping[str, _Point], colours: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """Ends the axes where most posteriors do; others have an arrow in the corner, with their distance and NLL."""
    if not points:
        return {}
    limits = [_FAR * statistics.median(point[axis] for point in points.values()) for axis in (0, 1)]
    inside = [point for point in points.values() if point[0] <= limits[0] and point[1] <= limits[1]]
    if len(inside) < 2:  # of too few to tell which are far
        return {}
    low, high = min(point[1] - point[2] for point in inside), max(point[1] + point[2] for point in inside)
    margin = 0.08 * (high - low) or 0.01
    axes.set(xlim=(0.0, 1.08 * max(point[0] for point in inside)), ylim=(low - margin, high + margin))
    arrow: dict[str, Any] = {"marker": "^", "markersize": 6.0, "linestyle": "none"}
    outside = [name for name, point in points.items() if point not in inside]
    for number, name in enumerate(outside):
        height, colour = 0.985 - 0.045 * number, colours.get(name, _INK)
        axes.plot(0.985, height, color=colour, transform=axes.transAxes, clip_on=False, **arrow)
        text = f"{points[name][0]:.2g}, {points[name][1]:.2f}"
        axes.text(0.955, height, text, transform=axes.transAxes, ha="right", va="center", fontsize=7.5)
    return {_OUTSIDE: {"color": _INK, **arrow}} if outside else {}


def _draw_point(axes: "Axes", point: _Point, style: Mapping[str, Any]) -> None:
    axes.errorbar(*point[:2], yerr=point[2] or None, elinewidth=0.9, zorder=3, **style)


def _point(rows: Sequence[Any]) -> _Point | None:
    """None where HMC, which distances are to, is missing."""
    pairs = [(row["distance"], row["few_nll"]) for row in rows if None not in (row["distance"], row["few_nll"])]
    if not pairs:
        return None
    distances, nll = zip(*pairs, strict=True)
    return statistics.fmean(distances), statistics.fmean(nll), statistics.stdev(nll) if len(nll) > 1 else 0.0
