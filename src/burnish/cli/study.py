"""`burnish study`."""

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.folders import make_folder

__all__ = ["study"]


def study(
    name: Annotated[str, typer.Argument(help="logistic-integral, linearised-vs-mc, mpa-vs-mc or toy-logistic.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.json and NAME.svg; made if it is missing.")] = Path(
        "burnish-study"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of data and draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Repeat one of the paper's studies of posteriors and predictions, in minutes, and write its figure and its record.

    logistic-integral: Monte Carlo and the probit approximation for the average of a sigmoid over a Gaussian.
    linearised-vs-mc: one Gaussian over a regression network's weights, sampled and linearised, with HMC as the judge.
    mpa-vs-mc: confidence of a classification network by sampling and by the multi-class probit approximation.
    toy-logistic: posteriors of two weights, and their distances to HMC.
    """
    from burnish.storage import replace_file
    from burnish.studies.records import STUDIES, record_study, record_text, summarise

    if name not in STUDIES:
        typer.echo(f"`NAME` must be one of {', '.join(STUDIES)}, got {name!r}. Pass one of them.", err=True)
        raise typer.Exit(2)
    make_folder(out)
    from burnish.report.study_figures import draw_study

    record = record_study(name, seed=seed, progress=True)
    text = record_text(record)
    replace_file(out / f"{name}.json", f"{text}\n".encode())
    replace_file(out / f"{name}.svg", f"{draw_study(record)}\n".encode())
    if as_json:
        typer.echo(text)
        return
    _print_study(STUDIES[name], *summarise(record))
    where = (out / f"{name}.svg").resolve()
    typer.echo(f"{record['seconds']:.0f} s in all. The figure: {where}")


def _print_study(title: str, header: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title[0].upper() + title[1:], title_justify="left")
    table.add_column(header[0])
    for column in header[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=max(120, Console().width)).print(table)
