"""`burnish demo`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.cli.folders import make_folder

if TYPE_CHECKING:
    from burnish.studies.digits import DigitsDemo

__all__ = ["demo"]


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

    make_folder(out)
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
