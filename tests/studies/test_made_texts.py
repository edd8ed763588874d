"""Made texts: numbers of words that a network knows, the same at every call, and something to learn."""

import pytest
import torch

from burnish.studies.data import DATASETS, TEXTS
from burnish.studies.made_images import MAX_CLASSES
from burnish.studies.made_texts import made_texts


@pytest.mark.parametrize("name", TEXTS)
def test_classes_are_those_of_the_set_and_zeros_are_behind_words(name):
    texts = made_texts(name, "train")
    assert torch.equal(texts.labels.unique(), torch.arange(min(DATASETS[name].num_classes, MAX_CLASSES)))
    is_word = texts.words != 0
    assert torch.equal(is_word, torch.arange(is_word.shape[1]) < is_word.sum(1, keepdim=True))
    assert is_word.any(1).all()
    assert int(texts.words.max()) < 64


def test_they_are_the_same_every_time_and_splits_differ(untouched_rng):
    first, again, test = (made_texts("trec-fine", split) for split in ("train", "train", "test"))
    assert torch.equal(first.words, again.words)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.words[: len(test)], test.words)


def test_classes_can_be_learned_from_counts_of_words():
    train, test = (made_texts("sst-fine", split) for split in ("train", "test"))
    counts, new = (torch.nn.functional.one_hot(texts.words, 64)[..., 1:].sum(1).double() for texts in (train, test))
    means = torch.stack([counts[train.labels == label].mean(0) for label in range(5)])
    scores = new @ (means + 0.1).log().T
    assert 0.75 < float((scores.argmax(1) == test.labels).double().mean()) < 0.97
