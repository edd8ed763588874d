"""The Hessian of the negative log-likelihood: in full, its diagonal, products with it, and Kronecker-factored.

For a network it is the Gauss-Newton matrix (network_curvature.py). For a linear head the two are equal; the Hessian of one
point is `curvature x (input input^T)`, so sums over points are weighted Gram matrices: no per-example
Jacobians, and no memory beyond a chunk of points and the result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_memory
from burnish.errors import FitError
from burnish.flat_network import FlatNetwork
from burnish.heads import LinearHead
from burnish.inference.network_curvature import gauss_newton, gauss_newton_diagonal, gauss_newton_product
from burnish.noise import make_generator
from burnish.target import KroneckerCurvature, Target

__all__ = ["diagonal_hessian", "full_hessian", "hessian_product", "kronecker_hessian"]

_CHUNK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}  # entries of the weighted copies of the inputs made at a time
_MIN_ROWS = 512  # at a time: each time the whole of the matrix is gone through
# matrix, factor, and copies of one of them at a time: measured 3.1 and, in some runs of the same fit, up to 4.0; why it
# differs from run to run is not known, so there is room
_DENSE_COPIES = {torch.float32: 3.5, torch.float64: 4.2}
_ROUNDINGS = 32  # rounding errors of the Hessian's largest entry that may add up in one of its eigenvalues


def check_dense_memory(
    dim: int,
    device: torch.device,
    dtype: torch.dtype,
    alternative: str = "use structure='kron' or structure='diagonal' instead.",
) -> None:
    """Refuses to begin what ends in a d x d matrix, its factor and the inverse of that, where they do not fit."""
    check_memory(
        f"the full Hessian of {dim} parameters",
        int(_DENSE_COPIES.get(dtype, max(_DENSE_COPIES.values())) * dim**2 * 8),
        device,
        alternative,
    )


@torch.no_grad()
def full_hessian(target: Target, theta: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The exact Hessian (d, d) of the negative log-likelihood at theta (d,), summed in float64.

    Products are made in the dtype of theta, or in `dtype`. For draws (S, d), which a linear head takes, an estimate of its
    mean over their distribution at the cost of one: each point's term is taken at one of them, in turn.

    With curvature `diag - u u^T` off the diagonal, block row c is a product of the inputs weighted by u_c with those
    weighted by u_c, u_c+1, ...: C wide products over views of one weighted copy.
    """
    target.check_theta(theta)
    check_dense_memory(target.dim, theta.device, theta.dtype)
    if isinstance(target.model.head, FlatNetwork):
        return gauss_newton(target, theta)
    head, likelihood = target.model.linear_head, target.model.likelihood
    width = head.num_features + head.bias
    dtype = theta.dtype if dtype is None else dtype
    total = torch.zeros(head.num_outputs, width, head.num_outputs, width, dtype=torch.float64, device=theta.device)
    rows = max(_MIN_ROWS, min(len(target.data), _CHUNK_ENTRIES.get(theta.device.type, 2**21) // head.dim))
    if theta.ndim == 2:  # every chunk begins with the first draw
        rows = -(-rows // len(theta)) * len(theta)
    # one buffer for all chunks: allocating it anew each time costs more than filling it
    buffer = torch.empty(rows, head.num_outputs, width, dtype=dtype, device=theta.device)
    for start in range(0, len(target.data), rows):
        inputs, weights = (part.to(dtype) for part in _augmented_rows(target, slice(start, start + rows)))
        outputs = _outputs(head, theta.to(dtype), inputs)
        diagonal, coupling = likelihood.curvature_diagonal(outputs), likelihood.curvature_coupling(outputs)
        copies = buffer[: len(inputs)]
        torch.mul((diagonal * weights.unsqueeze(-1)).unsqueeze(-1), inputs.unsqueeze(1), out=copies)
        total.diagonal(dim1=0, dim2=2).add_((inputs.T @ copies.flatten(1)).view(width, -1, width).transpose(1, 2))
        if coupling is None:
            continue
        torch.mul((coupling * weights.sqrt().unsqueeze(-1)).unsqueeze(-1), inputs.unsqueeze(1), out=copies)
        for c in range(head.num_outputs - 1):
            block = copies[:, c].T @ copies[:, c + 1 :].flatten(1)
            total[c, :, c + 1 :] -= block.view(width, -1, width)
    for c in range(head.num_outputs):
        total[c + 1 :, :, c] = total[c, :, c + 1 :].permute(1, 2, 0)
    return _flat_order(target, total.view(head.dim, head.dim))


def _outputs(head: LinearHead, theta: Tensor, inputs: Tensor) -> Tensor:
    """Of augmented inputs (N, Q), (N, C): at theta (d,), or each at one of the draws (S, d), one after another."""
    if theta.ndim == 1:
        return inputs @ head.to_matrix(theta).T
    padded = torch.cat([inputs, inputs.new_zeros(-len(inputs) % len(theta), inputs.shape[1])])
    by_draw = padded.view(-1, len(theta), inputs.shape[1]).transpose(0, 1)
    outputs = by_draw @ head.to_matrix(theta).transpose(1, 2)
    return outputs.transpose(0, 1).reshape(len(padded), -1)[: len(inputs)]


def _augmented_rows(target: Target, rows: slice) -> tuple[Tensor, Tensor]:
    inputs = target.model.linear_head.augment(target.data.inputs[rows])
    weights = target.data.weights
    return inputs, (inputs.new_ones(len(inputs)) if weights is None else weights[rows])


def _flat_order(target: Target, matrix: Tensor) -> Tensor:
    """Rows and columns from the order of the layer's matrix, biases among the weights, to that of theta."""
    head = target.model.linear_head
    if not head.bias:
        return matrix
    shape = (head.num_outputs, head.num_features + 1)
    order = head.from_matrix(torch.arange(head.dim, device=matrix.device).view(shape))
    ordered = torch.empty_like(matrix)  # filled by rows: indices of all entries at once would be matrices too
    for rows, chosen in zip(torch.split(ordered, _MIN_ROWS), torch.split(order, _MIN_ROWS), strict=True):
        rows.copy_(matrix[chosen].index_select(1, order))
    return ordered


@torch.no_grad()
def diagonal_hessian(target: Target, theta: Tensor) -> Tensor:
    """The exact diagonal (d,) of the full Hessian."""
    target.check_theta(theta)
    if isinstance(target.model.head, FlatNetwork):
        return gauss_newton_diagonal(target, theta)
    total = torch.zeros(target.dim, dtype=torch.float64, device=theta.device)
    for inputs, _, weights in target.chunks(theta):
        diagonal = target.model.likelihood.curvature_diagonal(target.model(theta, inputs))
        if weights is not None:
            diagonal = diagonal * weights.unsqueeze(-1)
        total += target.model.linear_head.pullback(diagonal, inputs**2)
    return total


def needs_double(target: Target, theta: Tensor) -> bool:
    """Whether rounding of a Hessian in the target's dtype exceeds its prior precision.

    Softmax leaves directions that only the prior holds. There the curvature is a difference of large numbers, and
    when its rounding error is larger than the prior's precision, the matrix is no longer positive definite.
    """
    if theta.dtype == torch.float64 or not isinstance(target.model.head, LinearHead):  # a network has the dtype it has
        return False
    largest = float(diagonal_hessian(target, theta).max())
    smallest = float(torch.as_tensor(target.prior_precision).min())
    return _ROUNDINGS * torch.finfo(theta.dtype).eps * largest > smallest


@torch.no_grad()
def kronecker_hessian(target: Target, theta: Tensor) -> KroneckerCurvature:
    """The mean curvature between outputs times the Gram matrix of the inputs.

    An approximation: it is exact only where the curvature is the same at every point. Summed in float64, and multiplied in
    it too where rounding of eigenvalues near zero would exceed the prior precision.
    """
    target.check_theta(theta)
    head = target.model.linear_head
    if needs_double(target, theta):
        theta = theta.double()
    left = torch.zeros(head.num_outputs, head.num_outputs, dtype=torch.float64, device=theta.device)
    right, mass = left.new_zeros(head.num_features + head.bias, head.num_features + head.bias), 0.0
    for inputs, _, weights in target.chunks(theta):
        inputs = inputs.to(theta)
        weights = inputs.new_ones(len(inputs)) if weights is None else weights.to(theta)
        left += target.model.likelihood.curvature_sum(target.model(theta, inputs), weights)
        augmented = head.augment(inputs)
        right += augmented.T @ (augmented * weights.unsqueeze(-1))
        mass += float(weights.sum(dtype=torch.float64))
    if not bool(torch.isfinite(left).all() and torch.isfinite(right).all()):
        raise FitError("the curvature left the finite numbers; scale the features, or use float64.")
    return KroneckerCurvature(left / mass, right)


@torch.no_grad()
def hessian_product(target: Target, theta: Tensor) -> Callable[[Tensor], Tensor]:
    """The full Hessian at theta (d,) as a function of vectors (d,), never formed: two matrix products a call."""
    target.check_theta(theta)
    if isinstance(target.model.head, FlatNetwork):
        return gauss_newton_product(target, theta)
    data, head, likelihood = target.data, target.model.linear_head, target.model.likelihood
    outputs = target.model(theta, data.inputs)

    def product(vector: Tensor) -> Tensor:
        curved = likelihood.curvature_product(outputs, head(vector, data.inputs))
        if data.weights is not None:
            curved = curved * data.weights.unsqueeze(-1)
        return head.pullback(curved, data.inputs)

    return product


def leading_eigenpairs(target: Target, theta: Tensor, precision: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues (k,) and eigenvectors (d, k) of the Hessian where the prior is standard normal, float64.

    That is, of `P^-1/2 Hessian P^-1/2` for prior precisions P (d,), by Lanczos iterations on products with the Hessian.
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # type: ignore[import-untyped]

    product, root = hessian_product(target, theta), precision.rsqrt()

    def apply(vector: Any) -> Any:
        scaled = root * torch.as_tensor(vector, device=theta.device).flatten()
        return (root * product(scaled.to(theta.dtype)).double()).cpu().numpy()

    start = torch.randn(target.dim, generator=make_generator(0), dtype=torch.float64).numpy()
    operator = LinearOperator((target.dim, target.dim), matvec=apply, dtype=start.dtype)
    try:
        values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=1e-4)
    except ArpackError as error:  # a curvature of zero or of no number, or too many directions alike
        raise FitError(
            f"the leading directions of the curvature were not found ({error}); use another structure."
        ) from error
    found = torch.from_numpy(vectors).to(theta.device)
    return torch.from_numpy(values).to(theta.device), torch.linalg.qr(found).Q
