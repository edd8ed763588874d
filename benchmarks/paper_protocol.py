"""The paper's training loop written twice outside the package: in lean torch, and in Pyro as its authors ran it.

Both serve as clocks and as independent checks: same target, same base, same flow, same steps. Nothing of burnish is used
beyond the data and the base Gaussian.
"""

import functools
import itertools
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus


@dataclass(frozen=True)
class Clock:
    """Seconds for `num_steps` steps, and the ELBO terms seen along the way."""

    seconds: float
    num_steps: int
    losses: list[float]

    def extrapolate(self, num_steps: int) -> float:
        """Seconds that `num_steps` steps would take."""
        return self.seconds / self.num_steps * num_steps


def run_lean(
    inputs: Tensor,
    targets: Tensor,
    mean: Tensor,
    factor: Tensor,
    prior_precision: float,
    *,
    num_layers: int,
    num_steps: int,
    total_steps: int,
    seed: int,
) -> Clock:
    """One sample, batches of 128, Adam 1e-3 under a cosine over `total_steps`, radial layers on raw weights."""
    generator = torch.Generator(mean.device).manual_seed(seed)
    dim, count = len(mean), len(inputs)
    width = inputs.shape[1]
    outputs = dim // (width + 1)
    bound = 1 / math.sqrt(dim)
    parameters = [
        torch.empty(size, device=mean.device).uniform_(-bound, bound, generator=generator).requires_grad_()
        for _ in range(num_layers)
        for size in ((dim,), (), ())
    ]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
    losses = []
    order = torch.randperm(count, generator=generator, device=mean.device)
    began = time.perf_counter()
    for step in range(num_steps):
        start = step * 128 % count
        index = order[start : start + 128]
        theta = mean + factor @ torch.randn(dim, generator=generator, device=mean.device)
        logdet = torch.zeros((), device=mean.device)
        for layer in range(num_layers):
            center, raw_alpha, raw_gamma = parameters[3 * layer : 3 * layer + 3]
            alpha = softplus(raw_alpha)
            beta = softplus(raw_gamma) - alpha
            offset = theta - center
            radius = torch.linalg.vector_norm(offset)
            ratio = beta / (alpha + radius)
            theta = theta + ratio * offset
            logdet = logdet + (dim - 1) * torch.log1p(ratio) + torch.log1p(ratio - ratio * radius / (alpha + radius))
        weight, bias = theta[: outputs * width].view(outputs, width), theta[outputs * width :]
        logits = torch.addmm(bias, inputs[index], weight.T)
        nll = cross_entropy(logits, targets[index], reduction="sum") * (count / len(index))
        loss = nll + 0.5 * prior_precision * theta.square().sum() - logdet
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return Clock(time.perf_counter() - began, num_steps, losses)


def run_pyro(
    inputs: Tensor,
    targets: Tensor,
    mean: Tensor,
    factor: Tensor,
    prior_precision: float,
    *,
    num_layers: int,
    num_steps: int,
    total_steps: int,
    seed: int,
) -> Clock:
    """The same in Pyro with the parts the authors used: an `AutoNormalizingFlow` guide, `SVI`, a shuffling `DataLoader`."""
    import pyro
    from pyro import distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormalizingFlow
    from torch.utils.data import DataLoader, TensorDataset

    dim, count, width = len(mean), len(inputs), inputs.shape[1]
    outputs = dim // (width + 1)

    class Guide(AutoNormalizingFlow):  # type: ignore[misc]
        def get_base_dist(self) -> dist.MultivariateNormal:
            return base

    def model(features: Tensor, labels: Tensor) -> None:
        theta = pyro.sample("theta", dist.Normal(torch.zeros(dim), prior_precision**-0.5).to_event(1))
        weight, bias = theta[: outputs * width].view(outputs, width), theta[outputs * width :]
        with pyro.plate("data", size=count, subsample=labels):
            pyro.sample("label", dist.Categorical(logits=features @ weight.T + bias), obs=labels)

    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    base = dist.MultivariateNormal(mean, covariance_matrix=factor @ factor.T)
    guide = Guide(model, functools.partial(dist.transforms.iterated, num_layers, dist.transforms.radial))
    schedule = pyro.optim.CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 1e-3}, "T_max": total_steps}
    )
    svi = SVI(model, guide, schedule, Trace_ELBO())
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=128, shuffle=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    svi.evaluate_loss(*next(batches))  # builds the guide, which is not part of a step
    losses: list[float] = []
    began = time.perf_counter()
    for features, labels in itertools.islice(batches, num_steps):
        losses.append(svi.step(features, labels))
        schedule.step()
    return Clock(time.perf_counter() - began, num_steps, losses)
