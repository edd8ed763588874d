"""Tables of docs/reproduction: the image studies as their commands print them, how they were made, and what they show."""

import json
from pathlib import Path
from typing import Any

from burnish.studies.claims import Claim, calibration_claims, ood_claims
from burnish.studies.image_studies import IMAGE_STUDIES
from burnish.studies.protocols import BENCHMARKS, PROTOCOLS

__all__ = ["claim_list", "claimed", "image_notes", "names", "read"]

FOLDER = Path(__file__).resolve().parent.parent / "results" / "images"


def names() -> list[str]:
    """Of the records that are there."""
    wanted = [f"{study}-{dataset}-{protocol}" for study in IMAGE_STUDIES for dataset in BENCHMARKS for protocol in PROTOCOLS]
    return [name for name in wanted if (FOLDER / f"{name}.json").exists()]


def read(name: str) -> dict[str, Any]:
    """One record."""
    record: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return record


def image_notes(record: dict[str, Any]) -> str:
    """How many networks, draws and points stand behind a table."""
    config, parts = record["config"], record["seeds"]
    count = len(parts)
    lines = [f"{count} network{'s' if count > 1 else ''} (seeds {', '.join(parts)}), means and standard errors"]
    if config["baseline_seeds"] and any("baselines" in part for part in parts.values()):
        lines.append(f"VB and CSGHMC of seeds {', '.join(map(str, config['baseline_seeds']))}")
    lines.append(f"predictions by {config['few']} draws unless said otherwise, averaged over sets of them")
    if record["failures"]:
        lines.append("failed: " + "; ".join(f"{seed}: {reason}" for seed, reason in record["failures"].items()))
    sets = "; ".join(record["data"].values())
    return f"{'; '.join(lines)}. Data: {sets}."


def claimed() -> list[str]:
    """Data sets with protocols, and "ood" with protocols, whose records say whether something holds."""
    calibrated = [name.removeprefix("image-calibration-") for name in names() if name.startswith("image-calibration-")]
    return calibrated + sorted({f"ood-{read(name)['config']['protocol']}" for name in names() if name.startswith("ood-")})


def claim_list(name: str) -> str:
    """What a record, or for "ood" all records of one protocol, show."""
    study, _, protocol = name.rpartition("-")
    if study == "ood":
        claims = ood_claims([read(each) for each in names() if each.startswith("ood-") and each.endswith(protocol)])
    else:
        claims = calibration_claims(read(f"image-calibration-{name}"))
    return "\n".join(_line(claim) for claim in claims)


def _line(claim: Claim) -> str:
    verdict = "Holds" if claim.holds else "Does not hold"
    return f"- **{verdict}.** {claim.statement[0].upper()}{claim.statement[1:]}: {claim.measured}."
