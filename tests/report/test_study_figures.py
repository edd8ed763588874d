"""Figures of the studies: from the results alone, valid, the same bytes each time."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from burnish.report.study_figures import draw_study
from burnish.studies import linearised_vs_mc, logistic_integral, mpa_vs_mc, toy_logistic

GRID = [0.0, 0.5, 1.0]
RESULTS = {
    "logistic-integral": (
        8,  # two of them bars of colour
        lambda: logistic_integral.run(
            0,
            logistic_integral.Settings(
                num_means=6, num_stds=6, num_samples=10, max_samples=100, num_repetitions=2, num_points=100, num_curves=5
            ),
            progress=False,
        ),
    ),
    "linearised-vs-mc": (
        3,
        lambda: {
            "data": {"x": [0.1, 0.9], "y": [0.0, 1.0]},
            "grid": GRID,
            "predictions": {
                name: {"mean": [0.0, 0.3 * number, 1.0], "std": [0.1, 0.2 + number, 0.3]}
                for number, name in enumerate((linearised_vs_mc.MC, linearised_vs_mc.LINEARISED, linearised_vs_mc.HMC))
            },
        },
    ),
    "mpa-vs-mc": (
        5,
        lambda: {
            "data": {"x": [[-1.0, 0.0], [1.0, 0.0]], "labels": [0, 1]},
            "side": [-6.0, 6.0, 2],
            "shown": 1.0,
            "maps": {name: [[0.5, 0.7], [0.9, 1.0]] for name in (*mpa_vs_mc.METHODS, mpa_vs_mc.MODE)},
            "priors": [
                {
                    "precision": 1.0,
                    "methods": {name: {"near": 0.9, "far": 0.6} for name in (*mpa_vs_mc.METHODS, mpa_vs_mc.MODE)},
                }
            ],
        },
    ),
    "toy-logistic": (
        6,
        lambda: toy_logistic.run(
            0,
            toy_logistic.Settings(num_datasets=1, num_chains=10, draws_per_chain=6, num_sets=1, num_splits=50, side=9),
            progress=False,
        ),
    ),
}


def check(svg, panels):
    """One well-formed element with as many panels, whose references point into itself."""
    root = ElementTree.fromstring(svg)
    assert "viewBox" in root.attrib
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert len(ids) == len(set(ids))
    for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
        assert "".join(used) in ids
    assert sum(bool(re.search(r"-axes_\d+$", name)) for name in ids) == panels
    assert "<text" not in svg  # letters are paths: no font is needed


@pytest.mark.parametrize("name", RESULTS)
def test_a_figure_has_its_panels_and_comes_from_what_json_keeps(name, untouched_rng):
    panels, make = RESULTS[name]
    record = {"study": name, "results": make()}
    svg = draw_study(record)
    check(svg, panels)
    assert svg == draw_study(json.loads(json.dumps(record)))


@pytest.mark.parametrize("name", RESULTS)
def test_the_committed_record_can_be_drawn(name):
    path = Path(__file__).resolve().parents[2] / "results" / f"study-{name}.json"
    check(draw_study(json.loads(path.read_text())), RESULTS[name][0])
    assert path.stat().st_size < 200_000


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match="`study` must be one of"):
        draw_study({"study": "toy", "results": {}})
