"""The all-layer benchmark's judge: HMC from several networks, whose posterior is one and the same."""

import argparse
from typing import Any

import torch
from torch import Tensor

from all_layers_problem import FEW, NUM_SETS, Problem, quick_products
from burnish import convergence, fit_hmc, fit_laplace, fit_vb, metrics, predict

FOLLOWED = 500  # test points whose predictions are followed along the chains


def hmc_row(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """A run in the coordinates of a variational Gaussian around a network, and how far its chains agree."""
    target, test = problem.target, problem.test
    base = fit_laplace(target, problem.theta, structure="kron", recentre=False).posterior
    start = fit_vb(target, base, structure="start", max_steps=500, batch_size=None, generator=problem.generator()).posterior
    with quick_products():
        fit = fit_hmc(
            target,
            start,
            generator=problem.generator(4),
            num_chains=options.num_chains,
            num_warmup=150,
            target_accept=0.65,
            max_seconds=options.hmc_seconds,
            min_draws=10,
            max_draws=2000,
            checkpoint=options.parts_in / f"hmc-{problem.seed}.safetensors",
            checkpoint_seconds=120.0,
        )
    draws = fit.posterior.draws
    last = draws[:, -1]
    with quick_products():
        energy_error = target.log_prob(last)
    energy_error = energy_error - target.log_prob(last)
    followed = torch.stack([chain_probs(problem, chain) for chain in draws])
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
        "energy_error": float(energy_error.std()),
        "followed": followed.cpu(),
    } | agreement(followed)
    few = [metrics.nll(problem.predict(fit.posterior, FEW, number), test.targets) for number in range(NUM_SETS)]
    known |= {"few_nll": sum(few) / NUM_SETS, "seconds": fit.seconds, "steps": draws.shape[1]}
    every = predict(
        problem.model,
        fit.posterior,
        test.inputs,
        num_samples=len(fit.posterior.samples),
        generator=problem.generator(5),
        keep_samples=False,
    )
    return problem.score("HMC", every.probs, **known) | {"probs": every.probs.cpu()}  # not rounded: the judge is made of it


def chain_probs(problem: Problem, chain: Tensor) -> Tensor:
    """(n, M): the probability of the true class of the points that are followed, under every draw of a chain."""
    inputs, targets = problem.test.inputs[:FOLLOWED], problem.test.targets[:FOLLOWED]
    parts = [problem.model(part, inputs).softmax(-1) for part in chain.split(50)]
    return torch.cat(parts)[:, torch.arange(len(inputs)), targets]


def agreement(followed: Tensor) -> dict[str, float]:
    """Of chains (C, n, M) about the probabilities of M points, and about their mean log probability."""
    points, whole = convergence.rhat(followed), followed.log().mean(-1, keepdim=True)
    return {
        "predictive_rhat": float(points.max()),
        "predictive_rhat_median": float(points.median()),
        "predictive_ess": float(convergence.ess_bulk(followed).min()),
        "predictive_ess_median": float(convergence.ess_bulk(followed).median()),
        "nll_rhat": float(convergence.rhat(whole).max()),
        "nll_ess": float(convergence.ess_bulk(whole).min()),
    }


def pool_runs(runs: list[dict[str, Any]], targets: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The predictive probabilities (N, C) of all runs together, and how far runs that began at other networks agree."""
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
    } | agreement(torch.cat([run["followed"][:, :length] for run in runs]))
