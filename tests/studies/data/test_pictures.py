"""Archives with a picture to a file."""

import numpy as np
import pytest
from made_files import picture, zipped

from burnish.studies.data.pictures import read_omniglot, read_tiny_imagenet


def tiny(number):
    return f"tiny-imagenet-200/test/images/test_{number}.JPEG"


def flat(value, side=64):
    return np.full((side, side, 3), value, np.uint8)


def test_tiny_imagenet_comes_in_the_order_of_its_numbers_at_half_the_size(tmp_path):
    """Plain pictures, one for each number; some of the set's are grey, and ten comes after two."""
    members = {tiny(number): picture(flat(20 * number), "JPEG", quality=95) for number in range(11)}
    members[tiny(3)] = picture(flat(60)[..., 0], "JPEG", quality=95)
    path = zipped(tmp_path / "tiny.zip", {**members, "tiny-imagenet-200/val/images/val_0.JPEG": b""})
    images = read_tiny_imagenet([path], num_images=11)
    assert images.labels is None
    assert images.pixels.shape == (11, 3, 32, 32)
    expected = 20.0 * np.arange(11.0)[:, None, None, None]
    assert np.abs(images.pixels.numpy().astype(float) - expected).max() <= 1.0


def test_tiny_imagenet_is_resized_without_a_shift(tmp_path):
    """Left half black, right half white, top row of colours kept apart: the edge stays in the middle."""
    halves = flat(0)
    halves[:, 32:, 0] = 255
    path = zipped(tmp_path / "tiny.zip", {tiny(0): picture(halves, "JPEG", quality=100, subsampling=0)})
    red = read_tiny_imagenet([path], num_images=1).pixels[0, 0].float()
    assert red[:, :14].max() < 10
    assert red[:, 18:].min() > 245


def test_a_missing_or_odd_picture_is_refused(tmp_path):
    path = zipped(tmp_path / "tiny.zip", {tiny(0): picture(flat(1), "JPEG"), tiny(1): picture(flat(1, 32), "JPEG")})
    with pytest.raises(ValueError, match=r"tiny\.zip is damaged.*test_1\.JPEG in it is \(32, 32\), not \(64, 64\)"):
        read_tiny_imagenet([path], num_images=2)
    zipped(path, {tiny(0): picture(flat(1), "JPEG")})
    with pytest.raises(ValueError, match=r"tiny\.zip is damaged.*test_1\.JPEG"):
        read_tiny_imagenet([path], num_images=2)
    zipped(path, {tiny(0): picture(flat(1), "JPEG")[:200]})
    with pytest.raises(ValueError, match=r"tiny\.zip is damaged"):
        read_tiny_imagenet([path], num_images=1)


def drawing(top, left, side=30):
    """Black on white, as bits."""
    paper = np.full((105, 105), True)
    paper[top : top + side, left : left + side] = False
    return picture(paper, "PNG")


def test_omniglot_is_white_on_black_upright_and_labelled_by_alphabet(tmp_path):
    members = {
        "images_evaluation/Beta/character01/0002_01.png": drawing(60, 0),
        "images_evaluation/Alpha/character01/0001_02.png": drawing(0, 60),
        "images_evaluation/Alpha/character01/0001_01.png": drawing(0, 0),
        "images_evaluation/": b"",
    }
    path = zipped(tmp_path / "images_evaluation.zip", members)
    images = read_omniglot([path], num_images=3, num_alphabets=2)
    assert images.labels.tolist() == [0, 0, 1]
    assert images.pixels.shape == (3, 1, 28, 28)
    for picture_, (row, column) in zip(images.pixels[:, 0], [(0, 0), (0, 16), (16, 0)], strict=True):
        assert picture_[row : row + 7, column : column + 7].min() == 255
        picture_[row : row + 8, column : column + 8] = 0
        assert picture_.max() == 0
    with pytest.raises(ValueError, match="it holds 3 drawings of 2 alphabets, not 4 of 2"):
        read_omniglot([path], num_images=4, num_alphabets=2)


def test_thin_strokes_become_white(tmp_path):
    """One pixel wide: about a quarter of the grey without the factor."""
    members = {f"images_evaluation/A/character01/{number}.png": drawing(50, 50, 1) for number in range(3)}
    path = zipped(tmp_path / "images_evaluation.zip", members)
    images = read_omniglot([path], num_images=3, num_alphabets=1)
    assert images.pixels.amax((1, 2, 3)).tolist() == [255, 255, 255]
