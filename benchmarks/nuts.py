"""Pyro's NUTS on targets of burnish: an independent sampler to agree with, and its speed against that of `fit_hmc`.

The last layer of a LeNet on Fashion-MNIST, 10,000 points: the smallest bulk effective sample size of all parameters for
each second, warm-up included, of `fit_hmc` and of NUTS in the same coordinates, those in which Laplace is standard normal.
NUTS gets its best setting: of the potential (traced or not), of threads (two for one chain, or one for each of two chains),
of warm-up and mass matrix, all tried first and reported. Then rounds in alternating order, each for the same time, of
`fit_hmc`, of NUTS with the mass matrix that Pyro adapts unless told otherwise, and of NUTS told that there is nothing to
adapt; and NUTS on the raw parameters for at most ten minutes.

    python benchmarks/nuts.py --data DIR [--quick]
"""

import argparse
import itertools
import math
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from burnish import Bernoulli, Categorical, Gaussian, GaussianNoise, Target, fit_hmc, fit_laplace, make_generator
from burnish.convergence import ess_bulk, rhat
from fashion_mnist import load_last_layer
from records import RESULTS, print_table, write_record

Potential = Callable[[Tensor], Tensor]


class _TimeIsUp(Exception):
    """Ends a run of Pyro from within its hook."""


@dataclass(frozen=True, eq=False)
class NutsRun:
    """The draws (n, d) of one chain, and what they took."""

    draws: Tensor
    seconds: float
    """From the first step of the warm-up on; tracing the potential does not count."""
    warmup_seconds: float
    num_transitions: int
    """The warm-up's included."""
    num_gradients: int
    step_size: float
    divergences: int


def make_potential(target: Target, gaussian: Gaussian | None = None) -> Potential:
    """Minus the log posterior up to a constant, written for speed in plain torch: nothing of burnish's but the data.

    A function of theta (d,); with a Gaussian, of z (d,), where theta = mean + L z. Outputs are (C, N), contiguous along N,
    and what is linear in them is summed over the data beforehand: half the time of `cross_entropy`.
    """
    data, likelihood, head = target.data, target.model.likelihood, target.model.head
    inputs, num_weights = data.inputs.T.contiguous(), head.num_outputs * head.num_features
    weights = torch.ones_like(inputs[0]) if data.weights is None else data.weights
    prior = (target.prior_precision, target.prior_mean)
    precision, center = (torch.as_tensor(value, dtype=inputs.dtype) for value in prior)
    if isinstance(likelihood, Categorical):
        hot = torch.nn.functional.one_hot(data.targets, head.num_outputs).T.to(inputs)
    else:
        hot = data.targets.view(len(data), -1).T.to(inputs)
    sums = (weights * hot).double() @ torch.cat([inputs, torch.ones_like(inputs[:1])]).T.double()
    linear = torch.cat([sums[:, :-1].flatten(), sums[:, -1]])[: head.dim]

    def loss(outputs: Tensor) -> Tensor:
        """Of each point, less the part that is linear in the outputs."""
        if isinstance(likelihood, Categorical):
            top = outputs.detach().amax(0)
            return (outputs - top).exp().sum(0).log() + top
        return softplus(outputs[0]) if isinstance(likelihood, Bernoulli) else 0.5 * outputs.square().sum(0)

    unit = likelihood.std**-2 if isinstance(likelihood, GaussianNoise) else 1.0

    def energy(theta: Tensor) -> Tensor:
        weight = theta[:num_weights].view(head.num_outputs, head.num_features)
        outputs = torch.addmm(theta[num_weights:].unsqueeze(1), weight, inputs) if head.bias else weight @ inputs
        losses = loss(outputs) if data.weights is None else weights * loss(outputs)
        fit = unit * (losses.sum(dtype=torch.float64) - linear @ theta.double())
        return fit.to(theta.dtype) + 0.5 * (precision * (theta - center).square()).sum()

    if gaussian is None:
        return energy
    mean, factor = gaussian.mean, gaussian.scale.matmul(torch.eye(target.dim, dtype=inputs.dtype)).T.contiguous()
    return lambda z: energy(mean + factor @ z)


def trace(potential: Potential, example: Tensor) -> Potential:
    """The potential compiled as Pyro's `jit_compile` does it; the compiler watches the first calls: they are made here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled: Potential = torch.jit.trace(potential, (example,), check_trace=False)
        for _ in range(4):
            leaf = example.clone().requires_grad_()
            torch.autograd.grad(compiled(leaf), leaf)
    return compiled


def sample_nuts(
    target: Target,
    gaussian: Gaussian,
    *,
    seed: int,
    num_draws: int,
    num_warmup: int = 200,
    whiten: bool = True,
    adapt_mass: bool = True,
    target_accept: float = 0.8,
    jit: bool = False,
    max_seconds: float = float("inf"),
) -> NutsRun:
    """One chain of Pyro's NUTS from a draw of the Gaussian, in its coordinates or in the raw ones.

    It ends after `num_draws`, or with the first transition, of the warm-up or not, that ends after `max_seconds`.
    """
    from pyro.infer import MCMC, NUTS

    noise = torch.randn(target.dim, generator=make_generator(seed), dtype=gaussian.mean.dtype)
    start = noise if whiten else gaussian.from_noise(noise)
    potential = make_potential(target, gaussian if whiten else None)
    potential = trace(potential, start) if jit else potential
    count, draws, report = itertools.count(), [], {"warmup_seconds": 0.0, "num_transitions": 0, "divergences": 0}

    def counted(sites: dict[str, Tensor]) -> Tensor:
        next(count)
        return potential(sites["theta"])

    def watch(kernel: NUTS, sites: dict[str, Tensor], stage: str, index: int) -> None:
        report["seconds"], report["step_size"] = time.perf_counter() - began, float(kernel.step_size)
        report["num_transitions"] += 1
        if stage.startswith("Warmup"):
            report["warmup_seconds"] = report["seconds"]
        else:
            draws.append(sites["theta"].detach().clone())
            report["divergences"] = len(kernel.diagnostics()["divergences"])
        if report["seconds"] > max_seconds:
            raise _TimeIsUp

    kernel = NUTS(potential_fn=counted, adapt_mass_matrix=adapt_mass, target_accept_prob=target_accept)
    chain = MCMC(kernel, num_draws, num_warmup, initial_params={"theta": start}, hook_fn=watch, disable_progbar=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        began = time.perf_counter()
        with suppress(_TimeIsUp):
            chain.run()
    found = torch.stack(draws) if draws else start.new_empty(0, target.dim)
    return NutsRun(gaussian.from_noise(found) if whiten else found, num_gradients=next(count), **report)


@dataclass(frozen=True)
class Setting:
    """How NUTS is run: chains at once, each in a process of its own if there are several, and their options."""

    num_chains: int
    num_threads: int
    """Of each chain."""
    jit: bool
    num_warmup: int
    adapt_mass: bool
    target_accept: float = 0.8

    def __str__(self) -> str:
        chains = f"chains x threads {self.num_chains} x {self.num_threads}{', traced' if self.jit else ''}"
        mass = "diagonal" if self.adapt_mass else "unit"
        return f"NUTS, {chains}, warm-up {self.num_warmup}, {mass} mass, accept {self.target_accept:g}"

    def run(self, target: Target, gaussian: Gaussian, seed: int, max_seconds: float, whiten: bool = True) -> list[NutsRun]:
        """Every chain until its time is up."""
        options = {key: value for key, value in asdict(self).items() if key not in ("num_chains", "num_threads")}
        options |= {"num_draws": 10**6, "max_seconds": max_seconds, "whiten": whiten}
        if self.num_chains == 1:
            with threads(self.num_threads):
                return [sample_nuts(target, gaussian, seed=seed, **options)]
        seeds = [1000 * (number + 1) + seed for number in range(self.num_chains)]
        with make_pool(self.num_chains) as pool:  # of its own: beside one kept for later, `fit_hmc` got less of the CPU
            jobs = [pool.submit(sample_nuts, target, gaussian, seed=seed, **options) for seed in seeds]
            return [job.result() for job in jobs]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of torch within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_pool(size: int) -> ProcessPoolExecutor:
    """Processes of one thread each, started and with torch imported."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, initializer=torch.set_num_threads, initargs=(1,))
    for job in [pool.submit(time.sleep, 1.0) for _ in range(size)]:
        job.result()
    return pool


def describe(
    name: str, num_chains: int, num_draws: int, ess: float, worst: float, seconds: float, warmup_seconds: float
) -> dict[str, Any]:
    """The row of a run, from the smallest effective sample size and the largest R-hat of all parameters."""
    row = {"sampler": name, "chains": num_chains, "draws": num_draws, "ess": ess, "rhat": worst}
    row |= {"seconds": seconds, "warmup_seconds": warmup_seconds, "ess_per_second": ess / seconds}
    row["ess_per_second_after_warmup"] = ess / (seconds - warmup_seconds) if ess else float("nan")
    print(f"{name}: ESS {ess:.0f} in {seconds:.1f} s, {row['ess_per_second']:.3g} a second", flush=True)
    return row


def run_nuts(setting: Setting, *arguments: Any, whiten: bool = True) -> dict[str, Any]:
    """The row of a setting of NUTS. What chains are worth is added up, even where they do not agree yet."""
    runs = setting.run(*arguments, whiten=whiten)
    lengths = [len(run.draws) for run in runs]
    parts = [ess_bulk(run.draws.unsqueeze(0)) for run in runs if len(run.draws) >= 4]
    ess, worst = (float(sum(parts).min()) if parts else 0.0), float("nan")
    if min(lengths) >= 4:
        worst = float(rhat(torch.stack([run.draws[: min(lengths)] for run in runs])).max())
    seconds, warmup_seconds = (max(getattr(run, key) for run in runs) for key in ("seconds", "warmup_seconds"))
    name = str(setting) if whiten else f"{setting}, raw parameters"
    row = describe(name, len(runs), sum(lengths), ess, worst, seconds, warmup_seconds)
    row |= {key: sum(getattr(run, f"num_{key}") for run in runs) for key in ("transitions", "gradients")}
    row |= {"step_size": statistics.mean(run.step_size for run in runs), "stopped_by": "max_seconds"}
    return row | {"divergences": sum(run.divergences for run in runs)}


def run_hmc(target: Target, gaussian: Gaussian, seed: int, max_seconds: float | None) -> dict[str, Any]:
    """The row of `fit_hmc`, for a given time or until its rule holds; its seconds include all its diagnostics."""
    began = time.perf_counter()
    budget = {} if max_seconds is None else {"max_seconds": max_seconds, "max_draws": 10**6, "min_ess": 1e12}
    fit = fit_hmc(target, gaussian, generator=make_generator(seed), **budget)
    seconds, (chains, draws, _) = time.perf_counter() - began, fit.posterior.draws.shape
    name = "fit_hmc" if budget else "fit_hmc, by its rule"
    row = describe(name, chains, chains * draws, fit.ess_bulk, fit.rhat, seconds, fit.warmup_seconds)
    row |= {"transitions": chains * (fit.num_warmup + draws), "gradients": chains * fit.num_gradients}
    return row | {"step_size": fit.step_size, "stopped_by": fit.stopped_by, "divergences": fit.divergences}


def time_gradients(target: Target, gaussian: Gaussian, num_threads: int) -> list[dict[str, Any]]:
    """Milliseconds of the potential with its gradient, traced or not, by threads: the best of several rounds."""
    noise = torch.randn(target.dim, generator=make_generator(0), dtype=gaussian.mean.dtype)
    plain = make_potential(target, gaussian)
    kinds = {False: plain, True: trace(plain, noise)}
    cases = list(itertools.product(kinds, range(1, num_threads + 1)))
    best = dict.fromkeys(cases, float("inf"))
    for _, (jit, count) in itertools.product(range(8), cases):
        with threads(count):
            began = time.perf_counter()
            for _ in range(40):
                leaf = noise.clone().requires_grad_()
                torch.autograd.grad(kinds[jit](leaf), leaf)
            best[jit, count] = min(best[jit, count], (time.perf_counter() - began) / 40)
    return [{"traced": jit, "threads": count, "milliseconds": 1e3 * best[jit, count]} for jit, count in cases]


def try_settings(
    target: Target, gaussian: Gaussian, gradients: list[dict[str, Any]], options: argparse.Namespace
) -> tuple[list[Setting], list[dict[str, Any]]]:
    """The best setting with a mass matrix that adapts and the best without, with the rows of all that were tried.

    Every warm-up is tried with one chain, the best of them and all without a mass matrix with several.
    """
    fastest = min(gradients, key=lambda row: row["milliseconds"])
    single = min((row for row in gradients if row["threads"] == 1), key=lambda row: row["milliseconds"])
    variants = [(count, True, 0.8) for count in options.warmups]
    variants += [(min(options.warmups), False, 0.8), (min(options.warmups), False, 0.65)]
    ranked: list[tuple[float, Setting]] = []
    rows = []

    def attempt(setting: Setting) -> None:
        rows.append(run_nuts(setting, target, gaussian, options.seed, options.seconds))
        ranked.append((rows[-1]["ess_per_second"], setting))
        ranked.sort(key=lambda entry: -entry[0])

    for variant in variants:
        attempt(Setting(1, fastest["threads"], fastest["traced"], *variant))
    best_adapted = next(setting for _, setting in ranked if setting.adapt_mass)
    for setting in [best_adapted, *(setting for _, setting in ranked if not setting.adapt_mass)]:
        attempt(replace(setting, num_chains=2, num_threads=1, jit=single["traced"]))
    return [next(setting for _, setting in ranked if setting.adapt_mass is mass) for mass in (True, False)], rows


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--precision", type=float, default=40.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of alternating runs, each with another seed")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    parser.add_argument("--raw-seconds", type=float, default=600.0, help="of NUTS on the raw parameters")
    parser.add_argument("--warmups", type=int, nargs="+", default=[100, 200, 500])
    parser.add_argument("--epochs", type=int, default=100, help="of the LeNet, trained once and cached")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="1000 points, one thread, short runs, no record without --out")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.quick:
        options.points, options.threads, options.rounds, options.warmups = 1000, 1, 2, [100]
        options.seconds, options.raw_seconds = 10.0, 20.0
    device = torch.device("cpu")
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # Pyro's, of the torch it runs on
    layer = load_last_layer(options.data, device, num_epochs=options.epochs)
    target = Target(layer.model, layer.train.subset(slice(0, options.points)), options.precision)
    results = compare(target, options)
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    if options.out or not options.quick:
        write_record(options.out or RESULTS / "nuts.json", config, results, device)


def compare(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """All measurements: gradients, settings of NUTS, alternating rounds, the raw parameters."""
    laplace = fit_laplace(target)
    gaussian = laplace.posterior
    gradients = time_gradients(target, gaussian, options.threads)
    print_table(gradients)
    settings, tried = try_settings(target, gaussian, gradients, options)
    rounds: list[dict[str, Any]] = []
    for number in range(options.rounds):
        seed, contenders = options.seed + 1 + number, [None, *settings]
        for setting in contenders if number % 2 == 0 else reversed(contenders):
            if setting is None:
                row = run_hmc(target, gaussian, seed, options.seconds)
            else:
                row = run_nuts(setting, target, gaussian, seed, options.seconds)
            rounds.append({"round": number, **row})
    by_rule = run_hmc(target, gaussian, options.seed, None)
    usual = replace(settings[0], num_warmup=min(options.warmups), adapt_mass=True, target_accept=0.8)
    raw = run_nuts(usual, target, gaussian, options.seed, options.raw_seconds, whiten=False)
    raw["converged"] = raw["rhat"] < 1.01 and raw["ess"] >= 400.0
    names = {"adapted": str(settings[0]), "unit": str(settings[1])}
    ratios = {mass: compare_speeds(name, rounds) for mass, name in names.items()} | compare_raw(rounds, raw)
    print(f"\nN = {len(target.data)}, d = {target.dim}; Laplace, which both start from, took {laplace.seconds:.2f} s")
    for rows in (tried, rounds, [by_rule], [raw]):
        print_table(rows)
        print()
    for mass, name in names.items():
        print(f"fit_hmc over {name}, by round: {', '.join(f'{ratio:.2f}' for ratio in ratios[mass])}")
    print(f"fit_hmc over NUTS on the raw parameters: {'>= ' * ratios['over_raw_is_bound']}{ratios['over_raw']:.3g}")
    return {
        "laplace_seconds": laplace.seconds,
        "gradients": gradients,
        "settings": tried,
        "rounds": rounds,
        "by_rule": by_rule,
        "raw": raw,
        "ratios": ratios,
    }


def compare_speeds(name: str, rounds: list[dict[str, Any]]) -> list[float]:
    """Effective draws a second of `fit_hmc` over those of a setting of NUTS, round by round."""
    speeds = {(row["round"], row["sampler"]): row["ess_per_second"] for row in rounds}
    numbers = sorted({row["round"] for row in rounds})
    return [speeds[number, "fit_hmc"] / speeds[number, name] if speeds[number, name] else math.inf for number in numbers]


def compare_raw(rounds: list[dict[str, Any]], raw: dict[str, Any]) -> dict[str, Any]:
    """The same over NUTS on raw parameters, by the median of all rounds.

    There it may not have converged: its estimate is then too high, and the ratio a lower bound. Where its time was up before
    it had draws, each transition of its warm-up counts as one.
    """
    usual = statistics.median(row["ess_per_second"] for row in rounds if row["sampler"] == "fit_hmc")
    speed = raw["ess_per_second"] or raw["transitions"] / raw["seconds"]
    return {"over_raw": usual / speed, "over_raw_is_bound": not raw["converged"]}


if __name__ == "__main__":
    main()
