"""The committed records, which tables and figures of the pages are made of: there, whole, and as today's code makes them."""

import json
from pathlib import Path
from typing import Any

from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.outdated import lacking, outdated
from records import RESULTS, VERSIONS

__all__ = ["has_record", "read_record"]


def has_record(name: str) -> bool:
    """Whether there is a record of that name, from whatever time."""
    return _place(name).exists()


def read_record(name: str) -> dict[str, Any]:
    """A record that tables and figures are made of; ends the program where it is missing, or older than its reader."""
    place = _place(name)
    shown = f"results/{place.relative_to(RESULTS)}"
    if not place.exists():
        raise SystemExit(f"{shown} must be there for the pages, got no such file. Make it: see `burnish study --help`.")
    try:
        record: dict[str, Any] = json.loads(place.read_text())
    except ValueError as error:
        raise SystemExit(f"{shown} must be a record in JSON, got a damaged file ({error}). Make it anew.") from error
    lack = None
    if "study" in record:
        why, lack = outdated(record), lacking(record)
    else:
        version, wanted = record.get("version", 1), VERSIONS.get(name, 1)
        why = None if version == wanted else f"it is of version {version}, and the code of version {wanted}"
    if why:
        raise SystemExit(f"{shown} must be as the code would make it, but {why}. Make it anew.")
    if lack:
        raise SystemExit(f"{shown} must be whole, but it lacks {lack}. Make what is missing.")
    return record


def _place(name: str) -> Path:
    """Studies of images and of texts have folders of their own."""
    folder = RESULTS
    if name.startswith("text-"):
        folder = RESULTS / "texts"
    elif any(name.startswith(f"{study}-") for study in IMAGE_STUDIES):
        folder = RESULTS / "images"
    return folder / f"{name}.json"
