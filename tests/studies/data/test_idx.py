"""IDX files: what goes in comes out, and whatever is not right is said with the name of the file."""

import contextlib
import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import idx, noise, write, zipped

from burnish.studies.data.damage import DamagedFileError
from burnish.studies.data.idx import read_emnist, read_emnist_archive, read_idx, read_mnist

PIXELS, LABELS = noise(12, 28, 28), noise(12, below=10, seed=1)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_and_labels_come_back(tmp_path, suffix):
    paths = [write(tmp_path / f"images{suffix}", idx(PIXELS)), write(tmp_path / f"labels{suffix}", idx(LABELS))]
    images = read_mnist(paths, num_images=12)
    assert np.array_equal(images.pixels.numpy(), PIXELS[:, None])
    assert images.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing, not with IDX's 00000803"),
        (b"\x00\x00\x0d\x03" + idx(PIXELS)[4:], "begins with 00000d03"),
        (idx(LABELS), "begins with 00000801"),
        (idx(PIXELS)[:9], "it ends after 9 of the 16 bytes of IDX's header"),
        (idx(PIXELS)[:4], "it ends after 4 of the 16 bytes"),
        (idx(PIXELS[:11]), r"its shape is \(11, 28, 28\), not \(12, 28, 28\)"),
        (idx(PIXELS.reshape(12, 14, 56)), r"its shape is \(12, 14, 56\)"),
        (idx(PIXELS)[:-1], "shorter than 9408 bytes"),
        (idx(PIXELS) + b"\x00", "longer than 9408 bytes"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_other_content_is_refused_by_name_with_a_remedy(tmp_path, suffix, content, message):
    path = write(tmp_path / f"images{suffix}", content)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path, (12, 28, 28))
    assert str(path) in str(caught.value)
    assert "Delete it" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_a_truncated_gz_is_refused(tmp_path, keep):
    path = write(tmp_path / "images.gz", idx(PIXELS))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"images\.gz is damaged"):
        read_idx(path, (12, 28, 28))


@given(position=st.integers(0, 2**20), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_in_a_gz_is_noticed_or_does_not_matter(tmp_path, position, bit):
    content = bytearray(gzip.compress(idx(PIXELS[:2]), mtime=0))
    content[position % len(content)] ^= 1 << bit
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with contextlib.suppress(DamagedFileError):
        assert np.array_equal(read_idx(path, (2, 28, 28)), PIXELS[:2])


def test_labels_beyond_the_classes_and_of_another_number_are_refused(tmp_path):
    images = write(tmp_path / "images", idx(PIXELS))
    labels = write(tmp_path / "labels", idx(np.full(12, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"labels is damaged.*labels lie in 10\.\.10, not in 0\.\.9"):
        read_mnist([images, labels], num_images=12)
    write(labels, idx(LABELS[:11]))
    with pytest.raises(ValueError, match=r"its shape is \(11,\), not \(12,\)"):
        read_mnist([images, labels], num_images=12)


def test_what_the_system_says_of_a_file_is_said_with_its_name(tmp_path):
    with pytest.raises(OSError, match=r"nothing cannot be read \(No such file or directory\)\. Check"):
        read_idx(tmp_path / "nothing", (1,))


def tall_digits(num_wide):
    """Twelve images with ink in a column, or for some of them in a row."""
    pixels = np.zeros((12, 28, 28), np.uint8)
    pixels[:, 4:24, 10:16] = 60 + noise(12, 20, 6, below=180)
    pixels[:num_wide] = pixels[:num_wide].transpose(0, 2, 1)
    return pixels


@pytest.mark.parametrize("num_wide", [0, 1, 2])
def test_emnist_is_put_upright_however_it_lies(tmp_path, num_wide):
    """Its own files have rows and columns exchanged, copies may not; a digit that is wide, blank or damaged is no matter."""
    pixels = tall_digits(num_wide)
    labels = write(tmp_path / "labels", idx(LABELS))
    for bit in (0, 128):
        pixels[5, 3, 7] ^= bit
        for stored in (pixels, pixels.transpose(0, 2, 1)):
            images = read_emnist([write(tmp_path / "images.gz", idx(stored)), labels], num_images=12)
            assert np.array_equal(images.pixels[:, 0].numpy(), pixels)
    pixels[7] = 0
    images = read_emnist([write(tmp_path / "images.gz", idx(pixels)), labels], num_images=12)
    assert np.array_equal(images.pixels[:, 0].numpy(), pixels)


def test_emnist_that_lies_neither_way_is_refused(tmp_path):
    paths = [write(tmp_path / "images", idx(tall_digits(6))), write(tmp_path / "labels", idx(LABELS))]
    with pytest.raises(ValueError, match=r"images is damaged.*50% of its images are taller than wide"):
        read_emnist(paths, num_images=12)


def test_emnists_archive_is_read_upright(tmp_path):
    members = ("gzip/images.gz", "gzip/labels.gz")
    content = {members[0]: gzip.compress(idx(PIXELS.transpose(0, 2, 1))), members[1]: gzip.compress(idx(LABELS))}
    path = zipped(tmp_path / "gzip.zip", content | {"gzip/other.gz": b"not looked at"})
    images = read_emnist_archive([path], members=members, num_images=12)
    assert np.array_equal(images.pixels[:, 0].numpy(), PIXELS)
    assert images.labels.tolist() == LABELS.tolist()
    with pytest.raises(ValueError, match=r"gzip\.zip is damaged.*absent"):
        read_emnist_archive([path], members=(members[0], "gzip/absent.gz"), num_images=12)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"gzip\.zip is damaged.*BadZipFile"):
        read_emnist_archive([path], members=members, num_images=12)
