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
from burnish.heads import LinearHead

__all__ = ["BlockDiagonal", "Dense", "Diagonal", "Kronecker", "LowRank", "Scale"]


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
        if bool(self.factor.triu(1).any()):
            raise ValueError("`factor` must be lower triangular, got entries above the diagonal. Pass `factor.tril()`.")

    @classmethod
    def from_precision(cls, precision: Tensor, dtype: torch.dtype | None = None) -> "Dense":
        """The scale of the covariance `precision`^-1, by one Cholesky factorisation of the reversed matrix.

        Reversing rows and columns turns the lower factor of the precision into an upper one, whose inverse transpose is
        the lower factor of the covariance: no matrix is inverted and factorised again.
        """
        factor, info = torch.linalg.cholesky_ex(precision.double().flip(0, 1))
        if int(info):
            raise FitError(
                f"the precision matrix is not positive definite (leading minor {int(info)} of the reversed matrix); "
                "use a larger `prior_precision`, or float64 features."
            )
        eye = torch.eye(len(precision), dtype=torch.float64, device=precision.device)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        return cls(inverse.flip(0, 1).T.contiguous().to(dtype or precision.dtype))

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
        return noise @ self.factor.T

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        return vectors @ self.factor

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
class Kronecker(Scale):
    """`(left x right) diag(std)` on the matrix form (C, Q) of a linear layer's parameters, left and right orthogonal.

    `layout` says how the flat vector and the matrix correspond. Never forms a d x d matrix.
    """

    left: Tensor
    right: Tensor
    std: Tensor
    layout: LinearHead

    def __post_init__(self) -> None:
        shape = (self.layout.num_outputs, self.layout.num_features + self.layout.bias)
        sizes = [tuple(factor.shape) for factor in (self.std, self.left, self.right)]
        if sizes != [shape, (shape[0], shape[0]), (shape[1], shape[1])]:
            raise ValueError(
                f"`std` must have shape {shape} like the layer's matrix, with square `left` and `right` to fit, got "
                f"{sizes[0]}, {sizes[1]} and {sizes[2]}. Check `layout`."
            )
        check_positive("std", self.std, "Standard deviations of a Gaussian cannot be zero or negative.")

    @classmethod
    def from_precision(
        cls, left: Tensor, right: Tensor, precision: float, layout: LinearHead, dtype: torch.dtype | None = None
    ) -> "Kronecker":
        """The scale of the covariance (left x right + precision I)^-1, for positive semi-definite left and right."""
        left_values, left_vectors = torch.linalg.eigh(left.double())
        right_values, right_vectors = torch.linalg.eigh(right.double())
        lowest = min(
            float(left_values[0]) * float(right_values[-1].abs()), float(right_values[0]) * float(left_values[-1].abs())
        )
        # those of a semi-definite matrix come out slightly negative by rounding, but no more than that
        rounding = 1e-6 * float(left_values.abs().max() * right_values.abs().max())
        if not precision > 0.0 or lowest < -(0.5 * precision + rounding):
            raise FitError(
                f"left x right + precision I is not positive definite (smallest eigenvalue of the product {lowest:.3g}, "
                f"precision {precision:.3g}); use semi-definite factors and a positive precision."
            )
        std = (torch.outer(left_values.clamp_min(0), right_values.clamp_min(0)) + precision).rsqrt()
        dtype = left.dtype if dtype is None else dtype
        return cls(left_vectors.to(dtype), right_vectors.to(dtype), std.to(dtype), layout)

    @property
    def dim(self) -> int:
        return self.layout.dim

    def matmul(self, noise: Tensor) -> Tensor:
        scaled = noise.reshape(*noise.shape[:-1], *self.std.shape) * self.std
        return self.layout.from_matrix(self.left @ scaled @ self.right.T)

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        rotated = self.left.T @ self.layout.to_matrix(vectors) @ self.right
        return (rotated * self.std).flatten(-2)

    def solve(self, vectors: Tensor) -> Tensor:
        rotated = self.left.T @ self.layout.to_matrix(vectors) @ self.right
        return (rotated / self.std).flatten(-2)

    def stretched(self, factors: Tensor) -> "Kronecker":
        return Kronecker(self.left, self.right, self.std * factors.view(self.std.shape), self.layout)

    def logdet(self) -> Tensor:
        return self.std.double().log().sum()

    def variance(self) -> Tensor:
        return self.layout.from_matrix(self.left**2 @ self.std**2 @ (self.right**2).T)


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


@dataclass(frozen=True, eq=False)
class BlockDiagonal(Scale):
    """Independent groups of coordinates, each with a scale of its own: a network's layers."""

    blocks: tuple[Scale, ...]
    order: Tensor | None = None
    """(d,): the coordinates that the blocks hold, block after block; in their own order when None."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("`blocks` must hold at least one scale, got none. Pass one for each group of coordinates.")
        if self.order is not None:
            every = torch.arange(self.dim, device=self.order.device)
            if tuple(self.order.shape) != (self.dim,) or not bool((self.order.sort().values == every).all()):
                raise ValueError(
                    f"`order` must name each of the {self.dim} coordinates once, got shape {tuple(self.order.shape)}. "
                    "Pass a permutation of 0..d-1."
                )

    @property
    def dim(self) -> int:
        return sum(block.dim for block in self.blocks)

    def matmul(self, noise: Tensor) -> Tensor:
        return self._join([block.matmul(part) for block, part in zip(self.blocks, self._split(noise), strict=True)])

    def transpose_matmul(self, vectors: Tensor) -> Tensor:
        parts = self._split(self._gather(vectors))
        return torch.cat([block.transpose_matmul(part) for block, part in zip(self.blocks, parts, strict=True)], dim=-1)

    def solve(self, vectors: Tensor) -> Tensor:
        parts = self._split(self._gather(vectors))
        return torch.cat([block.solve(part) for block, part in zip(self.blocks, parts, strict=True)], dim=-1)

    def stretched(self, factors: Tensor) -> "BlockDiagonal":
        parts = zip(self.blocks, self._split(factors), strict=True)
        return BlockDiagonal(tuple(block.stretched(part) for block, part in parts), self.order)

    def logdet(self) -> Tensor:
        return torch.stack([block.logdet() for block in self.blocks]).sum()

    def variance(self) -> Tensor:
        return self._join([block.variance() for block in self.blocks])

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, [block.dim for block in self.blocks], dim=-1)

    def _gather(self, vectors: Tensor) -> Tensor:
        return vectors if self.order is None else vectors[..., self.order]

    def _join(self, parts: list[Tensor]) -> Tensor:
        joined = torch.cat(parts, dim=-1)
        if self.order is None:
            return joined
        return torch.empty_like(joined).index_copy_(-1, self.order, joined)
