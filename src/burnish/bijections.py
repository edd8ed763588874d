"""Invertible maps with their log-determinants: the layers of a normalizing flow.

`forward(z)` gives (z', log |det dz'/dz|), `inverse(z')` gives (z, log |det dz/dz'|), for rows (S, d). A bijection is a
frozen value whose tensors are unconstrained parameters; `identity` makes one that changes nothing, so that refinement
starts at the ELBO of its base.
"""

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from burnish._checks import check_finite, check_like
from burnish.noise import check_generator

__all__ = ["Bijection", "Planar", "Radial", "SinhArcsinh", "Subspace"]


class Bijection(ABC):
    """An invertible map of R^d."""

    @abstractmethod
    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The image of each row, and the log-determinant there (S,)."""

    @abstractmethod
    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The preimage of each row, and the log-determinant of the inverse map (S,)."""

    def parameters(self) -> dict[str, Tensor]:
        """The unconstrained parameters, by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        """A copy with other parameters."""
        return replace(self, **parameters)  # type: ignore[type-var]

    def fits(self, dim: int) -> bool:
        """Whether it acts on so many dimensions."""
        return all(parameter.ndim == 0 or len(parameter) == dim for parameter in self.parameters().values())


# Tails between the square root and the square of the Gaussian's: enough for skewed and heavy-tailed weights, and
# sinh cannot overflow on any draw of a standard normal.
_LOG_TAIL_BOUND = math.log(2.0)


@dataclass(frozen=True, eq=False)
class SinhArcsinh(Bijection):
    """`sinh(tail * (asinh(z) + skew))` elementwise: skewness and tail weight.

    `tail = 2^tanh(raw_tail)` lies in (1/2, 2); below one the tails are lighter than the Gaussian's, above one heavier.
    """

    skew: Tensor
    raw_tail: Tensor

    @classmethod
    def identity(cls, like: Tensor) -> Self:
        """No skew, tail one, for vectors like `like` (d,)."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def _log_tail(self) -> Tensor:
        return _LOG_TAIL_BOUND * self.raw_tail.tanh()

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_tail = self._log_tail()
        image = torch.sinh((_asinh(z) + self.skew) * log_tail.exp())
        return image, (log_tail + _log_hypot(image) - _log_hypot(z)).sum(-1)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_tail = self._log_tail()
        preimage = torch.sinh(_asinh(z) * (-log_tail).exp() - self.skew)
        return preimage, (_log_hypot(preimage) - log_tail - _log_hypot(z)).sum(-1)


def _log_hypot(z: Tensor) -> Tensor:
    """Log sqrt(1 + z^2), which is also log cosh(asinh z)."""
    return 0.5 * torch.log1p(z * z)


class _Asinh(torch.autograd.Function):
    """`torch.asinh` from vectorised functions: several times faster on a CPU, where it is the cost of a flow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        square = z * z
        return torch.log1p(z.abs() + square / (1.0 + (1.0 + square).sqrt())).copysign(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        result: Tensor = grad * (1.0 + z * z).rsqrt()
        return result


def _asinh(z: Tensor) -> Tensor:
    value: Tensor = _Asinh.apply(z)  # type: ignore[no-untyped-call]
    return value


@dataclass(frozen=True, eq=False)
class Radial(Bijection):
    """`z + beta / (alpha + r) (z - center)` with r = |z - center|: expansion or contraction around a point.

    alpha = softplus(raw_alpha) > 0, and gamma = alpha + beta = softplus(raw_gamma) > 0 keeps the map invertible. All
    expressions are written in gamma, so that none cancels as beta approaches -alpha.
    """

    center: Tensor
    raw_alpha: Tensor
    raw_gamma: Tensor

    @classmethod
    def identity(cls, like: Tensor, *, generator: torch.Generator) -> Self:
        """Beta = 0 and alpha the typical radius sqrt(d); a random center, so that equal layers can become different."""
        check_generator(generator, like.device)
        center = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        raw = _inverse_softplus(like.new_tensor(math.sqrt(like.shape[-1])))
        return cls(center, raw, raw.clone())

    @classmethod
    def uniform(cls, like: Tensor, *, generator: torch.Generator) -> Self:
        """Every parameter drawn from U(-1/sqrt(d), 1/sqrt(d)), the start of the paper; not the identity."""
        check_generator(generator, like.device)
        draw = torch.rand(like.shape[-1] + 2, generator=generator, dtype=like.dtype, device=like.device)
        values = (2 * draw - 1) / math.sqrt(like.shape[-1])
        return cls(values[:-2], values[-2], values[-1])

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        alpha, gamma = softplus(self.raw_alpha), softplus(self.raw_gamma)
        offset = z - self.center
        radius = torch.linalg.vector_norm(offset, dim=-1)
        stretch = (radius + gamma) / (radius + alpha)
        return self.center + offset * stretch.unsqueeze(-1), self._logdet(radius, alpha, gamma)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        alpha, gamma = softplus(self.raw_alpha), softplus(self.raw_gamma)
        offset = z - self.center
        image_radius = torch.linalg.vector_norm(offset, dim=-1)
        # r solves r^2 + (gamma - r') r - alpha r' = 0; of the two forms of the root, take the one that does not cancel.
        half = (image_radius - gamma) / 2
        root = (half * half + alpha * image_radius).sqrt()
        other = torch.where(half >= 0, torch.ones_like(half), root - half)  # the gradient sees both branches
        radius = torch.where(half >= 0, half + root, alpha * image_radius / other)
        shrink = (radius + alpha) / (radius + gamma)
        return self.center + offset * shrink.unsqueeze(-1), -self._logdet(radius, alpha, gamma)

    def _logdet(self, radius: Tensor, alpha: Tensor, gamma: Tensor) -> Tensor:
        across = (radius + gamma).log() - (radius + alpha).log()
        along = (radius * (radius + 2 * alpha) + alpha * gamma).log() - 2 * (radius + alpha).log()
        return (self.center.shape[-1] - 1) * across + along


@dataclass(frozen=True, eq=False)
class Planar(Bijection):
    """`z + u tanh(w.z + bias)`: expansion or contraction across a plane.

    `u` is `raw_u` moved along w so that w.u > -1, which makes the map invertible; raw_u = 0 is the identity.
    """

    raw_u: Tensor
    w: Tensor
    bias: Tensor

    @classmethod
    def identity(cls, like: Tensor, *, generator: torch.Generator) -> Self:
        """U = 0, and a random plane normal of unit length, so that equal layers can become different."""
        check_generator(generator, like.device)
        w = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        return cls(torch.zeros_like(like), w / torch.linalg.vector_norm(w), like.new_zeros(()))

    def _u(self) -> tuple[Tensor, Tensor]:
        """The vector u and its product with w, by the map softplus(x + log(e - 1)) - 1: zero at zero, and above -1.

        Below one it is written so that nothing cancels near zero, where the difference is divided by |w|^2.
        """
        product = self.raw_u @ self.w
        near = torch.log1p((1.0 - 1.0 / math.e) * torch.expm1(product.clamp_max(1.0)))
        bounded = torch.where(product < 1.0, near, softplus(product + math.log(math.e - 1.0)) - 1.0)
        bounded = bounded.clamp_min(-1.0 + torch.finfo(product.dtype).eps)  # above -1 after rounding, too
        squared = (self.w @ self.w).clamp_min(torch.finfo(self.w.dtype).tiny)
        return self.raw_u + ((bounded - product) / squared) * self.w, bounded

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        u, product = self._u()
        inner = torch.tanh(z @ self.w + self.bias)
        return z + inner.unsqueeze(-1) * u, torch.log1p((1 - inner * inner) * product)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        u, product = self._u()
        inner = torch.tanh(_planar_root(z @ self.w + self.bias, product))
        return z - inner.unsqueeze(-1) * u, -torch.log1p((1 - inner * inner) * product)


def _planar_root(image: Tensor, product: Tensor) -> Tensor:
    """The a with a + product tanh(a) = image, for product > -1: increasing in a, so bisection cannot fail.

    The root lies within |product| of the image. Newton's steps end it: they polish the root, and the last one carries its
    derivative.
    """
    with torch.no_grad():
        low, high = image - product.abs(), image + product.abs()
        for _ in range(40):
            middle = (low + high) / 2
            below = middle + product * torch.tanh(middle) < image
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        root = _newton((low + high) / 2, image, product).clamp(low, high)
    return _newton(root, image, product)


def _newton(root: Tensor, image: Tensor, product: Tensor) -> Tensor:
    tanh = torch.tanh(root)
    return root - (root + product * tanh - image) / (1.0 + product * (1.0 - tanh * tanh))


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


@dataclass(frozen=True, eq=False)
class Subspace(Bijection):
    """Bijections of the k coordinates `z basis`, and nothing else: the orthogonal complement stays as it is.

    Under a standard normal base, coordinates and complement are independent, so the complement keeps its Gaussian.
    """

    basis: Tensor
    """(d, k), orthonormal."""
    bijections: tuple[Bijection, ...]
    """Of k dimensions, the first one applied first."""

    def __post_init__(self) -> None:
        if self.basis.ndim != 2 or not 1 <= self.basis.shape[1] <= self.basis.shape[0]:
            raise ValueError(
                f"`basis` must have shape (d, k) with 1 <= k <= d, got {tuple(self.basis.shape)}. "
                "Pass one column for each direction."
            )
        check_finite("basis", self.basis, "Orthonormalise it with `torch.linalg.qr`.")
        eye = torch.eye(self.basis.shape[1], dtype=self.basis.dtype, device=self.basis.device)
        error = float((self.basis.T @ self.basis - eye).abs().max())
        if error > 1e-3:
            raise ValueError(
                f"`basis` must be orthonormal, got products off by {error:.2g}. Orthonormalise it with `torch.linalg.qr`."
            )
        for bijection in self.bijections:
            for name, parameter in bijection.parameters().items():
                check_like(f"bijections: {type(bijection).__name__}.{name}", parameter, self.basis, "the basis")
            if not bijection.fits(self.basis.shape[1]):
                raise ValueError(
                    f"`bijections` must act on the {self.basis.shape[1]} dimensions of the subspace, got a "
                    f"{type(bijection).__name__} that does not. Make them for `basis[0]`."
                )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        inner = z @ self.basis
        image, logdet = inner, z.new_zeros(z.shape[:-1])
        for bijection in self.bijections:
            image, step = bijection.forward(image)
            logdet = logdet + step
        return z + (image - inner) @ self.basis.T, logdet

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        inner = z @ self.basis
        preimage, logdet = inner, z.new_zeros(z.shape[:-1])
        for bijection in reversed(self.bijections):
            preimage, step = bijection.inverse(preimage)
            logdet = logdet + step
        return z + (preimage - inner) @ self.basis.T, logdet

    def parameters(self) -> dict[str, Tensor]:
        return {f"{i}.{k}": v for i, bijection in enumerate(self.bijections) for k, v in bijection.parameters().items()}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        own = [{k: parameters[f"{i}.{k}"] for k in b.parameters()} for i, b in enumerate(self.bijections)]
        inner = tuple(bijection.with_parameters(values) for bijection, values in zip(self.bijections, own, strict=True))
        found = copy(self)  # a new one would look at its basis once more, in every step of an ascent
        object.__setattr__(found, "bijections", inner)
        return found

    def fits(self, dim: int) -> bool:
        return len(self.basis) == dim
