"""Refinement: a Gaussian pushed through a normalizing flow that is trained to climb the ELBO."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_like, check_positive
from burnish.bijections import Bijection, Radial, SinhArcsinh
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.inference.ascent import AscentOptions, ascend
from burnish.inference.estimate import Estimate, choose_estimate
from burnish.inference.rotated import rotate
from burnish.layer_scales import BlockDiagonal
from burnish.linear_bijections import Affine, DiagonalScale, Rotation, Shift
from burnish.noise import check_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Diagonal, LowRank
from burnish.target import Target

__all__ = ["FlowFit", "default_bijections", "fit_flow", "paper_protocol"]

_FEW_DIMS = 64  # up to so many, a second layer in rotated coordinates, and more samples
_EVALUATION_ENTRIES = 2**24  # outputs computed for a final ELBO, where that allows between 32 and 512 samples
PLATEAU = 5e-5  # nats for each dimension: below this gain the ELBO counts as level


@dataclass(frozen=True, eq=False)
class FlowFit:
    """A refined posterior, and how its ELBO rose."""

    posterior: FlowPosterior
    elbo: float
    """Evidence lower bound of the posterior in nats, on all data and fresh samples."""
    elbo_standard_error: float
    base_elbo: float
    """The same for the base, from the same noise."""
    gain: float
    """elbo - base_elbo on the evaluation samples; never negative with `keep_best`, which compares by it."""
    gain_standard_error: float
    """Of the paired difference."""
    trace: Tensor
    """(steps, 2): the ELBO estimated at each step, and its standard error."""
    converged: bool
    """Whether the ELBO had stopped rising when the steps ended."""
    batch_size: int | None
    """Points seen at each step; None for all of them."""
    seconds: float


def default_bijections(base: Gaussian) -> tuple[Bijection, ...]:
    """Skewness and tails, then a shift, elementwise; in few dimensions once more in rotated coordinates.

    Where the base has a structure that leaves correlations out, its widths are off too: they are learnt as well.

    Chosen by measurement: docs/decisions/0003-default-flow.md.
    """
    skewness, shift = SinhArcsinh.identity(base.mean), Shift.identity(base.mean)
    if isinstance(base.scale, Diagonal | BlockDiagonal | LowRank):
        return DiagonalScale.identity(base.mean), skewness, shift
    if not 2 <= base.dim <= _FEW_DIMS:
        return skewness, shift
    rotation = Rotation.cosine(base.mean)
    return skewness, rotation, skewness, rotation.transposed(), shift


def paper_protocol(target: Target, base: Gaussian, num_layers: int, *, generator: torch.Generator) -> dict[str, Any]:
    """Options under which `fit_flow` follows the paper: radial layers on raw weights, one sample, batches of 128.

    Example:
        `fit_flow(target, base, generator=generator, **paper_protocol(target, base, 5, generator=generator))`
    """
    check_at_least("num_layers", num_layers, 1)
    return {
        "bijections": tuple(Radial.uniform(base.mean, generator=generator) for _ in range(num_layers)),
        "whiten": False,
        "num_samples": 1,
        "antithetic": False,
        "batch_size": 128,
        "control_variate": False,
        "path_gradient": False,
        "learning_rate": 1e-3,
        "epsilon": 1e-8,
        "max_steps": 20 * math.ceil(len(target.data) / 128),
        "stop_early": False,
        "keep_best": False,
    }


def fit_flow(
    target: Target,
    base: Gaussian,
    *,
    generator: torch.Generator,
    bijections: Sequence[Bijection] | Callable[[Gaussian], Sequence[Bijection]] | None = None,
    whiten: bool = True,
    num_samples: int | None = None,
    antithetic: bool = True,
    batch_size: int | str | None = "auto",
    control_variate: bool = True,
    path_gradient: bool = True,
    learning_rate: float = 0.1,
    epsilon: float | None = None,
    max_steps: int = 1000,
    stop_early: bool = True,
    keep_best: bool = True,
    num_evaluation_samples: int | None = None,
) -> FlowFit:
    """Refines `base` towards the target by stochastic gradient ascent on the ELBO.

    Args:
        target: the log posterior of a linear head, or of a `FlatNetwork`.
        base: the Gaussian to refine, usually `fit_laplace(target).posterior`.
        generator: on the device of the base.
        bijections: the flow's layers with their starting values, the first one applied first, or a function that makes
            them for a base; `default_bijections` when not given.
        whiten: whether the layers act on the coordinates in which the base is standard normal, or on raw parameters.
        num_samples: of the posterior at each step; 8 when not given, and 32 in up to 64 dimensions, where they cost little.
        antithetic: whether samples come in pairs of opposite noise.
        batch_size: points at each step; None for all, "auto" for all of a small data set, or of one that is small for a
            full covariance, and otherwise as few as keep the noise of choosing them comparable with that of the samples.
        control_variate: whether a batch estimates only what a second-order expansion at the base's mean leaves over.
        path_gradient: whether the part of the gradient whose expectation is zero is left out: its noise vanishes as the
            flow approaches the target.
        learning_rate: of Adam.
        epsilon: of Adam: steps shrink with gradients that are smaller. When not given, 1 for a linear head, whose gradients
            are of that order in whitened coordinates and vanish at the end, and 0.1 for a network, which has further to go.
        max_steps: an upper bound when stopping early, otherwise the number of steps.
        stop_early: whether to hold the learning rate until the ELBO has plateaued and then let it fall to zero; otherwise
            it falls along a cosine over all steps.
        keep_best: whether the best flow seen is kept, and the base itself where that is better still.
        num_evaluation_samples: for the final ELBOs of flow and base, on all data; an even number, by the size of the data
            when not given.
    """
    began = time.perf_counter()
    _check_arguments(target, base, generator, batch_size)
    check_at_least("max_steps", max_steps, 1)
    check_positive("learning_rate", learning_rate)
    if epsilon is None:
        epsilon = 1.0 if isinstance(target.model.head, LinearHead) else 0.1
    check_positive("epsilon", epsilon)
    if num_samples is None:
        num_samples = 32 if base.dim <= _FEW_DIMS else 8
    check_pairs("num_samples", num_samples, antithetic)
    if num_evaluation_samples is None:
        num_evaluation_samples = choose_evaluation_samples(target)
    check_pairs("num_evaluation_samples", num_evaluation_samples, True)
    layers = _check_bijections(default_bijections if bijections is None else bijections, base)
    build = FlowPosterior.whitened if whiten else _raw
    near, start = rotate(target, base, num_samples) if whiten else (target, base)  # the same problem, with cheaper products
    source, outer = (Gaussian.standard(base.mean), Affine(start.mean, start.scale)) if whiten else (base, None)
    estimate, size = choose_estimate(near, start, batch_size, control_variate, num_samples, generator)

    def objective(values: Tensor) -> tuple[Tensor, Tensor]:
        kind = "antithetic" if antithetic else "iid"
        noise = standard_normal(num_samples, base.mean, generator=generator, noise=kind)
        return _elbo_and_surrogate(source, _unpack(layers, values), outer, noise, estimate, path_gradient)

    options = AscentOptions(learning_rate, epsilon, max_steps, stop_early, keep_best, PLATEAU * base.dim)
    ascent = ascend(objective, _pack(layers, base.mean), options)
    learnt = _unpack(layers, ascent.parameters)
    posterior = build(base, learnt)
    noise = standard_normal(num_evaluation_samples, base.mean, generator=generator, noise="antithetic")
    elbo, base_elbo = (elbo_terms(near, build(start, part), noise) for part in (learnt, ()))
    if keep_best and not float((elbo - base_elbo).mean()) > 0.0:
        posterior, elbo = build(base, ()), base_elbo
    if not bool(torch.isfinite(elbo).all()):
        raise FitError("the ascent left the finite numbers; use a smaller `learning_rate`, or `keep_best=True`.")
    return FlowFit(
        posterior=posterior,
        elbo=float(elbo.mean()),
        elbo_standard_error=float(standard_error(elbo, antithetic=True)),
        base_elbo=float(base_elbo.mean()),
        gain=float((elbo - base_elbo).mean()),
        gain_standard_error=float(standard_error(elbo - base_elbo, antithetic=True)),
        trace=torch.stack([ascent.terms.mean(1), standard_error(ascent.terms, antithetic)], dim=1),
        converged=ascent.converged,
        batch_size=size,
        seconds=time.perf_counter() - began,
    )


def _check_arguments(target: Target, base: Gaussian, generator: torch.Generator, batch_size: int | str | None) -> None:
    if not isinstance(base, Gaussian):
        raise TypeError(f"`base` must be a Gaussian, got {type(base).__name__}. Pass the fit's `.posterior`.")
    target.check_theta(base.mean, "base")
    check_generator(generator, base.mean.device)
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise ValueError(f"`batch_size` must be an integer, None (all data) or 'auto', got {batch_size!r}.")
    elif batch_size is not None:
        check_at_least("batch_size", batch_size, 1)


def check_pairs(name: str, count: int, antithetic: bool) -> None:
    check_at_least(name, count, 1)
    if antithetic and count % 2:
        raise ValueError(f"`{name}` must be even for antithetic pairs, got {count}. Pass {count + 1}, say.")


def _check_bijections(
    bijections: Sequence[Bijection] | Callable[[Gaussian], Sequence[Bijection]], base: Gaussian
) -> tuple[Bijection, ...]:
    if callable(bijections) and not isinstance(bijections, type):  # a class of layers is refused below, by name
        bijections = bijections(base)
    layers: tuple[Any, ...] = tuple(bijections) if isinstance(bijections, Sequence) else (bijections,)
    remedy = "Pass a list such as `[SinhArcsinh.identity(base.mean), Shift.identity(base.mean)]`."
    for layer in layers:
        if not isinstance(layer, Bijection):
            raise TypeError(f"`bijections` must be Bijections, got {layer!r}. {remedy}")
        for name, parameter in layer.parameters().items():
            check_like(f"bijections: {type(layer).__name__}.{name}", parameter, base.mean, "the base")
        if not layer.fits(base.dim):
            raise ValueError(
                f"`bijections` must act on the base's {base.dim} dimensions, got a {type(layer).__name__} of other size. "
                f"{remedy}"
            )
    if not any(layer.parameters() for layer in layers):
        names = [type(layer).__name__ for layer in layers]
        raise ValueError(f"`bijections` must have parameters to learn, got {names}. {remedy}")
    return layers


def _raw(base: Gaussian, bijections: Sequence[Bijection]) -> FlowPosterior:
    return FlowPosterior(base, tuple(bijections))


def _elbo_and_surrogate(
    source: Gaussian,
    layers: Sequence[Bijection],
    outer: Affine | None,
    noise: Tensor,
    estimate: Estimate,
    path_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """One term of the ELBO for each row of noise, and a scalar whose gradient is that of the ELBO.

    The ELBO is the mean of log p(theta) - log q(theta). Its gradient flows through theta and through q's own parameters;
    the latter part has mean zero, and leaving it out (Roeder et al. 2017) makes the noise vanish where q equals p.
    """
    inner, logdet = FlowPosterior(source, tuple(layers)).from_noise(noise)
    theta, outer_logdet = (inner, 0.0) if outer is None else outer.forward(inner)
    value, grad = estimate(theta.detach())
    surrogate = (theta * grad).sum()
    if path_gradient:
        frozen = [layer.with_parameters({k: p.detach() for k, p in layer.parameters().items()}) for layer in layers]
        leaf = inner.detach().requires_grad_()
        log_density = FlowPosterior(source, tuple(frozen)).log_prob(leaf).sum()
        surrogate = surrogate - (inner * torch.autograd.grad(log_density, leaf)[0]).sum()
    else:
        surrogate = surrogate + logdet.sum()
    terms = value - source.log_prob_of_noise(noise) + logdet.detach() + outer_logdet
    return terms, surrogate / len(noise)


def _pack(layers: Sequence[Bijection], like: Tensor) -> Tensor:
    """All parameters of the layers as one vector."""
    parts = [parameter.detach().flatten() for layer in layers for parameter in layer.parameters().values()]
    return torch.cat([like[:0], *parts])


def _unpack(layers: Sequence[Bijection], values: Tensor) -> list[Bijection]:
    """The layers with their parameters read off one vector."""
    shapes = [{name: p.shape for name, p in layer.parameters().items()} for layer in layers]
    sizes = [shape.numel() for layer in shapes for shape in layer.values()]
    parts = iter(torch.split(values, sizes))
    return [
        layer.with_parameters({name: next(parts).view(shape) for name, shape in shape_of.items()})
        for layer, shape_of in zip(layers, shapes, strict=True)
    ]


def choose_evaluation_samples(target: Target) -> int:
    """How many draws for a final ELBO, by the size of the data; even."""
    return 2 * min(256, max(16, _EVALUATION_ENTRIES // (2 * len(target.data) * target.model.head.entries)))


@torch.no_grad()
def elbo_terms(target: Target, posterior: FlowPosterior, noise: Tensor) -> Tensor:
    """The terms (S,) of an ELBO over all data, one for each row of noise."""
    theta, logdet = posterior.from_noise(noise)
    value = target.log_prob(theta)
    return value - posterior.base.log_prob_of_noise(noise) + logdet


def standard_error(terms: Tensor, antithetic: bool) -> Tensor:
    """Standard error of the mean over the last dimension; over pairs where the second half mirrors the first."""
    if antithetic:
        terms = terms.reshape(*terms.shape[:-1], 2, -1).mean(-2)
    count = terms.shape[-1]
    return terms.std(-1) / math.sqrt(count) if count > 1 else torch.full_like(terms[..., 0], math.nan)
