"""Evidence of a model from any posterior with a density, to compare priors and architectures after refinement.

A posterior serves as proposal here: importance weights correct what is wrong with it, so that the estimate is one of the
target's own evidence. A better posterior makes it more precise, not larger.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish._checks import check_at_least
from burnish.diagnostics import importance, log_ratios
from burnish.errors import FitError
from burnish.noise import check_generator
from burnish.posteriors import DensityPosterior
from burnish.target import Target

__all__ = [
    "Evidence",
    "EvidenceBound",
    "EvidenceCandidate",
    "EvidenceComparison",
    "compare_evidence",
    "estimate_evidence",
]

_MAX_KHAT = 0.7  # beyond it, so few draws carry the mean weight that its standard error says nothing
_MIN_DRAWS = 25  # fewer have no tail to fit
_NOTABLE = 3.0  # standard errors from which on a difference counts
_NEGLIGIBLE = 1e-3  # nats that matter to nobody, and may be rounding


@dataclass(frozen=True)
class EvidenceBound:
    """A lower bound of the log evidence: the expectation of the log of the mean of `num_draws` importance weights."""

    num_draws: int
    """1 for the ELBO. The more, the closer to the log evidence."""
    value: float
    standard_error: float | None
    """Over disjoint groups of draws; None where there is one group only."""


@dataclass(frozen=True)
class Evidence:
    """What one posterior's draws say about the log evidence of its target, in nats."""

    elbo: float
    """The evidence less KL(q || posterior): below the log evidence in expectation, however many the draws."""
    elbo_standard_error: float
    log_evidence: float
    """Log of the mean importance weight: approaches the log evidence with more draws, from below in expectation."""
    standard_error: float
    """Of `log_evidence`, by the delta method; to be trusted only where `reliable`, as the weights themselves."""
    ess: float
    """Effective number of draws, of `num_samples`."""
    khat: float
    """Shape of the weights' upper tail."""
    bounds: tuple[EvidenceBound, ...]
    """For 1, 10, 100, ... draws, all from the same ones: how the bound rises from the ELBO to the log evidence."""
    num_samples: int
    num_points: int
    """Points of the target's data: evidences are comparable on the same data only."""
    seconds: float

    @property
    def reliable(self) -> bool:
        """Whether k-hat is below 0.7, so that `log_evidence` and its standard error can be trusted.

        k-hat sees the shape of the tail, not its weight: it may fail an almost exact posterior, whose ELBO is then as good.
        """
        return self.khat < _MAX_KHAT


@dataclass(frozen=True)
class EvidenceCandidate:
    """One of the models compared, beside the best of them."""

    name: str
    evidence: Evidence
    log_bayes_factor: float
    """Its `log_evidence` less that of the best."""
    log_bayes_factor_standard_error: float
    elbo_difference: float
    """Its `elbo` less that of the best."""
    elbo_difference_standard_error: float
    behind: bool
    """Whether it lies behind the best by more than three standard errors (and 0.001 nats), by the criterion."""


@dataclass(frozen=True)
class EvidenceComparison:
    """Models of the same data in the order of their evidence."""

    candidates: tuple[EvidenceCandidate, ...]
    """The best first."""
    criterion: Literal["log_evidence", "elbo"]
    """What they are ordered by: `elbo` where a `log_evidence` is not reliable."""
    unreliable: tuple[str, ...]
    """Names of those whose k-hat is not below 0.7."""

    @property
    def best(self) -> str:
        """Name of the candidate with the highest evidence."""
        return self.candidates[0].name

    @property
    def decided(self) -> bool:
        """Whether all others lie behind the best by more than three standard errors."""
        return all(candidate.behind for candidate in self.candidates[1:])

    def __str__(self) -> str:
        """A table for people."""
        header = ("candidate", "log Bayes factor", "ELBO difference", "k-hat", "standing")
        rows = [
            (
                candidate.name,
                _plus_minus(candidate.log_bayes_factor, candidate.log_bayes_factor_standard_error),
                _plus_minus(candidate.elbo_difference, candidate.elbo_difference_standard_error),
                f"{candidate.evidence.khat:.2f}",
                "best" if candidate.name == self.best else f"{'' if candidate.behind else 'not '}clearly behind",
            )
            for candidate in self.candidates
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
        if self.criterion == "elbo":
            reason = f"k-hat is not below {_MAX_KHAT} for {', '.join(self.unreliable)}"
            lines.append(f"by ELBO, as {reason}: differences include each posterior's own gap KL(q || posterior).")
        else:
            lines.append("by log evidence: every k-hat is good.")
        return "\n".join(line.rstrip() for line in lines)


def estimate_evidence(
    target: Target, posterior: DensityPosterior, *, num_samples: int = 1000, generator: torch.Generator
) -> Evidence:
    """The log evidence of `target`, with `posterior` as proposal for importance sampling.

    Both estimates lie below the log evidence in expectation. The standard error of `log_evidence` is the standard deviation
    of the weights over their mean and sqrt(num_samples): it can be trusted only while k-hat is below 0.7, and above 0.5 it
    tends to be too small, and the estimate too low. Mass that the posterior does not reach, such as a second mode, is
    missing from the estimate, and k-hat cannot show it.

    Args:
        target: the log posterior, unnormalised.
        posterior: anything with a density, such as `fit_flow(...).posterior` or `fit_laplace(...).posterior`.
        num_samples: independent draws of the posterior, a chunk at a time.
        generator: on the device of the posterior.
    """
    began = time.perf_counter()
    _check_arguments(target, posterior, num_samples, generator)
    ratios = log_ratios(target, posterior, num_samples, generator=generator).cpu()
    bad = int((~torch.isfinite(ratios)).sum())
    if bad:
        raise FitError(
            f"the log densities of target and posterior are not finite at {bad} of {num_samples} draws; "
            "use float64, or a posterior that does not reach so far."
        )
    weights = importance(ratios)
    bounds = tuple(_bound(ratios, 10**power) for power in range(len(str(num_samples))))  # one for each decimal digit
    scaled = (ratios - weights.log_evidence).exp()  # weights whose mean is one
    return Evidence(
        elbo=bounds[0].value,
        elbo_standard_error=_standard_error(ratios),
        log_evidence=weights.log_evidence,
        standard_error=_standard_error(scaled),
        ess=weights.ess,
        khat=weights.khat,
        bounds=bounds,
        num_samples=num_samples,
        num_points=len(target.data),
        seconds=time.perf_counter() - began,
    )


def compare_evidence(evidences: Mapping[str, Evidence]) -> EvidenceComparison:
    """Log Bayes factors of several models of the same data, such as priors or architectures.

    Where k-hat of every one is below 0.7, models are ordered by `log_evidence`, and how good their posteriors are matters
    only for the precision. Otherwise they are ordered by ELBO: differences of ELBOs include each posterior's own gap
    KL(q || posterior), so that a model may lose because its posterior is poor. Standard errors of differences are those of
    independent draws: let one generator run on from one estimate to the next.

    Args:
        evidences: by name, at least two, all from the very same data; only the number of points can be checked.

    Example:
        `compare_evidence({"weak": estimate_evidence(weak, ...), "strong": estimate_evidence(strong, ...)}).best`
    """
    _check_evidences(evidences)
    unreliable = tuple(name for name, evidence in evidences.items() if not evidence.reliable)
    criterion: Literal["log_evidence", "elbo"] = "elbo" if unreliable else "log_evidence"
    names = sorted(evidences, key=lambda name: getattr(evidences[name], criterion), reverse=True)
    best = evidences[names[0]]
    candidates = tuple(_candidate(name, evidences[name], best, criterion) for name in names)
    return EvidenceComparison(candidates, criterion, unreliable)


def _candidate(name: str, evidence: Evidence, best: Evidence, criterion: str) -> EvidenceCandidate:
    factor, difference = evidence.log_evidence - best.log_evidence, evidence.elbo - best.elbo
    errors = [0.0, 0.0]  # of the best against itself
    if evidence is not best:
        errors = [
            math.hypot(evidence.standard_error, best.standard_error),
            math.hypot(evidence.elbo_standard_error, best.elbo_standard_error),
        ]
    value, error = (factor, errors[0]) if criterion == "log_evidence" else (difference, errors[1])
    behind = -value > max(_NOTABLE * error, _NEGLIGIBLE)
    return EvidenceCandidate(name, evidence, factor, errors[0], difference, errors[1], behind)


def _bound(ratios: Tensor, num_draws: int) -> EvidenceBound:
    """The bound from as many disjoint groups of `num_draws` as there are; what is left over is left out."""
    groups = ratios[: len(ratios) // num_draws * num_draws].view(-1, num_draws)
    values = groups.logsumexp(1) - math.log(num_draws)
    return EvidenceBound(num_draws, float(values.mean()), _standard_error(values) if len(values) > 1 else None)


def _standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def _plus_minus(value: float, error: float) -> str:
    return f"{round(value, 3) + 0.0:.3f} ± {error:.3f}"  # zero added: a tiny negative number would print as -0.000


def _check_arguments(target: Target, posterior: DensityPosterior, num_samples: int, generator: torch.Generator) -> None:
    if not isinstance(target, Target):
        raise TypeError(f"`target` must be a Target, got {type(target).__name__}. Pass the one the posterior was fitted to.")
    if not isinstance(posterior, DensityPosterior):
        raise TypeError(
            f"`posterior` must have a density, got {type(posterior).__name__}. "
            "Pass a Gaussian or a FlowPosterior, such as `fit_flow(...).posterior`; samples alone have no evidence."
        )
    if posterior.dim != target.dim:
        raise ValueError(
            f"`posterior` must have the {target.dim} dimensions of the target, got {posterior.dim}. "
            "Pass the target that it was fitted to."
        )
    check_at_least("num_samples", num_samples, _MIN_DRAWS, "The tail of the weights needs that many; a thousand is good.")
    check_generator(generator, target.data.inputs.device)


def _check_evidences(evidences: Mapping[str, Evidence]) -> None:
    if not isinstance(evidences, Mapping):
        raise TypeError(f"`evidences` must be a mapping from names, got {type(evidences).__name__}. Pass a dictionary.")
    for name, evidence in evidences.items():
        if not isinstance(evidence, Evidence):
            raise TypeError(
                f"`evidences` must hold Evidence, got {type(evidence).__name__} for {name!r}. Use `estimate_evidence`."
            )
    if len(evidences) < 2:
        raise ValueError(f"`evidences` must have at least 2 candidates, got {len(evidences)}. Evidence is relative.")
    points = {name: evidence.num_points for name, evidence in evidences.items()}
    if len(set(points.values())) > 1:
        raise ValueError(f"`evidences` must be of the same data, got numbers of points {points}. Use all of them for each.")
