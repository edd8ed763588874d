"""Data sets of grey 28x28 images: MNIST and its relatives."""

from functools import partial

from burnish.studies.data.idx import read_emnist, read_emnist_archive, read_mnist
from burnish.studies.data.layouts import Dataset, File, Layout, Part
from burnish.studies.data.pictures import read_omniglot

__all__ = ["GREY"]

_IDX = "IDX files"
_STEMS = {"train": "train", "test": "t10k"}
_COUNTS = {"train": 60_000, "test": 10_000}


def _idx_file(name: str, folder: str, stem: str, checksum: str, content: str, homes: tuple[str, ...]) -> File:
    """A file in a folder of the set's name, with that name before its own, or where torchvision puts it."""
    places = (f"{name}/{stem}", f"{name}-{stem}", f"{folder}/raw/{stem}")
    names = tuple(f"{place}{suffix}" for place in places for suffix in (".gz", ""))
    return File(names, f"md5:{checksum}", f"md5:{content}" if content else None, tuple(f"{home}{stem}.gz" for home in homes))


def _idx(name: str, folder: str, homes: tuple[str, ...], checksums: dict[str, tuple[str, str, str, str]]) -> Layout:
    """Checksums by split: of the images as upstream packs them and unpacked, and of the labels."""
    parts = {}
    for split, (images, unpacked_images, labels, unpacked_labels) in checksums.items():
        count, stem = _COUNTS[split], _STEMS[split]
        files = (
            _idx_file(name, folder, f"{stem}-images-idx3-ubyte", images, unpacked_images, homes),
            _idx_file(name, folder, f"{stem}-labels-idx1-ubyte", labels, unpacked_labels, homes),
        )
        parts[split] = Part(f"{split}, {count:,} images", count, files, partial(read_mnist, num_images=count))
    return Layout(_IDX, parts)


_FASHION_MNIST = Dataset(
    name="fashion-mnist",
    title="Fashion-MNIST",
    what="articles of clothing, grey 28x28, 10 classes",
    home="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT",
    num_classes=10,
    layouts=(
        _idx(
            "fashion-mnist",
            "FashionMNIST",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            {
                "train": (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "9018921c3c673c538a1fc5bad174d6f9",
                ),
                "test": (
                    "bef4ecab320f06d8554ea6380940ec79",
                    "8181f5470baa50b63fa0f6fddb340f0a",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "15d484375f8d13e6eb1aabb0c3f46965",
                ),
            },
        ),
    ),
)

_MNIST = Dataset(
    name="mnist",
    title="MNIST",
    what="handwritten digits, grey 28x28, 10 classes",
    home="http://yann.lecun.com/exdb/mnist/",
    terms="commonly listed as CC BY-SA 3.0",
    num_classes=10,
    layouts=(
        _idx(
            "mnist",
            "MNIST",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            {
                "train": (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "6bbc9ace898e44ae57da46a324031adb",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "a25bea736e30d166cdddb491f175f624",
                ),
                "test": (
                    "9fb629c4189551a2d022fa330f9573f3",
                    "2646ac647ad5339dbf082846283269ea",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "27ae3e4e09519cfbb04c329615203637",
                ),
            },
        ),
    ),
)

_KMNIST = Dataset(
    name="kmnist",
    title="Kuzushiji-MNIST",
    what="handwritten hiragana, grey 28x28, 10 classes",
    home="https://github.com/rois-codh/kmnist",
    terms="CC BY-SA 4.0",
    num_classes=10,
    layouts=(
        _idx(
            "kmnist",
            "KMNIST",
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            {
                "train": ("bdb82020997e1d708af4cf47b453dcf7", "", "e144d726b3acfaa3e44228e80efcd344", ""),
                "test": (
                    "5c965bf0a639b31b8f53240b1b52f4d7",
                    "bf305b8cd328700fbc17f5acbc2856d2",
                    "7320c461ea6c1c855c0b718fb2a4b134",
                    "9f55f451c0988b028eccdf7d5cc265ab",
                ),
            },
        ),
    ),
)


def _emnist_file(kind: str, *copies: str) -> File:
    """Checksums are of one copy of the split; that of the archive's own files is not published."""
    stem = f"emnist-mnist-test-{kind}-ubyte"
    names = tuple(f"{place}{stem}{end}" for place in ("", "gzip/", "EMNIST/raw/") for end in (".gz", ""))
    return File(names, copies=tuple(f"md5:{copy}" for copy in copies))


_EMNIST_DIGITS = Dataset(
    name="emnist-digits",
    title="EMNIST digits",
    what='handwritten digits of other writers, the split that EMNIST calls "mnist", upright, grey 28x28, 10 classes',
    home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    terms="none stated; from NIST Special Database 19",
    num_classes=10,
    layouts=(
        Layout(
            "EMNIST's archive",
            {
                "test": Part(
                    "test, 10,000 images",
                    10_000,
                    (
                        File(
                            ("emnist-digits/gzip.zip", "gzip.zip", "EMNIST/raw/gzip.zip"),
                            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                            urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                        ),
                    ),
                    partial(
                        read_emnist_archive,
                        members=(
                            "gzip/emnist-mnist-test-images-idx3-ubyte.gz",
                            "gzip/emnist-mnist-test-labels-idx1-ubyte.gz",
                        ),
                        num_images=10_000,
                    ),
                )
            },
        ),
        Layout(
            _IDX,
            {
                "test": Part(
                    "test, 10,000 images",
                    10_000,
                    (
                        # upright, and with rows and columns exchanged
                        _emnist_file("images-idx3", "095b465f0927f4d014c60e56a459653d", "05f206c6ac1a7449130bb1c6f4b4a232"),
                        _emnist_file("labels-idx1", "ced37f6d2845890bf0f73460112809bd"),
                    ),
                    partial(read_emnist, num_images=10_000),
                )
            },
        ),
    ),
)

_NOTMNIST = Dataset(
    name="notmnist",
    title="notMNIST",
    what="letters A to J in computer fonts, grey 28x28, 10 classes",
    home="https://github.com/davidflanagan/notMNIST-to-MNIST",
    terms="the conversion MIT; none stated for the glyphs",
    num_classes=10,
    layouts=(
        _idx(
            "notmnist",
            "notMNIST",
            ("https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/c58c29ff93d7b8c809c449b380a232f9f39909fd/",),
            {
                "test": (
                    "2c87c839a4ef9b238846600eec8c35b7",
                    "1e78b07d677d6e4de2c8857bafff012e",
                    "7ea9118cbafd0f6e3ee2ad771d782a01",
                    "b10b3ef34b4e468313a7b24c216c6a53",
                )
            },
        ),
    ),
)

_OMNIGLOT = Dataset(
    name="omniglot",
    title="Omniglot",
    what="handwritten letters of many alphabets, grey 28x28, labelled by alphabet",
    home="https://github.com/brendenlake/omniglot",
    terms="MIT",
    num_classes=20,
    layouts=(
        Layout(
            "images_evaluation.zip, resized to 28x28",
            {
                "test": Part(
                    "evaluation set, 13,180 drawings of 20 alphabets",
                    13_180,
                    (
                        File(
                            ("omniglot/images_evaluation.zip", "images_evaluation.zip", "omniglot-py/images_evaluation.zip"),
                            "md5:6b91aef0f799c5bb55b94e3f2daec811",
                            urls=(
                                "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_evaluation.zip",
                            ),
                        ),
                    ),
                    partial(read_omniglot, num_images=13_180, num_alphabets=20),
                )
            },
        ),
        Layout(
            f"{_IDX}, resized to 28x28",
            {
                "test": Part(
                    "both small background sets, 4,840 drawings of 8 alphabets",
                    4_840,
                    (
                        File(
                            ("omniglot28-images-idx3-ubyte.gz", "omniglot28-images-idx3-ubyte"),
                            content="md5:d586651e8ce2012acc910c92a5f9808f",
                        ),
                        File(
                            ("omniglot28-alphabet-labels-idx1-ubyte.gz", "omniglot28-alphabet-labels-idx1-ubyte"),
                            content="md5:420d5bb5058e5df0ead561bf380ae114",
                        ),
                    ),
                    partial(read_mnist, num_images=4_840, num_classes=8),
                )
            },
        ),
    ),
)

GREY = (_FASHION_MNIST, _MNIST, _KMNIST, _EMNIST_DIGITS, _NOTMNIST, _OMNIGLOT)
