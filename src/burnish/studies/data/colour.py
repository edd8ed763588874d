"""Data sets of 32x32 images in colour: CIFAR-10 and CIFAR-100, SVHN, and Tiny-ImageNet made small."""

from collections.abc import Mapping
from functools import partial

from burnish.studies.data.cifar import read_archive, read_folder
from burnish.studies.data.layouts import Dataset, File, Layout, Part
from burnish.studies.data.matlab import read_svhn
from burnish.studies.data.pictures import read_tiny_imagenet
from burnish.studies.data.sheets import read_labelled_sheets, read_sheets

__all__ = ["COLOUR"]

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_COUNTS = {"train": 50_000, "test": 10_000}
_SHEETS = "lossless WebP sheets"


def _archive(file: str, checksum: str, num_classes: int, folder: str, batches: Mapping[str, tuple[str, ...]]) -> Layout:
    archive = File((file,), f"md5:{checksum}", urls=(f"{_TORONTO}{file}",))
    parts = {}
    for split, count in _COUNTS.items():
        members = tuple(f"{folder}/{name}" for name in batches[split])
        read = partial(read_archive, members=members, num_classes=num_classes, num_images=count)
        parts[split] = Part(f"{split}, {count:,} images", count, (archive,), read)
    return Layout(file, parts)


def _folder(folder: str, num_classes: int, batches: Mapping[str, tuple[str, ...]], checksums: Mapping[str, str]) -> Layout:
    parts = {}
    for split, count in _COUNTS.items():
        files = tuple(
            File((f"{folder}/{name}",), f"md5:{checksums[name]}" if name in checksums else None) for name in batches[split]
        )
        read = partial(read_folder, num_classes=num_classes, num_images=count)
        parts[split] = Part(f"{split}, {count:,} images", count, files, read)
    return Layout(folder, parts)


def _sheets(
    prefix: str, num_classes: int, checksums: Mapping[str, str], batches: Mapping[str, tuple[str, ...]], order: str = ""
) -> Layout:
    parts = {}
    for split, count in _COUNTS.items():
        names = (
            [f"{prefix}-train-part{number}.webp" for number in range(1, 6)] if split == "train" else [f"{prefix}-test.webp"]
        )
        names.append(f"{prefix}-labels.npz")
        files = tuple(File((name,), f"sha256:{checksums[name]}" if name in checksums else None) for name in names)
        read = partial(read_labelled_sheets, key=split, num_classes=num_classes, num_images=count)
        parts[split] = Part(f"{split}, {count:,} images{order}", count, files, read, batches.get(split, ()))
    return Layout(_SHEETS, parts)


_RECORDS_10 = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_PICKLES_10 = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_CHECKSUMS_10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

_CIFAR_10 = Dataset(
    name="cifar-10",
    title="CIFAR-10",
    what="animals and vehicles, colour 32x32, 10 classes",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    terms="no formal licence; cite Krizhevsky 2009",
    num_classes=10,
    layouts=(
        _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 10, "cifar-10-batches-bin", _RECORDS_10),
        _folder("cifar-10-batches-bin", 10, _RECORDS_10, _CHECKSUMS_10),
        _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 10, "cifar-10-batches-py", _PICKLES_10),
        _folder("cifar-10-batches-py", 10, _PICKLES_10, _CHECKSUMS_10),
        # how a picture is packed depends on the encoder, so the checksums are those of the records
        _sheets(
            "cifar10",
            10,
            {"cifar10-labels.npz": "b7817019a95f42df948eef86e70b736fb1fe56fea4c40a011acb9ed0abd9ffa3"},
            {split: tuple(_CHECKSUMS_10[name] for name in names) for split, names in _RECORDS_10.items()},
        ),
    ),
)

_RECORDS_100 = {"train": ("train.bin",), "test": ("test.bin",)}
_PICKLES_100 = {"train": ("train",), "test": ("test",)}

_CIFAR_100 = Dataset(
    name="cifar-100",
    title="CIFAR-100",
    what="things of many kinds, colour 32x32, 100 classes (fine labels)",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    terms="no formal licence; cite Krizhevsky 2009",
    num_classes=100,
    layouts=(
        _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 100, "cifar-100-binary", _RECORDS_100),
        _folder("cifar-100-binary", 100, _RECORDS_100, {}),
        _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 100, "cifar-100-python", _PICKLES_100),
        _folder(
            "cifar-100-python",
            100,
            _PICKLES_100,
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        _sheets(
            "cifar100",
            100,
            {
                "cifar100-labels.npz": "5c4ee29530e66c051d3bfdef0e403d8fe60bf3e972212a260a808dc3a1df9ab4",
                "cifar100-test.webp": "f4f8ce7f9e631fc8bfee26f1721d508cac2f6410c393ea75cc378ab9f99bef9b",
                "cifar100-train-part1.webp": "c19ad634cbf34d27060c035498d2425c04b27d0c22e5711c7db2bc8f577594e2",
                "cifar100-train-part2.webp": "0db67afe4e90824fa6da47416c49d3120f63c89d3e6c7927e22bd0ea068b1307",
                "cifar100-train-part3.webp": "28bb9e6f48347aecbccaf115c6c266cf2559b5c67464577462a801ade9ce11c0",
                "cifar100-train-part4.webp": "43df419e5a5b2748cee1abb521cd6f20e6a53d9717a0f0958098c3269ea688a9",
                "cifar100-train-part5.webp": "cb6a836d7e70feb2a8d2e75f815b9460df6e88c152c1b4120ccf77d20c1899c2",
            },
            {},
            order=", in another order than upstream",
        ),
    ),
)

_SVHN = Dataset(
    name="svhn",
    title="SVHN",
    what="digits of house numbers, cropped, colour 32x32, 10 classes",
    home="http://ufldl.stanford.edu/housenumbers/",
    terms="non-commercial use only",
    num_classes=10,
    layouts=(
        Layout(
            "test_32x32.mat",
            {
                "test": Part(
                    "test, 26,032 images",
                    26_032,
                    (
                        File(
                            ("svhn/test_32x32.mat", "test_32x32.mat"),
                            "md5:eb5a983be6a315427106f1b164d9cef3",
                            urls=("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                        ),
                    ),
                    partial(read_svhn, num_images=26_032),
                )
            },
        ),
        Layout(
            _SHEETS,
            {
                "test": Part(
                    "test, first 10,000, re-cropped from the full images",
                    10_000,
                    (
                        File(
                            ("svhn-test-part1.webp",),
                            "sha256:e83b5769a90d5ee2c6ea7c60b5e389b85c0d0f656a2d0beae70c6b583d4e138a",
                        ),
                        File(
                            ("svhn-test-labels.npz",),
                            "sha256:7f9053ef60e77ce782b0e27b63fe7abb0f41603e06d0c0348832f9b124e3b059",
                        ),
                    ),
                    partial(read_labelled_sheets, key="y", num_classes=10, num_images=10_000, num_labels=26_032),
                )
            },
        ),
    ),
)

_TINY_IMAGENET = Dataset(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    what="photographs, resized from 64x64 to colour 32x32, without labels",
    home="http://cs231n.stanford.edu/",
    terms="ImageNet's: non-commercial research",
    num_classes=None,
    layouts=(
        Layout(
            "tiny-imagenet-200.zip",
            {
                "test": Part(
                    "test, 10,000 images, resized to 32x32",
                    10_000,
                    (
                        File(
                            ("tiny-imagenet-200.zip",),
                            "md5:90528d7ca1a48142e341f4ef8d21d0de",
                            urls=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                        ),
                    ),
                    partial(read_tiny_imagenet, num_images=10_000),
                )
            },
        ),
        Layout(
            _SHEETS,
            {
                "test": Part(
                    "test, 2,500 images, resized to 32x32",
                    2_500,
                    (
                        File(
                            ("tinyimagenet-test32.webp",),
                            "sha256:402f0765e04e4e2ae5e7c93022252f110c988c9a86649b3d5580154b78d718eb",
                        ),
                    ),
                    partial(read_sheets, num_images=2_500),
                )
            },
        ),
    ),
)

COLOUR = (_CIFAR_10, _CIFAR_100, _SVHN, _TINY_IMAGENET)
