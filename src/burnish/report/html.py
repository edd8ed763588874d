"""The demo as one HTML page: no script, no font, no file beside it.

The sentences are in the template. Those that state an effect are chosen by the numbers they state, so that they cannot
claim what the numbers do not show.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.held_out import Score
from burnish.report import plots
from burnish.storage import replace_file
from burnish.studies.digits import BURNISH, NETWORK, TEMPERATURE, DigitsDemo, Row

__all__ = ["render", "write_report"]

_SHOWN = (NETWORK, TEMPERATURE, BURNISH)
_NUM_DIGITS = 8
_NUM_MARGINALS = 6


@dataclass(frozen=True)
class _Column:
    """A column of a table: how its number is found in a row, is written, and which end of it is best."""

    name: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float]
    note: Callable[[Row], str] = lambda row: ""
    label: str = ""
    """Its name where it stands beside the number rather than above the column."""


def render(demo: DigitsDemo, *, command: str | None = None) -> str:
    """The page as text.

    Args:
        demo: what `run_demo` gives.
        command: that makes the page again; a line of Python when not given.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "number": _number}
    template = environment.from_string(files("burnish.report").joinpath("template.html").read_text(encoding="utf-8"))
    if command is None:
        code = "from burnish.studies import digits; from burnish.report import html; "
        command = f"python -c \"{code}html.write_report(digits.run_demo({demo.seed}), 'report.html')\""
    names = tuple(row.name for row in demo.rows)
    colours = {name: plots.method_colour(name, names) for name in names}
    return template.render(
        demo=demo,
        network=demo.row(NETWORK),
        rival=demo.row(TEMPERATURE),
        own=demo.row(BURNISH),
        held_out=_held_out(demo),
        scores=_score_table(demo, colours),
        outside=_outside_table(demo, colours),
        figures={name: Markup(svg) for name, svg in _figures(demo, colours).items()},
        facts=_facts(demo),
        uncertain=_digits(demo, demo.prediction.entropy.topk(min(_NUM_DIGITS, len(demo.test))).indices),
        wrong=_digits(demo, _confidently_wrong(demo)),
        command=command,
    )


def write_report(demo: DigitsDemo, path: str | Path, *, command: str | None = None) -> Path:
    """Writes the page; a reader of `path` sees the old file or the new one, never half of it.

    Args:
        demo: what `run_demo` gives.
        path: of the file; its folder is made where it is missing.
        command: that makes the page again, for its last section.
    """
    path = Path(path)
    text = render(demo, command=command)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    return path


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def _number(value: float, digits: int = 3) -> str:
    """With thousands separated, a minus sign that is one, and none before zero."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text.replace("-", "\N{MINUS SIGN}")


def _held_out(demo: DigitsDemo) -> dict[str, Score]:
    """Scores on the validation digits by method, where the verdict has any."""
    scores = demo.verdict.held_out
    return {} if scores is None else {NETWORK: scores.network, TEMPERATURE: scores.temperature, BURNISH: scores.refined}


def _table(rows: Sequence[Row], columns: Sequence[_Column], colours: Mapping[str, str]) -> dict[str, Any]:
    """Cells of text; in each column what reads like its best value is marked, unless all read the same."""

    def written(row: Row, column: _Column) -> str | None:
        value = column.value(row)
        return None if value is None else column.text(value)

    marked = []
    for column in columns:
        values = [value for row in rows if (value := column.value(row)) is not None]
        differ = len({column.text(value) for value in values}) > 1
        marked.append(column.text(column.best(values)) if differ else "")
    body = [
        {
            "name": row.name,
            "colour": colours[row.name],
            "cells": [
                {
                    "label": column.label or column.name,
                    "text": written(row, column) or "\N{EN DASH}",
                    "note": column.note(row),
                    "best": written(row, column) == best,
                }
                for column, best in zip(columns, marked, strict=True)
            ],
        }
        for row in rows
    ]
    return {"header": [column.name for column in columns], "rows": body}


def _score_table(demo: DigitsDemo, colours: Mapping[str, str]) -> dict[str, Any]:
    def error(row: Row) -> str:
        if row.elbo is None:
            return ""
        size = row.elbo.standard_error
        return "± < 0.01" if size < 0.005 else f"± {size:,.{0 if size >= 10 else 2}f}"

    columns = [
        _Column("accuracy", lambda row: row.accuracy, _percent, max),
        _Column("NLL", lambda row: row.nll, lambda value: f"{value:.4f}", min),
        _Column("ECE", lambda row: row.ece, lambda value: _percent(value, 2), min),
        _Column("Brier", lambda row: row.brier, lambda value: f"{value:.4f}", min),
        _Column(
            "ELBO",
            lambda row: None if row.elbo is None else row.elbo.value,
            lambda value: _number(value, 2 if value > -1e3 else 0),
            max,
            error,
        ),
        _Column("seconds", lambda row: row.seconds, lambda value: "< 0.01" if value < 0.005 else f"{value:.2f}", min),
    ]
    return _table(demo.rows, columns, colours)


def _outside_table(demo: DigitsDemo, colours: Mapping[str, str]) -> dict[str, Any]:
    def column(name: str, kind: str, score: str) -> _Column:
        best = min if score == "mean_confidence" else max
        label = f"{name}: {kind}"
        return _Column(kind, lambda row: demo.outside_scores(row, name)[score], "{:.3f}".format, best, label=label)

    kinds = (("confidence", "mean_confidence"), ("AUROC", "auroc"))
    sets = list(demo.rows[0].outside)
    table = _table(demo.rows, [column(name, *kind) for name in sets for kind in kinds], colours)
    return {**table, "groups": dict.fromkeys(sets, len(kinds))}


def _figures(demo: DigitsDemo, colours: Mapping[str, str]) -> dict[str, str]:
    shown = [demo.row(name) for name in _SHOWN]
    draws = {row.name: row.draws for row in demo.rows if row.draws is not None}
    weights = {_weight_name(index, demo): index for index in plots.most_different(draws, _NUM_MARGINALS)}
    traces = {row.name: row.trace for row in demo.rows if row.trace is not None}
    finals = {row.name: row.elbo.value for row in demo.rows if row.elbo is not None}
    confidences = {"test digits": {row.name: row.probs.max(1).values for row in shown}}
    for name in shown[0].outside:
        confidences[name] = {row.name: row.outside[name].max(1).values for row in shown}
    return {
        "reliability": plots.reliability_diagram({row.name: row.probs for row in shown}, demo.test.targets, colours=colours),
        "elbo": plots.elbo_curves(traces, finals, log_evidence=demo.log_evidence, colours=colours),
        "marginals": plots.marginals(draws, weights, colours=colours, reference=demo.theta),
        "confidence": plots.confidence_histograms(confidences, colours=colours),
    }


def _weight_name(index: int, demo: DigitsDemo) -> str:
    """Weights come first, one row of features for each digit, then one bias for each."""
    num_classes = demo.rows[0].probs.shape[1]
    num_features = len(demo.theta) // num_classes - 1
    if index >= num_classes * num_features:
        return f"digit {index - num_classes * num_features}, bias"
    return f"digit {index // num_features}, feature {index % num_features}"


def _facts(demo: DigitsDemo) -> dict[str, Any]:
    """What captions state beyond the tables."""
    network, own = demo.row(NETWORK), demo.row(BURNISH)
    wrong = network.probs.argmax(1) != demo.test.targets
    favourites = {}
    for name, probs in network.outside.items():
        counts = probs.argmax(1).bincount(minlength=probs.shape[1])
        favourites[name] = {"digit": int(counts.argmax()), "share": float(counts.max()) / len(probs)}
    best_auroc = {name: max(demo.outside_scores(row, name)["auroc"] for row in demo.rows) for name in network.outside}
    confidence = {row.name: row.probs.max(1).values for row in (network, own)}
    return {
        "shown": [demo.row(name) for name in _SHOWN],
        "gaps": {row.name: demo.log_evidence - row.elbo.value for row in demo.rows if row.elbo is not None},
        "steps": {row.name: len(row.trace) for row in demo.rows if row.trace is not None},
        "favourites": favourites,
        "unseen": [name for name, value in best_auroc.items() if value < 0.6],
        "num_wrong": int(wrong.sum()),
        "confidence_wrong": {name: float(value[wrong].mean()) for name, value in confidence.items()},
        "confidence_right": {name: float(value[~wrong].mean()) for name, value in confidence.items()},
    }


def _confidently_wrong(demo: DigitsDemo) -> Tensor:
    """The digits that the network gets wrong, the most confident first."""
    confidence, predicted = demo.row(NETWORK).probs.max(1)
    wrong = (predicted != demo.test.targets).nonzero().flatten()
    return wrong[confidence[wrong].argsort(descending=True)][:_NUM_DIGITS]


def _digits(demo: DigitsDemo, indices: Tensor) -> list[dict[str, Any]]:
    """Test digits as images, with what is said about them."""

    def said(row: Row, index: int, label: int) -> dict[str, str]:
        confidence, predicted = row.probs[index].max(0)
        tone = "right" if int(predicted) == label else "wrong"
        return {"text": f"{int(predicted)}, {_percent(float(confidence), 0)}", "tone": tone}

    digits = []
    for index in indices.tolist():
        label = int(demo.test.targets[index])
        digits.append({
            "label": label,
            "index": index,
            "src": _png(demo.test.inputs[index, 0]),
            "network": said(demo.row(NETWORK), index, label),
            "burnish": said(demo.row(BURNISH), index, label),
            "entropy": float(demo.prediction.entropy[index]),
            "mutual_information": float(demo.prediction.mutual_information[index]),
        })  # fmt: skip
    return digits


def _png(image: Tensor) -> str:
    """A data URI of the image, one pixel for each of its own; the page enlarges it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray((255 * image).round().byte().cpu().numpy()).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
