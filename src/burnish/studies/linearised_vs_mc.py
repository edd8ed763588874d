"""Predictions from a Gaussian over all layers of a small regression network: sampled, linearised, and HMC as the judge.

The Gaussian is Laplace's, with the exact Hessian at a mode. Sampling and linearising it are two approximations of the same
posterior predictive, which HMC gives without a Gaussian.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish.batches import Batch
from burnish.convergence import rhat
from burnish.flat_network import flatten_network
from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import LaplaceFit
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.progress import Stages
from burnish.studies.modes import best_laplace
from burnish.target import Target

__all__ = ["MC", "Density", "Settings", "make_target", "run", "summary"]

MC, LINEARISED, HMC = "Monte Carlo", "linearised", "HMC"
PAIRS = ((MC, LINEARISED), (MC, HMC), (LINEARISED, HMC))


@dataclass(frozen=True)
class Settings:
    """Sizes and the problem: points in two clusters, a hidden layer of `width` units, noise and prior of the target."""

    num_points: int = 40
    width: int = 6
    noise: float = 0.3
    prior_precision: float = 1.0
    num_restarts: int = 5
    num_samples: int = 10_000
    num_inputs: int = 121
    num_chains: int = 64
    num_warmup: int = 200
    num_draws: int = 200


class Density:
    """The log posterior of such a network with its gradient written out, for many parameters at once.

    HMC asks for it a hundred thousand times, and for a network this small the general one takes ten times as long.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self.dim = target.dim
        self._x, self._y = target.data.inputs[:, 0], target.data.targets[:, 0]
        self._width, self._variance = settings.width, settings.noise**2
        self._precision = settings.prior_precision

    def log_prob_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Of parameters (S, d), up to a constant: (S,) and (S, d)."""
        weight, bias, out, shift = torch.split(theta, [self._width, self._width, self._width, 1], dim=1)
        hidden = torch.tanh(weight.unsqueeze(2) * self._x + bias.unsqueeze(2))
        pull = (self._y - (out.unsqueeze(1) @ hidden).squeeze(1) - shift) / self._variance
        value = -0.5 * self._variance * pull.square().sum(1) - 0.5 * self._precision * theta.square().sum(1)
        back = out.unsqueeze(2) * (1.0 - hidden * hidden) * pull.unsqueeze(1)
        parts = [back @ self._x, back.sum(2), (hidden @ pull.unsqueeze(2)).squeeze(2), pull.sum(1, keepdim=True)]
        return value, torch.cat(parts, dim=1) - self._precision * theta


def run(seed: int = 0, settings: Settings | None = None, *, progress: bool = True) -> dict[str, Any]:
    """Predictive means and standard deviations of the network's output over a grid, by each way, and their distances.

    Args:
        seed: of the data, the starts of the search for a mode, and all draws.
        settings: sizes.
        progress: whether to say on a terminal what is going on.
    """
    settings = Settings() if settings is None else settings
    generator = make_generator(seed)
    target = make_target(settings, generator)
    grid = torch.linspace(-4.0, 4.0, settings.num_inputs, dtype=torch.float64).unsqueeze(1)
    with Stages("linearised-vs-mc", show=progress) as stages:
        with stages.stage("Laplace"):
            laplace, search = best_laplace(target, settings.num_restarts, generator)
        posterior = laplace.posterior
        with stages.stage("predictions"):
            options: dict[str, Any] = {"num_samples": settings.num_samples, "keep_samples": False, "generator": generator}
            predictions = {
                MC: predict(target.model, posterior, grid, **options),
                LINEARISED: predict(target.model, posterior, grid, method="linearised"),
            }
        with stages.stage("HMC"):
            reference, judge = _sample(target, laplace, grid, settings, generator)
    moments = {name: (part.mean[:, 0], _std(part.epistemic_variance)) for name, part in predictions.items()}
    moments[HMC] = reference
    among = (grid[:, 0] >= target.data.inputs.min()) & (grid[:, 0] <= target.data.inputs.max())
    return {
        "data": {"x": _rounded(target.data.inputs[:, 0]), "y": _rounded(target.data.targets[:, 0])},
        "mode": {**search, "prior_precision": settings.prior_precision, "parameters": target.dim},
        "hmc": judge,
        "grid": _rounded(grid[:, 0]),
        "predictions": {name: {"mean": _rounded(m), "std": _rounded(s)} for name, (m, s) in moments.items()},
        "mean_std": {name: {"among": float(s[among].mean()), "all": float(s.mean())} for name, (_, s) in moments.items()},
        "distances": [_distances(pair, moments, among) for pair in PAIRS],
    }


def summary(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean differences of predictive means and standard deviations, over the grid and among the data."""
    rows = []
    for row in results["distances"]:
        cells = [f"{row[region][what]:.3f}" for what in ("mean", "std") for region in ("all", "among")]
        rows.append([" and ".join(row["pair"]), *cells])
    header = ["mean absolute difference between", "means", "means, among the data", "stds", "stds, among the data"]
    return header, rows


def make_target(settings: Settings, generator: torch.Generator) -> Target:
    """A sine seen through noise, left and right of a gap, and a network with one hidden layer of tanh units, in float64."""
    half = settings.num_points // 2
    sides = [torch.rand(half, generator=generator, dtype=torch.float64) * 1.5 + low for low in (-2.0, 0.5)]
    x = torch.cat(sides).unsqueeze(1)
    y = torch.sin(2.0 * x) + settings.noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):  # the weights that layers are born with are not used
        network = nn.Sequential(nn.Linear(1, settings.width), nn.Tanh(), nn.Linear(settings.width, 1)).double().eval()
    model, _ = flatten_network(network, example=x[:8], likelihood=GaussianNoise(settings.noise))
    return Target(model, Batch(x, y), settings.prior_precision)


def _sample(
    target: Target, laplace: LaplaceFit, grid: Tensor, settings: Settings, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    """Mean and standard deviation (N,) over HMC's draws, and how far these can be relied on.

    Chains start at draws of the Laplace posterior, which are far apart, and find coordinates of their own: those of the
    Gaussian fit one of many modes. Hidden units can be swapped, so it is the predictions that must have converged.
    """
    starts = laplace.posterior.sample(settings.num_chains, generator=generator)
    fit = fit_hmc(
        Density(target, settings),
        starts,
        generator=generator,
        num_chains=settings.num_chains,
        num_warmup=settings.num_warmup,
        min_draws=settings.num_draws,
        max_draws=settings.num_draws,
    )
    draws = fit.posterior.draws
    outputs = target.model(draws.flatten(0, 1), grid)[..., 0]
    judge = {
        "rhat_predictions": float(rhat(outputs.view(*draws.shape[:2], -1)).max()),
        "rhat_weights": fit.rhat,
        "draws": outputs.shape[0],
        "divergences": fit.divergences,
        "num_gradients": fit.num_gradients,
        "seconds": fit.seconds,
    }
    return (outputs.mean(0), outputs.std(0)), judge


def _distances(pair: tuple[str, str], moments: dict[str, tuple[Tensor, Tensor]], among: Tensor) -> dict[str, Any]:
    """Mean absolute differences of means and of standard deviations, over the grid and where there are data."""
    gaps = [(one - other).abs() for one, other in zip(moments[pair[0]], moments[pair[1]], strict=True)]
    return {
        "pair": list(pair),
        "all": {name: float(gap.mean()) for name, gap in zip(("mean", "std"), gaps, strict=True)},
        "among": {name: float(gap[among].mean()) for name, gap in zip(("mean", "std"), gaps, strict=True)},
    }


def _std(variance: Tensor | None) -> Tensor:
    assert variance is not None  # regression knows it
    return variance[:, 0].sqrt()


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
