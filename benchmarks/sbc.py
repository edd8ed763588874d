"""Simulation-based calibration: are posteriors right on average over the prior?

Parameters come from the prior and data from the parameters, so the parameters are one more draw of the true posterior:
their rank among draws of a posterior is uniform if that posterior is right (Talts et al. 2018). So is the rank of any
function of parameters and data; that of the likelihood shows a posterior that has overlooked part of the data, which
ranks of parameters do not (Modrák et al. 2023).

    python benchmarks/sbc.py [--processes 16]
"""

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from burnish import (
    Batch,
    Bernoulli,
    Categorical,
    FlowPosterior,
    Gaussian,
    GaussianNoise,
    HmcFit,
    Likelihood,
    LinearHead,
    Model,
    Target,
    fit_flow,
    fit_hmc,
    fit_laplace,
    make_generator,
)
from records import RESULTS, print_table, write_record

NUM_DRAWS = 63  # ranks from 0 to 63: they fall into 64, 32 or 16 bins of equal size
LEVEL = 0.99
METHODS = ("Laplace", "refined", "HMC")
NUM_WARMUP, NUM_TRANSITIONS = 60, 12  # of HMC; each crosses the posterior, and the start is already close to it
_NUM_BINS = 16  # of the chi-square test
_ROUNDING = 1e-12  # of a probability that is one minus another


@dataclass(frozen=True)
class Problem:
    """A linear layer on so few points that its posterior is far from Gaussian, unless the likelihood is."""

    name: str
    likelihood: Likelihood
    num_points: int
    num_features: int
    num_outputs: int
    input_std: float = 2.0
    prior_precision: float = 1.0
    prior_mean: float = 0.0

    @property
    def head(self) -> LinearHead:
        """The layer."""
        return LinearHead(self.num_features, self.num_outputs)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of what is ranked."""
        outputs, features = range(self.num_outputs), range(self.num_features)
        weights = [f"weight {row},{column}" for row in outputs for column in features]
        return (*weights, *(f"bias {row}" for row in outputs), "log likelihood", "log prior", "new point")


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("binary", Bernoulli(), 10, 3, 1),
        Problem("three-class", Categorical(), 15, 4, 3),
        Problem("regression", GaussianNoise(1.0), 8, 5, 2, input_std=1.0, prior_mean=0.5),
        Problem("few points", Categorical(), 6, 9, 3),
    )
}


@dataclass(frozen=True, eq=False)
class Simulation:
    """Parameters from the prior, data from them, and the posterior that should follow."""

    target: Target
    truth: Tensor
    """(d,)."""
    new_input: Tensor
    """(1, P): a point that is not in the data."""

    def quantities(self, theta: Tensor) -> Tensor:
        """What is ranked, for each row of parameters: (S, Q), in the order of `Problem.quantities`."""
        log_prior = self.target.log_prior(theta)
        outputs = self.target.model(theta, self.new_input)[:, 0]
        contrast = outputs[:, 0] - (outputs[:, -1] if outputs.shape[1] > 1 else 0.0)
        return torch.column_stack([theta, self.target.log_prob(theta) - log_prior, log_prior, contrast])

    def ranks(self, draws: Tensor) -> np.ndarray:
        """How many draws (L, d) lie below the truth, for every quantity (Q,)."""
        return (self.quantities(draws) < self.quantities(self.truth.unsqueeze(0))).sum(0).numpy()


def generator_of(problem: Problem, seed: int, index: int) -> torch.Generator:
    """Randomness of one simulation, which depends on nothing but its arguments."""
    sequence = np.random.SeedSequence([seed, index, *problem.name.encode()])
    return make_generator(int(sequence.generate_state(1)[0]))


def simulate(problem: Problem, *, generator: torch.Generator) -> Simulation:
    """One data set, in float64: with ten points, speed is not a matter of precision."""
    model = Model(problem.head, problem.likelihood)
    noise = torch.randn(model.head.dim, generator=generator, dtype=torch.float64)
    truth = problem.prior_mean + noise * problem.prior_precision**-0.5
    shape = (problem.num_points + 1, problem.num_features)
    inputs = problem.input_std * torch.randn(shape, generator=generator, dtype=torch.float64)
    outputs = model(truth, inputs[1:])
    if isinstance(problem.likelihood, GaussianNoise):
        noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
        targets = outputs + problem.likelihood.std * noise
    else:
        probs = problem.likelihood.probs(outputs).contiguous()  # labels are drawn in the order of memory
        targets = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    target = Target(model, Batch(inputs[1:], targets), problem.prior_precision, problem.prior_mean)
    return Simulation(target, truth, inputs[:1])


def run_hmc(
    target: Target,
    start: Gaussian | FlowPosterior,
    *,
    generator: torch.Generator,
    num_warmup: int = NUM_WARMUP,
    num_transitions: int = NUM_TRANSITIONS,
) -> HmcFit:
    """As many chains as draws are wanted: where each of them ends is one draw, independent of the others."""
    counts = {"num_warmup": num_warmup, "min_draws": num_transitions, "max_draws": num_transitions}
    return fit_hmc(target, start, generator=generator, num_chains=NUM_DRAWS, **counts)


def last_draws(fit: HmcFit) -> Tensor:
    """Where each chain ended (C, d)."""
    return fit.posterior.draws[:, -1]


def simulate_ranks(
    problem: Problem, draw: Callable[[Target, torch.Generator], Tensor], num_simulations: int, seed: int = 0
) -> np.ndarray:
    """Ranks (n, Q) of the truth among what `draw` takes for draws (L, d) of a target's posterior."""
    ranks = []
    for index in range(num_simulations):
        generator = generator_of(problem, seed, index)
        simulation = simulate(problem, generator=generator)
        ranks.append(simulation.ranks(draw(simulation.target, generator)))
    return np.stack(ranks)


def compare_methods(task: tuple[str, int, int]) -> dict[str, dict[str, Any]]:
    """Ranks of one simulation, given as (problem, seed, index), by every method, and what the method says of itself."""
    name, seed, index = task
    generator = generator_of(PROBLEMS[name], seed, index)
    simulation = simulate(PROBLEMS[name], generator=generator)
    laplace = fit_laplace(simulation.target)
    flow = fit_flow(simulation.target, laplace.posterior, generator=generator)
    hmc = run_hmc(simulation.target, flow.posterior, generator=generator)
    draws = {
        "Laplace": laplace.posterior.sample(NUM_DRAWS, generator=generator),
        "refined": flow.posterior.sample(NUM_DRAWS, generator=generator),
        "HMC": last_draws(hmc),
    }
    notes = {  # flagged: what the method itself says went wrong
        "Laplace": {"flagged": not laplace.converged, "seconds": laplace.seconds},
        "refined": {"flagged": not flow.converged, "seconds": flow.seconds},
        "HMC": {"flagged": hmc.divergences > 0, "seconds": hmc.seconds},
    }
    return {method: {"ranks": simulation.ranks(draws[method]), **notes[method]} for method in METHODS}


@functools.lru_cache
def tail_probabilities(num_simulations: int, num_draws: int) -> np.ndarray:
    """(L, n + 1): how likely a count of ranks up to k is as far out as c, or further, for uniform ranks."""
    counts = np.arange(num_simulations + 1)
    share = np.arange(1, num_draws + 1)[:, None] / (num_draws + 1)
    binomial = stats.binom(num_simulations, share)
    return np.minimum(1.0, 2.0 * np.minimum(binomial.cdf(counts), binomial.sf(counts - 1)))


def coverage(num_simulations: int, num_draws: int, threshold: float) -> float:
    """Probability that the cumulative counts of uniform ranks have tail probabilities above a threshold, all of them.

    Exact: counts of equally likely ranks are independent Poisson variables given their sum, so the cumulative counts
    are a random walk, and what leaves the band is cut off after each step.
    """
    inside = tail_probabilities(num_simulations, num_draws) > threshold
    step = stats.poisson.pmf(np.arange(num_simulations + 1), num_simulations / (num_draws + 1))
    walk = step
    for allowed in inside:
        walk = np.convolve(walk * allowed, step)[: num_simulations + 1]
    return float(walk[-1] / stats.poisson.pmf(num_simulations, num_simulations))


@functools.lru_cache
def band(num_simulations: int, num_draws: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The first counts (L,) below and above the band that holds the ECDF of uniform ranks with probability `level`.

    The simultaneous band of Säilynoja, Bürkner and Vehtari (2022): equally unlikely at every rank to be left.
    """
    low, high = -50.0, 0.0  # logarithms of a threshold that is small enough, and of one that is too large
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        enough = coverage(num_simulations, num_draws, float(np.exp(middle))) >= level
        low, high = (middle, high) if enough else (low, middle)
    inside = tail_probabilities(num_simulations, num_draws) > np.exp(low)
    return inside.argmax(1) - 1, num_simulations + 1 - inside[:, ::-1].argmax(1)


@dataclass(frozen=True, eq=False)
class Assessment:
    """How uniform the ranks of some quantities are: arrays (Q,), and one statement about all of them."""

    excursions: np.ndarray
    """Largest distance of the ECDF from that of uniform ranks, in parts of the band's: from 1 on it is outside."""
    p_values: np.ndarray
    """That the ECDF of uniform ranks strays as far somewhere; exact down to 1e-12."""
    chi_square: np.ndarray
    """P-values of the chi-square test."""

    @property
    def inside(self) -> bool:
        """Whether all quantities are inside their bands."""
        return bool(self.excursions.max() < 1.0)

    @property
    def p_value(self) -> float:
        """That of all quantities together, by Bonferroni."""
        return min(1.0, float(len(self.p_values) * self.p_values.min()))

    @property
    def chi_square_p_value(self) -> float:
        """That of all quantities together, by Bonferroni."""
        return min(1.0, float(len(self.chi_square) * self.chi_square.min()))


def assess(ranks: np.ndarray, num_draws: int = NUM_DRAWS, level: float = LEVEL) -> Assessment:
    """Compares ranks (n, Q) from 0 to L with uniform ones.

    Each quantity gets the band of level 1 - (1 - level) / Q: right ranks are inside all of them with probability `level`.
    """
    num_simulations, num_quantities = ranks.shape
    counts = np.stack([np.bincount(column, minlength=num_draws + 1) for column in ranks.T])
    below = counts.cumsum(1)[:, :-1]
    expected = num_simulations * np.arange(1, num_draws + 1) / (num_draws + 1)
    lower, upper = band(num_simulations, num_draws, 1.0 - (1.0 - level) / num_quantities)
    room = np.where(below > expected, upper - expected, lower - expected)
    tails = tail_probabilities(num_simulations, num_draws)[np.arange(num_draws), below].min(1)
    bins = counts.reshape(num_quantities, _NUM_BINS, -1).sum(2)
    return Assessment(
        excursions=((below - expected) / room).max(1),
        p_values=np.array([max(_ROUNDING, 1.0 - coverage(num_simulations, num_draws, tail)) for tail in tails]),
        chi_square=stats.chisquare(bins, axis=1).pvalue,
    )


def summarise(problem: Problem, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a record keeps of one method on one problem."""
    ranks = np.stack([outcome["ranks"] for outcome in outcomes])
    found = assess(ranks)
    by_quantity = {
        name: {
            "excursion": float(found.excursions[i]),
            "p_value": float(found.p_values[i]),
            "chi_square_p_value": float(found.chi_square[i]),
            # in one line, from rank 0 on: all that other tests of uniformity need
            "counts": " ".join(map(str, np.bincount(ranks[:, i], minlength=NUM_DRAWS + 1))),
        }
        for i, name in enumerate(problem.quantities)
    }
    return {
        "inside": found.inside,
        "excursion": float(found.excursions.max()),
        "worst": problem.quantities[int(found.excursions.argmax())],
        "p_value": found.p_value,
        "chi_square_p_value": found.chi_square_p_value,
        "flagged": sum(outcome["flagged"] for outcome in outcomes),
        "seconds": statistics.mean(outcome["seconds"] for outcome in outcomes),
        "quantities": by_quantity,
    }


@contextmanager
def parallel_map(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over processes of one thread each; in this process for one of them."""
    if processes == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        yield functools.partial(pool.map, chunksize=4)


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--simulations", type=int, default=1000, help="of each problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="the results do not depend on it")
    parser.add_argument("--out", type=Path, default=RESULTS / "sbc.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with parallel_map(options.processes) as run:
        for name in options.problems:
            began = time.perf_counter()
            outcomes = list(run(compare_methods, [(name, options.seed, i) for i in range(options.simulations)]))
            seconds = time.perf_counter() - began
            methods = {m: summarise(PROBLEMS[name], [outcome[m] for outcome in outcomes]) for m in METHODS}
            dim, count = PROBLEMS[name].head.dim, PROBLEMS[name].num_points
            print(f"\n{name}: N = {count}, d = {dim}; {options.simulations} simulations in {seconds:.0f} s")
            rows = [{key: value for key, value in row.items() if key != "quantities"} for row in methods.values()]
            print_table([{"method": method, **row} for method, row in zip(methods, rows, strict=True)])
            results[name] = {"num_points": count, "dim": dim, "seconds": seconds, "methods": methods}
    config = {key: value for key, value in vars(options).items() if key != "out"}
    config |= {"num_draws": NUM_DRAWS, "level": LEVEL, "num_warmup": NUM_WARMUP, "num_transitions": NUM_TRANSITIONS}
    write_record(options.out, config, results, torch.device("cpu"))


if __name__ == "__main__":
    main()
