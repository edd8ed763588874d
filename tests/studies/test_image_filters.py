"""Kernels and filters against scipy's."""

import math

import pytest
import torch
from scipy import ndimage

from burnish.noise import make_generator
from burnish.studies.corruptions import STRENGTHS
from burnish.studies.image_filters import (
    Draws,
    blur,
    chunk_length,
    correlate,
    correlate_inside,
    disk_kernel,
    gaussian_kernel,
    plasma,
    sample_at,
    to_bytes,
)


@pytest.fixture
def images():
    return torch.rand(2, 3, 14, 19, generator=make_generator(0), dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 6.4])
def test_gaussian_kernels_sum_to_one_and_blur_as_scipy_does(sigma, images):
    kernel = gaussian_kernel(sigma)
    assert float(kernel.sum()) == pytest.approx(1.0, abs=1e-14)
    assert torch.equal(kernel, kernel.flip(0))
    expected = ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="nearest")
    torch.testing.assert_close(blur(images, kernel), torch.from_numpy(expected))


@pytest.mark.parametrize(("radius", "sigma"), STRENGTHS["defocus_blur"])
def test_disks_sum_to_one_and_are_round(radius, sigma):
    kernel = disk_kernel(radius, sigma)
    assert float(kernel.sum()) == pytest.approx(1.0, abs=1e-14)
    assert torch.allclose(kernel, kernel.T)
    assert torch.allclose(kernel, kernel.flip(0))


def test_disks_have_known_weights():
    soft = math.exp(-0.5 / 0.4**2)
    middle = 1.0 / (1.0 + 2.0 * soft)
    assert float(disk_kernel(0.3, 0.4).max()) == pytest.approx(middle**2)  # one pixel, softened
    assert disk_kernel(1.5, 0.05)[1:-1, 1:-1].shape == (5, 5)
    assert int((disk_kernel(1.5, 0.05) > 0.1).sum()) == 9  # three by three pixels lie within 1.5


def test_correlation_is_scipys(images):
    kernel = torch.rand(3, 5, generator=make_generator(1), dtype=torch.float64)
    expected = torch.from_numpy(ndimage.correlate(images.numpy(), kernel[None, None].numpy(), mode="nearest"))
    torch.testing.assert_close(correlate(images, kernel), expected)
    torch.testing.assert_close(correlate_inside(images, kernel), expected[..., 1:-1, 2:-2])


def test_interpolation_is_scipys(images):
    generator = make_generator(2)
    rows = -3.0 + 20.0 * torch.rand(2, 6, 7, generator=generator, dtype=torch.float64)
    columns = -3.0 + 25.0 * torch.rand(2, 6, 7, generator=generator, dtype=torch.float64)
    for image, down, right, result in zip(images, rows, columns, sample_at(images, rows, columns), strict=True):
        for channel, values in zip(image, result, strict=True):
            expected = ndimage.map_coordinates(channel.numpy(), [down.numpy(), right.numpy()], order=1, mode="reflect")
            torch.testing.assert_close(values, torch.from_numpy(expected))


@pytest.mark.parametrize("shape", [(32, 32), (20, 33), (1, 1)])
def test_clouds_fill_their_range(shape):
    clouds = plasma(Draws(make_generator(0), 5, 3), *shape, 2.0)
    assert clouds.shape == (3, 1, *shape)
    assert float(clouds.min()) >= 0.0
    assert float(clouds.max()) <= 1.0
    if shape == (32, 32):
        assert clouds.amin((1, 2, 3)).tolist() == [0.0] * 3
        assert clouds.amax((1, 2, 3)).tolist() == [1.0] * 3


def test_draws_do_not_depend_on_how_many_are_used():
    few, many = (Draws(make_generator(0), 10, count) for count in (3, 10))
    for _ in range(2):
        assert torch.equal(few.normal(5), many.normal(5)[:3])
        assert torch.equal(few.uniform(2.0, 3.0, 5), many.uniform(2.0, 3.0, 5)[:3])


def test_values_are_rounded_and_cut_off():
    values = torch.tensor([-1.0, 0.0, 0.4 / 255, 0.6 / 255, 1.0, 7.0])
    assert to_bytes(values).tolist() == [0, 0, 0, 1, 255, 255]


def test_chunks_bound_the_number_of_values_and_hold_one_image_at_least():
    assert chunk_length(torch.empty(5, 3, 32, 32, device="meta")) == 2**20 // 3072
    assert chunk_length(torch.empty(5, 3, 4000, 4000, device="meta")) == 1
