"""Explicit randomness: generators, and the standard normal noise that every posterior transforms."""

import torch
from torch import Tensor

from burnish._checks import check_at_least

__all__ = ["make_generator"]


def make_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device`, seeded. The global random state is never touched.

    Example:
        >>> generator = make_generator(0)
        >>> torch.randn(2, generator=generator).shape
        torch.Size([2])
    """
    check_at_least("seed", seed, 0)
    return torch.Generator(device).manual_seed(int(seed))


def check_generator(generator: torch.Generator, device: torch.device) -> None:
    """Refuses a generator that cannot draw on `device`."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"`generator` must be a torch.Generator, got {type(generator).__name__}. "
            f"Make one with `burnish.make_generator(seed, device='{device}')`."
        )
    if generator.device.type != device.type or (
        device.index is not None and generator.device.index not in (None, device.index)
    ):
        raise ValueError(
            f"`generator` must live on {device}, where the tensors are, got one on {generator.device}. "
            f"Make one with `burnish.make_generator(seed, device='{device}')`."
        )


def standard_normal(num_samples: int, like: Tensor, *, generator: torch.Generator, antithetic: bool = False) -> Tensor:
    """Noise of shape (num_samples, d) with the dimension, dtype and device of the vector `like`.

    With `antithetic`, the second half of the rows is the negative of the first: odd moments cancel exactly.
    """
    check_at_least("num_samples", num_samples, 1)
    check_generator(generator, like.device)
    if antithetic and num_samples % 2:
        raise ValueError(f"`num_samples` must be even for antithetic pairs, got {num_samples}. Pass an even number.")
    rows = num_samples // 2 if antithetic else num_samples
    noise = torch.randn(rows, like.shape[-1], generator=generator, device=like.device, dtype=like.dtype)
    return torch.cat([noise, -noise]) if antithetic else noise
