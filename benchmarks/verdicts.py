"""Whether the verdict is right: on posteriors that are spoilt in known ways, and on right ones.

The truth is the mean total variation distance of many-sample predictions from those of a long HMC run, or from exact ones
in a conjugate regression. A posterior is wrong if that is above max(0.01, 2 x the distance of 20 exact draws), right if it
is below half of that, and grey in between. Real features: Fashion-MNIST through LeNets, in 10, 850 and 2,570 dimensions.

    python benchmarks/verdicts.py --data DIR --device cuda --processes 3
"""

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from burnish import (
    Affine,
    Batch,
    Diagonal,
    FlowPosterior,
    Gaussian,
    GaussianNoise,
    Posterior,
    SamplePosterior,
    Target,
    fit_flow,
    fit_hmc,
    fit_laplace,
    judge,
    make_generator,
    predict,
)
from fashion_mnist import read_set, trained_lenet
from records import RESULTS, print_table, write_record

NUM_TEST = 1000
NUM_SETS = 50  # of 20 draws
FEW = 20
NUM_SAMPLES = 1000  # of a posterior that is samples


@dataclass(frozen=True)
class Case:
    """A target, its exact predictions, and what 20 exact draws are away from them."""

    name: str
    target: Target
    inputs: Tensor
    exact: Tensor
    few: float


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of networks, subsets and spoiling")
    parser.add_argument("--cases", nargs="*", default=None, help="names, or all")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    jobs = [(options.data, options.device, seed, options.cases) for seed in options.seeds]
    if options.processes == 1:
        parts = list(itertools.starmap(run_seed, jobs))
    else:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            parts = pool.starmap(run_seed, jobs)
    rows = [row for part in parts for row in part]
    print_table(rows)
    summary = summarise(rows)
    print_table(summary)
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    results = {"summary": summary, "posteriors": rows}
    write_record(options.out or RESULTS / "verdicts.json", config, results, torch.device(options.device))


def run_seed(folder: str | None, device_name: str, seed: int, names: list[str] | None) -> list[dict[str, Any]]:
    """One row for every posterior of every target."""
    device = torch.device(device_name)
    rows = []
    for case, posteriors in all_cases(folder, device, seed, names):
        for variant, kind, posterior in posteriors:
            generator = make_generator(7000 + seed, device)
            began = time.perf_counter()
            verdict = judge(case.target, posterior, inputs=case.inputs, generator=generator)
            seconds = time.perf_counter() - began
            true = distance(case, posterior)
            limit = max(0.01, 2.0 * case.few)
            state = "wrong" if true > limit else "right" if true < limit / 2 else "grey"
            known = {"case": case.name, "dim": case.target.dim, "seed": seed, "variant": variant, "kind": kind}
            numbers = {"true": true, "few": case.few, "state": state, "trusted": verdict.trusted}
            drift = verdict.drift
            seen = {"distance": drift.distance, "few seen": drift.few_draws, "acceptance": drift.accept_rate}
            rows.append({**known, **numbers, **seen, "khat": verdict.khat, "seconds": seconds})
            print(rows[-1], flush=True)
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often wrong ones were not trusted and right ones were, with exact 95 % binomial intervals."""
    summary = []
    for dim in (None, *sorted({row["dim"] for row in rows})):
        for state, wanted in (("wrong", False), ("right", True), ("grey", True)):
            chosen = [row for row in rows if row["state"] == state and dim in (None, row["dim"])]
            count, good = len(chosen), sum(row["trusted"] is wanted for row in chosen)
            low = float(beta.ppf(0.025, good, count - good + 1)) if good else 0.0
            high = float(beta.ppf(0.975, good + 1, count - good)) if good < count else 1.0
            share = good / count if count else float("nan")
            known = {"dim": "all" if dim is None else dim, "state": state, "count": count}
            wanted_word = "trusted" if wanted else "not trusted"
            summary.append({**known, "found": wanted_word, "good": good, "share": share, "low": low, "high": high})
    return summary


Variants = Iterator[tuple[str, str, Posterior]]


def all_cases(
    folder: str | None, device: torch.device, seed: int, names: list[str] | None
) -> Iterator[tuple[Case, Variants]]:
    """Targets from real features, each with its posteriors."""
    train, test = read_set(folder, "train"), read_set(folder, "t10k")
    network = trained_lenet(train, device, seed=seed).eval()
    order = torch.randperm(60_000, generator=make_generator(seed))
    images, labels = train[0][order[:6000]].to(device), train[1][order[:6000]].to(device)
    some = torch.randperm(10_000, generator=make_generator(seed))[:NUM_TEST]
    with torch.no_grad():
        last, early = ((network[:k](images), network[:k](test[0][some].to(device))) for k in (11, 7))
    low = torch.linalg.svd(last[0] - last[0].mean(0), full_matrices=False).Vh[:4].T
    projected = tuple(3.0 * (part - last[0].mean(0)) @ low / ((last[0] - last[0].mean(0)) @ low).std(0) for part in last)
    early = tuple(part / early[0].std() for part in early)
    two = ((labels == 0) | (labels == 6)).nonzero().squeeze(1)[:80]  # shirts and T-shirts, which are hard to tell apart
    classified = {
        "d = 10, N = 80": (projected, two, (labels == 6).long(), 1.0),
        "d = 850, N = 600": (last, torch.arange(600), labels, 5.0),
        "d = 850, N = 5000": (last, torch.arange(5000), labels, 40.0),
        "d = 2570, N = 2000": (early, torch.arange(2000), labels, 20.0),
    }
    for name, ((inputs, test_inputs), index, targets, precision) in classified.items():
        if names is None or name in names:
            index = index.to(device)
            target = Target.last_layer(inputs[index], targets[index], prior_precision=precision)
            yield classification_case(name, target, test_inputs, seed)
    outputs = torch.nn.functional.one_hot(labels, 10).float()
    random = torch.randn(early[0].shape[1], 999, generator=make_generator(seed)).to(device) / early[0].shape[1] ** 0.5
    wide = tuple((part @ random).relu() for part in early)
    pooled = torch.nn.functional.adaptive_avg_pool2d(images, 10).flatten(1)
    regressed = {
        "d = 10": (projected, outputs[:, :2]),
        "d = 850": (last, outputs),
        "d = 2570": (early, outputs),
        "d = 100000": (wide, pooled / pooled.std()),  # coarse images from random features of the network's
    }
    for name, ((inputs, test_inputs), targets) in regressed.items():
        name = f"{name}, regression"
        if names is None or name in names:
            data = Batch(inputs[:1000], targets[:1000])
            target = Target.last_layer(data.inputs, data.targets, prior_precision=5.0, likelihood=GaussianNoise(0.3))
            yield regression_case(name, target, test_inputs, seed)


def classification_case(name: str, target: Target, inputs: Tensor, seed: int) -> tuple[Case, Variants]:
    """HMC is the truth; another run of it, flows, Gaussians and what is made of them are judged."""
    device = inputs.device
    generator = make_generator(100 + seed, device)
    laplace = fit_laplace(target).posterior
    flow = fit_flow(target, laplace, generator=generator).posterior
    long = fit_hmc(target, flow, generator=generator, min_draws=300).posterior
    exact = predict_probs(target, long, inputs)
    draws, total = long.draws, 0.0
    for _ in range(NUM_SETS):
        chains = torch.randperm(len(draws), generator=generator, device=device)[:FEW]
        times = torch.randint(draws.shape[1], (FEW,), generator=generator, device=device)
        probs = predict_probs(target, SamplePosterior(draws[chains, times]), inputs)
        total += float(0.5 * (probs - exact).abs().sum(-1).mean())
    case = Case(name, target, inputs, exact, total / NUM_SETS)

    def posteriors() -> Variants:
        run = fit_hmc(target, flow, generator=make_generator(200 + seed, device)).posterior.samples
        samples = SamplePosterior(run[:: len(run) // NUM_SAMPLES][:NUM_SAMPLES])
        yield "HMC draws", "samples", samples
        yield "recentred Laplace", "density", laplace
        yield "flow", "density", flow
        yield from spoilt(samples, run, target, seed)
        yield from spoilt(flow, run, target, seed)
        for factor in (10.0, 0.1):
            other = target.with_prior(target.prior_precision * factor)
            base = fit_laplace(other).posterior
            refined = fit_flow(other, base, generator=make_generator(300 + seed, device)).posterior
            yield f"prior precision x {factor:g}", "density", refined

    return case, posteriors()


def regression_case(name: str, target: Target, inputs: Tensor, seed: int) -> tuple[Case, Variants]:
    """The Gaussian is exact, and so are its predictions: normal distributions."""
    posterior = fit_laplace(target, structure="kron" if target.dim > 20_000 else "full").posterior  # both are exact
    generator = make_generator(100 + seed, inputs.device)
    exact = predict_normals(target, inputs)
    sets = [SamplePosterior(posterior.sample(FEW, generator=generator)) for _ in range(NUM_SETS)]
    few = sum(float(normal_distance(target, part, inputs, exact)) for part in sets) / NUM_SETS
    case = Case(name, target, inputs, exact, few)

    def posteriors() -> Variants:
        yield "exact Gaussian", "density", posterior
        yield from spoilt(posterior, posterior.sample(num_draws(target), generator=generator), target, seed)

    return case, posteriors()


def num_draws(target: Target) -> int:
    """Of an exact Gaussian or a density, as many as memory allows."""
    return min(4000, 10**8 // target.dim)


def spoilt(posterior: Posterior, draws: Tensor, target: Target, seed: int) -> Variants:
    """Too narrow, too wide, off along random and leading directions and in every parameter, without biases."""
    kind = "samples" if isinstance(posterior, SamplePosterior) else "density"
    mean, ones = draws.double().mean(0), torch.ones_like(draws[0])
    for factor in (0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 1.1, 1.3, 2.0):
        yield f"width x {factor:g}", kind, moved(posterior, ((1.0 - factor) * mean).to(ones), factor * ones)
    generator = make_generator(400 + seed, draws.device)
    centred = draws.double() - mean
    leading = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    random = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=torch.float64)
    if kind == "samples":
        yield "a single point", kind, SamplePosterior(posterior.samples[:1].repeat(NUM_SAMPLES, 1))
    for name, direction in (("random", random / random.norm()), ("leading", leading)):
        std = (centred @ direction).std()
        for size in (0.5, 1.0):
            yield f"mean off by {size:g} ({name})", kind, moved(posterior, (size * std * direction).to(ones), ones)
    for size in (0.5, 1.0):
        offset = size * centred.std(0) * random.sign()
        yield f"mean off by {size:g} (every parameter)", kind, moved(posterior, offset.to(ones), ones)
    if not isinstance(target.model.likelihood, GaussianNoise):
        factors = ones.clone()
        factors[-target.model.head.num_outputs :] = 0.0 if kind == "samples" else 1e-3
        yield "biases dropped", kind, moved(posterior, torch.zeros_like(ones), factors)


def moved(posterior: Posterior, offset: Tensor, factors: Tensor) -> Posterior:
    """The posterior of `offset + factors * theta`."""
    if isinstance(posterior, SamplePosterior):
        return SamplePosterior(offset + factors * posterior.samples)
    if isinstance(posterior, Gaussian):
        posterior = FlowPosterior.whitened(posterior, ())
    assert isinstance(posterior, FlowPosterior)
    return FlowPosterior(posterior.base, (*posterior.bijections, Affine(offset, Diagonal(factors))))


def distance(case: Case, posterior: Posterior) -> float:
    """How far the posterior's many-sample predictions are from the exact ones."""
    if isinstance(case.target.model.likelihood, GaussianNoise):
        return normal_distance(case.target, posterior, case.inputs, case.exact)
    probs = predict_probs(case.target, posterior, case.inputs)
    return float(0.5 * (probs - case.exact).abs().sum(-1).mean())


def predict_probs(target: Target, posterior: Posterior, inputs: Tensor, count: int = 8000) -> Tensor:
    """Predictive probabilities from many draws."""
    count = min(count, len(posterior.samples)) if isinstance(posterior, SamplePosterior) else count
    generator = make_generator(0, inputs.device)
    return predict(target.model, posterior, inputs, num_samples=count, generator=generator, keep_samples=False).probs


def predict_normals(target: Target, inputs: Tensor) -> Tensor:
    """Means and standard deviations (2, M, C) of exact predictions, by the normal equations, which all outputs share."""
    head, variance = target.model.head, target.model.likelihood.std**2
    train, test = (head.augment(part).double() for part in (target.data.inputs, inputs))
    gram = train.T @ train / variance
    gram.diagonal().add_(target.prior_precision)
    factor = torch.linalg.cholesky(gram)
    mean = test @ torch.cholesky_solve(train.T @ target.data.targets.double(), factor) / variance
    spread = torch.linalg.solve_triangular(factor, test.T, upper=False).square().sum(0) + variance
    return torch.stack([mean, spread.sqrt().unsqueeze(1).expand_as(mean)])


def normal_distance(target: Target, posterior: Posterior, inputs: Tensor, exact: Tensor) -> float:
    """Total variation distance to exact normal predictions, by a sum over a grid."""
    likelihood = target.model.likelihood
    assert isinstance(likelihood, GaussianNoise)
    mean, std = exact
    grid = torch.linspace(-6.0, 6.0, 241, device=inputs.device, dtype=torch.float64)
    points = mean.unsqueeze(-1) + std.unsqueeze(-1) * grid
    generator = make_generator(1, inputs.device)
    samples = isinstance(posterior, SamplePosterior)
    theta = posterior.samples if samples else posterior.sample(num_draws(target), generator=generator)
    density = torch.zeros_like(points)
    for part in theta.split(20):
        outputs = target.model(part, inputs).double().unsqueeze(-1)
        density += torch.distributions.Normal(outputs, likelihood.std).log_prob(points).exp().sum(0)
    density /= len(theta)
    true = torch.distributions.Normal(mean.unsqueeze(-1), std.unsqueeze(-1)).log_prob(points).exp()
    step = std * float(grid[1] - grid[0])
    return float((0.5 * (density - true).abs().sum(-1) * step).mean())


if __name__ == "__main__":
    main()
