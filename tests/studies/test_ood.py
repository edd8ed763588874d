"""Images of other data sets told apart: known rates where there is nothing to tell, and all of them where there is."""

import dataclasses
import json

import pytest
import torch
from image_cases import SETTINGS, make_record, source

from burnish import metrics
from burnish.studies import ood
from burnish.studies.data import Images
from burnish.studies.image_methods import LayerMethods
from burnish.studies.image_posteriors import HMC, RECENTRED
from burnish.studies.image_problem import ImageProblem

OUTSIDE = ("svhn", "cifar-100", "tiny-imagenet")


def with_source(methods, images):
    """The same network, with other images outside."""
    setting = dataclasses.replace(
        methods.setting, source=lambda name, split: source(name, split) if name == "cifar-10" else images(name)
    )
    return LayerMethods(ImageProblem(setting, 0))


def test_the_same_images_cannot_be_told_apart(ours):
    methods = with_source(ours, lambda name: source("cifar-10", "test"))
    part = ood.run_seed(methods)
    for name in methods.names:
        for rates in (rates for outside in OUTSIDE for rates in part["rows"][name][outside].values()):
            assert rates["auroc"] == pytest.approx(0.5)
            assert rates["fpr95"] == pytest.approx(0.95, abs=0.01)
    assert part["sizes"] == dict.fromkeys(OUTSIDE, 150)


def test_rates_are_those_of_the_predictions(paper):
    part = ood.run_seed(paper)
    assert list(part["rows"]) == paper.names
    for name in (RECENTRED, HMC):
        count = SETTINGS.num_draws if name == HMC else SETTINGS.few  # under the paper's protocol
        inside, outside = (paper.predict(name, images, count).probs.amax(1) for images in ("test", "outside svhn"))
        found = part["rows"][name]["svhn"]["confidence"]
        assert found == {"fpr95": metrics.fpr95(inside, outside), "auroc": metrics.auroc(inside, outside)}
    json.dumps(part, allow_nan=False)


def test_one_network_alone_has_no_mutual_information(paper):
    part = ood.run_seed(paper)
    for name in paper.names:
        alone = name in ("MAP", "MAP-Temp")
        assert set(part["rows"][name]["svhn"]) == {"confidence", "entropy"} | (set() if alone else {"mutual information"})


def test_under_our_protocol_hmc_has_few_draws_as_others_have(ours, monkeypatch):
    counts = {}
    predict = LayerMethods.predict

    def counted(self, name, images, num_samples):
        counts.setdefault(name, set()).add(num_samples)
        return predict(self, name, images, num_samples)

    monkeypatch.setattr(LayerMethods, "predict", counted)
    ood.run_seed(ours)
    assert counts == {name: {SETTINGS.few} for name in ours.names}


def test_grey_images_of_no_content_are_told_apart_by_none_or_all(ours):
    methods = with_source(ours, lambda name: Images(torch.zeros(50, 3, 32, 32, dtype=torch.uint8), None))
    rows = ood.run_seed(methods)["rows"]
    rates = {rows[name]["svhn"]["confidence"]["fpr95"] for name in methods.names}
    assert rates <= {0.0, 1.0}  # they all look the same


def make_part(rate):
    row = {name: {"confidence": {"fpr95": rate, "auroc": 0.9}} for name in ("emnist-digits", "mnist", "kmnist", "notmnist")}
    return {"rows": dict.fromkeys(("MAP", "LA", "recentred LA"), row), "sizes": dict.fromkeys(row, 100)}


def test_printed_rates_stand_below_ours_under_the_papers_protocol():
    header, rows = ood.summary(make_record("fashion-mnist", "paper", make_part(0.8), make_part(0.9)))
    assert header == ["FPR95, %", *(f"{title} (100)" for title in ("EMNIST digits", "MNIST", "Kuzushiji-MNIST", "notMNIST"))]
    assert [row[0] for row in rows] == ["network (MAP)", "LA", "  printed", "recentred LA"]
    assert rows[1][1:] == ["85.0 ± 5.0"] * 4
    assert rows[2] == ["  printed", "84.7", "77.9", *rows[2][3:]]
    _, rows = ood.summary(make_record("fashion-mnist", "ours", make_part(0.8)))
    assert [row[0] for row in rows] == ["network (MAP)", "LA", "recentred LA"]
