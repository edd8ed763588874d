"""Seconds of refinements, ours and the paper's, from a given base: after a warm-up, and medians of several."""

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from burnish.inference.flow import FlowFit, fit_flow
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.studies.paper_flows import fit_paper_flows
from burnish.target import Target

if TYPE_CHECKING:
    from burnish.studies.costs import Settings

__all__ = ["clock", "time_default", "time_paper", "time_refinement"]

_WARM_UP = 10  # steps of a refinement that is thrown away


def clock(device: torch.device) -> float:
    """Seconds, once everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def time_refinement(
    target: Target, base: Gaussian, settings: "Settings", repetitions: int, seed: int
) -> tuple[dict[str, Any], FlowFit]:
    """The median of refinements with bounded steps, all that `fit_flow` does included; and the last of them."""
    device = base.mean.device
    options: dict[str, Any] = {"num_samples": settings.num_samples, "num_evaluation_samples": 2}
    fit_flow(target, base, generator=make_generator(seed, device), max_steps=_WARM_UP, **options)
    seconds = []
    for _ in range(repetitions):
        began = clock(device)
        fit = fit_flow(target, base, generator=make_generator(seed, device), max_steps=settings.num_steps, **options)
        seconds.append(clock(device) - began)
    return {"seconds": statistics.median(seconds), "all_seconds": seconds, **_describe(fit)}, fit


def time_default(target: Target, base: Gaussian, seed: int) -> tuple[dict[str, Any], FlowFit]:
    """One refinement with all defaults."""
    device = base.mean.device
    began = clock(device)
    fit = fit_flow(target, base, generator=make_generator(seed, device))
    return {"seconds": clock(device) - began, **_describe(fit)}, fit


def time_paper(
    target: Target, base: Gaussian, settings: "Settings", num_epochs: int, seed: int
) -> tuple[dict[str, Any], FlowPosterior]:
    """The paper's flow over so many epochs: seconds of all that the paper has, by the median epoch; and what was fitted.

    The first epoch, in which a GPU captures its graph, counts as measured and not by the median; where there is no other,
    as in trying things out, it is all there is.
    """
    device = base.mean.device
    times = [clock(device)]
    fits = fit_paper_flows(
        [target],
        [base],
        [settings.num_layers],
        generators=[make_generator(seed, device)],
        num_epochs=num_epochs,
        callback=lambda _: times.append(clock(device)),
    )
    epochs = [after - before for before, after in itertools.pairwise(times)]
    epoch = statistics.median(epochs[1:] or epochs)
    known = {
        "seconds": epoch * settings.flow_epochs,
        "epoch_seconds": epoch,
        "measured_seconds": fits.seconds,
        "epochs_measured": num_epochs,
        "extrapolated": num_epochs < settings.flow_epochs,
    }
    return known, fits.posteriors[0][0]


def _describe(fit: FlowFit) -> dict[str, Any]:
    return {"steps": len(fit.trace), "batch_size": fit.batch_size, "converged": fit.converged}
