"""Posteriors of all layers beside the paper's: Laplace, refined, variational, and refined in a few directions."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from burnish.bijections import Subspace
from burnish.inference.flow import FlowFit, default_bijections, fit_flow
from burnish.inference.hmc import fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.subspace import (
    leading_directions,
    misfit_directions,
    subnetwork_directions,
    trajectory_directions,
)
from burnish.inference.swag import fit_swag
from burnish.inference.temperature import fit_temperature
from burnish.inference.variational import VbFit, fit_vb
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.studies.all_layer_problem import Problem, quick_products
from burnish.studies.all_layer_settings import FINISHED, NETWORK, RECENTRED, REFINED, TEMPERATURE
from burnish.studies.cost_clocks import clock

__all__ = ["flow_rows", "gaussian_rows"]


def flow_rows(problem: Problem) -> list[dict[str, Any]]:
    """The network, its rival, and refinements of Laplace posteriors, at the network's weights and recentred."""
    model, theta, inputs = problem.model, problem.theta, problem.test.inputs
    outputs = model(theta, inputs)
    temperature = fit_temperature(model, theta, problem.validation).temperature
    rows = [
        problem.score(NETWORK, outputs.softmax(-1)),
        problem.score(TEMPERATURE, (outputs / temperature).softmax(-1), temperature=temperature),
    ]
    at_network, row = _laplace(problem, theta, "kron", "Laplace, Kronecker, at the network")
    rows.append(row)
    recentred, row = _laplace(problem, theta, "kron", "Laplace, Kronecker, recentred", recentre=True)
    rows.append(row)
    mode = recentred.mean
    rows.append(problem.score(RECENTRED, model(mode, inputs).softmax(-1), seconds=row["seconds"]))
    diagonal, row = _laplace(problem, mode, "diagonal", "Laplace, diagonal, recentred")
    rows.append(row)
    bases = {REFINED: recentred, "refined, Kronecker, at the network": at_network, "refined, diagonal, recentred": diagonal}
    for name, base in bases.items():
        began = clock(problem.device)
        with quick_products():
            fit = fit_flow(problem.target, base, generator=problem.generator(), **_ascent(problem))
        rows.append(problem.judge(name, fit.posterior, clock(problem.device) - began, **_climb(fit)))
        if base is recentred:
            rows.append(_finished(problem, fit.posterior))
    return rows


def gaussian_rows(problem: Problem) -> list[dict[str, Any]]:
    """Gaussians by variational inference, Laplace of low rank, and refinement of a few directions."""
    target, rank = problem.target, problem.settings.num_directions
    kronecker = fit_laplace(target, problem.theta, structure="kron").posterior
    diagonal = fit_laplace(target, kronecker.mean, structure="diagonal", recentre=False).posterior
    rows = _subspace_rows(problem, kronecker)
    rows.append(_laplace(problem, kronecker.mean, "low_rank", "Laplace, low rank, recentred")[1])
    for structure, base, name in (
        ("start", kronecker, "Kronecker directions"),
        ("diagonal", diagonal, "mean field"),
        ("low_rank", diagonal, "low rank"),
    ):
        began = clock(problem.device)
        with quick_products():
            options = _ascent(problem) | {"structure": structure, "rank": rank}
            fit = fit_vb(target, base, generator=problem.generator(), **options)
        rows.append(problem.judge(f"Gaussian VB, {name}", fit.posterior, clock(problem.device) - began, **_climb(fit)))
    return rows


def _finished(problem: Problem, refined: FlowPosterior) -> dict[str, Any]:
    """Draws of a refined posterior, moved by a few transitions of HMC in the coordinates that it gives."""
    settings = problem.settings
    began = clock(problem.device)
    with quick_products():
        fit = fit_hmc(
            problem.target,
            refined,
            generator=problem.generator(6),
            num_chains=settings.few,
            num_warmup=settings.finish_warmup,
            min_draws=settings.finish_draws,
            max_draws=settings.finish_draws,
            target_accept=0.65,
        )
    seconds = clock(problem.device) - began
    last = SamplePosterior(fit.posterior.draws[:, -1])
    known = {"steps": fit.num_warmup + settings.finish_draws, "num_gradients": fit.num_gradients, "seconds": seconds}
    return problem.score(FINISHED, problem.predict(last, settings.few, 0), **known)


def _laplace(
    problem: Problem, theta: Tensor, structure: str, name: str, *, recentre: bool = False
) -> tuple[Gaussian, dict[str, Any]]:
    """A Laplace posterior and its row."""
    rank = problem.settings.num_directions
    began = clock(problem.device)
    fit = fit_laplace(problem.target, theta, structure=structure, rank=rank, recentre=recentre)
    seconds = clock(problem.device) - began
    known = {"gradient_norm": fit.gradient_norm, "steps": fit.iterations, "converged": fit.converged}
    return fit.posterior, problem.judge(name, fit.posterior, seconds, **known)


def _ascent(problem: Problem) -> dict[str, Any]:
    """What all refinements and variational fits share."""
    return {"max_steps": problem.settings.max_steps, "batch_size": None}


def _climb(fit: FlowFit | VbFit) -> dict[str, Any]:
    """What a fit says about its ascent."""
    known = {"steps": len(fit.trace), "converged": fit.converged}
    return known | {"gain": fit.gain, "gain_error": fit.gain_standard_error}


def _subspace_rows(problem: Problem, base: Gaussian) -> list[dict[str, Any]]:
    """Refinement of a few directions of the recentred Kronecker posterior, by four ways of choosing them."""
    rows = []
    for name, choose in _choices(problem, base).items():
        began = clock(problem.device)
        basis = choose()
        chosen = clock(problem.device)
        layer = Subspace(basis, default_bijections(Gaussian.standard(basis[0])))
        with quick_products():
            fit = fit_flow(problem.target, base, bijections=[layer], generator=problem.generator(), **_ascent(problem))
        seconds = clock(problem.device) - chosen
        known = _climb(fit) | {"choice_seconds": chosen - began, "directions": basis.shape[1]}
        rows.append(problem.judge(f"subspace, {name}", fit.posterior, seconds, **known))
    return rows


def _choices(problem: Problem, base: Gaussian) -> dict[str, Callable[[], Tensor]]:
    """Ways to choose directions, by name."""
    target, count = problem.target, problem.settings.num_directions

    def trajectory() -> Tensor:
        every, number = problem.settings.snapshot_every, problem.settings.snapshots
        swag = fit_swag(
            target,
            base.mean,
            generator=problem.generator(3),
            learning_rate=0.05,
            num_steps=number * every,
            snapshot_every=every,
            batch_size=128,
            rank=count,
            min_std=1e-5,
        )
        return trajectory_directions(base, swag.deviations, min(count, swag.deviations.shape[1] - 1))

    return {
        "leading": lambda: leading_directions(base, count, generator=problem.generator(2)),
        "subnetwork": lambda: subnetwork_directions(base, count),
        "trajectory": trajectory,
        "misfit": lambda: misfit_directions(target, base, count, generator=problem.generator(2)),
    }
