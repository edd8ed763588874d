"""Generators and standard normal noise: seeds, antithetic pairs, moments, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

from burnish.noise import check_generator, make_generator, standard_normal


def test_same_seed_same_bits(untouched_rng):
    like = torch.zeros(3)
    first, again, other = (standard_normal(4, like, generator=make_generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("antithetic", [False, True])
def test_follows_the_vector(dtype, antithetic, generator):
    noise = standard_normal(4, torch.zeros(3, dtype=dtype), generator=generator, antithetic=antithetic)
    assert noise.shape == (4, 3)
    assert noise.dtype == dtype
    assert noise.unique().numel() == 12


@pytest.mark.parametrize("antithetic", [False, True])
def test_moments(antithetic, generator):
    count = 20_000
    noise = standard_normal(count, torch.zeros(2, dtype=torch.float64), generator=generator, antithetic=antithetic)
    independent = count // 2 if antithetic else count
    assert noise.mean(0).abs().max() < 5 * independent**-0.5
    assert ((noise.T @ noise) / count - torch.eye(2)).abs().max() < 5 * (2 / independent) ** 0.5


def test_antithetic_pairs_cancel(generator):
    noise = standard_normal(6, torch.zeros(5), generator=generator, antithetic=True)
    assert torch.equal(noise[:3] + noise[3:], torch.zeros(3, 5))


def test_odd_number_of_antithetic_samples(generator):
    with pytest.raises(ValueError, match=r"`num_samples` must be even for antithetic pairs, got 3\. Pass an even number\."):
        standard_normal(3, torch.zeros(2), generator=generator, antithetic=True)


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
