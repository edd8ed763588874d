"""Made texts in place of real ones, to try the studies out: every class has words that it likes."""

import torch

from burnish.studies.data import DATASETS, Tokens
from burnish.studies.made_images import MAX_CLASSES, made_generator

__all__ = ["made_texts"]

_NUM_TRAIN, _NUM_TEST = 500, 250
_NUM_WORDS, _LENGTH = 64, 12  # numbers of words, the first two of which stand for none
_LIKED, _WRONG = 0.4, 0.1  # shares of liked words, and of texts that get any label


def made_texts(name: str, split: str) -> Tokens:
    """Texts with as many classes as a data set has, up to `MAX_CLASSES`; the same at every call."""
    num_classes = min(DATASETS[name].num_classes or 2, MAX_CLASSES)
    liked = torch.randint(2, _NUM_WORDS, (num_classes, 3), generator=made_generator(name))
    generator = made_generator(f"{name} {split}")
    count = _NUM_TRAIN if split == "train" else _NUM_TEST
    shown, other = torch.randint(num_classes, (2, count), generator=generator)
    labels = torch.where(torch.rand(count, generator=generator) < _WRONG, other, shown)
    words = torch.randint(1, _NUM_WORDS, (count, _LENGTH), generator=generator)
    choice = torch.randint(3, (count, _LENGTH), generator=generator)
    likes = torch.rand(count, _LENGTH, generator=generator) < _LIKED
    words = torch.where(likes, liked[shown].gather(1, choice), words)
    lengths = torch.randint(4, _LENGTH + 1, (count, 1), generator=generator)
    return Tokens(torch.where(torch.arange(_LENGTH) < lengths, words, 0), labels)
