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
    """Public data sets for studies: what there is, fetching it with checksums, and whether it is intact."""


@app.command("list", short_help="What there is, on which terms, and where it lies here.")
def list_datasets(data: _Data = None) -> None:
    """List all data sets: what each is, its splits, its terms, and where it was found."""
    from burnish.studies.data import DATASETS

    folders = _folders(data)
    try:
        blocks = [_describe(dataset, folders) for dataset in DATASETS.values()]
    except OSError as error:
        _leave(error, 1)
    typer.echo("\n\n".join(blocks))


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

    Files that are there and intact are kept. See `burnish data list` for the terms of each set. If one cannot be fetched the
    others are, and the command leaves with 1 after a line for each that failed.
    """
    from burnish.studies.data.fetching import fetch as fetch_files
    from burnish.studies.data.fetching import leaving_no_empty_folders
    from burnish.studies.data.places import cache_folder, import_pooch

    datasets, failed = _datasets(names), False
    try:
        import_pooch()  # without which all would fail, with the same words
        folder = cache_folder() if to is None else to
    except ModuleNotFoundError as error:
        _leave(error, 1)
    with leaving_no_empty_folders(folder):
        make_folder(folder, "BURNISH_CACHE" if to is None else "--to")
        for dataset in datasets:
            try:
                paths = fetch_files(dataset, dataset.splits, folder)
            except (OSError, ValueError) as error:
                failed = True
                typer.echo(_text(error), err=True)
            else:
                typer.echo(f"{dataset.name}: {', '.join(str(path) for path in paths)} (terms: {dataset.terms})")
        if failed:
            raise typer.Exit(1)


@app.command(short_help="Compare the checksums of what is here, and read it.")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="All sets without it.", show_default=False)
    ] = None,
    data: _Data = None,
) -> None:
    """Check data sets: checksums where they are known, form and sizes everywhere.

    Leaves with 1, after a line for each bad file, if one is damaged or cannot be read, or if a set that was named is not
    there. Of each split, what studies would read comes first.
    """
    from burnish.studies.data.verifying import verify as verify_files

    datasets, folders = _datasets(names), _folders(data)
    is_good, reported = True, set[Path]()
    for dataset in datasets:
        try:
            findings = verify_files(dataset, folders)
        except OSError as error:
            _leave(error, 1)
        for split in dataset.splits:
            here = [finding for finding in findings if finding.split == split]
            if not here:
                typer.echo(f"{dataset.name} {split}: not here")
            for finding in here:
                _print_finding(dataset, finding, reported)
        is_good &= not any(finding.problems or finding.unreadable for finding in findings) and bool(findings or not names)
    if not is_good:
        raise typer.Exit(1)


def _print_finding(dataset: "Dataset", finding: "Finding", reported: set[Path]) -> None:
    """One line; a bad file has its line once, even where it holds several splits."""
    lines = {path: f"{path} is bad: {problem}. Delete it, and get it anew." for path, problem in finding.problems.items()}
    lines |= {path: _text(error) for path, error in finding.unreadable.items()}
    for path, line in lines.items():
        if path not in reported:
            typer.echo(f"{dataset.name} {finding.split}: {line}", err=True)
            reported.add(path)
    if lines:
        return
    state = f"read; no checksum is known for {len(finding.unknown)} of its files" if finding.unknown else "intact"
    typer.echo(f"{dataset.name} {finding.split}: {state} ({finding.found.layout.title} in {finding.found.paths[0].parent})")


def _describe(dataset: "Dataset", folders: list[Path]) -> str:
    """A block of lines no wider than the terminal, but for folders, which are never broken."""
    from burnish.studies.data.layouts import locate

    lines = [*_wrap(f"{dataset.name}: {dataset.what}", ""), *_wrap(f"terms: {dataset.terms}", "  ")]
    for split in dataset.splits:
        found = locate(dataset, split, folders)
        if found is None:
            lines.append(f"  {split}: not here")
            continue
        lines += _wrap(f"{split}: {found.part.what.removeprefix(f'{split}, ')} ({found.layout.title})", "  ")
        lines += [f"    in {place}" for place in dict.fromkeys(path.parent for path in found.paths)]
    return "\n".join(lines)


def _wrap(text: str, indent: str) -> list[str]:
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)  # 80 where there is no terminal
    later = f"{indent}    "
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False)


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
    typer.echo(_text(message), err=True)
    raise typer.Exit(code) from None


def _text(message: Any) -> str:
    """Without the number that errors of the system have before their text."""
    return message.strerror if isinstance(message, OSError) and message.strerror else str(message)
