"""Sheets of tiles."""

import numpy as np
import pytest
from made_files import noise, sheet
from PIL import Image

from burnish.studies.data.sheets import read_labelled_sheets, read_sheets

PIXELS, LABELS = noise(200, 3, 32, 32), noise(200, below=10, seed=1)


@pytest.fixture(scope="module")
def sheets(tmp_path_factory):
    """Two sheets of a row each, and the labels."""
    folder = tmp_path_factory.mktemp("sheets")
    np.savez(folder / "labels.npz", train=LABELS, names=np.array(["a", "b"]))
    return [sheet(folder / "one.webp", PIXELS[:100]), sheet(folder / "two.webp", PIXELS[100:]), folder / "labels.npz"]


def test_tiles_come_back_row_by_row_with_their_labels(sheets, tmp_path):
    images = read_labelled_sheets(sheets, key="train", num_images=200, num_classes=10)
    assert np.array_equal(images.pixels.numpy(), PIXELS)
    assert images.labels.tolist() == LABELS.tolist()
    one = sheet(tmp_path / "rows.webp", PIXELS)
    unlabelled = read_sheets([one], num_images=200)
    assert unlabelled.labels is None
    assert np.array_equal(unlabelled.pixels.numpy(), PIXELS)


def test_there_may_be_more_labels_than_images(sheets):
    images = read_labelled_sheets([sheets[0], sheets[2]], key="train", num_images=100, num_classes=10, num_labels=200)
    assert images.labels.tolist() == LABELS[:100].tolist()


def test_other_labels_are_refused_by_name(sheets):
    for options, message in (
        ({"key": "test"}, r"labels\.npz is damaged.*it holds train, names, but no test"),
        ({"num_classes": 9}, r"labels lie in 0\.\.9, not in 0\.\.8"),
        ({"num_labels": 199}, r"shape \(200,\), not 199 integers"),
        ({"key": "names"}, r"labels are <U1"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labelled_sheets(sheets, **{"key": "train", "num_images": 200, "num_classes": 10} | options)


@pytest.mark.parametrize("keep", [0, 20, 1000, -1000])
def test_a_truncated_sheet_is_refused(sheets, tmp_path, keep):
    path = tmp_path / "cut.webp"
    path.write_bytes(sheets[0].read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cut\.webp is damaged"):
        read_sheets([path], num_images=100)


def test_another_size_or_mode_is_refused_before_it_is_unpacked(sheets, tmp_path):
    with pytest.raises(ValueError, match=r"one\.webp is damaged.*it is \(3200, 32\) in RGB, not \(3200, 64\) in RGB"):
        read_sheets(sheets[:1], num_images=200)
    Image.new("RGBA", (3200, 32), (1, 2, 3, 4)).save(tmp_path / "clear.webp", lossless=True)
    with pytest.raises(ValueError, match="in RGBA, not"):
        read_sheets([tmp_path / "clear.webp"], num_images=100)


def test_labels_that_are_cut_or_pickled_are_refused(sheets, tmp_path):
    path = tmp_path / "labels.npz"
    np.savez(path, train=np.array([{}] * 100))
    for content in (path.read_bytes(), sheets[2].read_bytes()[:100], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"labels\.npz is damaged"):
            read_labelled_sheets([sheets[0], path], key="train", num_images=100, num_classes=10)
