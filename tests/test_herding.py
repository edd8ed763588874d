"""Choosing and weighting vectors by their products: known answers, optimality, and what must not happen."""

import itertools

import pytest
import torch

from burnish.herding import choose, weigh
from burnish.noise import make_generator


def vectors(count, dim, seed=0):
    return torch.randn(count, dim, generator=make_generator(seed), dtype=torch.float64)


def test_opposite_vectors_are_found():
    points = torch.cat([vectors(20, 5), torch.tensor([[0.1, 0, 0, 0, 0], [-0.1, 0, 0, 0, 0]])])
    assert set(choose(points @ points.T, 2).tolist()) == {20, 21}


def test_choices_differ_and_beat_those_at_random():
    points = vectors(300, 20)
    chosen = choose(points @ points.T, 12)
    assert len(set(chosen.tolist())) == 12
    random = torch.stack([points[torch.randperm(300, generator=make_generator(k))[:12]].mean(0).norm() for k in range(200)])
    assert float(points[chosen].mean(0).norm()) < 0.6 * float(random.min())


def test_the_first_choice_is_the_shortest_and_the_next_one_the_best_for_it():
    points = vectors(30, 4)
    first, second = choose(points @ points.T, 2).tolist()
    assert first == int(points.norm(dim=1).argmin())
    others = [k for k in range(30) if k != first]
    assert second == min(others, key=lambda k: float((points[first] + points[k]).norm()))


def test_weights_of_opposite_vectors_balance_them():
    points = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(weigh(points @ points.T), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_optimal(seed):
    """No shift of weight from one vector to another shortens the average, but at the floor."""
    points = vectors(6, 4, seed)
    gram = points @ points.T
    weights = weigh(gram)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(weights.min()) >= 0.1 / 6 - 1e-12
    best = float(weights @ gram @ weights)
    assert best < float(gram.mean())
    for one, other in itertools.permutations(range(6), 2):
        shift = torch.zeros(6, dtype=torch.float64)
        shift[one], shift[other] = 1e-4, -1e-4
        if float(weights[other]) > 0.1 / 6 + 2e-4:
            moved = weights + shift
            assert float(moved @ gram @ moved) > best - 1e-9


def test_vectors_that_are_all_zero_count_alike():
    torch.testing.assert_close(weigh(torch.zeros(4, 4, dtype=torch.float64)), torch.full((4,), 0.25, dtype=torch.float64))


def test_one_vector_has_all_the_weight():
    assert weigh(torch.ones(1, 1, dtype=torch.float64)).tolist() == [1.0]
