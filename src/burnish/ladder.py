"""From the cheapest posterior to the surest one: climb until predictions are those of the exact posterior."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.bijections import SinhArcsinh
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.inference.flow import FlowFit, fit_flow
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.variational import fit_vb
from burnish.linear_bijections import Rotation, Shift
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Dense
from burnish.target import Target
from burnish.verdict import Verdict, judge

__all__ = ["Rung"]

RUNGS = ("laplace", "flow", "long flow", "hmc")

_WAY = {
    "auto": RUNGS,
    "laplace": ("laplace",),
    "flow": ("laplace", "flow"),
    "long flow": ("laplace", "long flow"),
    "hmc": ("laplace", "flow", "hmc"),
}

_LONG_STEPS, _LONG_SAMPLES = 4000, 32
_MUCH_HIGHER = 0.01  # nats for each dimension: an ELBO that is higher by less says nothing of which predicts better
_ROTATED_DIM = 6000  # parameters up to which a rotation of all of them is affordable
_FULL_RUN = {"max_draws": 1000, "max_seconds": 1800.0}
_SHORT_RUN = {"num_chains": 32, "min_draws": 4, "max_draws": 4}
_KEPT_DRAWS = 1000  # of an HMC run, in the result: a file of all draws would be large, and predictions need few


@dataclass(frozen=True)
class Rung:
    """One posterior that was tried, what was found, and what fitting (all it stands on included) and judging it took."""

    method: str
    verdict: Verdict
    seconds: float


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior, and where it comes from."""

    posterior: Gaussian | FlowPosterior | SamplePosterior
    gaussian: Gaussian
    """At the mode."""
    base: Gaussian | None = None
    """What a flow has refined: see `refine_gaussian`."""
    run: HmcFit | None = None
    """What samples come from."""


@dataclass(frozen=True)
class Ladder:
    """How posteriors are made of a target, each with the help of the one before."""

    method: str
    """A rung, or "auto"."""
    flow: Mapping[str, Any] = field(default_factory=dict)
    """Options of `fit_flow`."""
    structure: str = "auto"
    """Of the Gaussian's covariance, as in `fit_laplace`."""

    def climb(
        self, target: Target, theta: Tensor, inputs: Tensor, *, generator: torch.Generator
    ) -> tuple[Fitted, tuple[Rung, ...]]:
        """The first posterior that is trusted, or the last one, and all that were judged; of a named rung, only that."""
        rungs: list[Rung] = []
        fitted: Fitted | None = None
        began = time.perf_counter()
        for name in _WAY[self.method]:
            try:
                fitted = self._fit(name, target, theta, fitted, _FULL_RUN, generator)
            except (FitError, MemoryError) as error:
                if self.method != "auto" or not rungs:
                    raise
                warnings.warn(f"{name!r} could not be fitted and is left out: {error}", stacklevel=3)
                continue
            if self.method not in ("auto", name):
                continue
            base = None if fitted.base is None else fitted.gaussian
            verdict = judge(target, fitted.posterior, inputs=inputs, base=base, run=fitted.run, generator=generator)
            rungs.append(Rung(name, verdict, time.perf_counter() - began))
            began = time.perf_counter()
            if verdict.trusted or self.method == name:
                break
        assert fitted is not None
        return fitted, tuple(rungs)

    def repeat(self, name: str, target: Target, theta: Tensor, *, generator: torch.Generator) -> Fitted:
        """The posterior of one rung for another target, not judged; chains are as short as draws from them allow.

        Where that rung cannot be fitted, it is the one below.
        """
        fitted: Fitted | None = None
        for rung in _WAY[name]:
            try:
                fitted = self._fit(rung, target, theta, fitted, _SHORT_RUN, generator)
            except (FitError, MemoryError) as error:
                if fitted is None:
                    raise
                warnings.warn(f"{rung!r} could not be fitted without some points to score it on: {error}", stacklevel=3)
        assert fitted is not None
        return fitted

    def _fit(
        self,
        name: str,
        target: Target,
        theta: Tensor,
        below: Fitted | None,
        run: Mapping[str, Any],
        generator: torch.Generator,
    ) -> Fitted:
        if below is None:
            gaussian = fit_laplace(target, theta, structure=self.structure).posterior
            return Fitted(gaussian, gaussian)
        if name == "hmc":
            fit = fit_hmc(target, below.posterior, generator=generator, **run)
            return Fitted(_thinned(fit.posterior), below.gaussian, run=fit)
        if name == "long flow" and below.base is not None:
            base = below.base
            refined = fit_flow(target, base, generator=generator, **(_long_options(base) | dict(self.flow)))
        else:
            options = (_long_options(below.gaussian) if name == "long flow" else {}) | dict(self.flow)
            refined, base = refine_gaussian(target, below.gaussian, generator=generator, **options)
        return Fitted(refined.posterior, below.gaussian, base=base)


def refine_gaussian(
    target: Target, gaussian: Gaussian, *, generator: torch.Generator, **options: Any
) -> tuple[FlowFit, Gaussian]:
    """A flow over the full Gaussian with the largest ELBO, or over the one at the mode; and what it is over.

    Elementwise layers cannot turn a Gaussian, and leave the one at the mode too narrow where it should be turned; over the
    other they gain little where the posterior is far from any Gaussian. So the flow over the mode is taken where its ELBO is
    much higher, and where there is no other: without a full Gaussian at the mode, or a linear head. See docs/decisions/0019.
    """
    flow = fit_flow(target, gaussian, generator=generator, **options)
    if not (isinstance(gaussian.scale, Dense) and isinstance(target.model.head, LinearHead)):
        return flow, gaussian
    try:
        best = fit_vb(target, gaussian, structure="full", generator=generator).posterior
    except (FitError, MemoryError) as error:
        warnings.warn(f"the Gaussian at the mode stays as it is: {error}", stacklevel=4)
        return flow, gaussian
    over = fit_flow(target, best, generator=generator, **options)
    return (flow, gaussian) if flow.elbo - over.elbo > _MUCH_HIGHER * target.dim else (over, best)


def _long_options(base: Gaussian) -> dict[str, Any]:
    """Skewness and tails along more directions, with less noise in the ascent, for longer."""
    options: dict[str, Any] = {"max_steps": _LONG_STEPS, "num_samples": _LONG_SAMPLES}
    if not 2 <= base.dim <= _ROTATED_DIM:
        return options
    skewness, rotation = SinhArcsinh.identity(base.mean), Rotation.cosine(base.mean)
    layers = (skewness, rotation, skewness, rotation.transposed(), skewness, Shift.identity(base.mean))
    return options | {"bijections": layers}


def _thinned(posterior: SamplePosterior) -> SamplePosterior:
    draws = posterior.draws
    every = -(-draws.shape[0] * draws.shape[1] // _KEPT_DRAWS)
    kept = draws[:, (draws.shape[1] - 1) % every :: every]  # the last draw of every chain among them
    return SamplePosterior(kept.flatten(0, 1), num_chains=len(kept))


def draw_samples(
    posterior: Gaussian | FlowPosterior | SamplePosterior, num_samples: int, *, generator: torch.Generator
) -> Tensor:
    """Samples (S, d) to predict with: pairs of opposite noise, whose average is the posterior's own to first order.

    Of chains, the last draws of different ones while there are enough.
    """
    if isinstance(posterior, SamplePosterior):
        last = posterior.draws[:, -1]
        enough = SamplePosterior(last if num_samples <= len(last) else posterior.samples)
        return enough.sample(num_samples, generator=generator)
    return posterior.sample(num_samples, noise="antithetic", generator=generator)
