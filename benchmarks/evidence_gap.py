"""How much of the gap between recentred Laplace's ELBO and the evidence a flow closes, where it matters most: little data.

Several subsets of 600 Fashion-MNIST points under a weak prior. The evidence is estimated by annealed importance sampling
from the refined posterior to the target, twice, the second time with four times as many temperatures: the estimates'
agreement says whether it was long enough.

    python benchmarks/evidence_gap.py --data DIR
"""

import argparse
import itertools
import math
from pathlib import Path

import torch
from torch import Tensor

from burnish import FlowPosterior, Target, diagnostics, fit_flow, fit_laplace, make_generator
from fashion_mnist import load_last_layer
from records import RESULTS, print_table, write_record


class Annealed:
    """Densities between a flow's base, standard normal, and the target, in the flow's latent coordinates."""

    def __init__(self, target: Target, flow: FlowPosterior) -> None:
        self.target, self.flow = target, flow

    def evaluate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The log ratio of target to base (S,), and its gradient (S, d)."""
        leaf = z.detach().requires_grad_()
        theta, logdet = self.flow.from_noise(leaf)
        value, grad = self.target.log_prob_and_grad(theta.detach())
        (pulled,) = torch.autograd.grad((theta * grad).sum() + logdet.sum(), leaf)
        return value + logdet.detach() - self.flow.base.log_prob_of_noise(z), pulled + z

    def transition(
        self, z: Tensor, ratio: Tensor, grad: Tensor, beta: float, step: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """One Metropolis-corrected HMC trajectory of five leapfrog steps at inverse temperature beta."""
        momentum = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
        start = -0.5 * (z * z).sum(1, dtype=torch.float64) + beta * ratio - 0.5 * (momentum**2).sum(1, dtype=torch.float64)
        new, new_ratio, new_grad = z, ratio, grad
        momentum = momentum + 0.5 * step * (beta * new_grad - new)
        for number in range(5):
            new = new + step * momentum
            new_ratio, new_grad = self.evaluate(new)
            momentum = momentum + (step if number < 4 else 0.5 * step) * (beta * new_grad - new)
        end = (
            -0.5 * (new * new).sum(1, dtype=torch.float64)
            + beta * new_ratio
            - 0.5 * (momentum**2).sum(1, dtype=torch.float64)
        )
        chance = (end - start).clamp_max(0.0).exp().nan_to_num(0.0)
        accept = torch.rand(len(z), generator=generator, dtype=torch.float64, device=z.device) < chance
        column = accept.unsqueeze(1)
        moved = torch.where(column, new, z), torch.where(accept, new_ratio, ratio), torch.where(column, new_grad, grad)
        return *moved, float(chance.mean())


def log_evidence(
    target: Target, flow: FlowPosterior, num_temperatures: int, num_chains: int, seed: int
) -> tuple[float, float]:
    """Annealed importance sampling: the estimate, and its standard error from the weights."""
    generator = make_generator(seed, flow.base.mean.device)
    path = Annealed(target, flow)
    z = torch.randn(num_chains, target.dim, generator=generator, dtype=flow.base.mean.dtype, device=flow.base.mean.device)
    state = (z, *path.evaluate(z))
    step = 0.1
    for _ in range(40):  # the step size, on chains that are thrown away
        *state, chance = path.transition(*state, 1.0, step, generator)
        step *= 1.1 if chance > 0.8 else 0.9
    z = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    state = (z, *path.evaluate(z))
    betas = torch.linspace(0.0, 1.0, num_temperatures + 1).tolist()
    log_weights = torch.zeros(num_chains, dtype=torch.float64, device=z.device)
    for previous, beta in itertools.pairwise(betas):
        log_weights += (beta - previous) * state[1]
        *state, _ = path.transition(*state, beta, step, generator)
    weights = (log_weights - log_weights.max()).exp()
    estimate = float(log_weights.logsumexp(0)) - math.log(num_chains)
    return estimate, float(weights.std() / weights.mean()) / math.sqrt(num_chains)


def main() -> None:
    """Runs the benchmark, prints its table and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--subsets", type=int, default=5)
    parser.add_argument("--points", type=int, default=600)
    parser.add_argument("--precision", type=float, default=5.0)
    parser.add_argument("--temperatures", type=int, default=100)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=100, help="of the LeNet, trained once and cached")
    parser.add_argument("--out", type=Path, default=RESULTS / "evidence-gap.json")
    options = parser.parse_args()
    device = torch.device("cpu")
    layer = load_last_layer(options.data, device, num_epochs=options.epochs)
    rows = []
    for subset in range(options.subsets):
        index = torch.randperm(len(layer.train), generator=make_generator(subset))[: options.points]
        target = Target(layer.model, layer.train.subset(index), options.precision)
        laplace = fit_laplace(target)
        flow = fit_flow(target, laplace.posterior, generator=make_generator(subset))
        before, after = (
            diagnostics.elbo(target, posterior, num_samples=2000, generator=make_generator(subset + 100))
            for posterior in (laplace.posterior, flow.posterior)
        )
        short, _ = log_evidence(target, flow.posterior, options.temperatures, options.chains, subset)
        evidence, error = log_evidence(target, flow.posterior, 4 * options.temperatures, options.chains, subset + 1000)
        rows.append(
            {
                "subset": subset,
                "elbo_laplace": before.value,
                "elbo_refined": after.value,
                "standard_error": math.hypot(before.standard_error, after.standard_error),
                "log_evidence": evidence,
                "log_evidence_short": short,
                "evidence_error": error,
                "closed": (after.value - before.value) / (evidence - before.value),
                "seconds": laplace.seconds + flow.seconds,
            }
        )
        print(f"subset {subset}: {rows[-1]['closed']:.1%} of the gap", flush=True)
    print_table(rows)
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out, config, rows, device)


if __name__ == "__main__":
    main()
