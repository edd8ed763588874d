"""SVHN's MATLAB files."""

import numpy as np
import pytest
from made_files import noise
from scipy.io import savemat

from burnish.studies.data.matlab import read_svhn

PIXELS = noise(7, 3, 32, 32)
LABELS = np.array([10, 1, 2, 9, 10, 5, 3], np.uint8)
X = PIXELS.transpose(2, 3, 1, 0)


def save(path, **arrays):
    savemat(path, arrays, do_compression=True)
    return [path]


def test_digits_come_back_with_zero_for_ten(tmp_path):
    images = read_svhn(save(tmp_path / "test.mat", X=X, y=LABELS[:, None]), num_images=7)
    assert np.array_equal(images.pixels.numpy(), PIXELS)
    assert images.labels.tolist() == [0, 1, 2, 9, 0, 5, 3]
    assert images.pixels.is_contiguous()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "KeyError, 'y'"),
        ({"X": PIXELS, "y": LABELS}, r"X is uint8 of shape \(7, 3, 32, 32\), not uint8 of shape \(32, 32, 3, 7\)"),
        ({"X": X.astype(float), "y": LABELS}, "X is float64"),
        ({"X": X, "y": LABELS - 1}, r"y is not made of integers in 1\.\.10"),
        ({"X": X, "y": LABELS[:6]}, r"labels are int64 of shape \(6,\), not 7 integers"),
    ],
)
def test_other_arrays_are_refused_by_name(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_svhn(save(tmp_path / "test.mat", **arrays), num_images=7)
    assert str(tmp_path / "test.mat") in str(caught.value)


@pytest.mark.parametrize("keep", [0, 100, 200, 5000])
def test_a_truncated_file_is_refused(tmp_path, keep):
    (path,) = save(tmp_path / "test.mat", X=X, y=LABELS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"test\.mat is damaged"):
        read_svhn([path], num_images=7)
