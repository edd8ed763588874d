"""Readers of texts, on small files in the forms that the sets come in."""

import io
import json
import lzma
import tarfile

import pytest
import torch

from burnish.studies.data import Documents, Tokens
from burnish.studies.data.text_files import read_labelled_lines, read_news_archive, read_news_lines, read_questions

GROUPS = [f"group.{number:02}" for number in range(20)]
POSTS = [
    (split, group, str(10 + k), f"{group} \xe9 {split}") for split in ("train", "test") for k, group in enumerate(GROUPS)
]


def archive(path, posts):
    with tarfile.open(path, "w:gz") as file:
        for split, group, number, text in posts:
            content = text.encode("latin-1")
            member = tarfile.TarInfo(f"20news-bydate-{split}/{group}/{number}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return [path]


def lines(path, posts):
    with lzma.open(path, "wt", encoding="utf-8") as file:
        for split, group, number, text in reversed(posts):
            file.write(json.dumps({"split": split, "group": group, "id": number, "text": text}) + "\n")
    return [path]


def put(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return [path]


def test_both_forms_of_the_posts_give_the_same_in_the_same_order(tmp_path):
    packed = read_news_archive(archive(tmp_path / "a.tar.gz", POSTS), split="test")
    listed = read_news_lines(lines(tmp_path / "b.jsonl.xz", POSTS), split="test")
    assert packed.texts == listed.texts == tuple(f"{group} \xe9 test" for group in GROUPS)
    assert packed.labels.tolist() == listed.labels.tolist() == list(range(20))


def test_posts_of_too_few_groups_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"b\.jsonl\.xz is damaged.*posts of 19 groups, not of 20"):
        read_news_lines(lines(tmp_path / "b.jsonl.xz", POSTS[:19]), split="train")


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_what_is_no_archive_is_named(tmp_path, content):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tar\.gz is damaged"):
        read_news_archive([path], split="train")


def test_lines_that_are_no_posts_are_refused(tmp_path):
    path = tmp_path / "b.jsonl.xz"
    with lzma.open(path, "wt") as file:
        file.write('{"split": "train"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl\.xz is damaged.*KeyError"):
        read_news_lines([path], split="train")


def test_labelled_lines_keep_empty_sentences_and_no_blank_lines(tmp_path):
    found = read_labelled_lines(put(tmp_path / "s.txt", "1 a fine film .\n0 \n\n1\n"), num_classes=2)
    assert found.texts == ("a fine film .", "", "")
    assert found.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "problem"), [("2 good\n", r"labels lie in 2\.\.2, not in 0\.\.1"), ("good\n", "ValueError")]
)
def test_lines_without_a_label_of_the_set_are_refused(tmp_path, text, problem):
    with pytest.raises(ValueError, match=rf"s\.txt is damaged.*{problem}"):
        read_labelled_lines(put(tmp_path / "s.txt", text), num_classes=2)


def test_questions_by_coarse_and_by_fine_kinds(tmp_path):
    path = put(tmp_path / "q.label", "LOC:city What is Z\xfcrich ?\nABBR:exp What is an X ?\n", "latin-1")
    coarse = read_questions(path, fine=False, kinds=["ABBR", "LOC"])
    fine = read_questions(path, fine=True, kinds=["ABBR:abb", "ABBR:exp", "LOC:city"])
    assert coarse.texts == fine.texts == ("What is Z\xfcrich ?", "What is an X ?")
    assert coarse.labels.tolist() == [1, 0]
    assert fine.labels.tolist() == [2, 1]


def test_questions_of_an_unknown_kind_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"q\.label is damaged.*'XYZ' is no kind of question"):
        read_questions(put(tmp_path / "q.label", "XYZ:city What ?\n"), fine=False, kinds=["ABBR"])


def test_documents_need_a_label_each():
    with pytest.raises(ValueError, match="`labels` must be int64 of shape"):
        Documents(("a", "b"), torch.tensor([1]))


@pytest.mark.parametrize(
    ("words", "labels"), [(torch.zeros(2, 3), torch.zeros(2).long()), (torch.zeros(2, 3).long(), torch.zeros(3).long())]
)
def test_tokens_need_whole_numbers_and_a_label_each(words, labels):
    with pytest.raises(ValueError, match="must be int64"):
        Tokens(words, labels)


def test_tokens_of_some_rows():
    found = Tokens(torch.arange(6).view(3, 2), torch.tensor([0, 1, 2])).take(torch.tensor([2, 0]))
    assert found.stored.tolist() == [[4, 5], [0, 1]]
    assert found.labels.tolist() == [2, 0]
