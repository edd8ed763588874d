"""Where the points of a study come from: files, or made ones."""

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from burnish.studies.data import TEXTS, Images, Tokens, load_images
from burnish.studies.made_images import made_images
from burnish.studies.made_texts import made_texts
from burnish.studies.vocabulary import load_tokens

__all__ = ["data_source"]


def data_source(
    dataset: str, protocol: str, data: str | os.PathLike[str] | None, small: bool
) -> Callable[[str, str], Images | Tokens]:
    """Images or texts by data set and split, each loaded once; texts as numbers of words of one vocabulary.

    Args:
        dataset: what the study is of: whether images or texts are wanted.
        protocol: "paper" or "ours", which have different vocabularies.
        data: folder with the data sets: see `load_images`.
        small: made ones in place of files.
    """
    if small:
        return cache(made_texts) if dataset in TEXTS else cache(made_images)
    load: Any = partial(load_tokens, protocol=protocol) if dataset in TEXTS else load_images
    return cache(lambda what, split: load(what, split, data))
