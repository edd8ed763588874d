"""Records of benchmark runs: what was measured, with what, where, and the table that is printed from it."""

import ctypes
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from burnish.studies.records import finite, origin

__all__ = ["RESULTS", "VERSIONS", "measured", "origin", "print_table", "write_record"]

RESULTS = Path(__file__).resolve().parent.parent / "results"
VERSIONS: dict[str, int] = {}
"""Of a benchmark's record, by its name, where it is not the first: one more whenever its table needs something new."""


def write_record(path: Path, config: Mapping[str, Any], results: Any, device: torch.device) -> None:
    """Writes one JSON record: configuration, commit, versions, device and results."""
    record = {"version": VERSIONS.get(path.stem, 1), "config": dict(config), **origin(device), "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")
    print(f"record: {path}")


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows of equal keys in aligned columns."""
    if not rows:
        return
    header = list(rows[0])
    cells = [[_format(row[key]) for key in header] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(header)]
    for line in [header, ["-" * width for width in widths], *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


@contextmanager
def measured(device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds of the block, and the peak of memory above what was in use before it."""
    report: dict[str, float] = {}
    done = threading.Event()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier blocks freed must not hide what this one allocates
        before = _resident()
        peak = [before]

        def watch() -> None:
            while not done.wait(0.005):
                peak[0] = max(peak[0], _resident())

        threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    try:
        yield report
    finally:
        done.set()
    if device.type == "cuda":
        torch.cuda.synchronize()
    report["seconds"] = time.perf_counter() - began
    top = torch.cuda.max_memory_allocated() if device.type == "cuda" else max(peak[0], _resident())
    report["peak_mib"] = (top - before) / 2**20


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)
