"""Points held out: how the network, temperature scaling and the result predict them, and whether that can be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish import metrics
from burnish.batches import Batch, mean_and_error, point_weights
from burnish.heads import Model
from burnish.likelihoods import GaussianNoise

__all__ = ["HeldOut", "Score"]

_Predictor = tuple[Model, Tensor]  # and the parameters (S, d) that it is averaged over

_CHUNK_ROWS = 1000  # held-out points whose outputs are computed at once
_NOTABLE = 2.0  # standard errors from which on a difference between predictors counts
_NEGLIGIBLE = 1e-3  # nats of NLL that matter to nobody, however sure they are
_NOTICEABLE = 0.02  # nats of NLL that should be looked into, however unsure they are


@dataclass(frozen=True)
class Score:
    """How a predictor did on points it was not fitted to."""

    nll: float
    """Mean negative log-likelihood, nats."""
    ece: float | None
    """Expected calibration error, 15 bins; None for regression."""


@dataclass(frozen=True)
class HeldOut:
    """The network, temperature scaling and the result on the same held-out points.

    What was fitted to some of these points was scored on the others, and the prior for a part was chosen by scores on the
    other parts. For regression, the network has noise of the size of its training residuals, and the second has noise of the
    size of its held-out residuals.
    """

    num_points: int
    network: Score
    temperature: Score
    refined: Score
    gain_over_network: float
    """NLL of the network less that of the result."""
    gain_over_network_error: float
    """Its standard error over points."""
    gain_over_temperature: float
    gain_over_temperature_error: float


@torch.no_grad()
def compare_held_out(
    parts: Sequence[Batch],
    *,
    network: Sequence[_Predictor],
    temperature: Sequence[_Predictor],
    refined: Sequence[_Predictor],
) -> HeldOut:
    """Scores three predictors on parts of the held-out points; each may have been fitted anew for every part."""
    log_probs: list[Tensor] = []
    scores: list[Score] = []
    weights = torch.cat([point_weights(part) for part in parts]).double()
    targets = torch.cat([part.targets for part in parts])
    for predictors in (network, temperature, refined):
        pairs = [_held_out_predictions(*predictor, part) for predictor, part in zip(predictors, parts, strict=True)]
        log_probs.append(torch.cat([log_prob for log_prob, _ in pairs]))
        probs = [prob for _, prob in pairs if prob is not None]
        ece = metrics.ece(torch.cat(probs), targets) if probs else None
        scores.append(Score(-float(weights @ log_probs[-1] / weights.sum()), ece))
    gains = [mean_and_error(log_probs[2] - rival, weights) for rival in log_probs[:2]]
    return HeldOut(len(targets), scores[0], scores[1], scores[2], *gains[0], *gains[1])


def _held_out_predictions(model: Model, theta: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Log predictive density of every point, and its class probabilities where there are classes."""
    likelihood = model.likelihood
    targets = likelihood.check_targets(batch.targets, model.head.num_outputs)
    log_probs, probs = [], []
    for start in range(0, len(batch), _CHUNK_ROWS):
        labels = targets[start : start + _CHUNK_ROWS]
        outputs = model(theta, batch.inputs[start : start + _CHUNK_ROWS]).double()
        if isinstance(likelihood, GaussianNoise):
            log_probs.append(likelihood.log_prob(outputs, labels).logsumexp(0) - math.log(len(theta)))
            continue
        average = likelihood.average(outputs)  # logarithms throughout: a probability may be too small for a number
        log_probs.append(likelihood.log_prob(average, labels))
        probs.append(likelihood.probs(average))
    return torch.cat(log_probs), torch.cat(probs) if probs else None


def held_out_reason(held_out: HeldOut | None) -> tuple[bool, str]:
    """Trusted where the points show no harm: not worse than the network, not clearly worse than temperature scaling."""
    if held_out is None:
        return False, "no held-out data was given, so nothing shows that it predicts better than the network did."
    rival = "temperature scaling" if held_out.network.ece is not None else "the network with its noise re-estimated"
    # rounded here, and zero added: a tiny negative number would print as -0.0000
    scores = (held_out.network, held_out.temperature, held_out.refined)
    network, scaled, refined = (round(score.nll, 4) + 0.0 for score in scores)
    others = f"the network {network:.4f}, {rival} {scaled:.4f}"
    numbers = f"held-out NLL {refined:.4f}, {others} ({held_out.num_points:,} points)."
    over_network = _compare(held_out.gain_over_network, held_out.gain_over_network_error)
    over_rival = _compare(held_out.gain_over_temperature, held_out.gain_over_temperature_error)
    if over_network == "worse":
        return False, f"it predicts worse than the network: {numbers}"
    if over_network == "perhaps worse":
        return False, f"so few points cannot tell it from the network, and it looks worse: {numbers}"
    if over_rival == "worse":
        return False, f"it predicts worse than {rival}: {numbers}"
    equal = [name for name, found in (("the network", over_network), (rival, over_rival)) if found != "better"]
    return True, numbers + (f" It cannot be told from {' or '.join(equal)}." if equal else "")


def _compare(gain: float, error: float) -> str:
    """In words; where there is no number, the worst is assumed."""
    if gain > _NOTABLE * error:
        return "better"
    clear = not gain >= -_NOTABLE * error
    if gain >= (-_NEGLIGIBLE if clear else -_NOTICEABLE):
        return "equal"
    return "worse" if clear else "perhaps worse"
