"""Protocols: what is held out of what, and the recipes that the paper fixes."""

import pytest
import torch

from burnish.studies.data import DATASETS, TEXTS
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS, split_rows


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("num_train", "num_test"), [(50_000, 10_000), (60, 43), (1, 1)])
def test_validation_points_are_in_neither_of_the_others_and_none_is_lost(protocol, num_train, num_test):
    rows = split_rows(protocol, num_train, num_test)
    assert set(rows) == {"train", "validation", "test"}
    assert [rows["train"][0], rows["test"][0]] == ["train", "test"]
    for source, count in (("train", num_train), ("test", num_test)):
        found = torch.cat([index for split, index in rows.values() if split == source])
        assert torch.equal(found.sort().values, torch.arange(count))
    assert all(torch.equal(index, index.sort().values) for _, index in rows.values())


def test_the_papers_protocol_holds_points_out_of_the_test_set():
    rows = split_rows("paper", 60_000, 10_000)
    assert [(split, len(index)) for split, index in rows.values()] == [("train", 60_000), ("test", 8_000), ("test", 2_000)]
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(42))
    assert torch.equal(rows["validation"][1], order[:2_000].sort().values)


def test_ours_leaves_the_test_set_whole():
    rows = split_rows("ours", 50_000, 10_000)
    assert torch.equal(rows["test"][1], torch.arange(10_000))
    assert rows["validation"][0] == "train"
    assert (len(rows["train"][1]), len(rows["validation"][1])) == (48_000, 2_000)


def test_of_a_small_set_a_fifth_is_held_out():
    assert len(split_rows("ours", 100, 50)["validation"][1]) == 20
    assert len(split_rows("paper", 100, 50)["validation"][1]) == 10


def test_splits_are_the_same_every_time_and_leave_the_global_generator_alone(untouched_rng):
    first, again = (split_rows("ours", 500, 100) for _ in range(2))
    assert all(torch.equal(first[name][1], again[name][1]) for name in first)


def test_other_protocols_are_refused():
    with pytest.raises(ValueError, match="`protocol` must be one of 'paper', 'ours', got 'theirs'"):
        split_rows("theirs", 10, 10)


def test_recipes_are_the_papers():
    lenet, wide = BENCHMARKS["fashion-mnist"].recipe, BENCHMARKS["cifar-10"].recipe
    for recipe in (lenet, wide):
        assert (recipe.num_epochs, recipe.batch_size, recipe.weight_decay) == (100, 128, 5e-4)
        assert recipe.initial_std is None
    assert (lenet.optimizer, lenet.learning_rate, lenet.augment) == ("adam", 1e-3, False)
    assert (wide.optimizer, wide.learning_rate, wide.momentum, wide.augment) == ("sgd", 0.1, 0.9, True)
    assert BENCHMARKS["cifar-100"].recipe == wide
    precisions = {"fashion-mnist": 510.0, "cifar-10": 40.0, "cifar-100": 40.0}
    assert {name: BENCHMARKS[name].precision for name in precisions} == precisions


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - set(TEXTS)))
def test_cycles_leave_twelve_networks_of_a_cold_posterior(name):
    recipe = BENCHMARKS[name].cyclical(50_000)
    assert (recipe.num_epochs, recipe.epochs_per_cycle) == (200, 50)
    last = [*(47, 48, 49), *(97, 98, 99), *(147, 148, 149), *(197, 198, 199)]
    assert [epoch for epoch in range(200) if recipe.keeps(epoch)] == last
    rates, kicks = recipe.rates(1), recipe.kicks(1, 50_000)
    assert (kicks > 0).nonzero().flatten().tolist() == last
    expected = (2.0 * 0.9 * rates[47] / 50_000**2).sqrt()  # friction 0.9, temperature 1 / N
    torch.testing.assert_close(kicks[47], expected)
    assert recipe.augment == BENCHMARKS[name].recipe.augment


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - set(TEXTS)))
def test_the_variational_prior_stands_for_the_square_of_the_weight_decay(name):
    plain, recipe = BENCHMARKS[name].recipe, BENCHMARKS[name].variational(60_000)
    assert (recipe.weight_decay, recipe.prior_precision) == (0.0, pytest.approx(30.0**2))
    assert (recipe.optimizer, recipe.learning_rate) == (plain.optimizer, plain.learning_rate)
    assert (recipe.initial_std, recipe.mean_spread) == (0.05, 0.1)
    small = name == "fashion-mnist"
    assert (recipe.estimator, recipe.kl_weight) == (("flipout", 0.1) if small else ("plain", 0.0))
    assert (recipe.num_epochs, recipe.augment) == (plain.num_epochs, plain.augment)


def test_benchmarks_name_data_sets_that_exist_and_cannot_be_changed():
    for name, benchmark in BENCHMARKS.items():
        assert {name, *benchmark.outside} <= set(DATASETS)
        assert all("test" in DATASETS[other].splits for other in benchmark.outside)
        assert len(set(benchmark.seeds)) == len(benchmark.seeds)
    with pytest.raises(TypeError):
        BENCHMARKS["cifar-10"] = BENCHMARKS["cifar-100"]
