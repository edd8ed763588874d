"""Explicit randomness: generators, and the standard normal noise that every posterior transforms."""

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from burnish._checks import check_at_least, check_choice

__all__ = ["make_generator"]

NOISES = ("iid", "antithetic", "sobol")


def make_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device`, seeded. The global random state is never touched.

    Example:
        >>> generator = make_generator(0)
        >>> torch.randn(2, generator=generator).shape
        torch.Size([2])
    """
    check_at_least("seed", seed, 0)
    return torch.Generator(device).manual_seed(int(seed))


def check_generator(generator: object, device: torch.device) -> None:
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


def standard_normal(num_samples: int, like: Tensor, *, generator: torch.Generator, noise: str = "iid") -> Tensor:
    """Noise of shape (num_samples, d) with the dimension, dtype and device of the vector `like`.

    Each row is standard normal. "antithetic": the second half of the rows is the negative of the first, so that odd moments
    cancel exactly; of an odd number, one row has no partner. "sobol": the points of a scrambled Sobol sequence, which fill
    the space more evenly than independent ones.
    """
    check_at_least("num_samples", num_samples, 1)
    check_choice("noise", noise, NOISES)
    check_generator(generator, like.device)
    if noise == "sobol":
        return _sobol(num_samples, like, generator)
    count = (num_samples + 1) // 2 if noise == "antithetic" else num_samples
    rows = torch.randn(count, like.shape[-1], generator=generator, device=like.device, dtype=like.dtype)
    return torch.cat([rows, -rows])[:num_samples] if noise == "antithetic" else rows


def _sobol(num_samples: int, like: Tensor, generator: torch.Generator) -> Tensor:
    dim = like.shape[-1]
    if dim > SobolEngine.MAXDIM:
        raise ValueError(
            f"`noise` 'sobol' is known for at most {SobolEngine.MAXDIM} dimensions, got {dim}. Use 'antithetic'."
        )
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    points = SobolEngine(dim, scramble=True, seed=seed).draw(num_samples, dtype=torch.float64)  # type: ignore[no-untyped-call]
    inside = points.clamp(2.0**-31, 1.0 - 2.0**-31)  # half of the sequence's own resolution: no infinite values
    noise: Tensor = torch.special.ndtri(inside)
    return noise.to(like)
