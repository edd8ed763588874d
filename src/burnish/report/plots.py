"""Figures as SVG text: text is drawn as paths, so no font is needed, and the same numbers give the same bytes.

Every function takes plain tensors by the name of the method. A method has one colour in all figures.
"""

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["confidence_histograms", "elbo_curves", "marginals", "method_colour", "most_different", "reliability_diagram"]

# after Okabe and Ito's palette, which people with any kind of colour vision can tell apart; the lighter ones darkened
_COLOURS = ("#3a3a3a", "#b87d00", "#56b4e9", "#00916a", "#c86fa0", "#0a4f9e", "#c84e00")
_INK = "#333333"
_STYLE: Any = {
    "svg.hashsalt": "burnish",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a method's name is not mathematics, whatever signs are in it
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.edgecolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
}
_WIDTH = 4.6
_DENSITY_POINTS = 160


def method_colour(name: str, names: tuple[str, ...]) -> str:
    """The colour of the method `name` in a study of the methods `names`."""
    return _COLOURS[names.index(name) % len(_COLOURS)]


def reliability_diagram(
    probs: Mapping[str, Tensor], targets: Tensor, *, colours: Mapping[str, str], num_bins: int = 10, min_count: int = 10
) -> str:
    """Accuracy against confidence in bins, with its standard error, and below how the confidences are spread.

    Bins have equal width, but neighbours are merged until each holds `min_count` points: the accuracy of two or three
    points says nothing. A marker sits at the mean confidence of its bin, and its area grows with the points in it.

    Args:
        probs: predictive probabilities (N, K) of each method.
        targets: class indices (N,).
        colours: of each method.
        num_bins: of the confidence between 0 and 1, before merging.
        min_count: points a bin must hold.
    """
    from matplotlib.ticker import FuncFormatter

    with _figure(4.3) as (figure, svg):
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.15))
        top.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
        width = 0.8 / num_bins / max(1, len(probs))
        for number, (name, values) in enumerate(probs.items()):
            confidence, accuracy, counts, spread = _bins(values, targets, num_bins, min_count)
            error = (accuracy * (1 - accuracy) / counts).sqrt()
            area = 12 + 90 * counts / counts.max()
            colour, order, points = colours[name], 3 + number, (confidence.tolist(), accuracy.tolist())
            top.errorbar(*points, error.tolist(), color=colour, linewidth=1.4, elinewidth=0.9, label=name, zorder=order)
            top.scatter(*points, area.tolist(), color=colour, linewidths=0, zorder=order)
            left = [(k + 0.1) / num_bins + number * width for k in range(num_bins)]
            bottom.bar(left, spread.tolist(), width, align="edge", color=colour)
        top.set(xlim=(-0.02, 1.04), ylim=(-0.04, 1.08), ylabel="accuracy in the bin")
        top.annotate("calibrated", (0.16, 0.19), rotation=34, ha="center", va="bottom", color=_INK, fontsize=9)
        top.legend(loc="upper left", bbox_to_anchor=(0.0, 1.04), handlelength=1.2, borderpad=0)
        bottom.set(yscale="log", ylim=(0.7, None), ylabel="digits", xlabel="confidence: the largest probability")
        bottom.yaxis.set_major_formatter(FuncFormatter(_whole))
    return svg()


def elbo_curves(
    traces: Mapping[str, Tensor], finals: Mapping[str, float], *, log_evidence: float, colours: Mapping[str, str]
) -> str:
    """How far the ELBO is below the log evidence as a flow is trained; logarithmic beyond one nat.

    Curves are running means over a fifth of the steps: one step of the paper's protocol sees one sample and 128 points,
    and by itself says little. They end in a dot, the ELBO as it was measured after training.

    Args:
        traces: the ELBO (steps,) estimated at each step of a flow's training.
        finals: the measured ELBO of every posterior; those without a trace are drawn as lines.
        log_evidence: what the ELBOs are bounds of.
        colours: of each method.
    """
    from matplotlib.ticker import FuncFormatter

    with _figure(3.7) as (figure, svg):
        axes = figure.subplots()
        levels = {name: log_evidence - value for name, value in finals.items()}
        gaps = {name: log_evidence - _running_mean(trace.double()) for name, trace in traces.items()}
        for name in (name for name in levels if name not in gaps):
            axes.axhline(levels[name], color=colours[name], linewidth=2.6, linestyle=(0, (4, 1.5)), label=name)
        for name, gap in gaps.items():
            last = len(traces[name])
            axes.plot(range(last - len(gap) + 1, last + 1), gap.tolist(), color=colours[name], label=name)
            axes.plot(last, levels[name], marker="o", markersize=6, color=colours[name], zorder=3, clip_on=False)
        shown = torch.cat([torch.tensor([1.0, *levels.values()], dtype=torch.float64), *gaps.values()])
        worst = float(shown[shown.isfinite()].max())
        axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
        decades = range(math.ceil(math.log10(worst)) + 1)
        axes.set_yticks([0.0, *(10.0**k for k in decades if len(decades) < 5 or k % 2 == 0)])
        axes.yaxis.set_major_formatter(FuncFormatter(_whole))
        axes.minorticks_off()
        axes.set_ylim(2.0 * worst, -0.5)
        axes.set(xlim=(0, None), xlabel="step", ylabel="nats below the log evidence")
        axes.axhline(0.0, color=_INK, linewidth=0.7, zorder=1)
        figure.legend(loc="outside lower center", handlelength=2.2)
    return svg()


def marginals(
    draws: Mapping[str, Tensor], weights: Mapping[str, int], *, colours: Mapping[str, str], reference: Tensor | None = None
) -> str:
    """The density of single weights under each posterior, one panel for each weight.

    Args:
        draws: (S, d) of each posterior.
        weights: indices into d by the title of their panel, as `most_different` finds them.
        colours: of each method.
        reference: (d,): a value of each weight to mark with a tick on the axis.
    """
    rows = math.ceil(len(weights) / 2)
    with _figure(0.25 + 0.2 * len(draws) + 1.3 * rows) as (figure, svg):
        panels = figure.subplots(rows, 2, squeeze=False).flatten()
        for axes, (title, index) in zip(panels, weights.items(), strict=False):
            for number, (name, theta) in enumerate(draws.items()):
                _draw_density(axes, theta[:, index], label=name, color=colours[name], linewidth=_line_width(number, draws))
            if reference is not None:
                axes.plot(
                    float(reference[index]), 0.0, marker="^", color=_INK, markersize=6, clip_on=False, linestyle="none"
                )
            axes.set(title=title, yticks=[], ylim=(0, None))
            axes.spines["left"].set_visible(False)
            axes.locator_params(axis="x", nbins=4)
        for axes in panels[len(weights) :]:
            axes.remove()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", handlelength=1.6)
    return svg()


def confidence_histograms(confidences: Mapping[str, Mapping[str, Tensor]], *, colours: Mapping[str, str]) -> str:
    """Histograms of the largest probability: one panel for each set of images, one line for each method.

    Args:
        confidences: for each set of images, the largest probability (N,) of each method.
        colours: of each method.
    """
    rows = math.ceil(len(confidences) / 2)
    with _figure(0.7 + 1.85 * rows) as (figure, svg):
        panels = figure.subplots(rows, 2, squeeze=False, sharex=True).flatten()
        edges = [k / 10 for k in range(11)]
        for axes, (title, methods) in zip(panels, confidences.items(), strict=False):
            for number, (name, values) in enumerate(methods.items()):
                share = torch.histc(values.float().cpu(), 10, 0.0, 1.0) / len(values)
                axes.stairs(share.tolist(), edges, color=colours[name], linewidth=_line_width(number, methods), label=name)
                axes.text(
                    0.04, 0.93 - 0.14 * number, f"mean {float(values.double().mean()):.2f}", color=colours[name],
                    transform=axes.transAxes, va="top", fontsize=9,
                )  # fmt: skip
            axes.set(title=title, xlim=(0, 1), ylim=(0, 1.04), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        for axes in panels[len(confidences) :]:
            axes.remove()
        figure.supxlabel("confidence: the largest probability", fontsize=9.5)
        figure.supylabel("share of the images", fontsize=9.5)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handlelength=1.2, columnspacing=1.2)
    return svg()


def most_different(draws: Mapping[str, Tensor], num_weights: int) -> list[int]:
    """The weights whose marginals differ most: by the Kolmogorov-Smirnov distance, summed over pairs of posteriors."""
    values = list(draws.values())
    total = torch.zeros(values[0].shape[1], dtype=torch.float64)
    for i, left in enumerate(values):
        for right in values[i + 1 :]:
            total += _kolmogorov_smirnov(left, right)
    return [int(index) for index in total.sort(descending=True, stable=True).indices[:num_weights]]


def _kolmogorov_smirnov(left: Tensor, right: Tensor) -> Tensor:
    """The largest distance between the distribution functions of each column (d,)."""
    left, right = left.T.contiguous().sort(1).values, right.T.contiguous().sort(1).values
    points = torch.cat([left, right], dim=1).contiguous()
    below = [torch.searchsorted(part, points, right=True).double() / part.shape[1] for part in (left, right)]
    return (below[0] - below[1]).abs().amax(1)


def _bins(probs: Tensor, targets: Tensor, num_bins: int, min_count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the merged bins mean confidence, accuracy and number of points; and the numbers before merging (num_bins,)."""
    confidence, predicted = probs.detach().cpu().double().max(1)
    edges = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    spread = torch.bucketize(confidence, edges).bincount(minlength=num_bins)
    merged, total = [], 0
    for edge, count in zip(edges, spread, strict=False):
        total += int(count)
        if total >= min_count and len(confidence) - int((confidence <= edge).sum()) >= min_count:
            merged.append(float(edge))
            total = 0
    index = torch.bucketize(confidence, torch.tensor(merged, dtype=torch.float64))
    sums = torch.zeros(3, len(merged) + 1, dtype=torch.float64)
    hit = (predicted == targets.cpu()).double()
    for row, values in zip(sums, (confidence, hit, torch.ones_like(confidence)), strict=True):
        row.index_add_(0, index, values)
    return sums[0] / sums[2], sums[1] / sums[2], sums[2], spread


def _running_mean(values: Tensor) -> Tensor:
    """The mean over the last fifth of the steps, at each step that has so many before it."""
    window = max(1, len(values) // 5)
    return values.unfold(0, window, 1).mean(1)


def _whole(value: float, position: int | None = None) -> str:
    """A tick's label; matplotlib's own for logarithmic axes are mathematics, which is not parsed here."""
    return f"{value:,.0f}"


def _line_width(number: int, methods: Mapping[str, Any]) -> float:
    """Broad lines below, narrow ones above: where curves coincide, all of them remain visible."""
    return 1.3 + 0.9 * (len(methods) - 1 - number)


def _draw_density(axes: "Axes", values: Tensor, **line: Any) -> None:
    """A Gaussian kernel density with Silverman's bandwidth; a vertical line where all values are one."""
    values = values.detach().cpu().double()
    std = float(values.std()) if len(values) > 1 else 0.0
    if not std > 1e-12 * max(1.0, float(values.abs().max())):
        axes.axvline(float(values[0]), **line)
        return
    low, high = (float(edge) for edge in values.quantile(torch.tensor([0.001, 0.999], dtype=torch.float64)))
    bandwidth = 1.06 * std * len(values) ** -0.2
    grid = torch.linspace(low - 2 * bandwidth, high + 2 * bandwidth, _DENSITY_POINTS, dtype=torch.float64)
    kernel = torch.exp(-0.5 * ((grid.unsqueeze(1) - values) / bandwidth) ** 2)
    density = kernel.mean(1) / (bandwidth * math.sqrt(2 * math.pi))
    axes.plot(grid.tolist(), density.tolist(), **line)


@contextmanager
def _figure(height: float) -> Iterator[tuple["Figure", Callable[[], str]]]:
    """A figure in the common style, and a function that gives its SVG once the block has been left."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    texts: list[str] = []
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, lambda: texts[0]
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)  # type: ignore[no-untyped-call]
        texts.append(_embeddable(buffer.getvalue()))


def _embeddable(svg: str) -> str:
    """The svg element alone, sized by its container, with ids that no other figure on the page has."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # a hundredth of a point is enough
    svg = re.sub(r'(<image[^>]*?) id="[^"]*"', r"\1", svg)  # equal images have equal ids, and nothing refers to them
    mark = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'\bid="', f'id="{mark}-', svg)
    svg = re.sub(r'href="#', f'href="#{mark}-', svg)
    return re.sub(r"url\(#", f"url(#{mark}-", svg)
