"""The paper's flow started from a standard normal distribution in place of a Laplace posterior: NLL and time by length."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from burnish import metrics
from burnish.inference.flow import fit_flow, paper_protocol
from burnish.posteriors import Gaussian
from burnish.predictive import predict_at
from burnish.scales import Diagonal
from burnish.studies.image_methods import LayerMethods
from burnish.studies.image_posteriors import full_target
from burnish.studies.image_problem import ImageProblem
from burnish.studies.paper_base import fit_paper_base
from burnish.studies.paper_flows import fit_paper_flows
from burnish.studies.printed import printed
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.summaries import is_comparable, spread

__all__ = ["run_seed", "summary"]

LENGTHS = (1, 5, 10, 20)
STARTS = ("N(0,I)+NF", "LA+NF")
_TIMED = (50, 150)  # steps of one flow alone, from whose times that of all steps is extrapolated


def run_seed(methods: LayerMethods) -> dict[str, Any]:
    """NLL of flows of several lengths from both starts, and the seconds that each would take alone."""
    problem = methods.problem
    settings = problem.setting.settings
    base, _ = fit_paper_base(problem)
    bases = [Gaussian(base.mean.new_zeros(base.dim), Diagonal(base.mean.new_ones(base.dim))), base]
    target = full_target(problem)
    fits = fit_paper_flows(
        [target for _ in bases],
        bases,
        LENGTHS,
        generators=[problem.stream("flows") for _ in bases],
        num_epochs=settings.flow_epochs,
        likelihood_bias=problem.setting.protocol == "ours",
    )
    nll = {}
    for name, flows in zip(STARTS, fits.posteriors, strict=True):
        generator = problem.stream(f"flow-from-prior {name}")
        draws = [flow.sample(settings.few, generator=generator) for flow in flows]
        nll[name] = [_nll(methods, theta) for theta in draws]
    return {
        "lengths": list(LENGTHS),
        "nll": nll,
        "seconds": [_seconds(problem, base, length) for length in LENGTHS],
        "batch_seconds": fits.seconds,
    }


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: NLL and seconds by length; under the paper's protocol with what it prints."""
    parts = list(record["seeds"].values())
    dataset, comparable = record["config"]["dataset"], is_comparable(record["config"])
    table = "flow_from_prior_vs_from_laplace_cifar10_nll"
    rows = []
    for name in STARTS:
        by_length = zip(*(part["nll"][name] for part in parts), strict=True)
        rows.append([f"NLL, {name}", *(spread(values, 4) for values in by_length)])
        known = printed(table, name)
        if comparable and dataset == "cifar-10" and isinstance(known, list):
            rows.append(["  printed", *(f"{value:.4f}" for value in known)])
    seconds = list(zip(*(part["seconds"] for part in parts), strict=True))
    rows.append(["seconds of one flow alone", *(spread(values, 1) for values in seconds)])
    rows.append(["more from 5 to 10 layers, %", "", "", spread([_growth(part["seconds"]) for part in parts], 0), ""])
    known = printed("refinement_seconds_rtx2080ti_20_epochs", BENCHMARKS[dataset].title)
    if comparable and isinstance(known, list):
        rows.append(["  printed", "", "", f"{_growth(known):.0f}", ""])
    return ["layers", *map(str, parts[0]["lengths"])], rows


def _growth(seconds: Sequence[float]) -> float:
    """By how many percent ten layers take longer than five."""
    return 100.0 * (seconds[LENGTHS.index(10)] / seconds[LENGTHS.index(5)] - 1.0)


def _nll(methods: LayerMethods, theta: Tensor) -> float:
    problem = methods.problem
    probs = predict_at(*methods.seen(theta), problem.features("test"), keep_samples=False).probs
    return metrics.nll(probs, problem.setting.labels("test"))


def _seconds(problem: ImageProblem, base: Gaussian, length: int) -> float:
    """Of one flow alone: what comes before and after the steps, and as much for each step as more of them take longer."""
    target, generator = full_target(problem), problem.stream("timing")
    options = paper_protocol(target, base, length, generator=generator)
    total: int = problem.setting.settings.flow_epochs * math.ceil(len(target.data) / options["batch_size"])
    steps = [
        min(count, total) for count in (_TIMED[0], *_TIMED)
    ]  # the first of all pays for what is used for the first time
    seconds = []
    for count in steps:
        began = time.perf_counter()
        fit_flow(target, base, generator=generator, **options | {"max_steps": count})
        seconds.append(time.perf_counter() - began)
    few, many = seconds[1:]
    return many + (total - steps[2]) * max(0.0, many - few) / max(1, steps[2] - steps[1])
