"""What the paper prints: every number of its tables and figures, to be set beside the numbers of a study.

The paper is "Posterior Refinement Improves Sample Efficiency in Bayesian Neural Networks", NeurIPS 2022. Methods keep the
names they have there, such as "MAP-Temp", "LA-Refine-5" and "HMC". Accuracies, calibration errors and false positive rates
are in percent.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Printed", "names", "printed", "source"]


@dataclass(frozen=True)
class Printed:
    """A number as printed."""

    mean: float
    stderr: float | None = None
    """What stands behind its plus or minus; None where nothing does."""


def printed(*keys: str, default: Printed | None = None) -> Printed | list[float] | None:
    """A number of the paper, or a row of them.

    Args:
        *keys: the table, then what leads to the number: `printed("calibration_last_layer", "F-MNIST", "HMC", "nll")`.
        default: what to return where the paper prints nothing, as for the MMD of "VB".

    Raises:
        KeyError: If there is no such table.
        ValueError: If the keys end before a number, at something that `names` lists.
    """
    if not keys or keys[0] not in names():
        asked = repr(keys[0]) if keys else "none"
        raise KeyError(f"`keys` must begin with one of {', '.join(names())}, got {asked}. `names()` lists them.")
    value = _find(keys)
    if value is None:
        return default
    if isinstance(value, list):
        return [float(entry) for entry in value]
    if not isinstance(value, dict):
        return Printed(float(value))
    if "mean" not in value:
        raise ValueError(f"`keys` must lead to a number, got {keys}. Add one of {', '.join(value)}.")
    return Printed(**value)


def names(*keys: str) -> tuple[str, ...]:
    """What may follow the keys: tables without any, then data sets, methods or scores; nothing after a number."""
    value = _find(keys)
    if not isinstance(value, dict) or "mean" in value:
        return ()
    return tuple(name for name in value if keys or name != "source")


def source() -> str:
    """Where the numbers come from."""
    return str(_values()["source"])


def _find(keys: tuple[str, ...]) -> Any:
    """What stands under the keys; None where nothing does."""
    value: Any = _values()
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@cache
def _values() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(files("burnish.studies").joinpath("printed.json").read_text(encoding="utf-8"))
    return values
