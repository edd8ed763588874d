"""Posteriors with reference draws from posteriordb, as densities of unconstrained parameters, Jacobians included.

Scales are sampled as logarithms, the means of the mixture as the first and the logarithm of their distance, its weight as a
logit. Densities leave out constants.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = "posteriordb_reference.npz"


@dataclass(frozen=True, eq=False)
class Reference:
    """A posterior to sample, and draws that are known to be right."""

    log_prob: Callable[[Tensor], Tensor]
    """Of unconstrained parameters (S, d)."""
    constrain: Callable[[Tensor], Tensor]
    """From unconstrained parameters (..., d) to those that the draws are of."""
    start: Tensor
    """A guess (d,) as one makes it from a look at the data: no effects, all is noise."""
    draws: Tensor
    """By chain (10, 1000, D)."""

    @property
    def dim(self) -> int:
        return len(self.start)

    def log_prob_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            value = self.log_prob(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def available() -> bool:
    return "BURNISH_DATA" in os.environ and _path().is_file()


def reference(name: str) -> Reference:
    """The posterior of this name; posteriordb has `-` where the name has `__`."""
    make, data = POSTERIORS[name]
    with np.load(_path()) as file:
        values = {key: _tensor(value) for key, value in json.loads(str(file[f"data/{data}"])).items()}
        return Reference(*make(values), torch.from_numpy(file[f"{name}/draws"]))


def _path() -> Path:
    return Path(os.environ["BURNISH_DATA"]) / FILE


def _tensor(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _normal(value: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Log density of a normal, or of a half-normal, each up to the constant 2 pi."""
    std = torch.as_tensor(std, dtype=torch.float64)
    return -0.5 * ((value - mean) / std).square() - std.log()


def _half_cauchy(value: Tensor, scale: float) -> Tensor:
    return -torch.log1p((value / scale).square())


def _flat(beta: Tensor, sigma: Tensor) -> Tensor:
    return torch.zeros_like(sigma)


def _regression(design: Tensor, targets: Tensor, log_prior: Callable[[Tensor, Tensor], Tensor] = _flat):
    """Coefficients, then the logarithm of the noise; a flat prior is flat in the noise, not in its logarithm."""

    def log_prob(theta: Tensor) -> Tensor:
        beta, log_sigma = theta[:, :-1], theta[:, -1]
        sigma = log_sigma.exp()
        log_likelihood = _normal(targets, beta @ design.T, sigma.unsqueeze(1)).sum(1)
        return log_likelihood + log_prior(beta, sigma) + log_sigma

    def constrain(theta: Tensor) -> Tensor:
        return torch.cat([theta[..., :-1], theta[..., -1:].exp()], -1)

    start = torch.zeros(design.shape[1] + 1, dtype=torch.float64)
    start[-1] = targets.square().mean().sqrt().log()
    return log_prob, constrain, start


def _columns(*parts: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(parts[0]), *parts], 1)


def _eight_schools(data: dict[str, Tensor]):
    def constrain(theta: Tensor) -> Tensor:
        z, mu, tau = theta[..., :-2], theta[..., -2:-1], theta[..., -1:].exp()
        return torch.cat([mu + tau * z, mu, tau], -1)

    def log_prob(theta: Tensor) -> Tensor:
        effects, mu, tau = constrain(theta).split([8, 1, 1], 1)
        log_likelihood = _normal(data["y"], effects, data["sigma"]).sum(1)
        log_prior = _normal(theta[:, :-2], 0.0, 1.0).sum(1) + (_normal(mu, 0.0, 5.0) + _half_cauchy(tau, 5.0)).squeeze(1)
        return log_likelihood + log_prior + theta[:, -1]

    return log_prob, constrain, torch.zeros(10, dtype=torch.float64)


def _kidscore_momhs(data: dict[str, Tensor]):
    return _regression(_columns(data["mom_hs"]), data["kid_score"], lambda _, sigma: _half_cauchy(sigma, 2.5))


def _kidscore_interaction(data: dict[str, Tensor]):
    school, iq = data["mom_hs"], data["mom_iq"]
    return _regression(_columns(school, iq, school * iq), data["kid_score"], lambda _, sigma: _half_cauchy(sigma, 2.5))


def _blr(data: dict[str, Tensor]):
    return _regression(data["X"], data["y"], lambda beta, sigma: _normal(beta, 0.0, 10.0).sum(1) + _normal(sigma, 0.0, 10.0))


def _earn_height(data: dict[str, Tensor]):
    return _regression(_columns(data["height"]), data["earn"])


def _logearn_height(data: dict[str, Tensor]):
    return _regression(_columns(data["height"]), data["earn"].log())


def _autoregression(data: dict[str, Tensor]):
    values, order = data["y"], int(data["K"])
    lagged = [values[order - lag : len(values) - lag] for lag in range(1, order + 1)]
    return _regression(
        _columns(*lagged),
        values[order:],
        lambda beta, sigma: _normal(beta, 0.0, 10.0).sum(1) + _half_cauchy(sigma, 2.5),
    )


def _mixture(data: dict[str, Tensor]):
    def constrain(theta: Tensor) -> Tensor:
        first, log_distance, log_sigma, logit = theta.split([1, 1, 2, 1], -1)
        return torch.cat([first, first + log_distance.exp(), log_sigma.exp(), logit.sigmoid()], -1)

    def log_prob(theta: Tensor) -> Tensor:
        mu, sigma, _ = constrain(theta).split([2, 2, 1], 1)
        log_distance, log_sigma, logit = theta[:, 1], theta[:, 2:4], theta[:, 4:]
        log_weights = torch.nn.functional.logsigmoid(torch.cat([logit, -logit], 1))
        one, two = (_normal(data["y"], mu[:, k : k + 1], sigma[:, k : k + 1]) + log_weights[:, k : k + 1] for k in (0, 1))
        log_prior = (_normal(mu, 0.0, 2.0) + _normal(sigma, 0.0, 2.0) + 4.0 * log_weights).sum(1)
        log_jacobian = log_distance + log_sigma.sum(1) + log_weights.sum(1)
        return torch.logaddexp(one, two).sum(1) + log_prior + log_jacobian

    low, high = data["y"].quantile(torch.tensor([0.25, 0.75], dtype=torch.float64))
    log_distance = (high - low).log()
    return (
        log_prob,
        constrain,
        torch.stack([low, log_distance, log_distance - 1.0, log_distance - 1.0, torch.zeros_like(low)]),
    )


def _nes(data: dict[str, Tensor]):
    ages = [(data["age_discrete"] == age).double() for age in (2, 3, 4)]
    names = ("educ1", "gender", "income")
    design = _columns(data["real_ideo"], data["race_adj"], *ages, *(data[name] for name in names))
    return _regression(design, data["partyid7"])


def _kilpisjarvi(data: dict[str, Tensor]):
    mean, std = torch.stack([data["pmualpha"], data["pmubeta"]]), torch.stack([data["psalpha"], data["psbeta"]])
    return _regression(_columns(data["x"]), data["y"], lambda beta, _: _normal(beta, mean, std).sum(1))


# the density, and the data that it is of
POSTERIORS = {
    "eight_schools__eight_schools_noncentered": (_eight_schools, "eight_schools"),
    "kidiq__kidscore_momhs": (_kidscore_momhs, "kidiq"),
    "kidiq__kidscore_interaction": (_kidscore_interaction, "kidiq"),
    "sblrc__blr": (_blr, "sblrc"),
    "sblri__blr": (_blr, "sblri"),
    "earnings__earn_height": (_earn_height, "earnings"),
    "earnings__logearn_height": (_logearn_height, "earnings"),
    "arK__arK": (_autoregression, "arK"),
    "low_dim_gauss_mix__low_dim_gauss_mix": (_mixture, "low_dim_gauss_mix"),
    "nes1972__nes": (_nes, "nes1972"),
    "kilpisjarvi_mod__kilpisjarvi": (_kilpisjarvi, "kilpisjarvi_mod"),
}
