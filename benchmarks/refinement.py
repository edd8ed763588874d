"""Refinement of a last layer on Fashion-MNIST: burnish against the paper's protocol, in one run.

For each prior precision: the seconds of everything from cached features (mode, Laplace, flow), interleaved with the
paper's five-layer protocol in lean torch and in Pyro, both extrapolated from a few hundred of their steps; and the ELBO,
k-hat and peak memory of every posterior, the paper's trained in full.

    python benchmarks/refinement.py --data DIR [--device cuda]
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import torch

from burnish import Gaussian, Target, diagnostics, fit_flow, fit_laplace, make_generator, paper_protocol, tune_prior
from burnish.inference.curvature import full_hessian
from burnish.scales import Dense
from fashion_mnist import LastLayer, load_last_layer
from paper_protocol import Clock, run_lean, run_pyro
from records import RESULTS, measured, print_table, write_record


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", type=float, nargs="+", default=[510.0, 40.0])
    parser.add_argument("--epochs", type=int, default=100, help="of the LeNet, trained once and cached")
    parser.add_argument("--rounds", type=int, default=5, help="of interleaved timing")
    parser.add_argument("--steps", type=int, default=400, help="of the paper's protocol in each round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-pyro", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    layer = load_last_layer(options.data, device, seed=options.seed, num_epochs=options.epochs)
    results = {}
    for precision in options.precisions:
        target = Target(layer.model, layer.train, precision)
        timing = time_rounds(target, layer, options)
        posteriors = compare_posteriors(target, layer, options.seed)
        print(f"\nprior precision {precision:g}, N = {len(target.data)}, d = {target.dim}")
        print_table([{"what": name, **row} for name, row in timing.items()])
        print()
        print_table(posteriors)
        results[f"{precision:g}"] = {"timing": timing, "posteriors": posteriors}
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out or RESULTS / f"refinement-{device.type}.json", config, results, device)


def time_rounds(target: Target, layer: LastLayer, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Median seconds over interleaved rounds, and the median of the ratio to burnish within each round."""
    inputs, targets = target.data.inputs, target.data.targets
    base = paper_base(target, layer)
    total_steps = 20 * math.ceil(len(target.data) / 128)
    settings: dict[str, Any] = {"num_layers": 5, "num_steps": options.steps, "total_steps": total_steps}
    columns: dict[str, list[float]] = {}
    for number in range(options.rounds + 1):
        generator = make_generator(number, inputs.device)
        with measured(inputs.device) as laplace_report:
            laplace = fit_laplace(target, layer.theta)
        with measured(inputs.device) as flow_report:
            fit_flow(target, laplace.posterior, generator=generator)
        assert isinstance(base.scale, Dense)
        arguments = (inputs, targets, base.mean, base.scale.factor, float(target.prior_precision))
        clocks: dict[str, Clock] = {"paper, 5 layers, lean torch": run_lean(*arguments, seed=number, **settings)}
        if not options.no_pyro and inputs.device.type == "cpu":
            clocks["paper, 5 layers, Pyro"] = run_pyro(*arguments, seed=number, **settings)
        if number == 0:  # the first round warms up
            continue
        columns.setdefault("recentre + Laplace", []).append(laplace_report["seconds"])
        columns.setdefault("recentre + Laplace + flow", []).append(laplace_report["seconds"] + flow_report["seconds"])
        for name, clock in clocks.items():
            columns.setdefault(name, []).append(clock.extrapolate(total_steps))
    ours = columns["recentre + Laplace + flow"]
    return {
        name: {
            "seconds": statistics.median(values),
            "times_ours": statistics.median(value / own for value, own in zip(values, ours, strict=True)),
            "lowest_ratio": min(value / own for value, own in zip(values, ours, strict=True)),
        }
        for name, values in columns.items()
    }


def compare_posteriors(target: Target, layer: LastLayer, seed: int) -> list[dict[str, Any]]:
    """ELBO, k-hat, seconds and memory of every posterior under the same target."""
    device = target.data.inputs.device
    rows = []

    def add(name: str, posterior: Any, report: dict[str, float]) -> None:
        theta, log_density = posterior.sample_and_log_prob(1000, generator=make_generator(seed + 1, device))
        log_prob = torch.cat([target.log_prob_and_grad(chunk)[0] for chunk in theta.split(50)])
        ratios = (log_prob - log_density).cpu()
        importance = diagnostics.importance(ratios)
        rows.append(
            {
                "posterior": name,
                "elbo": float(ratios.mean()),
                "elbo_standard_error": float(ratios.std() / len(ratios) ** 0.5),
                "khat": importance.khat,
                "seconds": report["seconds"],
                "peak_mib": report["peak_mib"],
            }
        )

    with measured(device) as report:
        base = paper_base(target, layer)
    add("Laplace at the network's weights, its own evidence (the paper's base)", base, report)
    for num_layers in (1, 5, 10):
        generator = make_generator(seed, device)
        with measured(device) as report:
            fit = fit_flow(
                target, base, generator=generator, **paper_protocol(target, base, num_layers, generator=generator)
            )
        add(f"paper's protocol, {num_layers} radial", fit.posterior, report)
    with measured(device) as report:
        laplace = fit_laplace(target, layer.theta)
    add("recentred Laplace", laplace.posterior, report)
    with measured(device) as flow_report:
        flow = fit_flow(target, laplace.posterior, generator=make_generator(seed, device))
    total = {key: max(report[key], flow_report[key]) for key in report} | {
        "seconds": report["seconds"] + flow_report["seconds"]
    }
    add(f"recentred Laplace + flow ({len(flow.trace)} steps of {flow.batch_size or 'all'} points)", flow.posterior, total)
    with measured(device) as report:
        tuned = tune_prior(target)
    laplace_report = fit_laplace(tuned, laplace.posterior.mean)
    rows.append(
        {
            "posterior": f"evidence: precision {float(tuned.prior_precision):.3g} (another target)",
            "elbo": laplace_report.log_evidence,
            "elbo_standard_error": 0.0,
            "khat": float("nan"),
            "seconds": report["seconds"],
            "peak_mib": report["peak_mib"],
        }
    )
    return rows


def paper_base(target: Target, layer: LastLayer) -> Gaussian:
    """A Gaussian at the network's weights whose prior precision maximises the evidence there."""
    hessian = full_hessian(target, layer.theta)
    eigenvalues = torch.linalg.eigvalsh(hessian).clamp_min(0.0)
    grid = torch.logspace(-4, 6, 500, dtype=torch.float64, device=hessian.device)
    penalty = grid * layer.theta.double().square().sum() + (eigenvalues + grid.unsqueeze(1)).log().sum(1)
    own_precision = float(grid[int((target.dim * grid.log() - penalty).argmax())])
    return fit_laplace(target.with_prior(own_precision), layer.theta, recentre=False).posterior


if __name__ == "__main__":
    main()
