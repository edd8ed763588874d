"""How numbers of several seeds are written into tables, with the paper's beside them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.studies.data import TEXTS
from burnish.studies.printed import Printed, printed
from burnish.studies.protocols import BENCHMARKS

__all__ = [
    "is_comparable",
    "method_names",
    "method_rows",
    "printed_score",
    "printed_text",
    "spread",
    "standard_error",
]


def is_comparable(config: Mapping[str, Any]) -> bool:
    """Whether what the paper prints is about the same as a record of this configuration: its protocol, images and epochs."""
    whole = config["num_epochs"] is None and config.get("num_train") is None
    return bool(config["protocol"] == "paper" and not config["made_images"] and whole)


def method_names(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods of all seeds, in the order of the seed that has most of them."""
    longest = max(parts, key=lambda part: len(part["rows"]))
    return list(longest["rows"])


def method_rows(parts: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """What the seeds that have it know about a method."""
    return [part["rows"][name] for part in parts if name in part["rows"]]


def spread(values: Sequence[float | None], digits: int, scale: float = 1.0) -> str:
    """Mean and, of several values, standard error; nothing where there are none. None stands for what is no number."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return ""
    mean = f"{statistics.fmean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {standard_error(known):.{digits}f}"


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; of one value, without bounds."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def printed_score(dataset: str, method: str, score: str) -> Printed | None:
    """A number of the paper's tables of last layers on images and texts, or None where it prints none."""
    title = BENCHMARKS[dataset].title.partition(",")[0]
    keys = ("text", method, title) if dataset in TEXTS else ("calibration_last_layer", title, method)
    value = printed(*keys, score)
    return value if isinstance(value, Printed) else None


def printed_text(*keys: str) -> str:
    """A number of the paper, or nothing where it prints none."""
    value = printed(*keys)
    return f"{value.mean:g}" if isinstance(value, Printed) else ""
