"""CIFAR's records and pickles, in folders and archives; a pickle that wants to run something does not."""

import contextlib
import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import noise, python2_pickle, records, tar

from burnish.studies.data.cifar import read_archive, read_folder
from burnish.studies.data.damage import DamagedFileError

PIXELS, LABELS = noise(6, 3, 32, 32), noise(6, below=10, seed=1)
FINE = noise(6, below=100, seed=2)
BINARY = {"a.bin": records(PIXELS[:3], LABELS[:3]), "b.bin": records(PIXELS[3:], LABELS[3:])}
PICKLED = {"a": python2_pickle(PIXELS[:3], LABELS[:3]), "b": python2_pickle(PIXELS[3:], LABELS[3:])}


def put(folder, members):
    for name, content in members.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in members]


@pytest.mark.parametrize("members", [BINARY, PICKLED], ids=["records", "pickles"])
def test_a_folder_and_an_archive_give_the_images_in_the_order_of_the_batches(tmp_path, members):
    inside = {f"cifar/{name}": content for name, content in reversed(members.items())}
    path = tar(tmp_path / "cifar.tar.gz", {"cifar/readme.html": b"", **inside})
    for images in (
        read_folder(put(tmp_path, members), num_classes=10, num_images=6),
        read_archive([path], members=tuple(f"cifar/{name}" for name in members), num_classes=10, num_images=6),
    ):
        assert np.array_equal(images.pixels.numpy(), PIXELS)
        assert images.labels.tolist() == LABELS.tolist()


def test_a_hundred_classes_have_the_fine_labels(tmp_path):
    coarse = FINE // 5
    (tmp_path / "train.bin").write_bytes(records(PIXELS, coarse, FINE))
    (tmp_path / "train").write_bytes(python2_pickle(PIXELS, FINE, b"fine_labels"))
    for name in ("train.bin", "train"):
        images = read_folder([tmp_path / name], num_classes=100, num_images=6)
        assert images.labels.tolist() == FINE.tolist()
        assert np.array_equal(images.pixels.numpy(), PIXELS)


def test_todays_pickles_are_read_as_well(tmp_path):
    content = pickle.dumps({"data": PIXELS.reshape(6, -1), "labels": LABELS.tolist()}, 4)
    images = read_folder(put(tmp_path, {"batch": content}), num_classes=10, num_images=6)
    assert np.array_equal(images.pixels.numpy(), PIXELS)


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_something_is_refused_and_nothing_runs(tmp_path, protocol):
    trace = tmp_path / "trace"
    for call in (
        Calls(os.system, f"touch {trace}"),
        Calls(eval, f"open({str(trace)!r}, 'w').close()"),
        Calls(os.mkdir, str(trace)),
    ):
        path = put(tmp_path, {"batch": pickle.dumps({"data": [], "labels": [call]}, protocol)})
        with pytest.raises(ValueError, match=r"batch is damaged.*it asks for \w+\.\w+, which is neither"):
            read_folder(path, num_classes=10, num_images=6)
        assert not trace.exists()
        pickle.loads(path[0].read_bytes())  # what would have happened
        assert trace.exists()
        trace.rmdir() if trace.is_dir() else trace.unlink()


@pytest.mark.parametrize(
    "name", ["numpy.load", "numpy.core.multiarray.fromfile", "builtins.getattr", "numpy.ndarray.tofile"]
)
def test_names_beside_the_allowed_ones_are_refused(tmp_path, name):
    module, _, function = name.rpartition(".")
    content = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(function)])
    path = put(tmp_path, {"batch": content + function.encode() + b"\x93."})
    with pytest.raises(ValueError, match="it asks for"):
        read_folder(path, num_classes=10, num_images=6)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("batch.bin", BINARY["a.bin"][:-1], "3 records take 9219 bytes, there are 9218"),
        ("batch.bin", b"", "there are 0"),
        ("batch.bin", records(PIXELS[:3], np.full(3, 11, np.uint8)), r"labels lie in 11\.\.11, not in 0\.\.9"),
        ("batch", b"", "EOFError"),
        ("batch", PICKLED["a"][:-100], "damaged"),
        ("batch", b"\x8e" + (2**62).to_bytes(8, "little"), "it asks for more memory than there is"),
        ("batch", pickle.dumps([1, 2]), "it holds a list, not a dict"),
        ("batch", pickle.dumps({"labels": [1, 2, 3]}), "its data are NoneType"),
        (
            "batch",
            pickle.dumps({"data": PIXELS[:3], "labels": [1, 2, 3]}, 4),
            r"its data are uint8 of shape \(3, 3, 32, 32\)",
        ),
        ("batch", pickle.dumps({"data": PIXELS[:3].reshape(3, -1)}, 4), "labels are object"),
        ("batch", python2_pickle(PIXELS[:3], LABELS[:2]), r"labels are int64 of shape \(2,\), not 3 integers"),
        ("batch", python2_pickle(PIXELS[:3], LABELS[:3], b"fine_labels"), "labels are object"),
    ],
)
def test_other_content_is_refused_by_name(tmp_path, name, content, message):
    path = put(tmp_path, {name: content})
    with pytest.raises(ValueError, match=message) as caught:
        read_folder(path, num_classes=10, num_images=3)
    assert str(path[0]) in str(caught.value)


@given(position=st.integers(0, 2**20), value=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_in_a_pickle_gives_images_or_the_one_error(tmp_path, position, value):
    content = bytearray(PICKLED["a"])
    frame = [*range(200), *range(len(content) - 60, len(content))]  # not the pixels, which mean nothing to the reader
    content[frame[position % len(frame)]] = value
    with contextlib.suppress(DamagedFileError):
        images = read_folder(put(tmp_path, {"batch": bytes(content)}), num_classes=10, num_images=3)
        assert images.pixels.shape == (3, 3, 32, 32)


def test_an_archive_that_is_cut_or_lacks_a_batch_is_refused(tmp_path):
    path = tar(tmp_path / "cifar.tar.gz", BINARY)
    with pytest.raises(ValueError, match=r"cifar\.tar\.gz is damaged.*it holds no c\.bin"):
        read_archive([path], members=("a.bin", "b.bin", "c.bin"), num_classes=10, num_images=9)
    whole = path.read_bytes()
    for keep in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"cifar\.tar\.gz is damaged"):
            read_archive([path], members=("a.bin", "b.bin"), num_classes=10, num_images=6)


@given(position=st.integers(0, 2**20), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_in_an_archive_is_noticed_or_does_not_matter(tmp_path, position, bit):
    """Also behind the last batch, and where the archive could still be unpacked."""
    path = tar(tmp_path / "cifar.tar.gz", {**BINARY, "readme.html": noise(2000, seed=3).tobytes()})
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with contextlib.suppress(DamagedFileError):
        images = read_archive([path], members=("a.bin", "b.bin"), num_classes=10, num_images=6)
        assert np.array_equal(images.pixels.numpy(), PIXELS)
        assert images.labels.tolist() == LABELS.tolist()


def test_the_checksum_at_the_end_of_an_archive_is_looked_at(tmp_path):
    path = tar(tmp_path / "cifar.tar.gz", {**BINARY, "readme.html": b"after all batches"})
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # gzip ends with the checksum and the size
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar\.tar\.gz is damaged.*CRC check failed"):
        read_archive([path], members=("a.bin", "b.bin"), num_classes=10, num_images=6)
