"""Convergence statistics: equal to another implementation's, and to their definitions."""

import math

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from burnish import convergence
from burnish.convergence import ess_bulk, ess_tail, nested_rhat, rhat
from burnish.noise import make_generator

AXES = {"chain_axis": 0, "draw_axis": 1}


def autoregressive(noise, coefficient):
    draws = [noise[:, 0]]
    for step in noise[:, 1:].unbind(1):
        draws.append(coefficient * draws[-1] + math.sqrt(1 - coefficient**2) * step)
    return torch.stack(draws, 1)


def with_rejections(noise):
    """Every draw after the first is with probability one half the one before it."""
    draws = [noise[:, 0]]
    for step in noise[:, 1:].unbind(1):
        draws.append(torch.where(step[:, :1] > 0, step, draws[-1]))
    return torch.stack(draws, 1)


KINDS = {
    "independent": lambda noise: noise,
    "far from zero": lambda noise: 1e4 + noise,
    "slow": lambda noise: autoregressive(noise, 0.97),
    "antithetic": lambda noise: autoregressive(noise, -0.8),
    "random walk": lambda noise: noise.cumsum(1),
    "rejections": with_rejections,
    "few values": lambda noise: noise.round(),
    "heavy tails": lambda noise: noise**5,
    "apart": lambda noise: noise + torch.arange(len(noise)).view(-1, 1, 1),
    "unequal spread": lambda noise: noise * (1.0 + torch.arange(len(noise))).view(-1, 1, 1),
    "single precision": lambda noise: noise.float(),
    "single precision with rejections": lambda noise: with_rejections(noise + 3.0).float(),
}


def draws_of(kind, *shape, seed=0):
    return KINDS[kind](torch.randn(shape, generator=make_generator(seed), dtype=torch.float64))


def assert_as_arviz(draws):
    array = draws.numpy()
    with np.errstate(all="ignore"):
        expected = {
            rhat: array_stats.rhat(array, **AXES),
            ess_bulk: array_stats.ess(array, method="bulk", **AXES),
            ess_tail: array_stats.ess(array, method="tail", prob=0.05, **AXES),
        }
    for statistic, values in expected.items():
        ours = statistic(draws)
        assert ours.dtype == torch.float64
        np.testing.assert_allclose(ours.numpy(), values, rtol=1e-10, atol=0, err_msg=statistic.__name__)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 100, 3), (4, 51, 3), (8, 250, 2), (64, 20, 3), (3, 400, 1)])
def test_as_arviz_has_them(kind, shape):
    assert_as_arviz(draws_of(kind, *shape))


@pytest.mark.parametrize("num_draws", range(4, 20))
def test_of_few_draws(num_draws):
    for num_chains in (2, 3, 16):
        assert_as_arviz(draws_of("independent", num_chains, num_draws, 4, seed=num_draws))


@given(st.sampled_from(sorted(KINDS)), st.integers(2, 6), st.integers(4, 70), st.integers(0, 2**31))
def test_of_any_shape(kind, num_chains, num_draws, seed):
    assert_as_arviz(draws_of(kind, num_chains, num_draws, 2, seed=seed))


def test_the_last_pair_of_lags_counts_even_where_its_first_is_negative():
    """Correlations that stay positive in pairs to the end, with one of the last pair below zero."""
    columns = [draws_of("independent", 3, 10, 1, seed=seed) for seed in range(100)]
    assert_as_arviz(torch.cat(columns, 2))


def test_one_chain_is_compared_with_itself():
    draws = draws_of("slow", 1, 101, 3)
    halves = torch.cat([draws[:, :50], draws[:, -50:]])
    assert torch.isfinite(rhat(draws)).all()
    for statistic, method in ((ess_bulk, {"method": "bulk"}), (ess_tail, {"method": "tail", "prob": 0.05})):
        np.testing.assert_allclose(statistic(draws).numpy(), array_stats.ess(draws.numpy(), **method, **AXES), rtol=1e-10)
    ranks = norm.ppf((rankdata(halves[..., 0]).reshape(2, 50) - 0.375) / (100 + 0.25))
    location = math.sqrt((50 * ranks.mean(1).var(ddof=1) / ranks.var(1, ddof=1).mean() + 49) / 50)
    assert float(rhat(draws)[0]) >= location - 1e-12


@pytest.mark.parametrize("statistic", [rhat, ess_bulk, ess_tail, lambda draws: nested_rhat(draws, 3)])
def test_chunks_of_parameters_change_nothing(statistic, monkeypatch):
    draws = torch.cat([draws_of("slow", 6, 30, 5), draws_of("rejections", 6, 30, 2)], 2)
    together = statistic(draws)
    assert together.shape == (7,)
    for entries in (1, 2 * 180, 4 * 180 + 1):
        monkeypatch.setitem(convergence._CHUNK_ENTRIES, "cpu", entries)
        torch.testing.assert_close(statistic(draws), together, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("statistic", [rhat, ess_bulk, ess_tail, lambda draws: nested_rhat(draws, 2)])
def test_draws_are_left_alone_in_any_layout(statistic, untouched_rng):
    draws = draws_of("rejections", 4, 20, 3)
    turned = draws.permute(2, 1, 0).contiguous().permute(2, 1, 0).requires_grad_()
    before = draws.clone()
    assert torch.equal(statistic(draws), statistic(turned))
    assert torch.equal(draws, before)
    assert not statistic(turned).requires_grad


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
@pytest.mark.parametrize("num_draws", [4, 7, 50, 101])
def test_a_parameter_that_does_not_vary_has_no_rhat(value, num_draws):
    draws = draws_of("independent", 4, num_draws, 3)
    draws[..., 1] = value
    assert torch.isnan(rhat(draws)).tolist() == [False, True, False]
    assert torch.isnan(nested_rhat(draws, 2)).tolist() == [False, True, False]
    assert torch.isnan(rhat(draws.float())).tolist() == [False, True, False]
    assert float(ess_bulk(draws)[1]) == 4 * 2 * (num_draws // 2)


def test_chains_that_never_move_are_told_apart():
    draws = torch.arange(4.0).view(4, 1, 1).expand(4, 10, 1)
    assert float(rhat(draws)) == math.inf


def plain_nested_rhat(values, num_superchains):
    """By loops over superchains and chains, after Margossian et al. (2024)."""
    middle = np.median(values)
    statistics = []
    for part in (values, np.abs(values - middle)):
        ranks = norm.ppf((rankdata(part).reshape(part.shape) - 0.375) / (part.size + 0.25))
        groups = np.split(ranks, num_superchains)
        between = np.var([group.mean() for group in groups], ddof=1)
        within = 0.0
        for group in groups:
            chains_apart = np.var([chain.mean() for chain in group], ddof=1) if len(group) > 1 else 0.0
            within_chains = np.mean([np.var(chain, ddof=1) for chain in group]) if group.shape[1] > 1 else 0.0
            within += (chains_apart + within_chains) / num_superchains
        statistics.append(math.sqrt(1.0 + between / within))
    return max(statistics)


@pytest.mark.parametrize("kind", ["independent", "slow", "rejections", "few values", "apart", "unequal spread"])
@pytest.mark.parametrize(("shape", "num_superchains"), [((6, 5, 2), 3), ((6, 1, 2), 2), ((12, 8, 2), 4), ((4, 9, 2), 4)])
def test_nested_rhat_is_its_definition(kind, shape, num_superchains):
    draws = draws_of(kind, *shape)
    expected = [plain_nested_rhat(draws[..., index].numpy(), num_superchains) for index in range(2)]
    np.testing.assert_allclose(nested_rhat(draws, num_superchains).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("num_draws", [1, 2, 10])
def test_nested_rhat_of_independent_draws_is_nearly_one(num_draws):
    """Between superchains there is then the variance of a mean of all draws in one."""
    num_superchains, size = 16, 64
    values = nested_rhat(draws_of("independent", num_superchains * size, num_draws, 20), num_superchains)
    expected = math.sqrt(1.0 + 1.0 / (size * num_draws))
    assert bool((values > 1.0).all())
    assert float((values - 1.0).max()) < 4 * (expected - 1.0)


def test_nested_rhat_sees_superchains_that_differ():
    draws = draws_of("independent", 64, 1, 2)
    draws[..., 0] += torch.arange(4.0).repeat_interleave(16).unsqueeze(1)
    draws[..., 1] *= torch.tensor([1.0, 1.0, 5.0, 5.0]).repeat_interleave(16).unsqueeze(1)
    assert bool((nested_rhat(draws, 4) > 1.2).all())


def test_chains_beside_those_of_their_superchain_matter():
    """The same chains in another order are other superchains."""
    draws = draws_of("independent", 8, 5, 1) + 3.0 * torch.arange(2).repeat(4).view(-1, 1, 1)
    assert float(nested_rhat(draws, 2)) < 1.1
    assert float(nested_rhat(torch.cat([draws[::2], draws[1::2]]), 2)) > 1.5


@pytest.mark.parametrize("statistic", [rhat, ess_bulk, ess_tail])
def test_draws_that_are_refused(statistic):
    good = draws_of("independent", 4, 10, 2)
    for bad in (good[0], good[:, :3], good[:0], good.unsqueeze(0)):
        with pytest.raises(
            ValueError, match=r"`draws` must have shape \(chains, draws, d\) with at least 4 draws, got \("
        ) as info:
            statistic(bad)
        assert str(tuple(bad.shape)) in str(info.value)
        assert str(info.value).endswith("Put the chains first.")
    with pytest.raises(TypeError, match=r"`draws` must be a torch.Tensor, got ndarray\. Convert it"):
        statistic(good.numpy())
    for value in (math.nan, math.inf):
        good[1, 2, 0] = value
        with pytest.raises(ValueError, match=r"`draws` must be finite, got 1 NaN .*Discard diverged chains first"):
            statistic(good)


def test_superchains_that_are_refused():
    draws = draws_of("independent", 6, 1, 2)
    with pytest.raises(ValueError, match="`num_superchains` must be at least 2, got 1"):
        nested_rhat(draws, 1)
    with pytest.raises(TypeError, match="`num_superchains` must be an integer, got float"):
        nested_rhat(draws, 2.0)
    for number in (4, 6, 12):
        message = f"`num_superchains` must divide the 6 chains into groups .*, got {number}. Pass a smaller divisor"
        with pytest.raises(ValueError, match=message):
            nested_rhat(draws, number)
    with pytest.raises(ValueError, match=r"`draws` must have shape .* with at least 1 draws, got \(6, 0, 2\)"):
        nested_rhat(draws[:, :0], 2)
