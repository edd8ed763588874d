"""Scores by draws: sets of few, all of them, and averages over blocks."""

import pytest
import torch

from burnish import metrics
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Categorical
from burnish.noise import make_generator
from burnish.studies.draw_scores import grouped_probs, score_blocks, score_sets
from burnish.studies.image_posteriors import _blocks

MODEL = Model(LinearHead(2, 3), Categorical())


@pytest.fixture
def points():
    generator = make_generator(0)
    return torch.randn(40, 2, generator=generator), torch.randint(3, (40,), generator=generator)


def draws(count, seed=1):
    return torch.randn(count, MODEL.head.dim, generator=make_generator(seed))


def test_few_is_the_average_of_sets_and_many_the_score_of_their_average(points):
    inputs, labels = points
    sets = grouped_probs(MODEL, draws(12), inputs, 4)
    found = score_sets(sets, labels)
    assert found["sets"] == 3
    assert found["few"]["nll"] == pytest.approx(sum(metrics.nll(probs, labels) for probs in sets) / 3)
    assert found["many"]["nll"] == pytest.approx(metrics.nll(sets.mean(0), labels))
    assert found["many"]["nll"] < found["few"]["nll"]  # of an average, by Jensen


def test_blocks_are_scored_one_by_one_and_averaged(points):
    inputs, labels = points
    parts = draws(24).split(12)
    found = score_blocks(MODEL, iter(parts), inputs, labels, 4)
    apart = [score_sets(grouped_probs(MODEL, part, inputs, 4), labels) for part in parts]
    for which in ("few", "many"):
        for key, value in found[which].items():
            assert value == pytest.approx(sum(part[which][key] for part in apart) / 2)
    assert (found["sets"], found["blocks"]) == (6, 2)
    joint = metrics.nll(grouped_probs(MODEL, draws(24), inputs, 24)[0], labels)
    assert found["many"]["nll"] > joint  # a block does not become a larger one


def test_blocks_of_chains_have_draws_of_all_and_the_last_ones_first():
    chains = torch.arange(4 * 5).view(4, 5, 1).float()  # chain c has draws 5c..5c+4

    class Fit:
        class posterior:
            draws = chains

    first, second = _blocks(Fit, 8)
    assert first.flatten().tolist() == [4, 9, 14, 19, 3, 8, 13, 18]
    assert second.flatten().tolist() == [2, 7, 12, 17, 1, 6, 11, 16]
