"""`burnish data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from burnish.cli.folders import make_folder

if TYPE_CHECKING:
    from burnish.studies.data.layouts import Dataset
    from burnish.studies.data.verifying import Finding

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Folder, or several separated as in PATH. Without it, those of BURNISH_DATA and the cache are looked into.",
        show_default=False,
    ),
]


@app.callback()
def main() -> None:
    """Public image data sets for studies: what there is, fetching it with checksums, and whether it is intact."""


@app.command("list", short_help="What there is, on which terms, and where it lies here.")
def list_datasets(data: _Data = None) -> None:
    """List all data sets: what each is, its splits, its terms, and where it was found."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from burnish.studies.data import DATASETS

    folders = _folders(data)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", no_wrap=True)
    for column in ("what it is", "splits", "terms", "where"):
        table.add_column(column, overflow="fold")
    for dataset in DATASETS.values():
        table.add_row(dataset.name, dataset.what, ", ".join(dataset.splits), dataset.terms, _where(dataset, folders))
    Console(width=max(140, Console().width), markup=False, highlight=False).print(table)


@app.command(short_help="Fetch data sets from their homes, with checksums.")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As `burnish data list` prints them.")],
    to: Annotated[
        Path | None,
        typer.Option(
            help="Folder, made if it is missing; name it with --data or BURNISH_DATA afterwards.", show_default=False
        ),
    ] = None,
) -> None:
    """Fetch data sets into a folder, or into the cache, where everything looks that is not told another folder.

    Files that are there and intact are kept. See `burnish data list` for the terms of each set.
    """
    from burnish.studies.data.fetching import fetch as fetch_files
    from burnish.studies.data.places import cache_folder

    datasets = _datasets(names)
    try:
        folder = cache_folder() if to is None else to
        make_folder(folder, "BURNISH_CACHE" if to is None else "--to")
        for dataset in datasets:
            paths = fetch_files(dataset, dataset.splits, folder)
            typer.echo(f"{dataset.name}: {', '.join(str(path) for path in paths)} (terms: {dataset.terms})")
    except (ModuleNotFoundError, OSError, ValueError) as error:
        _leave(error, 1)


@app.command(short_help="Compare the checksums of what is here, and read it.")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="All sets without it.", show_default=False)
    ] = None,
    data: _Data = None,
) -> None:
    """Check data sets: checksums where they are known, form and sizes everywhere.

    Leaves with 1, after a line for each bad file, if one is damaged or if a set that was named is not there.
    """
    from burnish.studies.data.verifying import verify as verify_files

    datasets, folders = _datasets(names), _folders(data)
    is_good, reported = True, set[Path]()
    for dataset in datasets:
        findings = verify_files(dataset, folders)
        for split in dataset.splits:
            here = [finding for finding in findings if finding.split == split]
            if not here:
                typer.echo(f"{dataset.name} {split}: not here")
            for finding in here:
                _print_finding(dataset, finding, reported)
        is_good &= not any(finding.problems for finding in findings) and bool(findings or not names)
    if not is_good:
        raise typer.Exit(1)


def _print_finding(dataset: "Dataset", finding: "Finding", reported: set[Path]) -> None:
    """One line; a bad file has its line once, even where it holds several splits."""
    for path, problem in finding.problems.items():
        if path not in reported:
            typer.echo(f"{dataset.name} {finding.split}: {path} is bad: {problem}. Delete it, and get it anew.", err=True)
            reported.add(path)
    if finding.problems:
        return
    state = f"read; no checksum is known for {len(finding.unknown)} of its files" if finding.unknown else "intact"
    typer.echo(f"{dataset.name} {finding.split}: {state} ({finding.found.layout.title} in {finding.found.paths[0].parent})")


def _where(dataset: "Dataset", folders: list[Path]) -> str:
    from burnish.studies.data.layouts import locate

    lines = []
    for split in dataset.splits:
        found = locate(dataset, split, folders)
        if found is not None:
            lines.append(f"{found.part.what}: {found.paths[0].parent} ({found.layout.title})")
        else:
            lines.append(f"{split}: not here")
    return "\n".join(lines)


def _datasets(names: list[str] | None) -> list["Dataset"]:
    from burnish.studies.data import DATASETS

    unknown = [name for name in names or () if name not in DATASETS]
    if unknown:
        message = f"`NAME` must be one of {', '.join(DATASETS)}, got {', '.join(map(repr, unknown))}. Pass one of them."
        _leave(message, 2)
    return [DATASETS[name] for name in dict.fromkeys(names or DATASETS)]


def _folders(data: str | None) -> list[Path]:
    from burnish.studies.data.places import search_folders, split_folders

    try:
        return search_folders(None)[0] if data is None else split_folders("--data", data)
    except (OSError, ValueError) as error:
        _leave(error, 2)


def _leave(message: Any, code: int) -> NoReturn:
    text = message.strerror if isinstance(message, OSError) and message.strerror else str(message)
    typer.echo(text, err=True)
    raise typer.Exit(code) from None
