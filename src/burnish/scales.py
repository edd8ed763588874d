"""Square roots of covariances: the structure of a Gaussian as a value.

A scale L stands for the covariance L L^T. Vectors are rows: `matmul` takes (..., d) to (..., d). Factorisations are made
in float64, because a posterior's precisions span many orders of magnitude, and stored in the dtype of the parameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_finite, check_positive
from burnish.errors import FitError

__all__ = ["Dense", "Diagonal", "LowRank", "Scale"]

_BLOCK = 512  # rows of a triangular matrix that are inverted at once
_WIDE, _PARTS = 2048, 8  # rows from which on a product with one is made in parts, and their number


class Scale(ABC):
    """A square root L of a covariance."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of dimensions d."""

    @abstractmethod
    def matmul(self, noise: Tensor) -> Tensor:
        """L applied to each row."""

    @abstractmethod
    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        """The transpose of L applied to each row."""

    @abstractmethod
    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse of L applied to each row."""

    @abstractmethod
    def stretched(self, factors: Tensor) -> "Scale":
        """L diag(factors), for positive factors (d,): the same directions with other standard deviations."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """Log |det L|, a float64 scalar."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Diagonal of the covariance, (d,)."""

    def covariance(self) -> Tensor:
        """The covariance as a matrix, (d, d)."""
        root = self.matmul(torch.eye(self.dim, dtype=self.variance().dtype, device=self.variance().device)).T
        return root @ root.T


@dataclass(frozen=True, eq=False)
class Diagonal(Scale):
    """Independent coordinates with standard deviations `std` (d,)."""

    std: Tensor

    def __post_init__(self) -> None:
        if self.std.ndim != 1:
            raise ValueError(f"`std` must be a vector, got shape {tuple(self.std.shape)}. Pass one value per dimension.")
        check_positive("std", self.std, "Standard deviations of a Gaussian cannot be zero or negative.")

    @property
    def dim(self) -> int:
        return len(self.std)

    def matmul(self, noise: Tensor) -> Tensor:
        return noise * self.std

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        return vectors * self.std

    def solve(self, vectors: Tensor) -> Tensor:
        return vectors / self.std

    def stretched(self, factors: Tensor) -> "Diagonal":
        return Diagonal(self.std * factors)

    def logdet(self) -> Tensor:
        return self.std.double().log().sum()

    def variance(self) -> Tensor:
        return self.std**2


@dataclass(frozen=True, eq=False)
class Dense(Scale):
    """A lower triangular factor (d, d)."""

    factor: Tensor

    def __post_init__(self) -> None:
        if self.factor.ndim != 2 or self.factor.shape[0] != self.factor.shape[1]:
            raise ValueError(
                f"`factor` must be a square matrix, got shape {tuple(self.factor.shape)}. Pass a Cholesky factor."
            )
        check_finite("factor", self.factor, "The covariance it was made of is probably not positive definite.")
        check_positive("factor.diagonal()", self.factor.diagonal(), "Pass a Cholesky factor of the covariance.")
        blocks = torch.split(self.factor, _BLOCK)  # the part above the diagonal of all of it would be another such matrix
        if any(bool(rows.triu(number * _BLOCK + 1).any()) for number, rows in enumerate(blocks)):
            raise ValueError("`factor` must be lower triangular, got entries above the diagonal. Pass `factor.tril()`.")

    @classmethod
    def from_precision(cls, precision: Tensor, dtype: torch.dtype | None = None) -> "Dense":
        """The scale of the covariance `precision`^-1, symmetric, by one Cholesky factorisation of the reversed matrix.

        Reversing rows and columns turns the lower factor of the precision into an upper one, whose inverse transpose is
        the lower factor of the covariance: no matrix is inverted and factorised again. It is not differentiated.
        """
        factor = precision.detach().double().flip(0, 1).T  # the same, it is symmetric: columns first, as LAPACK wants it
        info = torch.empty((), dtype=torch.int32, device=factor.device)
        torch.linalg.cholesky_ex(factor, out=(factor, info))  # in place, like the inverse: such a matrix may be gigabytes
        if int(info):
            raise FitError(
                f"the precision matrix is not positive definite (leading minor {int(info)} of the reversed matrix); "
                "use a larger `prior_precision`, or float64: features in it, or `network.double()` for all layers."
            )
        _invert_lower(factor)
        factor = factor.to(dtype or precision.dtype)  # step by step, so that each copy replaces the one before
        factor = factor.T.flip(0, 1).contiguous()
        return cls(factor)

    @classmethod
    def from_covariance(cls, covariance: Tensor) -> "Dense":
        """The scale of a covariance matrix."""
        factor, info = torch.linalg.cholesky_ex(covariance.double())
        if int(info):
            raise FitError(
                f"`covariance` is not positive definite (leading minor {int(info)}); "
                "check that it is symmetric, of full rank, and estimated from enough samples."
            )
        return cls(factor.to(covariance.dtype))

    @property
    def dim(self) -> int:
        return len(self.factor)

    def matmul(self, noise: Tensor) -> Tensor:
        return torch.cat([noise[..., :end] @ self.factor[start:end, :end].T for start, end in self._spans], dim=-1)

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        return torch.cat([vectors[..., start:] @ self.factor[start:, start:end] for start, end in self._spans], dim=-1)

    @property
    def _spans(self) -> list[tuple[int, int]]:
        """Rows of a large factor are multiplied in several parts, each without the zeros beyond it: half of the work."""
        if self.dim < _WIDE:
            return [(0, self.dim)]
        size = -(-self.dim // _PARTS)
        return [(start, min(self.dim, start + size)) for start in range(0, self.dim, size)]

    def solve(self, vectors: Tensor) -> Tensor:
        columns = vectors.reshape(-1, self.dim).T
        solution: Tensor = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return solution.T.reshape(vectors.shape)

    def stretched(self, factors: Tensor) -> "Dense":
        return Dense(self.factor * factors)

    def logdet(self) -> Tensor:
        return self.factor.diagonal().double().log().sum()

    def variance(self) -> Tensor:
        return (self.factor**2).sum(1)


@dataclass(frozen=True, eq=False)
class LowRank(Scale):
    """`diag(std) (I + vectors diag(stretch - 1) vectors^T) diag(inner)`: a diagonal, but for k directions.

    `vectors` (d, k) are orthonormal, and `stretch` (k,) says how much wider or narrower than `std` (d,) the distribution is
    along them. Everything costs O(d k).
    """

    std: Tensor
    vectors: Tensor
    stretch: Tensor
    inner: Tensor | None = None
    """(d,): factors on the noise; one when None."""

    def __post_init__(self) -> None:
        shape = tuple(self.vectors.shape)
        if self.std.ndim != 1 or len(shape) != 2 or shape[0] != len(self.std) or tuple(self.stretch.shape) != shape[1:]:
            raise ValueError(
                f"`vectors` must have shape (d, k), with `std` (d,) and `stretch` (k,) to fit, got {shape}, "
                f"{tuple(self.std.shape)} and {tuple(self.stretch.shape)}. One column for each direction."
            )
        check_positive("std", self.std, "Standard deviations of a Gaussian cannot be zero or negative.")
        check_positive("stretch", self.stretch, "A factor of one changes nothing.")
        check_finite("vectors", self.vectors, "Orthonormalise them with `torch.linalg.qr`.")
        if self.inner is not None:
            if self.inner.shape != self.std.shape:
                raise ValueError(
                    f"`inner` must have shape {tuple(self.std.shape)} like `std`, got {tuple(self.inner.shape)}. "
                    "One factor for each dimension."
                )
            check_positive("inner", self.inner, "A factor of one changes nothing.")
        error = self.vectors.T @ self.vectors - torch.eye(shape[1], dtype=self.vectors.dtype, device=self.vectors.device)
        if error.numel() and float(error.abs().max()) > 1e-3:
            raise ValueError(
                f"`vectors` must be orthonormal, got products off by {float(error.abs().max()):.2g}. "
                "Orthonormalise them with `torch.linalg.qr`."
            )

    @classmethod
    def from_precision(
        cls, vectors: Tensor, values: Tensor, precision: Tensor, dtype: torch.dtype | None = None
    ) -> "LowRank":
        """The scale of `P^-1/2 (I + vectors diag(values) vectors^T)^-1 P^-1/2` with P = diag(precision)."""
        dtype = vectors.dtype if dtype is None else dtype
        return cls(precision.rsqrt().to(dtype), vectors.to(dtype), (1.0 + values.clamp_min(0.0)).rsqrt().to(dtype))

    @classmethod
    def from_covariance(cls, std: Tensor, deviations: Tensor) -> "LowRank":
        """The scale of the covariance `diag(std^2) + deviations deviations^T`, for deviations (d, k)."""
        vectors, values, _ = torch.linalg.svd((deviations / std.unsqueeze(1)).double(), full_matrices=False)
        return cls(std, vectors.to(std.dtype), (1.0 + values * values).sqrt().to(std.dtype))

    @property
    def dim(self) -> int:
        return len(self.std)

    def matmul(self, noise: Tensor) -> Tensor:
        return self.std * self._along(noise if self.inner is None else noise * self.inner, self.stretch)

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        image = self._along(self.std * vectors, self.stretch)
        return image if self.inner is None else image * self.inner

    def solve(self, vectors: Tensor) -> Tensor:
        noise = self._along(vectors / self.std, 1.0 / self.stretch)
        return noise if self.inner is None else noise / self.inner

    def _along(self, rows: Tensor, factors: Tensor) -> Tensor:
        return rows + ((rows @ self.vectors) * (factors - 1.0)) @ self.vectors.T

    def stretched(self, factors: Tensor) -> "LowRank":
        inner = factors if self.inner is None else self.inner * factors
        return LowRank(self.std, self.vectors, self.stretch, inner)

    def logdet(self) -> Tensor:
        total = self.std.double().log().sum() + self.stretch.double().log().sum()
        return total if self.inner is None else total + self.inner.double().log().sum()

    def variance(self) -> Tensor:
        if self.inner is None:
            return self.std**2 * (1.0 + (self.vectors**2) @ (self.stretch**2 - 1.0))
        # the diagonal of A diag(inner^2) A with A = I + V diag(stretch - 1) V^T, without a d x d matrix
        weights, shifted = self.inner**2, self.vectors * (self.stretch - 1.0)
        middle = self.vectors.T @ (weights.unsqueeze(1) * self.vectors)
        across = ((shifted @ middle) * shifted).sum(1)
        return self.std**2 * (weights * (1.0 + 2.0 * (shifted * self.vectors).sum(1)) + across)


def _invert_lower(factor: Tensor) -> None:
    """Replaces a lower triangular matrix (d, d) by its inverse, block by block: a third of the work with the identity."""
    half = len(factor) // 2
    if len(factor) <= _BLOCK:
        eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        factor.copy_(torch.linalg.solve_triangular(factor, eye, upper=False))
        return
    first, last, below = factor[:half, :half], factor[half:, half:], factor[half:, :half]
    solved = torch.linalg.solve_triangular(last, below, upper=False)
    below.copy_(torch.linalg.solve_triangular(first, solved, upper=False, left=False)).neg_()
    _invert_lower(first)
    _invert_lower(last)
