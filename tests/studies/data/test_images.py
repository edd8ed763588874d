"""Images in memory."""

import pytest
import torch

from burnish.studies.data import Images


def test_inputs_are_float_between_zero_and_one_and_leave_the_pixels_alone():
    images = Images(torch.tensor([0, 51, 255, 1], dtype=torch.uint8).view(2, 1, 1, 2), torch.tensor([1, 0]))
    assert len(images) == 2
    inputs = images.inputs()
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs.flatten(), torch.tensor([0.0, 0.2, 1.0, 1.0 / 255.0]))
    assert images.pixels.flatten().tolist() == [0, 51, 255, 1]


def test_labels_may_be_missing():
    assert Images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), None).labels is None


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), None, r"`pixels` must be uint8 of shape \(N, C, H, W\), got torch.float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), None, r"got torch.uint8 of shape \(2, 4, 4\)"),
        (
            torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            r"`labels` must be int64 of shape \(2,\)",
        ),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "got torch.float32"),
    ],
)
def test_other_shapes_and_types_are_refused(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        Images(pixels, labels)
