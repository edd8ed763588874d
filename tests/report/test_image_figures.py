"""Figures of the image studies: from the record alone, valid, the same bytes each time, whatever seeds lack."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from burnish.report import plots
from burnish.report.image_figures import draw_image_study
from burnish.report.image_panels import Results, average
from burnish.studies.image_methods import LABELS
from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.protocols import BENCHMARKS

LAYER = ["MAP", "MAP-Temp", "LA", "LA-Refine-1", "LA-Refine-5", "recentred LA", "flow", "burnish", "refine", "HMC"]
LEVELS, COUNTS, LENGTHS = [0, 1, 2, 3, 4, 5], [1, 10, 20], [1, 5, 10, 20]
PRINTED = "printed in the paper"
# panels under the paper's protocol, and methods of which none may be missing; of ood, one panel for each set outside
EXPECTED = {
    "image-calibration": (3, [*LAYER, "VB", "CSGHMC"]),
    "ood": (None, [*LAYER, "VB", "CSGHMC"]),
    "shift": (2, ["MAP", "MAP-Temp", "LA", "LA-Refine-5", "burnish", "refine", "VB", "CSGHMC", "HMC"]),
    "few-vs-many": (3, ["LA", "recentred LA", "burnish", "HMC", "LA S=960", "MPA"]),
    "flow-from-prior": (2, ["N(0,I)+NF", "LA+NF"]),
    "marginals": (6, ["LA", "LA-Refine-1", "LA-Refine-5", "recentred LA", "HMC"]),
    "text": (3, LAYER),
    "correlation": (1, [name for name in LAYER if name not in ("MAP-Temp", "refine", "HMC")]),
}


def make_part(study, dataset, seed, has_baselines):
    """Results of one seed, in the shape that its study leaves, with a number for each method and seed."""
    names = [*LAYER, *(["VB", "CSGHMC"] if has_baselines else [])]
    at = {name: 0.2 + 0.01 * number + 0.003 * seed for number, name in enumerate(names)}
    score = {name: {"nll": v, "ece": 0.1 * v, "paper_ece": 0.2 * v, "accuracy": 0.9} for name, v in at.items()}
    distances = {name: {"mmd": v - 0.25, "mmd_paper": v} for name, v in at.items() if name not in ("VB", "CSGHMC", "refine")}
    if study in ("image-calibration", "text"):
        rows = {name: {"few": score[name], "many": score[name], "tv": 0.1, **distances.get(name, {})} for name in names}
        return {"rows": rows, "judge": {"range": [-0.01, 0.01], "bandwidth": 1.0, "draws": 48}}
    if study == "ood":
        outside = BENCHMARKS[dataset].outside
        rates = {name: {"confidence": {"fpr95": v}, "entropy": {"fpr95": v - 0.05}} for name, v in at.items()}
        extra = {name: {"mutual information": {"fpr95": v + 0.1}} for name, v in at.items() if "MAP" not in name}
        rows = {name: dict.fromkeys(outside, rates[name] | extra.get(name, {})) for name in names}
        return {"rows": rows, "sizes": dict.fromkeys(outside, 100)}
    if study == "shift":
        rows = {
            name: {key: [score[name][key] * (1 + x) for x in LEVELS] for key in ("nll", "accuracy", "ece")} for name in names
        }
        return {"levels": LEVELS, "rows": rows}
    if study == "few-vs-many":
        rows = ("LA S=960", "HMC S=10", "HMC S=48", "MPA", "recentred LA S=10", "burnish S=10")
        curves = {name: [score[name]] * len(COUNTS) for name in ("LA", "recentred LA", "burnish", "HMC")}
        return {"rows": dict.fromkeys(rows, score["LA"]), "counts": COUNTS, "curves": curves}
    if study == "flow-from-prior":
        nll = {"N(0,I)+NF": [1.4, 0.3, 0.2, 0.18 + 0.01 * seed], "LA+NF": [0.17, 0.16, 0.16, 0.16]}
        return {"lengths": LENGTHS, "nll": nll, "seconds": [4.0, 7.0, 10.0, 14.0 + seed]}
    if study == "marginals":
        grid = [-1.0, -0.5, 0.0, 0.5, 1.0]
        densities = {name: [0.0, v, 2.0, 0.3, 0.0] for name, v in at.items() if name in distances and "MAP" not in name}
        weights = [{"index": 7 * k, "network": 0.1 * k, "grid": grid, "densities": densities} for k in range(6)]
        return {"rows": {name: {"ks": 0.1} for name in densities}, "weights": weights}
    column = {name: {"mmd": row["mmd_paper"], "nll": at[name]} for name, row in distances.items()}
    return {"rows": {name: row for name, row in column.items() if name not in ("MAP-Temp", "HMC")}, "hmc_nll": at["HMC"]}


def make_record(study, dataset="cifar-10", protocol="paper", num_seeds=2, made=False):
    """Only the first seed has networks by VB and CSGHMC."""
    config = {"dataset": dataset, "protocol": protocol, "made_images": made, "few": 8, "lengths": [1, 5], "num_epochs": None}
    seeds = {str(seed): make_part(study, dataset, seed, seed == 0) for seed in range(num_seeds)}
    return {"study": study, "config": config, "failures": {}, "seeds": seeds}


def blank(value):
    """The same without any measured number, as records keep what is not finite; counts and grids stay."""
    if isinstance(value, dict):
        return {key: part if key == "grid" else blank(part) for key, part in value.items()}
    if isinstance(value, list):
        return [blank(part) for part in value]
    return None if isinstance(value, float) else value


@pytest.fixture
def draw(monkeypatch):
    """Draws with letters as text, which are outlines otherwise: gives the SVG, checked, and its words."""
    monkeypatch.setitem(plots._STYLE, "svg.fonttype", "none")

    def draw(record):
        svg = draw_image_study(record)
        root = ElementTree.fromstring(svg)
        assert "viewBox" in root.attrib
        assert "nan" not in svg
        ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
        assert len(ids) == len(set(ids))
        for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
            assert "".join(used) in ids
        outside = BENCHMARKS[record["config"]["dataset"]].outside
        panels = len(outside) if record["study"] == "ood" else EXPECTED[record["study"]][0]
        panels -= record["study"] == "few-vs-many" and record["config"]["protocol"] == "ours"  # without the paper's ECE
        assert sum(bool(re.search(r"-axes_\d+$", name)) for name in ids) == panels
        return svg, ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]

    return draw


@pytest.mark.parametrize("study", IMAGE_STUDIES)
def test_a_figure_names_its_methods_and_data_and_has_the_same_bytes_each_time(study, draw, untouched_rng):
    record = make_record(study)
    svg, words = draw(record)
    assert {LABELS.get(name, name) for name in EXPECTED[study][1]} <= set(words)
    seeds = "seed 0" if study == "marginals" else "2 seeds"
    if "VB" in record["seeds"]["0"].get("rows", {}):
        seeds += ", 1 of VB and CSGHMC"
    assert words.count(f"CIFAR-10, the paper's protocol, {seeds}") == 1
    assert any(word.startswith(PRINTED) for word in words) == (study != "marginals")
    assert svg == draw_image_study(json.loads(json.dumps(record)))


@pytest.mark.parametrize("study", IMAGE_STUDIES)
def test_one_seed_is_enough_and_our_protocol_is_not_compared_with_the_paper(study, draw):
    _, words = draw(make_record(study, "fashion-mnist", "ours", num_seeds=1))
    assert {LABELS.get(name, name) for name in EXPECTED[study][1]} <= set(words)
    assert words.count(f"Fashion-MNIST, our protocol, {'seed 0' if study == 'marginals' else '1 seed'}") == 1
    assert not any("paper" in word for word in words)


@pytest.mark.parametrize("study", IMAGE_STUDIES)
def test_what_is_not_known_is_left_out(study, draw):
    record = make_record(study)
    record["seeds"] = blank(record["seeds"])
    _, words = draw(record)
    assert {LABELS.get(name, name) for name in EXPECTED[study][1]} <= set(words)


def test_some_unknown_values_leave_the_others(draw):
    record = make_record("correlation")
    both, first = (draw(part)[0].count("<use") for part in (record, make_record("correlation", num_seeds=1)))
    record["seeds"]["1"] = blank(record["seeds"]["1"])
    assert draw(record)[0].count("<use") == first == both - len(EXPECTED["correlation"][1])  # a point for each method


def test_a_part_of_the_images_is_not_compared_with_the_paper(draw):
    record = make_record("correlation")
    assert PRINTED in draw(record)[1]
    record["config"] |= {"num_epochs": 20, "num_train": 10_000}
    _, words = draw(record)
    assert "CIFAR-10 (10,000 training images), the paper's protocol, 2 seeds" in words
    assert PRINTED not in words


def test_made_images_are_not_compared_with_the_paper(draw):
    _, words = draw(make_record("correlation", made=True))
    assert "CIFAR-10 (made images), the paper's protocol, 2 seeds" in words
    assert PRINTED not in words


def test_letters_are_outlines():
    assert "<text" not in draw_image_study(make_record("correlation"))  # no font is needed


def test_baselines_are_averaged_over_the_seeds_that_have_them():
    record = make_record("image-calibration", num_seeds=3)
    marks = Results(record).marks(lambda row: row["few"]["nll"])
    assert list(marks)[-3:] == ["VB", "CSGHMC", "HMC"]
    assert marks["VB"] == (record["seeds"]["0"]["rows"]["VB"]["few"]["nll"], 0.0)
    assert marks["MAP"] == pytest.approx((0.203, 0.003 / math.sqrt(3)))


def test_an_average_is_of_what_is_known():
    assert average([1.0, None, 3.0, math.inf], 10.0) == (20.0, pytest.approx(10.0))
    assert average([5.0]) == (5.0, 0.0)
    assert math.isnan(average([None])[0])


def test_distances_below_the_logarithmic_axis_are_pointed_at(draw):
    record = make_record("image-calibration", protocol="ours")
    assert "below the axis" in draw(record)[1]  # some are negative
    for row in (row for part in record["seeds"].values() for row in part["rows"].values()):
        row |= {"mmd": 0.5} if "mmd" in row else {}
    assert "below the axis" not in draw(record)[1]


def test_networks_far_beyond_those_of_the_last_layer_are_pointed_at(draw):
    """They would take the room of all others; the number stands beside the arrow."""
    record = make_record("image-calibration", protocol="ours")
    assert "1.23" not in draw(record)[1]
    record["seeds"]["0"]["rows"]["VB"]["few"]["nll"] = 1.234
    assert draw(record)[1].count("1.23") == 1
    record["seeds"]["0"]["rows"]["VB"]["few"]["nll"] = 0.234
    assert "0.23" not in draw(record)[1]


def test_negative_distances_have_a_place_in_the_correlation(draw):
    record = make_record("correlation", protocol="ours")
    assert "0" not in draw(record)[1]
    record["seeds"]["0"]["rows"]["burnish"]["mmd"] = -0.003
    assert {"0", "0.01", "0.1"} <= set(draw(record)[1])


def test_a_record_without_results_is_refused():
    with pytest.raises(ValueError, match="results of a seed at least"):
        draw_image_study(make_record("ood", num_seeds=0))


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match=r"`study` must be one of .*'image-calibration'.*'text', got 'toy-logistic'"):
        draw_image_study({"study": "toy-logistic", "results": {}})
