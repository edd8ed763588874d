"""Whether to trust a posterior: whether its predictions are those of the exact one, and what points held out say of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_tensor
from burnish.convergence import rhat
from burnish.diagnostics import importance, log_ratios
from burnish.drift import Drift, measure_drift
from burnish.held_out import HeldOut, held_out_reason
from burnish.inference.hmc import HmcFit
from burnish.inference.sampler import FEW_DIVERGENCES
from burnish.noise import check_generator
from burnish.posteriors import DensityPosterior, Posterior, SamplePosterior
from burnish.target import Target

__all__ = ["Verdict", "judge"]

_ENTRIES = 2**27  # parameters or outputs of all importance draws, where that allows between 100 and 1000
_MAX_RHAT = 1.01
_LONG_CHAIN = 50  # draws from which on R-hat of chains can be expected to be below that


@dataclass(frozen=True)
class Verdict:
    """What is known about a posterior.

    `trusted` is about predictions: they are those of the exact posterior, for all that transitions from its draws show, and
    on the held-out points, where there are any, they are not worse than the network's by any amount that matters, nor
    clearly worse than temperature scaling's. It cannot know of a mode that no chain visits. And it is about averaged
    predictions: where these do not depend on the width of the posterior, one that is much too narrow may be trusted though
    its mutual information is too small; k-hat shows that.
    """

    trusted: bool
    reason: str
    drift: Drift
    khat: float | None
    """Shape of the importance weights' tail: below 0.5 the posterior is close to the target where it has mass, above 0.7
    nothing is shown. It grows with the number of parameters whatever predictions are like. None for samples.
    """
    ess: float | None
    """Effective number of importance draws, of `num_draws`; None for samples."""
    num_draws: int
    elbo: float | None
    """None for samples."""
    elbo_gain: float
    """Over what was refined, nats: the Gaussian at the mode; 0 where nothing was refined."""
    elbo_gain_standard_error: float
    rhat: float | None = None
    """The largest of all parameters, for samples of several chains."""
    divergences: int | None = None
    """Of the run that the samples come from."""
    relocated: int | None = None
    """Its chains that could not move and were put where others were."""
    held_out: HeldOut | None = None

    def __str__(self) -> str:
        """Two lines for people."""
        state = "trusted" if self.trusted else "not trusted"
        drift, facts = self.drift, []
        if drift.moved:
            facts.append(
                f"predictions {drift.distance:.4f} from the exact posterior's, where 20 exact draws would be "
                f"{drift.few_draws:.4f} off and {drift.tolerance:.4f} are allowed"
            )
        facts.append(f"acceptance {drift.accept_rate:.2f}")
        if self.khat is not None and self.ess is not None:
            facts.append(f"k-hat {self.khat:.2f}, {self.ess:.0f} of {self.num_draws} draws effective")
        if self.rhat is not None:
            facts.append(f"{self.num_draws} draws, R-hat {self.rhat:.3f}")
        if self.divergences:
            facts.append(f"{self.divergences} divergences")
        if self.relocated:
            facts.append(f"{self.relocated} chains could not move and started elsewhere")
        if self.elbo_gain:
            nats = round(self.elbo_gain, 2) + 0.0  # zero added: a tiny negative number would print as -0.00
            facts.append(f"refinement gained {nats:.2f} ± {self.elbo_gain_standard_error:.2f} nats")
        return f"{state}: {self.reason}\nposterior: {'; '.join(facts)}"


@torch.no_grad()
def judge(
    target: Target,
    posterior: Posterior,
    *,
    inputs: Tensor | None = None,
    base: DensityPosterior | None = None,
    run: HmcFit | None = None,
    held_out: HeldOut | None = None,
    num_draws: int | None = None,
    generator: torch.Generator,
) -> Verdict:
    """Weighs a posterior against its target, and its predictions against points held out.

    The gate is a drift test: draws of the posterior are moved by transitions that keep the exact posterior, and predictions
    must not move by more than those of a few exact draws differ.

    Args:
        target: the log posterior.
        posterior: a Gaussian, a flow, or samples.
        inputs: features (M, P) to predict for; some of the training inputs when not given.
        base: what a density was refined from, such as the Gaussian at the mode, for the gain in ELBO.
        run: what samples come from: its R-hat and divergences enter the verdict, whatever part of its draws is judged.
        held_out: scores on held-out points, as in `bnn.verdict.held_out`; without them, nothing is said about whether the
            target itself is any good.
        num_draws: of a density, for importance weights and ELBO; by the size of the data when not given.
        generator: on the device of the posterior.
    """
    _check_posterior(target, posterior)
    check_generator(generator, target.data.inputs.device)
    _check_companions(target, posterior, base, run, held_out, num_draws)
    inputs = target.data.inputs if inputs is None else inputs
    _check_inputs(target, inputs)
    if num_draws is None:
        entries = max(target.dim, len(target.data) * target.model.head.entries)
        num_draws = min(1000, max(100, _ENTRIES // entries))
    check_at_least("num_draws", num_draws, 25, "The tail of the weights needs that many.")
    if isinstance(posterior, SamplePosterior):
        numbers = _samples(posterior, run)
    else:
        numbers = _weights(target, posterior, base, num_draws, generator)
    drift = measure_drift(target, posterior, inputs, generator=generator)
    wrong = _drift_reason(drift) or _chains_reason(posterior, numbers, run)
    right = "its predictions are those of the exact posterior, as far as transitions from its draws show."
    verdict = Verdict(trusted=wrong is None, reason=wrong or right, drift=drift, **numbers)
    return verdict if held_out is None else with_held_out(verdict, held_out)


def with_held_out(verdict: Verdict, held_out: HeldOut | None) -> Verdict:
    """The verdict on the posterior, and on the network that it is for; None where no points were held out."""
    trusted, reason = held_out_reason(held_out)
    if not verdict.trusted:
        trusted, reason = False, verdict.reason
    return replace(verdict, trusted=trusted, reason=reason, held_out=held_out)


def _check_companions(
    target: Target, posterior: Posterior, base: Any, run: Any, held_out: Any, num_draws: int | None
) -> None:
    """Refuses what would be ignored beside this posterior, or is something else."""
    samples = isinstance(posterior, SamplePosterior)
    if run is not None and not samples:
        raise ValueError("`run` must come with the samples it made, got a density beside it. Pass `run.posterior`.")
    if samples and (base is not None or num_draws is not None):
        name = "num_draws" if base is None else "base"
        raise ValueError(f"`{name}` must come with a density, got samples beside it. Leave it out.")
    for name, value, kind in (("run", run, HmcFit), ("held_out", held_out, HeldOut), ("base", base, DensityPosterior)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"`{name}` must be a {kind.__name__}, got {type(value).__name__}. Leave it out.")
    name, given = ("base", base) if run is None else ("run", run.posterior)
    if given is not None and given.dim != target.dim:
        raise ValueError(f"`{name}` must have the {target.dim} dimensions of the target, got {given.dim}. Pass another.")


def _check_posterior(target: Target, posterior: Posterior) -> None:
    if not isinstance(target, Target):
        raise TypeError(f"`target` must be a Target, got {type(target).__name__}. Predictions need its model and data.")
    if not isinstance(posterior, SamplePosterior | DensityPosterior):
        raise TypeError(
            f"`posterior` must be samples, or have a density, got {type(posterior).__name__}. "
            "Wrap draws in `SamplePosterior`."
        )
    if posterior.dim != target.dim:
        raise ValueError(
            f"`posterior` must have the {target.dim} dimensions of the target, got {posterior.dim}. "
            "Pass the target that it was fitted to."
        )
    if isinstance(posterior, SamplePosterior):
        check_like("posterior.samples", posterior.samples, target.data.inputs, "`target.data.inputs`")


def _check_inputs(target: Target, inputs: Tensor) -> None:
    check_tensor("inputs", inputs)
    target.model.head.check_inputs("inputs", inputs)
    if len(inputs) == 0:
        raise ValueError("`inputs` must hold at least one point, got none. Leave them out for those of the target.")
    check_like("inputs", inputs, target.data.inputs, "`target.data.inputs`")
    check_finite("inputs", inputs, "Check the network's activations on these points.")


def _weights(
    target: Target, posterior: Posterior, base: DensityPosterior | None, num_draws: int, generator: torch.Generator
) -> dict[str, Any]:
    """What importance weights say about a density."""
    assert isinstance(posterior, DensityPosterior)
    state = generator.get_state()
    ratios = log_ratios(target, posterior, num_draws, generator=generator)
    gains = torch.zeros_like(ratios)
    if base is not None:
        generator.set_state(state)  # the same noise for both, so that most of it cancels in the difference
        gains = ratios - log_ratios(target, base, num_draws, generator=generator)
    weights = importance(ratios)
    return {
        "khat": weights.khat,
        "ess": weights.ess,
        "num_draws": num_draws,
        "elbo": float(ratios.mean()),
        "elbo_gain": float(gains.mean()),
        "elbo_gain_standard_error": float(gains.std()) / num_draws**0.5,
    }


def _samples(posterior: SamplePosterior, run: HmcFit | None) -> dict[str, Any]:
    """What chains say about themselves."""
    if run is not None:
        largest: float | None = run.rhat if run.nested_rhat is None else run.nested_rhat
    else:
        known = posterior.num_chains is not None and posterior.num_chains > 1 and posterior.draws.shape[1] >= 4
        largest = float(rhat(posterior.draws).max()) if known else None
    return {
        "khat": None,
        "ess": None,
        "num_draws": len(posterior.samples if run is None else run.posterior.samples),
        "elbo": None,
        "elbo_gain": 0.0,
        "elbo_gain_standard_error": 0.0,
        "rhat": largest,
        "divergences": None if run is None else run.divergences,
        "relocated": None if run is None else run.relocated,
    }


def _drift_reason(drift: Drift) -> str | None:
    """What is wrong with the predictions, if anything."""
    if not drift.moved:
        return (
            f"chains that start at its draws are still on their way (acceptance {drift.accept_rate:.2f}, trajectories of "
            f"{drift.length:.2f} radians{', variances still growing' if drift.growing else ''}), so it is far from the "
            "exact posterior."
        )
    if not drift.exact:
        return (
            f"its predictions differ from those of the exact posterior by {drift.distance:.3f} in total variation, "
            f"where {drift.tolerance:.3f} would do."
        )
    return None


def _chains_reason(posterior: Posterior, numbers: dict[str, Any], run: HmcFit | None) -> str | None:
    """What is wrong with the chains that samples come from, if anything."""
    if not isinstance(posterior, SamplePosterior):
        return None
    long = run is not None or posterior.draws.shape[1] >= _LONG_CHAIN  # R-hat of short ones is large by chance
    if long and numbers["rhat"] is not None and not numbers["rhat"] < _MAX_RHAT:
        return f"its chains have not converged: R-hat {numbers['rhat']:.3f} after {numbers['num_draws']} draws."
    if run is not None and not run.converged:
        return f"its chains have not converged: {run.ess_bulk:.0f} effective of {numbers['num_draws']} draws."
    if numbers.get("divergences") and numbers["divergences"] > FEW_DIVERGENCES * numbers["num_draws"]:
        return f"{numbers['divergences']} of {numbers['num_draws']} trajectories diverged, so regions may be missing."
    return None
