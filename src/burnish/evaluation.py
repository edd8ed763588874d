"""Eval mode: to run a network in it whatever mode it is in, and to refuse one that depends on the mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__: list[str] = []


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode inside, each one's own mode restored after."""
    training = _training_parts(module)
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def _training_parts(module: nn.Module) -> list[nn.Module]:
    """Those in train mode, by a walk of our own: that of `modules()` takes three times as long, at every prediction."""
    found, seen, waiting = [], {module}, [module]
    while waiting:
        part = waiting.pop()
        if part.training:
            found.append(part)
        for child in part._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found


def check_evaluation(network: nn.Module) -> None:
    """Refuses a network whose outputs depend on chance, or on the other points of a batch."""
    for name, part in network.named_modules():
        kind = type(part).__name__
        if isinstance(part, nn.modules.batchnorm._NormBase):
            alone = isinstance(part, nn.modules.instancenorm._InstanceNorm)  # every point by itself
            if part.training and not (alone and part.running_mean is None):
                raise ValueError(
                    f"`network` must be in eval mode, got {kind} {name!r} in train mode, which does not use its running "
                    "statistics. Call `network.eval()` first."
                )
            if part.running_mean is None and not alone:
                raise ValueError(
                    f"`network` must normalise every point by itself, got {kind} {name!r} without running statistics. "
                    "Train it with `track_running_stats=True`, or use LayerNorm."
                )
        elif part.training and _drops(part):
            raise ValueError(
                f"`network` must be in eval mode, got {kind} {name!r} in train mode, whose outputs are random. "
                "Call `network.eval()` first."
            )


def _drops(part: nn.Module) -> bool:
    """Whether a module drops some of its numbers in train mode."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0.0
    return isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0.0
