"""All layers of a small network on Fashion-MNIST: the paper's protocol, recentring, refinement, subspaces, and HMC.

A 784-50-10 ReLU network (39,760 parameters) under a prior of precision 30, as in the paper's all-layer table. Validation
points (for temperature scaling, and the prior of the paper's base) and test points are the paper's, 2,000 and 8,000 of
the test set. Every part of every seed runs in a process of its own and leaves what it found under `--parts-in`; the last
call, which finds all of them, writes the record. HMC keeps its state in a checkpoint there: with its part deleted and
more `--hmc-seconds`, it goes on. Parts may come from several machines: the record has the origins of all.

    python benchmarks/all_layers.py --data DIR --device cuda
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from all_layers_hmc import hmc_row, pool_runs
from all_layers_problem import FEW, MANY, PRECISION, Problem, quick_products
from burnish import (
    FlowFit,
    FlowPosterior,
    Gaussian,
    SamplePosterior,
    Subspace,
    VbFit,
    default_bijections,
    fit_flow,
    fit_hmc,
    fit_laplace,
    fit_swag,
    fit_temperature,
    fit_vb,
    leading_directions,
    misfit_directions,
    paper_protocol,
    subnetwork_directions,
    trajectory_directions,
)
from burnish.inference.curvature import diagonal_hessian
from burnish.scales import Diagonal
from fashion_mnist import CACHE, read_set, trained_mlp
from records import RESULTS, measured, origin, print_table, write_record

NUM_DIRECTIONS = 20
PAPER_LAYERS = (1, 5, 10, 30)
SHOWN = ("seed", "posterior", "few_nll", "nll", "accuracy", "ece", "elbo", "distance", "closed", "steps", "seconds")
PAPER_BASES = {"paper": "paper", "own": "paper, target's prior"}  # parts, and what their rows are called
PARTS = ("flows", "gaussians", "hmc", *(f"{base}-{count}" for base in PAPER_BASES for count in PAPER_LAYERS))


def main() -> None:
    """Runs the parts that are missing, prints the table and writes the record once all are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    parser.add_argument("--parts-in", type=Path, default=CACHE / "all-layers")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--num-chains", type=int, default=8)
    parser.add_argument("--hmc-seconds", type=float, default=420.0)
    parser.add_argument("--max-steps", type=int, default=2000, help="of refinements and variational fits")
    parser.add_argument("--num-points", type=int, default=60_000, help="of the training set, to try the benchmark out")
    parser.add_argument("--out", type=Path, default=RESULTS / "all-layer.json")
    options = parser.parse_args()
    options.parts_in.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:  # before processes train the same network side by side
        network = trained_mlp(read_set(options.data, "train"), torch.device(options.device), seed=seed)
    tasks = [(part, seed) for part in options.parts for seed in options.seeds if not place(options, part, seed).exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for task, future in [(task, pool.submit(run, options, *task)) for task in tasks]:
            print(f"{task}: {future.result():.0f} s", flush=True)
    missing = [f"{part}-{seed}" for part in PARTS for seed in options.seeds if not place(options, part, seed).exists()]
    if missing:
        print(f"no record yet, missing: {', '.join(missing)}")
        return
    results = gather(options)
    print_table([{key: row[key] for key in SHOWN} for row in results["rows"]])
    left_out = ("out", "data", "device", "parts", "parts_in", "workers")
    config = {key: value for key, value in vars(options).items() if key not in left_out}
    config |= {"precision": PRECISION, "few": FEW, "many": MANY}
    config["num_parameters"] = sum(parameter.numel() for parameter in network.parameters())
    write_record(options.out, config, results, torch.device(options.device))


def shared(options: argparse.Namespace) -> dict[str, int]:
    """What parts of one record must have in common."""
    return {"num_points": options.num_points, "max_steps": options.max_steps, "num_chains": options.num_chains}


def read_part(options: argparse.Namespace, part: str, seed: int) -> dict[str, Any]:
    """What a part of a seed left; refuses that of a run with other options."""
    found: dict[str, Any] = torch.load(place(options, part, seed), weights_only=True)
    if found["options"] != shared(options):
        raise SystemExit(f"{place(options, part, seed)} was made with {found['options']}, not {shared(options)}: delete it.")
    return found


def place(options: argparse.Namespace, part: str, seed: int) -> Path:
    """The file that a part of a seed leaves."""
    folder: Path = options.parts_in
    return folder / f"{part}-{seed}.pt"


def run(options: argparse.Namespace, part: str, seed: int) -> float:
    """One part of one seed: rows, each with its predictive probabilities, into its file."""
    began = time.perf_counter()
    kind, _, number = part.partition("-")
    if kind in PAPER_BASES:  # one sample and 128 points a step: a core is as fast as a GPU
        torch.set_num_threads(1)
    problem = Problem(options, seed, torch.device("cpu" if kind in PAPER_BASES else options.device))
    with torch.no_grad():
        if kind in PAPER_BASES:
            rows = paper_rows(problem, kind, int(number))
        elif kind == "hmc":
            rows = [hmc_row(problem, options)]
        else:
            rows = {"flows": flow_rows, "gaussians": gaussian_rows}[kind](problem, options)
    torch.save({"rows": rows, "options": shared(options), "origin": origin(problem.device)}, place(options, part, seed))
    return time.perf_counter() - began


def paper_rows(problem: Problem, kind: str, num_layers: int) -> list[dict[str, Any]]:
    """The paper's base and its refinement: radial layers on raw weights from a diagonal Laplace posterior at the network."""
    with measured(problem.device) as base_cost:
        base, precision = paper_base(problem, chosen=kind == "paper")
    rows, name = [], PAPER_BASES[kind]
    if num_layers == PAPER_LAYERS[0]:
        rows.append(problem.judge(f"{name}: Laplace", base, base_cost["seconds"], base_precision=precision))
    options = paper_protocol(problem.target, base, num_layers, generator=problem.generator(1))
    with measured(problem.device) as cost:
        fit = fit_flow(problem.target, base, generator=problem.generator(), **options)
    known = {"steps": len(fit.trace), "base_precision": precision}
    return [*rows, problem.judge(f"{name}: {num_layers} radial", fit.posterior, cost["seconds"], **known)]


def paper_base(problem: Problem, *, chosen: bool) -> tuple[Gaussian, float]:
    """A diagonal Laplace posterior at the network's weights, under the target's prior or a prior of its own.

    The paper says that one is chosen on validation data, not how: here by the linearised network's outputs and the probit
    approximation of their softmax, over a grid of 100 from 1e-4 to 1e4, which is what Laplace software does by default.
    """
    curvature = diagonal_hessian(problem.target, problem.theta).float()
    if not chosen:
        return Gaussian(problem.theta, Diagonal((curvature + PRECISION).rsqrt())), PRECISION
    grid = torch.logspace(-4, 4, 100, device=problem.device)
    variances = 1.0 / (curvature.unsqueeze(1) + grid)  # (d, 100)
    spread = torch.cat([squared_jacobian(problem, x) @ variances for x in problem.validation.inputs.split(50)])
    outputs = problem.model(problem.theta, problem.validation.inputs)
    scaled = outputs.unsqueeze(-1) / (1.0 + torch.pi / 8.0 * spread.view(*outputs.shape, -1)).sqrt()
    picked = scaled.log_softmax(1)[torch.arange(len(outputs)), problem.validation.targets]  # (N, 100)
    precision = float(grid[int(picked.mean(0).argmax())])
    return Gaussian(problem.theta, Diagonal((curvature + precision).rsqrt())), precision


def squared_jacobian(problem: Problem, inputs: Tensor) -> Tensor:
    """(n C, d) of squared derivatives of the outputs by the parameters."""
    jacobian = torch.func.vmap(torch.func.jacrev(lambda theta, x: problem.model(theta, x.unsqueeze(0))[0]), (None, 0))
    found: Tensor = jacobian(problem.theta, inputs)
    return found.square().flatten(0, 1)


def flow_rows(problem: Problem, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The network, its rival, and refinements of Laplace posteriors, at the network's weights and recentred."""
    model, theta, inputs = problem.model, problem.theta, problem.test.inputs
    outputs = model(theta, inputs)
    temperature = fit_temperature(model, theta, problem.validation).temperature
    rows = [
        problem.score("network", outputs.softmax(-1)),
        problem.score("temperature scaling", (outputs / temperature).softmax(-1), temperature=temperature),
    ]
    at_network, row = laplace(problem, theta, "kron", "Laplace, Kronecker, at the network")
    rows.append(row)
    recentred, row = laplace(problem, theta, "kron", "Laplace, Kronecker, recentred", recentre=True)
    rows.append(row)
    mode = recentred.mean
    rows.append(problem.score("recentred network", model(mode, inputs).softmax(-1), seconds=row["seconds"]))
    diagonal, row = laplace(problem, mode, "diagonal", "Laplace, diagonal, recentred")
    rows.append(row)
    bases = {"Kronecker, recentred": recentred, "Kronecker, at the network": at_network, "diagonal, recentred": diagonal}
    for name, base in bases.items():
        with measured(problem.device) as cost, quick_products():
            fit = fit_flow(problem.target, base, generator=problem.generator(), **ascent(options))
        rows.append(problem.judge(f"refined, {name}", fit.posterior, cost["seconds"], **climb(fit)))
        if base is recentred:
            rows.append(finished(problem, fit.posterior))
    return rows


def finished(problem: Problem, refined: FlowPosterior) -> dict[str, Any]:
    """Draws of a refined posterior, moved by a few transitions of HMC in the coordinates that it gives."""
    with measured(problem.device) as cost, quick_products():
        fit = fit_hmc(
            problem.target,
            refined,
            generator=problem.generator(6),
            num_chains=FEW,
            num_warmup=30,
            min_draws=4,
            max_draws=4,
            target_accept=0.65,
        )
    last = SamplePosterior(fit.posterior.draws[:, -1])
    known = {"steps": fit.num_warmup + 4, "num_gradients": fit.num_gradients, "seconds": cost["seconds"]}
    return problem.score("refined, Kronecker, then HMC", problem.predict(last, FEW, 0), **known)


def laplace(
    problem: Problem, theta: Tensor, structure: str, name: str, *, recentre: bool = False
) -> tuple[Gaussian, dict[str, Any]]:
    """A Laplace posterior and its row."""
    with measured(problem.device) as cost:
        fit = fit_laplace(problem.target, theta, structure=structure, rank=NUM_DIRECTIONS, recentre=recentre)
    known = {"gradient_norm": fit.gradient_norm, "steps": fit.iterations, "converged": fit.converged}
    return fit.posterior, problem.judge(name, fit.posterior, cost["seconds"], **known)


def ascent(options: argparse.Namespace) -> dict[str, Any]:
    """What all refinements and variational fits share."""
    return {"max_steps": options.max_steps, "batch_size": None}


def climb(fit: FlowFit | VbFit) -> dict[str, Any]:
    """What a fit says about its ascent."""
    known = {"steps": len(fit.trace), "converged": fit.converged}
    return known | {"gain": fit.gain, "gain_error": fit.gain_standard_error}


def gaussian_rows(problem: Problem, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Gaussians by variational inference, Laplace of low rank, and refinement of a few directions."""
    target = problem.target
    kronecker = fit_laplace(target, problem.theta, structure="kron").posterior
    diagonal = fit_laplace(target, kronecker.mean, structure="diagonal", recentre=False).posterior
    rows = subspace_rows(problem, kronecker, options)
    rows.append(laplace(problem, kronecker.mean, "low_rank", "Laplace, low rank, recentred")[1])
    for structure, base, name in (
        ("start", kronecker, "Kronecker directions"),
        ("diagonal", diagonal, "mean field"),
        ("low_rank", diagonal, "low rank"),
    ):
        with measured(problem.device) as cost, quick_products():
            fit = fit_vb(
                target, base, structure=structure, rank=NUM_DIRECTIONS, generator=problem.generator(), **ascent(options)
            )
        rows.append(problem.judge(f"Gaussian VB, {name}", fit.posterior, cost["seconds"], **climb(fit)))
    return rows


def subspace_rows(problem: Problem, base: Gaussian, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Refinement of a few directions of the recentred Kronecker posterior, by four ways of choosing them."""
    target = problem.target
    swag_options = {
        "learning_rate": 0.05,
        "num_steps": 20 * 469,
        "batch_size": 128,
        "generator": problem.generator(3),
        "min_std": 1e-5,
    }

    def trajectory() -> Tensor:
        deviations = fit_swag(target, base.mean, snapshot_every=469, rank=NUM_DIRECTIONS, **swag_options).deviations
        return trajectory_directions(base, deviations, min(NUM_DIRECTIONS, deviations.shape[1] - 1))

    choices = {
        "leading": lambda: leading_directions(base, NUM_DIRECTIONS, generator=problem.generator(2)),
        "subnetwork": lambda: subnetwork_directions(base, NUM_DIRECTIONS),
        "trajectory": trajectory,
        "misfit": lambda: misfit_directions(target, base, NUM_DIRECTIONS, generator=problem.generator(2)),
    }
    rows = []
    for name, choose in choices.items():
        with measured(problem.device) as choice:
            basis = choose()
        layer = Subspace(basis, default_bijections(Gaussian.standard(basis[0])))
        with measured(problem.device) as cost, quick_products():
            fit = fit_flow(target, base, bijections=[layer], generator=problem.generator(), **ascent(options))
        known = climb(fit) | {"choice_seconds": choice["seconds"], "directions": basis.shape[1]}
        rows.append(problem.judge(f"subspace, {name}", fit.posterior, cost["seconds"], **known))
    return rows


def gather(options: argparse.Namespace) -> dict[str, Any]:
    """The judge, and all rows with their predictive distance to it and the share of the gap to it that each closes."""
    found = {seed: [read_part(options, part, seed) for part in PARTS] for seed in options.seeds}
    parts = {seed: [row for part in own for row in part["rows"]] for seed, own in found.items()}
    origins: list[dict[str, Any]] = []
    for part in (part for own in found.values() for part in own):
        origins += [] if part["origin"] in origins else [part["origin"]]
    runs = [row for own in parts.values() for row in own if row["posterior"] == "HMC"]
    probs, judge = pool_runs(runs, Problem(options, options.seeds[0], torch.device("cpu")).test.targets)
    rows: list[dict[str, Any]] = []
    for own in parts.values():
        names = [f"{base}: {PAPER_LAYERS[-1]} radial" for base in PAPER_BASES.values()]
        paper = min(row["few_nll"] for row in own if row["posterior"] in names)
        for row in own:
            distance = float(0.5 * (row["probs"].float() - probs).abs().sum(-1).mean())
            closed = (paper - row["few_nll"]) / (paper - judge["nll"])
            numbers = {key: value for key, value in row.items() if not isinstance(value, Tensor)}
            rows.append(numbers | {"distance": distance, "closed": closed})
    rows.sort(key=lambda row: (row["seed"], -row["few_nll"]))
    return {"rows": rows, "judge": judge, "origins": origins}


if __name__ == "__main__":
    main()
