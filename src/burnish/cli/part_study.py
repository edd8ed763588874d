"""Runs one of the studies that are kept part by part, for the command line."""

from pathlib import Path
from typing import Any

import typer

from burnish.cli.folders import make_folder
from burnish.cli.study_output import leave, reason, refuse, remove_empty

__all__ = ["run_part_study"]


def run_part_study(name: str, options: dict[str, Any], out: Path, as_json: bool) -> None:
    """Runs what is missing, leaves record and figure, and says which parts failed."""
    from burnish.errors import FitError
    from burnish.report.part_figures import draw_part_study
    from burnish.studies.image_settings import ImageSettings
    from burnish.studies.part_studies import PART_STUDIES, check_part_options

    known, short = PART_STUDIES[name], options.pop("short", False)
    scale = "short" if short else "small" if options.get("small") else ""
    work = options.pop("work", out / "-".join(filter(None, ("work", scale))))
    if "dataset" in known.options:
        options.setdefault("dataset", "fashion-mnist")
    if short:
        options["image_settings"] = ImageSettings.short()
    try:
        check_part_options(**{key: options[key] for key in ("dataset", "seeds", "device") if key in options})
    except (ValueError, TypeError) as error:
        refuse(reason(error))
    place = out / "-".join(filter(None, (name, options.get("dataset"), scale)))
    made = [folder for folder in (out, work) if not folder.exists()]
    make_folder(out)
    make_folder(work, "--work")
    try:
        record = known.record(work=work, progress=True, **options)
    except (ValueError, TypeError, OSError, MemoryError, FitError, ModuleNotFoundError) as error:
        remove_empty(made)
        refuse(reason(error), code=1)
    for part, why in record["failures"].items():
        typer.echo(f"{part} failed: {why}", err=True)
    if not record["parts"]:
        raise typer.Exit(1)
    about = [value for value in (options.get("dataset"), scale) if value]
    leave(record, draw_part_study, place, as_json, known.title + (f" ({', '.join(about)})" if about else ""))
    if record["failures"]:
        raise typer.Exit(1)
