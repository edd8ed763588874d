"""One part of the study of few points: a network, so many held-out points, a target, and what every method makes of it."""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish import metrics
from burnish.batches import Batch
from burnish.inference.flow import fit_flow
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.inference.selection import choose_target
from burnish.inference.temperature import fit_temperature
from burnish.ladder import Ladder
from burnish.studies.draw_scores import grouped_probs
from burnish.studies.image_methods import MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, RECENTRED
from burnish.studies.image_problem import ImageProblem, refine_laplace
from burnish.target import Target

__all__ = ["ADAPTED", "METHODS", "SCRATCH", "TARGETS", "FewShotCase", "Settings", "few_points", "make_target", "run_case"]

ADAPTED, SCRATCH = "adapted head", "from scratch"
TARGETS = (ADAPTED, SCRATCH)
METHODS = (MAP, TEMPERATURE, RECENTRED, FLOW, BURNISH, HMC)
_SCORES = ("nll", "accuracy", "ece", "brier")
_NUM_SPLITS = 100  # random halves of HMC's chains, for what they differ by
_SHARE = 0.99  # of them, that differ by no more than what counts as noise


@dataclass(frozen=True)
class Settings:
    """Sizes of the study."""

    counts: tuple[int, ...] = (20, 50, 100, 200, 500, 1000, 2000)
    """Held-out points that the last layer is fitted to; more than there are is left out."""
    precision: float = 1.0
    """Of the zero-mean prior "from scratch": what scikit-learn's logistic regression has by default."""
    num_draws: int = 640
    """Of each posterior; HMC keeps twice as many."""
    few: int = 20
    """Draws behind a prediction."""
    num_chains: int = 64
    num_superchains: int = 8
    spacing: int = 2
    """Draws of a chain from one that is kept to the next."""
    max_draws: int = 1000
    """Of each chain of HMC, at most."""

    def __post_init__(self) -> None:
        if not self.counts or list(self.counts) != sorted(set(self.counts)) or self.counts[0] < 10:
            raise ValueError(
                f"`counts` must rise and be at least 10, for cross-validation, got {self.counts}. Pass (20, 50), say."
            )
        if self.num_chains % 2 or 2 * self.num_draws % self.num_chains:
            raise ValueError(
                f"`num_chains` must be even and divide twice the {self.num_draws} draws, as many of each chain, "
                f"got {self.num_chains}. Pass an even divisor of {2 * self.num_draws}."
            )
        if self.few < 1 or self.num_draws % self.few:
            raise ValueError(f"`few` must divide the {self.num_draws} draws, got {self.few}. Pass 20, say.")

    @classmethod
    def small(cls) -> "Settings":
        """For trying the study out on made images."""
        return cls(counts=(20, 60), num_draws=32, few=8, num_chains=16, num_superchains=4, max_draws=60)


@dataclass(frozen=True, eq=False)
class FewShotCase:
    """A network, the points its last layer is fitted to, and the one target that all posteriors are after."""

    problem: ImageProblem
    settings: Settings
    points: Batch
    kind: str
    """One of `TARGETS`."""
    target: Target

    def stream(self, method: str) -> torch.Generator:
        """Another stream for each network, number of points, target and method."""
        return self.problem.stream(f"few-shot {len(self.points)} {self.kind} {method}")


@dataclass(frozen=True, eq=False)
class _Layer:
    """Draws (S, d) that a method predicts with, and what its fit knows."""

    draws: Tensor
    facts: dict[str, Any]


def few_points(problem: ImageProblem, count: int) -> Batch:
    """So many held-out points, by chance; fewer of the same network are always among more."""
    pool = problem.batch("validation")
    if count > len(pool):
        raise ValueError(f"`count` must be at most the {len(pool)} points that are held out, got {count}. Pass fewer.")
    order = torch.randperm(len(pool), generator=problem.stream("few-shot points"), device=problem.device)
    return pool.subset(order[:count])


def make_target(problem: ImageProblem, points: Batch, kind: str, precision: float) -> Target:
    """The last layer on these points alone.

    "adapted head" has the prior that `refine` would choose by cross-validation on the points, around the network's head as
    it is or scaled by its temperature. "from scratch" knows nothing of the head: mean zero, and a precision that is given.
    """
    if kind == SCRATCH:
        return Target(problem.model, points, precision)
    # the training points are none of the data to choose from, so the same points can stand in their place
    return choose_target(problem.model, problem.theta, points, points, prior_mean="auto", data="validation")


def run_case(case: FewShotCase) -> dict[str, Any]:
    """Scores of every method on all test points, its distance to HMC, and what is known about its fit."""
    with torch.no_grad():
        layers = _fit_all(case)
        judge = _Judge(case, layers[HMC].draws)
        rows = {}
        for name in METHODS:
            rows[name] = judge.row(name, layers[name].draws) | {"fit": layers[name].facts}
    target, tuning = case.target, case.target.tuning
    described: dict[str, Any] = {
        "precision": float(target.prior_precision),
        "parameters": target.dim,
        "points": len(target.data),
    }
    described |= {"classes": len(torch.unique(target.data.targets)), "prior_mean": "zero"}
    if tuning is not None:
        described |= {"prior_mean": tuning.prior_mean, "at_bound": tuning.at_bound, "candidates": len(tuning.candidates)}
    return {
        "network": case.problem.digest,
        "rows": rows,
        "judge": judge.noise,
        "target": described,
        "test_points": len(case.problem.setting.labels("test")),
    }


def _fit_all(case: FewShotCase) -> dict[str, _Layer]:
    problem, target = case.problem, case.target
    theta = problem.theta.unsqueeze(0)
    scaling = fit_temperature(problem.model, problem.theta, case.points)
    began = time.perf_counter()
    laplace = fit_laplace(target, problem.theta, structure=problem.setting.structure)
    recentred = {"seconds": time.perf_counter() - began, "iterations": laplace.iterations}
    generator = case.stream(RECENTRED)
    fits: dict[str, Callable[[FewShotCase, LaplaceFit], _Layer]] = {FLOW: _fit_flow, BURNISH: _fit_burnish, HMC: _fit_hmc}
    return {
        MAP: _Layer(theta, {}),
        TEMPERATURE: _Layer(theta / scaling.temperature, {"temperature": scaling.temperature}),
        RECENTRED: _Layer(laplace.posterior.sample(case.settings.num_draws, generator=generator), recentred),
        **{name: fit(case, laplace) for name, fit in fits.items()},
    }


def _fit_flow(case: FewShotCase, laplace: LaplaceFit) -> _Layer:
    generator = case.stream(FLOW)
    fit, facts = refine_laplace(case.target, laplace, generator)
    facts |= {"gain": fit.gain, "gain_error": fit.gain_standard_error}
    facts |= {"elbo": fit.elbo, "steps": len(fit.trace), "converged": fit.converged}
    return _Layer(fit.posterior.sample(case.settings.num_draws, generator=generator), facts)


def _fit_burnish(case: FewShotCase, _: LaplaceFit) -> _Layer:
    """As far up the ladder of `refine` as its verdict asks for; like `refine`, it judges at the points it is given."""
    generator, began = case.stream(BURNISH), time.perf_counter()
    with warnings.catch_warnings(record=True) as said:  # of rungs that could not be fitted
        warnings.simplefilter("always")
        ladder = Ladder("auto", structure=case.problem.setting.structure)
        fitted, rungs = ladder.climb(case.target, case.problem.theta, case.points.inputs, generator=generator)
    steps = [{"rung": rung.method, "trusted": rung.verdict.trusted, "seconds": rung.seconds} for rung in rungs]
    facts = {"seconds": time.perf_counter() - began, "rung": rungs[-1].method, "rungs": steps}
    facts |= {"trusted": rungs[-1].verdict.trusted, "warnings": [str(each.message) for each in said]}
    return _Layer(fitted.posterior.sample(case.settings.num_draws, generator=generator), facts)


def _fit_hmc(case: FewShotCase, laplace: LaplaceFit) -> _Layer:
    """Twice the draws of other posteriors, chain after chain."""
    settings, generator = case.settings, case.stream(HMC)
    start = fit_flow(case.target, laplace.posterior, generator=generator)
    kept = 2 * settings.num_draws // settings.num_chains
    fit = fit_hmc(
        case.target,
        start.posterior,
        generator=generator,
        num_chains=settings.num_chains,
        num_superchains=settings.num_superchains,
        min_draws=max(4, settings.spacing * kept),  # fewer have no R-hat
        max_draws=settings.max_draws,
        min_ess=2.0 * settings.num_draws,
    )
    draws = fit.posterior.draws
    stride = draws.shape[1] // kept  # from all along the chain
    draws = draws[:, draws.shape[1] - 1 - (kept - 1) * stride :: stride]
    before = laplace.seconds + start.seconds
    return _Layer(draws.flatten(0, 1), _describe(fit) | {"seconds": before + fit.seconds, "start_seconds": before})


def _describe(fit: HmcFit) -> dict[str, Any]:
    names = ("rhat", "nested_rhat", "ess_bulk", "ess_tail", "converged", "stopped_by", "accept_rate", "divergences")
    more = ("coordinates", "num_warmup", "num_gradients")
    return {name: getattr(fit, name) for name in (*names, *more)} | {"num_draws": len(fit.posterior.samples)}


class _Judge:
    """Predictions of half of HMC's chains, what halves of them differ by among themselves, and by what others differ."""

    def __init__(self, case: FewShotCase, draws: Tensor) -> None:
        self._settings, self._model = case.settings, case.problem.model
        self._inputs, self._labels = case.problem.features("test"), case.problem.setting.labels("test")
        # halves of the chains, not of their draws: draws of one chain are not independent
        self._half = len(draws) // 2
        chains = self._probs(draws, len(draws) // case.settings.num_chains)
        self._reference = chains[: len(chains) // 2].mean(0)
        self._nll = metrics.nll(self._reference, self._labels)
        self.noise = self._resplit(chains, case.stream("judge"))

    def row(self, name: str, draws: Tensor) -> dict[str, Any]:
        """Scores by few draws, over disjoint sets of them, and by all; and the distance to half of HMC's chains.

        HMC itself is its other half, so that all methods have as many draws.
        """
        own = draws[self._half :] if name == HMC else draws
        few = min(self._settings.few, len(own))
        sets = self._probs(own, few)
        parts = [self._score(probs) for probs in sets]
        many = sets.mean(0)
        scores = self._score(many)
        return {
            "few": {key: statistics.fmean(part[key] for part in parts) for key in parts[0]},
            "many": scores,
            "sets": len(parts),
            "tv": _distance(many, self._reference),
            "tv_few": statistics.fmean(_distance(probs, self._reference) for probs in sets),
            "nll_gap": scores["nll"] - self._nll,
        }

    def _resplit(self, chains: Tensor, generator: torch.Generator) -> Mapping[str, Any]:
        """What 99 % of random halves of the chains differ by at most, in their predictions and in their NLL."""
        order = torch.stack(
            [torch.randperm(len(chains), generator=generator, device=chains.device) for _ in range(_NUM_SPLITS)]
        )
        chosen = torch.zeros(order.shape, device=chains.device).scatter_(1, order[:, : len(chains) // 2], 1.0)
        sides = (
            ((2.0 / len(chains)) * side @ chains.flatten(1)).view(-1, *chains.shape[1:]) for side in (chosen, 1.0 - chosen)
        )
        pairs = list(zip(*sides, strict=True))
        distances = sorted(_distance(first, second) for first, second in pairs)
        losses = ([metrics.nll(probs, self._labels) for probs in pair] for pair in pairs)
        gaps = sorted(abs(first - second) for first, second in losses)
        rank = math.ceil(_SHARE * _NUM_SPLITS) - 1
        found = {"largest_tv": distances[rank], "largest_nll_gap": gaps[rank], "mean_tv": statistics.fmean(distances)}
        return found | {"draws": self._half, "splits": _NUM_SPLITS}

    def _probs(self, draws: Tensor, num_samples: int) -> Tensor:
        return grouped_probs(self._model, draws, self._inputs, num_samples)

    def _score(self, probs: Tensor) -> dict[str, float]:
        return {name: getattr(metrics, name)(probs, self._labels) for name in _SCORES}


def _distance(probs: Tensor, others: Tensor) -> float:
    """Mean total-variation distance over test points."""
    return float(0.5 * (probs - others).abs().sum(-1).mean())
