"""Deep ensembles: networks trained from several seeds, as the draws of a posterior."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_finite, check_tensor
from burnish.errors import FitError
from burnish.evaluation import evaluation_mode
from burnish.flat_network import FlatNetwork, flatten_network
from burnish.heads import Model
from burnish.likelihoods import Likelihood
from burnish.noise import check_generator
from burnish.posteriors import SamplePosterior

__all__ = ["EnsembleFit", "fit_ensemble"]

_SEEDS = 2**31 - 1  # what torch, NumPy and Python's own generators all take


@dataclass(frozen=True, eq=False)
class EnsembleFit:
    """Members as draws of a posterior, and the model that they are parameters of."""

    model: Model
    """Of one flat vector, which holds floating-point buffers too where the networks have any."""
    posterior: SamplePosterior
    """(M, d), a row for each member. To use each one once, predict with as many samples as there are members."""
    parameters: Tensor
    """(M, d'): the members' parameters without buffers, as `flatten_network(network, example=...)` orders them: starts for
    `fit_multiswag`.
    """
    seeds: tuple[int, ...]
    """What each member was trained with."""
    member_seconds: tuple[float, ...]
    """What each training took."""
    seconds: float


def fit_ensemble(
    train: Callable[[int], nn.Module],
    num_members: int,
    *,
    example: Tensor,
    generator: torch.Generator,
    likelihood: Likelihood | None = None,
) -> EnsembleFit:
    """Trains networks from different seeds (Lakshminarayanan et al. 2017).

    Each member keeps its own running statistics of batch norm. Networks are copied, not modified, and `train` may return
    the same object every time.

    Args:
        train: called with a seed for each member, one after the other; returns a trained network, in any mode. It should
            let weights, and the order of batches, depend on that seed alone.
        num_members: networks to train.
        example: a batch of inputs, with which every member is verified: the model gives the outputs of its network.
        generator: draws the seeds, all different.
        likelihood: how outputs explain targets; `Categorical()` when not given.

    Raises:
        TypeError: where `train` returns something else than a network.
        ValueError: where an argument does not fit, or the networks differ in more than parameters and buffers.
        FitError: where a network has NaN or infinite parameters.
    """
    began = time.perf_counter()
    _check_arguments(train, num_members, example, generator, likelihood)
    seeds = _distinct_seeds(num_members, generator)
    model, rows, seconds = None, [], []
    for member, seed in enumerate(seeds):
        start = time.perf_counter()
        network = train(seed)
        seconds.append(time.perf_counter() - start)
        _check_network(network, member, seed)
        if model is None:
            first = copy.deepcopy(network).eval()
            model, _ = flatten_network(first, example=example, likelihood=likelihood, buffers=True)
        assert isinstance(model.head, FlatNetwork)
        rows.append(_flatten_member(model.head, network, member, example))
    assert model is not None
    return EnsembleFit(
        model=model,
        posterior=SamplePosterior(torch.stack(rows)),
        parameters=_parameters_of(model, torch.stack(rows)),
        seeds=tuple(seeds),
        member_seconds=tuple(seconds),
        seconds=time.perf_counter() - began,
    )


def _parameters_of(model: Model, samples: Tensor) -> Tensor:
    """The columns of samples (M, d) that are no buffers."""
    assert isinstance(model.head, FlatNetwork)
    own = dict(model.head.network.named_parameters(remove_duplicate=False))
    named = model.head.unflatten(samples)
    return torch.cat([named[name].flatten(1) for name in model.head.names if name in own], dim=1)


def _check_arguments(
    train: object, num_members: int, example: Tensor, generator: torch.Generator, likelihood: object
) -> None:
    """All that can be known before hours of training."""
    if not callable(train) or isinstance(train, nn.Module):
        raise TypeError(
            f"`train` must be a function of a seed that returns a trained network, got {type(train).__name__}. "
            "Pass `lambda seed: ...` around your training."
        )
    check_at_least("num_members", num_members, 1, "Five are usual.")
    check_tensor("example", example)
    if example.ndim < 2 or len(example) == 0:
        raise ValueError(f"`example` must be a batch of at least one point, got shape {tuple(example.shape)}.")
    check_finite("example", example, "Pass a few of the training inputs.")
    check_generator(generator, getattr(generator, "device", torch.device("cpu")))
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"`likelihood` must be a Likelihood, got {likelihood!r}. Pass `Categorical()`, `Bernoulli()` or "
            "`GaussianNoise(std)`."
        )


def _distinct_seeds(count: int, generator: torch.Generator) -> list[int]:
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        drawn = torch.randint(_SEEDS, (count - len(seeds),), generator=generator, device=generator.device)
        seeds |= dict.fromkeys(drawn.tolist())
    return list(seeds)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and floating-point buffers by name."""
    buffers = {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    return dict(network.named_parameters()) | buffers


def _check_network(network: object, member: int, seed: int) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"`train` must return a torch.nn.Module, got {type(network).__name__} for member {member}. "
            "Return the trained network from it."
        )
    for name, tensor in _tensors(network).items():
        if not bool(torch.isfinite(tensor).all()):
            raise FitError(
                f"member {member} (seed {seed}) came back with NaN or infinite entries in {name!r}; "
                "its training diverged: use a smaller learning rate."
            )


def _flatten_member(head: FlatNetwork, network: nn.Module, member: int, example: Tensor) -> Tensor:
    """The parameters of a member as one vector (d,); refuses a network that the first one cannot stand in for."""
    own, others = _describe(head.network), _describe(network)
    for name in [*own, *others]:
        if own.get(name) != others.get(name):
            raise ValueError(
                f"`train` must return networks of one architecture, got {name!r} as {others.get(name, 'nothing')} in member "
                f"{member} and {own.get(name, 'nothing')} in member 0. Let the seed change weights only."
            )
    theta = head.flatten(network)
    with torch.no_grad(), evaluation_mode(network):
        outputs = network(example)
    with torch.no_grad():
        difference = float((head(theta, example) - outputs).abs().max())
    tolerance = 1e-3 if theta.dtype == torch.float32 else 1e-8  # sums in another order
    if not difference <= tolerance * max(1.0, float(outputs.abs().max())):
        raise ValueError(
            f"`train` must return networks that differ in parameters and buffers only, got outputs of member {member} that "
            f"its parameters in the first network miss by {difference:.2g}. Let the seed change weights only."
        )
    return theta


def _describe(network: nn.Module) -> dict[str, str]:
    return {name: f"{tuple(t.shape)} {t.dtype} on {t.device}" for name, t in _tensors(network).items()}
