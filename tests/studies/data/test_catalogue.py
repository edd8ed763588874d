"""The catalogue is complete: homes, terms, checksums, and a line in the page for users."""

import re
from pathlib import Path

import pytest

from burnish.studies.data import DATASETS, IMAGES, TEXTS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()


def test_the_names_are_those_that_studies_use():
    assert set(DATASETS) == {
        *("fashion-mnist", "mnist", "kmnist", "emnist-digits", "notmnist", "omniglot"),
        *("cifar-10", "cifar-100", "svhn", "tiny-imagenet"),
        *("20-newsgroups", "sst-fine", "sst-binary", "trec-coarse", "trec-fine"),
    }
    assert not set(IMAGES) & set(TEXTS)
    assert all(dataset.name == name for name, dataset in DATASETS.items())


def test_training_splits():
    both = {name for name, dataset in DATASETS.items() if dataset.splits == ("train", "test")}
    texts = {"20-newsgroups", "trec-coarse", "trec-fine"}
    assert both == {"fashion-mnist", "mnist", "kmnist", "cifar-10", "cifar-100", *texts}
    assert all(DATASETS[name].splits == ("train", "validation", "test") for name in ("sst-fine", "sst-binary"))
    assert all(dataset.splits == ("test",) for name, dataset in IMAGES.items() if name not in both)


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_fetched_has_homes_and_a_checksum(name):
    dataset = DATASETS[name]
    for split in dataset.splits:  # the first layout has them all
        for file in dataset.layouts[0].parts[split].files:
            assert file.urls
            assert all(url.startswith(("https://", "http://")) for url in file.urls)
            assert re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum)


@pytest.mark.parametrize("name", DATASETS)
def test_checksums_are_of_their_lengths_and_belong_to_one_file_each(name):
    lengths = {"md5": 32, "sha256": 64}
    owners = {}
    for layout in DATASETS[name].layouts:
        for split, part in layout.parts.items():
            assert part.files
            assert all(re.fullmatch("[0-9a-f]{32}", batch) for batch in part.batches)
            for file in part.files:
                for checksum in filter(None, (file.checksum, file.content, *file.copies)):
                    kind, value = checksum.split(":")
                    assert re.fullmatch(f"[0-9a-f]{{{lengths[kind]}}}", value), (split, file)
                    assert owners.setdefault(checksum, file) == file


def test_stand_ins_say_so():
    assert DATASETS["svhn"].layouts[1].parts["test"].what == "test, first 10,000, re-cropped from the full images"
    assert DATASETS["tiny-imagenet"].layouts[1].parts["test"].what == "test, 2,500 images, resized to 32x32"
    assert [layout.parts["test"].what for layout in DATASETS["omniglot"].layouts] == [
        "evaluation set, 13,180 drawings of 20 alphabets",
        "both small background sets, 4,840 drawings of 8 alphabets",
    ]
    assert [layout.parts["train"].what for layout in DATASETS["cifar-100"].layouts] == [
        *4 * ["train, 50,000 images"],
        "train, 50,000 images, in another order than upstream",
    ]


@pytest.mark.parametrize("name", DATASETS)
def test_the_page_names_the_set_its_home_and_its_terms(name):
    dataset = DATASETS[name]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | {dataset.title}, ")]
    assert row.endswith(f" | {', '.join(dataset.splits)} | {dataset.home} | {dataset.terms} |")


def test_the_catalogue_cannot_be_changed():
    with pytest.raises(TypeError):
        DATASETS["mine"] = None
