"""Many flows in step: each must be what it would be alone, by `fit_flow` and by plain automatic differentiation."""

import dataclasses
import math

import pytest
import torch

from burnish.batches import Batch
from burnish.diagnostics import elbo
from burnish.errors import FitError
from burnish.inference import flow
from burnish.likelihoods import Bernoulli
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal
from burnish.studies.paper_flows import Source, fit_paper_flows
from burnish.target import Target

NUM_POINTS, NUM_FEATURES, NUM_CLASSES = 50, 3, 4


def make_target(seed=0, precision=2.0, bias=True, num_points=NUM_POINTS, device="cpu", dtype=torch.float64):
    generator = make_generator(seed)
    inputs = torch.randn(num_points, NUM_FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.randn(num_points, NUM_CLASSES, generator=generator).softmax(1), 1, generator=generator)
    inputs, labels = inputs.to(device, dtype), labels.squeeze(1).to(device)
    return Target.last_layer(inputs, labels, prior_precision=precision, bias=bias, num_outputs=NUM_CLASSES)


def misplaced(target, seed=0):
    """A Gaussian that is not the posterior: there is something to repair."""
    generator = make_generator(seed + 100)
    mean, noise = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in [(target.dim,), (target.dim,) * 2]
    )
    like = target.data.inputs
    return Gaussian(mean.to(like), Dense((0.1 * noise + torch.eye(target.dim)).tril().to(like) / 3))


def problems(count, **options):
    targets = [make_target(seed, 1.0 + seed, **options) for seed in range(count)]
    return targets, [misplaced(target, seed) for seed, target in enumerate(targets)]


def streams(count, device="cpu"):
    return [make_generator(seed, device) for seed in range(count)]


def same_layers(ours, others, tolerance=1e-9):
    assert len(ours) == len(others)
    for one, other in zip(ours, others, strict=True):
        for name, value in one.parameters().items():
            torch.testing.assert_close(value, other.parameters()[name], rtol=0.0, atol=tolerance)


def test_an_epoch_sees_every_point_once_and_counts_all_of_them_at_each_step():
    source = Source.seeded(misplaced(make_target()), 50, 16, 3, generator=make_generator(0))
    steps = list(source.steps())
    assert len(steps) == 3 * 4 == 3 * source.steps_per_epoch
    for epoch in range(3):
        batches = [(rows, weights) for _, _, rows, weights in steps[4 * epoch : 4 * epoch + 4]]
        assert sorted(int(row) for rows, weights in batches for row in rows[weights > 0]) == list(range(50))
        assert all(float(weights.sum()) == pytest.approx(50.0) for _, weights in batches)
        assert int((batches[-1][1] > 0).sum()) == 2
    assert not torch.equal(steps[0][2], steps[4][2])
    assert len(list(Source.seeded(source.base, 50, 128, 2, generator=make_generator(0)).steps())) == 2


def test_draws_of_the_base_have_their_density():
    source = Source.seeded(misplaced(make_target()), 50, 1, 30, generator=make_generator(0))
    draws, densities = (torch.stack(column) for column in list(zip(*source.steps(), strict=True))[:2])
    torch.testing.assert_close(densities, source.base.log_prob(draws))
    deviations = source.base.scale.solve(draws - source.base.mean)
    assert torch.allclose(deviations.mean(0), torch.zeros(16).double(), atol=4 / math.sqrt(len(draws)))
    assert torch.allclose(deviations.T.cov(), torch.eye(16).double(), atol=0.15)


def test_on_all_data_it_is_fit_flow(monkeypatch):
    """The same start and noise, whole batches: the same layers and the same ELBO at every step."""
    (target,), (base,) = problems(1)
    fit = fit_paper_flows([target], [base], [3], generators=[make_generator(0)], num_epochs=40, batch_size=NUM_POINTS)
    source = Source.seeded(base, NUM_POINTS, NUM_POINTS, 40, generator=make_generator(0))
    draws = (base.scale.solve(draw - base.mean)[None] for draw, _, _, _ in source.steps())
    real = flow.standard_normal
    monkeypatch.setattr(flow, "standard_normal", lambda n, *a, **k: next(draws) if n == 1 else real(n, *a, **k))
    options = flow.paper_protocol(target, base, 3, generator=make_generator(0))
    options |= {"bijections": source.layers(3), "max_steps": 40, "batch_size": None}
    alone = flow.fit_flow(target, base, generator=make_generator(1), **options)
    torch.testing.assert_close(fit.elbo[0, 0], alone.trace[:, 0], rtol=1e-7, atol=0.0)
    same_layers(fit.posteriors[0][0].bijections, alone.posterior.bijections)


def by_autograd(target, base, length, source):
    """One flow alone, step by step, by the definitions: the layers at the end."""
    layers = source.layers(length)
    values = [value.clone().requires_grad_() for layer in layers for value in layer.parameters().values()]
    names = list(layers[0].parameters())
    optimizer = torch.optim.Adam(values, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, source.num_epochs * source.steps_per_epoch)

    def current():
        rows = zip(*[iter(values)] * len(names), strict=True)
        return [layer.with_parameters(dict(zip(names, row, strict=True))) for layer, row in zip(layers, rows, strict=True)]

    for draw, _, rows, weights in source.steps():
        theta, logdet = draw[None], 0.0
        for layer in current():
            theta, part = layer.forward(theta)
            logdet = logdet + part
        batch = target.data.subset(rows[weights > 0])
        likelihood = (
            torch.distributions.Categorical(logits=target.model(theta[0], batch.inputs)).log_prob(batch.targets).sum()
        )
        loss = -(len(target.data) / len(batch) * likelihood + target.log_prior(theta) + logdet).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return [layer.with_parameters({k: v.detach() for k, v in layer.parameters().items()}) for layer in current()]


def test_every_flow_is_what_it_would_be_by_itself():
    """Two problems with three lengths, batches that do not divide the data: each flow by plain autograd, alone."""
    targets, bases = problems(2)
    fit = fit_paper_flows(targets, bases, [2, 4, 1], generators=streams(2), num_epochs=2, batch_size=16)
    assert fit.elbo.shape == (2, 3, 8)
    for place, length in enumerate([2, 4, 1]):
        for problem, (target, base, generator) in enumerate(zip(targets, bases, streams(2), strict=True)):
            source = Source.seeded(base, NUM_POINTS, 16, 2, generator=generator)
            same_layers(fit.posteriors[problem][place].bijections, by_autograd(target, base, length, source))


@pytest.mark.parametrize(("order", "lengths"), [([1], [1, 3, 2]), ([2, 0, 1], [1, 3, 2]), ([1], [3]), ([1, 2], [5, 1])])
def test_a_result_depends_on_its_own_generator_alone(order, lengths):
    """The second of three problems: alone, after others, with other lengths, and both."""
    targets, bases = problems(3)
    options = {"num_epochs": 2, "batch_size": 16}
    together = fit_paper_flows(targets, bases, [1, 3, 2], generators=streams(3), **options)
    chosen = [[values[index] for index in order] for values in (targets, bases, streams(3))]
    other = fit_paper_flows(*chosen[:2], lengths, generators=chosen[2], **options)
    problem = order.index(1)
    for length in {1, 2, 3} & set(lengths):
        before, after = [1, 3, 2].index(length), lengths.index(length)
        torch.testing.assert_close(together.elbo[1, before], other.elbo[problem, after], rtol=0.0, atol=1e-10)
        same_layers(together.posteriors[1][before].bijections, other.posteriors[problem][after].bijections, 1e-10)


def test_another_generator_gives_another_result():
    (target,), (base,) = problems(1)
    fit = fit_paper_flows([target, target], [base, base], [2], generators=streams(2), num_epochs=1)
    assert float((fit.elbo[0] - fit.elbo[1]).abs().min()) > 1e-3


def test_the_elbo_rises_and_longer_flows_repair_more():
    targets, bases = problems(2, num_points=300)
    fit = fit_paper_flows(targets, bases, [1, 8], generators=streams(2), learning_rate=0.02, num_epochs=60)
    assert bool((fit.elbo[..., -40:].mean(-1) > fit.elbo[..., :40].mean(-1) + 20.0).all())
    for target, base, posteriors in zip(targets, bases, fit.posteriors, strict=True):
        before, *after = (elbo(target, q, generator=make_generator(1)).value for q in (base, *posteriors))
        assert before < after[0] < after[1]


def test_the_density_of_a_posterior_is_that_of_its_draws():
    targets, bases = problems(1)
    fit = fit_paper_flows(targets, bases, [6], generators=streams(1), learning_rate=0.05)
    posterior = fit.posteriors[0][0]
    assert posterior.base is bases[0]
    theta, log_density = posterior.sample_and_log_prob(200, generator=make_generator(1))
    torch.testing.assert_close(posterior.log_prob(theta), log_density)
    assert not any(value.requires_grad for layer in posterior.bijections for value in layer.parameters().values())


def test_diagonal_bases_in_single_precision_under_no_grad():
    targets, bases = problems(2, dtype=torch.float32)
    bases = [Gaussian(base.mean, Diagonal(base.scale.variance().sqrt())) for base in bases]
    state, epochs = torch.random.get_rng_state(), []
    with torch.no_grad():
        fit = fit_paper_flows(targets, bases, [2], generators=streams(2), num_epochs=3, callback=epochs.append)
    again = fit_paper_flows(targets, bases, [2], generators=streams(2), num_epochs=3)
    assert epochs == [1, 2, 3]
    assert torch.equal(fit.elbo, again.elbo)
    assert fit.elbo.dtype == torch.float64
    assert fit.posteriors[1][0].bijections[0].center.dtype == torch.float32
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_the_bias_in_the_likelihood_labels_matter_through_features_alone():
    """Where all features are zero, other labels give another flow only by way of the bias."""
    target = make_target()
    blank = [Batch(0.0 * target.data.inputs, labels) for labels in (target.data.targets, target.data.targets.flip(0) // 2)]
    targets = [dataclasses.replace(target, data=data) for data in blank]
    for likelihood_bias in (True, False):
        options = {"num_epochs": 3, "likelihood_bias": likelihood_bias}
        one, other = (
            fit_paper_flows([target], [misplaced(target)], [2], generators=streams(1), **options).elbo for target in targets
        )
        assert torch.equal(one, other) != likelihood_bias


def test_a_step_too_large_is_an_error_that_says_where():
    targets, bases = problems(1)
    with pytest.raises(FitError, match="problem 0 with 2 layers; use a smaller `learning_rate`"):
        fit_paper_flows(targets, bases, [2], generators=streams(1), learning_rate=1e300)


def test_bad_arguments_are_refused_before_work():
    targets, bases = problems(2)
    generators = streams(2)
    for lengths in ([], [2, 2]):
        with pytest.raises(ValueError, match="`lengths` must be different numbers"):
            fit_paper_flows(targets, bases, lengths, generators=generators)
    with pytest.raises(ValueError, match="`lengths` must be at least 1, got 0"):
        fit_paper_flows(targets, bases, [0, 1], generators=generators)
    with pytest.raises(ValueError, match=r"`bases` must be one for each .* got 1 for 2"):
        fit_paper_flows(targets, bases[:1], [1], generators=generators)
    with pytest.raises(ValueError, match="got 0 for 0"):
        fit_paper_flows([], [], [1], generators=[])
    with pytest.raises(ValueError, match=r"`generators` must be one for each .* got 1 for 2"):
        fit_paper_flows(targets, bases, [1], generators=generators[:1])
    with pytest.raises(ValueError, match="`generators` must be different objects"):
        fit_paper_flows(targets, bases, [1], generators=generators[:1] * 2)
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, got int"):
        fit_paper_flows(targets, bases, [1], generators=[generators[0], 1])
    with pytest.raises(TypeError, match="`bases` must be Gaussians, got Tensor at 1"):
        fit_paper_flows(targets, [bases[0], bases[1].mean], [1], generators=generators)
    with pytest.raises(ValueError, match="`graph` must be None or False on cpu"):
        fit_paper_flows(targets, bases, [1], generators=generators, graph=True)


def test_problems_that_do_not_fit_each_other_are_refused():
    (target, _), (base, _) = problems(2)
    shorter = dataclasses.replace(target, data=target.data.subset(slice(0, 40)))
    bare = make_target(bias=False)
    for other in (shorter, bare):
        with pytest.raises(ValueError, match="`targets` must have one head and features of one shape"):
            fit_paper_flows([target, other], [base, base], [1], generators=streams(2))
    weighted = dataclasses.replace(target, data=Batch(target.data.inputs, target.data.targets, torch.ones(NUM_POINTS)))
    binary = Target.last_layer(target.data.inputs, target.data.targets % 2, prior_precision=1.0, likelihood=Bernoulli())
    for other in (weighted, binary):
        with pytest.raises(ValueError, match="`targets` must be categorical and without weights"):
            fit_paper_flows([other], [base], [1], generators=streams(1))
    with pytest.raises(ValueError, match=r"`bases\[0\]` must have shape \(12,\)"):
        fit_paper_flows([bare], [base], [1], generators=streams(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_epochs", [1, 10])
def test_a_captured_step_is_the_step(num_epochs):
    """With and without a graph on a GPU, for fewer steps than its warm-up takes and for more."""
    targets, bases = problems(2, device="cuda")
    options = {"num_epochs": num_epochs, "batch_size": 30, "learning_rate": 0.02}
    fits = [
        fit_paper_flows(targets, bases, [3, 1], generators=streams(2, "cuda"), graph=graph, **options)
        for graph in (None, False)
    ]
    torch.testing.assert_close(fits[0].elbo, fits[1].elbo, rtol=1e-9, atol=0.0)
    for one, other in zip(*(fit.posteriors for fit in fits), strict=True):
        for captured, eager in zip(one, other, strict=True):
            same_layers(captured.bijections, eager.bijections)
