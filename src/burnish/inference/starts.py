"""Parameter vectors as the rows of a matrix that advance together: where they start, and whether they are still numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish._checks import check_finite, check_like, check_tensor
from burnish.errors import FitError
from burnish.noise import check_generator
from burnish.target import Target

__all__: list[str] = []


def stack_vectors(name: str, vectors: Tensor | Sequence[Tensor]) -> Tensor:
    """Rows (K, d) of a matrix, of one vector or of a sequence of them, without their gradients."""
    remedy = "Flatten networks of one architecture, with `model.head.flatten(network)`."
    if not isinstance(vectors, Tensor | list | tuple):
        raise TypeError(f"`{name}` must be a tensor or a list of vectors, got {type(vectors).__name__}. {remedy}")
    parts = [vectors] if isinstance(vectors, Tensor) and vectors.ndim <= 1 else list(vectors)
    if not parts:
        raise ValueError(f"`{name}` must hold at least one vector, got none. {remedy}")
    for index, part in enumerate(parts):
        check_tensor(f"{name}[{index}]", part, remedy)
        if part.ndim != 1 or part.shape != parts[0].shape:
            raise ValueError(
                f"`{name}` must be vectors of one length, got different shapes: {tuple(parts[0].shape)} first, and "
                f"{tuple(part.shape)} at {index}. {remedy}"
            )
        check_like(f"{name}[{index}]", part, parts[0], "the first one")
    if parts[0].dtype not in (torch.float32, torch.float64):
        raise TypeError(f"`{name}` must be float32 or float64, got {parts[0].dtype}. Convert them with `.float()`.")
    return vectors.detach() if isinstance(vectors, Tensor) and vectors.ndim == 2 else torch.stack(parts).detach()


def check_starts(name: str, starts: Tensor | Sequence[Tensor], target: Target, generator: torch.Generator) -> Tensor:
    """Starts (M, d) for rows that advance together; refuses what does not fit the target."""
    if not isinstance(target, Target):
        raise TypeError(f"`target` must be a Target, got {type(target).__name__}. Pass `Target(model, data, precision)`.")
    rows = stack_vectors(name, starts)
    if rows.shape[1] != target.dim:
        raise ValueError(
            f"`{name}` must have the target's {target.dim} parameters, got {rows.shape[1]}. "
            "Pass what `split_last_layer` or `flatten_network` gave with the model."
        )
    check_like(name, rows, target.data.inputs, "`target.data.inputs`")
    check_finite(name, rows, "Start at a trained network.")
    check_generator(generator, rows.device)
    return rows


def check_all_finite(theta: Tensor, step: int, option: str) -> None:
    """Refuses rows that have diverged by this step."""
    finite = torch.isfinite(theta).all(1)
    if not bool(finite.all()):
        raise FitError(
            f"by step {step}, {int((~finite).sum())} of {len(theta)} run(s) had left the finite numbers, the first at row "
            f"{int((~finite).nonzero()[0])}; use a smaller `{option}`."
        )
