"""Agreement with another sampler: Pyro's NUTS, on potentials that are written without burnish's targets."""

import math
import sys
from pathlib import Path

import pytest
import torch
from problems import binary, classification, features
from torch import Tensor

from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.target import Target

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def regression() -> Target:
    """Three outputs with a prior of its own for each parameter."""
    inputs = features(6, 2)
    outputs = inputs @ torch.randn(2, 3, generator=make_generator(1), dtype=torch.float64)
    precision = torch.linspace(0.3, 3.0, 9, dtype=torch.float64)
    mean = torch.linspace(-0.5, 0.5, 9, dtype=torch.float64)
    return Target.last_layer(inputs, outputs, prior_precision=precision, prior_mean=mean, likelihood=GaussianNoise(0.5))


CASES = {  # whether the posterior is skewed, and NUTS in whitened coordinates
    "categorical": (lambda: classification(12, 2, 3, prior_precision=0.2, weighted=True), True, True),
    "bernoulli": (lambda: binary(num_points=15, num_features=3, prior_precision=0.3), True, False),
    "gaussian": (regression, False, True),
}


@pytest.fixture
def nuts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import nuts as module

    yield module
    for name in ("nuts", "fashion_mnist", "records"):
        sys.modules.pop(name)


@pytest.mark.parametrize("case", CASES)
def test_moments_and_predictions_are_those_of_nuts(nuts, case):
    make, skewed, whiten = CASES[case]
    target = make()
    laplace = fit_laplace(target).posterior
    run = nuts.sample_nuts(target, laplace, seed=1, num_draws=2000, num_warmup=200, whiten=whiten)
    fit = fit_hmc(target, laplace, generator=make_generator(0), min_draws=200)
    assert fit.converged
    assert run.divergences == fit.divergences == 0
    theirs = summary(target, run.draws.view(40, 50, target.dim))  # stretches much longer than the memory of the chain
    ours = summary(target, fit.posterior.draws)
    for name, (value, error) in ours.items():
        reference, reference_error = theirs[name]
        distance = (value - reference).abs() / torch.hypot(error, reference_error)
        assert float(distance.max()) < 4.0, f"{name}: {distance.tolist()} standard errors"
    shift = (ours["mean"][0] - laplace.mean).abs() / ours["standard deviation"][0]
    assert (float(shift.max()) > 0.2) == skewed  # what a Gaussian at the mode would miss


def summary(target: Target, draws: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Averages over draws (B, n, d), with standard errors from how much the B parts differ."""
    theta, likelihood = draws.flatten(0, 1), target.model.likelihood
    outputs = target.model(theta, features(4, target.data.inputs.shape[1], seed=9))
    if isinstance(likelihood, GaussianNoise):
        probs = torch.special.ndtr(outputs / likelihood.std)  # that a new observation is positive
    else:
        probs = likelihood.probs(outputs)

    def average(values: Tensor) -> tuple[Tensor, Tensor]:
        parts = values.reshape(*draws.shape[:2], -1).mean(1)
        return parts.mean(0), parts.std(0) / math.sqrt(len(parts))

    variance, error = average((theta - theta.mean(0)).square())
    return {
        "mean": average(theta),
        "standard deviation": (variance.sqrt(), 0.5 * error / variance.sqrt()),
        "predictive probability": average(probs),
    }
