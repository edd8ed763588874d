"""Selected samples: closer to the posterior's predictions than draws, on inputs not seen, for every kind of model."""

import pytest
import torch
from torch import nn

from burnish.bijections import SinhArcsinh
from burnish.flat_network import flatten_network
from burnish.heads import LinearHead, Model
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.predictive import predict
from burnish.sample_selection import select_samples
from burnish.scales import Dense, Diagonal
from networks import randomised

LIKELIHOODS = {"classes": (Categorical(), 4), "one logit": (Bernoulli(), 1), "regression": (GaussianNoise(0.3), 2)}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def gaussian(dim):
    root = normal(dim, dim, seed=1)
    covariance = 0.5 * (root @ root.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64))
    return Gaussian(normal(dim, seed=2), Dense.from_covariance(covariance))


def flow(dim):
    """Skewed, so that antithetic pairs are not exact even where outputs are linear."""
    skew = SinhArcsinh(torch.full((dim,), 0.3, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64))
    return FlowPosterior.whitened(gaussian(dim), [skew])


def distance(model, posterior, inputs, truth, **options):
    return float((predict(model, posterior, inputs, keep_samples=False, **options).mean - truth).abs().sum(-1).mean())


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_selected_samples_beat_drawn_ones_on_other_inputs(kind):
    likelihood, outputs = LIKELIHOODS[kind]
    model = Model(LinearHead(5, outputs), likelihood)
    posterior = flow(model.head.dim)
    inputs, others = normal(300, 5, seed=3), normal(300, 5, seed=4)
    truth = predict(model, posterior, others, num_samples=20_000, generator=make_generator(9), keep_samples=False).mean
    options = {"num_samples": 10, "num_candidates": 400, "generator": make_generator(5)}
    chosen = select_samples(model, posterior, inputs, num_steps=0, **options)
    moved = select_samples(model, posterior, inputs, num_steps=100, **options)
    drawn = [distance(model, posterior, others, truth, num_samples=10, generator=make_generator(k)) for k in range(20)]
    average = sum(drawn) / 20
    errors = [distance(model, found.posterior, others, truth) for found in (chosen, moved)]
    assert errors[0] < 0.6 * average
    assert errors[1] < 0.4 * average
    for found in (chosen, moved):
        assert found.distance < found.drawn_distance
        assert found.posterior.samples.shape == (10, model.head.dim)
        assert found.num_candidates == 400
        assert found.seconds > 0


def test_unmoved_samples_are_draws_in_pairs_of_opposite_noise():
    model = Model(LinearHead(5, 3), Categorical())
    posterior = gaussian(model.head.dim)
    found = select_samples(
        model, posterior, normal(100, 5), num_samples=6, num_candidates=100, num_steps=0, generator=make_generator(0)
    ).posterior
    centre = 0.5 * (found.samples[:3] + found.samples[3:])
    torch.testing.assert_close(centre, posterior.mean.expand(3, -1))
    assert torch.equal(found.weights[:3], found.weights[3:])
    draws = posterior.sample(100, noise="antithetic", generator=make_generator(0))
    assert all(bool((draws == row).all(1).any()) for row in found.samples)


def test_moved_noise_keeps_its_length():
    model = Model(LinearHead(5, 3), Categorical())
    posterior = gaussian(model.head.dim)
    options = {"num_samples": 6, "num_candidates": 100}
    lengths, samples = [], []
    for num_steps in (0, 30):
        found = select_samples(model, posterior, normal(100, 5), num_steps=num_steps, generator=make_generator(0), **options)
        samples.append(found.posterior.samples)
        lengths.append(posterior.scale.solve(samples[-1] - posterior.mean).norm(dim=1))
    torch.testing.assert_close(*lengths)
    assert not torch.equal(*samples)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_odd_numbers_are_chosen_one_by_one(num_samples):
    model = Model(LinearHead(5, 3), Categorical())
    found = select_samples(
        model, gaussian(18), normal(100, 5), num_samples=num_samples, num_candidates=51, generator=make_generator(0)
    )
    assert found.posterior.samples.shape == (num_samples, 18)
    assert found.num_candidates == 51
    assert float(found.posterior.weights.sum()) == pytest.approx(1.0)


def test_chains_are_chosen_from_and_never_moved():
    model = Model(LinearHead(5, 3), Categorical())
    chains = SamplePosterior(gaussian(18).sample(200, generator=make_generator(1)), num_chains=4)
    found = select_samples(model, chains, normal(200, 5), num_samples=10, generator=make_generator(0))
    assert found.num_candidates == 200
    assert all(bool((chains.samples == row).all(1).any()) for row in found.posterior.samples)
    assert found.distance < 0.8 * found.drawn_distance


def test_a_network_gathers_no_gradients_and_inference_mode_is_left():
    network = randomised(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()).eval()
    model, theta = flatten_network(network, ["2"], example=normal(60, 3))
    posterior = Gaussian(theta, Diagonal(torch.full_like(theta, 0.3)))
    with torch.inference_mode():
        inputs = normal(60, 3)
        found = select_samples(
            model, posterior, inputs, num_samples=4, num_candidates=20, num_steps=5, generator=make_generator(0)
        )
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not found.posterior.samples.is_inference()


def test_a_whole_network():
    network = randomised(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()).eval()
    inputs = normal(60, 3)
    model, theta = flatten_network(network, example=inputs)
    posterior = Gaussian(theta, Diagonal(torch.full_like(theta, 0.3)))
    found = select_samples(
        model, posterior, inputs, num_samples=4, num_candidates=60, num_steps=20, generator=make_generator(0)
    )
    assert found.distance < found.drawn_distance


def test_the_same_generator_gives_the_same_bits_and_nothing_else_is_touched(untouched_rng):
    model = Model(LinearHead(5, 3), Categorical())
    options = {"num_samples": 4, "num_candidates": 50, "num_steps": 10}
    one, other = (select_samples(model, flow(18), normal(50, 5), generator=make_generator(3), **options) for _ in range(2))
    assert torch.equal(one.posterior.samples, other.posterior.samples)
    assert torch.equal(one.posterior.weights, other.posterior.weights)
    assert not one.posterior.samples.requires_grad


def test_wrong_arguments_are_refused():
    model, inputs, generator = Model(LinearHead(5, 3), Categorical()), normal(20, 5), make_generator(0)
    cases = [
        ({"num_samples": 0}, ValueError, "`num_samples` must be at least 1, got 0"),
        (
            {"num_samples": 30, "num_candidates": 20},
            ValueError,
            "`num_candidates` must be at least 30, got 20. Pass a hundred",
        ),
        ({"num_candidates": "100"}, TypeError, "`num_candidates` must be an integer, got str"),
        (
            {"posterior": SamplePosterior(normal(5, 18))},
            ValueError,
            "`posterior` must hold at least 2 and at least",
        ),
        ({"num_steps": -1}, ValueError, "`num_steps` must be at least 0, got -1"),
        ({"inputs": inputs[:1]}, ValueError, "`inputs` must hold at least three points, got 1"),
        ({"inputs": inputs[:, :4]}, ValueError, r"`inputs` must have shape \(N, 5\) for this head"),
        ({"inputs": inputs.float()}, TypeError, r"`inputs` must be torch\.float64"),
        ({"posterior": normal(18)}, TypeError, "`posterior` must have `sample`, got Tensor"),
        ({"generator": None}, TypeError, r"`generator` must be a torch\.Generator, got NoneType"),
        ({"model": LinearHead(5, 3)}, TypeError, "`model` must be a Model, got LinearHead"),
        ({"num_candidates": 10**6}, MemoryError, "the choice among 1,000,000 candidates of 18 parameters needs"),
    ]
    for change, error, message in cases:
        arguments = {"model": model, "posterior": gaussian(18), "inputs": inputs, "generator": generator} | change
        with pytest.raises(error, match=message):
            select_samples(**arguments)
