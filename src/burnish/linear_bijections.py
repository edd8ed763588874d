"""Linear bijections: whitening, rotation, shift, and stretches, diagonal, triangular and of low rank.

A Gaussian pushed through them stays one, so variational inference with a Gaussian learns these and nothing else.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from burnish.bijections import Bijection
from burnish.noise import check_generator
from burnish.scales import Scale

__all__ = ["Affine", "DiagonalScale", "LowRankStretch", "Rotation", "Shift", "Triangular"]


@dataclass(frozen=True, eq=False)
class Affine(Bijection):
    """`mean + scale z`, with nothing to learn: whitening by a Gaussian is this map."""

    mean: Tensor
    scale: Scale

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean + self.scale.matmul(z), self.scale.logdet().expand(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale.solve(z - self.mean), -self.scale.logdet().expand(z.shape[:-1])

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def fits(self, dim: int) -> bool:
        return self.scale.dim == dim


@dataclass(frozen=True, eq=False)
class Rotation(Bijection):
    """`matrix z` for an orthogonal matrix, with nothing to learn: between elementwise layers it mixes the coordinates."""

    matrix: Tensor

    @classmethod
    def cosine(cls, like: Tensor) -> Self:
        """The discrete cosine transform, which mixes all coordinates alike, for vectors like `like` (d,)."""
        count = like.shape[-1]
        index = torch.arange(count, dtype=torch.float64, device=like.device)
        matrix = torch.cos(math.pi / count * index.unsqueeze(1) * (index + 0.5)) * math.sqrt(2.0 / count)
        matrix[0] /= math.sqrt(2.0)
        return cls(matrix.to(like.dtype))

    def transposed(self) -> Self:
        """The rotation back."""
        return type(self)(self.matrix.T)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z @ self.matrix.T, z.new_zeros(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z @ self.matrix, z.new_zeros(z.shape[:-1])

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def fits(self, dim: int) -> bool:
        return len(self.matrix) == dim


@dataclass(frozen=True, eq=False)
class Shift(Bijection):
    """`z + offset`."""

    offset: Tensor

    @classmethod
    def identity(cls, like: Tensor) -> Self:
        """No shift, for vectors like `like` (d,)."""
        return cls(torch.zeros_like(like))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z + self.offset, z.new_zeros(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z - self.offset, z.new_zeros(z.shape[:-1])


@dataclass(frozen=True, eq=False)
class DiagonalScale(Bijection):
    """`z * exp(log_scale)` elementwise."""

    log_scale: Tensor

    @classmethod
    def identity(cls, like: Tensor) -> Self:
        """Scale one, for vectors like `like` (d,)."""
        return cls(torch.zeros_like(like))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z * self.log_scale.exp(), self.log_scale.sum().expand(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z * (-self.log_scale).exp(), -self.log_scale.sum().expand(z.shape[:-1])


@dataclass(frozen=True, eq=False)
class Triangular(Bijection):
    """`T z` for a lower triangular T with a positive diagonal: exp(`log_diagonal`) on it, scaled `raw_lower` below.

    The scale is such that equal steps of all entries move an image as far in many dimensions as in few.
    """

    raw_lower: Tensor
    """(d, d); what stands on or above the diagonal is not looked at."""
    log_diagonal: Tensor

    @classmethod
    def identity(cls, like: Tensor) -> Self:
        """The unit matrix, for vectors like `like` (d,)."""
        return cls(like.new_zeros(len(like), len(like)), torch.zeros_like(like))

    def matrix(self) -> Tensor:
        """T (d, d)."""
        lower = self.raw_lower.tril(-1) / _divisor(len(self.log_diagonal))
        return lower + torch.diag_embed(self.log_diagonal.exp())

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z @ self.matrix().T, self.log_diagonal.sum().expand(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        rows = z.reshape(-1, z.shape[-1])
        solved = torch.linalg.solve_triangular(self.matrix(), rows.T, upper=False).T
        return solved.reshape(z.shape), -self.log_diagonal.sum().expand(z.shape[:-1])


@dataclass(frozen=True, eq=False)
class LowRankStretch(Bijection):
    """`z + factor factor^T z`: wider along k directions, which are learnt.

    The factor is `raw_factor`, scaled so that equal steps of all entries move it as far in many dimensions as in few.
    """

    raw_factor: Tensor
    """(d, k), of any length and direction."""

    @classmethod
    def of(cls, factor: Tensor) -> Self:
        """The one with this factor (d, k)."""
        return cls(factor * _divisor(len(factor)))

    @classmethod
    def random(cls, like: Tensor, rank: int, *, generator: torch.Generator, size: float = 0.3) -> Self:
        """Short random directions, for vectors like `like` (d,): at zero there would be no gradient to leave it by."""
        check_generator(generator, like.device)
        draw = torch.randn(len(like), rank, generator=generator, dtype=like.dtype, device=like.device)
        return cls.of(draw * (size / math.sqrt(len(like))))

    @property
    def factor(self) -> Tensor:
        """(d, k)."""
        return self.raw_factor / _divisor(len(self.raw_factor))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor
        logdet = torch.linalg.slogdet(_inner(factor)).logabsdet
        return z + (z @ factor) @ factor.T, logdet.expand(z.shape[:-1])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor
        inner = _inner(factor)
        solved = torch.linalg.solve(inner, (z @ factor).unsqueeze(-1)).squeeze(-1)
        return z - solved @ factor.T, -torch.linalg.slogdet(inner).logabsdet.expand(z.shape[:-1])


def _divisor(dim: int) -> float:
    """One in few dimensions; in many, so large that as many small steps add up to no more than in few."""
    return max(1.0, math.sqrt(dim / 8.0))


def _inner(factor: Tensor) -> Tensor:
    """The k x k matrix whose determinant is that of the stretch."""
    return torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device) + factor.T @ factor
