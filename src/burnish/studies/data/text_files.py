"""Readers of text sets: Usenet posts, lines that begin with a label, and questions with their kinds."""

import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch

from burnish.studies.data.damage import DamagedFileError, naming
from burnish.studies.data.documents import Documents

__all__ = ["read_labelled_lines", "read_news_archive", "read_news_lines", "read_questions"]

_ENCODING = "latin-1"  # of Usenet, and of the questions


def read_news_archive(paths: Sequence[Path], *, split: str) -> Documents:
    """20 Newsgroups as its home packs it: a folder for each split, in it one for each group, in it a file for each post."""
    posts = []
    with naming(paths[0]), tarfile.open(paths[0]) as archive:
        for member in archive:
            place = PurePosixPath(member.name).parts
            if member.isfile() and len(place) == 3 and place[0].endswith(f"-{split}"):
                file = archive.extractfile(member)
                assert file is not None
                posts.append((place[1], place[2], file.read().decode(_ENCODING)))
    return _posts(paths[0], sorted(posts))


def read_news_lines(paths: Sequence[Path], *, split: str) -> Documents:
    """20 Newsgroups as one JSON object on each line: split, group, id and text."""
    with naming(paths[0]), lzma.open(paths[0], "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
        posts = [(row["group"], str(row["id"]), row["text"]) for row in rows if row["split"] == split]
    return _posts(paths[0], sorted(posts))


def _posts(path: Path, posts: list[tuple[str, str, str]]) -> Documents:
    groups = sorted({group for group, *_ in posts})
    if len(groups) != 20:
        raise DamagedFileError(path, f"it has posts of {len(groups)} groups, not of 20")
    labels = [groups.index(group) for group, *_ in posts]
    return Documents(tuple(text for *_, text in posts), torch.tensor(labels))


def read_labelled_lines(paths: Sequence[Path], *, num_classes: int) -> Documents:
    """A sentence on each line, after its label and a space."""
    with naming(paths[0]), open(paths[0], encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(" ", 1) for line in file if line.strip()]
        labels = [int(row[0]) for row in rows]
    if not all(0 <= label < num_classes for label in labels):
        raise DamagedFileError(paths[0], f"labels lie in {min(labels)}..{max(labels)}, not in 0..{num_classes - 1}")
    return Documents(tuple(row[1] if len(row) > 1 else "" for row in rows), torch.tensor(labels, dtype=torch.int64))


def read_questions(paths: Sequence[Path], *, fine: bool, kinds: Sequence[str]) -> Documents:
    """A question on each line, after its coarse kind, a colon and its fine one; all kinds come in the order of `kinds`."""
    with naming(paths[0]), open(paths[0], encoding=_ENCODING) as file:
        rows = [line.strip().split(" ", 1) for line in file if line.strip()]
        names = [row[0] if fine else row[0].split(":")[0] for row in rows]
        questions = [row[1] for row in rows]
    unknown = sorted(set(names) - set(kinds))
    if unknown:
        raise DamagedFileError(paths[0], f"{unknown[0]!r} is no kind of question")
    return Documents(tuple(questions), torch.tensor([kinds.index(name) for name in names]))
