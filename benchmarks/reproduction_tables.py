"""Tables of docs/reproduction: the image studies as their commands print them, how they were made, and what they show."""

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from burnish.studies import few_shot
from burnish.studies.claims import Claim, calibration_claims, ood_claims
from burnish.studies.data import TEXTS
from burnish.studies.image_methods import LABELS, MAP, TEMPERATURE
from burnish.studies.image_posteriors import BURNISH, FLOW, HMC, LA, RECENTRED, REFINE, flow_name
from burnish.studies.image_problem import BASELINES
from burnish.studies.image_studies import IMAGE_STUDIES, datasets_of
from burnish.studies.printed import Printed, printed
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS
from burnish.studies.summaries import method_names, method_rows, spread
from committed import has_record, read_record

__all__ = [
    "SUMMARIES",
    "claim_lines",
    "claim_list",
    "claimed",
    "few_shot_claims",
    "few_shot_sets",
    "few_shot_trained_again",
    "image_notes",
    "mixed_networks",
    "names",
    "part_origins",
    "pictured",
    "usual_record",
]

Table = tuple[list[str], list[list[str]]]

# of the overview
METHODS = (MAP, TEMPERATURE, LA, flow_name(5), RECENTRED, FLOW, BURNISH, REFINE, HMC, "VB", "CSGHMC")
_CALIBRATION = ("image-calibration-", "text-")  # studies of every method against HMC
# studies whose tables compare methods with each other, and not with other studies, and so may be of networks that were
# trained again; and which of them have the same
_ALONE = dict.fromkeys(("few-vs-many", "flow-from-prior"), "few-vs-many and flow-from-prior") | {"marginals": "marginals"}


def names() -> list[str]:
    """Of the records that are there."""
    wanted = [
        f"{study}-{dataset}-{protocol}"
        for study in IMAGE_STUDIES
        for dataset in datasets_of(study)
        for protocol in PROTOCOLS
    ]
    return [name for name in wanted if has_record(name)]


def pictured() -> list[str]:
    """Of the records whose figures stand in the pages: of most studies one protocol is enough."""
    shown = {"image-calibration": PROTOCOLS, "ood": ("ours",), "shift": PROTOCOLS, "text": ("ours",)}
    wanted = {
        f"{study}-{dataset}-{protocol}"
        for study in IMAGE_STUDIES
        for dataset in datasets_of(study)
        for protocol in shown.get(study, ("paper",))
    }
    return [name for name in names() if name in wanted]


def part_origins(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the seeds of a record were made, and networks that were added to them."""
    found = []
    for part in record.get("seeds", {}).values():
        found += [part["origin"], *(each["origin"] for each in part.get("baselines", {}).values())]
    return found


def mixed_networks() -> list[str]:
    """Networks, by data set, protocol or method, and seed, of which studies that must have the same have different ones."""
    digests: dict[str, set[str]] = {}
    for name in names():
        record = read_record(name)
        dataset, protocol = (record["config"][key] for key in ("dataset", "protocol"))
        group = _ALONE.get(record["study"])
        kind = protocol if group is None else f"{protocol} ({group})"
        for seed, part in record["seeds"].items():
            # those that VB and CSGHMC train serve both protocols
            for what, found in ((kind, part), *part.get("baselines", {}).items()):
                if "network" in found:
                    digests.setdefault(f"{dataset} {what} {seed}", set()).add(found["network"])
    return [place for place, networks in digests.items() if len(networks) > 1]


def _trained_again(record: dict[str, Any]) -> list[str]:
    """The seeds of which a study has other networks than most tables."""
    name = f"image-calibration-{record['config']['dataset']}-{record['config']['protocol']}"
    if record["study"] not in _ALONE or not has_record(name):
        return []
    usual = read_record(name)["seeds"]
    return [seed for seed, part in record["seeds"].items() if seed in usual and part["network"] != usual[seed]["network"]]


def image_notes(record: dict[str, Any]) -> str:
    """How many networks, draws and points stand behind a table."""
    config, parts = record["config"], record["seeds"]
    count = len(parts)
    spreads = (
        ", means; the record has those of every network" if record["study"] == "shift" else ", means and standard errors"
    )
    lines = [
        f"{count} networks (seeds {', '.join(parts)}){spreads}" if count > 1 else f"1 network (seed {next(iter(parts))})"
    ]
    again = _trained_again(record)
    if again:
        why = "trained again, as a seed does not fix a network on a GPU"
        lines.append(f"not the networks of most tables: seeds {', '.join(again)} {why}")
    baselines = [kind.upper() for kind in BASELINES if any(kind in part.get("baselines", {}) for part in parts.values())]
    if baselines:
        whole = ", trained on the validation points too" if config["protocol"] == "ours" else ""
        lines.append(f"{' and '.join(baselines)} of seeds {', '.join(map(str, config['baseline_seeds']))}{whole}")
    if "VB" in baselines and BENCHMARKS[config["dataset"]].kl_weight == 0.0:
        lines.append("VB without its divergence")
    lines += _draws(record)
    if any("source" in part for part in parts.values()):
        lines.append("from the record of image-calibration")
    if record["failures"]:
        lines.append("failed: " + "; ".join(f"{seed}: {reason}" for seed, reason in record["failures"].items()))
    sets = "; ".join(record["data"].values())
    return f"{'; '.join(lines)}. Data: {sets}."


def _draws(record: dict[str, Any]) -> list[str]:
    """By how many draws the predictions of a study are."""
    study, few, many = record["study"], record["config"]["few"], record["config"]["num_draws"]
    if study in ("few-vs-many", "marginals"):
        return []
    average = ", averaged over disjoint sets of them" if study in ("image-calibration", "text", "correlation") else ""
    lines = [f"predictions by {few} draws{average}"]
    if any("csghmc" in part.get("baselines", {}) for part in record["seeds"].values()):
        lines[0] += ", of CSGHMC by all its networks"
    if record["config"]["protocol"] == "paper" and study != "flow-from-prior":
        counts = {name: row.get("draws") for name, row in next(iter(record["seeds"].values()))["rows"].items()}
        is_paper = study in ("ood", "shift") or counts.get(HMC) == many
        lines += [f"of HMC by {many}"] if is_paper else []
        if any("vb" in part.get("baselines", {}) for part in record["seeds"].values()):
            lines.append(f"of VB by {few // 2}")
    if study in ("image-calibration", "text"):
        lines.append(f"all draws of a posterior of the last layer are {many}")
    return lines


def claimed() -> list[str]:
    """Data sets with protocols, and "ood" with protocols, whose records say whether something holds."""
    calibrated = [name.removeprefix("image-calibration-") for name in names() if name.startswith("image-calibration-")]
    calibrated += [name for name in names() if name.startswith("text-") and name.endswith("-ours")]
    return calibrated + sorted({f"ood-{_protocol_of(name)}" for name in names() if name.startswith("ood-")})


def _protocol_of(name: str) -> str:
    """The protocol of a record, from its name."""
    return name.rsplit("-", 1)[1]


def claim_list(name: str) -> str:
    """What a record, or for "ood" all records of one protocol, show."""
    if name.startswith("ood-"):
        protocol = _protocol_of(name)
        claims = ood_claims(
            [read_record(each) for each in names() if each.startswith("ood-") and _protocol_of(each) == protocol]
        )
    else:
        claims = calibration_claims(read_record(name if name.startswith("text-") else f"image-calibration-{name}"))
    return claim_lines(claims)


def few_shot_sets() -> list[str]:
    """Data sets that have a record of few points."""
    return [dataset for dataset in BENCHMARKS if has_record(f"few-shot-{dataset}")]


def usual_record(dataset: str) -> dict[str, Any]:
    """Of every method on a data set by our protocol."""
    return read_record(f"{'text' if dataset in TEXTS else 'image-calibration'}-{dataset}-ours")


def few_shot_trained_again(record: dict[str, Any]) -> bool:
    """Whether some of its networks are others than those of the tables of the same data set."""
    known = {part["network"] for part in usual_record(record["config"]["dataset"])["seeds"].values()}
    return not known.issuperset(part["network"] for part in record["parts"].values())


def few_shot_claims(dataset: str) -> str:
    """What such a record shows."""
    return claim_lines(few_shot.claims(read_record(f"few-shot-{dataset}")))


def claim_lines(claims: Iterable[Claim]) -> str:
    """A list of statements, each with whether it holds and what was measured."""
    return "\n".join(
        f"- **{'Holds' if claim.holds else 'Does not hold'}.** {claim.statement[0].upper()}{claim.statement[1:]}: "
        f"{claim.measured}."
        for claim in claims
    )


def _overview() -> Table:
    """NLL and calibration error of every method on every data set, without the defects of the paper's protocol."""
    records = [read_record(name) for name in names() if name.startswith("image-calibration-") and name.endswith("-ours")]
    header = ["method"]
    for record in records:
        title = BENCHMARKS[record["config"]["dataset"]].title
        header += [f"{title}: NLL", "ECE, %"]
    rows = []
    for method in METHODS:
        cells = [LABELS.get(method, method)]
        for record in records:
            found = [row["few"] for row in method_rows(list(record["seeds"].values()), method)]
            cells += [spread([row["nll"] for row in found], 4), spread([row["ece"] for row in found], 1, 100.0)]
        rows.append(cells)
    return header, rows


def _judges() -> Table:
    """How HMC, which all others are compared with, was run, and whether it can be relied on."""
    rows = []
    for name in names():
        if not name.startswith(_CALIBRATION):
            continue
        record = read_record(name)
        config, parts = record["config"], list(record["seeds"].values())
        fits = [row["fit"] for row in method_rows(parts, HMC)]
        title, paper = BENCHMARKS[config["dataset"]].title, config["protocol"] == "paper"
        known = printed("hmc_mean_rhat", title) if paper else None
        precisions = [part["target"]["precision"] for part in parts]
        rows.append(
            [
                f"{title}, {_protocol_of(name)}",
                f"{parts[0]['target']['parameters']:,}",
                " to ".join(f"{value:g}" for value in sorted({min(precisions), max(precisions)})),
                f"{config['num_chains']:,}",
                f"{min(fit['num_draws'] for fit in fits):,}",
                f"{max(fit['nested_rhat'] for fit in fits):.4f}",
                f"{max(fit['rhat'] for fit in fits):.3f}",
                spread([fit["mean_rhat"] for fit in fits], 3),
                f"{known.mean:g}" if isinstance(known, Printed) else "",
                spread([fit["seconds"] for fit in fits], 1),
            ]
        )
    sizes = ["parameters", "prior precision", "chains", "draws in all"]
    return ["", *sizes, "nested R-hat", "R-hat", "mean R-hat", "printed", "seconds"], rows


def _ood_scores(name: str) -> Table:
    """FPR95 and AUROC by each score, over all other data sets."""
    parts = list(read_record(name)["seeds"].values())
    scores = ("confidence", "entropy", "mutual information")
    labels = ("largest probability", *scores[1:])
    header = ["mean over the sets", *(f"{rate} by {label}" for rate in ("FPR95, %", "AUROC, %") for label in labels)]
    rows = []
    for method in method_names(parts):
        cells = []
        for rate in ("fpr95", "auroc"):
            for score in scores:
                found = [row for row in method_rows(parts, method) if all(score in row[key] for key in parts[0]["sizes"])]
                values = [statistics.fmean(row[key][score][rate] for key in parts[0]["sizes"]) for row in found]
                cells.append(spread(values, 1, 100.0))
        rows.append([LABELS.get(method, method), *cells])
    return header, rows


SUMMARIES: dict[str, Callable[[], Table]] = {
    "image-overview": _overview,
    "image-judges": _judges,
    **{f"scores-{name}": partial(_ood_scores, name) for name in names() if name.startswith("ood-")},
}
