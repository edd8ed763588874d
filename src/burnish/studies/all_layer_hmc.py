"""The judge of the study of all layers: HMC from several networks, whose posterior is one and the same."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish import convergence, metrics
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.variational import fit_vb
from burnish.posteriors import Gaussian
from burnish.predictive import predict
from burnish.studies.all_layer_problem import Problem, quick_products
from burnish.studies.all_layer_settings import BASES, HMC, Settings, flow_name
from burnish.target import Target

__all__ = ["compare", "hmc_row", "pool_runs"]

_CHUNK = 50  # draws whose outputs are there at a time
_CHECKPOINT_SECONDS = 120.0


def hmc_row(problem: Problem) -> dict[str, Any]:
    """A run in the coordinates of a variational Gaussian around a network, and how far its chains agree."""
    fit = _sample(problem, _start(problem))
    draws = fit.posterior.draws
    followed = torch.stack([_chain_probs(problem, chain) for chain in draws])
    weights = convergence.rhat(draws)
    known = {
        "draws": len(fit.posterior.samples),
        "rhat": float(weights.max()),
        "mean_rhat": float(weights.mean()),
        "accept_rate": fit.accept_rate,
        "divergences": fit.divergences,
        "num_gradients": fit.num_gradients,
        "step_size": fit.step_size,
        "length": fit.length,
        "energy_error": _energy_error(problem.target, draws[:, -1]),
        "followed": followed.cpu(),
    } | _agreement(followed)
    known |= {"few_nll": problem.few_nll(fit.posterior), "seconds": fit.seconds, "steps": draws.shape[1]}
    every = predict(
        problem.model,
        fit.posterior,
        problem.test.inputs,
        num_samples=len(fit.posterior.samples),
        generator=problem.generator(5),
        keep_samples=False,
    )
    return problem.score(HMC, every.probs, **known) | {"probs": every.probs.cpu()}  # not rounded: the judge is made of it


def _start(problem: Problem) -> Gaussian:
    settings, target = problem.settings, problem.target
    base = fit_laplace(target, problem.theta, structure="kron", recentre=False).posterior
    options: dict[str, Any] = {"structure": "start", "max_steps": settings.start_steps, "batch_size": None}
    return fit_vb(target, base, generator=problem.generator(), **options).posterior


def _sample(problem: Problem, start: Gaussian) -> HmcFit:
    """Chains that keep their state in the workspace: where a part is deleted and gets more time, they go on."""
    settings = problem.settings
    with quick_products():
        return fit_hmc(
            problem.target,
            start,
            generator=problem.generator(4),
            num_chains=settings.num_chains,
            num_warmup=settings.num_warmup,
            target_accept=0.65,
            max_seconds=settings.hmc_seconds,
            min_draws=settings.min_draws,
            max_draws=settings.max_draws,
            checkpoint=problem.setting.workspace.checkpoint(f"all-layer-hmc-{problem.seed}"),
            checkpoint_seconds=_CHECKPOINT_SECONDS,
        )


def _energy_error(target: Target, draws: Tensor) -> float:
    """What quick products do to the log density, as the standard deviation between draws."""
    with quick_products():
        quick = target.log_prob(draws)
    return float((quick - target.log_prob(draws)).std())


def _chain_probs(problem: Problem, chain: Tensor) -> Tensor:
    """(n, M): the probability of the true class of the points that are followed, under every draw of a chain."""
    count = problem.settings.num_followed
    inputs, targets = problem.test.inputs[:count], problem.test.targets[:count]
    parts = [problem.model(part, inputs).softmax(-1) for part in torch.split(chain, _CHUNK)]
    return torch.cat(parts)[:, torch.arange(len(inputs)), targets]


def _agreement(followed: Tensor) -> dict[str, float]:
    """Of chains (C, n, M) about the probabilities of M points, and about their mean log probability."""
    # what is rounded to zero counts as the smallest number: only ranks are compared, and those need finite values
    logs = followed.clamp_min(torch.finfo(followed.dtype).tiny).log()
    points, whole = convergence.rhat(followed), logs.mean(-1, keepdim=True)
    return {
        "predictive_rhat": float(points.max()),
        "predictive_rhat_median": float(points.median()),
        "predictive_ess": float(convergence.ess_bulk(followed).min()),
        "predictive_ess_median": float(convergence.ess_bulk(followed).median()),
        "nll_rhat": float(convergence.rhat(whole).max()),
        "nll_ess": float(convergence.ess_bulk(whole).min()),
    }


def pool_runs(runs: Sequence[Mapping[str, Tensor]], targets: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The predictive probabilities (N, C) of all runs together, and how far runs that began at other networks agree.

    Args:
        runs: of HMC, each with the tensors "probs" and "followed".
        targets: of the test points.
    """
    probs = torch.stack([run["probs"] for run in runs])
    mean, length = probs.mean(0), min(run["followed"].shape[1] for run in runs)
    between = [
        float(0.5 * (probs[first] - probs[second]).abs().sum(-1).mean())
        for first in range(len(runs))
        for second in range(first)
    ]
    return mean, {
        "nll": metrics.nll(mean, targets),
        "accuracy": metrics.accuracy(mean, targets),
        "ece": metrics.ece(mean, targets),
        "between": between,
        "num_followed": runs[0]["followed"].shape[-1],
    } | _agreement(torch.cat([run["followed"][:, :length] for run in runs]))


def compare(
    rows: Mapping[str, dict[str, Any]],
    probs: Mapping[str, Tensor],
    judge: tuple[Tensor, Mapping[str, Any]] | None,
    settings: Settings,
) -> dict[str, dict[str, Any]]:
    """The rows of a network with their distance to HMC, and the share that each closes of the gap to it.

    The gap begins at the better of the paper's two longest refinements. Without HMC, or without any of these, nothing is
    known.

    Args:
        rows: by name of the posterior.
        probs: predictive probabilities of each.
        judge: what `pool_runs` has found; None where no run of HMC is there.
        settings: that have the lengths.
    """
    longest = [rows.get(flow_name(base, settings.lengths[-1]), {}).get("few_nll") for base in BASES]
    paper = [value for value in longest if value is not None]
    found = {}
    for name, row in rows.items():
        distance = closed = None
        if judge is not None:
            distance = float(0.5 * (probs[name].float() - judge[0]).abs().sum(-1).mean())
            # a test point without any probability makes an NLL infinite, and leaves no gap
            if paper and row["few_nll"] is not None and math.isfinite(judge[1]["nll"]):
                closed = (min(paper) - row["few_nll"]) / (min(paper) - judge[1]["nll"])
        found[name] = row | {"distance": distance, "closed": closed}
    return found
