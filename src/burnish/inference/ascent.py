"""Stochastic gradient ascent on an ELBO that stops by itself: Adam on one flat vector, plateau detection, best kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__: list[str] = []

_CHECK = 10  # steps between looks at the trace
_FLAT = 2  # looks in a row that must see no rise: momentum can overshoot once
_DECAY = 40  # steps at least over which the learning rate falls
_MOMENTUM, _SQUARES = 0.9, 0.999  # Adam's decay rates


@dataclass(frozen=True)
class AscentOptions:
    """How to climb. `epsilon` is Adam's: where gradients are smaller, steps become proportional to them."""

    learning_rate: float
    epsilon: float
    max_steps: int
    stop_early: bool
    keep_best: bool
    plateau: float
    """Nats a window must gain at least over the one before to count as rising."""


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
    best, best_window = start.detach().clone(), _Window(-math.inf, 0.0)
    converged, num_flat = False, 0
    while len(trace) < decay_end:
        with torch.enable_grad():  # the caller may have switched gradients off
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
        if step % _CHECK or not (options.stop_early or options.keep_best):
            continue
        last, rising = _compare_windows(trace, options.plateau)
        if not math.isfinite(last.mean):  # diverged: what was best before is all there is to keep
            return Ascent(best, torch.stack(trace), False)
        if last.mean > best_window.mean:
            best, best_window = values.detach().clone(), last
        num_flat = 0 if rising else num_flat + 1
        if options.stop_early and num_flat >= _FLAT and step < decay_start:
            converged, decay_start = True, step
            decay_end = min(options.max_steps, step + max(_DECAY, step))
    final, rising = _compare_windows(trace, options.plateau)
    converged = converged or not rising
    # the best of many windows is best by chance, too: the last one must be clearly below it
    margin = options.plateau + 3.0 * math.hypot(final.noise, best_window.noise)
    fell = best_window.mean > final.mean + margin  # a trace that falls is not level either
    return Ascent(best if fell and options.keep_best else values.detach(), torch.stack(trace), converged and not fell)


@dataclass(frozen=True)
class _Window:
    """The mean ELBO of some steps, and its standard error."""

    mean: float
    noise: float


def _window(trace: list[Tensor], back: int) -> _Window:
    """The last third of the steps, or the third before: a plateau is believed sooner the sooner it is reached."""
    size = max(_CHECK, len(trace) // 3)
    end = len(trace) - back * size
    steps = torch.stack(trace[max(0, end - size) : end]).mean(1)
    return _Window(float(steps.mean()), float(steps.std()) / math.sqrt(len(steps)) if len(steps) > 1 else math.inf)


def _compare_windows(trace: list[Tensor], plateau: float) -> tuple[_Window, bool]:
    """The last window, and whether it rose by more than noise over the one before."""
    last = _window(trace, 0)
    if len(trace) < 2 * _CHECK:
        return last, True
    before = _window(trace, 1)
    return last, last.mean - before.mean > max(plateau, math.hypot(last.noise, before.noise))
