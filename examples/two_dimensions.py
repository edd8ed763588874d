"""A posterior one can look at: logistic regression with two weights, against its exact density on a grid.

Prints the divergence KL(posterior || truth) of Laplace's Gaussian and of the refined posterior, for one data set with a
picture and for several more without.

    python examples/two_dimensions.py [--out PICTURE]
"""

import argparse
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from burnish import Bernoulli, FlowPosterior, Gaussian, Target, fit_flow, fit_laplace, make_generator


@dataclass(frozen=True)
class Grid:
    """Points of a fine grid around a posterior, and the target's log density there, normalised."""

    sides: tuple[Tensor, Tensor]
    points: Tensor
    log_cell: float
    log_target: Tensor

    def divergence(self, posterior: Gaussian | FlowPosterior) -> float:
        """KL(posterior || target), by summing over the grid."""
        log_density = posterior.log_prob(self.points)
        mass = (log_density + self.log_cell).exp()
        return float((mass * (log_density - self.log_target)).sum())


def toy_target(seed: int, num_points: int = 50) -> Target:
    """Two overlapping clouds of points and a weak prior: a posterior with a long tail."""
    labels = torch.arange(num_points) % 2
    noise = torch.randn(num_points, 2, generator=make_generator(seed), dtype=torch.float64)
    inputs = noise + (2 * labels.unsqueeze(1) - 1) * torch.tensor([1.0, 0.5], dtype=torch.float64)
    return Target.last_layer(inputs, labels, prior_precision=0.1, likelihood=Bernoulli(), bias=False)


@torch.no_grad()
def make_grid(target: Target, around: Gaussian, size: int = 500) -> Grid:
    """From eight standard deviations below the mean to twelve above: tails point away from zero."""
    std = around.scale.variance().sqrt()
    low, high = around.mean - 8 * std, around.mean + 12 * std
    sides = tuple(torch.linspace(float(a), float(b), size, dtype=torch.float64) for a, b in zip(low, high, strict=True))
    points = torch.cartesian_prod(*sides)
    log_cell = sum(math.log(float(side[1] - side[0])) for side in sides)
    log_prob = torch.cat([target.log_prob(chunk) for chunk in points.split(50_000)])
    return Grid(sides, points, log_cell, log_prob - log_prob.logsumexp(0) - log_cell)


def compare(seed: int) -> tuple[Target, Grid, Gaussian, FlowPosterior]:
    """Laplace and its refinement for one data set, with the grid to judge them by."""
    target = toy_target(seed)
    laplace = fit_laplace(target).posterior
    refined = fit_flow(target, laplace, generator=make_generator(seed)).posterior
    return target, make_grid(target, laplace), laplace, refined


def draw(grid: Grid, laplace: Gaussian, refined: FlowPosterior, path: Path) -> None:
    """Contours of the truth, with those of each posterior over them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shape = tuple(len(side) for side in grid.sides)
    truth = grid.log_target.exp().reshape(shape).T
    levels = [float(truth.max()) * fraction for fraction in (0.01, 0.1, 0.3, 0.6, 0.9)]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained")
    for axis, (name, posterior) in zip(axes, {"Laplace": laplace, "refined": refined}.items(), strict=True):
        density = posterior.log_prob(grid.points).exp().reshape(shape).T
        axis.contourf(*grid.sides, truth, levels=[*levels, float(truth.max())], cmap="Greys", alpha=0.6)
        axis.contour(*grid.sides, density, levels=levels, colors="tab:red", linewidths=1.2)
        axis.set_title(f"{name}: KL to the truth {grid.divergence(posterior):.4f}")
        axis.set_xlabel("weight 1")
    axes[0].set_ylabel("weight 2")
    inside = grid.points[grid.log_target > grid.log_target.max() - 5.5]
    axes[0].set_xlim(float(inside[:, 0].min()), float(inside[:, 0].max()))
    axes[0].set_ylim(float(inside[:, 1].min()), float(inside[:, 1].max()))
    figure.suptitle("Grey: the exact posterior on a grid. Red: the approximation, at the same densities.", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".cache/two_dimensions.png"), help="where the picture goes")
    parser.add_argument("--datasets", type=int, default=10, help="how many data sets the spread is over")
    options = parser.parse_args()
    ratios = []
    print("data set  KL of Laplace  KL refined  ratio")
    for seed in range(1, options.datasets + 1):
        _, grid, laplace, refined = compare(seed)
        before, after = grid.divergence(laplace), grid.divergence(refined)
        ratios.append(after / before)
        print(f"{seed:8d}  {before:13.4f}  {after:10.4f}  {after / before:5.3f}")
        if seed == 1:
            draw(grid, laplace, refined, options.out)
    print(f"median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"picture: {options.out.resolve()}")


if __name__ == "__main__":
    main()
