"""Posteriors: one contract for all of them, densities against torch.distributions, moments, and what is refused."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from burnish.bijections import Planar, Radial, SinhArcsinh
from burnish.linear_bijections import DiagonalScale, Shift
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior, FlowPosterior, Gaussian, MixturePosterior, SamplePosterior
from burnish.scales import Dense, Diagonal

DIM = 6


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def layers(dim, seed=7):
    """One layer of every family, none of them the identity."""
    like, generator = torch.zeros(dim, dtype=torch.float64), make_generator(seed)
    return (
        SinhArcsinh(0.3 * draw(dim, seed=1), 0.3 * draw(dim, seed=2)),
        Radial.uniform(like, generator=generator),
        Planar(0.5 * draw(dim, seed=3), 0.5 * draw(dim, seed=4), 0.2 * draw(1, seed=5).squeeze()),
        DiagonalScale(0.2 * draw(dim, seed=6)),
        Shift(draw(dim, seed=8)),
    )


def identities(dim):
    like, generator = torch.zeros(dim, dtype=torch.float64), make_generator(7)
    return (
        SinhArcsinh.identity(like),
        Radial.identity(like, generator=generator),
        Planar.identity(like, generator=generator),
        DiagonalScale.identity(like),
        Shift.identity(like),
    )


DENSITIES = {
    "gaussian": lambda gaussian: gaussian,
    "whitened flow": lambda gaussian: FlowPosterior.whitened(gaussian, layers(DIM)),
    "raw flow": lambda gaussian: FlowPosterior(gaussian, layers(DIM)),
    "mixture": lambda gaussian: MixturePosterior(
        (gaussian, FlowPosterior.whitened(gaussian, layers(DIM)), shifted(gaussian))
    ),
}


def shifted(gaussian):
    return Gaussian(gaussian.mean + 2.0, gaussian.scale)


@pytest.fixture
def gaussian(scale):
    return Gaussian(draw(DIM, seed=9), scale)


@pytest.fixture(params=["gaussian", "whitened flow", "raw flow", "mixture"])
def density(request, gaussian):
    return DENSITIES[request.param](gaussian)


@pytest.fixture(params=["gaussian", "whitened flow", "raw flow", "mixture", "samples"])
def posterior(request, gaussian):
    if request.param == "samples":
        return SamplePosterior(gaussian.sample(50, generator=make_generator(2)))
    return DENSITIES[request.param](gaussian)


def test_same_generator_same_bits(posterior, untouched_rng):
    first, again, other = (posterior.sample(5, generator=make_generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("num_samples", [1, 7, 60])
def test_shapes(posterior, num_samples, generator):
    samples = posterior.sample(num_samples, generator=generator)
    assert posterior.dim == DIM
    assert samples.shape == (num_samples, DIM)
    assert samples.dtype == torch.float64


def test_samples_continue_the_stream(posterior, generator):
    assert not torch.equal(posterior.sample(5, generator=generator), posterior.sample(5, generator=generator))


@pytest.mark.parametrize(("num_samples", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_number_of_samples_is_checked(posterior, num_samples, error, generator):
    with pytest.raises(error, match="`num_samples` must be"):
        posterior.sample(num_samples, generator=generator)


@pytest.mark.parametrize("generator", [None, 0])
def test_generator_is_checked(posterior, generator):
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, got .*make_generator"):
        posterior.sample(2, generator=generator)


def test_protocol(density):
    assert isinstance(density, DensityPosterior)
    assert not isinstance(SamplePosterior(draw(2, 2)), DensityPosterior)


def test_draws_come_with_their_density(density):
    theta, log_prob = density.sample_and_log_prob(20, generator=make_generator(3))
    assert torch.equal(theta, density.sample(20, generator=make_generator(3)))
    assert log_prob.dtype == torch.float64
    torch.testing.assert_close(log_prob, density.log_prob(theta), rtol=1e-9, atol=1e-9)


def test_density_of_one_vector(density):
    theta = draw(3, DIM)
    torch.testing.assert_close(density.log_prob(theta[1]), density.log_prob(theta)[1], rtol=1e-12, atol=1e-12)


def test_density_is_differentiable(density):
    assert torch.autograd.gradcheck(density.log_prob, draw(2, DIM).requires_grad_())


def test_float32_density_is_summed_in_float64():
    narrow = Gaussian(torch.zeros(3), Diagonal(torch.full((3,), 0.1)))
    flow = FlowPosterior.whitened(narrow, [Shift(torch.ones(3))])
    for density in (narrow, flow):
        theta, log_prob = density.sample_and_log_prob(4, generator=make_generator(0))
        assert theta.dtype == torch.float32
        assert log_prob.dtype == density.log_prob(theta).dtype == torch.float64
        torch.testing.assert_close(log_prob, density.log_prob(theta), rtol=1e-5, atol=1e-5)


KINDS = {
    "gaussian": Gaussian.standard,
    "flow": lambda like: FlowPosterior.whitened(Gaussian.standard(like), []),
    "mixture": lambda like: MixturePosterior((Gaussian.standard(like),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_theta_dtype_is_checked(kind):
    with pytest.raises(TypeError, match=r"`theta` must be torch\.float32 on cpu like the posterior, got torch\.float64"):
        KINDS[kind](torch.zeros(2)).log_prob(torch.zeros(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 3])
def test_theta_length_is_checked(kind, length):
    with pytest.raises(ValueError, match="`theta` must have"):
        KINDS[kind](torch.zeros(2)).log_prob(torch.zeros(4, length))


def test_gaussian_density(gaussian):
    theta, truth = draw(20, DIM), MultivariateNormal(gaussian.mean, gaussian.scale.covariance())
    torch.testing.assert_close(gaussian.log_prob(theta), truth.log_prob(theta), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gaussian.entropy(), truth.entropy(), rtol=1e-10, atol=1e-10)


def test_gaussian_density_of_noise(gaussian):
    noise = draw(20, DIM)
    expected = gaussian.log_prob(gaussian.from_noise(noise))
    torch.testing.assert_close(gaussian.log_prob_of_noise(noise), expected, rtol=1e-10, atol=1e-10)


def test_gaussian_moments(gaussian, generator):
    count, covariance = 20_000, gaussian.scale.covariance()
    samples = gaussian.sample(count, generator=generator)
    error = (samples.mean(0) - gaussian.mean).abs()
    assert bool((error < 5 * (covariance.diagonal() / count).sqrt()).all())
    spread = covariance.diagonal()
    tolerance = 5 * ((torch.outer(spread, spread) + covariance**2) / count).sqrt()
    assert bool(((samples.T.cov() - covariance).abs() < tolerance).all())


def test_standard_gaussian():
    like = draw(3)
    expected = -0.5 * (like**2).sum() - 1.5 * math.log(2 * math.pi)
    torch.testing.assert_close(Gaussian.standard(like).log_prob(like), expected)


def test_whitening_is_the_gaussian(gaussian):
    """Without layers, draws and densities are the Gaussian's own."""
    flow, theta = FlowPosterior.whitened(gaussian, []), draw(5, DIM)
    samples = [posterior.sample(5, generator=make_generator(3)) for posterior in (flow, gaussian)]
    torch.testing.assert_close(*samples, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flow.log_prob(theta), gaussian.log_prob(theta), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("whiten", [True, False])
def test_identity_flow_equals_its_base(gaussian, whiten):
    flow = (FlowPosterior.whitened if whiten else FlowPosterior)(gaussian, identities(DIM))
    theta, log_prob = flow.sample_and_log_prob(20, generator=make_generator(3))
    expected, expected_log_prob = gaussian.sample_and_log_prob(20, generator=make_generator(3))
    torch.testing.assert_close(theta, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_prob, expected_log_prob, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(flow.log_prob(theta), expected_log_prob, rtol=1e-11, atol=1e-11)


def test_layers_act_on_whitened_coordinates_in_order():
    gaussian = Gaussian(torch.tensor([10.0]), Diagonal(torch.tensor([2.0])))
    bijections = (Shift(torch.tensor([1.0])), DiagonalScale(torch.tensor([math.log(3.0)])))
    noise = torch.tensor([[0.5]])
    assert FlowPosterior.whitened(gaussian, bijections).from_noise(noise)[0].item() == pytest.approx(10 + 2 * 3 * (0.5 + 1))
    assert FlowPosterior(gaussian, bijections).from_noise(noise)[0].item() == pytest.approx(3 * (10 + 2 * 0.5 + 1))


@pytest.mark.parametrize("whiten", [True, False])
def test_flow_density_integrates_to_one(whiten):
    base = Gaussian(0.1 * draw(2), Dense(torch.tensor([[0.8, 0.0], [0.3, 0.6]], dtype=torch.float64)))
    flow = (FlowPosterior.whitened if whiten else FlowPosterior)(base, layers(2))
    step = 0.05
    axis = torch.arange(-20, 20, step, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    density = flow.log_prob(grid).exp() * step**2
    assert density.sum().item() == pytest.approx(1.0, abs=1e-3)
    samples = flow.sample(20_000, generator=make_generator(0))
    error = (samples.mean(0) - density @ grid).abs()
    assert bool((error < 5 * samples.std(0) / math.sqrt(20_000) + 1e-3).all())


def test_samples_are_drawn_without_replacement(generator):
    posterior = SamplePosterior(torch.arange(10.0).view(10, 1))
    everything = posterior.sample(10, generator=generator).flatten()
    assert sorted(everything.tolist()) == list(range(10))
    assert everything.tolist() != list(range(10))
    assert posterior.sample(9, generator=generator).unique().numel() == 9


def test_more_samples_than_there_are(generator):
    posterior, count = SamplePosterior(torch.arange(4.0).view(4, 1)), 10_000
    drawn = posterior.sample(count, generator=generator).flatten().long().bincount(minlength=4)
    assert bool(((drawn / count - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / count)).all())


def test_first_sample_is_uniform(generator):
    posterior, count = SamplePosterior(torch.arange(4.0).view(4, 1)), 2000
    drawn = torch.stack([posterior.sample(1, generator=generator)[0, 0] for _ in range(count)]).long().bincount(minlength=4)
    assert bool(((drawn / count - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / count)).all())


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 3, 4)])
def test_samples_of_wrong_shape(shape):
    with pytest.raises(ValueError, match=r"`samples` must have shape \(S, d\) with S >= 1, got \("):
        SamplePosterior(torch.zeros(shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_samples_not_finite(bad):
    with pytest.raises(ValueError, match=r"`samples` must be finite, .*first at \(1, 0\)\. Discard diverged chains first"):
        SamplePosterior(torch.tensor([[1.0, 2.0], [bad, 3.0]]))


@pytest.mark.parametrize("mean", [torch.zeros(2), torch.zeros(1, 3), torch.tensor(0.0)])
def test_mean_does_not_fit_the_scale(mean):
    with pytest.raises(ValueError, match=r"`mean` must be a vector of the scale's 3 dimensions, got shape \("):
        Gaussian(mean, Diagonal(torch.ones(3)))


def test_mean_that_is_no_tensor():
    with pytest.raises(TypeError, match=r"`mean` must be a torch\.Tensor, got list"):
        Gaussian([0.0, 0.0], Diagonal(torch.ones(2)))


def test_mean_not_finite():
    with pytest.raises(ValueError, match=r"`mean` must be finite, .*A Gaussian needs a finite mean"):
        Gaussian(torch.tensor([0.0, math.nan]), Diagonal(torch.ones(2)))


def test_mean_of_another_dtype():
    with pytest.raises(TypeError, match=r"`mean` must be torch\.float32 on cpu like the scale, got torch\.float64"):
        Gaussian(torch.zeros(2, dtype=torch.float64), Diagonal(torch.ones(2)))


def test_mixture_density(gaussian):
    parts = (gaussian, shifted(gaussian), Gaussian.standard(gaussian.mean))
    theta = 2.0 * draw(20, DIM)
    densities = [MultivariateNormal(part.mean, part.scale.covariance()).log_prob(theta).exp() for part in parts]
    torch.testing.assert_close(MixturePosterior(parts).log_prob(theta).exp(), sum(densities) / 3, rtol=1e-10, atol=0.0)


def test_mixture_density_far_out():
    """Where no component's density is a number that can be represented."""
    like = torch.zeros(2, dtype=torch.float64)
    mixture = MixturePosterior((Gaussian.standard(like), Gaussian(like + 100.0, Diagonal(like + 1.0))))
    expected = Gaussian.standard(like).log_prob(like - 60.0) - math.log(2.0)
    torch.testing.assert_close(mixture.log_prob(like - 60.0), expected)


def test_mixture_moments(generator):
    narrow = Gaussian(torch.tensor([3.0, 0.0]).double(), Diagonal(torch.tensor([0.5, 1.0]).double()))
    wide = Gaussian(torch.tensor([-1.0, 1.0]).double(), Dense(torch.tensor([[2.0, 0.0], [1.0, 1.0]]).double()))
    samples, count = MixturePosterior((narrow, wide)).sample(20_000, generator=generator), 20_000
    mean = 0.5 * (narrow.mean + wide.mean)
    covariance = 0.5 * (narrow.scale.covariance() + wide.scale.covariance())
    covariance = covariance + 0.25 * torch.outer(narrow.mean - wide.mean, narrow.mean - wide.mean)
    assert bool(((samples.mean(0) - mean).abs() < 5 * (covariance.diagonal() / count).sqrt()).all())
    centred = samples - mean
    products = centred.unsqueeze(1) * centred.unsqueeze(2)
    error = (products.mean(0) - covariance).abs()
    assert bool((error < 5 * products.std(0) / math.sqrt(count)).all())


def points(count):
    """Components so far apart that a draw tells which one it is from."""
    means = [torch.full((1,), 100.0 * index) for index in range(count)]
    return MixturePosterior(tuple(Gaussian(mean, Diagonal(torch.ones(1))) for mean in means))


@pytest.mark.parametrize("num_samples", [1, 3, 4, 10, 403])
def test_mixture_draws_are_shared_evenly(num_samples, generator):
    drawn = (points(4).sample(num_samples, generator=generator).flatten() / 100.0).round().long()
    counts = drawn.bincount(minlength=4)
    assert int(counts.max() - counts.min()) <= 1
    if num_samples > 4:
        assert drawn.tolist() != sorted(drawn.tolist())


def test_a_single_draw_of_a_mixture_comes_from_any_component(generator):
    mixture, count = points(4), 2000
    drawn = torch.cat([mixture.sample(1, generator=generator) for _ in range(count)])
    counts = (drawn.flatten() / 100.0).round().long().bincount(minlength=4)
    assert bool(((counts / count - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / count)).all())


def test_mixture_of_one_is_its_component(gaussian):
    theta = draw(5, DIM)
    torch.testing.assert_close(MixturePosterior((gaussian,)).log_prob(theta), gaussian.log_prob(theta))


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ((), ValueError, "`components` must be a tuple of at least one posterior, got none"),
        (None, ValueError, "`components` must be a tuple of at least one posterior, got NoneType"),
        (
            (SamplePosterior(torch.zeros(2, 3)),),
            TypeError,
            "`components` must be posteriors with a density, got SamplePosterior at 0",
        ),
        (
            (Gaussian.standard(torch.zeros(2)), Gaussian.standard(torch.zeros(3))),
            ValueError,
            r"`components` must have one number of dimensions, got \[2, 3\]",
        ),
        (
            (Gaussian.standard(torch.zeros(2)), KINDS["flow"](torch.zeros(2).double())),
            TypeError,
            "`components` must be torch.float32 on cpu like the first one, got torch.float64",
        ),
        (
            (KINDS["mixture"](torch.zeros(2)), Gaussian.standard(torch.zeros(2).double())),
            TypeError,
            "`components` must be torch.float32 on cpu like the first one, got torch.float64",
        ),
    ],
)
def test_components_that_do_not_fit(components, error, message):
    with pytest.raises(error, match=message):
        MixturePosterior(components)


def test_a_covariance_is_no_scale():
    with pytest.raises(TypeError, match=r"`scale` must be a Scale, got Tensor. Pass `Dense.from_covariance\(covariance\)`"):
        Gaussian(torch.zeros(2), torch.eye(2))
