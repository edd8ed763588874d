"""Which records are older than the code that reads them."""

import importlib
from dataclasses import asdict

import pytest

from burnish.studies.data.tables import TABLES
from burnish.studies.image_settings import ImageSettings
from burnish.studies.outdated import lacking, outdated
from burnish.studies.part_studies import PART_STUDIES
from burnish.studies.records import STUDIES, finite
from burnish.studies.workspace import VERSION


def record(study="ood", dataset="cifar-10", settings=None, **changes):
    sizes = finite(asdict(ImageSettings() if settings is None else settings))
    config = {"dataset": dataset, "protocol": "ours", **sizes, "seeds": [0]} | changes
    return {"study": study, "version": VERSION, "config": config}


def test_records_of_todays_sizes_are_not():
    assert outdated(record()) is None
    assert outdated(record(settings=ImageSettings.short())) is None
    assert outdated(record("text", "sst-fine", ImageSettings.text("ours"))) is None
    assert outdated(record(dataset="cifar-100", settings=ImageSettings.usual("cifar-100", "ours"))) is None
    assert "`num_chains` 300, and the code has 120" in str(outdated(record(dataset="cifar-100", protocol="paper")))


def test_another_version_or_size_is_said():
    old = record() | {"version": 1}
    assert outdated(old) == f"it is of version 1, and the code of version {VERSION}"
    assert outdated(record(few=10)) == "it was made with `few` 10, and the code has 20"
    assert outdated(record(lengths=[1, 5, 30])).startswith(
        "it was made with `lengths` [1, 5, 30], and the code has [1, 5, 10"
    )


def test_what_a_record_does_not_know_of_is_as_it_always_was():
    before = record("text", "sst-fine", ImageSettings.text("ours"))
    del before["config"]["num_blocks"]
    assert outdated(before) == "it was made with `num_blocks` 1, and the code has 20"
    images = record()
    del images["config"]["num_blocks"]
    assert outdated(images) is None


@pytest.mark.parametrize("name", [*PART_STUDIES, *STUDIES])
def test_the_other_studies_have_sizes_of_their_own(name):
    settings = importlib.import_module(f"burnish.studies.{name.replace('-', '_')}").Settings()
    found = {"study": name, "version": VERSION, "config": finite(asdict(settings))}
    assert outdated(found) is None
    key, value = next((key, value) for key, value in found["config"].items() if isinstance(value, int | float))
    found["config"][key] = value + 1
    assert outdated(found) == f"it was made with `{key}` {value + 1}, and the code has {value}"


def test_a_part_of_a_list_of_sizes_is_said():
    found = {"study": "few-shot", "version": VERSION}
    sizes = finite(asdict(importlib.import_module("burnish.studies.few_shot").Settings()))
    for counts in ([], [20, 50], [20, 100]):
        assert "`counts`" in outdated(found | {"config": sizes | {"counts": counts}})


def test_few_points_with_flows_over_the_mode_alone_are_said():
    sizes = finite(asdict(importlib.import_module("burnish.studies.few_shot").Settings()))
    found = {"study": "few-shot", "version": VERSION, "config": sizes}
    parts = [{"rows": {"flow": {"fit": fit}}} for fit in ({"base": "mode"}, {"seconds": 1.0})]
    assert outdated(found | {"parts": {"a": parts[0]}}) is None
    assert str(outdated(found | {"parts": dict(zip("ab", parts, strict=True))})).startswith("its flows stand on the mode")


def test_what_is_missing_is_said():
    whole = record(seeds=[0, 1, 2, 3, 4])
    assert lacking(whole) is None
    assert lacking(whole | {"failures": {"3": "no memory"}}) == "what failed: 3"
    assert lacking(record(seeds=[0, 1, 3])) == "seeds: 2, 4"
    assert lacking(record(seeds=[0, 1, 2, 3, 4], made_images=True)) == "real data"
    assert lacking({"study": "few-shot", "config": {"seeds": [0, 2]}}) == "seeds: 1"
    tables = {"datasets": [name for name in TABLES if name != "wine"], "num_splits": 20, "max_splits": 20}
    assert lacking({"study": "tabular", "config": tables}) == "datasets: wine"
    assert lacking({"study": "tabular", "config": tables | {"num_splits": 10}}) == "splits: it has 10 of 20"
    assert lacking({"study": "costs", "config": {}}) is None


def test_unknown_studies_are_refused():
    with pytest.raises(ValueError, match=r"`record` must be of one of the studies image-calibration, .* got 'else'\. Make"):
        outdated({"study": "else", "config": {}})
