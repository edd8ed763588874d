"""The mode of a target, over all data: Newton's method for a linear head, L-BFGS for a network.

The log posterior of a linear head is concave. Each Newton system is solved by conjugate gradients with exact Hessian
products (two matrix products over the data each), and only as accurately as the current step deserves. They are
preconditioned by the Hessian of a part of the data where d is small enough to factorise it, and by the Kronecker
approximation where it is not: then no d x d matrix is formed.

That of a network is not concave, and the Gauss-Newton matrix is not its Hessian, so that steps by it converge slowly. It is
taken for coordinates instead, in which L-BFGS learns the rest, and renewed now and then.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish._checks import check_at_least, check_finite, check_positive, check_tensor
from burnish.errors import FitError
from burnish.heads import LinearHead
from burnish.inference.curvature import diagonal_hessian, full_hessian, hessian_product, kronecker_hessian, needs_double
from burnish.inference.network_curvature import kronecker_scale
from burnish.layer_scales import Kronecker
from burnish.scales import Dense, Diagonal, Scale
from burnish.target import Target

__all__ = ["Mode", "find_mode"]

_DENSE_DIM = 3000  # parameters up to which a dense preconditioner is formed and factorised
_STALLED, _STALLED_DECREMENT = 3, 0.05  # steps without progress, and standard deviations from the mode, that may end it
_STALE_PRODUCTS = 12  # products in one Newton step from which on a fresh preconditioner pays
_NEWTON_STEPS, _LBFGS_STEPS = 100, 1000
_ROUND, _HISTORY = 100, 20  # steps of L-BFGS between renewals of its coordinates, and those it remembers
_DENSE_NETWORK = 1000  # parameters of a network up to which its curvature is factorised
_LEVEL = 1e-2  # nats that a round must gain
_DENSE_POINTS, _DENSE_POINTS_PER_DIM = 4096, 4  # points its Hessian is taken from


@dataclass(frozen=True, eq=False)
class Mode:
    """Where the search ended."""

    theta: Tensor
    gradient_norm: float
    decrement: float
    """Newton decrement: the distance to the mode in posterior standard deviations, to first order."""
    iterations: int
    converged: bool
    stalled: bool = False
    """Whether it ended before that and before its iterations did, as no step gained any more."""


@dataclass(frozen=True, eq=False)
class HessianSpectrum:
    """Eigenvalues and eigenvectors of a Hessian of the log-likelihood.

    Near where it was taken, Newton systems of *every* prior precision are solved by two matrix products.
    """

    values: Tensor
    vectors: Tensor

    @classmethod
    def at(cls, target: Target, theta: Tensor) -> "HessianSpectrum | None":
        """From all or some of the points; None where there are too many parameters for a dense matrix."""
        if theta.shape[-1] > _DENSE_DIM:
            return None
        values, vectors = torch.linalg.eigh(_partial_hessian(target, theta).double())
        return cls(values.clamp_min(0.0).to(theta.dtype), vectors.to(theta.dtype))

    def inverse(self, precision: float | Tensor) -> Callable[[Tensor], Tensor]:
        """Multiplication by the inverse of Hessian plus precision, which is one number."""
        return lambda vector: self.vectors @ ((self.vectors.T @ vector) / (self.values + precision))


@torch.no_grad()
def find_mode(
    target: Target,
    start: Tensor | None = None,
    *,
    tolerance: float = 1e-3,
    max_iterations: int | None = None,
    spectrum: HessianSpectrum | None = None,
) -> Mode:
    """Climbs from `start` (the prior mean when not given) to the mode of the target.

    Args:
        target: the log posterior; that of a network has many modes, and the one uphill from `start` is found.
        start: parameters (d,) to begin at, for instance the network's own.
        tolerance: on the Newton decrement, in posterior standard deviations; the step found last is still taken, so
            that the error left is of the order of its square.
        max_iterations: 100 of Newton's method when not given, or 1000 of L-BFGS for a network; the result says whether they
            were enough.
        spectrum: of the Hessian of similar data near the mode, to precondition with: it saves the time to make one for
            each of many priors, and costs only iterations where it does not fit.
    """
    check_positive("tolerance", tolerance)
    if max_iterations is None:
        max_iterations = _NEWTON_STEPS if isinstance(target.model.head, LinearHead) else _LBFGS_STEPS
    check_at_least("max_iterations", max_iterations, 1)
    if start is not None:
        check_start(target, start)
    theta = target.prior.mean if start is None else start.detach().clone()
    target.check_theta(theta)
    if needs_double(target, theta):
        found = find_mode(in_double(target), theta.double(), tolerance=tolerance, max_iterations=max_iterations)
        return replace(found, theta=found.theta.to(theta.dtype))
    if not isinstance(target.model.head, LinearHead):
        return _climb(target, theta, tolerance, max_iterations)
    value, grad = target.log_prob_and_grad(theta)
    decrement, iteration, converged = float("inf"), 0, False
    lowest, num_stalled = float("inf"), 0
    precondition = _preconditioner(target, theta) if spectrum is None else spectrum.inverse(target.prior_precision)
    while iteration < max_iterations and not converged:
        iteration += 1
        step, num_products = _newton_step(target, theta, grad, precondition)
        if num_products > _STALE_PRODUCTS:
            precondition = _preconditioner(target, theta)
        slope = float(step.double() @ grad.double())
        if not (math.isfinite(slope) and math.isfinite(float(value))):
            raise FitError("the mode search left the finite numbers; scale features and targets, or use float64.")
        if slope <= 0.0:  # no way up that rounding does not hide: at the mode, if it was close before
            converged = lowest < _STALLED_DECREMENT or not bool(grad.any())
            break
        decrement = slope**0.5
        num_stalled = 0 if decrement < 0.9 * lowest else num_stalled + 1
        lowest = min(lowest, decrement)
        # at the rounding error of the gradient the decrement no longer falls: close enough, if it is small
        converged = decrement < tolerance or (num_stalled >= _STALLED and decrement < _STALLED_DECREMENT)
        theta, value, grad, moved = _line_search(target, theta, step, value, grad, slope)
        if not moved:  # no uphill step to be told apart from rounding
            converged = converged or decrement < 1.0
            break
    stalled = not converged and iteration < max_iterations
    return Mode(theta, float(grad.double().norm()), decrement, iteration, converged, stalled)


def check_start(target: Target, start: Tensor) -> None:
    """Refuses parameters that the target cannot be taken at."""
    check_tensor("start", start)
    target.check_theta(start, "start")
    if start.ndim != 1:
        raise ValueError(f"`start` must be one vector of shape ({target.dim},), got {tuple(start.shape)}.")
    check_finite("start", start, "Check the network's weights, or leave `start` out.")


def _climb(target: Target, theta: Tensor, tolerance: float, max_iterations: int) -> Mode:
    """L-BFGS in coordinates whitened by the curvature, which are renewed from round to round."""
    iteration, decrement, converged = 0, float("inf"), False
    while iteration < max_iterations and not converged:
        scale, center = _whitening(target, theta), theta
        z = torch.zeros_like(theta).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [z],
            max_iter=min(_ROUND, max_iterations - iteration),
            history_size=_HISTORY,
            tolerance_grad=0.01 * tolerance / math.sqrt(len(z)),  # of the largest entry
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def loss(z: Tensor = z, center: Tensor = center, scale: Scale = scale) -> Tensor:
            value, grad = target.log_prob_and_grad(center + scale.matmul(z.detach()))
            z.grad = -scale.transpose_matmul(grad)
            return -value

        before = float(loss())
        optimizer.step(loss)  # type: ignore[no-untyped-call]
        after, previous = float(loss()), decrement
        if not (math.isfinite(after) and bool(torch.isfinite(z).all())):
            raise FitError("the mode search left the finite numbers; scale inputs, or use float64.")
        iteration += max(1, optimizer.state[z]["n_iter"])
        theta = center + scale.matmul(z.detach())
        assert z.grad is not None
        decrement = float(z.grad.double().norm())
        converged = decrement < tolerance
        level = before - after < _LEVEL and decrement > 0.5 * previous
        if level and not converged:  # at a kink, or at the rounding error of the gradient: close enough, if it is small
            converged = decrement < _STALLED_DECREMENT
            break
    norm = float(target.log_prob_and_grad(theta)[1].double().norm())
    return Mode(theta, norm, decrement, iteration, converged, stalled=not converged and iteration < max_iterations)


def _whitening(target: Target, theta: Tensor) -> Scale:
    """A root of an approximate inverse of a network's curvature plus prior precision."""
    precision = torch.as_tensor(target.prior_precision, dtype=torch.float64, device=theta.device)
    if theta.shape[-1] <= _DENSE_NETWORK:
        try:
            hessian = _partial_hessian(target, theta)
            hessian.diagonal().add_(precision)
            return Dense.from_precision(hessian, theta.dtype)
        except (FitError, MemoryError):  # indefinite by rounding, or no room: the others will do
            pass
    try:
        return kronecker_scale(target, theta, float(precision.mean()))
    except (ValueError, MemoryError, FitError):  # layers without such a structure, no room for it, or rounding
        pass
    try:
        return Diagonal((diagonal_hessian(target, theta) + precision).rsqrt().to(theta.dtype))
    except MemoryError:  # of Jacobians, even one by one
        return Diagonal(precision.expand(target.dim).rsqrt().to(theta.dtype))


def in_double(target: Target) -> Target:
    """The same target in float64."""
    precision, mean = (
        value.double() if isinstance(value, Tensor) else value for value in (target.prior_precision, target.prior_mean)
    )
    data = target.data.to(dtype=torch.float64)
    return replace(target, data=data, prior_precision=precision, prior_mean=mean)


def _newton_step(
    target: Target, theta: Tensor, grad: Tensor, precondition: Callable[[Tensor], Tensor]
) -> tuple[Tensor, int]:
    """Solves (Hessian + prior precision) step = grad by preconditioned conjugate gradients, inexactly; counts products."""
    product, count = hessian_product(target, theta), 0
    step, residual = torch.zeros_like(grad), grad.clone()
    scaled = precondition(residual)
    direction, energy = scaled, residual @ scaled
    # superlinear convergence needs ever more accurate steps; 1e-3 is as exact as the last one has to be
    goal = energy * min(0.1, max(1e-3, float(energy) ** 0.5)) ** 2
    for _ in range(max(50, 2 * min(theta.shape[-1], 250))):
        image, count = product(direction) + target.prior_precision * direction, count + 1
        curvature = direction @ image
        if not curvature > 0:
            break
        length = energy / curvature
        step, residual = step + length * direction, residual - length * image
        scaled = precondition(residual)
        energy, previous = residual @ scaled, energy
        if energy <= goal:
            break
        direction = scaled + (energy / previous) * direction
    return step, count


def _preconditioner(target: Target, theta: Tensor) -> Callable[[Tensor], Tensor]:
    """An approximate inverse of the Hessian plus prior precision: dense where a factorisation is cheap, else Kronecker."""
    if theta.shape[-1] <= _DENSE_DIM:
        try:
            factor = _dense_factor(target, theta)
        except (FitError, MemoryError):  # indefinite by rounding, or no room: the other one will do
            pass
        else:
            return lambda vector: torch.cholesky_solve(vector.double().unsqueeze(-1), factor).squeeze(-1).to(vector.dtype)
    return _kronecker_preconditioner(target, theta)


def _dense_factor(target: Target, theta: Tensor) -> Tensor:
    """Cholesky factor of the Hessian of every k-th point, scaled to all of them, plus the prior's precision.

    For little data it is exact, and the step Newton's own.
    """
    hessian = _partial_hessian(target, theta)
    hessian.diagonal().add_(torch.as_tensor(target.prior_precision, device=theta.device))
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(hessian)
    if int(info):
        raise FitError("the Hessian of a part of the data is not positive definite.")
    return factor


def _partial_hessian(target: Target, theta: Tensor) -> Tensor:
    """The Hessian of every k-th point, scaled to all of them."""
    stride = max(1, len(target.data) // max(_DENSE_POINTS, _DENSE_POINTS_PER_DIM * target.dim))
    few = replace(target, data=target.data.subset(slice(None, None, stride)))
    return full_hessian(few, theta) * (len(target.data) / len(few.data))


def _kronecker_preconditioner(target: Target, theta: Tensor) -> Callable[[Tensor], Tensor]:
    curvature = kronecker_hessian(target, theta)
    precision = float(torch.as_tensor(target.prior_precision, dtype=torch.float64).mean())
    scale = Kronecker.from_precision(curvature.left, curvature.right, precision, target.model.linear_head, theta.dtype)
    return lambda vector: scale.matmul(scale.transpose_matmul(vector))


def _line_search(
    target: Target, theta: Tensor, step: Tensor, value: Tensor, grad: Tensor, slope: float
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Halves the step until the target rises enough; near the mode, by less than rounding, full steps pass."""
    slack = 8 * torch.finfo(theta.dtype).eps * (abs(float(value)) + 1.0)
    length = 1.0
    for _ in range(40):
        candidate = theta + length * step
        new_value, new_grad = target.log_prob_and_grad(candidate)
        if bool(torch.isfinite(new_value)) and float(new_value - value) >= 0.1 * length * slope - slack:
            return candidate, new_value, new_grad, True
        length /= 2
    return theta, value, grad, False
