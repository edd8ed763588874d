"""HMC as the judge, on the last layer of LeNets on Fashion-MNIST.

With all data, for each prior precision: two independent runs to convergence, their agreement, and that of recentred Laplace
and refined posteriors with them, by MMD against chain-wise re-splits of the two runs. With 600 points: the predictive
distance of every rung of the ladder to HMC, with many draws and with 20.

    python benchmarks/hmc.py --data DIR --device cuda
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish import HmcFit, Posterior, SamplePosterior, Target, fit_flow, fit_hmc, fit_laplace, make_generator, predict
from burnish.diagnostics import median_bandwidth, mmd, resplit_range
from burnish.ladder import RUNGS, Ladder
from fashion_mnist import LastLayer, load_last_layer
from records import RESULTS, measured, print_table, write_record

DRAWS_PER_CHAIN = 16  # of those compared by MMD: far fewer than effective ones
NUM_SPLITS = 2000
NUM_SETS = 100  # of 20 draws
FEW = 20


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", type=float, nargs="*", default=[510.0, 40.0, 5.0])
    parser.add_argument("--few-precisions", type=float, nargs="*", default=[5.0, 0.5])
    parser.add_argument("--num-few", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the networks")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    results: dict[str, list[dict[str, Any]]] = {"all data": [], "few points": []}
    for seed in options.seeds:
        layer = load_last_layer(options.data, device, seed=seed)
        for precision in options.precisions:
            results["all data"] += compare_weights(Target(layer.model, layer.train, precision), seed)
            print_table(results["all data"][-5:])
        index = torch.randperm(len(layer.train), generator=make_generator(seed))[: options.num_few].to(device)
        for precision in options.few_precisions:
            target = Target(layer.model, layer.train.subset(index), precision)
            results["few points"] += compare_predictions(target, layer, seed)
            print_table(results["few points"][-5:])
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out or RESULTS / f"hmc-{device.type}.json", config, results, device)


def compare_weights(target: Target, seed: int) -> list[dict[str, Any]]:
    """Two runs of HMC and two approximations: MMD to the first run, and the range of re-splits of both runs."""
    device = target.data.inputs.device
    known = {"seed": seed, "points": len(target.data), "precision": target.prior_precision}
    with measured(device) as laplace_cost:
        laplace = fit_laplace(target).posterior
    with measured(device) as flow_cost:
        refined = fit_flow(target, laplace, generator=make_generator(seed, device)).posterior
    fits, rows = [], []
    for number in (1, 2):
        with measured(device) as cost:
            fits.append(fit_hmc(target, laplace, generator=make_generator(10 * seed + number, device)))
        rows.append({**known, "posterior": f"HMC, run {number}", "seconds": cost["seconds"], **describe(fits[-1])})
    first, second = (thinned(fit) for fit in fits)
    bandwidth = median_bandwidth(first.flatten(0, 1))
    splits = make_generator(seed, device)
    low, high = resplit_range(torch.cat([first, second]), bandwidth=bandwidth, num_splits=NUM_SPLITS, generator=splits)
    generator = make_generator(1000 + seed, device)
    count = first.shape[0] * first.shape[1]
    others = {
        "recentred Laplace": (laplace.sample(count, generator=generator), laplace_cost),
        "refined": (refined.sample(count, generator=generator), flow_cost),
    }
    rows[1] |= {"mmd": mmd(second.flatten(0, 1), first.flatten(0, 1), bandwidth=bandwidth)}
    rows[0] |= {"mmd": 0.0}
    for name, (samples, cost) in others.items():
        value = mmd(samples, first.flatten(0, 1), bandwidth=bandwidth)
        rows.append({**known, "posterior": name, "seconds": cost["seconds"], **describe(None), "mmd": value})
    return [{**row, "low": low, "high": high, "inside": low <= row["mmd"] <= high} for row in rows]


def describe(fit: HmcFit | None) -> dict[str, Any]:
    """What a run says about itself."""
    names = ("rhat", "ess_bulk", "ess_tail", "divergences", "accept_rate", "num_gradients", "converged", "coordinates")
    own = {name: None if fit is None else getattr(fit, name) for name in names}
    return own | {"draws": None if fit is None else len(fit.posterior.samples)}


def thinned(fit: HmcFit) -> Tensor:
    """Draws (chains, n, d) so far apart that there are fewer of them than effective ones."""
    draws = fit.posterior.draws
    kept = draws[:, :: draws.shape[1] // DRAWS_PER_CHAIN][:, :DRAWS_PER_CHAIN]
    assert fit.ess_bulk >= kept.shape[0] * kept.shape[1], "too few effective draws for this comparison"
    return kept.contiguous()


def compare_predictions(target: Target, layer: LastLayer, seed: int) -> list[dict[str, Any]]:
    """Predictive distance to a long HMC run, of HMC's own draws and of every rung that the ladder climbed."""
    device, inputs = target.data.inputs.device, layer.test.inputs
    generator = make_generator(2000 + seed, device)
    laplace = fit_laplace(target).posterior
    flow = fit_flow(target, laplace, generator=generator).posterior
    with measured(device) as cost:
        fit = fit_hmc(target, flow, generator=generator, min_draws=300)
    reference = average(target, fit.posterior, inputs)
    known = {"seed": seed, "points": len(target.data), "precision": target.prior_precision}
    few = few_distance(target, fit.posterior.draws, inputs, reference, generator)
    judges = {"posterior": "HMC, long", "seconds": cost["seconds"], "few": few, "ratio": 1.0}
    rows = [{**known, **judges, "many": 0.0, "trusted": None, **describe(fit)}]
    posteriors: list[tuple[str, Posterior, float, bool | None, HmcFit | None]] = []
    for name in RUNGS:
        ladder = Ladder(name)
        fitted, rungs = ladder.climb(target, laplace.mean, layer.train.inputs[:2000], generator=generator)
        posteriors.append((name, fitted.posterior, rungs[0].seconds, rungs[0].verdict.trusted, fitted.run))
    for name, posterior, seconds, trusted, run in posteriors:
        draws = posterior.draws if isinstance(posterior, SamplePosterior) else None
        if draws is None:
            draws = posterior.sample(NUM_SETS * FEW, generator=generator).unsqueeze(1)
        own_few = few_distance(target, draws, inputs, reference, generator)
        many = distance(average(target, posterior, inputs), reference)
        row = {"posterior": name, "seconds": seconds, "few": own_few, "ratio": own_few / few, "many": many}
        rows.append({**known, **row, "trusted": trusted, **describe(run)})
    return rows


def average(target: Target, posterior: Posterior, inputs: Tensor, num_samples: int = 8000) -> Tensor:
    """Predictive probabilities from many draws."""
    if isinstance(posterior, SamplePosterior):
        num_samples = min(num_samples, len(posterior.samples))
    generator = make_generator(0, inputs.device)
    return predict(target.model, posterior, inputs, num_samples=num_samples, generator=generator, keep_samples=False).probs


def distance(one: Tensor, other: Tensor) -> float:
    """Mean total variation distance."""
    return float(0.5 * (one - other).abs().sum(-1).mean())


def few_distance(target: Target, draws: Tensor, inputs: Tensor, reference: Tensor, generator: torch.Generator) -> float:
    """The mean over sets of 20 draws from distinct chains (chains, n, d)."""
    total = 0.0
    for _ in range(NUM_SETS):
        chains = torch.randperm(len(draws), generator=generator, device=draws.device)[:FEW]
        times = torch.randint(draws.shape[1], (FEW,), generator=generator, device=draws.device)
        chosen = SamplePosterior(draws[chains, times])
        total += distance(average(target, chosen, inputs), reference)
    return total / NUM_SETS


if __name__ == "__main__":
    main()
