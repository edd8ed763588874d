"""Words as numbers: those that occur most often in the training texts, and one number for all others."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from burnish._checks import check_at_least
from burnish.studies.architectures import NUM_WORDS
from burnish.studies.data import DATASETS, Tokens, load_documents
from burnish.studies.protocols import split_rows

__all__ = ["PADDING", "UNKNOWN", "Vocabulary", "load_tokens", "split_words"]

PADDING, UNKNOWN = 0, 1
_MAX_WORDS = 100  # of a text, from its beginning
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")


def split_words(text: str) -> list[str]:
    """Words in lower case, numbers, and every other sign for itself."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number of their own, which is their place in this list, after two that stand for none."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str], max_size: int, min_count: int = 1) -> "Vocabulary":
        """The most frequent words of the texts; among equally frequent ones, the first by the alphabet.

        Args:
            texts: at least one word must be in them.
            max_size: numbers in all, those for padding and for unknown words included.
            min_count: how often a word has to occur to have a number.

        Raises:
            ValueError: where there is no word at all.
        """
        check_at_least("max_size", max_size, 3)
        check_at_least("min_count", min_count, 1)
        counts = Counter(word for text in texts for word in split_words(text))
        if not counts:
            raise ValueError(f"`texts` must have words in them, got none in {len(texts)} texts. Pass other texts.")
        known = [word for word, count in counts.items() if count >= min_count]
        ranked = sorted(known, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: max_size - 2]))

    def encode(self, texts: Sequence[str], max_words: int) -> Tensor:
        """Numbers (N, L) of the first words of each text, at most `max_words`, with padding behind those of shorter ones.

        A text without any word is one unknown word, so that whatever reads it has something to read.
        """
        check_at_least("max_words", max_words, 1)
        rows = [[self._numbers.get(word, UNKNOWN) for word in split_words(text)[:max_words]] or [UNKNOWN] for text in texts]
        length = max(map(len, rows), default=1)
        return torch.tensor([row + [PADDING] * (length - len(row)) for row in rows], dtype=torch.int64).view(-1, length)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}


def load_tokens(name: str, split: str, folder: str | os.PathLike[str] | None = None, *, protocol: str = "ours") -> Tokens:
    """One split of a set of texts as numbers of words, by the vocabulary of its training texts: see `load_documents`.

    In ours, a word that occurs once is an unknown one, and words of texts held out for validation do not count: where a set
    has few words, a network would be trained without any unknown one, and validation would be without any, unlike a test.
    """
    documents = load_documents(name, split, folder)
    train = documents if split == "train" else load_documents(name, "train", folder)
    texts = list(train.texts)
    if protocol == "ours" and "validation" not in DATASETS[name].splits:
        texts = [texts[row] for row in split_rows(protocol, len(texts), 0)["train"][1].tolist()]
    vocabulary = Vocabulary.of(texts, NUM_WORDS, min_count=2 if protocol == "ours" else 1)
    return Tokens(vocabulary.encode(documents.texts, _MAX_WORDS), documents.labels)
