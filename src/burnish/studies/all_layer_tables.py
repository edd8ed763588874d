"""What a record of the study of all layers says: its tables, and which statements about the paper's hold."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.studies.all_layer_settings import BASES, FINISHED, HMC, NETWORK, REFINED, Settings, base_name, flow_name
from burnish.studies.claims import Claim
from burnish.studies.printed import Printed, printed

__all__ = ["by_posterior", "claims", "printed_nll", "subspace_summary", "summary"]

_PRINTED = "calibration_all_layer_fmnist"
_COMPARABLE = ("num_points", "precision", "num_epochs", "few", "tiny")
_NEAR = 0.01  # of a printed NLL, within which ours counts as the same
_LARGEST_RHAT = 1.01
_HALF = 0.5  # of the gap from the paper's protocol to HMC


def by_posterior(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The rows of all networks by name of the posterior, those with the largest mean NLL first."""
    groups: dict[str, list[Any]] = {}
    for part in sorted(record["parts"].values(), key=lambda part: int(part["seed"])):
        for name, row in part["rows"].items():
            groups.setdefault(name, []).append(row)
    return dict(sorted(groups.items(), key=lambda group: -_average(group[1], "few_nll")))


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: NLL of every posterior, and which share of the gap from the paper's protocol to HMC it closes."""
    config = record["config"]
    header = [
        "posterior",
        f"NLL, {config['few']} draws",
        f"NLL, {config['many']}",
        "printed NLL",
        "accuracy",
        "ECE",
        "distance to HMC",
        "ELBO",
        "closed, %",
        "s",
    ]
    rows = []
    for name, part in by_posterior(record).items():
        seconds = _known(part, "seconds")
        known = printed_nll(record, name)
        rows.append(
            [
                name,
                _deviation(_known(part, "few_nll"), 4),
                _many_draws(name, part),
                "" if known is None else f"{known:.4f}",
                _mean(part, "accuracy", ".1f", 100.0, " %"),
                _mean(part, "ece", ".1f", 100.0, " %"),
                _mean(part, "distance", ".3f"),
                _mean(part, "elbo", ",.0f"),
                " / ".join(str(round(100.0 * value)) for value in _known(part, "closed")),
                f"{statistics.median(seconds):.0f} ({part[0]['device']})" if seconds else "",
            ]
        )
    return header, rows


def subspace_summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what refining a few directions gains, beside refining all of them."""
    groups, config = by_posterior(record), record["config"]
    rows = []
    for name in (*(name for name in groups if name.startswith("subspace")), REFINED):
        part = groups.get(name, [])
        if not part:
            continue
        some = f"{part[0].get('directions')}: {name.removeprefix('subspace, ')}"
        choice = statistics.median(row.get("choice_seconds", 0.0) for row in part)
        rows.append(
            [
                f"all {config['num_parameters']:,}" if name == REFINED else some,
                " / ".join(f"{row['gain']:,.0f} ± {row['gain_error']:,.0f}" for row in part if row["gain"] is not None),
                " / ".join(str(row["steps"]) for row in part),
                f"{choice:.1f}",
                f"{statistics.median(row['seconds'] for row in part):.1f}",
                _mean(part, "few_nll", ".4f"),
            ]
        )
    header = ["directions", "nats gained, by network", "steps", "s to choose", "s to refine", f"NLL, {config['few']} draws"]
    return header, rows


def printed_nll(record: Mapping[str, Any], name: str) -> float | None:
    """The paper's for a posterior of its protocol or HMC, where images and sizes are its own."""
    config, own = record["config"], Settings()
    if config["made_images"] or any(config[key] != getattr(own, key) for key in _COMPARABLE):
        return None
    names = {HMC: HMC, **{base_name(base): "LA" for base in BASES}}
    names |= {flow_name(base, length): f"LA-Refine-{length}" for base in BASES for length in config["lengths"]}
    value = printed(_PRINTED, names.get(name, ""), "nll")
    return value.mean if isinstance(value, Printed) else None


def claims(record: Mapping[str, Any]) -> list[Claim]:
    """What the record shows of the paper's protocol, of refinement, and of HMC as a judge."""
    groups = by_posterior(record)
    nll = {name: _average(part, "few_nll") for name, part in groups.items()}
    found = [*_paper_claims(record, nll), *_printed_claims(record, groups, nll)]
    closed = _known(groups.get(REFINED, []), "closed")
    if closed:
        statement = f'"{REFINED}" closes at least half of the gap from the paper\'s {_longest(record)} layers to HMC'
        text = ", ".join(f"{100.0 * value:.0f} %" for value in closed) + ", by network"
        found.append(Claim(statement, text, min(closed) >= _HALF))
    return [*found, *_judge_claims(record, nll)]


def _paper_claims(record: Mapping[str, Any], nll: Mapping[str, float]) -> list[Claim]:
    """Whether the paper's flows improve with their length, from either base, and on the network alone."""
    found = []
    for base, prior in (("own", "the target's own prior"), ("paper", "a prior chosen on validation points")):
        names = [base_name(base), *(flow_name(base, length) for length in record["config"]["lengths"])]
        values = [nll[name] for name in names if name in nll]
        if len(values) == len(names):
            labels = ["LA", *map(str, record["config"]["lengths"])]
            text = ", ".join(f"{label} {value:.4f}" for label, value in zip(labels, values, strict=True))
            statement = f"from {prior}, NLL of the paper's flows falls with their length, and all are below their base's"
            found.append(Claim(statement, text, values == sorted(set(values), reverse=True)))
    best = min((name for name in nll if name.startswith(tuple(BASES.values()))), key=lambda name: nll[name], default=None)
    if best is not None and NETWORK in nll:
        text = f"the best, {best}, {nll[best]:.4f}; the network {nll[NETWORK]:.4f}"
        found.append(
            Claim("a posterior of the paper's protocol predicts better than the network", text, nll[best] < nll[NETWORK])
        )
    return found


def _printed_claims(record: Mapping[str, Any], groups: Mapping[str, Any], nll: Mapping[str, float]) -> list[Claim]:
    """Whether printed NLLs come out again, from the target's own prior."""
    lengths = record["config"]["lengths"]
    what = {
        "the paper's flows": [flow_name("own", length) for length in lengths],
        "the base of the paper's flows": [base_name("own")],
    }
    ours = dict(nll)
    if HMC in groups:  # the paper's HMC predicts by all of its draws
        what[HMC], ours[HMC] = [HMC], _average(groups[HMC], "nll")
    found = []
    for subject, names in what.items():
        pairs = [(ours[name], known) for name in names if name in ours and (known := printed_nll(record, name)) is not None]
        if pairs:
            text = ", ".join(f"{own:.4f} ({known:.4f} printed)" for own, known in pairs)
            holds = all(abs(own - known) <= _NEAR * known for own, known in pairs)
            prior = "" if subject == HMC else ", from the target's own prior,"
            found.append(Claim(f"NLL of {subject}{prior} is the printed one, within {100 * _NEAR:g} %", text, holds))
    return found


def _judge_claims(record: Mapping[str, Any], nll: Mapping[str, float]) -> list[Claim]:
    judge, found = record["judge"], []
    if HMC in nll and len(nll) > 1:
        best = min((name for name in nll if name != HMC), key=lambda name: nll[name])
        text = f"{nll[HMC]:.4f}; the best of the others, {best}, {nll[best]:.4f}"
        found.append(
            Claim(f"no posterior predicts better than HMC by {record['config']['few']} draws", text, nll[HMC] <= nll[best])
        )
    if judge is not None and judge["nll_rhat"] is not None:
        text = f"R-hat over all chains {judge['nll_rhat']:.3f} where less than {_LARGEST_RHAT:g} would do"
        if judge["predictive_rhat"] is not None:  # not known where a point's probability is the same in all draws
            text += f", of single test points at most {judge['predictive_rhat']:.2f}"
        statement = "HMC has converged, by its mean log probability of test points"
        found.append(Claim(statement, text, judge["nll_rhat"] < _LARGEST_RHAT))
    return found


def _deviation(values: Sequence[float], digits: int) -> str:
    """Mean and, of several networks, their standard deviation; nothing where there are none."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def _many_draws(name: str, part: Sequence[Any]) -> str:
    """With as many draws as the column says, where there are that many."""
    if name == FINISHED:
        return ""
    return _mean(part, "nll", ".4f") + (" (all)" if name == HMC else "")


def _longest(record: Mapping[str, Any]) -> int:
    return int(record["config"]["lengths"][-1])


def _mean(rows: Sequence[Any], key: str, form: str, scale: float = 1.0, unit: str = "") -> str:
    known = _known(rows, key)
    return f"{scale * statistics.fmean(known):{form}}{unit}" if known else ""


def _average(rows: Sequence[Any], key: str) -> float:
    """Infinity where no network has a number, as where a test point had no probability."""
    known = _known(rows, key)
    return statistics.fmean(known) if known else math.inf


def _known(rows: Sequence[Any], key: str) -> list[float]:
    return [row[key] for row in rows if row[key] is not None]
