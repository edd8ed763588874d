"""What the studies of the command line leave: a record, a figure and a table, or one line that says why not."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

__all__ = ["OPTIONS", "leave", "reason", "refuse", "remove_empty"]

OPTIONS = {"baseline_seeds": "baselines", "folder": "data"}
"""What an option is called where it is not an argument's own name."""

_PIPE_WIDTH = 160  # of tables that are not printed on a terminal
_ARGUMENTS = ("dataset", "datasets", "seeds", "baseline_seeds", "protocol", "device", "folder")


def leave(
    record: Mapping[str, Any], draw: Callable[[Mapping[str, Any]], str], place: Path, as_json: bool, title: str
) -> None:
    """Writes record and figure, and prints one of record and table."""
    from burnish.storage import replace_file
    from burnish.studies.records import record_text, summarise

    text = record_text(record)
    try:
        replace_file(place.with_name(f"{place.name}.json"), f"{text}\n".encode())
        replace_file(place.with_name(f"{place.name}.svg"), f"{draw(record)}\n".encode())
    except OSError as error:
        refuse(reason(error), code=1)
    if as_json:
        typer.echo(text)
        return
    _print_table(title, *summarise(record))
    typer.echo(f"{record['seconds']:.0f} s in all. The figure: {place.resolve()}.svg")


def refuse(message: str, code: int = 2) -> NoReturn:
    """Ends the command with one line."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


def reason(error: Exception) -> str:
    """What went wrong, in one line; errors of ours about files say it all in what the system says of others."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        text = error.strerror
    for name in _ARGUMENTS:
        text = text.replace(f"`{name}`", f"`--{OPTIONS.get(name, name)}`")
    return text


def remove_empty(folders: Sequence[Path]) -> None:
    """Takes back what was made for a study that could not begin."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # where something has been written
            folder.rmdir()


def _print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title[0].upper() + title[1:], title_justify="left")
    table.add_column(header[0])
    for column in header[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=console.width if console.is_terminal else _PIPE_WIDTH).print(table)
