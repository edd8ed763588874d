"""The command line: `burnish COMMAND`."""

import inspect
from typing import Annotated

import typer

import burnish
from burnish.cli import data, demo, study

__all__ = ["app"]

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


app.command("demo", short_help="From a trained network to a report, on data that comes along.")(demo.demo)
app.command(
    "study",
    short_help="One of the paper's studies: a table, a figure and a record.",
    help=(inspect.getdoc(study.study) or "").replace("\n\n", "\n\n\b\n"),  # click leaves lines after a backspace as they are
)(study.study)
app.add_typer(data.app, name="data", short_help="Public image data sets: list, fetch and verify them.")
