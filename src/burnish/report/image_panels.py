"""What the figures of image studies are made of: numbers of several seeds, dots by method, lines, and axes for both."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from burnish.report.plots import _COLOURS, _figure
from burnish.studies.data import DATASETS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, LA, RECENTRED, REFINE, flow_name
from burnish.studies.printed import Printed, printed
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.summaries import is_comparable, method_names, method_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "BAND",
    "BESIDE",
    "PRINTED",
    "Mark",
    "Results",
    "average",
    "draw_curve",
    "draw_dots",
    "draw_printed",
    "format_log",
    "hollow",
    "legend_outside",
    "line_style",
    "method_colour",
    "method_panels",
    "wide_figure",
]

Mark = tuple[float, float]
"""Mean and standard error; not a number where nothing is known."""

BAND = "#dcdcdc"  # HMC's, where it is an area
BESIDE = 0.27  # of a row, by which a second mark is below the first
PRINTED = "printed in the paper"
_GREY, _AMBER, _SKY, _GREEN, _PINK, _BLUE, _RED = _COLOURS
_RIVAL = "#8c8c8c"
# flows of all lengths share the colour that is left over
_BY_METHOD = {
    MAP: _PINK,
    TEMPERATURE: _PINK,
    "VB": _RIVAL,
    "CSGHMC": _RIVAL,
    LA: _AMBER,
    RECENTRED: _GREEN,
    FLOW: _GREEN,
    BURNISH: _BLUE,
    REFINE: _RED,
    HMC: _GREY,
}
_WIDTH = 7.2  # inches: names of methods take a quarter of it


@dataclass(frozen=True)
class Results:
    """The record of an image study as its figure sees it."""

    record: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.record["seeds"]:
            raise ValueError("`record` must have the results of a seed at least, got none. Draw it once one has succeeded.")

    @property
    def config(self) -> Mapping[str, Any]:
        """What was run."""
        config: Mapping[str, Any] = self.record["config"]
        return config

    @property
    def parts(self) -> list[Any]:
        """Results by seed."""
        return list(self.record["seeds"].values())

    @property
    def names(self) -> list[str]:
        """Methods in the order of the tables, but HMC, which judges the others, at the end."""
        return sorted(method_names(self.parts), key=lambda name: name == HMC)

    @property
    def flows(self) -> list[str]:
        """Methods that are flows of the paper, shortest first."""
        return [flow_name(length) for length in sorted(self.config["lengths"])]

    @property
    def is_paper(self) -> bool:
        """Whether the protocol is the paper's."""
        return bool(self.config["protocol"] == "paper")

    @property
    def is_comparable(self) -> bool:
        """Whether what the paper prints is about the same: its protocol, on its images."""
        return is_comparable(self.config)

    @property
    def subject(self) -> str:
        """Data and protocol."""
        data, few = DATASETS[self.config["dataset"]].title, self.config.get("num_train")
        if self.config["made_images"] or few is not None:
            data += " (made images)" if self.config["made_images"] else f" ({few:,} training images)"
        protocol = "the paper's protocol" if self.is_paper else "our protocol"
        return f"{data}, {protocol}"

    @property
    def heading(self) -> str:
        """Data, protocol and number of seeds, and of those methods that have fewer."""
        count = len(self.record["seeds"])
        fewer: dict[int, list[str]] = {}
        for name in self.names if "rows" in self.parts[0] else ():
            if len(self.rows(name)) < count:
                fewer.setdefault(len(self.rows(name)), []).append(LABELS.get(name, name))
        others = "".join(f", {number} of {' and '.join(names)}" for number, names in fewer.items())
        return f"{self.subject}, {count} seed{'s' if count > 1 else ''}{others}"

    def rows(self, name: str) -> list[Any]:
        """What the seeds that have it know about a method."""
        return method_rows(self.parts, name)

    def marks(self, pick: Callable[[Any], float | None], scale: float = 1.0) -> dict[str, Mark]:
        """Of every method, over seeds, what is picked from its rows."""
        return {name: average(map(pick, self.rows(name)), scale) for name in self.names}

    def printed(self, table: str, *keys: str) -> Mark:
        """A number of the paper for this data set."""
        value = printed(table, BENCHMARKS[self.config["dataset"]].title, *keys) if self.is_comparable else None
        return (value.mean, value.stderr or 0.0) if isinstance(value, Printed) else (math.nan, 0.0)

    def printed_row(self, table: str, key: str) -> list[float]:
        """A row of a table of the paper; empty where it has none."""
        values = printed(table, key) if self.is_comparable else None
        return values if isinstance(values, list) else []


def average(values: Iterable[float | None], scale: float = 1.0) -> Mark:
    """Over the values that are known."""
    known = [scale * value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return math.nan, 0.0
    return statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0


def method_colour(name: str) -> str:
    """The same in all figures of image studies."""
    return _BY_METHOD.get(name, _SKY)


def line_style(name: str) -> dict[str, Any]:
    """Of a method's curve: HMC's is broad and below all others, so that what coincides with it is seen to do so."""
    if name == HMC:
        return {"color": "#bdbdbd", "linewidth": 5.0, "zorder": 1.5, "solid_capstyle": "butt"}
    dashed = name in (TEMPERATURE, flow_name(1), "CSGHMC")  # which share their colour with another
    width = {RECENTRED: 2.2, BURNISH: 1.2}.get(name, 1.6)  # often the same, and one above the other
    return {"color": method_colour(name), "linestyle": (0, (3, 1.3)) if dashed else "-", "linewidth": width}


def hollow(colour: str) -> dict[str, Any]:
    """The style of what the paper prints."""
    edge = {"markeredgecolor": colour, "markeredgewidth": 1.0, "markerfacecolor": "white"}
    return {"color": colour, "marker": "D", "markersize": 4.0, "linestyle": "none", **edge}


@contextmanager
def wide_figure(heading: str, height: float) -> Iterator[tuple["Figure", Callable[[], str]]]:
    """As wide as panels beside names need."""
    with _figure(height) as (figure, svg):
        figure.set_size_inches(_WIDTH, height)
        figure.suptitle(heading, fontsize=9.5)
        yield figure, svg


def method_panels(figure: "Figure", names: Sequence[str], count: int) -> list["Axes"]:
    """Panels side by side, with one row for each method, named at the left."""
    panels: list[Axes] = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.set(ylim=(len(names) - 0.3, -0.6))
        axes.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color="#ececec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
    return panels


def draw_dots(axes: "Axes", marks: Mapping[str, Mark], *, beside: float = 0.0, **style: Any) -> None:
    """A dot with its standard error in each method's row."""
    for row, (name, (mean, error)) in enumerate(marks.items()):
        look: dict[str, Any] = {"color": method_colour(name), "marker": "o", "markersize": 5.0, "zorder": 3} | style
        if math.isfinite(mean):
            axes.errorbar(mean, row + beside, xerr=error or None, elinewidth=0.9, linestyle="none", **look)


def draw_printed(axes: "Axes", marks: Mapping[str, Mark]) -> None:
    """Hollow marks, a little below those that are ours."""
    for row, (name, (mean, error)) in enumerate(marks.items()):
        if math.isfinite(mean):
            axes.errorbar(mean, row + BESIDE, xerr=error or None, elinewidth=0.7, zorder=2.5, **hollow(method_colour(name)))


def draw_curve(
    axes: "Axes", x: Sequence[float], curves: Sequence[Sequence[float | None]], scale: float = 1.0, **style: Any
) -> None:
    """Mean over seeds, with a band of one standard error to both sides."""
    marks = [average(values, scale) for values in zip(*curves, strict=True)]
    low, high = ([mean + side * error for mean, error in marks] for side in (-1.0, 1.0))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0, zorder=1.2)
    axes.plot(x, [mean for mean, _ in marks], **style)


def format_log(axis: "Axis") -> None:
    """Few plain numbers beside a logarithmic axis; between powers of ten only where there are few of those."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    between = (1.0, 2.0, 5.0) if high < 15.0 * low else (1.0, 3.0) if high < 200.0 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10.0, subs=between, numticks=4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1000 else f"{value / 1000:g}k"))
    axis.set_minor_formatter(NullFormatter())


def legend_outside(
    figure: "Figure",
    entries: Mapping[str, Mapping[str, Any]],
    place: Literal["outside lower center", "outside right center"] = "outside lower center",
    ncols: int = 4,
) -> None:
    """A legend beside all panels: the style of each entry by its label."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(label=label, **style) if "facecolor" in style else Line2D([], [], label=label, **style)
        for label, style in entries.items()
    ]
    figure.legend(handles=handles, loc=place, ncols=ncols, handlelength=1.8, columnspacing=1.4)
