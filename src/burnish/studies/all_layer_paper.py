"""The paper's protocol on all layers: radial layers on raw weights from a diagonal Laplace posterior at the network."""

from typing import Any

import torch
from torch import Tensor

from burnish.inference.curvature import diagonal_hessian
from burnish.inference.flow import fit_flow, paper_protocol
from burnish.posteriors import Gaussian
from burnish.scales import Diagonal
from burnish.studies.all_layer_problem import Problem
from burnish.studies.all_layer_settings import base_name, flow_name
from burnish.studies.cost_clocks import clock

__all__ = ["paper_base", "paper_rows"]

_CHUNK = 50  # points whose Jacobians are there at a time
_GRID = (-4, 4, 100)  # of precisions: powers of ten, and their number


def paper_rows(problem: Problem, kind: str, num_layers: int) -> list[dict[str, Any]]:
    """The refinement of so many layers, and beside the shortest one its base; the kind is one of `BASES`."""
    began = clock(problem.device)
    base, precision = paper_base(problem, chosen=kind == "paper")
    seconds = clock(problem.device) - began
    rows = []
    if num_layers == problem.settings.lengths[0]:
        rows.append(problem.judge(base_name(kind), base, seconds, base_precision=precision))
    options = paper_protocol(problem.target, base, num_layers, generator=problem.generator(1))
    began = clock(problem.device)
    fit = fit_flow(problem.target, base, generator=problem.generator(), **options)
    seconds = clock(problem.device) - began
    known = {"steps": len(fit.trace), "base_precision": precision}
    return [*rows, problem.judge(flow_name(kind, num_layers), fit.posterior, seconds, **known)]


def paper_base(problem: Problem, *, chosen: bool) -> tuple[Gaussian, float]:
    """A diagonal Laplace posterior at the network's weights, under the target's prior or a prior of its own.

    The paper says that one is chosen on validation data, not how: here by the linearised network's outputs and the probit
    approximation of their softmax, over a grid of 100 from 1e-4 to 1e4, which is what Laplace software does by default.
    """
    curvature = diagonal_hessian(problem.target, problem.theta).float()
    if not chosen:
        precision = problem.settings.precision
        return Gaussian(problem.theta, Diagonal((curvature + precision).rsqrt())), precision
    grid = torch.logspace(*_GRID, device=problem.device)
    variances = 1.0 / (curvature.unsqueeze(1) + grid)  # (d, 100)
    spread = torch.cat([_squared_jacobian(problem, x) @ variances for x in torch.split(problem.validation.inputs, _CHUNK)])
    outputs = problem.model(problem.theta, problem.validation.inputs)
    scaled = outputs.unsqueeze(-1) / (1.0 + torch.pi / 8.0 * spread.view(*outputs.shape, -1)).sqrt()
    picked = scaled.log_softmax(1)[torch.arange(len(outputs)), problem.validation.targets]  # (N, 100)
    precision = float(grid[int(picked.mean(0).argmax())])
    return Gaussian(problem.theta, Diagonal((curvature + precision).rsqrt())), precision


def _squared_jacobian(problem: Problem, inputs: Tensor) -> Tensor:
    """(n C, d) of squared derivatives of the outputs by the parameters."""
    jacobian = torch.func.vmap(torch.func.jacrev(lambda theta, x: problem.model(theta, x.unsqueeze(0))[0]), (None, 0))
    found: Tensor = jacobian(problem.theta, inputs)
    return found.square().flatten(0, 1)
