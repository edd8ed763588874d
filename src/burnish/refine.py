"""One call: from a trained network and its data to a network that knows what it does not know."""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_choice
from burnish.bayesian_network import BayesianNetwork, Refinement
from burnish.held_out import HeldOut, compare_held_out
from burnish.inference.curvature import check_dense_memory
from burnish.inference.flow import fit_flow
from burnish.inference.folds import make_folds
from burnish.inference.selection import check_prior, choose_target
from burnish.ladder import RUNGS, Ladder, draw_samples
from burnish.likelihoods import Likelihood
from burnish.noise import make_generator
from burnish.problem import Problem, check_different, read_problem, warn_of_shares
from burnish.progress import Stages
from burnish.storage import fingerprint
from burnish.target import Target
from burnish.verdict import with_held_out

__all__ = ["refine"]

METHODS = ("auto", *RUNGS)
STRUCTURES = ("auto", "full", "kron", "diagonal")
_NO_CHECK = (
    "no `validation` data: nothing shows that the result predicts better than the network. "
    "Pass points that the network was not trained on as `validation`."
)
_NO_VALIDATION = (
    "no `validation` data: the prior is chosen by the evidence of the training data. Where the network has overfitted them, "
    "that prior is too weak, and the result predicts worse than the network. Pass points that it was not trained on "
    "as `validation`, or a `prior_precision` that is known to be good."
)
_FLOW_OPTIONS = set(inspect.signature(fit_flow).parameters) - {"target", "base", "generator"}


def refine(
    network: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    head: str | None = None,
    likelihood: Likelihood | None = None,
    prior_mean: str | float | Tensor = "auto",
    prior_precision: str | float | Tensor = "auto",
    method: str = "auto",
    structure: str = "auto",
    flow: Mapping[str, Any] | None = None,
    num_samples: int = 20,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> BayesianNetwork:
    """Gives a trained network a Bayesian last layer, without training it again and without touching it.

    Features are computed once; the prior and the data to fit on are chosen by points held out; a Gaussian is put at the
    mode of the last layer's posterior and, where its predictions are not those of the exact posterior, refined by a flow or
    replaced by HMC; the result is scored on held-out points against the network and against temperature scaling, and its
    `verdict` says how it did.

    Args:
        network: a trained network that ends in an `nn.Linear`.
        data: what it was trained on: a loader of `(x, targets)`, `(x, targets, weights)` or dictionary batches, such a
            tuple or dictionary of tensors or arrays, or a `Dataset`.
        validation: data of the same kind that it was not trained on; a few hundred points do, a few thousand do better.
            Without it the prior is chosen by evidence, which is misled by features that the network has overfitted.
        head: name of the last layer; found when not given.
        likelihood: `Categorical()`, `Bernoulli()` or `GaussianNoise(std)`; by outputs and targets when not given, the noise
            then by the network's residuals. One output with targets 0 and 1 only is taken for a binary classifier.
        prior_mean: "auto", "zero", "head", "scaled head" (divided by the temperature), a number, or a vector (d,).
        prior_precision: "auto", a number, or a vector (d,).
        method: "laplace" (a Gaussian at the mode), "flow" (refined), "long flow" (with more layers, for longer), "hmc"
            (sampled in the flow's coordinates, for at most half an hour), or "auto", which begins with the first and goes on
            only while predictions are not those of the exact posterior.
        structure: of the covariance of the Gaussian, which a flow builds on: "full", "kron", "diagonal", or "auto": full for
            up to 6,000 parameters, "kron" beyond, or "diagonal" where each parameter has a precision of its own. Fitting a
            full one needs 48 bytes, and its file 4, times the square of their number. It does not change the choice of
            the prior.
        flow: options of `fit_flow`, such as `{"max_steps": 2000}`.
        num_samples: draws that predictions are averaged over.
        device: where the posterior is fitted; where the network is, when not given.
        seed: of all randomness, the shuffling of loaders included; the global random state is left as it was.
        progress: whether to show a bar, if on a terminal.

    Raises:
        ValueError: where an argument, the network or the data do not fit, before features are computed if possible.
        MemoryError: where what is asked for would not fit into memory.
    """
    check_choice("structure", structure, STRUCTURES)
    _check_arguments(network, likelihood, method, flow, num_samples, seed)
    _check_device(device)
    check_different(data, validation)
    check_prior(prior_mean, prior_precision, held_out=validation is not None)
    priors = {"prior_mean": prior_mean, "prior_precision": prior_precision}
    ladder = Ladder(method, dict(flow or {}), structure)
    with torch.inference_mode(False), Stages("refine", show=progress) as stages, _own_randomness(int(seed)):
        problem = read_problem(network, data, validation, head, likelihood, priors, device, stages)
        if problem.validation is None:
            warnings.warn(_NO_VALIDATION if isinstance(prior_precision, str) else _NO_CHECK, stacklevel=2)
        if structure == "full":  # before the prior is chosen, which takes longer than to see that this does not fit
            check_dense_memory(len(problem.theta), problem.train.inputs.device, problem.theta.dtype)
        warn_of_shares(problem)
        with stages.stage("prior and data"):
            target = choose_target(
                problem.model,
                problem.theta,
                problem.train,
                problem.validation,
                prior_mean=prior_mean,
                prior_precision=prior_precision,
                estimated_noise=problem.estimated_noise,
            )
        generator = make_generator(seed, target.data.inputs.device)
        with stages.stage("posterior"):
            inputs = (problem.validation or target.data).inputs
            fitted, rungs = ladder.climb(target, problem.theta, inputs, generator=generator)
            samples = draw_samples(fitted.posterior, num_samples, generator=generator)
        with stages.stage("check"):
            held_out = _score(problem, target, ladder, rungs[-1].method, num_samples, prior_mean, generator)
            verdict = with_held_out(rungs[-1].verdict, held_out)
    if held_out is not None and not verdict.trusted:
        warnings.warn(f"the result is not trusted: {verdict.reason}", stacklevel=2)
    assert target.tuning is not None
    refinement = Refinement(
        head=problem.backbone.head,
        model=problem.model,
        samples=samples,
        posterior=fitted.posterior,
        prior=target.prior,
        verdict=verdict,
        rungs=rungs,
        tuning=target.tuning,
        temperature=problem.temperature,
        seconds=stages.seconds,
        fingerprint=fingerprint(problem.backbone),
        inputs=problem.inputs,
    )
    return BayesianNetwork(problem.backbone, refinement)


def _score(
    problem: Problem,
    target: Target,
    ladder: Ladder,
    method: str,
    num_samples: int,
    prior_mean: str | float | Tensor,
    generator: torch.Generator,
) -> HeldOut | None:
    """Network, temperature scaling and result on held-out points; the last repeated without the points it is scored on."""
    if problem.validation is None:
        return None
    known = problem.model, problem.theta, problem.train, problem.validation, prior_mean
    folds = make_folds(*known, estimated_noise=problem.estimated_noise)
    refined = []
    for fold, fold_target in zip(folds.parts, folds.targets(target), strict=True):
        posterior = ladder.repeat(method, fold_target, problem.theta, generator=generator).posterior
        refined.append((fold.model, draw_samples(posterior, num_samples, generator=generator)))
    return compare_held_out(
        [fold.held_out for fold in folds.parts],
        network=[(problem.network_model, problem.theta.unsqueeze(0))] * len(refined),
        temperature=[(fold.recalibrated_model, fold.recalibrated_theta.unsqueeze(0)) for fold in folds.parts],
        refined=refined,
    )


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Loaders shuffle by the global generator: give them a seed of ours, and the user back his own state."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _check_device(device: torch.device | str | None) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"`device` must be one that torch can use here, got {device!r} ({str(error).splitlines()[0]}). "
            "Pass 'cpu', or leave it out for the network's own."
        ) from None


def _check_arguments(network: Any, likelihood: Any, method: str, flow: Any, num_samples: int, seed: int) -> None:
    """Refuses what can be refused without looking at the data."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"`network` must be a torch.nn.Module, got {type(network).__name__}. Pass the trained module.")
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"`likelihood` must be a Likelihood, got {likelihood!r}. "
            "Pass `Categorical()`, `Bernoulli()` or `GaussianNoise(std)`, or leave it out."
        )
    check_choice("method", method, METHODS)
    check_at_least("num_samples", num_samples, 1)
    check_at_least("seed", seed, 0)
    if flow is None:
        return
    if not isinstance(flow, Mapping):
        raise TypeError(f"`flow` must be options of `fit_flow` by name, got {type(flow).__name__}. Pass a dictionary.")
    if method == "laplace":
        raise ValueError("`flow` has options, but `method` 'laplace' has no flow. Leave one of them out.")
    unknown = sorted(set(flow) - _FLOW_OPTIONS)
    if unknown:
        raise ValueError(
            f"`flow` must hold options of `fit_flow`, got {', '.join(map(repr, unknown))}. "
            f"It takes {', '.join(sorted(_FLOW_OPTIONS))}."
        )
