"""Small files in the forms that data sets come in, written from what is known of the forms alone."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image


def noise(*shape, below=256, seed=0):
    return np.random.default_rng(seed).integers(0, below, shape, dtype=np.uint8)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, content):
    """The content as the end of the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1, mtime=0) if path.suffix == ".gz" else content)
    return path


def records(pixels, *labels):
    """Of (N, 3, 32, 32) and one or two label bytes for each."""
    return np.concatenate([*(part[:, None] for part in labels), pixels.reshape(len(pixels), -1)], axis=1).tobytes()


def python2_pickle(pixels, labels, key=b"labels"):
    """What Python 2 and the numpy of that time wrote, protocol 2: a dict of a label list and a matrix of bytes."""
    flat = pixels.reshape(len(pixels), -1)
    shape = b"".join(b"J" + struct.pack("<i", size) for size in flat.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + dtype
        + b"\x89T"
        + struct.pack("<i", flat.size)
        + flat.tobytes()
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U" + bytes([len(key)]) + key + numbers + b"u."


def tar(path, members):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def sheet(path, pixels):
    """(N, 3, 32, 32), N a multiple of a hundred, as tiles."""
    tiles = pixels.reshape(-1, 100, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    Image.fromarray(tiles.reshape(-1, 3200, 3)).save(path, "WEBP", lossless=True, quality=0, method=0, exact=True)
    return path


def picture(array, form, **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()
