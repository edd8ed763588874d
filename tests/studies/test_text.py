"""The study of texts: what it is of, which points it holds out, and that it stands beside the printed numbers."""

from functools import partial

import pytest
import torch

from burnish.studies import text
from burnish.studies.architectures import make_network
from burnish.studies.data import Tokens
from burnish.studies.image_problem import Setting
from burnish.studies.image_settings import ImageSettings
from burnish.studies.image_studies import check_options, datasets_of, record_image_study
from burnish.studies.summaries import printed_score
from burnish.studies.workspace import Workspace

SETS = ("20-newsgroups", "sst-binary", "sst-fine", "trec-coarse", "trec-fine")
CPU = torch.device("cpu")


def tokens(count):
    return Tokens(torch.arange(2 * count).view(count, 2) + 1, torch.zeros(count, dtype=torch.int64))


def make_setting(protocol, folder, made=False):
    sizes = {"train": 50, "validation": 20, "test": 30}
    source = lambda name, split: tokens(sizes[split])  # noqa: E731
    return Setting("sst-fine", protocol, ImageSettings.text(protocol), source, Workspace(folder), CPU, made)


def test_texts_for_this_study_and_images_for_the_others():
    assert datasets_of("text") == SETS
    assert datasets_of("image-calibration") == datasets_of("ood") == ("fashion-mnist", "cifar-10", "cifar-100")
    assert check_options("text")[0] == (0, 1, 2)
    with pytest.raises(ValueError, match=r"`dataset` must be one of '20-newsgroups'.*got 'cifar-10'"):
        check_options("text", "cifar-10")
    with pytest.raises(ValueError, match=r"`dataset` must be one of 'fashion-mnist'.*got 'sst-fine'"):
        check_options("ood", "sst-fine")
    with pytest.raises(ValueError, match="`baseline_seeds` must be left out for text"):
        check_options("text", baseline_seeds=[0])


def test_a_set_with_points_for_validation_is_used_as_it_is_split(tmp_path):
    ours, paper = (make_setting(protocol, tmp_path) for protocol in ("ours", "paper"))
    assert {name: len(part) for name, part in ours.images.items()} == {"train": 50, "validation": 20, "test": 30}
    assert {name: len(part) for name, part in paper.images.items()} == {"train": 50, "validation": 6, "test": 24}
    assert {name: len(part) for name, part in make_setting("ours", tmp_path, made=True).images.items()} == {
        "train": 40,
        "validation": 10,
        "test": 30,
    }


@pytest.mark.parametrize("name", ["gru", "tiny-gru"])
def test_what_is_behind_the_last_word_does_not_matter(name):
    network = make_network(name, 3, seed=0).eval()
    words = torch.tensor([[5, 9, 2]])
    padded = torch.nn.functional.pad(words, (0, 4))
    with torch.no_grad():
        assert torch.allclose(network(words), network(padded), atol=1e-6)
        assert not torch.allclose(network(words), network(words[:, :2]), atol=1e-6)
        assert network(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()


def test_the_network_is_the_papers():
    reader, head = make_network("gru", 20, seed=0)
    assert (reader.embedding.embedding_dim, reader.gru.hidden_size, reader.gru.num_layers) == (50, 128, 2)
    assert (head.in_features, head.out_features) == (128, 20)


def test_printed_numbers_are_found_whatever_the_classes():
    find = partial(printed_score, method="HMC", score="nll")
    assert [find(name).mean for name in SETS] == [0.9838, 1.0787, 1.0787, 1.1545, 1.1545]
    assert printed_score("20-newsgroups", "HMC", "mmd") is None
    assert printed_score("20-newsgroups", "LA", "ece") is None
    assert printed_score("fashion-mnist", "HMC", "nll").mean == 0.2699


def test_a_small_study_goes_on_and_has_its_table(tmp_path):
    options = {"dataset": "sst-binary", "seeds": [0], "small": True, "work": tmp_path, "progress": False}
    record = record_image_study("text", **options)
    again = record_image_study("text", **options)
    assert again["seeds"] == record["seeds"]
    assert not record["failures"]
    header, rows = text.summary(record)
    assert header[:4] == ["method", "MMD", "TV to HMC", "NLL"]
    assert [row[0] for row in rows][-2:] == ["burnish.refine, own target", "HMC"]
    part = record["seeds"]["0"]
    assert part["target"]["parameters"] == 17 * 2
    # so few test points that single blocks of draws would differ by chance
    drawn = ("LA", "LA-Refine-5", "recentred LA", "flow", "burnish", "refine", "HMC")
    assert {part["rows"][name]["blocks"] for name in drawn} == {2}
    assert [ImageSettings.text(protocol).num_blocks for protocol in ("paper", "ours")] == [1, 20]
    assert "blocks" not in part["rows"]["MAP"]
    assert all("scores" not in row.get("fit", {}) for row in part["rows"].values())
