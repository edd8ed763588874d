"""Figures of the studies, each drawn from the results of its record alone, in the style of the other figures."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish._checks import check_choice
from burnish.report.plots import _COLOURS, _INK, _figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_study"]

_GREY, _AMBER, _SKY, _GREEN, _PINK, _BLUE, _RED = _COLOURS
_PALE = {_AMBER: "#f1e4c9", _BLUE: "#b4cae4"}  # bands, not transparent: where two overlap, a mixture would be a third
_MARKERS = "osD^v<>p"
_SMALL = 8.5  # points, for what stands inside a panel
_CONTOURS = (-3.0, -1.5, -0.4)  # log density less its maximum; further out an estimate from few draws is all islands


def draw_study(record: Mapping[str, Any]) -> str:
    """The figure of a study's record as SVG text."""
    figures: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "logistic-integral": _logistic_integral,
        "linearised-vs-mc": _linearised_vs_mc,
        "mpa-vs-mc": _mpa_vs_mc,
        "toy-logistic": _toy_logistic,
    }
    check_choice("study", record["study"], figures)
    return figures[record["study"]](record["results"])


def _logistic_integral(results: Mapping[str, Any]) -> str:
    """What is integrated, the standard error, both maps of errors, and errors against the number of draws."""
    with _figure(6.6) as (figure, svg):
        # every row is laid out by itself: the bars beside the maps would narrow all panels
        rows = [part.subplots(1, 2) for part in figure.subfigures(3, 1, squeeze=False)[:, 0]]
        _draw_integrand(rows[0][0], **results["integrand"])
        _draw_standard_errors(rows[0][1], results["standard_error"])
        count = results["monte_carlo"]["num_samples"]
        _draw_errors(rows[1][0], results, "monte_carlo", f"Monte Carlo, S = {count}")
        _draw_errors(rows[1][1], results, "probit", "probit")
        for axes, what, name in ((rows[2][0], "max", "largest error"), (rows[2][1], "mean", "mean error")):
            _draw_by_size(axes, results, what)
            axes.set(title="over the grid", xlabel="draws S", ylabel=name)
        rows[2][0].legend(loc="upper right", handlelength=1.2, borderpad=0, fontsize=_SMALL)
    return svg()


def _draw_integrand(axes: "Axes", mean: float, std: float) -> None:
    f = torch.linspace(mean - 4 * std, mean + 4 * std, 200, dtype=torch.float64)
    density = torch.exp(-0.5 * ((f - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    height = 1.0 / float(density.max())  # all curves up to one, so that their shapes can be compared
    axes.plot(f.tolist(), f.sigmoid().tolist(), color=_GREY, label="sigmoid")
    axes.plot(f.tolist(), (height * density).tolist(), color=_SKY, label="Gaussian")
    product = (height * density * f.sigmoid()).tolist()
    axes.fill_between(f.tolist(), product, color=_BLUE, alpha=0.25, linewidth=0)
    axes.plot(f.tolist(), product, color=_BLUE, label="product")
    axes.set(title=f"the integrand, m = {mean:g}, s = {std:g}", xlabel="f", ylabel="value", yticks=[0, 1], ylim=(0, 1.75))
    axes.legend(loc="upper left", handlelength=1.0, borderpad=0, fontsize=_SMALL, ncols=2, columnspacing=0.8)


def _draw_standard_errors(axes: "Axes", results: Mapping[str, Any]) -> None:
    sizes = results["sizes"]
    for cell, colour in zip(results["cells"], (_GREEN, _AMBER, _BLUE), strict=True):
        exact = [cell["integrand_std"] / math.sqrt(size) for size in sizes]
        axes.plot(sizes, exact, color=colour, linewidth=1.3, label=f"{cell['mean']:g}, {cell['std']:g}")
        axes.plot(sizes, cell["empirical"], color=colour, marker="o", markersize=3.5, linestyle="none")
    _log_axes(axes)
    axes.set(title="error expected at (m, s)", xlabel="draws S", ylabel="standard error")
    axes.legend(title="m, s", title_fontsize=_SMALL, loc="lower left", handlelength=1.0, borderpad=0, fontsize=_SMALL)


def _draw_errors(axes: "Axes", results: Mapping[str, Any], name: str, title: str) -> None:
    """A map that is white where there is no error, with its largest one marked."""
    from matplotlib.ticker import MaxNLocator

    (left, right), (_, top) = results["grid"]["means"], results["grid"]["stds"]
    values = torch.tensor(results["maps"][name]).T.numpy()
    image = axes.imshow(values, origin="lower", extent=(left, right, 0.0, top), aspect="auto", cmap="Blues", vmin=0.0)
    axes.plot(*results[name]["at"], marker="o", color=_RED, markersize=6, clip_on=False, zorder=3)
    axes.set(title=f"error, {title}", xlabel="m", ylabel="s")
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.08, pad=0.03)
    bar.locator = MaxNLocator(nbins=4)
    bar.update_ticks()


def _draw_by_size(axes: "Axes", results: Mapping[str, Any], what: str) -> None:
    """Monte Carlo's error with its range over repetitions, and the level of probit's."""
    sizes, spread = results["by_size"]["sizes"], results["by_size"][what]
    axes.fill_between(sizes, spread["low"], spread["high"], color=_BLUE, alpha=0.25, linewidth=0)
    axes.plot(sizes, spread["median"], color=_BLUE, label="Monte Carlo")
    axes.axhline(results["probit"][what], color=_AMBER, linestyle=(0, (4, 1.5)), label="probit")
    _log_axes(axes)


def _linearised_vs_mc(results: Mapping[str, Any]) -> str:
    """Bands of one standard deviation over the grid, and how means and standard deviations are spread over it."""
    names = tuple(results["predictions"])
    colours = dict(zip(names, (_AMBER, _BLUE, _GREY), strict=True))
    with _figure(4.9) as (figure, svg):
        spaces = figure.add_gridspec(2, 2, height_ratios=(1.5, 1.0))
        axes = figure.add_subplot(spaces[0, :])
        for name in names:
            mean, std = (torch.tensor(results["predictions"][name][what]) for what in ("mean", "std"))
            last = name == names[-1]  # the judge is drawn as thin lines, over the bands of the others
            if not last:
                edges = (mean - std).tolist(), (mean + std).tolist()
                axes.fill_between(results["grid"], *edges, color=_PALE[colours[name]], linewidth=0)
            axes.plot(results["grid"], mean.tolist(), color=colours[name], label=name, linewidth=1.2 if last else 2.4)
            for side in (-1.0, 1.0) if last else ():
                line = {"color": colours[name], "linewidth": 1.0, "linestyle": (0, (3, 2))}
                axes.plot(results["grid"], (mean + side * std).tolist(), **line)
        points: dict[str, Any] = {"color": _INK, "marker": "o", "markersize": 3, "linestyle": "none", "zorder": 4}
        axes.plot(results["data"]["x"], results["data"]["y"], **points, label="data")
        axes.set(xlabel="x", ylabel="output ± one std")
        for number, (what, title) in enumerate((("mean", "predictive means"), ("std", "predictive stds"))):
            _draw_spread(figure.add_subplot(spaces[1, number]), results, what, title, colours)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handlelength=1.2, columnspacing=1.2)
    return svg()


def _draw_spread(axes: "Axes", results: Mapping[str, Any], what: str, title: str, colours: Mapping[str, str]) -> None:
    """Histograms over the grid, with the same bins for all methods."""
    values = {name: torch.tensor(part[what]) for name, part in results["predictions"].items()}
    together = torch.cat(list(values.values()))
    edges = torch.linspace(float(together.min()), float(together.max()), 26).tolist()
    for name, part in values.items():
        axes.hist(part.tolist(), edges, density=True, color=colours[name], histtype="step", linewidth=1.5)
    axes.set(title=f"{title} over the grid", yticks=[], ylabel="density")
    axes.locator_params(axis="x", nbins=5)


def _mpa_vs_mc(results: Mapping[str, Any]) -> str:
    """Confidence over the plane, one panel for each method, with the training points."""
    low, high, _ = results["side"]
    labels = torch.tensor(results["data"]["labels"])
    points = torch.tensor(results["data"]["x"])
    prior = next(part for part in results["priors"] if part["precision"] == results["shown"])
    chance = 1.0 / (int(labels.max()) + 1)
    with _figure(4.9) as (figure, svg):
        panels = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
        for axes, (name, values) in zip(panels, results["maps"].items(), strict=True):
            image = axes.imshow(
                torch.tensor(values).T.numpy(),
                origin="lower",
                extent=(low, high, low, high),
                cmap="Blues",
                vmin=chance,
                vmax=1,
            )
            for label, marker in zip(sorted(set(results["data"]["labels"])), _MARKERS, strict=False):
                part = points[labels == label]
                style: dict[str, Any] = {"markersize": 2.2, "linestyle": "none", "markeredgewidth": 0.3}
                axes.plot(*part.T.tolist(), marker=marker, color=_RED, markeredgecolor="white", **style)
            row = prior["methods"][name]
            axes.set_title(f"{name}\nnear {row['near']:.2f}, far {row['far']:.2f}")
            axes.set(xticks=[low, 0, high], yticks=[low, 0, high])
        for axes in panels[2:]:
            axes.set_xlabel("first input")
        for axes in panels[::2]:
            axes.set_ylabel("second input")
        figure.colorbar(image, ax=panels.tolist(), location="bottom", fraction=0.05, aspect=40, label="confidence")
    return svg()


def _toy_logistic(results: Mapping[str, Any]) -> str:
    """One panel for each posterior: exact contours in black, and those of a density estimate from its draws in colour."""
    picture, methods = results["picture"], results["datasets"][0]["methods"]
    colours = dict(zip(picture["draws"], (_PINK, _AMBER, _SKY, _BLUE, _GREEN), strict=True))
    with _figure(6.4) as (figure, svg):
        panels = figure.subplots(3, 2, sharex=True, sharey=True).flatten()
        for axes, (name, columns) in zip(panels, picture["draws"].items(), strict=False):
            exact = torch.tensor(picture["log_density"])
            estimate = _density(torch.tensor(columns).T, picture["sides"])
            for values, line in ((exact, {"colors": "black", "linewidths": 0.8}), (estimate, {"colors": colours[name]})):
                axes.contour(*picture["sides"], values.T.numpy(), levels=_CONTOURS, linestyles="solid", **line)
            axes.set_title("HMC" if name == "HMC" else f"{name}: {methods[name]['biased']:.3f}")
            axes.xaxis.set_tick_params(labelbottom=True)
        panels[-1].axis("off")
        lines = (("exact posterior", "black", 0.8), (f"density of {results['num_draws']} draws", _INK, 1.8))
        handles = [panels[-1].plot([], [], color=ink, linewidth=width, label=label)[0] for label, ink, width in lines]
        panels[-1].legend(handles=handles, loc="center", handlelength=1.4, title="In titles: MMD² to HMC")
        figure.supxlabel("weight 1", fontsize=9.5)
        figure.supylabel("weight 2", fontsize=9.5)
    return svg()


def _density(points: Tensor, sides: list[list[float]]) -> Tensor:
    """The log of a Gaussian kernel density on a grid, less its maximum; as wide as Scott's rule has it, along the draws."""
    points = points.double()
    factor = torch.linalg.cholesky(points.T.cov()) * len(points) ** (-1.0 / 6.0)
    grid = torch.cartesian_prod(*(torch.tensor(side, dtype=torch.float64) for side in sides))
    near, far = (torch.linalg.solve_triangular(factor, part.T, upper=False).T for part in (grid, points))
    log_density = (-0.5 * torch.cdist(near, far) ** 2).logsumexp(1)
    return (log_density - log_density.max()).view(len(sides[0]), len(sides[1]))


def _log_axes(axes: "Axes") -> None:
    """Both logarithmic, with a few plain numbers as labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1000 else f"{value / 1000:g}k"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10.0, numticks=6))
        axis.set_minor_formatter(NullFormatter())
