"""Figures of the image studies."""

from collections.abc import Mapping
from typing import Any

__all__ = ["draw_image_study"]


def draw_image_study(record: Mapping[str, Any]) -> str:
    """The figure of a record as SVG text."""
    return "<svg/>"
