"""Draws the figures of README and docs from the committed records.

python benchmarks/figures.py [--check]
"""

import argparse
import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from burnish.report.all_layer_figure import draw_all_layer
from burnish.report.costs_figure import draw_costs
from burnish.report.few_shot_figure import draw_few_shot
from burnish.report.image_figures import draw_image_study
from burnish.report.study_figures import draw_study
from burnish.report.tabular_figure import draw_tabular
from burnish.studies.records import STUDIES
from committed import read_record
from reproduction_figure import draw_reproduction
from reproduction_tables import few_shot_sets, pictured

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"
COLOURS = {"network": "#3a3a3a", "temperature scaling": "#b87d00", "burnish": "#0a4f9e"}
# what a posterior is called in the figure, and where its name stands relative to its point
LABELS = {
    "Laplace at the network's weights": ("Laplace at the network's weights", (8, 0)),
    "paper's protocol, 1 radial": ("paper's flow: 1,", (-84, 0)),
    "paper's protocol, 5 radial": ("5,", (-5, 12)),
    "paper's protocol, 10 radial": ("10 layers", (-6, 12)),
    "recentred Laplace": ("Laplace at the mode", (8, 0)),
    "recentred Laplace + flow": ("burnish: mode, Laplace, flow", (8, -1)),
}
STYLE: Any = {
    "svg.hashsalt": "burnish",  # the same record, the same bytes
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def draw_calibration(axes: Axes) -> None:
    """How much more often a predictor is right than it says, against what it says; the mean over all LeNets and splits."""
    runs = [run for group in read_record("refine")["results"]["fashion-mnist"]["runs"] for run in group]
    axes.axhline(0.0, color="#333333", linewidth=0.8, linestyle=(0, (4, 3)))
    for name, colour in COLOURS.items():
        bins = [average(pairs) for pairs in zip(*(run["test"][name]["reliability"] for run in runs), strict=True)]
        confidence, gap = zip(*((100 * said, 100 * (right - said)) for said, right in bins), strict=True)
        axes.plot(confidence, gap, color=colour, marker="o", markersize=4, label=name)
    axes.set(xlabel="confidence, %", ylabel="accuracy less confidence, %", title="Fashion-MNIST, calibration on test points")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(0.02, 0.58))


def draw_cost(axes: Axes) -> None:
    """Nats below the best ELBO against seconds, for every posterior of the same target."""
    rows = read_record("refinement-cpu")["results"]["40"]["posteriors"]
    rows = [row for row in rows if "evidence: precision" not in row["posterior"]]
    best = max(row["elbo"] for row in rows)
    for row in rows:
        name, gap = row["posterior"], best - row["elbo"]
        colour = COLOURS["burnish"] if name.startswith("recentred") else "#c86fa0"
        axes.scatter([row["seconds"]], [gap], color=colour, zorder=3)
        label, shift = LABELS[name.split(",")[0] if "Laplace at" in name else re.sub(r" \(.*\)", "", name)]
        place: Any = {"xytext": shift, "textcoords": "offset points", "va": "center", "fontsize": 9, "color": colour}
        axes.annotate(label, (row["seconds"], gap), **place)
    axes.set(xscale="log", xlim=(0.4, 150), xlabel="seconds on two cores", ylabel="nats below the best ELBO")
    axes.set(title="60,000 points, 850 weights, prior precision 40")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(3000, -0.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def average(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The mean of each coordinate."""
    first, second = zip(*pairs, strict=True)
    return sum(first) / len(first), sum(second) / len(second)


def overview() -> str:
    """The figure of the page on benchmarks as SVG text."""
    with matplotlib.rc_context(STYLE):
        canvas = Figure(figsize=(10, 3.9), layout="constrained")
        left, right = canvas.subplots(1, 2)
        draw_calibration(left)
        draw_cost(right)
        buffer = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(buffer, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return buffer.getvalue()


def figures() -> dict[str, str]:
    """Every figure as SVG text, by the name of its file."""
    studies = {f"study-{name}.svg": draw_study(read_record(f"study-{name}")) + "\n" for name in STUDIES}
    images = {f"{name}.svg": draw_image_study(read_record(name)) + "\n" for name in pictured()}
    few = {f"few-shot-{name}.svg": draw_few_shot(read_record(f"few-shot-{name}")) + "\n" for name in few_shot_sets()}
    layers = {"all-layer.svg": draw_all_layer(read_record("all-layer")) + "\n"}
    costs = {"costs.svg": draw_costs(read_record("costs")) + "\n"}
    tables = {"tabular.svg": draw_tabular(read_record("tabular")) + "\n"}
    whole = {"reproduction.svg": draw_reproduction() + "\n", "overview.svg": overview()}
    return {**whole, **studies, **images, **few, **layers, **costs, **tables}


def main() -> None:
    """Writes the figures, or with --check says which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale, made = [], figures()
    lost = sorted({path.name for path in FOLDER.glob("*.svg")} - made.keys())
    if lost:
        sys.exit(f"docs/figures must have figures of records alone, got {', '.join(lost)}. Make the records, or delete it.")
    for name, svg in made.items():
        path = FOLDER / name
        if path.exists() and path.read_text() == svg:
            continue
        stale.append(name)
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(svg)
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
