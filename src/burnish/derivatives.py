"""Derivatives of a flat network: along tangents, and backwards from the outputs of single points."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from burnish.evaluation import evaluation_mode
from burnish.flat_network import FlatNetwork, plain_attention

__all__: list[str] = []


def jvp(function: Callable[[Tensor], Tensor], point: Tensor, tangents: Tensor, *, what: str, remedy: str) -> Tensor:
    """The derivative of a function along one tangent (d,), or along each of several (S, d).

    Args:
        function: of `point` (d,).
        point: where it is differentiated.
        tangents: directions.
        what: what needs this derivative, with its verb, for the refusal of layers that have none.
        remedy: what to do about such layers.
    """

    def along(tangent: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(function, (point,), (tangent,))[1]
        return found

    with warnings.catch_warnings(), plain_attention(), torch.enable_grad():  # without gradients, layers fuse even more
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)  # torch warns of code of its own
        try:
            return (along(tangents) if tangents.ndim == 1 else torch.func.vmap(along)(tangents)).detach()
        except NotImplementedError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{what} layers with forward derivatives, got one without ({reason}). {remedy}") from error


def jacobian_rows(head: FlatNetwork, theta: Tensor, inputs: Tensor, cotangents: Tensor) -> Tensor:
    """For each point (n, ...) its cotangents (n, K, C) times the Jacobian of its outputs: (n, K, d)."""

    def rows_of(point: Tensor, directions: Tensor) -> Tensor:
        pullback = torch.func.vjp(lambda values: head.run(values, point.unsqueeze(0)).squeeze(0), theta)[1]
        found: Tensor = torch.func.vmap(lambda direction: pullback(direction)[0])(directions)
        return found

    if head.vectorised:
        try:
            with evaluation_mode(head.network), plain_attention():
                found: Tensor = torch.func.vmap(rows_of)(inputs, cotangents)
            return found
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a layer that cannot be batched over points, such as an LSTM
            pass
    pairs = zip(torch.split(inputs, 1), cotangents, strict=True)
    rows = [torch.stack([head.linearise(theta, x)[1](row.unsqueeze(0)) for row in part]) for x, part in pairs]
    return torch.stack(rows)
