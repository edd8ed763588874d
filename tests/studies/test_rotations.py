"""Turned images: quarter turns move pixels, other angles interpolate, and what comes from outside is black."""

import math

import pytest
import torch

from burnish.noise import make_generator
from burnish.studies.rotations import rotate


def noise(*shape):
    return torch.randint(256, shape, generator=make_generator(0)).to(torch.uint8)


def bump(side=41, right=0.0, down=0.0, width=4.0):
    """A soft spot whose place can be told to a fraction of a pixel."""
    place = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    spot = torch.exp(-0.5 * ((place - right) ** 2 + (place[:, None] - down) ** 2) / width**2)
    return (255.0 * spot).round().to(torch.uint8)[None, None]


@pytest.mark.parametrize("side", [1, 2, 28, 32, 225])
@pytest.mark.parametrize("turns", [-5, -1, 0, 1, 2, 3, 4, 401])
def test_quarter_turns_only_move_pixels(side, turns):
    images = noise(2, 3, side, side)
    assert torch.equal(rotate(images, 90 * turns), torch.rot90(images, turns, dims=(2, 3)))


def test_half_turns_are_exact_for_any_shape():
    images = noise(3, 1, 13, 30)
    assert torch.equal(rotate(images, 180), images.flip(2, 3))
    assert torch.equal(rotate(images, -360), images)


def test_a_quarter_turn_of_a_wide_image_keeps_the_shape_and_cuts():
    images = noise(2, 3, 10, 20)
    result = rotate(images, 90)
    assert torch.equal(result[..., 5:15], torch.rot90(images, 1, dims=(2, 3))[:, :, 5:15, :])
    assert int(result[..., :5].max()) == int(result[..., 15:].max()) == 0


@pytest.mark.parametrize("degrees", [15.0, 30.0, 112.5, 200.0, -77.0])
def test_a_spot_goes_where_the_turn_takes_it(degrees):
    angle = math.radians(degrees)
    expected = bump(right=8 * math.cos(angle), down=-8 * math.sin(angle))  # counter-clockwise, with rows downward
    assert (rotate(bump(right=8.0), degrees).int() - expected.int()).abs().max() <= 4


@pytest.mark.parametrize("degrees", [10.0, 45.0, 170.0])
def test_there_and_back_keeps_the_centre(degrees):
    images = bump(side=33, right=2.0, down=-1.0)
    back = rotate(rotate(images, degrees), -degrees)
    inner = slice(8, 25)
    assert (back - images.int())[..., inner, inner].abs().max() <= 8
    assert torch.equal(rotate(noise(2, 3, 33, 33), degrees)[..., 16, 16], noise(2, 3, 33, 33)[..., 16, 16])


def test_white_stays_white_inside_the_circle_and_the_corners_are_black():
    result = rotate(torch.full((1, 1, 32, 32), 255, dtype=torch.uint8), 45.0)[0, 0]
    place = torch.arange(32) - 15.5
    inside = place**2 + place[:, None] ** 2 < 15.0**2
    assert int(result[inside].min()) == 255
    assert int(result[[0, 0, -1, -1], [0, -1, 0, -1]].max()) == 0


def test_many_images_are_turned_alike(untouched_rng):
    images = noise(1, 1, 40, 40)
    result = rotate(images.expand(1500, -1, -1, -1), 33.0)  # more than are worked on at a time
    assert torch.equal(result, rotate(images, 33.0).expand(1500, -1, -1, -1))


@pytest.mark.parametrize(
    ("images", "degrees", "error", "message"),
    [
        (noise(1, 3, 4, 4), float("nan"), ValueError, "`degrees` must be finite, got nan"),
        (noise(1, 3, 4, 4), "90", TypeError, "`degrees` must be a number, got str"),
        (noise(1, 3, 4, 4).float(), 90, TypeError, "`pixels` must be torch.uint8"),
        (noise(3, 4, 4), 90, ValueError, r"`pixels` must have shape \(N, C, H, W\)"),
    ],
)
def test_bad_arguments_are_refused(images, degrees, error, message):
    with pytest.raises(error, match=message):
        rotate(images, degrees)
