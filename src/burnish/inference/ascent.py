"""Stochastic gradient ascent on an ELBO that stops by itself: Adam on one flat vector, plateau detection, best kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__: list[str] = []

WINDOW = 20  # steps whose mean ELBO is compared with that of the steps before
PLATEAU = 0.01  # nats a window must gain at least to count as rising
_MOMENTUM, _SQUARES = 0.9, 0.999  # Adam's decay rates


@dataclass(frozen=True)
class AscentOptions:
    """How to climb. `epsilon` is Adam's: where gradients are smaller, steps become proportional to them."""

    learning_rate: float
    epsilon: float
    max_steps: int
    stop_early: bool
    keep_best: bool


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where the ascent ended."""

    parameters: Tensor
    terms: Tensor
    """(steps, S): the terms of the ELBO at every step."""
    converged: bool


def ascend(objective: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, options: AscentOptions) -> Ascent:
    """Climbs from `start` (p,); `objective` gives the terms (S,) of an ELBO and a scalar with the ELBO's gradient.

    The learning rate is held until the ELBO has plateaued, then falls to zero along a cosine over as many steps again;
    without `stop_early` it falls over all of `max_steps`.
    """
    values = start.detach().clone().requires_grad_()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    decay_start = options.max_steps // 2 if options.stop_early else 0
    decay_end = options.max_steps
    trace: list[Tensor] = []
    best, best_mean, converged = start.detach().clone(), -math.inf, not options.stop_early
    while len(trace) < decay_end:
        terms, surrogate = objective(values)
        (grad,) = torch.autograd.grad(surrogate, values)
        trace.append(terms)
        step = len(trace)
        progress = max(0.0, (step - 1 - decay_start) / (decay_end - decay_start))
        rate = options.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
        with torch.no_grad():
            first.lerp_(grad, 1.0 - _MOMENTUM)
            second.mul_(_SQUARES).addcmul_(grad, grad, value=1.0 - _SQUARES)
            size = (second / (1.0 - _SQUARES**step)).sqrt_().add_(options.epsilon)
            values.addcdiv_(first, size, value=rate / (1.0 - _MOMENTUM**step))
        if step % WINDOW or not (options.stop_early or options.keep_best):
            continue
        mean, rising = _compare_windows(trace)
        if not math.isfinite(mean):  # diverged: what was best before is all there is to keep
            return Ascent(best, torch.stack(trace), False)
        if mean > best_mean:
            best, best_mean = values.detach().clone(), mean
        if options.stop_early and not rising and step < decay_start:
            converged, decay_start = True, step
            decay_end = min(options.max_steps, step + max(3 * WINDOW, step))
    all_terms = torch.stack(trace)
    ended_below = options.keep_best and best_mean > float(all_terms[-WINDOW:].mean()) + PLATEAU
    return Ascent(best if ended_below else values.detach(), all_terms, converged)


def _compare_windows(trace: list[Tensor]) -> tuple[float, bool]:
    """The mean ELBO of the last window, and whether it rose by more than its noise over the window before."""
    last = torch.stack(trace[-WINDOW:]).mean(1)
    if len(trace) < 2 * WINDOW:
        return float(last.mean()), True
    before = torch.stack(trace[-2 * WINDOW : -WINDOW]).mean(1)
    noise = ((last.var() + before.var()) / WINDOW).sqrt()
    return float(last.mean()), float(last.mean() - before.mean()) > max(PLATEAU, float(noise))
