"""Whether the files of a split are those of the set, by checksums of the files or of the images in them."""

import hashlib
import os
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from burnish.studies.data.damage import naming
from burnish.studies.data.documents import Documents
from burnish.studies.data.images import Images
from burnish.studies.data.layouts import File, Found

__all__ = ["Known", "check_file", "compare_files", "compare_images", "file_stamp"]

Known = dict[Hashable, bool | None]
"""What has been found out about files, as long as they stay as they are."""


def check_file(file: File, path: Path, known: Known) -> bool | None:
    """As `File.is_intact`, once for each file; what is not intact is looked at anew, since it may have been mended."""
    key = (file, file_stamp(path))
    if key in known:
        return known[key]
    state = file.is_intact(path)
    if state is not False:
        known[key] = state
    return state


def file_stamp(path: Path) -> Hashable:
    """Of a file as it is now: path, size and time of its last change."""
    with naming(path):
        status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


def compare_files(found: Found, states: Sequence[bool | None]) -> dict[Path, str]:
    """What is wrong with which files, by what `check_file` gives for each."""
    files = list(zip(found.part.files, found.paths, states, strict=True))
    problems = {path: "its checksum is not the published one" for _, path, state in files if state is False}
    if any(file.copies and state for file, _, state in files):  # files of one copy are all of that copy
        problem = "its checksum is not the one of the copy that its other files are from"
        problems |= {path: problem for file, path, state in files if file.copies and not state}
    return problems


def compare_images(found: Found, images: Images | Documents) -> dict[Path, str]:
    """What the pixels and labels say where files have no checksums of their own; a file is a batch."""
    checksums = found.part.batches
    if not checksums or isinstance(images, Documents) or images.labels is None:
        return {}
    labels = images.labels.numpy().astype(np.uint8)[:, None]
    batches = zip(
        found.paths,  # labels come after the batches
        np.split(labels, len(checksums)),
        np.split(images.pixels.flatten(1).numpy(), len(checksums)),
        checksums,
        strict=False,
    )
    return {
        path: "its images and their labels are not those of the set"
        for path, label, pixels, checksum in batches
        if hashlib.md5(np.concatenate([label, pixels], axis=1).data, usedforsecurity=False).hexdigest() != checksum
    }
