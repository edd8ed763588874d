"""What the second-order control variate buys: the cost of a step against N, and the noise of a batch with and without it.

python benchmarks/control_variate.py --data DIR
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from burnish import Gaussian, Target, fit_flow, fit_laplace, make_generator
from burnish.inference.estimate import choose_estimate, expand_at
from fashion_mnist import load_last_layer
from records import RESULTS, print_table, write_record


def seconds_per_step(target: Target, base: Gaussian, seed: int) -> float:
    """The cost of one step of 512 points: a long run less a short one, so that preparation does not count."""
    seconds = []
    for steps in (50, 250):
        began = time.perf_counter()
        options = {"batch_size": 512, "max_steps": steps, "stop_early": False, "num_evaluation_samples": 2}
        fit_flow(target, base, generator=make_generator(seed), **options)
        seconds.append(time.perf_counter() - began)
    return (seconds[1] - seconds[0]) / 200


def noise(target: Target, base: Gaussian, num_draws: int = 400) -> dict[str, dict[str, float]]:
    """Variance between batches of 512 of the log posterior and of its gradient, at draws of the base."""
    theta = base.sample(8, generator=make_generator(1))
    expansion = expand_at(target, base)
    plain, even = target.subsampled(512), target.subsampled(512, expansion)
    generator = make_generator(2)
    drawn, _ = choose_estimate(target, base, 512, True, 8, generator)
    estimates = {
        "plain batch": lambda: plain.log_prob_and_grad(theta, generator=generator),
        "control variate, points drawn evenly": lambda: even.log_prob_and_grad(theta, generator=generator),
        "control variate, drawn by remainder": lambda: drawn(theta),
    }
    rows = {}
    for name, estimate in estimates.items():
        draws = [estimate() for _ in range(num_draws)]
        values, grads = (torch.stack([draw[part] for draw in draws]) for part in (0, 1))
        rows[name] = {"value": _variance(values), "gradient": _variance(grads)}
    reference = rows["plain batch"]
    return {name: row | {f"{key}_ratio": row[key] / reference[key] for key in row} for name, row in rows.items()}


def _variance(draws: Tensor) -> float:
    return float(draws.double().var(0).mean())


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--precision", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=100, help="of the LeNet, trained once and cached")
    parser.add_argument("--out", type=Path, default=RESULTS / "control-variate.json")
    options = parser.parse_args()
    device = torch.device("cpu")
    layer = load_last_layer(options.data, device, num_epochs=options.epochs)
    problems = {}
    for count in (6000, 60000):
        target = Target(layer.model, layer.train.subset(slice(0, count)), options.precision)
        problems[count] = (target, fit_laplace(target, layer.theta).posterior)
    rounds: dict[int, list[float]] = {count: [] for count in problems}
    for number in range(options.rounds + 1):
        for count, (target, base) in problems.items():
            seconds = seconds_per_step(target, base, number)
            if number:  # the first round warms up
                rounds[count].append(seconds)
    steps = {f"N = {count}": {"milliseconds": 1e3 * statistics.median(values)} for count, values in rounds.items()}
    ratio = statistics.median(large / small for small, large in zip(rounds[6000], rounds[60000], strict=True))
    noises = noise(*problems[60000])
    print_table([{"step of 512 points": name, **row} for name, row in steps.items()])
    print(f"cost at 60000 over cost at 6000 points, median over rounds: {ratio:.2f}\n")
    print_table([{f"variance, precision {options.precision:g}": name, **row} for name, row in noises.items()])
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out, config, {"steps": steps, "cost_ratio": ratio, "noise": noises}, device)


if __name__ == "__main__":
    main()
