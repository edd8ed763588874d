"""Folders that commands write to."""

from pathlib import Path

import typer

__all__ = ["make_folder"]


def make_folder(folder: Path, option: str = "--out") -> None:
    """Before the work, which would be lost."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        typer.echo(
            f"`{option}` must be a folder that can be made and written, got {folder} ({error.strerror}). Pass another.",
            err=True,
        )
        raise typer.Exit(2) from None
