"""Corrupted images: what each kind does to images whose answer is known, and the promises that all kinds keep."""

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from burnish.noise import make_generator
from burnish.studies import image_filters
from burnish.studies.corruptions import KINDS, LEVELS, STRENGTHS, corrupt, corrupted_mix
from burnish.studies.data import load_images

BLURS = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur")
WITHOUT_CHANCE = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}


def scenes(count, *, channels=3, height=32, width=32, seed=0):
    """Waves of muted colours with a disk on top: images with edges and slopes, and hardly black or white anywhere."""
    draw = torch.rand(count, channels, 3, 1, 1, generator=make_generator(seed))
    down, right = torch.arange(height)[:, None] / height, torch.arange(width) / width
    waves = 0.5 + 0.4 * torch.sin(6.0 * (draw[:, :, 0] * down + draw[:, :, 1] * right + draw[:, :, 2]))
    waves = 0.7 * waves[:, :1] + 0.3 * waves
    disk = (down - 0.5) ** 2 + (right - draw[:, :1, 0]) ** 2 < 0.06
    return (255.0 * torch.where(disk, 1.0 - waves, waves)).round().to(torch.uint8)


def textures(count, *, seed=0):
    """Noise of 32x32 pixels whose amplitude falls with frequency as in photographs, in muted colours."""
    frequency = torch.hypot(torch.fft.fftfreq(32)[:, None], torch.fft.rfftfreq(32)).clamp_min(1.0 / 32)
    noise = torch.randn(count, 4, 32, 32, generator=make_generator(seed))
    waves = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=(32, 32))
    waves = waves / waves.std((2, 3), keepdim=True)
    return (120.0 + 45.0 * waves[:, :1] + 15.0 * waves[:, 1:]).round().clamp(0.0, 255.0).to(torch.uint8)


def flat(value, count=4, *, channels=3, side=32):
    return torch.full((count, channels, side, side), value, dtype=torch.uint8)


def strength(kind, level):
    return STRENGTHS[kind][level - 1]


def distance(kind, level, images):
    return float(((corrupt(images, kind, level).double() - images.double()) ** 2).mean().sqrt())


def test_there_are_seventeen_kinds_with_five_levels_each():
    assert len(KINDS) == len(set(KINDS)) == 17
    assert LEVELS == (1, 2, 3, 4, 5)
    assert all(len(levels) == len(LEVELS) for levels in STRENGTHS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_shape_dtype_input_and_random_state(kind, untouched_rng):
    images = scenes(6, height=20, width=27)
    before = images.clone()
    for level in LEVELS:
        result = corrupt(images, kind, level)
        assert result.dtype == torch.uint8
        assert result.shape == images.shape
        assert not torch.equal(result, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "elastic_transform"])
def test_level_five_is_further_from_the_original_than_level_one(kind):
    images = scenes(20)
    assert distance(kind, 5, images) > 1.2 * distance(kind, 1, images) > 0.0


# levels after which pixels are nearer to the original, or as near; the docstring of STRENGTHS says why
NOT_FURTHER = {
    "elastic_transform": {1, 2, 3, 4},
    "glass_blur": {1, 2, 4},
    "motion_blur": {3},
    "saturate": {2},
}


def check_neighbours(kind, images):
    steps = [distance(kind, level, images) for level in LEVELS]
    nearer = {level for level in LEVELS[:-1] if steps[level] < 1.02 * steps[level - 1]}
    assert nearer == NOT_FURTHER.get(kind, set()), steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_is_further_from_the_original_than_the_one_before_with_known_exceptions(kind):
    check_neighbours(kind, textures(40))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("BURNISH_DATA"), reason="needs data sets under BURNISH_DATA")
@pytest.mark.parametrize("kind", KINDS)
def test_the_exceptions_are_those_of_real_images(kind):
    try:
        images = load_images("cifar-10", "test")
    except FileNotFoundError:
        pytest.skip("cifar-10 is not under BURNISH_DATA")
    check_neighbours(kind, images.pixels[:500])


def test_elastic_distortion_bends_ever_more():
    """A ramp stays a plane when the image moves as a whole; what is left beside the best plane is the bending."""
    ramp = (4 * torch.arange(64)).to(torch.uint8).expand(40, 1, 64, 64)
    inner = slice(16, 48)  # away from reflections at the edges
    down, right = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    planes = torch.stack([torch.ones(1024), down.flatten(), right.flatten()], dim=1).double()
    bending = []
    for level in LEVELS:
        values = corrupt(ramp, "elastic_transform", level)[:, 0, inner, inner].double().flatten(1).T / 4.0
        residual = values - planes @ torch.linalg.lstsq(planes, values).solution
        bending.append(float(residual.square().mean().sqrt()))
    assert bending == sorted(bending)
    assert bending[0] < 0.1  # of a pixel: rounding alone
    reach, sigma, _ = (64 * part for part in strength("elastic_transform", 5))
    # Uniform noise smoothed in two dimensions; planes and bilinear interpolation take little of it.
    assert bending[4] == pytest.approx(reach / math.sqrt(3.0) / (2.0 * math.sqrt(math.pi) * sigma), rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_reproducible_and_chance_follows_the_seed(kind):
    images = scenes(5)
    first = corrupt(images, kind, 3, seed=1)
    assert torch.equal(corrupt(images, kind, 3, seed=1), first)
    assert torch.equal(corrupt(images, kind, 3, seed=2), first) == (kind in WITHOUT_CHANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_depends_on_its_place_alone_not_on_its_company(kind, monkeypatch):
    """More images than are worked on at a time; the noise on one is the same, however many and whichever the others are."""
    monkeypatch.setattr(image_filters, "_CHUNK", 8 * 3 * 32 * 32)
    images = scenes(20)
    result = corrupt(images, kind, 4)
    changed = images.clone()
    changed[::2] = 255 - changed[::2]
    assert torch.equal(corrupt(changed, kind, 4)[1::2], result[1::2])
    assert torch.equal(corrupt(images[:3], kind, 4), result[:3])
    twins = corrupt(images[:1].expand(20, -1, -1, -1), kind, 4)
    assert (torch.unique(twins, dim=0).shape[0] == 1) == (kind in WITHOUT_CHANCE)
    assert torch.equal(twins[:1], result[:1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(kind):
    images = scenes(15, height=64, width=61)  # enough for torch to share the work out
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(corrupt(images, kind, 5))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_layout_does_not_matter(kind):
    images = scenes(3)
    last = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not last.is_contiguous()
    assert torch.equal(corrupt(last, kind, 2), corrupt(images, kind, 2))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "saturate"])
@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 1, 9, 5), (1, 1, 1, 1)])
def test_grey_and_tiny_images_are_welcome(kind, shape):
    images = torch.randint(256, shape, generator=make_generator(0)).to(torch.uint8)
    assert corrupt(images, kind, 5).shape == shape


@pytest.mark.parametrize("kind", BLURS)
@pytest.mark.parametrize("level", LEVELS)
def test_blur_leaves_a_flat_image_exactly_as_it_is(kind, level):
    images = torch.cat([flat(value, 1) for value in (0, 1, 77, 128, 254, 255)])
    assert torch.equal(corrupt(images, kind, level), images)


@pytest.mark.parametrize("kind", ["elastic_transform", "pixelate", "contrast"])
def test_these_too_leave_a_flat_image_as_it_is(kind):
    images = torch.cat([flat(value, 1) for value in (0, 1, 77, 254, 255)])
    assert torch.equal(corrupt(images, kind, 5), images)


@pytest.mark.parametrize("level", LEVELS)
def test_gaussian_noise_has_its_standard_deviation(level):
    noise = (corrupt(flat(128, 40), "gaussian_noise", level).double() - 128.0) / 255.0
    std = strength("gaussian_noise", level)[0]
    assert float(noise.std()) == pytest.approx(std, rel=0.01)
    assert abs(float(noise.mean())) < 4.0 * std / math.sqrt(noise.numel())


@pytest.mark.parametrize("level", LEVELS)
def test_speckle_grows_with_the_value(level):
    std = strength("speckle_noise", level)[0]
    for value in (60, 120):
        noise = (corrupt(flat(value, 40), "speckle_noise", level).double() - value) / 255.0
        rounding = 1.0 / 12.0 / 255.0**2
        assert float(noise.var()) == pytest.approx((std * value / 255.0) ** 2 + rounding, rel=0.03)
    assert torch.equal(corrupt(flat(0), "speckle_noise", level), flat(0))


@pytest.mark.parametrize("level", LEVELS)
def test_shot_noise_is_poisson(level):
    photons = strength("shot_noise", level)[0]
    values = corrupt(flat(102, 40), "shot_noise", level).double() / 255.0
    assert float(values.mean()) == pytest.approx(0.4, abs=4.0 * math.sqrt(0.4 / photons / values.numel()) + 1e-4)
    assert float(values.var()) == pytest.approx(0.4 / photons, rel=0.05)  # counts of 1 / 250 and less get lost in bytes
    assert torch.equal(corrupt(flat(0), "shot_noise", level), flat(0))


def test_counts_of_photons_follow_the_poisson_law():
    """At 50 photons for white, counts can be read back from bytes; white is where the law is cut off."""
    for value in (5, 102, 255):
        counts = (corrupt(flat(value, 20), "shot_noise", 5).double() / 255.0 * 50).round().long()
        law = stats.poisson(50 * value / 255.0)
        expected = torch.tensor([*law.pmf(np.arange(50)), law.sf(49)]) * counts.numel()
        seen = counts.flatten().bincount(minlength=51).double()
        large = expected > 20
        chi2 = float(((seen - expected)[large] ** 2 / expected[large]).sum())
        assert stats.chi2.sf(chi2, int(large.sum())) > 1e-3


@pytest.mark.parametrize("level", LEVELS)
def test_impulses_have_their_share_half_black_half_white(level):
    result = corrupt(flat(100, 40), "impulse_noise", level)
    share = strength("impulse_noise", level)[0]
    for extreme in (0, 255):
        assert float((result == extreme).double().mean()) == pytest.approx(share / 2, rel=0.06)
    assert set(result.unique().tolist()) == {0, 100, 255}


@pytest.mark.parametrize("level", LEVELS)
def test_brightness_raises_the_largest_channel_and_keeps_ratios(level):
    rise = strength("brightness", level)[0]
    images = torch.tensor([100, 50, 20], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    result = corrupt(images, "brightness", level)[0, :, 0, 0].double()
    expected = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64) * (100 + 255 * rise)
    assert (result - expected).abs().max() <= 0.5 + 1e-3
    assert (corrupt(flat(0), "brightness", level).double() - 255.0 * rise).abs().max() <= 0.5 + 1e-3
    assert torch.equal(corrupt(flat(255), "brightness", level), flat(255))


@pytest.mark.parametrize("level", LEVELS)
def test_contrast_scales_the_variance_and_keeps_the_mean(level):
    images = scenes(10)
    result = corrupt(images, "contrast", level).double()
    before, after = images.double().flatten(2), result.flatten(2)
    factor = strength("contrast", level)[0]
    assert (after.mean(2) - before.mean(2)).abs().max() < 0.5
    torch.testing.assert_close(after.var(2) - 1.0 / 12.0, factor**2 * before.var(2), rtol=0.01, atol=0.5)


def test_saturation_scales_distances_from_the_largest_channel():
    images = torch.tensor([200, 150, 100], dtype=torch.uint8).view(1, 3, 1, 1)
    expected = [[200, 185, 170], [200, 195, 190], [200, 125, 50], [200, 100, 0], [200, 100, 0]]
    # At levels 4 and 5 a saturation of 0.5 becomes 1.1 and 1.45, which is cut off at 1.
    assert [corrupt(images, "saturate", level).flatten().tolist() for level in LEVELS] == expected


def test_grey_has_no_colour_to_take_and_turns_red_where_some_is_added():
    images = flat(100, 1)
    for level in (1, 2, 3):
        assert torch.equal(corrupt(images, "saturate", level), images)
    assert corrupt(images, "saturate", 5)[0, :, 0, 0].tolist() == [100, 80, 80]
    assert torch.equal(corrupt(flat(0), "saturate", 5), flat(0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("side", [28, 32, 48])
def test_pixelate_is_box_resampling_there_and_back(level, side):
    images = scenes(4, height=side, width=side)
    small = (int(strength("pixelate", level)[0] * side),) * 2
    for image, result in zip(images, corrupt(images, "pixelate", level), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        there = picture.resize(small, Image.Resampling.BOX).resize((side, side), Image.Resampling.BOX)
        gap = torch.from_numpy(np.array(there)).permute(2, 0, 1).int() - result.int()
        assert gap.abs().max() <= 1  # Pillow rounds on the way


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("value", [0, 90, 255])
def test_jpeg_leaves_a_flat_image_within_one(value, channels):
    images = flat(value, 2, channels=channels)
    for level in LEVELS:
        assert (corrupt(images, "jpeg_compression", level).int() - value).abs().max() <= 1


def test_jpeg_keeps_channels_in_order():
    images = torch.tensor([220, 120, 20], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 16, 16)
    assert (corrupt(images, "jpeg_compression", 1).int() - images.int()).abs().max() <= 3


@pytest.mark.parametrize("level", LEVELS)
def test_fog_lightens_by_its_strength_within_the_range_of_before(level):
    density = strength("fog", level)[0]
    result = corrupt(flat(204, 30), "fog", level).double() / 255.0
    clouds = result * (0.8 + density) / 0.8 - 0.8  # what was added to 0.8 before scaling back
    assert float(clouds.amin((1, 2, 3)).max()) == pytest.approx(0.0, abs=0.02)
    assert float(clouds.amax((1, 2, 3)).min()) == pytest.approx(density, abs=0.02)
    assert torch.equal(result[:, 0], result[:, 2])  # clouds are grey


def test_fog_is_smooth_and_gets_rougher():
    """Neighbours differ less than distant pixels do; at level 5 noise falls more slowly from coarse to fine."""

    def roughness(level):
        fog = corrupt(flat(204, 60), "fog", level).double()[:, 0]
        return float((fog[:, :, 1:] - fog[:, :, :-1]).std() / (fog[:, :, 16:] - fog[:, :, :16]).std())

    assert roughness(1) < 0.4
    assert roughness(1) < roughness(4) < roughness(5) < 1.0


def test_motion_leaves_a_trail_of_falling_weight_that_keeps_the_mass():
    images = torch.zeros(50, 1, 41, 41, dtype=torch.uint8)
    images[..., 20, 20] = 255
    result = corrupt(images, "motion_blur", 5).double()[:, 0]
    sigma = strength("motion_blur", 5)[1]
    weights = np.exp(-0.5 * (np.arange(19) / sigma) ** 2)
    expected = 255.0 * weights / weights.sum()
    assert (result[:, 20, 20] - expected[0]).abs().max() <= 0.5 + 1e-3
    assert (result.sum((1, 2)) - 255.0).abs().max() <= 5.0
    place = torch.arange(41.0, dtype=torch.float64) - 20.0
    down = (result * place[:, None]).sum((1, 2)) / result.sum((1, 2))
    right = (result * place).sum((1, 2)) / result.sum((1, 2))
    angle = torch.rad2deg(torch.atan(down / right))
    assert float(angle.abs().max()) <= 47.0  # whole pixels bend the direction a little
    assert float(angle.max() - angle.min()) > 60.0  # every image has its own


def test_zoom_blur_leaves_the_centre_and_drags_the_rim():
    images = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    images[..., ::4, :] = 255  # lines; one goes through the centre
    result = corrupt(images, "zoom_blur", 5)[0, 0]
    middle, rim = result[16], result[4]
    assert int(middle[16]) > 200 > 150 > int(rim[16])
    assert torch.equal(result, result.flip(0))
    assert torch.equal(result, result.flip(1))


def test_glass_moves_pixels_by_one_down_and_right_at_most():
    images = torch.zeros(400, 1, 9, 9, dtype=torch.uint8)
    images[..., 4, 4] = 255
    result = corrupt(images, "glass_blur", 1).double().mean(0)[0] / 255.0  # no blur at level 1
    expected = torch.zeros(9, 9, dtype=torch.float64)
    expected[4:6, 4:6] = 0.25
    assert (result - expected).abs().max() < 0.09  # four standard deviations
    assert (result > 0).equal(expected > 0)


def test_snow_only_lightens_and_has_flakes():
    result = corrupt(flat(60, 30), "snow", 1).double()
    pale = 0.95 * 60 + 0.05 * (1.5 * 60 + 127.5)
    assert float(result.min()) == pytest.approx(pale, abs=0.5)
    white = (result > pale + 20).double().mean()
    assert 0.001 < float(white) < 0.2


def test_a_mix_is_made_of_corrupted_images_with_their_labels():
    images, labels = scenes(7), torch.arange(7) + 100
    mixed, drawn, kinds = corrupted_mix(images, labels, 2, count=60, seed=3)
    assert mixed.shape == (60, 3, 32, 32)
    assert mixed.dtype == torch.uint8
    assert drawn.shape == kinds.shape == (60,)
    assert int(kinds.max()) < len(KINDS)
    for point, label, kind in zip(mixed, drawn, kinds, strict=True):
        if KINDS[kind] in WITHOUT_CHANCE:
            assert torch.equal(point, corrupt(images[label - 100 : label - 99], KINDS[kind], 2)[0])
    pairs = torch.stack([drawn, kinds], dim=1)
    distinct = len(torch.unique(pairs, dim=0))
    assert distinct < 60  # some pair is drawn twice, and then it looks the same
    assert len(torch.unique(torch.cat([pairs, mixed.flatten(1).long()], dim=1), dim=0)) == distinct


def test_a_mix_is_uniform_over_kinds_and_images_and_seeded(untouched_rng):
    images, labels = flat(100, 5, side=2), torch.arange(5)
    mixed, drawn, kinds = corrupted_mix(images, labels, 1, count=20_000, seed=0)
    assert stats.chisquare(kinds.bincount(minlength=17).numpy()).pvalue > 1e-3
    assert stats.chisquare(drawn.bincount(minlength=5).numpy()).pvalue > 1e-3
    again, other = (corrupted_mix(images, labels, 1, count=20_000, seed=seed) for seed in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip((mixed, drawn, kinds), again, strict=True))
    assert not torch.equal(kinds, other[2])
    assert not torch.equal(drawn, other[1])


def test_levels_of_a_mix_have_the_same_images_under_the_same_kinds():
    images, labels = scenes(9), torch.arange(9)
    mixes = [corrupted_mix(images, labels, level, count=80, seed=5) for level in LEVELS]
    for mixed, drawn, kinds in mixes[1:]:
        assert torch.equal(drawn, mixes[0][1])
        assert torch.equal(kinds, mixes[0][2])
        assert not torch.equal(mixed, mixes[0][0])


def test_a_mix_of_grey_images_leaves_saturation_out():
    kinds = corrupted_mix(flat(100, 2, channels=1, side=2), torch.arange(2), 1, count=2000, seed=0)[2]
    assert {KINDS[kind] for kind in kinds.tolist()} == set(KINDS) - {"saturate"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((flat(1), "frost", 1), ValueError, "`kind` must be one of 'gaussian_noise'.* got 'frost'"),
        ((flat(1), "fog", 6), ValueError, r"`level` must lie in 1\.\.5, got 6"),
        ((flat(1), "fog", 0), ValueError, "`level` must be at least 1, got 0"),
        ((flat(1), "fog", 2.0), TypeError, "`level` must be an integer, got float"),
        ((flat(1, channels=1), "saturate", 1), ValueError, "`pixels` must have 3 channels for kind 'saturate', got 1"),
        ((flat(1).float(), "fog", 1), TypeError, "`pixels` must be torch.uint8, .* got torch.float32"),
        ((flat(1)[0], "fog", 1), ValueError, r"`pixels` must have shape \(N, C, H, W\) .* got \(3, 32, 32\)"),
        ((flat(1, channels=2), "fog", 1), ValueError, r"C of 1 or 3 .* got \(4, 2, 32, 32\)"),
        ((flat(1)[:0], "fog", 1), ValueError, r"no side empty, got \(0, 3, 32, 32\)"),
        ((flat(1).numpy(), "fog", 1), TypeError, "`pixels` must be a torch.Tensor, got ndarray"),
        ((flat(1).to("meta"), "fog", 1), TypeError, "`pixels` must be on the CPU, .* got meta"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        corrupt(*arguments)


def test_a_bad_seed_and_a_bad_mix_are_refused():
    images, labels = flat(1), torch.arange(4)
    with pytest.raises(ValueError, match="`seed` must be at least 0, got -1"):
        corrupt(images, "fog", 1, seed=-1)
    with pytest.raises(ValueError, match=r"`labels` must have 4 rows, one for each image, got shape \(3,\)"):
        corrupted_mix(images, labels[:3], 1, count=5, seed=0)
    with pytest.raises(TypeError, match=r"`labels` must be a torch\.Tensor, got list"):
        corrupted_mix(images, labels.tolist(), 1, count=5, seed=0)
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        corrupted_mix(images, labels, 1, count=0, seed=0)
    with pytest.raises(ValueError, match=r"`level` must lie in 1\.\.5, got 9"):
        corrupted_mix(images, labels, 9, count=5, seed=0)
