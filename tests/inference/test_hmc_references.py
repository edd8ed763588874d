"""HMC against answers from elsewhere: reference draws, grids, closed forms, and a prior where data say nothing.

Every tolerance is four standard errors of the difference, Monte Carlo errors of reference draws included.
"""

import pytest
import torch
from posteriordb import POSTERIORS, available, reference
from problems import features, noise, regression, regression_truth

from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.likelihoods import Bernoulli
from burnish.target import Target

STANDARD_ERRORS = 4.0

# models whose posterior is too far from standard normal starts, whose tails need shorter steps, and that take seconds
NEED_A_START = ("earn_height", "logearn_height", "low_dim_gauss_mix", "kilpisjarvi")
OPTIONS = {"eight_schools_noncentered": {"target_accept": 0.98}}
SLOW = ("kidscore_interaction", "earn_height", "low_dim_gauss_mix", "nes", "kilpisjarvi")


def moments(draws):
    """Means and standard deviations (2, D) of draws by chain, and their standard errors.

    The errors come from the spread over chains, or over pieces of 100 draws of longer chains: both are independent, while
    effective sample sizes of short antithetic chains are themselves uncertain.
    """
    mean = draws.mean((0, 1))
    squares = (draws - mean).square()
    std = squares.mean((0, 1)).sqrt()
    values = torch.stack([draws, squares / (2.0 * std)])
    batches = values.unflatten(2, (-1, 100)).flatten(1, 2) if draws.shape[1] == 1000 else values
    return torch.stack([mean, std]), batches.mean(2).std(1) / batches.shape[1] ** 0.5


def exactly(mean, std):
    """Moments without error."""
    values = torch.stack(torch.broadcast_tensors(torch.as_tensor(mean), torch.as_tensor(std))).double()
    return values, torch.zeros_like(values)


def assert_agree(ours, theirs):
    deviations = (ours[0] - theirs[0]) / torch.hypot(ours[1], theirs[1])
    assert float(deviations.abs().max()) < STANDARD_ERRORS, f"means, standard deviations off by {deviations.tolist()}"


def assert_sound(fit):
    assert fit.converged
    assert fit.rhat < 1.01
    assert fit.ess_bulk >= 400
    assert fit.divergences == 0


@pytest.mark.data
@pytest.mark.skipif(not available(), reason="needs posteriordb's reference draws under BURNISH_DATA")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.split("__")[1] in SLOW else []) for name in POSTERIORS]
)
def test_posteriordb(name, generator):
    posterior, model = reference(name), name.split("__")[1]
    start = posterior.start if model in NEED_A_START else None
    fit = fit_hmc(posterior, start, generator=generator, **OPTIONS.get(model, {}))
    assert_sound(fit)
    assert_agree(moments(posterior.constrain(fit.posterior.draws)), moments(posterior.draws))


@pytest.mark.parametrize("laplace", [True, False])
def test_logistic_regression_against_a_grid(laplace, generator):
    """Few points and a weak prior: skewed, and far from its Laplace approximation."""
    inputs = torch.tensor([[0.5, 1.0], [1.5, -0.5], [-1.0, 0.8], [-0.3, -1.2], [2.0, 0.6]], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0, 0, 1])
    target = Target.last_layer(inputs, labels, prior_precision=0.1, likelihood=Bernoulli(), bias=False)

    def quantities(theta):
        new = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
        return torch.cat([theta, target.model.likelihood.probs(target.model(theta, new))[:, 0, 1:]], 1)

    axis = torch.linspace(-20.0, 20.0, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weights = target.log_prob(grid).softmax(0)
    mean = weights @ quantities(grid)
    truth = exactly(mean, (weights @ (quantities(grid) - mean).square()).sqrt())
    posterior = fit_laplace(target).posterior
    assert float((posterior.mean - mean[:2]).abs().max()) > 0.5
    fit = fit_hmc(target, posterior if laplace else None, generator=generator)
    assert_sound(fit)
    assert_agree(moments(quantities(fit.posterior.samples).view(64, -1, 3)), truth)


@pytest.mark.parametrize("laplace", [True, False])
def test_conjugate_regression_has_its_exact_moments(laplace, generator):
    """Along the parameters, and along axes in which the exact posterior is standard normal: its correlations, too."""
    target = regression()
    mean, covariance, _ = regression_truth(target)
    fit = fit_hmc(target, fit_laplace(target).posterior if laplace else None, generator=generator)
    assert_sound(fit)
    draws = fit.posterior.draws
    assert_agree(moments(draws), exactly(mean, covariance.diagonal().sqrt()))
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
    assert_agree(moments((draws - mean) @ whiten.T), exactly(torch.zeros_like(mean), 1.0))


class Banana:
    """Two independent standard normals, the second bent along a parabola of the first, as by Haario et al. (1999)."""

    dim = 2

    def straight(self, theta):
        first, second = theta.unbind(-1)
        return torch.stack([first, second - first.square() + 1.0], -1)

    def log_prob_and_grad(self, theta):
        straight = self.straight(theta)
        first, second = straight.unbind(-1)
        return -0.5 * straight.square().sum(-1), torch.stack([2.0 * first * second - first, -second], -1)


def test_banana_has_its_exact_moments(generator):
    """As it is bent, and unbent to two standard normals. It turns so sharply at its ends that usual steps are too long."""
    banana = Banana()
    fit = fit_hmc(banana, generator=generator, target_accept=0.99)
    assert_sound(fit)
    assert_agree(moments(fit.posterior.draws), exactly(torch.zeros(2), torch.tensor([1.0, 3.0]).sqrt()))
    assert_agree(moments(banana.straight(fit.posterior.draws)), exactly(torch.zeros(2), 1.0))


@pytest.mark.slow
def test_fewer_points_than_features(generator):
    """Where features have no component and classes no contrast, the posterior is the prior; elsewhere two routes agree."""
    num_points, num_features, num_classes = 20, 50, 3
    inputs = features(num_points, num_features) / num_features**0.5
    labels = torch.arange(num_points) % num_classes
    target = Target.last_layer(3.0 * inputs, labels, prior_precision=1.0, bias=False)
    empty = torch.linalg.svd(inputs).Vh[num_points:]
    directions = noise(20 * num_classes * len(empty)).view(20, num_classes, -1) @ empty
    common = noise(10 * num_features).view(10, 1, -1).expand(-1, num_classes, -1)
    directions = torch.nn.functional.normalize(torch.cat([directions, common]).flatten(1), dim=1)
    routes = []
    for start in (fit_laplace(target).posterior, None):
        fit = fit_hmc(target, start, generator=generator)
        assert_sound(fit)
        assert_agree(moments(fit.posterior.draws @ directions.T), exactly(torch.zeros(len(directions)), 1.0))
        outputs = target.model(fit.posterior.samples, target.data.inputs)
        contrasts = (outputs[..., 1:] - outputs[..., :1]).flatten(1)
        routes.append(moments(contrasts.view(fit.posterior.num_chains, -1, contrasts.shape[1])))
    assert_agree(*routes)
    prior_std = (2.0 * target.data.inputs.square().sum(1)).sqrt().repeat_interleave(num_classes - 1)
    assert float((routes[0][0][1] / prior_std).max()) < 0.95  # data do say something there
