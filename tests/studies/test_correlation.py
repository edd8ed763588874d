"""Distance to HMC against NLL: from the same numbers as the table of calibration."""

import json

import pytest
from image_cases import make_record
from scipy import stats

from burnish.studies import correlation
from burnish.studies.image_calibration import run_seed as calibrate

pytestmark = pytest.mark.filterwarnings("ignore:the validation is best at the bound")


@pytest.mark.parametrize(("protocol", "column"), [("paper", "mmd_paper"), ("ours", "mmd")])
def test_rows_are_those_of_the_table_of_calibration(protocol, column, request):
    methods = request.getfixturevalue(protocol)
    part, table = correlation.run_seed(methods), calibrate(methods)["rows"]
    assert list(part["rows"]) == [name for name in methods.names if name not in ("MAP-Temp", "refine", "HMC")]
    for name, row in part["rows"].items():
        assert row == {"mmd": table[name][column], "nll": table[name]["few"]["nll"]}
    assert part["hmc_nll"] == table["HMC"]["few"]["nll"]
    json.dumps(part, allow_nan=False)


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_a_record_of_calibration_holds_one_of_this_study(protocol, request):
    methods = request.getfixturevalue(protocol)
    known = {"network": "abc", "seconds_in_all": 3.0, "origin": {"device": "a CPU"}}
    part = calibrate(methods) | known
    part["rows"]["VB"] = {"few": {"nll": 0.1}}  # trained otherwise: without a distance
    whole = make_record("cifar-10", protocol, part) | {"study": "image-calibration", "seconds": 3.0}
    whole["config"]["baseline_seeds"] = [0]
    before = json.dumps(whole)
    found = correlation.from_calibration(whole)
    assert json.dumps(whole) == before
    assert found["study"] == "correlation"
    assert found["config"] == whole["config"] | {"baseline_seeds": []}
    assert found["seeds"] == {
        "0": known | correlation.run_seed(methods) | {"source": "image-calibration", "seconds_in_all": 0.0}
    }


def test_the_table_ends_with_pearsons_and_spearmans():
    distance, nll = [0.9, 0.4, 0.35, 0.01, 0.3], [0.31, 0.30, 0.27, 0.271, 0.26]
    names = ["MAP", "LA", "LA-Refine-1", "flow", "recentred LA"]
    points = list(zip(names, distance, nll, strict=True))
    parts = [{"rows": {name: {"mmd": x + shift, "nll": y} for name, x, y in points}} for shift in (-0.005, 0.005)]
    header, rows = correlation.summary(make_record("cifar-10", "paper", *parts))
    assert header == ["method", "MMD to HMC", "NLL"]
    assert rows[0] == ["network (MAP)", "0.9000 ± 0.0050", "0.3100 ± 0.0000"]
    for row, count in ((rows[-2], 5), (rows[-1], 3)):  # of all methods, and of the paper's
        pair = distance[:count], nll[:count]
        assert row[1:] == [f"{stats.pearsonr(*pair)[0]:.2f}", f"{stats.spearmanr(*pair)[0]:.2f}"]
    assert [row[0] for row in rows[:-2]] == ["network (MAP)", "LA", "LA-Refine-1", "burnish, flow", "recentred LA"]
