"""Words as numbers: known answers, texts without known words, and the real sets where they are."""

import os

import pytest
import torch

from burnish.studies import vocabulary
from burnish.studies.data.documents import Documents
from burnish.studies.protocols import split_rows
from burnish.studies.vocabulary import PADDING, UNKNOWN, Vocabulary, load_tokens, split_words


def test_words_numbers_and_signs():
    assert split_words("Don't STOP, it's 42!\n(x_1)") == ["don't", "stop", ",", "it's", "42", "!", "(", "x", "_", "1", ")"]
    assert split_words(" \t\n") == []


def test_the_most_frequent_words_come_first_and_ties_by_the_alphabet():
    assert Vocabulary.of(["b a c a", "d b"], 5).words == ("a", "b", "c")


def test_known_words_unknown_ones_and_padding():
    known = Vocabulary.of(["the cat sat", "the cat", "the"], 4)
    assert known.words == ("the", "cat")
    assert known.encode(["The cat sat", "cat"], 10).tolist() == [[2, 3, UNKNOWN], [3, PADDING, PADDING]]


def test_long_texts_are_cut_from_their_beginning():
    vocabulary = Vocabulary.of(["a b c"], 10)
    assert vocabulary.encode(["a b c", "c"], 2).tolist() == [[2, 3], [4, PADDING]]


@pytest.mark.parametrize("text", ["", "  \n", "strange"])
def test_a_text_that_is_empty_or_has_only_unknown_words_is_one_unknown_word(text):
    assert Vocabulary.of(["known"], 3).encode([text], 5).tolist() == [[UNKNOWN]]


def test_no_texts_are_no_rows():
    assert Vocabulary.of(["known"], 3).encode([], 5).shape == (0, 1)


def test_texts_without_any_word_make_no_vocabulary():
    with pytest.raises(ValueError, match="`texts` must have words in them, got none in 2 texts"):
        Vocabulary.of(["", " "], 10)
    with pytest.raises(ValueError, match="`max_size` must be at least 3"):
        Vocabulary.of(["a"], 2)


def test_rare_words_can_be_left_out():
    texts = ["a b a", "b c", "d"]
    assert Vocabulary.of(texts, 10, min_count=2).words == ("a", "b")
    assert Vocabulary.of(texts, 10).words == ("a", "b", "c", "d")
    with pytest.raises(ValueError, match="`min_count` must be at least 1, got 0"):
        Vocabulary.of(texts, 10, min_count=0)


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_words_of_texts_held_out_count_in_the_papers_protocol_alone(monkeypatch, protocol):
    """Each training text has a word of its own, twice."""
    texts = tuple(f"w{chr(97 + row // 26)}{chr(97 + row % 26)} " * 2 for row in range(100))
    monkeypatch.setattr(
        vocabulary, "load_documents", lambda name, split, folder: Documents(texts, torch.zeros(100, dtype=torch.int64))
    )
    words = load_tokens("trec-fine", "train", protocol=protocol).words
    unknown = (words == UNKNOWN).all(1)
    held_out = torch.zeros(100, dtype=torch.bool)
    held_out[split_rows("ours", 100, 0)["validation"][1]] = True
    assert unknown.tolist() == (held_out.tolist() if protocol == "ours" else [False] * 100)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("BURNISH_DATA"), reason="needs data sets under BURNISH_DATA")
def test_a_real_set_is_numbered_by_its_training_texts():
    try:
        train, test = (load_tokens("trec-fine", split) for split in ("train", "test"))
    except FileNotFoundError:
        pytest.skip("trec-fine is not under BURNISH_DATA")
    assert (len(train), len(test)) == (5452, 500)
    # unknown words are about as frequent in training and validation as in the test
    assert 0.05 < float((train.words == UNKNOWN).sum() / (train.words != PADDING).sum()) < 0.15
    assert 0.05 < float((test.words == UNKNOWN).sum() / (test.words != PADDING).sum()) < 0.15
    papers = [load_tokens("trec-fine", split, protocol="paper") for split in ("train", "test")]
    assert not (papers[0].words == UNKNOWN).any()  # all fit
    assert (papers[1].words == UNKNOWN).any()
    assert len(train.labels.unique()) == 50
