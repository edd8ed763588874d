"""Problems with turned features: the same densities, and the same refinement but for rounding."""

from dataclasses import replace

import pytest
import torch

from burnish import Target, fit_flow, fit_laplace, make_generator
from burnish.inference import rotated
from burnish.inference.estimate import expand_at
from burnish.inference.rotated import RotatedKronecker, rotate

NUM_POINTS, NUM_FEATURES, NUM_CLASSES = 200, 12, 3


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated, "_WIDE", 8)


def make_target(*, bias: bool = True, prior_mean: float = 0.3) -> Target:
    generator = make_generator(0)
    labels = torch.arange(NUM_POINTS) % NUM_CLASSES
    centers = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator, dtype=torch.float64)
    features = centers[labels] + torch.randn(NUM_POINTS, NUM_FEATURES, generator=generator, dtype=torch.float64)
    return Target.last_layer(features, labels, prior_precision=5.0, prior_mean=prior_mean, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
def test_turned_draws_have_the_same_log_posterior(bias: bool) -> None:
    target = make_target(bias=bias)
    base = fit_laplace(target, structure="kron").posterior
    moved, start = rotate(target, base, 8)
    assert isinstance(start.scale, RotatedKronecker)
    noise = torch.randn(4, target.dim, generator=make_generator(1), dtype=torch.float64)
    torch.testing.assert_close(moved.log_prob(start.from_noise(noise)), target.log_prob(base.from_noise(noise)))
    torch.testing.assert_close(start.scale.solve(start.scale.matmul(noise)), noise)
    torch.testing.assert_close(start.scale.logdet(), base.scale.logdet())
    torch.testing.assert_close(start.scale.variance(), start.scale.covariance().diagonal())
    image = (start.scale.matmul(noise) * noise).sum(-1)
    torch.testing.assert_close((start.scale.transpose_matmul(noise) * noise).sum(-1), image)


def test_expansions_agree() -> None:
    target = make_target()
    base = fit_laplace(target, structure="kron").posterior
    moved, start = rotate(target, base, 8)
    noise = torch.randn(4, target.dim, generator=make_generator(1), dtype=torch.float64)
    pairs = ((target, base), (moved, start))
    values = [
        expand_at(problem, at).value_and_grad(at.from_noise(noise), problem.model.linear_head)[0] for problem, at in pairs
    ]
    torch.testing.assert_close(values[0], values[1])


@pytest.mark.parametrize("batch_size", [None, 50])
def test_refinement_is_the_same_but_for_rounding(batch_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target()
    base = fit_laplace(target, structure="kron").posterior

    def refined() -> tuple[float, torch.Tensor]:
        options = {"batch_size": batch_size, "max_steps": 40, "stop_early": False}
        fit = fit_flow(target, base, generator=make_generator(2), **options)
        return fit.elbo, fit.posterior.sample(5, generator=make_generator(3))

    elbo, draws = refined()
    monkeypatch.setattr(rotated, "_WIDE", 10**9)
    other_elbo, other_draws = refined()
    assert elbo == pytest.approx(other_elbo, abs=1e-6)
    torch.testing.assert_close(draws, other_draws, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_turned_stays_as_it_is() -> None:
    target = make_target()
    base = fit_laplace(target, structure="kron").posterior
    several = replace(target, prior_precision=torch.full((target.dim,), 5.0, dtype=torch.float64), prior_mean=0.0)
    other = replace(target, data=replace(target.data, inputs=target.data.inputs.roll(1, dims=1)))
    weighted = replace(target, data=replace(target.data, weights=torch.ones(NUM_POINTS, dtype=torch.float64)))
    for problem in (several, other, weighted):
        assert rotate(problem, base, 8) == (problem, base)
    full = fit_laplace(target).posterior
    assert rotate(target, full, 8) == (target, full)
