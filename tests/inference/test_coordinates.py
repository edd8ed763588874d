"""Coordinates to sample in: their density against autograd, their inverse, and where they come from."""

import math
from dataclasses import dataclass

import pytest
import torch
from problems import classification
from torch import Tensor

from burnish.bijections import Planar, Radial, SinhArcsinh
from burnish.errors import FitError
from burnish.inference.coordinates import Coordinates, moments
from burnish.linear_bijections import Affine, DiagonalScale, Rotation, Shift
from burnish.noise import make_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Dense, Diagonal

DIM = 6


def draw(*shape, seed=3):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def target():
    return classification(num_features=2, num_outputs=2)  # in six dimensions, as the scales are


def layers():
    offset, generator = draw(DIM, seed=4), make_generator(5)
    radial, planar = (kind.identity(offset, generator=generator) for kind in (Radial, Planar))
    return (
        SinhArcsinh(0.3 * offset, 0.5 * offset.flip(0)),
        Rotation.cosine(offset),
        Radial(radial.center, radial.raw_alpha, radial.raw_gamma + 1.0),
        DiagonalScale(0.2 * offset),
        Planar(0.5 * offset, planar.w, planar.bias + 0.3),
        Rotation.cosine(offset).transposed(),
        SinhArcsinh(-0.1 * offset, -0.4 * offset),
        Shift(offset),
    )


def posterior_of(form, scale):
    gaussian = Gaussian(0.5 * draw(DIM), scale)
    if form == "gaussian":
        return gaussian
    return FlowPosterior.whitened(gaussian, layers()) if form == "whitened flow" else FlowPosterior(gaussian, layers())


FORMS = ["gaussian", "whitened flow", "raw flow"]


@pytest.mark.parametrize("form", FORMS)
def test_density_and_gradient_against_autograd(form, scale, generator):
    """The log density of z is that of its image, plus the log-determinant of the whole map but for the base's constant."""
    density, z = target(), draw(5, DIM)
    coordinates = Coordinates.of(posterior_of(form, scale), generator=generator)
    constant = coordinates.flow.base.scale.logdet()

    def image(row: Tensor) -> Tensor:
        return coordinates.flow.from_noise(row.unsqueeze(0))[0].squeeze(0)

    def log_prob(row: Tensor) -> Tensor:
        jacobian = torch.autograd.functional.jacobian(image, row, create_graph=True)
        return density.log_prob(image(row)) + torch.linalg.slogdet(jacobian)[1] - constant

    theta, value, grad = coordinates.log_prob_and_grad(density, z)
    for row in range(len(z)):
        leaf = z[row].clone().requires_grad_()
        expected = log_prob(leaf)
        assert torch.allclose(theta[row], image(z[row]), atol=1e-12)
        assert float(value[row]) == pytest.approx(float(expected.detach()), abs=1e-9)
        assert torch.allclose(grad[row], torch.autograd.grad(expected, leaf)[0], atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_inverse_undoes_the_map(form, scale, generator):
    coordinates = Coordinates.of(posterior_of(form, scale), generator=generator)
    z = draw(20, DIM)
    theta = coordinates.log_prob_and_grad(target(), z)[0]
    assert torch.allclose(coordinates.inverse(theta), z, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_posterior_is_standard_normal_in_its_own_coordinates(form, scale, generator):
    posterior = posterior_of(form, scale)

    class Itself:
        dim = DIM

        def log_prob_and_grad(self, theta):
            with torch.enable_grad():
                leaf = theta.detach().requires_grad_()
                value = posterior.log_prob(leaf)
                return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    z = draw(10, DIM)
    _, value, grad = Coordinates.of(posterior, generator=generator).log_prob_and_grad(Itself(), z)
    assert torch.allclose(grad, -z, atol=1e-8)
    difference = value + 0.5 * z.square().sum(1)
    assert float((difference - difference[0]).abs().max()) < 1e-8


def test_nothing_is_recorded_and_nothing_changed(generator):
    coordinates = Coordinates.of(posterior_of("raw flow", Diagonal(torch.ones(DIM).double())), generator=generator)
    z = draw(3, DIM)
    before = z.clone()
    for recording in (torch.enable_grad, torch.no_grad):
        with recording():
            parts = coordinates.log_prob_and_grad(target(), z)
        assert not any(part.requires_grad for part in parts)
    assert torch.equal(z, before)
    assert not z.requires_grad


def test_single_precision_keeps_the_density_in_double(generator):
    flow = FlowPosterior(Gaussian.standard(torch.zeros(16)), (SinhArcsinh.identity(torch.zeros(16)),))
    coordinates = Coordinates.of(flow, generator=generator)
    theta, value, grad = coordinates.log_prob_and_grad(classification(dtype=torch.float32), torch.zeros(2, 16))
    assert [part.dtype for part in (theta, value, grad)] == [torch.float32, torch.float64, torch.float32]


def test_kinds_of_coordinates(generator):
    gaussian = Gaussian(draw(DIM), Diagonal(1.0 + draw(DIM).abs()))
    kinds = {
        "affine": [gaussian, FlowPosterior(gaussian, ()), FlowPosterior.whitened(gaussian, [])],
        "flow": [FlowPosterior(gaussian, layers()), FlowPosterior.whitened(gaussian, [SinhArcsinh.identity(draw(DIM))])],
    }
    for kind, posteriors in kinds.items():
        assert [Coordinates.of(posterior, generator=generator).kind for posterior in posteriors] == [kind] * len(posteriors)


def image_of(coordinates, z):
    return coordinates.log_prob_and_grad(target(), z)[0]


@pytest.mark.parametrize("form", ["whitened flow", "raw flow"])
def test_straightened_coordinates_keep_what_is_affine(form, scale, generator):
    """They have the first two moments of the flow's draws, on top of its whitening."""
    flow = posterior_of(form, scale)
    straight = Coordinates.of(flow, generator=generator).straightened(generator=generator)
    assert straight.kind == "affine"
    assert [type(layer) for layer in straight.flow.bijections] == ([Affine] if form == "whitened flow" else [])
    z = draw(4, DIM)
    middle = image_of(straight, z.mean(0, keepdim=True)).squeeze(0)
    assert torch.allclose(image_of(straight, z).mean(0), middle)
    white = straight.inverse(flow.sample(4000, generator=generator))
    assert float(white.mean(0).abs().max()) < 5 * math.sqrt(1 / 2000 + 1 / 4000)
    assert float((white.std(0) - 1.0).abs().max()) < 0.2  # whose error depends on the tails
    assert float((white.T.corrcoef() - torch.eye(DIM)).abs().max()) < 0.1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("anew", [True, False])
def test_standardised_coordinates(form, anew, scale, generator):
    coordinates = Coordinates.of(posterior_of(form, scale), generator=generator)
    z = 2.0 + draw(500, DIM) @ torch.diag(torch.linspace(0.5, 2.0, DIM, dtype=torch.float64))
    fresh = coordinates.standardised(z.view(50, 10, DIM), anew=anew)
    white = fresh.inverse(image_of(coordinates, z))
    assert fresh.kind == coordinates.kind
    if anew:
        assert float(white.mean(0).abs().max()) < 1e-8
        assert float((white.T.cov() - torch.eye(DIM)).abs().max()) < 0.05  # but for the shrinkage
    else:
        assert isinstance(fresh.flow.base.scale, type(coordinates.flow.base.scale))
        assert torch.allclose(white, (z - z.mean(0)) / z.std(0), atol=0.1)  # but for the shrinkage
    alone = coordinates.standardised(z.view(500, 1, DIM), anew=False)
    assert torch.allclose(alone.inverse(image_of(coordinates, z)), (z - z.mean(0)) / z.std(0), atol=1e-8)


def test_noise_moves_no_coordinates(generator):
    """Standard normal draws, twice as wide and off by one in a few directions: that is all that may be found."""
    dim, count = 3000, 64
    z = torch.randn(count // 16, 16, dim, generator=generator, dtype=torch.float64)
    standard = Coordinates.of(Gaussian.standard(z[0, 0]), generator=generator)
    base = standard.standardised(z, anew=False).flow.base
    noise = float(z.flatten(0, 1).mean(0).square().mean())
    assert float(base.mean.square().mean()) < 0.1 * noise
    assert float(base.scale.std.log().square().mean()) < 0.1 * float(z.flatten(0, 1).std(0).log().square().mean())
    wide = standard.standardised(2.0 * z, anew=False).flow.base
    assert torch.allclose(wide.scale.std, 2.0 * base.scale.std)
    z[..., :10] = 10.0 * z[..., :10] + 30.0
    spoilt = standard.standardised(z, anew=False).flow.base
    truth = z[..., :10].flatten(0, 1)
    assert torch.allclose(spoilt.mean[:10], truth.mean(0), rtol=0.05)
    assert torch.allclose(spoilt.scale.std[:10], truth.std(0), rtol=0.1)
    assert float(spoilt.mean[10:].square().mean()) < 0.1 * noise


@pytest.mark.parametrize("anew", [True, False])
def test_draws_that_do_not_vary_standardise_nothing(anew, generator):
    z = draw(50, DIM)
    z[:, 2] = 0.5
    for few in (z.view(10, 5, DIM), z[:1].view(1, 1, DIM), z[:0].view(4, 0, DIM)):
        with pytest.raises(FitError, match=r"do not move in some directions|one draw has no spread"):
            Coordinates.of(Gaussian.standard(z[0]), generator=generator).standardised(few, anew=anew)


@dataclass(frozen=True)
class Mixture:
    """Two normals, half of the draws from each: a posterior of the user's own."""

    apart: Tensor

    @property
    def dim(self):
        return len(self.apart)

    def sample(self, num_samples, *, generator):
        side = torch.randint(2, (num_samples, 1), generator=generator) * 2.0 - 1.0
        return side * self.apart + standard_normal(num_samples, self.apart, generator=generator)

    def log_prob(self, theta):
        parts = [-0.5 * (theta - side * self.apart).square().sum(-1) for side in (-1, 1)]
        return torch.stack(parts).logsumexp(0) - math.log(2.0) - 0.5 * self.dim * math.log(2 * math.pi)


def test_any_other_posterior_gives_coordinates_by_its_moments(generator):
    mixture = Mixture(torch.tensor([3.0, 0.0, -1.0], dtype=torch.float64))
    coordinates = Coordinates.of(mixture, generator=generator)
    assert coordinates.kind == "affine"
    assert coordinates.flow.bijections == ()
    truth = torch.eye(3, dtype=torch.float64) + torch.outer(mixture.apart, mixture.apart)
    spread = truth.diagonal().sqrt()
    assert bool((coordinates.flow.base.mean.abs() < 5 * spread / math.sqrt(2000)).all())
    error = (coordinates.flow.base.scale.covariance() - truth) / torch.outer(spread, spread)
    assert float(error.abs().max()) < 5 * math.sqrt(2 / 2000)


def test_draws_of_another_method_are_a_posterior_too(generator):
    samples = SamplePosterior(draw(500, 3) * torch.tensor([1.0, 10.0, 0.1]))
    scale = Coordinates.of(samples, generator=generator).flow.base.scale
    assert torch.allclose(scale.variance().sqrt(), samples.samples.std(0), rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_those_of_the_draws(dtype):
    truth = Gaussian(draw(5), Dense(0.3 * draw(5, 5).tril(-1) + torch.diag(10.0 ** torch.arange(-2.0, 3.0)).double()))
    draws = truth.sample(20_000, generator=make_generator(1)).to(dtype)
    found = moments(draws)
    assert found.mean.dtype == dtype
    assert torch.allclose(found.mean.double(), draws.double().mean(0), rtol=1e-5, atol=1e-5)
    spread = truth.scale.variance().sqrt()
    assert bool(((found.mean - truth.mean).abs() < 5 * spread / math.sqrt(20_000)).all())
    error = (found.scale.covariance() - truth.scale.covariance()) / torch.outer(spread, spread)
    assert float(error.abs().max()) < 5 * math.sqrt(2 / 20_000)
    assert torch.allclose(found.scale.variance().double(), draws.double().var(0), rtol=1e-4)


def test_moments_of_few_draws_are_shrunk_and_of_fewer_diagonal():
    line = draw(1000, 1) * torch.ones(4, dtype=torch.float64) + 1e-9 * draw(1000, 4, seed=8)
    enough, few = moments(line[:20]), moments(line[:19])
    assert isinstance(enough.scale, Dense)
    assert isinstance(few.scale, Diagonal)
    covariance = enough.scale.covariance()
    correlation = covariance / torch.outer(*[covariance.diagonal().sqrt()] * 2)
    assert torch.allclose(correlation.tril(-1).sum(), torch.tensor(6 * 20 / 24).double(), atol=1e-6)
    assert torch.allclose(few.scale.variance(), line[:19].var(0))
    assert isinstance(moments(draw(2000, 129)).scale, Diagonal)
    assert isinstance(moments(draw(2000, 128)).scale, Dense)


def test_moments_of_draws_that_do_not_vary_are_refused():
    draws = draw(50, 3)
    draws[:, 1] = 2.0
    with pytest.raises(FitError, match="do not move in some directions"):
        moments(draws)
