"""`burnish study`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.folders import make_folder
from burnish.cli.part_study import run_part_study
from burnish.cli.study_output import OPTIONS, leave, reason, refuse, remove_empty

__all__ = ["study"]

_MAX_DIGITS, _MAX_SEEDS = 18, 1000  # of a seed, and in a range of them


def study(
    name: Annotated[str, typer.Argument(help="One of the studies above.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Of images: fashion-mnist (if not given), cifar-10 or cifar-100. "
            "Of text: 20-newsgroups (if not given), sst-binary, sst-fine, trec-coarse or trec-fine. Of few-shot: any."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Of networks: 0,1,2 or 0-4; if not given five, or three for cifar-100, texts, few-shot and all-layer."
        ),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Seeds for VB and CSGHMC, trained from scratch: two if not given, with --extend none; none for none."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Of an image study: paper, defects included, or ours (if not given), without them."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (if not given) or cuda.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder with data sets; see `burnish data`.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder for networks, draws and finished parts; OUT/work, OUT/work-short or OUT/work-small if not given."
        ),
    ] = None,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend",
            help="Of an image study: keep what the record in OUT has, and add seeds that it lacks, with --baselines also "
            "VB and CSGHMC. What correlation has comes from the record of image-calibration.",
        ),
    ] = False,
    short: Annotated[
        bool,
        typer.Option(
            "--short", help="Of an image study or few-shot: 10,000 training images and 20 epochs, for a CPU and some hours."
        ),
    ] = False,
    small: Annotated[bool, typer.Option("--small", help="Made data and small sizes, to try a study out.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of data and draws of studies without networks; 0 if not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the record and the figure; made if it is missing.")] = Path(
        "burnish-study"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Repeat one of the paper's studies, and write its record, its table and its figure.

    In minutes, without data:
      logistic-integral  averages of a sigmoid over a Gaussian, by draws and probit
      linearised-vs-mc   a regression network, sampled and linearised
      mpa-vs-mc          confidence by draws and by multi-class probit
      toy-logistic       posteriors of two weights, and their distances to HMC

    On images or texts, for several networks; what was interrupted goes on:
      image-calibration  every method on test images, and its distance to HMC
      ood                images of other data sets told from test images
      shift              test images turned or corrupted more and more
      few-vs-many        many draws of a poor posterior against few of a good one
      flow-from-prior    the paper's flow from a standard normal, not from Laplace
      marginals          densities of single weights under each posterior
      correlation        distance to HMC against NLL over all methods
      text               every method on test texts, and its distance to HMC

    In parts that are kept, of the paper and beyond it:
      all-layer          the paper's table of all layers of a small network
      few-shot           a last layer fitted to 20 to 2,000 held-out points
      tabular            small tables: dropout, ensembles, temperature scaling
      costs              seconds and ELBOs by classes, points and parameters
    """
    from burnish.studies.data import TEXTS
    from burnish.studies.image_studies import IMAGE_STUDIES
    from burnish.studies.part_studies import PART_STUDIES
    from burnish.studies.records import STUDIES

    names = [*STUDIES, *IMAGE_STUDIES, *PART_STUDIES]
    if name not in names:
        refuse(f"`NAME` must be one of {', '.join(names)}, got {name!r}. Pass one of them.")
    options: dict[str, Any] = {
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
        "seed": seed,
    }
    if name in PART_STUDIES:
        allowed = {*PART_STUDIES[name].options, "work", "small"}
    else:
        allowed = options.keys() - {"seed"} if name in IMAGE_STUDIES else {"seed"}
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option in allowed:
            continue
        got = "it" if value is True else value
        refuse(
            f"`--{OPTIONS.get(option, option)}` must be left out for {name}, got {got}: it is an option of other studies. "
            "Leave it out."
        )
    if small and data is not None:
        refuse(f"`--data` must be left out with `--small`, got {data}: data are made. Leave one of them out.")
    if small and short:
        refuse("`--short` must be left out with `--small`, got both: made images are few already. Leave one of them out.")
    if short and (name == "text" or dataset in TEXTS):
        refuse("`--short` must be left out for texts, got it: their sets are small as they are. Leave it out.")
    if name in IMAGE_STUDIES:
        _run_image_study(name, given, out, as_json)
    elif name in PART_STUDIES:
        run_part_study(name, given, out, as_json)
    else:
        make_folder(out)
        _run_study(name, seed or 0, out, as_json)


def _run_study(name: str, seed: int, out: Path, as_json: bool) -> None:
    from burnish.report.study_figures import draw_study
    from burnish.studies.records import STUDIES, record_study

    record = record_study(name, seed=seed, progress=True)
    leave(record, draw_study, out / name, as_json, STUDIES[name])


def _run_image_study(name: str, options: dict[str, Any], out: Path, as_json: bool) -> None:
    from burnish.errors import FitError
    from burnish.report.image_figures import draw_image_study
    from burnish.studies.image_settings import ImageSettings
    from burnish.studies.image_studies import IMAGE_STUDIES, check_options, datasets_of, record_image_study

    extend, short = (options.pop(key, False) for key in ("extend", "short"))
    scale = "short" if short else "small" if options.get("small") else ""
    work = options.pop("work", out / "-".join(filter(None, ("work", scale))))
    try:
        wanted = check_options(name, **{key: value for key, value in options.items() if key != "data"})
    except (ValueError, TypeError) as error:
        refuse(reason(error))
    parts = (name, options.get("dataset", datasets_of(name)[0]), options.get("protocol", "ours"), scale)
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
        remove_empty(made)
        refuse(reason(error).replace("`earlier`", f"`--extend`: {source}"), code=1)
    for seed, why in record["failures"].items():
        typer.echo(f"Seed {seed} failed: {why}", err=True)
    if not record["seeds"]:
        raise typer.Exit(1)
    config, count = record["config"], len(record["seeds"])
    about = [config["dataset"], *(["made data"] if config["made_images"] else []), f"protocol {config['protocol']}"]
    about += ["short"] if short else []
    title = f"{IMAGE_STUDIES[name]} ({', '.join(about)}, {count} network{'s' if count > 1 else ''})"
    leave(record, draw_image_study, place, as_json, title)
    if record["failures"]:
        raise typer.Exit(1)


def _richer(own: Path, other: Path) -> Path:
    """Of a study's record and the one that its numbers are taken from, the latter, unless it lacks seeds."""
    if not own.exists() and not other.exists():
        refuse(f"`--extend` must find the record {own} or {other}, got neither. Leave it out to make the record anew.")

    def seeds(path: Path) -> set[str]:
        try:
            return {*json.loads(path.read_bytes())["seeds"]}
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    return other if (other.exists() and seeds(own) <= seeds(other)) or not own.exists() else own


def _read_record(path: Path, extend: bool, seeds: Sequence[int], baseline_seeds: Sequence[int]) -> Any:
    """The record that is to be added to; one that is not must not hold more than the new one will."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if extend:
            reason = error.strerror if isinstance(error, OSError) else f"a damaged file ({error})"
            refuse(f"`--extend` must find the record {path}, got {reason}. Leave it out to make the record anew.")
        return None
    if extend:
        return found
    config = found.get("config", {}) if isinstance(found, dict) else {}
    for option, key, asked in (("seeds", "seeds", seeds), ("baselines", "baseline_seeds", baseline_seeds)):
        lost = sorted({*config.get(key, ())} - {*asked})
        if lost:
            refuse(
                f"`--{option}` must have all seeds of the record {path}, got none for {', '.join(map(str, lost))}. "
                "Pass --extend to keep them, or another --out."
            )
    return None


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
            refuse(f"`{option}` must be {rule}, got {text!r}. Pass some.")
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found
