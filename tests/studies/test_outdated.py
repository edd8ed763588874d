"""Which records are older than the code that reads them."""

import importlib
from dataclasses import asdict

import pytest

from burnish.studies.image_settings import ImageSettings
from burnish.studies.outdated import outdated
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


def test_lists_of_sizes_may_end_early_but_not_be_empty_or_others():
    found = {"study": "few-shot", "version": VERSION}
    sizes = finite(asdict(importlib.import_module("burnish.studies.few_shot").Settings()))
    assert outdated(found | {"config": sizes | {"counts": [20, 50]}}) is None
    for counts in ([], [20, 100]):
        assert "`counts`" in outdated(found | {"config": sizes | {"counts": counts}})


def test_unknown_studies_are_refused():
    with pytest.raises(ValueError, match=r"`record` must be of one of the studies image-calibration, .* got 'else'\. Make"):
        outdated({"study": "else", "config": {}})
