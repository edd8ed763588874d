"""The log posterior against a naive sum, its gradient against autograd, and its minibatch estimates against the whole."""

import math
import re

import numpy as np
import pytest
import torch
from torch import distributions

from burnish.batches import Batch
from burnish.heads import LinearHead, Model
from burnish.inference.curvature import full_hessian, kronecker_hessian
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.target import PriorTuning, SubsampledTarget, Target

NUM_FEATURES = 3
LIKELIHOODS = {"categorical": (Categorical(), 3), "bernoulli": (Bernoulli(), 1), "gaussian": (GaussianNoise(0.7), 2)}


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64).to(dtype)


def make_target(name, *, bias=True, weighted=False, vector_prior=False, num_points=9, dtype=torch.float64):
    likelihood, num_outputs = LIKELIHOODS[name]
    head = LinearHead(NUM_FEATURES, num_outputs, bias)
    targets = draw(num_points, num_outputs, seed=1, dtype=dtype)
    targets = targets if name == "gaussian" else targets.argmax(1) if name == "categorical" else (targets > 0).long()
    weights = draw(num_points, seed=2, dtype=dtype).exp() if weighted else None
    data = Batch(draw(num_points, NUM_FEATURES, dtype=dtype), targets, weights)
    precision = draw(head.dim, seed=3, dtype=dtype).exp() if vector_prior else 2.5
    mean = draw(head.dim, seed=4, dtype=dtype) if vector_prior else 0.3
    return Target(Model(head, likelihood), data, precision, mean)


@pytest.fixture(params=LIKELIHOODS)
def name(request):
    return request.param


@pytest.fixture(params=["plain", "no bias", "weights", "vector prior", "all"])
def target(request, name):
    everything = request.param == "all"
    return make_target(
        name,
        bias=request.param != "no bias",
        weighted=everything or request.param == "weights",
        vector_prior=everything or request.param == "vector prior",
    )


def point_log_prob(target, outputs, label):
    if isinstance(target.model.likelihood, Categorical):
        return distributions.Categorical(logits=outputs).log_prob(label)
    if isinstance(target.model.likelihood, Bernoulli):
        return distributions.Bernoulli(logits=outputs[0]).log_prob(label.double())
    return distributions.Normal(outputs, 0.7).log_prob(label).sum()


def naive(target, theta):
    """The log posterior of one vector, point by point."""
    head, data = target.model.head, target.data
    size = head.num_outputs * head.num_features
    weight, bias = theta[:size].view(head.num_outputs, head.num_features), (theta[size:] if head.bias else 0.0)
    mean, precision = (torch.as_tensor(value, dtype=torch.float64) for value in (target.prior_mean, target.prior_precision))
    total = distributions.Normal(mean, precision**-0.5).log_prob(theta).sum()
    for i in range(len(data)):
        value = point_log_prob(
            target, weight @ data.inputs[i] + bias, data.targets[i].squeeze() if head.num_outputs == 1 else data.targets[i]
        )
        total = total + value * (1.0 if data.weights is None else data.weights[i])
    return total


def naive_rows(target, theta):
    return torch.stack([naive(target, row) for row in theta])


def test_log_prob(target):
    theta = draw(4, target.dim, seed=5)
    value = target.log_prob(theta)
    assert value.shape == (4,)
    torch.testing.assert_close(value, naive_rows(target, theta), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(target.log_prob(theta[2]), value[2], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_gradient(target, batch):
    theta = draw(*batch, target.dim, seed=5).requires_grad_()
    expected = torch.autograd.grad(naive_rows(target, theta.view(-1, target.dim)).sum(), theta)[0]
    value, grad = target.log_prob_and_grad(theta)
    assert value.shape == batch
    assert not grad.requires_grad
    torch.testing.assert_close(value, target.log_prob(theta.detach()), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_autograd_of_log_prob(target, batch):
    theta = draw(*batch, target.dim, seed=5).requires_grad_()
    grad = torch.autograd.grad(target.log_prob(theta).sum(), theta)[0]
    torch.testing.assert_close(grad, target.log_prob_and_grad(theta)[1], rtol=1e-10, atol=1e-10)


def test_second_derivative_of_log_prob(target):
    theta = draw(target.dim, seed=5)
    hessian = torch.autograd.functional.hessian(target.log_prob, theta)
    precision = torch.as_tensor(target.prior_precision, dtype=torch.float64).expand(target.dim)
    torch.testing.assert_close(-hessian, full_hessian(target, theta) + torch.diag(precision), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_float32(name, batch):
    single = make_target(name, weighted=True, vector_prior=True, dtype=torch.float32)
    data = single.data.to(dtype=torch.float64)
    double = Target(single.model, data, single.prior_precision.double(), single.prior_mean.double())
    theta = draw(*batch, single.dim, seed=5, dtype=torch.float32)
    value, grad = single.log_prob_and_grad(theta)
    expected, expected_grad = double.log_prob_and_grad(theta.double())
    assert value.dtype == single.log_prob(theta).dtype == torch.float64
    assert grad.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(single.log_prob(theta), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-4, atol=1e-4)


def test_sums_over_many_points_keep_their_digits():
    """A float32 sum over so many points would be wrong in the second decimal."""
    single = make_target("categorical", num_points=100_000, dtype=torch.float32)
    double = Target(single.model, single.data.to(dtype=torch.float64), 2.5, 0.3)
    theta = draw(single.dim, seed=5, dtype=torch.float32)
    expected = double.log_prob(theta.double())
    # the terms round independently: the square root of N times 1e-7 of a typical term
    for value in (single.log_prob(theta), single.log_prob_and_grad(theta)[0]):
        assert abs(value - expected) < 5 * math.sqrt(1e5) * 1e-7 * 5


@pytest.mark.parametrize("batch", [(), (4,)])
def test_chunks(name, batch, monkeypatch):
    target = make_target(name, weighted=True, num_points=150)
    theta = draw(*batch, target.dim, seed=5)
    whole = target.log_prob(theta), *target.log_prob_and_grad(theta)
    assert len(list(target.chunks(theta))) == 1
    monkeypatch.setattr("burnish.target._CHUNK_ENTRIES", {"cpu": 1})
    assert [len(inputs) for inputs, _, _ in target.chunks(theta)] == [64, 64, 22]
    for part, expected in zip((target.log_prob(theta), *target.log_prob_and_grad(theta)), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-10)


def test_arguments_are_not_written_to(name):
    target = make_target(name, weighted=True)
    theta = draw(2, target.dim, seed=5)
    before = [tensor.clone() for tensor in (theta, target.data.inputs, target.data.targets, target.data.weights)]
    target.log_prob_and_grad(theta)
    after = (theta, target.data.inputs, target.data.targets, target.data.weights)
    assert all(torch.equal(first, second) for first, second in zip(before, after, strict=True))


def test_weight_two_is_a_point_twice(name):
    target = make_target(name)
    data = target.data
    weights = torch.ones(9, dtype=torch.float64)
    weights[4] = 2.0
    twice = Batch(torch.cat([data.inputs, data.inputs[4:5]]), torch.cat([data.targets, data.targets[4:5]]))
    theta = draw(3, target.dim, seed=5)
    results = [
        Target(target.model, batch, 2.5).log_prob_and_grad(theta)
        for batch in (Batch(data.inputs, data.targets, weights), twice)
    ]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_integral_is_the_evidence():
    """One weight, Gaussian noise: the evidence is the density of the targets under a known Gaussian."""
    x, y = draw(5, 1), draw(5, seed=1)
    target = Target.last_layer(x, y, prior_precision=2.0, prior_mean=0.5, likelihood=GaussianNoise(0.7), bias=False)
    axis = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    integral = target.log_prob(axis.unsqueeze(1)).exp().sum() * 1e-3
    covariance = 0.49 * torch.eye(5, dtype=torch.float64) + x @ x.T / 2.0
    truth = distributions.MultivariateNormal(0.5 * x[:, 0], covariance).log_prob(y)
    assert integral.log().item() == pytest.approx(truth.item(), abs=1e-9)


def test_prior_as_a_distribution(target):
    theta = draw(4, target.dim, seed=5)
    assert isinstance(target.prior, Gaussian)
    torch.testing.assert_close(target.prior.log_prob(theta), target.log_prior(theta), rtol=1e-10, atol=1e-10)


def test_another_prior():
    target = make_target("categorical", vector_prior=True)
    tuned = Target(target.model, target.data, 1.0, 0.5, PriorTuning("evidence", (), "zero", 1.0, False))
    stronger = tuned.with_prior(9.0)
    assert (stronger.prior_precision, stronger.prior_mean, stronger.tuning) == (9.0, 0.5, None)
    assert torch.equal(tuned.with_prior(9.0, target.prior_mean).prior_mean, target.prior_mean)
    assert tuned.with_prior(9.0, 0.0).prior_mean == 0.0
    assert tuned.prior_precision == 1.0
    assert stronger.data is tuned.data


@pytest.mark.parametrize(
    ("likelihood", "labels", "num_outputs"),
    [
        (None, np.array([0, 2, 1, 0]), 3),
        (Categorical(), np.array([0, 0, 0, 0]), 2),
        (Bernoulli(), np.array([0, 1, 1, 0]), 1),
        (Bernoulli(), np.array([[0], [1], [1], [0]]), 1),
        (GaussianNoise(1.0), np.array([0.5, 1.0, 2.0, 3.0]), 1),
        (GaussianNoise(1.0), np.ones((4, 2)), 2),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_last_layer_from_arrays(likelihood, labels, num_outputs, dtype):
    features = np.arange(12, dtype=dtype).reshape(4, 3)
    target = Target.last_layer(features, labels, prior_precision=1.0, likelihood=likelihood, weights=np.arange(1, 5))
    assert target.model.head == LinearHead(3, num_outputs)
    assert target.data.inputs.numpy().dtype == dtype
    assert target.data.weights.tolist() == [1, 2, 3, 4]
    value, grad = target.log_prob_and_grad(torch.zeros(2, target.dim, dtype=target.data.inputs.dtype))
    assert bool(value.isfinite().all() and grad.isfinite().all())


def test_last_layer_is_the_target():
    target = make_target("categorical", bias=False, weighted=True, vector_prior=True)
    data = target.data
    other = Target.last_layer(
        data.inputs,
        data.targets,
        prior_precision=target.prior_precision,
        prior_mean=target.prior_mean,
        bias=False,
        weights=data.weights,
        num_outputs=3,
    )
    theta = draw(2, target.dim, seed=5)
    assert other.model == target.model
    assert torch.equal(other.log_prob(theta), target.log_prob(theta))


def test_last_layer_with_a_class_that_is_missing():
    target = Target.last_layer(draw(2, 3), torch.tensor([0, 1]), prior_precision=1.0, num_outputs=5)
    assert target.model.head.num_outputs == 5


@pytest.mark.parametrize("shape", [(9,), (9, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_regression_targets_follow_the_inputs(shape, dtype):
    targets = (3 * draw(*shape, seed=1)).to(dtype)
    likelihood = GaussianNoise(0.7)
    target = Target.last_layer(draw(9, 3, dtype=torch.float32), targets, prior_precision=1.0, likelihood=likelihood)
    truth = Target.last_layer(draw(9, 3), targets.double(), prior_precision=1.0, likelihood=likelihood)
    theta = draw(2, 4, seed=5)
    value, grad = target.log_prob_and_grad(theta.float())
    expected, expected_grad = truth.log_prob_and_grad(theta)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-4, atol=1e-3)


BAD_LABELS = {
    "out of range": (
        [0, 3],
        3,
        ValueError,
        "`targets` must lie in 0..2 for 3 outputs, got values from 0 to 3. Remap the labels",
    ),
    "negative": ([-1, 1], None, ValueError, "got values from -1 to 1. Remap the labels"),
    "floats": ([0.0, 1.0], None, TypeError, "`targets` must be integer class indices, got torch.float32. Convert with"),
    "booleans": ([False, True], None, TypeError, "`targets` must be integer class indices, got torch.bool. Convert with"),
    "one-hot": (
        [[0, 1], [1, 0]],
        None,
        ValueError,
        "`targets` must be a vector of class indices, got shape (2, 2). Turn one-hot",
    ),
    "too few": ([0], None, ValueError, "`targets` must have one row for each of the 2 inputs, got shape (1,)"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels(case):
    labels, num_outputs, error, message = BAD_LABELS[case]
    with pytest.raises(error, match=re.escape(message)):
        Target.last_layer(draw(2, 3), torch.tensor(labels), prior_precision=1.0, num_outputs=num_outputs)


BAD_PRIORS = {
    "zero": (
        {"prior_precision": 0.0},
        ValueError,
        "`prior_precision` must be positive and finite, got 0. It is the inverse",
    ),
    "negative": ({"prior_precision": -1.0}, ValueError, "`prior_precision` must be positive and finite, got -1"),
    "nan": ({"prior_precision": math.nan}, ValueError, "`prior_precision` must be positive and finite, got nan"),
    "infinite": ({"prior_precision": math.inf}, ValueError, "`prior_precision` must be positive and finite, got inf"),
    "text": ({"prior_precision": "auto"}, TypeError, "`prior_precision` must be a number, got str"),
    "one zero": (
        {"prior_precision": torch.tensor([1.0, 0.0])},
        ValueError,
        "must be positive and finite, got 0 (1 of 2 entries",
    ),
    "length": (
        {"prior_precision": torch.ones(5)},
        ValueError,
        "`prior_precision` must be a number or have shape (8,), got (5,)",
    ),
    "dtype": (
        {"prior_precision": torch.ones(8).double()},
        TypeError,
        "`prior_precision` must be torch.float32 on cpu like `data.in",
    ),
    "mean length": (
        {"prior_mean": torch.zeros(5)},
        ValueError,
        "`prior_mean` must be a number or have shape (8,), got (5,). Param",
    ),
    "mean matrix": (
        {"prior_mean": torch.zeros(2, 4)},
        ValueError,
        "`prior_mean` must be a number or have shape (8,), got (2, 4)",
    ),
    "mean dtype": (
        {"prior_mean": torch.zeros(8).double()},
        TypeError,
        "`prior_mean` must be torch.float32 on cpu like `data.inputs`",
    ),
    "mean nan": ({"prior_mean": math.nan}, ValueError, "`prior_mean` must be finite, got nan"),
    "mean infinite": (
        {"prior_mean": torch.full((8,), math.inf)},
        ValueError,
        "`prior_mean` must be finite, got 8 NaN or infinite",
    ),
    "mean text": ({"prior_mean": "auto"}, TypeError, "`prior_mean` must be"),
    "mean array": ({"prior_mean": np.zeros(8)}, TypeError, "`prior_mean` must be"),
    "mean missing": ({"prior_mean": None}, TypeError, "`prior_mean` must be"),
}


@pytest.mark.parametrize("case", BAD_PRIORS)
def test_bad_prior(case):
    prior, error, message = BAD_PRIORS[case]
    with pytest.raises(error, match=re.escape(message)):
        Target.last_layer(torch.ones(2, 3), torch.tensor([0, 1]), **{"prior_precision": 1.0, **prior})


@pytest.mark.parametrize("width", [2, 4])
def test_inputs_do_not_fit_the_head(width):
    with pytest.raises(ValueError, match=rf"`data\.inputs` must have shape \(N, 3\) for this head, got \(2, {width}\)"):
        Target(Model(LinearHead(3, 2)), Batch(torch.ones(2, width), torch.tensor([0, 1])), 1.0)


@pytest.mark.parametrize("call", ["log_prob", "log_prob_and_grad", "subsampled", "expand"])
def test_theta_is_checked(call):
    target = make_target("categorical")
    calls = {
        "subsampled": lambda theta: target.subsampled(2).log_prob_and_grad(theta, generator=make_generator(0)),
        "expand": lambda theta: target.expand(theta, torch.eye(12, dtype=torch.float64)),
    }
    evaluate = calls.get(call) or getattr(target, call)
    for shape in [(11,), (2, 13), (1, 2, 12), ()]:
        with pytest.raises(ValueError, match=r"`theta` must have shape \(12,\) or \(S, 12\), got \("):
            evaluate(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"`theta` must be torch\.float64 on cpu like `data\.inputs`, got torch\.float32"):
        evaluate(torch.zeros(12))


def expansions(target):
    center = 0.3 * draw(target.dim, seed=6)
    return {
        "plain": None,
        "full": target.expand(center, full_hessian(target, center)),
        "kronecker": target.expand(center, kronecker_hessian(target, center)),
    }


every_expansion = pytest.mark.parametrize("expansion", ["plain", "full", "kronecker"])


@every_expansion
def test_every_batch_of_one_averages_to_the_target(target, expansion, generator, monkeypatch):
    subsampled = target.subsampled(1, expansions(target)[expansion])
    theta = draw(4, target.dim, seed=5)
    estimates = []
    for i in range(len(target.data)):
        monkeypatch.setattr("burnish.target.torch.randint", lambda *_, i=i, **__: torch.tensor([i]))
        estimates.append(subsampled.log_prob_and_grad(theta, generator=generator))
    averages = [torch.stack(parts).mean(0) for parts in zip(*estimates, strict=True)]
    torch.testing.assert_close(averages, list(target.log_prob_and_grad(theta)), rtol=1e-10, atol=1e-10)


@every_expansion
def test_batches_of_one_average_to_the_target_under_any_probabilities(target, expansion, generator, monkeypatch):
    probabilities = draw(len(target.data), seed=7).softmax(0)
    subsampled = target.subsampled(1, expansions(target)[expansion], probabilities)
    theta, totals = draw(4, target.dim, seed=5), (0.0, 0.0)
    for i, chance in enumerate(probabilities):
        position = probabilities[:i].sum() + chance / 2
        monkeypatch.setattr("burnish.target.torch.rand", lambda *_, position=position, **__: position.view(1))
        parts = subsampled.log_prob_and_grad(theta, generator=generator)
        totals = [total + chance * part for total, part in zip(totals, parts, strict=True)]
    torch.testing.assert_close(totals, list(target.log_prob_and_grad(theta)), rtol=1e-10, atol=1e-10)


@every_expansion
@pytest.mark.parametrize("even", [True, False])
def test_random_batches_are_unbiased(expansion, even, generator):
    target, count = make_target("categorical", weighted=True), 800
    subsampled = target.subsampled(3, expansions(target)[expansion], None if even else draw(9, seed=7).softmax(0))
    theta = draw(2, target.dim, seed=5)
    draws = [
        torch.cat([value[:, None], grad], 1)
        for value, grad in (subsampled.log_prob_and_grad(theta, generator=generator) for _ in range(count))
    ]
    estimates, (value, grad) = torch.stack(draws), target.log_prob_and_grad(theta)
    error = (estimates.mean(0) - torch.cat([value[:, None], grad], 1)).abs()
    assert bool((error < 5 * estimates.std(0) / math.sqrt(count) + 1e-12).all())
    assert estimates.std(0).min() > 0


@pytest.mark.parametrize("expansion", ["full", "kronecker"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4, 20])
def test_any_batch_is_exact_for_a_quadratic_target(expansion, weighted, batch_size, generator):
    target = make_target("gaussian", weighted=weighted, vector_prior=True)
    subsampled = target.subsampled(batch_size, expansions(target)[expansion])
    theta = draw(4, target.dim, seed=5)
    estimate = subsampled.log_prob_and_grad(theta, generator=generator)
    torch.testing.assert_close(estimate, target.log_prob_and_grad(theta), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_expansion_takes_the_noise_away_near_its_center(name, generator):
    target = make_target(name, num_points=50)
    full = expansions(target)["full"]
    theta = full.center + 0.02 * draw(target.dim, seed=5)
    spreads = []
    for expansion in (full, None):
        subsampled = target.subsampled(5, expansion)
        results = [subsampled.log_prob_and_grad(theta, generator=generator) for _ in range(100)]
        spreads.append([torch.stack(parts).var(0).sum() for parts in zip(*results, strict=True)])
    assert spreads[0][0] < 1e-6 * spreads[1][0]
    assert spreads[0][1] < 1e-4 * spreads[1][1]


@pytest.mark.parametrize("expansion", ["full", "kronecker"])
def test_expansion_agrees_with_the_target_to_first_order(target, expansion):
    """At the center, value and gradient are those of the log-likelihood."""
    known = expansions(target)[expansion]
    value, grad = known.value_and_grad(known.center, target.model.head)
    leaf = known.center.clone().requires_grad_()
    expected = target.log_prob(leaf) - target.log_prior(leaf)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, leaf)[0], rtol=1e-9, atol=1e-9)


@every_expansion
def test_expansion_in_float32(expansion, generator):
    target = make_target("categorical", weighted=True, dtype=torch.float32)
    center = 0.3 * draw(target.dim, seed=6, dtype=torch.float32)
    hessian = {"plain": None, "full": full_hessian, "kronecker": kronecker_hessian}[expansion]
    subsampled = target.subsampled(4, target.expand(center, hessian(target, center)) if hessian else None)
    value, grad = subsampled.log_prob_and_grad(center.unsqueeze(0), generator=generator)
    assert value.dtype == torch.float64
    assert grad.dtype == torch.float32
    if hessian:
        torch.testing.assert_close(value, target.log_prob(center.unsqueeze(0)), rtol=1e-5, atol=1e-4)


def test_subsampling_is_reproducible(untouched_rng):
    target = make_target("categorical")
    theta, subsampled = draw(2, target.dim), target.subsampled(3)
    first, again, other = (subsampled.log_prob_and_grad(theta, generator=make_generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])
    assert subsampled.dim == target.dim


def test_rows_share_their_batch(generator):
    target = make_target("categorical")
    value, grad = target.subsampled(2).log_prob_and_grad(draw(1, target.dim).expand(3, -1), generator=generator)
    torch.testing.assert_close(value, value[:1].expand(3))
    torch.testing.assert_close(grad, grad[:1].expand(3, -1))


@pytest.mark.parametrize(("batch_size", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_bad_batch_size(batch_size, error):
    with pytest.raises(error, match="`batch_size` must be"):
        SubsampledTarget(make_target("categorical"), batch_size)


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([0.5, 0.5], r"must have shape \(3,\), one for each point, got \(2,\)"),
        ([0.5, 0.5, 0.5], r"must sum to 1, got 1\.5\. Divide them by their sum"),
        ([0.5, 0.5, 0.0], r"must be positive and finite, got 0 .*never drawn would bias"),
        ([0.5, 1.0, -0.5], r"must be positive and finite, got -0\.5"),
        ([0.5, 0.5, math.nan], r"must be positive and finite, got nan"),
    ],
)
def test_bad_probabilities(probabilities, message):
    with pytest.raises(ValueError, match=f"`probabilities` {message}"):
        make_target("categorical", num_points=3).subsampled(2, None, torch.tensor(probabilities))


@pytest.mark.parametrize("generator", [None, 0, np.random.default_rng(0)])
def test_generator_is_checked(generator):
    target = make_target("categorical")
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, got .*make_generator"):
        target.subsampled(2).log_prob_and_grad(draw(target.dim), generator=generator)
