"""Recipes: what cannot be meant is refused, and rates are those of torch."""

import math

import pytest
import torch
from torch import nn

from burnish.studies.recipes import Recipe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "`optimizer` must be one of 'sgd', 'adam', 'sghmc', got 'lion'"),
        ({"num_epochs": 0}, "`num_epochs` must be at least 1, got 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"learning_rate": math.nan}, "`learning_rate` must be positive and finite, got nan"),
        ({"weight_decay": -1e-4}, "`weight_decay` must be finite and not negative, got -0.0001"),
        ({"temperature": math.inf}, "`temperature` must be finite and not negative, got inf"),
        ({"kl_weight": math.nan}, "`kl_weight` must be finite and not negative, got nan"),
        ({"momentum": 1.0}, r"`momentum` must lie in \[0, 1\), got 1.0"),
        ({"initial_std": 0.0}, "`initial_std` must be positive and finite, got 0"),
        ({"initial_std": 0.1, "prior_precision": 0.0}, "`prior_precision` must be positive and finite, got 0"),
        ({"mean_spread": 0.0}, "`mean_spread` must be positive and finite, got 0"),
        ({"mean_spread": 0.1}, "`mean_spread` must be None without `initial_std`"),
        ({"estimator": "lucky"}, "`estimator` must be one of .*'flipout'.* got 'lucky'"),
        ({"noisy_epochs": -1}, "`noisy_epochs` must be at least 0, got -1"),
        ({"num_epochs": 10, "num_cycles": 3}, "`num_epochs` must be a multiple of the 3 cycles"),
        ({"num_epochs": 4, "num_cycles": 2, "kept_per_cycle": 3}, "the 3 networks that one leaves .*, got 4"),
        ({"num_epochs": 4, "num_cycles": 2, "noisy_epochs": 3}, "the 3 with noise, got 4"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**options)


def test_networks_are_kept_at_the_end_of_every_cycle():
    recipe = Recipe(num_epochs=12, num_cycles=3, kept_per_cycle=2)
    assert [epoch for epoch in range(12) if recipe.keeps(epoch)] == [2, 3, 6, 7, 10, 11]
    assert [epoch for epoch in range(5) if Recipe(num_epochs=5).keeps(epoch)] == [4]


@pytest.mark.parametrize("num_cycles", [1, 3])
def test_rates_are_those_of_torchs_cosine(num_cycles):
    num_epochs, num_steps = 6, 5
    rates = Recipe(num_epochs=num_epochs, num_cycles=num_cycles, learning_rate=0.3).rates(num_steps)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    length = num_epochs * num_steps // num_cycles
    if num_cycles == 1:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, length)
    expected = []
    for _ in range(num_epochs * num_steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(rates, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_noise_has_the_variance_of_its_friction_and_temperature_in_noisy_epochs_alone():
    recipe = Recipe(num_epochs=8, num_cycles=2, noisy_epochs=1, momentum=0.7, temperature=0.5, learning_rate=0.2)
    rates, kicks = recipe.rates(3).view(8, 3), recipe.kicks(3, 100).view(8, 3)
    noisy = torch.tensor([False, False, False, True] * 2)
    assert not kicks[~noisy].any()
    torch.testing.assert_close(kicks[noisy] ** 2, 2 * 0.3 * 0.5 / 100 * rates[noisy])
