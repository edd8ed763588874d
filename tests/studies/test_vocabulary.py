"""Words as numbers: known answers, texts without known words, and the real sets where they are."""

import os

import pytest

from burnish.studies.vocabulary import PADDING, UNKNOWN, Vocabulary, load_tokens, split_words


def test_words_numbers_and_signs():
    assert split_words("Don't STOP, it's 42!\n(x_1)") == ["don't", "stop", ",", "it's", "42", "!", "(", "x", "_", "1", ")"]
    assert split_words(" \t\n") == []


def test_the_most_frequent_words_come_first_and_ties_by_the_alphabet():
    assert Vocabulary.of(["b a c a", "d b"], 5).words == ("a", "b", "c")


def test_known_words_unknown_ones_and_padding():
    vocabulary = Vocabulary.of(["the cat sat", "the cat", "the"], 4)
    assert vocabulary.words == ("the", "cat")
    assert vocabulary.encode(["The cat sat", "cat"], 10).tolist() == [[2, 3, UNKNOWN], [3, PADDING, PADDING]]


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


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("BURNISH_DATA"), reason="needs data sets under BURNISH_DATA")
def test_a_real_set_is_numbered_by_its_training_texts():
    try:
        train, test = (load_tokens("trec-fine", split) for split in ("train", "test"))
    except FileNotFoundError:
        pytest.skip("trec-fine is not under BURNISH_DATA")
    assert (len(train), len(test)) == (5452, 500)
    assert not (train.words == UNKNOWN).any()  # all fit
    assert (test.words == UNKNOWN).any()
    assert len(train.labels.unique()) == 50
