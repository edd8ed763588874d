"""Scales of a network's layers: Kronecker-factored for one, and block-diagonal for several."""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish._checks import check_positive
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.scales import Scale

__all__ = ["BlockDiagonal", "Kronecker"]


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
        # row by row, as products want them; eigenvectors come column by column
        return cls(left_vectors.to(dtype).contiguous(), right_vectors.to(dtype).contiguous(), std.to(dtype), layout)

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
