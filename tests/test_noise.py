"""Generators and standard normal noise: seeds, antithetic pairs, moments, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

from burnish.noise import NOISES, check_generator, make_generator, standard_normal


def test_same_seed_same_bits(untouched_rng):
    like = torch.zeros(3)
    first, again, other = (standard_normal(4, like, generator=make_generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", NOISES)
def test_follows_the_vector(dtype, kind, generator):
    noise = standard_normal(4, torch.zeros(3, dtype=dtype), generator=generator, noise=kind)
    assert noise.shape == (4, 3)
    assert noise.dtype == dtype
    assert noise.unique().numel() == 12


@pytest.mark.parametrize("kind", NOISES)
def test_moments(kind, generator):
    count = 20_000
    noise = standard_normal(count, torch.zeros(2, dtype=torch.float64), generator=generator, noise=kind)
    independent = {"iid": count, "antithetic": count // 2, "sobol": 100 * count}[kind]
    assert noise.mean(0).abs().max() < 5 * independent**-0.5
    assert ((noise.T @ noise) / count - torch.eye(2)).abs().max() < 5 * (2 / independent) ** 0.5


def test_antithetic_pairs_cancel(generator):
    noise = standard_normal(6, torch.zeros(5), generator=generator, noise="antithetic")
    assert torch.equal(noise[:3] + noise[3:], torch.zeros(3, 5))


def test_of_an_odd_number_of_antithetic_samples_one_is_alone(generator):
    noise = standard_normal(3, torch.zeros(2), generator=generator, noise="antithetic")
    assert torch.equal(noise[0], -noise[2])
    assert noise.unique().numel() == 6


def test_sobol_points_fill_every_interval(generator, untouched_rng):
    """Of 2^k points of the sequence, one lies in each of 2^k intervals of equal probability, in every dimension."""
    noise = standard_normal(16, torch.zeros(300), generator=generator, noise="sobol")
    ranks = (16 * torch.special.ndtr(noise.double())).long().sort(0).values
    assert torch.equal(ranks, torch.arange(16).unsqueeze(1).expand(-1, 300))
    again = standard_normal(16, torch.zeros(300), generator=generator, noise="sobol")
    assert not torch.equal(noise, again)


def test_too_many_dimensions_for_sobol_and_unknown_kinds(generator):
    with pytest.raises(ValueError, match=r"`noise` 'sobol' is known for at most 21201 dimensions, got 21202. Use 'antithe"):
        standard_normal(2, torch.zeros(21_202), generator=generator, noise="sobol")
    with pytest.raises(ValueError, match="`noise` must be one of 'iid', 'antithetic', 'sobol', got 'quasi'"):
        standard_normal(2, torch.zeros(3), generator=generator, noise="quasi")


def test_no_samples(generator):
    with pytest.raises(ValueError, match=r"`num_samples` must be at least 1, got 0\."):
        standard_normal(0, torch.zeros(2), generator=generator)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_bad_seed(seed):
    with pytest.raises((ValueError, TypeError), match="`seed` must be"):
        make_generator(seed)


@pytest.mark.parametrize("generator", [None, 0, torch.random])
def test_not_a_generator(generator):
    with pytest.raises(
        TypeError, match=r"`generator` must be a torch.Generator, got .*make_generator\(seed, device='cpu'\)"
    ):
        standard_normal(2, torch.zeros(2), generator=generator)


def test_generator_on_another_device(generator):
    with pytest.raises(
        ValueError,
        match=r"must live on cuda:0, where the tensors are, got one on cpu\..*make_generator\(seed, device='cuda:0'\)",
    ):
        check_generator(generator, torch.device("cuda:0"))


@pytest.mark.parametrize(
    ("own", "wanted", "good"),
    [("cuda:0", "cuda:0", True), ("cuda:0", "cuda", True), ("cuda", "cuda:1", True), ("cuda:0", "cuda:1", False)],
)
def test_device_indices(own, wanted, good, monkeypatch):
    generator = SimpleNamespace(device=torch.device(own))
    monkeypatch.setattr("burnish.noise.torch.Generator", SimpleNamespace)
    if good:
        check_generator(generator, torch.device(wanted))
    else:
        with pytest.raises(ValueError, match=f"must live on {wanted}, .* got one on {own}"):
            check_generator(generator, torch.device(wanted))
