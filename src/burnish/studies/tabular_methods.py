"""Every method of the study `tabular` on all splits of one table, and what its predictions score.

All methods have the same networks, training rows and validation rows. No network is trained on the latter. They choose the
weight decay of the networks, which ensembles and networks with dropout share, and then what else a method lets one choose.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnish import metrics
from burnish.errors import FitError
from burnish.heads import Model
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import fit_laplace
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import Posterior
from burnish.refine import refine
from burnish.studies.tabular_networks import draw_masks
from burnish.studies.tabular_problem import Mode, Problem, run_groups
from burnish.studies.tabular_scores import Drawn, choose_scale
from burnish.target import Target

__all__ = ["ALL_LAYERS", "DROPOUT", "LAPLACE", "METHODS", "MODE", "NETWORK", "REFINE", "run_methods"]

NETWORK, TEMPERATURE, DROPOUT, ENSEMBLE = "network", "temperature", "MC dropout", "ensemble"
LAPLACE, REFINE, MODE, ALL_LAYERS = "recentred Laplace", "burnish.refine", "mode of all layers", "burnish, all layers"
METHODS = (NETWORK, TEMPERATURE, DROPOUT, ENSEMBLE, LAPLACE, REFINE, MODE, ALL_LAYERS)


def run_methods(problem: Problem) -> dict[str, dict[str, Any]]:
    """Scores of every method, as lists over splits; seconds of all splits, without the network that all begin with."""
    methods: dict[str, Callable[[Problem], tuple[Drawn, dict[str, Any]]]] = {
        NETWORK: _network,
        TEMPERATURE: _temperature,
        DROPOUT: _dropout,
        ENSEMBLE: _ensemble,
        LAPLACE: _last_layer,
        REFINE: _refine,
        MODE: _modes,
        ALL_LAYERS: _all_layers,
    }
    if problem.num_classes is None:
        del methods[TEMPERATURE]  # the network's noise is chosen by the validation rows as it is
    _ = problem.network
    found = {}
    for name, run in methods.items():
        began = time.perf_counter()
        drawn, facts = run(problem)
        found[name] = {**score(drawn, problem), **facts, "seconds": time.perf_counter() - began}
    return found


def score(drawn: Drawn, problem: Problem) -> dict[str, list[float]]:
    """On the test rows, targets in their own units."""
    targets, unit = problem.rows.test[1], problem.rows.target_std
    scores = {"log_likelihood": (drawn.log_likelihood(targets) - unit.log()).tolist()}
    if problem.num_classes is None:
        errors = drawn.outputs.mean(1).squeeze(-1).double() - targets
        return scores | {"rmse": (unit * errors.square().mean(1).sqrt()).tolist()}
    probs = (drawn.outputs.double() / drawn.scale[:, None, None, None]).softmax(-1).mean(1)
    pairs = list(zip(probs, targets, strict=True))
    return scores | {
        "accuracy": [metrics.accuracy(*pair) for pair in pairs],
        "ece": [metrics.ece(*pair) for pair in pairs],
    }


def _network(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    ones = torch.ones(problem.num_splits, dtype=torch.float64)
    scale = ones if problem.num_classes else problem.network_noise
    facts = {"weight_decay": problem.weight_decay.tolist()}
    return Drawn(run_groups(problem.network, problem.rows.test[0], 1), scale), facts


def _temperature(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    return _scaled(problem, lambda inputs: run_groups(problem.network, inputs, 1))


def _ensemble(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    return _scaled(problem, lambda inputs: run_groups(problem.members, inputs, problem.num_members))


def _scaled(problem: Problem, run: Callable[[Tensor], Tensor]) -> tuple[Drawn, dict[str, Any]]:
    scale, _ = choose_scale(run(problem.rows.validation[0]), problem.rows.validation[1])
    return Drawn(run(problem.rows.test[0]), scale), {"scale": scale.tolist()}


def _dropout(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    """The share of units left out by the validation rows, each with the scale that suits it best."""
    networks, count = problem.dropped(), problem.num_splits
    generator = make_generator(1000 * problem.seed + 2)
    masks = [
        draw_masks(torch.full((count,), share), problem.num_draws, problem.num_hidden, generator=generator)
        for share in problem.dropouts
    ]
    groups = [networks[number * count : (number + 1) * count] for number in range(len(masks))]
    chosen = []
    for group, mask in zip(groups, masks, strict=True):
        chosen.append(choose_scale(group.dropped(problem.rows.validation[0], mask), problem.rows.validation[1]))
    scales, values = (torch.stack(column) for column in zip(*chosen, strict=True))
    best, splits = values.argmax(0), torch.arange(count)
    outputs = torch.stack([group.dropped(problem.rows.test[0], mask) for group, mask in zip(groups, masks, strict=True)])
    shares = [problem.dropouts[number] for number in best.tolist()]
    return Drawn(outputs[best, splits], scales[best, splits]), {"dropout": shares}


def _last_layer(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    """A Gaussian at the mode of the last layer's posterior under a zero-mean prior."""
    network, rows = problem.network, problem.rows
    features = [network.hidden(part[0]) for part in (rows.train, rows.validation, rows.test)]

    def fit(split: int, precision: float) -> tuple[Model, Posterior]:
        likelihood, outputs = problem.likelihood(split), problem.num_classes or 1
        train, targets = features[0][split], rows.train[1][split]
        target = Target.last_layer(train, targets, prior_precision=precision, likelihood=likelihood, num_outputs=outputs)
        return target.model, fit_laplace(target).posterior

    return _by_precision(problem, problem.layer_precisions, fit, features[1], features[2])


def _modes(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    """The mode of all layers near the network's weights: what a posterior there has to be better than."""
    found = [modes[problem.best_mode(split)] for split, modes in enumerate(problem.modes)]
    targets = problem.rows.validation[1]
    scale, _ = choose_scale(torch.stack([mode.outputs(problem.rows.validation[0]) for mode in found]), targets)
    outputs = torch.stack([mode.outputs(problem.rows.test[0]) for mode in found])
    return Drawn(outputs, scale), {"precision": [float(mode.target.prior_precision) for mode in found]}


def _all_layers(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    """A Gaussian at a mode, with its full covariance, refined by a flow.

    The first prior is that of the best mode. From there it gets stronger as long as validation rows are predicted better, or
    weaker if the first step the other way was none.
    """
    outputs, chosen = [], []
    for split, modes in enumerate(problem.modes):
        first = problem.best_mode(split)
        best, number = _refined(problem, modes[first]), first
        for step in (1, -1):
            while number == first or (number > first) == (step > 0):
                if not 0 <= number + step < len(modes):
                    break
                trial = _refined(problem, modes[number + step])
                if trial[0] <= best[0]:
                    break
                best, number = trial, number + step
        outputs.append(modes[number].target.model(best[1], problem.rows.test[0][split]))
        chosen.append(float(modes[number].target.prior_precision))
    return Drawn(torch.stack(outputs), problem.posterior_noise), {"precision": chosen}


def _refined(problem: Problem, mode: Mode) -> tuple[float, Tensor]:
    """Log-likelihood of validation rows by draws of a refined posterior, and the draws."""
    generator, split = problem.generator(mode.split), mode.split
    base = fit_laplace(mode.target, mode.theta, structure="full", recentre=False).posterior
    fitted = fit_flow(mode.target, base, generator=generator, max_steps=problem.flow_steps).posterior
    draws = fitted.sample(problem.num_draws, generator=generator)
    outputs = mode.target.model(draws, problem.rows.validation[0][split]).unsqueeze(0)
    held_out = Drawn(outputs, problem.posterior_noise[split : split + 1])
    return float(held_out.log_likelihood(problem.rows.validation[1][split].unsqueeze(0))), draws


def _by_precision(
    problem: Problem,
    precisions: tuple[float, ...],
    fit: Callable[[int, float], tuple[Model, Posterior]],
    validation: Tensor,
    test: Tensor,
) -> tuple[Drawn, dict[str, Any]]:
    """Of posteriors under several priors the one whose draws suit the validation rows best.

    Their noise is that of the likelihood: one that is chosen for the draws, as for an ensemble, would be the width of a
    kernel around so many of them, and some test point is far from all.
    """
    outputs, chosen, failed, noise = [], [], 0, problem.posterior_noise
    for split in range(problem.num_splits):
        trials = []
        for precision in precisions:
            try:
                model, posterior = fit(split, precision)
            except FitError:
                failed += 1
                continue
            draws = posterior.sample(problem.num_draws, generator=problem.generator(split))
            held_out = Drawn(model(draws, validation[split]).unsqueeze(0), noise[split : split + 1])
            value = float(held_out.log_likelihood(problem.rows.validation[1][split].unsqueeze(0)))
            trials.append((value, precision, model, draws))
        if not trials:
            raise FitError(f"split {split} has a posterior under none of the priors. Pass others.")
        _, precision, model, draws = max(trials, key=lambda trial: trial[0])
        outputs.append(model(draws, test[split]))
        chosen.append(precision)
    return Drawn(torch.stack(outputs), noise), {"precision": chosen, "failed_precisions": failed}


def _refine(problem: Problem) -> tuple[Drawn, dict[str, Any]]:
    """`burnish.refine` as it comes: its own prior, data, noise and twenty draws."""
    rows, outputs, scales = problem.rows, [], []
    facts: dict[str, list[Any]] = {"rung": [], "trusted": [], "data": []}
    for split in range(problem.num_splits):
        train, validation = (tuple(tensor[split] for tensor in part) for part in (rows.train, rows.validation))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is not trusted is in the record
            bnn = refine(problem.network.module(split), train, validation=validation, seed=problem.seed, progress=False)
        samples = bnn.predict(rows.test[0][split]).samples
        assert samples is not None
        likelihood = bnn.model.likelihood
        noise = likelihood.std if isinstance(likelihood, GaussianNoise) else 1.0
        outputs.append(samples.log() if problem.num_classes else samples)
        scales.append(noise)
        found = {"rung": bnn.rungs[-1].method, "trusted": bnn.verdict.trusted, "data": bnn.tuning.data}
        for key, value in found.items():
            facts[key].append(value)
    return Drawn(torch.stack(outputs), torch.tensor(scales, dtype=torch.float64)), facts
