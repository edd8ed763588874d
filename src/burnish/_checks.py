"""Argument checks shared by the public functions.

Every message names the argument, what was expected, what came, and what to do about it.
"""

import os
from collections.abc import Iterable
from numbers import Integral, Real

import torch
from torch import Tensor

__all__: list[str] = []


def check_at_least(name: str, value: int, minimum: int, remedy: str = "") -> None:
    """Refuses an integer below `minimum`, and anything that is not an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer, got {type(value).__name__}. {remedy}".rstrip())
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {value}. {remedy}".rstrip())


def check_positive(name: str, value: float | Tensor, remedy: str = "") -> None:
    """Refuses a number or tensor that is not positive and finite everywhere."""
    if isinstance(value, Tensor):
        bad = ~(torch.isfinite(value) & (value > 0))
        if bool(bad.any()):
            example = value[bad].flatten()[0].item()
            raise ValueError(
                f"`{name}` must be positive and finite, got {example:g} "
                f"({int(bad.sum())} of {value.numel()} entries are not). {remedy}".rstrip()
            )
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__}. {remedy}".rstrip())
    elif not 0.0 < value < float("inf"):
        raise ValueError(f"`{name}` must be positive and finite, got {value:g}. {remedy}".rstrip())


def check_tensor(name: str, value: object, remedy: str = "Convert it with `torch.as_tensor`.") -> None:
    """Refuses anything that is not a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}. {remedy}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuses an option that is not in the list."""
    options = list(choices)
    if value not in options:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}, got {value!r}. Pass one of them.")


def check_finite(name: str, value: Tensor, remedy: str) -> None:
    """Refuses NaN and infinite entries."""
    if not value.is_floating_point():
        return
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        count = int((~finite).sum())
        where = tuple(int(i) for i in (~finite).nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite, got {count} NaN or infinite of {value.numel()} entries, first at {where}. {remedy}"
        )


def check_like(name: str, value: Tensor, reference: Tensor, what: str) -> None:
    """Refuses a tensor whose dtype or device differs from what it will be combined with."""
    if value.dtype != reference.dtype or value.device != reference.device:
        raise TypeError(
            f"`{name}` must be {reference.dtype} on {reference.device} like {what}, got {value.dtype} on "
            f"{value.device}. Convert it with `.to({reference.dtype}, device='{reference.device}')`."
        )


def available_memory(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return min(int(fields["MemAvailable"].split()[0]) * 1024, _container_memory())
    except (OSError, KeyError):  # not Linux: the physical memory is the best bound to be had without a dependency
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_memory() -> int:
    """What a container's limit leaves, where there is one."""
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as current:
            return int(limit.read()) - int(current.read())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return 2**62


def check_memory(what: str, num_bytes: int, device: torch.device, alternative: str) -> None:
    """Refuses an allocation that does not fit, with its size and what to do instead."""
    available = available_memory(device)
    if num_bytes > available:
        raise MemoryError(f"{what} needs {_size(num_bytes)}, {_size(available)} are available on {device}; {alternative}")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
