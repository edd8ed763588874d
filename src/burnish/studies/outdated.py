"""Whether a record is one that today's code would make: of its version, and of its sizes."""

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from burnish.studies.image_settings import ImageSettings
from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.part_studies import PART_STUDIES
from burnish.studies.records import STUDIES, finite
from burnish.studies.workspace import VERSION

__all__ = ["outdated"]


def outdated(record: Mapping[str, Any]) -> str | None:
    """Why a study's record is older than the code that reads it, or nothing where it is not.

    Sizes that a record does not know of count as the plain ones, so that a new one does not outdate what it leaves alone.
    """
    name, config = record["study"], record["config"]
    wanted, plain = _sizes(name, config)
    if name not in STUDIES and record.get("version") != VERSION:
        return f"it is of version {record.get('version')}, and the code of version {VERSION}"
    for key, value in wanted.items():
        found = config.get(key, plain[key])
        # where points are too few for the larger ones of a list of sizes, a study leaves them out
        is_start = isinstance(value, list) and isinstance(found, list) and len(found) > 0 and found == value[: len(found)]
        if found != value and not is_start:
            return f"it was made with `{key}` {found}, and the code has {value}"
    return None


def _sizes(name: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of a study by today's code, and those that everything has unless it says otherwise."""
    if name in IMAGE_STUDIES:
        is_short = config.get("num_train") is not None
        usual = ImageSettings.short() if is_short else ImageSettings.usual(config["dataset"], config["protocol"])
        return finite(asdict(usual)), finite(asdict(ImageSettings()))
    if name not in {*PART_STUDIES, *STUDIES}:
        known = ", ".join([*IMAGE_STUDIES, *PART_STUDIES, *STUDIES])
        raise ValueError(f"`record` must be of one of the studies {known}, got {name!r}. Make it anew.")
    sizes = finite(asdict(importlib.import_module(f"burnish.studies.{name.replace('-', '_')}").Settings()))
    return sizes, sizes
