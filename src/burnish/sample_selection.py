"""Few samples that predict like many: chosen among draws of a posterior, weighted, and moved, by unlabelled inputs."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_like, check_memory, check_tensor
from burnish.heads import Model
from burnish.herding import choose, weigh
from burnish.likelihoods import GaussianNoise
from burnish.noise import check_generator, standard_normal
from burnish.posteriors import FlowPosterior, Gaussian, Posterior, SamplePosterior, WeightedSamples
from burnish.predictive import predict_at

__all__ = ["SampleSelection", "select_samples"]

_CHUNK_ENTRIES = 2**24  # entries of all candidates' predictions for some inputs
_HELD_OUT = 10  # one input in so many says when to stop, and as many judge: neither is used to choose
_BATCH = 1000  # inputs that one step of moving sees
_LEARNING_RATE = 0.1  # in standard deviations of the noise
_CHECK_EVERY = 10
_SPREAD_SHARE = 0.5  # of errors in the spread, beside those in the average: mutual information depends on it
_NUM_SETS = 20  # of draws as they come, to compare with


@dataclass(frozen=True, eq=False)
class SampleSelection:
    """What `select_samples` chose, and how close its predictions are to those of all candidates."""

    posterior: WeightedSamples
    """The samples and their weights, which `predict` and `BayesianNetwork.with_samples` take."""
    distance: float
    """Mean total variation distance between predictions with these samples and with all candidates, on inputs that were not
    used to choose; for regression the mean distance of predicted means, by the posterior's standard deviation."""
    drawn_distance: float
    """The same for as many candidates drawn at random, on average."""
    num_candidates: int
    seconds: float


@dataclass(frozen=True, eq=False)
class _Aim:
    """For some inputs what is to be matched, the average of candidates' predictions (N, K), and how it is measured.

    Errors are divided by the square root of the spread over candidates: squares then add up much as absolute values do.
    """

    inputs: Tensor
    mean: Tensor
    scale: Tensor
    second_mean: Tensor
    """(N, K'): what else depends on a sample: its entropy, or for regression the square of its deviation."""
    second_scale: Tensor

    def part(self, rows: Tensor) -> "_Aim":
        """For some of the inputs."""
        return _Aim(self.inputs[rows], self.mean[rows], self.scale[rows], self.second_mean[rows], self.second_scale[rows])


def select_samples(
    model: Model,
    posterior: Posterior,
    inputs: Tensor,
    *,
    num_samples: int = 20,
    num_candidates: int = 1000,
    num_steps: int = 100,
    generator: torch.Generator,
) -> SampleSelection:
    """Chooses and weights samples so that their average predicts what the posterior predicts, with far fewer of them.

    Candidates are drawn in pairs of opposite noise, whose average is right to first order on any input. Of them pairs are
    chosen one after the other, each the one that brings the average over the chosen ones closest to that over all
    candidates; a convex problem gives them weights; and a few steps of Adam move their noise, which keeps its length, to
    come closer still. A fifth of the inputs takes no part in this: half of it says when to stop, the other half how good the
    result is.
    Posteriors that are not made of noise, such as chains, and odd numbers of samples are chosen one by one; chains are not
    moved.

    Args:
        model: head and likelihood.
        posterior: anything with `sample`.
        inputs: unlabelled, like those to be predicted later: features (N, P), or what a network takes. A few thousand do.
        num_samples: how many to keep.
        num_candidates: draws to choose among; of a `SamplePosterior` at most as many as it has.
        num_steps: of moving; 0 keeps draws as they were drawn.
        generator: on the device of the posterior.
    """
    num_candidates = _check(model, posterior, inputs, num_samples, num_candidates, num_steps, generator)
    with torch.inference_mode(False), torch.autocast(inputs.device.type, enabled=False):
        began = time.perf_counter()
        inputs = inputs.clone() if inputs.is_inference() else inputs
        made_of_noise = isinstance(posterior, Gaussian | FlowPosterior)
        paired = made_of_noise and num_samples % 2 == 0
        noise, theta = _draw_candidates(posterior, num_candidates + num_candidates % 2 * paired, paired, generator)
        check_like("inputs", inputs, theta, "the posterior")
        order = torch.randperm(len(inputs), generator=generator, device=inputs.device)
        tenth = max(1, len(inputs) // _HELD_OUT)
        gram, aim = _compare(model, theta, inputs[order[2 * tenth :]])
        stop, judge = (
            _compare(model, theta, inputs[rows], with_gram=False)[1] for rows in (order[:tenth], order[tenth : 2 * tenth])
        )
        chosen, weights = _choose(gram, num_samples, paired)
        samples, weights = theta[chosen], weights.to(theta)
        if noise is not None and num_steps > 0:
            assert isinstance(posterior, Gaussian | FlowPosterior)
            samples = _move(model, posterior, noise[chosen], weights, paired, aim, stop, num_steps, generator)
        return SampleSelection(
            posterior=WeightedSamples(samples, weights),
            distance=_distance(model, samples, weights, judge),
            drawn_distance=_drawn_distance(model, theta, num_samples, judge, generator),
            num_candidates=len(theta),
            seconds=time.perf_counter() - began,
        )


def _draw_candidates(
    posterior: Posterior, count: int, paired: bool, generator: torch.Generator
) -> tuple[Tensor | None, Tensor]:
    """Draws (M, d), in halves of opposite noise if paired, and the noise that they are made of where there is any."""
    if not isinstance(posterior, Gaussian | FlowPosterior):
        return None, posterior.sample(count, generator=generator)
    like = posterior.mean if isinstance(posterior, Gaussian) else posterior.base.mean
    noise = standard_normal(count, like, generator=generator, noise="antithetic" if paired else "iid")
    return noise, _from_noise(posterior, noise)


def _from_noise(posterior: Gaussian | FlowPosterior, noise: Tensor) -> Tensor:
    return posterior.from_noise(noise) if isinstance(posterior, Gaussian) else posterior.from_noise(noise)[0]


@torch.no_grad()
def _compare(model: Model, theta: Tensor, inputs: Tensor, *, with_gram: bool = True) -> tuple[Tensor, _Aim]:
    """Products (M, M) of the candidates' deviations from their average prediction, float64, and that average to aim at."""
    gram = theta.new_zeros((len(theta), len(theta)) if with_gram else (0, 0), dtype=torch.float64)
    aims: list[_Aim] = []
    for chunk in torch.split(inputs, max(1, _CHUNK_ENTRIES // (len(theta) * model.head.entries))):
        first = _predictions(model, model(theta, chunk))
        mean = first.mean(0)
        second = _spread(model, first, mean)
        aims.append(_Aim(chunk, mean, _scale(first), second.mean(0), _scale(second)))
        if with_gram:
            for errors in _errors(model, first, aims[-1]):
                flat = errors.flatten(1)
                gram += flat @ flat.T
    names = ("inputs", "mean", "scale", "second_mean", "second_scale")
    return gram, _Aim(*(torch.cat([getattr(aim, name) for aim in aims]) for name in names))


def _predictions(model: Model, outputs: Tensor) -> Tensor:
    """Probabilities, or means, under each sample (S, n, K)."""
    return outputs if isinstance(model.likelihood, GaussianNoise) else model.likelihood.probs(outputs)


def _spread(model: Model, predictions: Tensor, mean: Tensor) -> Tensor:
    """What else the average over samples depends on: their entropies (S, n, 1), or squared deviations (S, n, K)."""
    if isinstance(model.likelihood, GaussianNoise):
        return (predictions - mean).square()
    tiny = torch.finfo(predictions.dtype).tiny  # a probability of zero has no logarithm to differentiate
    return -torch.xlogy(predictions, predictions.clamp_min(tiny)).sum(-1, keepdim=True)


def _scale(values: Tensor) -> Tensor:
    return values.std(0).clamp_min(1e-12).sqrt()


def _errors(model: Model, predictions: Tensor, aim: _Aim) -> tuple[Tensor, Tensor]:
    """How far each sample is from the aim: in its prediction, and in its spread."""
    first = (predictions - aim.mean) / aim.scale
    second = (_spread(model, predictions, aim.mean) - aim.second_mean) / aim.second_scale
    return first, _SPREAD_SHARE * second


def _choose(gram: Tensor, num_samples: int, paired: bool) -> tuple[Tensor, Tensor]:
    """Indices and weights of samples, or of pairs of them, by the products (M, M) of all deviations."""
    if not paired:
        index = choose(gram, num_samples)
        return index, weigh(gram[index][:, index])
    half = len(gram) // 2  # the deviation of a pair is the mean of its two
    gram = 0.25 * (gram[:half, :half] + gram[:half, half:] + gram[half:, :half] + gram[half:, half:])
    index = choose(gram, num_samples // 2)
    weights = 0.5 * weigh(gram[index][:, index])
    return torch.cat([index, index + half]), torch.cat([weights, weights])


def _move(
    model: Model,
    posterior: Gaussian | FlowPosterior,
    noise: Tensor,
    weights: Tensor,
    paired: bool,
    aim: _Aim,
    judge: _Aim,
    num_steps: int,
    generator: torch.Generator,
) -> Tensor:
    """The samples with their noise turned, at constant length, so that their average comes closer to the aim.

    What is returned is best on the inputs of `judge`, which no step sees.
    """
    free = (noise[: len(noise) // 2] if paired else noise).clone().requires_grad_()
    length = free.detach().norm(dim=1, keepdim=True)
    optimiser = torch.optim.Adam([free], lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_steps)
    size = max(1, min(_BATCH, len(aim.inputs), _CHUNK_ENTRIES // (len(noise) * model.head.entries)))

    def samples() -> Tensor:
        return _from_noise(posterior, torch.cat([free, -free]) if paired else free)

    best = math.inf
    kept = samples().detach()
    for step in range(num_steps + 1):
        if step % _CHECK_EVERY == 0 or step == num_steps:
            with torch.no_grad():
                parts = torch.split(torch.arange(len(judge.inputs), device=noise.device), size)
                found = sum(len(part) * float(_loss(model, samples(), weights, judge.part(part))) for part in parts)
            if found < best:
                best, kept = found, samples().detach()
        if step == num_steps:
            break
        rows = torch.randint(len(aim.inputs), (size,), generator=generator, device=noise.device)
        with torch.enable_grad():
            loss = _loss(model, samples(), weights, aim.part(rows))
            (free.grad,) = torch.autograd.grad(loss, [free])  # and no gradients for a network's other parameters
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            free *= length / free.norm(dim=1, keepdim=True)
    return kept


def _loss(model: Model, theta: Tensor, weights: Tensor, aim: _Aim) -> Tensor:
    """The squared errors of the weighted average over samples, per input."""
    errors = _errors(model, _predictions(model, model(theta, aim.inputs)), aim)
    averages = [torch.tensordot(weights, error, 1) for error in errors]
    return torch.stack([average.square().sum(-1).mean() for average in averages]).sum()


@torch.no_grad()
def _distance(model: Model, theta: Tensor, weights: Tensor, judge: _Aim) -> float:
    """Between the weighted average over samples and what is aimed at."""
    error = predict_at(model, theta, judge.inputs, weights=weights, keep_samples=False).mean - judge.mean
    if isinstance(model.likelihood, GaussianNoise):
        return float((error.abs() / judge.scale.square()).mean())
    return float(0.5 * error.abs().sum(-1).mean())


def _drawn_distance(model: Model, theta: Tensor, num_samples: int, judge: _Aim, generator: torch.Generator) -> float:
    """The average over random sets of candidates."""
    weights = theta.new_full((num_samples,), 1.0 / num_samples)
    total = 0.0
    for _ in range(_NUM_SETS):
        rows = torch.randperm(len(theta), generator=generator, device=theta.device)[:num_samples]
        total += _distance(model, theta[rows], weights, judge)
    return total / _NUM_SETS


def _check(
    model: Model,
    posterior: Posterior,
    inputs: Tensor,
    num_samples: int,
    num_candidates: int,
    num_steps: int,
    generator: torch.Generator,
) -> int:
    """Refuses what cannot be chosen from; how many candidates there are."""
    check_tensor("inputs", inputs)
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a Model, got {type(model).__name__}. Pass `Model(head, likelihood)`.")
    if not hasattr(posterior, "sample"):
        raise TypeError(f"`posterior` must have `sample`, got {type(posterior).__name__}. Pass a fit's `.posterior`.")
    model.head.check_inputs("inputs", inputs)
    check_finite("inputs", inputs, "Check the network's activations on these points.")
    check_generator(generator, inputs.device)
    if len(inputs) < 3:
        raise ValueError(
            f"`inputs` must hold at least three points, got {len(inputs)}: two do not choose but judge. Pass thousands."
        )
    check_at_least("num_samples", num_samples, 1)
    check_at_least("num_candidates", num_candidates, max(2, num_samples), "Pass a hundred times as many as samples.")
    check_at_least("num_steps", num_steps, 0)
    if isinstance(posterior, SamplePosterior):
        num_candidates = min(num_candidates, len(posterior.samples))
        if num_candidates < max(2, num_samples):
            raise ValueError(
                f"`posterior` must hold at least 2 and at least `num_samples`, {num_samples}, samples to choose among, got "
                f"{num_candidates}. Keep fewer samples."
            )
    what = f"the choice among {num_candidates:,} candidates of {posterior.dim:,} parameters"
    size = 3 * 8 * num_candidates**2 + 3 * inputs.element_size() * num_candidates * posterior.dim
    check_memory(what, size, inputs.device, "pass fewer `num_candidates`.")
    return num_candidates
