"""Figures of the studies that are kept part by part."""

from collections.abc import Callable, Mapping
from typing import Any

from burnish._checks import check_choice
from burnish.report.all_layer_figure import draw_all_layer
from burnish.report.costs_figure import draw_costs
from burnish.report.few_shot_figure import draw_few_shot
from burnish.report.tabular_figure import draw_tabular

__all__ = ["draw_part_study"]

_FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "all-layer": draw_all_layer,
    "costs": draw_costs,
    "few-shot": draw_few_shot,
    "tabular": draw_tabular,
}


def draw_part_study(record: Mapping[str, Any]) -> str:
    """The figure of a record as SVG text."""
    check_choice("study", record["study"], _FIGURES)
    return _FIGURES[record["study"]](record)
