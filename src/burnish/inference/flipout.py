"""Mean-field variational training: an independent Gaussian for each weight of a network, learnt with Flipout.

Unlike the other methods, this one trains the network itself: it starts at the weights as they are, random ones for a
baseline trained from scratch. Gradients by one weight sample for a whole batch are noisy, because its points err together;
Flipout (Wen et al. 2018) gives each point a sample of its own for the price of a second pass.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_choice, check_like, check_positive
from burnish.batches import Batch
from burnish.errors import FitError
from burnish.inference.variational_layers import ESTIMATORS, VariationalConv2d, VariationalLayer, VariationalLinear
from burnish.likelihoods import Categorical, Likelihood
from burnish.posteriors import Gaussian
from burnish.scales import Diagonal
from burnish.target import check_prior_value

__all__ = [
    "FlipoutFit",
    "fit_flipout",
    "kl_divergence",
    "variational_network",
]

_KINDS: dict[type[nn.Module], Callable[..., VariationalLayer]] = {
    nn.Linear: VariationalLinear,
    nn.Conv2d: VariationalConv2d,
}


def variational_network(
    network: nn.Module, *, initial_std: float, generator: torch.Generator, estimator: str = "flipout"
) -> nn.Module:
    """A deep copy of the network in which every `nn.Linear` and `nn.Conv2d` is a variational layer.

    Everything else stays as it is, also subclasses of the two, which may compute something else, and layers whose weight is
    frozen (`requires_grad=False`). Hooks of replaced layers are not taken over.

    Args:
        network: not modified; its weights become the means.
        initial_std: standard deviation of every weight.
        generator: what the layers draw from in train mode, on the device of the weights.
        estimator: "flipout", "local" or "plain": see `VariationalLayer`.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"`network` must be a torch.nn.Module, got {type(network).__name__}. Pass the module to train.")
    check_choice("estimator", estimator, ESTIMATORS)
    _check_ties(network)
    duplicate = copy.deepcopy(network)
    options = {"generator": generator, "estimator": estimator}
    layers = {part: _KINDS[type(part)](part, initial_std, **options) for part in duplicate.modules() if _is_replaced(part)}
    if not layers:
        kinds = sorted({type(part).__name__ for part in network.modules()})
        raise ValueError(
            f"`network` must have an nn.Linear or nn.Conv2d that is not frozen, got {', '.join(kinds)}. Only those become "
            "variational; unfreeze one with `requires_grad_()`."
        )
    for part, layer in layers.items():
        layer.train(part.training)
    for part in list(duplicate.modules()):
        for name, child in part._modules.items():
            if child is not None and child in layers:
                part._modules[name] = layers[child]
    return layers.get(duplicate, duplicate)


def _is_replaced(part: nn.Module) -> bool:
    """Whether a layer becomes variational; not where its weight is computed from other parameters, or frozen."""
    return type(part) in _KINDS and isinstance(part.weight, nn.Parameter) and part.weight.requires_grad


def kl_divergence(network: nn.Module, prior_precision: float | Tensor, prior_mean: float | Tensor = 0.0) -> Tensor:
    """KL of all variational parameters from N(prior_mean, 1 / prior_precision) in nats, a float64 scalar; differentiable.

    Args:
        network: with variational layers.
        prior_precision: one number, or one for each parameter (d,), in the order of `FlipoutFit.names`.
        prior_mean: likewise.
    """
    _, mean, std = _collect(network)
    check_prior_value("prior_precision", prior_precision, len(mean), mean)
    check_prior_value("prior_mean", prior_mean, len(mean), mean)
    return _kl(mean, std, prior_precision, prior_mean)


@dataclass(frozen=True, eq=False)
class FlipoutFit:
    """A variational network, and the Gaussian over its weights."""

    posterior: Gaussian
    """Over the parameters in `names`, flat and one after the other. No other parameter is part of it."""
    names: tuple[str, ...]
    """Of the parameters with a posterior, in the order of the given network's `named_parameters()`."""
    network: nn.Module
    """The trained network, in eval mode, where it predicts with the means. Parameters without a posterior, such as those of
    normalisation layers, are trained as points, and running statistics are those of the training."""
    plain: nn.Module
    """The same with ordinary layers that hold the means: `flatten_network(fit.plain, fit.names, example=x)` gives the model
    to predict from draws of the posterior with."""
    trace: Tensor
    """(num_epochs,): mean over each epoch of the estimated ELBO, tempered by `kl_weight`, in nats for all data."""
    seconds: float


def fit_flipout(
    network: nn.Module,
    data: Batch,
    *,
    prior_precision: float | Tensor,
    generator: torch.Generator,
    prior_mean: float | Tensor = 0.0,
    likelihood: Likelihood | None = None,
    num_epochs: int = 100,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    initial_std: float = 0.05,
    kl_weight: float = 1.0,
    estimator: str = "flipout",
) -> FlipoutFit:
    """Trains a copy of the network, from its present weights, on the ELBO: log-likelihood minus `kl_weight` times KL.

    By Adam, with a learning rate that falls to zero along a cosine. The paper's baseline has
    `prior_precision=5e-4 * len(data), kl_weight=0.1`. What else draws random numbers while training, such as dropout, takes
    them from the global generator, which is seeded by `generator` meanwhile and put back afterwards.

    Args:
        network: with `nn.Linear` or `nn.Conv2d` layers; not modified.
        data: inputs (N, ...) as the network takes them, on its device, and targets.
        prior_precision: of the parameters with a posterior: one number, or one for each, in the order of `names`.
        generator: on the device of the network.
        prior_mean: one number, or one for each of them.
        likelihood: how outputs explain targets; `Categorical()` when not given.
        num_epochs: passes over the data.
        batch_size: points of a step, at most: batches of an epoch are shuffled and of equal size.
        learning_rate: of Adam, at the start.
        initial_std: standard deviation of every weight at the start, from which a short training hardly moves it.
        kl_weight: below 1, the posterior is colder than Bayes' rule makes it.
        estimator: "flipout", "local" or "plain": see `VariationalLayer`.
    """
    began = time.perf_counter()
    check_at_least("num_epochs", num_epochs, 1)
    check_at_least("batch_size", batch_size, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("kl_weight", kl_weight, "Pass 1 for Bayes' rule.")
    trained = variational_network(network, initial_std=initial_std, generator=generator, estimator=estimator)
    kl_divergence(trained, prior_precision, prior_mean)  # refuses priors that do not fit
    with _seeded_globally(generator), torch.enable_grad():  # the caller may have switched gradients off
        likelihood = Categorical() if likelihood is None else likelihood
        data = _check_data(trained, data, likelihood)
        elbo = _Elbo(trained, data, likelihood, prior_precision, prior_mean, kl_weight)
        trace = _train(elbo, num_epochs, batch_size, learning_rate, generator)
    names, mean, std = _collect(trained.eval())
    posterior = Gaussian(mean.detach(), Diagonal(std.detach()))
    return FlipoutFit(posterior, names, trained, _plain(network, trained), trace, time.perf_counter() - began)


@dataclass(frozen=True, eq=False)
class _Elbo:
    """The tempered ELBO of all data, estimated from some of the points and one draw of the network's noise."""

    network: nn.Module
    data: Batch
    likelihood: Likelihood
    prior_precision: float | Tensor
    prior_mean: float | Tensor
    kl_weight: float

    def __call__(self, rows: Tensor) -> Tensor:
        data = self.data  # not `data.subset`, whose checks make a GPU wait
        terms = self.likelihood.log_prob(self.network(data.inputs[rows]), data.targets[rows])
        terms = terms if data.weights is None else terms * data.weights[rows]
        _, mean, std = _collect(self.network)
        divergence = _kl(mean, std, self.prior_precision, self.prior_mean)
        return len(data) * terms.mean(dtype=torch.float64) - self.kl_weight * divergence


def _train(elbo: _Elbo, num_epochs: int, batch_size: int, learning_rate: float, generator: torch.Generator) -> Tensor:
    """Climbs the ELBO; returns its mean over each epoch."""
    network, num_points = elbo.network.train(), len(elbo.data)
    num_batches = math.ceil(num_points / batch_size)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs * num_batches)
    trace: list[Tensor] = []
    for epoch in range(1, num_epochs + 1):
        order = torch.randperm(num_points, generator=generator, device=elbo.data.inputs.device)
        values = []
        for rows in order.tensor_split(num_batches):  # of equal size: BatchNorm cannot take a last batch of one point
            value = elbo(rows)
            optimizer.zero_grad()
            (-value / num_points).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            values.append(value.detach())
        trace.append(torch.stack(values).mean())
        _, mean, std = _collect(network)
        if not bool(torch.isfinite(trace[-1]) & torch.isfinite(mean).all() & torch.isfinite(std).all() & (std > 0).all()):
            raise FitError(
                f"training left the finite numbers in epoch {epoch} of {num_epochs} (mean ELBO {float(trace[-1]):g}); use a "
                "smaller `learning_rate` or `initial_std`, and check that `network` is finite on all of `data`."
            )
    return torch.stack(trace)


def _collect(network: nn.Module) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names, means (d,) and standard deviations (d,) of all variational parameters, named as before the replacement."""
    layers = {prefix: part for prefix, part in network.named_modules() if isinstance(part, VariationalLayer)}
    if not layers:
        raise ValueError("`network` must have variational layers, got none. Make it with `variational_network`.")
    found = {
        f"{prefix}.{name}" if prefix else name: moments
        for prefix, layer in layers.items()
        for name, moments in layer.moments().items()
    }
    means, stds = zip(*found.values(), strict=True)
    return tuple(found), torch.cat([mean.flatten() for mean in means]), torch.cat([std.flatten() for std in stds])


@torch.no_grad()
def _plain(network: nn.Module, trained: nn.Module) -> nn.Module:
    """A copy of the network, in eval mode, with the means of the trained one and whatever else it has learnt."""
    duplicate = copy.deepcopy(network).eval()
    names, mean, _ = _collect(trained)
    own, learnt = duplicate.state_dict(), trained.state_dict()
    parts = torch.split(mean, [own[name].numel() for name in names])
    means = {name: part.view(own[name].shape) for name, part in zip(names, parts, strict=True)}
    duplicate.load_state_dict({name: means.get(name, learnt.get(name, tensor)) for name, tensor in own.items()})
    return duplicate


def _kl(mean: Tensor, std: Tensor, prior_precision: float | Tensor, prior_mean: float | Tensor) -> Tensor:
    # a number stays one: making a tensor of it would stop a GPU, and could not be captured as part of a graph
    log = prior_precision.log() if isinstance(prior_precision, Tensor) else math.log(prior_precision)
    terms = prior_precision * (std**2 + (mean - prior_mean) ** 2) - 1.0 - log - 2.0 * std.log()
    return 0.5 * terms.sum(dtype=torch.float64)


def _check_ties(network: nn.Module) -> None:
    """Refuses variational layers that share a parameter with another layer: the copies would drift apart."""
    owners: dict[nn.Parameter, list[tuple[str, bool]]] = {}
    for prefix, part in network.named_modules():
        for name, parameter in part.named_parameters(prefix, recurse=False):
            owners.setdefault(parameter, []).append((name, _is_replaced(part)))
    for shared in owners.values():
        if len(shared) > 1 and any(replaced for _, replaced in shared):
            raise ValueError(
                f"`network` must not tie parameters of its linear and convolutional layers, got one shared by "
                f"{' and '.join(repr(name) for name, _ in shared)}. Give each layer its own."
            )


def _check_data(network: nn.Module, data: Batch, likelihood: Likelihood) -> Batch:
    """The data with targets as the likelihood wants them; refuses what network or likelihood cannot take."""
    if not isinstance(data, Batch):
        raise TypeError(f"`data` must be a Batch, got {type(data).__name__}. Pass `Batch(inputs, targets)`.")
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"`likelihood` must be a Likelihood, got {likelihood!r}. Pass `Categorical()`, for instance.")
    check_like("data.inputs", data.inputs, _collect(network)[1], "the network's weights")
    example = data.inputs[:2]
    try:
        with torch.no_grad():
            outputs = network.eval()(example)
    except Exception as error:  # whatever the user's forward raises
        raise ValueError(
            f"`data.inputs` must be what the network takes, but on shape {tuple(example.shape)} it fails with "
            f"{type(error).__name__}: {error}. Pass inputs as in training."
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(example):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"`network` must return outputs of shape (N, C), got {what} for N = {len(example)}. Wrap it.")
    likelihood.check_outputs(outputs.shape[1])
    return replace(data, targets=likelihood.check_targets(data.targets, outputs.shape[1]))


@contextmanager
def _seeded_globally(generator: torch.Generator) -> Iterator[None]:
    """Dropout and its like draw from the global generator: theirs is seeded here by ours, and put back."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    on_gpu = generator.device.type == "cuda"
    with torch.random.fork_rng([generator.device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(generator.device):
                torch.cuda.manual_seed(seed)
        yield
