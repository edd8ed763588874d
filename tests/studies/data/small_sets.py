"""A data set small enough to be served and damaged: images and labels in two IDX files for each split."""

import gzip
import hashlib
from functools import partial

from made_files import idx, noise

from burnish.studies.data.idx import read_mnist
from burnish.studies.data.layouts import Dataset, File, Layout, Part

COUNTS = {"train": 8, "test": 4}
PIXELS = {split: noise(count, 28, 28, seed=count) for split, count in COUNTS.items()}
LABELS = {split: noise(count, below=10, seed=count) for split, count in COUNTS.items()}
PACKED = {
    f"{split}-{kind}.gz": gzip.compress(idx(array), mtime=0)
    for kind, arrays in (("images", PIXELS), ("labels", LABELS))
    for split, array in arrays.items()
}


def md5(content):
    return f"md5:{hashlib.md5(content).hexdigest()}"


def small_set(*homes, standin=True):
    """As upstream in a folder of its own, at some addresses; and a stand-in with other names and no checksums."""
    upstream, copies = {}, {}
    for split, count in COUNTS.items():
        names = [f"{split}-{kind}.gz" for kind in ("images", "labels")]
        read = partial(read_mnist, num_images=count)
        files = [File((f"small/{name}",), md5(PACKED[name]), urls=tuple(home + name for home in homes)) for name in names]
        upstream[split] = Part(f"{split}, {count} images", count, tuple(files), read)
        copies[split] = Part(f"{split}, a copy", count, tuple(File((f"copy-{name}",)) for name in names), read)
    layouts = (Layout("upstream files", upstream), *([Layout("copies", copies)] if standin else []))
    return Dataset("small", "Small", "noise", "http://home", "none", 10, layouts)


def put(folder, *, copy=False, names=tuple(PACKED)):
    for name in names:
        path = folder / (f"copy-{name}" if copy else f"small/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACKED[name])
