"""Likelihoods against torch.distributions and autograd, at extreme outputs, and the targets they refuse."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions
from torch.autograd.functional import hessian, jacobian

from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator

NUM_POINTS = 5
OUTPUTS = {"categorical": 4, "bernoulli": 1, "gaussian": 2}
LIKELIHOODS = {"categorical": Categorical(), "bernoulli": Bernoulli(), "gaussian": GaussianNoise(0.7)}


def truth(name, outputs, targets):
    """Log-likelihood by torch.distributions."""
    if name == "categorical":
        return distributions.Categorical(logits=outputs).log_prob(targets)
    if name == "bernoulli":
        return distributions.Bernoulli(logits=outputs.squeeze(-1)).log_prob(targets.double())
    return distributions.Normal(outputs, 0.7).log_prob(targets).sum(-1)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def make_targets(name):
    if name == "gaussian":
        return draw(NUM_POINTS, 2, seed=1)
    return torch.tensor([0, 1, 1, 0, 1] if name == "bernoulli" else [0, 3, 2, 1, 3])


@pytest.fixture(params=LIKELIHOODS)
def name(request):
    return request.param


@pytest.fixture(params=["(N, C)", "(S, N, C)", "(R, S, N, C)", "strided (S, N, C)"])
def outputs(request, name):
    count = OUTPUTS[name]
    if request.param.startswith("strided"):
        return 3 * draw(3, count, NUM_POINTS).transpose(-1, -2)
    return 3 * draw(*{"(N, C)": (), "(S, N, C)": (3,), "(R, S, N, C)": (2, 3)}[request.param], NUM_POINTS, count)


def second_derivatives(name, outputs, targets):
    """Negative Hessian of each point by autograd, (..., N, C, C)."""
    rows = outputs.reshape(-1, *outputs.shape[-2:])
    blocks = [
        -hessian(lambda o, i=i: truth(name, o, targets[i]), row[i].contiguous()) for row in rows for i in range(NUM_POINTS)
    ]
    return torch.stack(blocks).reshape(*outputs.shape, outputs.shape[-1])


def test_log_prob(name, outputs):
    targets, value = make_targets(name), LIKELIHOODS[name].log_prob(outputs, make_targets(name))
    assert value.shape == outputs.shape[:-1]
    torch.testing.assert_close(value, truth(name, outputs, targets), rtol=1e-10, atol=1e-12)


def test_gradient(name, outputs):
    targets, before = make_targets(name), outputs.clone()
    value, grad = LIKELIHOODS[name].log_prob_and_grad(outputs, targets)
    leaf = outputs.detach().clone().requires_grad_()
    expected = torch.autograd.grad(truth(name, leaf, targets).sum(), leaf)[0]
    torch.testing.assert_close(value, truth(name, outputs, targets), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grad, expected, rtol=1e-8, atol=1e-12)
    assert torch.equal(outputs, before)


def test_log_prob_is_differentiable(name, outputs):
    targets = make_targets(name)
    leaf = outputs.detach().clone().requires_grad_()
    grad = torch.autograd.grad(LIKELIHOODS[name].log_prob(leaf, targets).sum(), leaf)[0]
    torch.testing.assert_close(grad, LIKELIHOODS[name].log_prob_and_grad(outputs, targets)[1], rtol=1e-8, atol=1e-12)


def test_curvature(name, outputs):
    likelihood, before = LIKELIHOODS[name], outputs.clone()
    expected = second_derivatives(name, outputs, make_targets(name))
    vectors = draw(*outputs.shape, seed=2)
    close = {"rtol": 1e-8, "atol": 1e-12}
    torch.testing.assert_close(likelihood.curvature(outputs), expected, **close)
    torch.testing.assert_close(likelihood.curvature_diagonal(outputs), expected.diagonal(dim1=-2, dim2=-1), **close)
    product = (expected @ vectors.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(likelihood.curvature_product(outputs, vectors), product, **close)
    assert torch.equal(outputs, before)


def test_curvature_root(name, outputs):
    likelihood, before = LIKELIHOODS[name], outputs.clone()
    root = likelihood.curvature_root(outputs)
    assert root.shape[:-1] == outputs.shape
    expected = second_derivatives(name, outputs, make_targets(name))
    torch.testing.assert_close(root @ root.transpose(-1, -2), expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(root @ root.transpose(-1, -2), likelihood.curvature(outputs), rtol=1e-10, atol=1e-14)
    assert torch.equal(outputs, before)


@pytest.mark.parametrize("strided", [False, True])
def test_curvature_sum(name, strided):
    outputs = 3 * draw(NUM_POINTS, OUTPUTS[name])
    outputs = outputs.T.contiguous().T if strided else outputs
    weights = draw(NUM_POINTS, seed=3).exp()
    expected = (weights[:, None, None] * second_derivatives(name, outputs, make_targets(name))).sum(0)
    torch.testing.assert_close(LIKELIHOODS[name].curvature_sum(outputs, weights), expected, rtol=1e-8, atol=1e-12)


@given(
    rows=st.lists(
        st.lists(st.sampled_from([-1e4, -1e3, -30.0, 0.0, 30.0, 1e3, 1e4]), min_size=4, max_size=4), min_size=5, max_size=5
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_extreme_logits(name, rows, dtype):
    likelihood, logits = LIKELIHOODS[name], torch.tensor(rows, dtype=dtype)[:, : OUTPUTS[name]]
    value, grad = likelihood.log_prob_and_grad(logits, make_targets(name))
    diagonal, curvature = likelihood.curvature_diagonal(logits), likelihood.curvature(logits)
    product, total = (
        likelihood.curvature_product(logits, logits),
        likelihood.curvature_sum(logits, torch.ones(5, dtype=dtype)),
    )
    root = likelihood.curvature_root(logits)
    assert all(bool(part.isfinite().all()) for part in (value, grad, diagonal, curvature, product, total, root))
    assert (root @ root.transpose(-1, -2) - curvature).abs().max() < 10 * torch.finfo(dtype).eps
    assert bool((value <= 0).all())
    assert bool((grad.abs() <= 1).all())
    assert bool((diagonal >= 0).all())
    assert torch.linalg.eigvalsh(curvature.double()).min() > -10 * torch.finfo(dtype).eps
    torch.testing.assert_close(likelihood.log_prob(logits, make_targets(name)), value)


def test_known_answers_far_out():
    value, grad = Categorical().log_prob_and_grad(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert value.item() == -2e4
    assert grad.tolist() == [[-1.0, 1.0]]
    value, grad = Bernoulli().log_prob_and_grad(torch.tensor([[-1e4]]), torch.tensor([1]))
    assert value.item() == -1e4
    assert grad.item() == 1.0


@pytest.mark.parametrize("logit", [0.0, 5.0, 19.0, 20.5, 25.0, 36.0])
@pytest.mark.parametrize("label", [0, 1])
def test_bernoulli_keeps_the_digits_of_confident_points(logit, label):
    leaf = torch.tensor([[logit if label else -logit]], dtype=torch.float64, requires_grad=True)
    value = Bernoulli().log_prob(leaf, torch.tensor([label]))
    grad = torch.autograd.grad(value.sum(), leaf)[0].abs()
    assert value.item() == pytest.approx(-math.log1p(math.exp(-logit)), abs=1e-14)
    assert grad.item() == pytest.approx(1 / (1 + math.exp(logit)), abs=1e-14)


@pytest.mark.parametrize("logit", [10.0, 30.0, 100.0])
def test_curvature_keeps_the_digits_of_confident_points(logit):
    small = math.exp(-logit)
    expected = pytest.approx(small / (1 + small) ** 2, rel=1e-12, abs=0.0)
    logits = torch.tensor([[logit]], dtype=torch.float64)
    assert Bernoulli().curvature_diagonal(logits).item() == expected
    pair = torch.cat([logits, 0 * logits], -1)
    assert Categorical().curvature_diagonal(pair).tolist() == [[expected, expected]]
    assert Bernoulli().curvature_root(logits).square().item() == expected
    assert Categorical().curvature_root(pair).square().sum(-1).tolist() == [[expected, expected]]


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_probs(name):
    logits = 3 * draw(2, OUTPUTS[name], NUM_POINTS).transpose(-1, -2)
    probs = LIKELIHOODS[name].probs(logits)
    every = torch.arange(probs.shape[-1]).view(-1, 1, 1).expand(-1, 2, NUM_POINTS)
    expected = torch.stack([truth(name, logits, labels).exp() for labels in every], -1)
    torch.testing.assert_close(probs, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_probs_are_differentiable(name):
    logits = 3 * draw(NUM_POINTS, OUTPUTS[name])
    values = jacobian(lambda o: LIKELIHOODS[name].probs(o)[..., 1], logits)
    expected = jacobian(lambda o: o.softmax(-1)[..., 1] if name == "categorical" else o.sigmoid()[..., 0], logits)
    torch.testing.assert_close(values, expected)


def test_probs_keep_the_layout_of_outputs():
    logits = draw(2, 5, NUM_POINTS).transpose(-1, -2)  # as heads hand them over
    probs = Categorical().probs(logits)
    assert probs.stride() == logits.stride()
    torch.testing.assert_close(probs, logits.contiguous().softmax(-1))


def test_probs_of_one_point_need_not_be_contiguous():
    logits = draw(6)
    torch.testing.assert_close(Categorical().probs(logits[::2]), logits[::2].contiguous().softmax(-1))


def test_regression_has_no_probs():
    with pytest.raises(TypeError, match="GaussianNoise has no classes, so no probabilities; use the predicted mean"):
        GaussianNoise(1.0).probs(torch.zeros(2, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_class_indices_become_long(dtype):
    targets = Categorical().check_targets(torch.tensor([0, 2, 1], dtype=dtype), 3)
    assert targets.dtype == torch.int64
    assert targets.tolist() == [0, 2, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_binary_targets_of_any_dtype(dtype, shape):
    targets = Bernoulli().check_targets(torch.tensor([0, 1, 1], dtype=dtype).view(shape), 1)
    assert targets.dtype == torch.int64
    assert targets.tolist() == [0, 1, 1]


def test_regression_targets():
    values = draw(3)
    assert GaussianNoise(1.0).check_targets(values, 1).shape == (3, 1)
    assert GaussianNoise(1.0).check_targets(draw(3, 2), 2).shape == (3, 2)
    assert GaussianNoise(1.0).check_targets(torch.tensor([1, 2]), 1).tolist() == [[1.0], [2.0]]
    assert GaussianNoise(1.0).check_targets(torch.tensor([1, 2]), 1).is_floating_point()


BAD_TARGETS = {
    "class too large": (
        Categorical(),
        3,
        [0, 3],
        r"must lie in 0\.\.2 for 3 outputs, got values from 0 to 3\. Remap the labels",
    ),
    "negative class": (Categorical(), 3, [-1, 2], r"must lie in 0\.\.2 for 3 outputs, got values from -1 to 2\. Remap"),
    "one-hot": (
        Categorical(),
        2,
        [[0, 1], [1, 0]],
        r"vector of class indices, got shape \(2, 2\)\. .*targets\.argmax\(-1\)",
    ),
    "scalar": (Categorical(), 2, 1, r"vector of class indices, got shape \(\)"),
    "soft labels": (Bernoulli(), 1, [0.0, 0.3], r"must be 0 or 1 for Bernoulli, got 0\.3\. Threshold or remap"),
    "signs": (Bernoulli(), 1, [-1, 1], r"must be 0 or 1 for Bernoulli, got -1\. Threshold or remap"),
    "missing labels": (Bernoulli(), 1, [0.0, math.nan], r"must be 0 or 1 for Bernoulli, got nan\."),
    "two columns": (
        Bernoulli(),
        1,
        [[0, 1]],
        r"shape \(N,\) or \(N, 1\) for one logit, got \(1, 2\)\. Pass the column of class 1",
    ),
    "wrong columns": (
        GaussianNoise(1.0),
        3,
        [[0.0, 1.0]],
        r"must have shape \(N, 3\), got \(1, 2\)\. One column per output",
    ),
    "vector": (GaussianNoise(1.0), 2, [0.0, 1.0], r"must have shape \(N, 2\), got \(2,\)"),
    "infinite": (
        GaussianNoise(1.0),
        1,
        [0.0, math.inf],
        r"must be finite, got 1 NaN or infinite .*Drop or impute those rows",
    ),
    "not a number": (GaussianNoise(1.0), 1, [math.nan], r"must be finite"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_bad_targets(case):
    likelihood, num_outputs, targets, message = BAD_TARGETS[case]
    with pytest.raises(ValueError, match=f"`targets` .*{message}"):
        likelihood.check_targets(torch.tensor(targets), num_outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_class_indices_must_be_integers(dtype):
    with pytest.raises(
        TypeError, match=rf"`targets` must be integer class indices, got {dtype}\. Convert with `targets.long"
    ):
        Categorical().check_targets(torch.tensor([0, 1]).to(dtype), 2)


@pytest.mark.parametrize(
    ("likelihood", "count", "message"),
    [
        (Categorical(), 1, r"Categorical needs at least 2 outputs, got 1\. Pass `Bernoulli\(\)`"),
        (Bernoulli(), 2, r"Bernoulli needs exactly 1 output, got 2\. Pass `Categorical\(\)`"),
        (GaussianNoise(1.0), 0, r"GaussianNoise needs at least 1 output, got 0"),
    ],
)
def test_wrong_number_of_outputs(likelihood, count, message):
    with pytest.raises(ValueError, match=f"`likelihood` {message}"):
        likelihood.check_outputs(count)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise(std):
    with pytest.raises(
        ValueError, match=r"`std` must be positive and finite, got .* standard deviation of the observation noise"
    ):
        GaussianNoise(std)


@pytest.mark.parametrize("strided", [False, True])
def test_the_average_predicts_what_samples_predict_on_average(name, strided):
    outputs = 3 * draw(7, NUM_POINTS, OUTPUTS[name])
    outputs = outputs.transpose(-1, -2).contiguous().transpose(-1, -2) if strided else outputs
    likelihood = LIKELIHOODS[name]
    average = likelihood.average(outputs)
    assert average.shape == outputs.shape[1:]
    if name == "gaussian":
        torch.testing.assert_close(average, outputs.mean(0))
    else:
        torch.testing.assert_close(likelihood.probs(average), likelihood.probs(outputs).mean(0))
    if name == "categorical":
        torch.testing.assert_close(average.exp().sum(-1), torch.ones(NUM_POINTS, dtype=torch.float64))


def test_the_average_of_one_sample_is_the_sample(name):
    outputs = 3 * draw(1, NUM_POINTS, OUTPUTS[name])
    expected = outputs[0].log_softmax(-1) if name == "categorical" else outputs[0]
    torch.testing.assert_close(LIKELIHOODS[name].average(outputs), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_the_average_of_extreme_logits(name, dtype):
    """Probabilities of 1 and 0 by rounding: the logarithms still have their digits, and a gradient."""
    logits = torch.tensor([[[500.0, -500.0]], [[-500.0, 500.0]], [[500.0, -300.0]]], dtype=dtype)[..., : OUTPUTS[name]]
    logits.requires_grad_()
    average = LIKELIHOODS[name].average(logits)
    (gradient,) = torch.autograd.grad(average.sum(), logits)
    assert bool(average.isfinite().all())
    assert bool(gradient.isfinite().all())
    if name == "categorical":
        torch.testing.assert_close(average.exp().detach(), torch.tensor([[2 / 3, 1 / 3]], dtype=dtype))
    else:
        torch.testing.assert_close(average.sigmoid().detach(), torch.tensor([[2 / 3]], dtype=dtype))
    alike = LIKELIHOODS[name].average(logits.detach()[:1].expand(4, -1, -1))
    expected = logits.detach()[0].log_softmax(-1) if name == "categorical" else logits.detach()[0]
    torch.testing.assert_close(alike, expected)
