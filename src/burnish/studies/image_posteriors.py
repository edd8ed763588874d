"""Every posterior of the image studies: fitted once for each seed, and kept as draws with what is known about the fit."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish.convergence import rhat
from burnish.diagnostics import elbo
from burnish.heads import Model
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.temperature import fit_temperature
from burnish.ladder import Ladder
from burnish.posteriors import DensityPosterior, Posterior
from burnish.refine import refine
from burnish.studies.draw_scores import score_blocks
from burnish.studies.image_problem import ImageProblem
from burnish.studies.image_settings import ImageSettings
from burnish.studies.paper_base import fit_paper_base
from burnish.studies.paper_flows import fit_paper_flows
from burnish.studies.records import finite, origin
from burnish.target import Target

__all__ = [
    "BURNISH",
    "FLOW",
    "HMC",
    "LA",
    "RECENTRED",
    "REFINE",
    "Fit",
    "flow_name",
    "full_target",
    "posterior",
    "prepare",
]

LA, RECENTRED, FLOW, BURNISH, HMC, REFINE = "LA", "recentred LA", "flow", "burnish", "HMC", "refine"


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws (S, d) of a posterior over the whole layer, biases included, and what its fit knows."""

    draws: Tensor
    facts: dict[str, Any]


def flow_name(length: int) -> str:
    """The paper's name for its flow of so many layers."""
    return f"LA-Refine-{length}"


def posterior(problem: ImageProblem, name: str) -> Fit:
    """The posterior of that name: from its file, or fitted and put there."""
    found = _read(problem, name)
    if found is not None:
        return found
    if name not in _FITS:  # one of the paper's flows, whose lengths are fitted together
        prepare([problem])
    else:
        with problem.setting.workspace.lock(problem.name(name)), torch.no_grad():
            if _read(problem, name) is None:
                _write(problem, name, _FITS[name](problem, problem.stream(name)))
    found = _read(problem, name)
    assert found is not None
    return found


def prepare(problems: Sequence[ImageProblem]) -> None:
    """Fits the paper's flows of all lengths for all problems in one go, if any of them is missing.

    Those that are there stay, but are fitted again: rounding depends on what is fitted together, and a study that was killed
    between two of them must end with the same numbers.
    """
    setting = problems[0].setting
    with setting.workspace.lock(f"{setting.dataset}-{setting.protocol}-flows"):
        _fit_flows(problems, setting.settings)


def _fit_flows(problems: Sequence[ImageProblem], settings: ImageSettings) -> None:
    names = [flow_name(length) for length in settings.lengths]
    missing = {(problem, name) for problem in problems for name in names if _read(problem, name) is None}
    if not missing:
        return
    bases = [fit_paper_base(problem)[0] for problem in problems]
    paper = problems[0].setting.protocol == "paper"
    targets = [full_target(problem) for problem in problems]
    fits = fit_paper_flows(
        targets,
        bases,
        settings.lengths,
        generators=[problem.stream("flows") for problem in problems],
        num_epochs=settings.flow_epochs,
        likelihood_bias=not paper,
    )
    for problem, flows in zip(problems, fits.posteriors, strict=True):
        for name, flow in zip(names, flows, strict=True):
            if (problem, name) not in missing:
                continue
            generator = problem.stream(name)
            facts = {"batch_seconds": fits.seconds, "together": len(problems) * len(names)}
            facts |= {} if paper else _elbo(problem.target, flow, generator)
            model = problem.without_bias if paper else problem.model
            _write(problem, name, _drawn_whole(problem, model, flow, generator, facts))


def _fit_la(problem: ImageProblem, generator: torch.Generator) -> Fit:
    base, facts = fit_paper_base(problem)
    if problem.setting.protocol == "ours":
        facts |= _elbo(problem.target, base, generator)
    return _drawn_whole(problem, problem.model, base, generator, facts)


def _fit_recentred(problem: ImageProblem, generator: torch.Generator) -> Fit:
    fit = problem.laplace
    facts = {"seconds": fit.seconds, "structure": problem.setting.structure, "iterations": fit.iterations}
    return _drawn(problem, fit.posterior, generator, facts)


def _fit_own_flow(problem: ImageProblem, generator: torch.Generator) -> Fit:
    fit, known = problem.refined
    facts = known | {"structure": problem.setting.structure, "gain": fit.gain}
    facts |= {"steps": len(fit.trace), "converged": fit.converged}
    return _drawn(problem, fit.posterior, generator, facts)


def _fit_burnish(problem: ImageProblem, generator: torch.Generator) -> Fit:
    """As far up the ladder of `refine` as the verdict asks for."""
    began = time.perf_counter()
    start, inputs = problem.theta[: problem.target.dim], problem.features("validation")
    fitted, rungs = Ladder("auto").climb(problem.target, start, inputs, generator=generator)
    steps = [{"rung": rung.method, "trusted": rung.verdict.trusted, "seconds": rung.seconds} for rung in rungs]
    facts = {"seconds": time.perf_counter() - began, "rungs": steps, "rung": rungs[-1].method}
    return _drawn(problem, fitted.posterior, generator, facts)


def _fit_hmc(problem: ImageProblem, generator: torch.Generator) -> Fit:
    """Twice the draws of other posteriors, chain after chain."""
    settings, target = problem.setting.settings, problem.target
    start, known = problem.refined
    kept = 2 * settings.num_draws // settings.num_chains
    fit = fit_hmc(
        target,
        start.posterior,
        generator=generator,
        num_chains=settings.num_chains,
        num_superchains=settings.num_superchains,
        min_draws=max(4, settings.spacing * kept),  # fewer have no R-hat
        min_ess=3.0 * settings.num_draws,
        max_seconds=settings.max_seconds,
    )
    draws = _spread(fit, kept)
    before = known["seconds"]
    facts = _describe(fit) | {"seconds": before + fit.seconds, "start_seconds": before, "kept": draws.shape[:2].numel()}
    drawn = problem.lift(draws, generator=generator).flatten(0, 1)
    few = settings.num_draws if problem.setting.protocol == "paper" else settings.few
    return Fit(drawn, facts | _scores(problem, target.model, _blocks(fit, settings.num_draws), few))


def _fit_refine(problem: ImageProblem, generator: torch.Generator) -> Fit:
    """`burnish.refine` with its defaults, on the last layer and its features as a network of its own."""
    head = nn.Linear(problem.features("test").shape[1], problem.setting.benchmark.num_classes, device=problem.device)
    weights = problem.model.linear_head
    head.weight.copy_(problem.theta[: weights.num_features * weights.num_outputs].view_as(head.weight))
    head.bias.copy_(problem.theta[weights.num_features * weights.num_outputs :])
    train, validation = (problem.batch(name) for name in ("train", "validation"))
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:  # of results that are not trusted
        warnings.simplefilter("always")
        bnn = refine(
            head,
            (train.inputs, train.targets),
            validation=(validation.inputs, validation.targets),
            seed=problem.seed,
            progress=False,
        )
    facts = {
        "seconds": time.perf_counter() - began,
        "rung": bnn.rungs[-1].method,
        "trusted": bnn.verdict.trusted,
        "warnings": [str(each.message) for each in said],
        "prior_mean": bnn.tuning.prior_mean,
        "precision": bnn.tuning.precision,
        "data": bnn.tuning.data,
    }
    return _drawn_whole(problem, problem.model, bnn.posterior, generator, facts)


_FITS: dict[str, Callable[[ImageProblem, torch.Generator], Fit]] = {
    LA: _fit_la,
    RECENTRED: _fit_recentred,
    FLOW: _fit_own_flow,
    BURNISH: _fit_burnish,
    HMC: _fit_hmc,
    REFINE: _fit_refine,
}


def temperature(problem: ImageProblem) -> float:
    """That suits the held-out points best."""
    return fit_temperature(problem.model, problem.theta, problem.batch("validation")).temperature


def full_target(problem: ImageProblem) -> Target:
    """The target in all parameters of the layer."""
    return Target(problem.model, problem.target.data, problem.target.prior_precision)


def _drawn(problem: ImageProblem, fitted: Posterior, generator: torch.Generator, facts: dict[str, Any]) -> Fit:
    """Draws of a posterior over what the target is over."""
    draws = fitted.sample(problem.setting.settings.num_draws, generator=generator)
    if isinstance(fitted, DensityPosterior):
        facts = facts | _elbo(problem.target, fitted, generator)
    drawn = problem.lift(draws, generator=generator)
    blocks = _and_more(draws, fitted, problem.setting.settings, generator)
    return Fit(drawn, facts | _scores(problem, problem.target.model, blocks))


def _drawn_whole(
    problem: ImageProblem, model: Model, fitted: Posterior, generator: torch.Generator, facts: dict[str, Any]
) -> Fit:
    """Draws of a posterior over the whole layer; the model that predicts by them may see less of it."""
    draws = fitted.sample(problem.setting.settings.num_draws, generator=generator)
    blocks = _and_more(draws, fitted, problem.setting.settings, generator)
    return Fit(draws, facts | _scores(problem, model, (block[:, : model.head.dim] for block in blocks)))


def _and_more(draws: Tensor, fitted: Posterior, settings: ImageSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """A block of draws, and further ones."""
    more = (fitted.sample(settings.num_draws, generator=generator) for _ in range(settings.num_blocks - 1))
    return itertools.chain([draws], more)


def _scores(problem: ImageProblem, model: Model, blocks: Iterable[Tensor], few: int | None = None) -> dict[str, Any]:
    """Over several blocks of draws, where the settings ask for them."""
    count = problem.setting.settings.num_blocks
    if count == 1:
        return {}
    inputs, labels = problem.features("test"), problem.setting.labels("test")
    few = problem.setting.settings.few if few is None else few
    return {"scores": score_blocks(model, itertools.islice(blocks, count), inputs, labels, few)}


def _elbo(target: Target, fitted: DensityPosterior, generator: torch.Generator) -> dict[str, float]:
    found = elbo(target, fitted, generator=generator)
    return {"elbo": found.value, "elbo_error": found.standard_error}


def _spread(fit: HmcFit, kept: int) -> Tensor:
    """So many draws of each chain, from all along it."""
    draws = fit.posterior.draws
    stride = draws.shape[1] // kept
    return draws[:, draws.shape[1] - 1 - (kept - 1) * stride :: stride]


def _blocks(fit: HmcFit, size: int) -> Iterator[Tensor]:
    """Of all draws, the last ones first: one of each chain, then the next of each, so that a block has all chains."""
    draws = fit.posterior.draws.transpose(0, 1).flip(0).flatten(0, 1)
    return (draws[first : first + size] for first in range(0, len(draws) - size + 1, size))


def _describe(fit: HmcFit) -> dict[str, Any]:
    names = ("rhat", "nested_rhat", "ess_bulk", "ess_tail", "converged", "stopped_by", "accept_rate", "divergences")
    more = ("coordinates", "num_warmup", "num_gradients", "seconds")
    facts = {name: getattr(fit, name) for name in (*names, *more)}
    return facts | {"mean_rhat": float(rhat(fit.posterior.draws).mean()), "num_draws": len(fit.posterior.samples)}


def _read(problem: ImageProblem, name: str) -> Fit | None:
    found = problem.setting.workspace.read_tensors("posteriors", problem.name(name), problem.config())
    return None if found is None else Fit(found[1]["draws"].to(problem.device), found[0])


def _write(problem: ImageProblem, name: str, fit: Fit) -> None:
    facts = finite(fit.facts | {"origin": origin(problem.device)})
    problem.setting.workspace.write_tensors("posteriors", problem.name(name), problem.config(), facts, {"draws": fit.draws})
