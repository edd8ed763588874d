"""Progress of long work: a bar on a terminal, nothing elsewhere, and the seconds of every stage."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__: list[str] = []


class Stages:
    """Named stages of one piece of work, timed, and shown where someone is watching."""

    def __init__(self, title: str, *, show: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._title = title
        self._bar: Any = _bar() if show else None

    def __enter__(self) -> "Stages":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator["Stages"]:
        """Times one stage; with `total`, `track` moves its bar."""
        began = time.perf_counter()
        task = None if self._bar is None else self._bar.add_task(f"{self._title}: {name}", total=total)
        self._task = task
        try:
            yield self
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            if task is not None:
                self._bar.remove_task(task)

    def track(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each moving the bar of the stage by one once it has been dealt with."""
        for item in items:
            yield item
            if self._bar is not None:
                self._bar.advance(self._task)

    def describe(self, text: str) -> None:
        """Says beside the bar how the stage is doing."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._title}: {text}")


def _bar() -> Any:
    if not sys.stderr.isatty():
        return None
    # here, because importing burnish should not cost what rich does
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
