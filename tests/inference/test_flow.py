"""Refinement: what it must leave alone, what it must improve, and that its options mean what they say."""

import math

import pytest
import torch
from problems import binary, classification, regression

from burnish.bijections import Planar, Radial, SinhArcsinh
from burnish.diagnostics import elbo
from burnish.errors import FitError
from burnish.inference.flow import default_bijections, fit_flow, paper_protocol
from burnish.inference.laplace import fit_laplace
from burnish.inference.swag import fit_swag
from burnish.inference.variational import fit_vb
from burnish.layer_scales import BlockDiagonal
from burnish.linear_bijections import Affine, DiagonalScale, Rotation, Shift, Triangular
from burnish.noise import make_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Dense, Diagonal, LowRank, Scale
from burnish.target import Target


def skewed() -> Target:
    """Few points and a weak prior: far from Gaussian."""
    return binary(num_points=12, num_features=2, prior_precision=0.05, bias=False)


def grid_divergence(target: Target, posterior: Gaussian | FlowPosterior, reach: float = 60.0) -> float:
    """KL(posterior || target) on a grid, target normalised there."""
    side = torch.linspace(-reach, reach, 601, dtype=torch.float64)
    points, cell = torch.cartesian_prod(side, side), float(side[1] - side[0]) ** 2
    log_target = target.log_prob(points).detach()
    log_target = log_target - log_target.logsumexp(0) - math.log(cell)
    log_density = posterior.log_prob(points).detach()
    mass = log_density.exp() * cell
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-3)
    return float((mass * (log_density - log_target)).sum())


def test_a_gaussian_target_is_left_alone():
    target = regression()
    base = fit_laplace(target).posterior
    fit = fit_flow(target, base, generator=make_generator(0))
    divergence = (
        elbo(target, base, generator=make_generator(1)).value
        - elbo(target, fit.posterior, generator=make_generator(1)).value
    )
    assert abs(divergence) < 1e-3
    assert fit.gain >= 0.0


def test_two_dimensions_against_a_grid():
    target = skewed()
    base = fit_laplace(target).posterior
    fit = fit_flow(target, base, generator=make_generator(0))
    assert grid_divergence(target, fit.posterior) < 0.05 * grid_divergence(target, base)


def test_the_gain_is_that_of_the_elbo():
    target = classification(num_points=20, prior_precision=0.3)
    base = fit_laplace(target).posterior
    fit = fit_flow(target, base, generator=make_generator(0), num_evaluation_samples=1000)
    before = elbo(target, base, num_samples=4000, generator=make_generator(1))
    after = elbo(target, fit.posterior, num_samples=4000, generator=make_generator(2))
    tolerance = 5 * math.hypot(before.standard_error, after.standard_error, fit.gain_standard_error)
    assert fit.gain > 1.0
    assert fit.gain == pytest.approx(after.value - before.value, abs=tolerance)
    assert fit.elbo == pytest.approx(after.value, abs=5 * math.hypot(after.standard_error, fit.elbo_standard_error))
    assert fit.trace.shape[1] == 2
    assert fit.converged


def test_a_bad_flow_is_thrown_away():
    """One violent step from the exact posterior: what is returned must not be below the base."""
    target = regression()
    base = fit_laplace(target).posterior
    fit = fit_flow(
        target, base, generator=make_generator(0), learning_rate=5.0, epsilon=1e-8, max_steps=3, path_gradient=False
    )
    assert fit.gain == 0.0
    draws = fit.posterior.sample(5, generator=make_generator(1))
    assert torch.allclose(draws, base.sample(5, generator=make_generator(1)))


def test_divergence_ends_the_ascent_with_what_was_best():
    target = classification(num_points=20, prior_precision=0.3)
    base = fit_laplace(target).posterior
    fit = fit_flow(target, base, generator=make_generator(0), learning_rate=1e300, max_steps=200)
    assert fit.gain >= 0.0
    assert math.isfinite(fit.elbo)
    assert not fit.converged


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("path_gradient", [True, False])
def test_gradients_climb_the_elbo(whiten, path_gradient):
    """Every combination of coordinates and estimator improves a base that is shifted off the mode."""
    target = classification(num_points=40, prior_precision=1.0)
    laplace = fit_laplace(target).posterior
    base = Gaussian(laplace.mean + 0.3, laplace.scale)
    fit = fit_flow(
        target,
        base,
        generator=make_generator(0),
        whiten=whiten,
        path_gradient=path_gradient,
        bijections=[Shift.identity(base.mean)],
    )
    divergence = 0.5 * float(laplace.scale.solve(torch.full_like(base.mean, 0.3)).square().sum())
    assert fit.gain > 0.9 * divergence


def layers(base: Gaussian) -> dict[str, list]:
    generator = make_generator(5)
    return {
        "shift": [Shift.identity(base.mean)],
        "scale": [DiagonalScale.identity(base.mean)],
        "sinh-arcsinh": [SinhArcsinh.identity(base.mean)],
        "radial": [Radial.identity(base.mean, generator=generator) for _ in range(2)],
        "planar": [Planar.identity(base.mean, generator=generator)],
    }


@pytest.mark.parametrize("name", ["shift", "scale", "sinh-arcsinh", "radial", "planar"])
def test_every_composition_improves_a_skewed_posterior(name):
    target = skewed()
    base = fit_laplace(target).posterior
    options = {"bijections": layers(base)[name], "max_steps": 200, "num_evaluation_samples": 4000}
    fit = fit_flow(target, base, generator=make_generator(0), **options)
    assert fit.gain > 3 * fit.gain_standard_error > 0


def whitened(base: Gaussian, bijections: list) -> tuple:
    return Gaussian.standard(base.mean), bijections, Affine(base.mean, base.scale)


def test_path_and_full_gradients_agree_in_the_mean():
    from burnish.inference.flow import _elbo_and_surrogate

    target = skewed()
    base = fit_laplace(target).posterior
    start = SinhArcsinh(torch.tensor([0.3, -0.2]).double(), torch.tensor([0.4, 0.1]).double())
    gradients = {}
    for path in (True, False):
        skew = start.skew.clone().requires_grad_()
        layer = SinhArcsinh(skew, start.raw_tail)
        noise = standard_normal(200_000, base.mean, generator=make_generator(3), noise="antithetic")
        _, surrogate = _elbo_and_surrogate(*whitened(base, [layer]), noise, target.log_prob_and_grad, path)
        gradients[path] = torch.autograd.grad(surrogate, skew)[0]
    assert torch.allclose(gradients[True], gradients[False], atol=0.02)
    assert float(gradients[True].abs().max()) > 0.1


def test_path_gradients_have_no_noise_at_the_target():
    from burnish.inference.flow import _elbo_and_surrogate

    target = regression()
    base = fit_laplace(target).posterior
    skew = torch.zeros_like(base.mean).requires_grad_()
    layer = SinhArcsinh(skew, torch.zeros_like(base.mean))
    noise = standard_normal(4, base.mean, generator=make_generator(3))
    _, surrogate = _elbo_and_surrogate(*whitened(base, [layer]), noise, target.log_prob_and_grad, True)
    assert float(torch.autograd.grad(surrogate, skew)[0].abs().max()) < 1e-9


def test_the_paper_protocol_is_a_choice_of_options():
    target = classification(num_points=300, prior_precision=1.0)
    base = fit_laplace(target, recentre=False, start=torch.zeros(target.dim, dtype=torch.float64)).posterior
    generator = make_generator(0)
    options = paper_protocol(target, base, 5, generator=generator)
    fit = fit_flow(target, base, generator=generator, **options)
    assert len(fit.trace) == 20 * 3
    assert fit.batch_size == 128
    assert [type(layer) for layer in fit.posterior.bijections] == [Radial] * 5
    assert fit.posterior.base is base


@pytest.mark.parametrize("scale", ["dense", "diagonal"])
def test_batches_reach_what_all_data_reach(scale):
    target = classification(num_points=5000, num_features=2, num_outputs=3, prior_precision=1.0)
    laplace = fit_laplace(target, structure="full" if scale == "dense" else "diagonal").posterior
    base = Gaussian(laplace.mean, laplace.scale)
    whole = fit_flow(target, base, generator=make_generator(0), batch_size=None)
    batched = fit_flow(target, base, generator=make_generator(0), batch_size=512)
    assert batched.batch_size == 512
    reached = [elbo(target, f.posterior, num_samples=2000, generator=make_generator(1)) for f in (whole, batched)]
    assert reached[1].value == pytest.approx(reached[0].value, abs=0.1 + 5 * reached[0].standard_error)


def test_auto_uses_all_of_a_small_data_set():
    target = classification()
    assert fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0), max_steps=5).batch_size is None


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone():
    target = classification(num_points=20)
    base = fit_laplace(target).posterior
    state = torch.get_rng_state()
    first, second = (fit_flow(target, base, generator=make_generator(7), max_steps=50) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.trace, second.trace)
    draws = [fit.posterior.sample(3, generator=make_generator(1)) for fit in (first, second)]
    assert torch.equal(*draws)


def test_single_precision_runs_through():
    target = classification(num_points=20, prior_precision=0.3, dtype=torch.float32)
    fit = fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0))
    assert fit.gain > 0.5
    assert fit.posterior.sample(2, generator=make_generator(0)).dtype == torch.float32


def kinds_of_default_layers(scale: Scale) -> list[type]:
    return [type(layer) for layer in default_bijections(Gaussian(torch.zeros(scale.dim, dtype=torch.float64), scale))]


def test_the_default_flow_is_rotated_in_few_dimensions_only():
    few, many, one = (Dense(torch.eye(dim, dtype=torch.float64)) for dim in (16, 500, 1))
    assert kinds_of_default_layers(few) == [SinhArcsinh, Rotation, SinhArcsinh, Rotation, Shift]
    assert kinds_of_default_layers(many) == kinds_of_default_layers(one) == [SinhArcsinh, Shift]


def test_the_default_flow_learns_widths_where_the_base_leaves_correlations_out():
    ones = torch.ones(16, dtype=torch.float64)
    eye = torch.eye(16, dtype=torch.float64)
    for scale in (
        Diagonal(ones),
        LowRank(ones, eye[:, :2], ones[:2]),
        BlockDiagonal((Dense(eye[:8, :8]), Diagonal(ones[8:]))),
    ):
        assert kinds_of_default_layers(scale) == [DiagonalScale, SinhArcsinh, Shift]


@pytest.mark.parametrize("names", [[], ["Rotation"]])
def test_layers_without_parameters_are_refused(names):
    target = classification()
    base = fit_laplace(target).posterior
    with pytest.raises(ValueError, match="`bijections` must have parameters to learn"):
        fit_flow(target, base, generator=make_generator(0), bijections=[Rotation.cosine(base.mean) for _ in names])


def any_gaussian(target: Target, name: str) -> Gaussian:
    """A Gaussian over the parameters of a small target, from elsewhere than Laplace's method."""
    mode, options = fit_laplace(target).posterior.mean, {"num_steps": 400, "snapshot_every": 5, "batch_size": 4}
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    makers = {
        "variational": lambda: fit_vb(target, target.prior, generator=make_generator(0)).posterior,
        "swag": lambda: fit_swag(target, mode, generator=make_generator(0), learning_rate=1.0, **options).posterior,
        "mean and covariance": lambda: Gaussian(torch.tensor([1.0, -1.0]).double(), Dense.from_covariance(covariance)),
        "standard": lambda: Gaussian.standard(mode),
    }
    return makers[name]()


@pytest.mark.parametrize("name", ["variational", "swag", "mean and covariance", "standard"])
def test_any_gaussian_can_be_refined(name):
    """All end near the evidence, however far below it they began."""
    target = binary(num_points=30, num_features=1, prior_precision=0.1)
    side = torch.linspace(-40.0, 40.0, 401, dtype=torch.float64)
    log_evidence = float(target.log_prob(torch.cartesian_prod(side, side)).logsumexp(0)) + 2 * math.log(0.2)
    base = any_gaussian(target, name)
    flow = default_bijections(Gaussian(base.mean, Dense(torch.eye(2, dtype=torch.float64))))
    correlations = Triangular.identity(base.mean)  # which a base may lack
    fit = fit_flow(target, base, generator=make_generator(0), bijections=[correlations, *flow])
    before, after = (
        elbo(target, posterior, num_samples=4000, generator=make_generator(1)) for posterior in (base, fit.posterior)
    )
    assert after.value < log_evidence + 5 * after.standard_error
    assert log_evidence - after.value < min(0.1, 0.5 * (log_evidence - before.value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": "all"}, "`batch_size` must be an integer, None .* or 'auto', got 'all'"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"num_samples": 0}, "`num_samples` must be at least 1"),
        ({"num_samples": 3}, "`num_samples` must be even"),
        ({"num_evaluation_samples": 33}, "`num_evaluation_samples` must be even"),
        ({"num_evaluation_samples": 0}, "`num_evaluation_samples` must be at least 1"),
        ({"bijections": [Shift.identity(torch.zeros(3).double())]}, "must act on the base's 16 dimensions"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"max_steps": 0}, "`max_steps` must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    target = classification()
    with pytest.raises(ValueError, match=message):
        fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0), **options)


def test_an_ascent_that_ends_nowhere_is_a_fit_error():
    target = classification()
    options = {"learning_rate": 1e300, "keep_best": False, "stop_early": False, "max_steps": 30}
    with pytest.raises(FitError, match="use a smaller `learning_rate`"):
        fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0), **options)


@pytest.mark.parametrize("bijections", [SinhArcsinh, [SinhArcsinh], [Shift.identity(torch.zeros(16))]])
def test_wrong_bijections_are_refused(bijections):
    target = classification()
    with pytest.raises(TypeError, match="bijections"):
        fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0), bijections=bijections)


def test_wrong_bases_are_refused():
    target = classification()
    with pytest.raises(TypeError, match="`base` must be a Gaussian, got LaplaceFit"):
        fit_flow(target, fit_laplace(target), generator=make_generator(0))
    with pytest.raises(ValueError, match="`base` must have shape"):
        fit_flow(target, Gaussian.standard(torch.zeros(3, dtype=torch.float64)), generator=make_generator(0))
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, got int"):
        fit_flow(target, fit_laplace(target).posterior, generator=0)
