"""The figure of costs: drawn from a record alone, with what the paper prints where sizes are the paper's."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from burnish.report import plots
from burnish.report.costs_figure import draw_costs
from burnish.studies.costs import Settings

PRINTED = "printed in the paper"


def make_record(settings: Settings) -> dict[str, Any]:
    classes = {
        f"classes-{count}": {
            "classes": count,
            "rows": {name: {"seconds": 1.0 + count} for name in ("paper", "base", "refined")},
        }
        for count in settings.classes
    }
    sizes = [{"points": 10, "parameters": 20}, {"points": 100, "parameters": 200}]
    curve = [{**size, "base_seconds": 1.0, "refined": {"seconds": 2.0}, "paper": {"seconds": 3.0}} for size in sizes]
    parts = {**classes, "points": {"rows": curve}, "parameters": {"rows": curve}}
    return {"device": "a device", "config": {"seed": 0, **vars(settings)}, "parts": parts}


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setitem(plots._STYLE, "svg.fonttype", "none")

    def drawn(record: dict[str, Any]) -> list[str]:
        svg = draw_costs(record)
        assert svg == draw_costs(record)
        return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]

    return drawn


@pytest.mark.parametrize(("settings", "printed"), [(Settings(), True), (Settings.small(), False)])
def test_printed_seconds_stand_beside_those_of_the_same_sizes(settings, printed, words):
    found = words(make_record(settings))
    assert (PRINTED in found) == printed
    assert {"the paper's flow", "our base", "our refinement of it", "What refinement costs, on a device"} <= set(found)


def test_parts_that_failed_are_left_out(words):
    record = make_record(Settings())
    assert "parameters" in words(record)
    record["parts"] = {"points": record["parts"]["points"]}
    assert not {"parameters", PRINTED} & set(words(record))
