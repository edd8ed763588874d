"""The linear head against torch.nn.functional.linear and autograd, its matrix form, and what a model refuses."""

import pytest
import torch
from torch.nn.functional import linear

from burnish.heads import LinearHead, Model
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator

NUM_FEATURES, NUM_OUTPUTS = 4, 3


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request):
    return LinearHead(NUM_FEATURES, NUM_OUTPUTS, request.param)


def split(head, theta):
    size = NUM_OUTPUTS * NUM_FEATURES
    return theta[:size].view(NUM_OUTPUTS, NUM_FEATURES), (theta[size:] if head.bias else None)


def test_dim(head):
    assert head.dim == (15 if head.bias else 12)


def test_one_vector(head):
    theta, inputs = draw(head.dim), draw(5, NUM_FEATURES, seed=1)
    torch.testing.assert_close(head(theta, inputs), linear(inputs, *split(head, theta)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [(1,), (3,), (2, 3)])
def test_many_vectors(head, batch):
    theta, inputs = draw(*batch, head.dim), draw(5, NUM_FEATURES, seed=1)
    expected = torch.stack([linear(inputs, *split(head, row)) for row in theta.view(-1, head.dim)])
    torch.testing.assert_close(head(theta, inputs), expected.view(*batch, 5, NUM_OUTPUTS), rtol=1e-12, atol=1e-12)


def test_rows_are_the_parameters_in_another_order(head):
    theta, inputs = draw(6, head.dim), draw(5, NUM_FEATURES, seed=1)
    rows, biases = head.to_rows(theta)
    assert rows.shape == (6 * NUM_OUTPUTS, NUM_FEATURES)
    assert (biases is None) is not head.bias
    assert torch.equal(head.from_rows(rows, biases), theta)
    torch.testing.assert_close(head.of_rows(rows, biases, inputs), head(theta, inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("strided", [False, True])
def test_pullback_is_the_vjp(head, batch, strided):
    theta, inputs = draw(*batch, head.dim), draw(5, NUM_FEATURES, seed=1)
    cotangents = draw(*batch, NUM_OUTPUTS, 5, seed=2).transpose(-1, -2)
    cotangents = cotangents if strided else cotangents.contiguous()
    _, expected = torch.autograd.functional.vjp(lambda t: head(t, inputs), theta, cotangents)
    torch.testing.assert_close(head.pullback(cotangents, inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_matrix_round_trip(head, batch):
    theta = draw(*batch, head.dim)
    matrix = head.to_matrix(theta)
    assert matrix.shape == (*batch, NUM_OUTPUTS, NUM_FEATURES + head.bias)
    assert torch.equal(head.from_matrix(matrix), theta)


def test_matrix_times_augmented_inputs(head):
    theta, inputs = draw(head.dim), draw(5, NUM_FEATURES, seed=1)
    outputs = head.augment(inputs) @ head.to_matrix(theta).T
    torch.testing.assert_close(outputs, linear(inputs, *split(head, theta)), rtol=1e-12, atol=1e-12)


def test_outputs_are_differentiable(head):
    theta, inputs = draw(2, head.dim).requires_grad_(), draw(5, NUM_FEATURES, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(head, (theta, inputs))


@pytest.mark.parametrize("call", ["__call__", "to_matrix"])
def test_wrong_length(head, call):
    arguments = (torch.zeros(5, NUM_FEATURES),) if call == "__call__" else ()
    message = (
        rf"`theta` must have {head.dim} entries in its last dimension, got shape \(2, 7\)\. This head has 3 x 4 weights"
    )
    with pytest.raises(ValueError, match=message + (" and a bias" if head.bias else r"\.")):
        getattr(head, call)(torch.zeros(2, 7), *arguments)


@pytest.mark.parametrize("name", ["num_features", "num_outputs"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_bad_sizes(name, value, error):
    with pytest.raises(error, match=f"`{name}` must be"):
        LinearHead(**{"num_features": 2, "num_outputs": 2, name: value})


def test_model_gives_the_outputs_of_its_head(head):
    theta, inputs = draw(head.dim), draw(5, NUM_FEATURES, seed=1)
    assert torch.equal(Model(head)(theta, inputs), head(theta, inputs))


@pytest.mark.parametrize("likelihood", ["categorical", Categorical, torch.nn.CrossEntropyLoss(), None])
def test_not_a_likelihood(head, likelihood):
    with pytest.raises(
        TypeError, match=r"`likelihood` must be a Likelihood, got .*Pass `Categorical\(\)`, `Bernoulli\(\)` or"
    ):
        Model(head, likelihood)


@pytest.mark.parametrize(("likelihood", "count"), [(Categorical(), 1), (Bernoulli(), 2)])
def test_likelihood_does_not_fit_the_outputs(likelihood, count):
    with pytest.raises(ValueError, match=rf"`likelihood` {type(likelihood).__name__} needs .* got {count}"):
        Model(LinearHead(2, count), likelihood)


@pytest.mark.parametrize(("likelihood", "count"), [(Categorical(), 2), (Bernoulli(), 1), (GaussianNoise(1.0), 3)])
def test_likelihood_fits_the_outputs(likelihood, count):
    assert Model(LinearHead(2, count), likelihood).likelihood is likelihood
