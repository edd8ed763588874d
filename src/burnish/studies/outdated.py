"""Whether a record is one that today's code would make: of its version and sizes, and with nothing missing."""

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from burnish.studies.data.tables import TABLES
from burnish.studies.image_posteriors import FLOW
from burnish.studies.image_settings import ImageSettings
from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.part_studies import PART_STUDIES
from burnish.studies.parts import SEEDS
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import STUDIES, finite
from burnish.studies.workspace import VERSION

__all__ = ["lacking", "outdated"]


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
        if found != value:
            return f"it was made with `{key}` {found}, and the code has {value}"
    if name == "few-shot" and any("base" not in part["rows"][FLOW]["fit"] for part in record.get("parts", {}).values()):
        return "its flows stand on the mode alone, and those of the code on what `refine` has"
    return None


def lacking(record: Mapping[str, Any]) -> str | None:
    """What a record lacks of all that its study makes, on real data, unless told otherwise; nothing where it is whole."""
    config = record["config"]
    if record.get("failures"):
        return f"what failed: {', '.join(record['failures'])}"
    if config.get("made_images") or config.get("made_tables"):
        return "real data"
    if record["study"] == "tabular" and config["num_splits"] < config["max_splits"]:
        return f"splits: it has {config['num_splits']} of {config['max_splits']}"
    for key, values in _wanted(record["study"], config).items():
        missing = [str(value) for value in values if value not in config.get(key, [])]
        if missing:
            return f"{key}: {', '.join(missing)}"
    return None


def _wanted(name: str, config: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Networks or data sets."""
    if name in IMAGE_STUDIES:
        return {"seeds": BENCHMARKS[config["dataset"]].seeds}
    if name == "tabular":
        return {"datasets": tuple(TABLES)}
    return {"seeds": SEEDS} if name in ("few-shot", "all-layer") else {}


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
