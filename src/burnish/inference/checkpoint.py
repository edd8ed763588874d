"""A run of chains on disk: written at once or not at all, and read only into a run of the same target and options."""

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from burnish.encoding import decode, encode
from burnish.inference.coordinates import Coordinates, Density
from burnish.inference.sampler import State
from burnish.inference.trajectory import Chains, Tuning
from burnish.posteriors import KINDS
from burnish.storage import read_file, write_file

__all__: list[str] = []

_SAME_DENSITY = 1e-5  # relative difference of log densities that may be rounding on another machine


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What is written."""

    state: State
    generator: Tensor
    options: dict[str, Any]


_KINDS = (Checkpoint, State, Coordinates, Chains, Tuning, *KINDS)


def write_checkpoint(
    path: str | os.PathLike[str], state: State, generator: torch.Generator, options: dict[str, Any]
) -> None:
    """Replaces the file; a reader sees the old run or the new one, never half of either."""
    bits = generator.get_state().long()
    packed = replace(state, draws=(torch.stack(state.draws),) if state.draws else ())
    tree, tensors = encode(Checkpoint(packed, bits, options), _KINDS)
    write_file(path, {"hmc": tree}, tensors)


def read_checkpoint(
    path: str | os.PathLike[str], target: Density, like: Tensor, generator: torch.Generator, options: dict[str, Any]
) -> State:
    """The state that was written, on the device of `like`; the generator is set to where it was.

    Raises:
        ValueError: if the file is damaged, or of a run of another target or with other options.
    """
    header, tensors = read_file(path)
    found = decode(header["hmc"], tensors, _KINDS, like.device) if "hmc" in header else None
    if not isinstance(found, Checkpoint):
        raise ValueError(f"`checkpoint` must be one of `fit_hmc`, got {os.fspath(path)!r}, which is not. Pass another path.")
    remedy = f"Pass the path of another file, or delete {os.fspath(path)!r}."
    for name, value in options.items():
        if found.options.get(name) != value:
            raise ValueError(f"`checkpoint` must be of a run with `{name}` {value}, got {found.options.get(name)}. {remedy}")
    chains = found.state.chains
    if chains.theta.shape[1] != target.dim:
        raise ValueError(
            f"`checkpoint` must be of a target with {target.dim} parameters, got {chains.theta.shape[1]}. {remedy}"
        )
    if chains.theta.dtype != like.dtype:
        raise ValueError(f"`checkpoint` must be of a run in {like.dtype}, got {chains.theta.dtype}. {remedy}")
    _, log_prob, _ = found.state.coordinates.log_prob_and_grad(target, chains.z)
    if not torch.allclose(log_prob, chains.log_prob, rtol=_SAME_DENSITY, atol=_SAME_DENSITY):
        raise ValueError(
            f"`checkpoint` must be of this target, got a log density of {float(chains.log_prob[0]):.6g} at its first chain "
            f"where this target has {float(log_prob[0]):.6g}. {remedy}"
        )
    generator.set_state(found.generator.byte().cpu())
    return replace(found.state, draws=tuple(part for block in found.state.draws for part in block))
