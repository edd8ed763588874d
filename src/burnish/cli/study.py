"""`burnish study`."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.folders import make_folder

__all__ = ["study"]

_MAX_DIGITS, _MAX_SEEDS = 18, 1000  # of a seed, and in a range of them
_PIPE_WIDTH = 160  # of tables that are not printed on a terminal
# what an option is called where it is not an argument's own name
_OPTIONS = {"baseline_seeds": "baselines", "folder": "data"}


def study(
    name: Annotated[str, typer.Argument(help="One of the studies above.")],
    dataset: Annotated[
        str | None, typer.Option(help="Of an image study: fashion-mnist (if not given), cifar-10 or cifar-100.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Of an image study's networks: 0,1,2 or 0-4; five, or three for cifar-100, if not given."),
    ] = None,
    baselines: Annotated[
        str | None, typer.Option(help="Seeds for VB and CSGHMC, trained from scratch: two, if not given; none for none.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Of an image study: paper, to the letter, or ours (if not given), without its defects."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Of an image study: cpu (if not given) or cuda.")] = None,
    data: Annotated[str | None, typer.Option(help="Of an image study: folder with data sets; see `burnish data`.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Of an image study: folder for networks, draws and seeds; OUT/work, OUT/work-short or OUT/work-small."
        ),
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Of an image study: keep what the record in OUT has, and add what it lacks.")
    ] = False,
    short: Annotated[
        bool,
        typer.Option("--short", help="Of an image study: 10,000 training images and 20 epochs, for a CPU and some hours."),
    ] = False,
    small: Annotated[bool, typer.Option("--small", help="Of an image study: made images and small sizes, to try.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of another study's data and draws; 0 if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the record and the figure; made if it is missing.")] = Path(
        "burnish-study"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Repeat one of the paper's studies, and write its record, its table and its figure.

    In minutes, without data:
    logistic-integral: Monte Carlo and the probit approximation for the average of a sigmoid over a Gaussian.
    linearised-vs-mc: one Gaussian over a regression network's weights, sampled and linearised, with HMC as the judge.
    mpa-vs-mc: confidence of a classification network by sampling and by the multi-class probit approximation.
    toy-logistic: posteriors of two weights, and their distances to HMC.

    On images, for each of several networks; what was interrupted goes on, and what is there is not made again:
    image-calibration: every method on test images, and its distance to HMC.
    ood: images of other data sets told from test images by how sure a method is.
    shift: test images turned or corrupted more and more.
    few-vs-many: many draws of a poor posterior against few of a good one.
    flow-from-prior: the paper's flow from a standard normal in place of a Laplace posterior.
    marginals: densities of single weights under each posterior.
    correlation: distance to HMC against NLL over all methods; with --extend, from a record of image-calibration in OUT too.
    """
    from burnish.studies.image_studies import IMAGE_STUDIES
    from burnish.studies.records import STUDIES

    if name not in STUDIES | IMAGE_STUDIES:
        _refuse(f"`NAME` must be one of {', '.join(STUDIES | IMAGE_STUDIES)}, got {name!r}. Pass one of them.")
    image_options: dict[str, Any] = {
        "dataset": dataset,
        "seeds": _read_seeds("--seeds", seeds),
        "baseline_seeds": [] if baselines == "none" else _read_seeds("--baselines", baselines),
        "protocol": protocol,
        "device": device,
        "data": data,
        "work": work,
        "short": short or None,
        "small": small or None,
        "extend": extend or None,
    }
    options = {"seed": seed} if name in IMAGE_STUDIES else image_options
    for option, value in options.items():
        if value is not None:
            option = _OPTIONS.get(option, option)
            which = "image studies" if "seed" not in options else "studies without images"
            _refuse(f"`--{option}` must be left out for {name}, got {value}: it is an option of {which}. Leave it out.")
    if name in IMAGE_STUDIES:
        given = {option: value for option, value in image_options.items() if value is not None}
        if small and data is not None:
            _refuse(f"`--data` must be left out with `--small`, got {data}: images are made. Leave one of them out.")
        if small and short:
            _refuse(
                "`--short` must be left out with `--small`, got both: made images are few already. Leave one of them out."
            )
        _run_image_study(name, given, out, as_json)
    else:
        make_folder(out)
        _run_study(name, seed or 0, out, as_json)


def _run_study(name: str, seed: int, out: Path, as_json: bool) -> None:
    from burnish.report.study_figures import draw_study
    from burnish.studies.records import STUDIES, record_study, summarise

    record = record_study(name, seed=seed, progress=True)
    _leave(record, draw_study, out / name, as_json, STUDIES[name], summarise)


def _run_image_study(name: str, options: dict[str, Any], out: Path, as_json: bool) -> None:
    from burnish.errors import FitError
    from burnish.report.image_figures import draw_image_study
    from burnish.studies.image_settings import ImageSettings
    from burnish.studies.image_studies import IMAGE_STUDIES, check_options, record_image_study
    from burnish.studies.records import summarise

    extend, short = (options.pop(key, False) for key in ("extend", "short"))
    scale = "short" if short else "small" if options.get("small") else ""
    work = options.pop("work", out / "-".join(filter(None, ("work", scale))))
    try:
        wanted = check_options(name, **{key: value for key, value in options.items() if key != "data"})
    except (ValueError, TypeError) as error:
        _refuse(_reason(error))
    parts = (name, options.get("dataset", "fashion-mnist"), options.get("protocol", "ours"), scale)
    place = out / "-".join(filter(None, parts))
    source = Path(f"{place}.json")
    if extend and name == "correlation":
        source = _richer(source, out / f"{'-'.join(filter(None, ('image-calibration', *parts[1:])))}.json")
    earlier = _read_record(source, extend, *wanted[:2])
    made = [folder for folder in (out, work) if not folder.exists()]
    make_folder(out)
    make_folder(work, "--work")
    settings = ImageSettings.short() if short else None
    try:
        record = record_image_study(name, work=work, settings=settings, earlier=earlier, progress=True, **options)
    except (ValueError, TypeError, OSError, MemoryError, FitError, ModuleNotFoundError) as error:
        _remove_empty(made)
        _refuse(_reason(error).replace("`earlier`", f"`--extend`: {source}"), code=1)
    for seed, reason in record["failures"].items():
        typer.echo(f"Seed {seed} failed: {reason}", err=True)
    if not record["seeds"]:
        raise typer.Exit(1)
    config, count = record["config"], len(record["seeds"])
    about = [config["dataset"], *(["made images"] if config["made_images"] else []), f"protocol {config['protocol']}"]
    about += ["short"] if short else []
    title = f"{IMAGE_STUDIES[name]} ({', '.join(about)}, {count} network{'s' if count > 1 else ''})"
    _leave(record, draw_image_study, place, as_json, title, summarise)
    if record["failures"]:
        raise typer.Exit(1)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Takes back what was made for a study that could not begin."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # where something has been written
            folder.rmdir()


def _richer(own: Path, other: Path) -> Path:
    """Of a study's record and another that has all its numbers, the one with more seeds."""
    if not own.exists() and not other.exists():
        _refuse(f"`--extend` must find the record {own} or {other}, got neither. Leave it out to make the record anew.")

    def seeds(path: Path) -> set[str]:
        try:
            return {*json.loads(path.read_bytes())["seeds"]}
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    return other if seeds(own) < seeds(other) or not own.exists() else own


def _read_record(path: Path, extend: bool, seeds: Sequence[int], baseline_seeds: Sequence[int]) -> Any:
    """The record that is to be added to; one that is not must not hold more than the new one will."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if extend:
            reason = error.strerror if isinstance(error, OSError) else f"a damaged file ({error})"
            _refuse(f"`--extend` must find the record {path}, got {reason}. Leave it out to make the record anew.")
        return None
    if extend:
        return found
    config = found.get("config", {}) if isinstance(found, dict) else {}
    for option, key, asked in (("seeds", "seeds", seeds), ("baselines", "baseline_seeds", baseline_seeds)):
        lost = sorted({*config.get(key, ())} - {*asked})
        if lost:
            _refuse(
                f"`--{option}` must have all seeds of the record {path}, got none for {', '.join(map(str, lost))}. "
                "Pass --extend to keep them, or another --out."
            )
    return None


def _leave(
    record: Mapping[str, Any],
    draw: Callable[[Mapping[str, Any]], str],
    place: Path,
    as_json: bool,
    title: str,
    summarise: Callable[[Mapping[str, Any]], tuple[list[str], list[list[str]]]],
) -> None:
    """Writes record and figure, and prints one of record and table."""
    from burnish.storage import replace_file
    from burnish.studies.records import record_text

    text = record_text(record)
    try:
        replace_file(place.with_name(f"{place.name}.json"), f"{text}\n".encode())
        replace_file(place.with_name(f"{place.name}.svg"), f"{draw(record)}\n".encode())
    except OSError as error:
        _refuse(_reason(error), code=1)
    if as_json:
        typer.echo(text)
        return
    _print_study(title, *summarise(record))
    typer.echo(f"{record['seconds']:.0f} s in all. The figure: {place.resolve()}.svg")


def _refuse(message: str, code: int = 2) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _reason(error: Exception) -> str:
    """What went wrong, in one line; errors of ours about files say it all in what the system says of others."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        text = error.strerror
    for name in ("dataset", "seeds", "baseline_seeds", "protocol", "device", "folder"):
        text = text.replace(f"`{name}`", f"`--{_OPTIONS.get(name, name)}`")
    return text


def _read_seeds(option: str, text: str | None) -> list[int] | None:
    """From 0,1,2 or 0-4, or both."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = first, last if dash else first
        known = all(end.isdecimal() and len(end) <= _MAX_DIGITS for end in ends)
        if not known or not 0 <= int(ends[1]) - int(ends[0]) < _MAX_SEEDS:
            rule = f"numbers such as 0,1,2 or 0-4, at most {_MAX_SEEDS:,} in a range"
            _refuse(f"`{option}` must be {rule}, got {text!r}. Pass some.")
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found


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
    console = Console()
    Console(width=console.width if console.is_terminal else _PIPE_WIDTH).print(table)
