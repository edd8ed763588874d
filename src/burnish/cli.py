"""The command line: `burnish COMMAND`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import burnish

if TYPE_CHECKING:
    from burnish.studies.digits import DigitsDemo

app = typer.Typer(
    name="burnish",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"burnish {burnish.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Honest probabilities from a trained network: a Bayesian posterior for its last layer, post hoc, in seconds.

    Begin with `burnish demo`: it needs no data and takes less than a minute. In Python, begin with `burnish.refine`.
    """


@app.command(short_help="From a trained network to a report, on data that comes along.")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and record.json; made if it is missing.")] = Path(
        "burnish-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the split, the training and every method.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Train a small network on scikit-learn's digits, refine it, compare, and write a report.

    Compares the network, temperature scaling, Laplace at the network's weights, Laplace at the mode, the paper's flow and
    burnish on held-out digits, on noise, on turned digits and on letters. Prints a table, and where the report is.
    """
    # here, because `burnish --help` should not wait for plots and statistics
    from burnish.report.html import write_report
    from burnish.storage import replace_file
    from burnish.studies.digits import run_demo

    _make_folder(out)
    began = time.perf_counter()
    result = run_demo(seed, progress=True)
    report = write_report(result, out / "report.html", command=f"burnish demo --seed {seed}")
    record = json.dumps(result.record(), indent=1, allow_nan=False)
    replace_file(out / "record.json", f"{record}\n".encode())
    if as_json:
        typer.echo(record)
        return
    _print_table(result)
    typer.echo(f"{result.verdict}\n{time.perf_counter() - began:.0f} s in all. The report: {report.resolve()}")


@app.command(short_help="One of four studies of how predictions are averaged: a table, a figure and a record.")
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
    _make_folder(out)
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


def _make_folder(out: Path) -> None:
    """Before the work, which would be lost."""
    import tempfile

    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        typer.echo(
            f"`--out` must be a folder that can be made and written, got {out} ({error.strerror}). Pass another.",
            err=True,
        )
        raise typer.Exit(2) from None


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


def _print_table(result: "DigitsDemo") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"{len(result.test):,} test digits", title_justify="left")
    table.add_column("method", no_wrap=True)
    for name in ("accuracy", "NLL", "ECE", "Brier", "ELBO", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        elbo = "" if row.elbo is None else f"{row.elbo.value:,.1f}"
        seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
        cells = f"{row.accuracy:.1%}", f"{row.nll:.4f}", f"{row.ece:.2%}", f"{row.brier:.4f}", elbo, seconds
        table.add_row(row.name, *cells)
    Console(width=max(100, Console().width)).print(table)
