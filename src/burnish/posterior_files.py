"""Posteriors in files, for those who work with posteriors and models themselves; a `BayesianNetwork` saves itself."""

import os

import torch

from burnish.encoding import decode, encode
from burnish.posteriors import KINDS, FlowPosterior, Gaussian, MixturePosterior, Posterior, SamplePosterior
from burnish.storage import read_file, write_file

__all__ = ["load_posterior", "save_posterior"]

_POSTERIORS = (Gaussian, FlowPosterior, MixturePosterior, SamplePosterior)


def save_posterior(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Writes a posterior to a safetensors file, at once or not at all.

    Neither the network nor the names of its parameters are in it: keep the network's own weights, and flatten it with the
    same `parameters` before predicting.

    Args:
        posterior: a `Gaussian`, `FlowPosterior`, `MixturePosterior` or `SamplePosterior`, as every fit has it.
        path: a file in an existing folder; one that exists is replaced.
    """
    if not isinstance(posterior, _POSTERIORS):
        raise TypeError(f"`posterior` must be a posterior, got {type(posterior).__name__}. Pass the fit's `.posterior`.")
    tree, tensors = encode(posterior, KINDS)
    write_file(path, {"posterior": tree}, tensors)


def load_posterior(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Posterior:
    """The posterior that `save_posterior` wrote, bit for bit.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or holds something else.
    """
    header, tensors = read_file(path)
    if "posterior" not in header:
        raise ValueError(
            f"`path` must be a file of `save_posterior`, got {os.fspath(path)!r}, which holds {', '.join(sorted(header))}. "
            "What `BayesianNetwork.save` wrote is read by `burnish.load`."
        )
    posterior: Posterior = decode(header["posterior"], tensors, KINDS, torch.device(device))
    if not isinstance(posterior, _POSTERIORS):
        raise ValueError(
            f"`path` must hold a posterior, got {type(posterior).__name__} in {os.fspath(path)!r}. Save it again."
        )
    return posterior
