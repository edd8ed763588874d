"""Writes the tables of README and docs from the committed records, between their markers.

A marker is a line `<!-- table: NAME -->`; what stands between it and `<!-- end -->` is replaced.

    python benchmarks/tables.py [--check]
"""

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from burnish.studies.all_layer import claims as all_layer_claims
from burnish.studies.all_layer import subspace_summary
from burnish.studies.costs import claims as cost_claims
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import STUDIES, summarise
from burnish.studies.summaries import printed_score
from burnish.studies.tabular import at_ends
from committed import read_record
from paper_tables import PAPER_TABLES
from predictive_tables import SOURCES
from reproduction_tables import (
    SUMMARIES,
    claim_lines,
    claim_list,
    claimed,
    few_shot_claims,
    few_shot_sets,
    few_shot_trained_again,
    image_notes,
    mixed_networks,
    names,
    part_origins,
)
from study_tables import NOTES

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table, the first column to the left and the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def refinement_timing() -> str:
    """Seconds of refinement and of the paper's protocol, in the same rounds."""
    record = read_record("refinement-cpu")
    rows = []
    for precision, result in record["results"].items():
        for what, row in result["timing"].items():
            rows.append([f"precision {precision}: {what}", f"{row['seconds']:.2f}", f"{row['times_ours']:.1f}"])
    return markdown(["all from cached features", "seconds", "times ours"], rows) + _origin(record)


def refinement_posteriors() -> str:
    """ELBO and k-hat of every posterior of the same target."""
    record = read_record("refinement-cpu")
    rows = []
    for precision, result in record["results"].items():
        for row in result["posteriors"]:
            if "evidence: precision" in row["posterior"]:
                continue
            elbo = f"{row['elbo']:.2f} ± {row['elbo_standard_error']:.2f}"
            rows.append(
                [
                    f"{precision}: {row['posterior']}",
                    elbo,
                    "∞" if row["khat"] is None else f"{row['khat']:.2f}",
                    f"{row['seconds']:.1f}",
                ]
            )
    return markdown(["prior precision: posterior", "ELBO", "k-hat", "seconds"], rows) + _origin(record)


def compositions() -> str:
    """ELBO of every composition, for each problem, with its spread over seeds."""
    record = read_record("compositions")
    problems = record["results"]
    names = [row["composition"] for row in next(iter(problems.values()))]
    rows = []
    for i, name in enumerate(names):
        cells = [f"{p[i]['elbo']:.2f} ± {p[i]['spread']:.2f} ({p[i]['seconds']:.1f} s)" for p in problems.values()]
        rows.append([name, *cells])
    return markdown(["composition", *problems], rows) + _origin(record)


def control_variate() -> str:
    """Noise between batches of 512 points, relative to plain batches."""
    record = read_record("control-variate")
    rows = [
        [name, f"{row['value_ratio']:.1e}", f"{row['gradient_ratio']:.1e}"]
        for name, row in record["results"]["noise"].items()
    ]
    ratio = f"\n\nCost of a step at 60,000 points over that at 6,000: {record['results']['cost_ratio']:.2f}."
    return markdown(["variance relative to a plain batch", "log posterior", "gradient"], rows) + ratio + _origin(record)


def vb_divergence() -> str:
    """Scores of the paper's VB with its divergence and without, beside what it prints."""
    record = read_record("vb-divergence")
    shown = {"nll": (4, 1.0), "accuracy": (1, 100.0), "brier": (4, 1.0)}
    rows, origins = [], []
    for dataset, ways in record["results"].items():
        title = BENCHMARKS[dataset].title
        for way, row in ways.items():
            cells = [f"{row[key] * scale:.{digits}f}" for key, (digits, scale) in shown.items()]
            rows.append([f"{title}: {way}", *cells, f"{100.0 * row['ece']:.1f}"])
            origins.append(row["origin"])
        known = [printed_score(dataset, "VB", key) for key in shown]
        rows.append(["  printed", *(f"{value.mean:g}" if value else "" for value in known), ""])
    return markdown(["divergence", "NLL", "accuracy, %", "Brier", "ECE, %"], rows) + _origin({"origins": origins})


def evidence_gap() -> str:
    """The share of the gap between Laplace's ELBO and the evidence that refinement closes."""
    record = read_record("evidence-gap")
    rows = [
        [
            str(row["subset"]),
            f"{row['elbo_laplace']:.1f}",
            f"{row['elbo_refined']:.1f}",
            f"{row['log_evidence']:.1f}",
            f"{100 * row['closed']:.1f} %",
            f"{row['seconds']:.2f}",
        ]
        for row in record["results"]
    ]
    header = ["subset of 600 points", "ELBO, recentred Laplace", "ELBO, refined", "log evidence", "gap closed", "seconds"]
    return markdown(header, rows) + _origin(record)


def refine() -> str:
    """Network, temperature scaling and burnish on test points; means over networks, and paired differences."""
    record = read_record("refine")
    rows = []
    for name, title in (("fashion-mnist", "LeNet, Fashion-MNIST"), ("digits", "demo network, digits")):
        result = record["results"][name]
        runs = [run for group in result["runs"] for run in group]
        for method in ("network", "temperature scaling", "burnish"):
            rows.append([f"{title}: {method}", *_scores([run["test"][method] for run in runs])])
        bare = [run["test"]["burnish"] for run in result["without_validation"]]
        rows.append([f"{title}: burnish without validation data", *_scores(bare)])
    lines = []
    for name, title in (("fashion-mnist", "LeNet"), ("digits", "demo network")):
        for rival, summary in record["results"][name]["differences"].items():
            part = summary["interval"]
            text = f"{part['mean']:+.4f} ({part['low']:+.4f} to {part['high']:+.4f})"
            lines.append(f"{title}, burnish less {rival}: {text}")
    config = record["config"]
    note = (
        f"\n\nMean and standard deviation over {len(config['seeds'])} networks with {config['splits']} splits each "
        f"({config['num_validation']:,} validation and {10_000 - config['num_validation']:,} test points; without "
        f"validation data all 10,000 to test on), and over {len(config['digits'])} networks. Differences of test NLL, with "
        f"95 % intervals over networks: {'; '.join(lines)}. {_behaviour(record)}"
    )
    return markdown(["", "accuracy", "NLL", "ECE", "Brier"], rows) + note + _origin(record)


def _behaviour(record: dict[str, Any]) -> str:
    """What the means hide: the worst run, how many verdicts were bad, and how often the default prior was kept."""
    results = record["results"]
    runs = {name: [run for group in result["runs"] for run in group] for name, result in results.items()}
    everything = [run for part in runs.values() for run in part]
    kept = sum((run["fitted_on"], run["prior_mean"]) == ("both", "scaled head") for run in everything)
    doubted = {name: sum(not run["trusted"] for run in part) for name, part in runs.items()}
    worst = {name: result["differences"]["temperature scaling"]["worst"] for name, result in results.items()}
    return (
        f"The worst run against temperature scaling: {worst['fashion-mnist']:+.4f} for a LeNet, {worst['digits']:+.4f} for "
        f"a demo network. Not trusted by their own verdicts: {doubted['fashion-mnist']} of {len(runs['fashion-mnist'])} "
        f"LeNet runs and {doubted['digits']} of {len(runs['digits'])} digits runs. {kept} of {len(everything)} runs fitted "
        "both kinds of data around the scaled head, the default."
    )


def refine_stages() -> str:
    """Where the seconds of one call go."""
    record = read_record("refine")
    rows = []
    for name, title in (("fashion-mnist", "LeNet, 60,000 images"), ("digits", "demo network, digits")):
        runs = [run for group in record["results"][name]["runs"] for run in group]
        features = [sum(t for stage, t in run["stages"].items() if stage.startswith("features")) for run in runs]
        columns = [features, *([run["stages"][stage] for run in runs] for stage in ("prior and data", "posterior", "check"))]
        rows.append([title, *(f"{statistics.mean(values):.1f}" for values in (*columns, [run["seconds"] for run in runs]))])
    header = ["`refine`, seconds", "features", "choice of prior and data", "posterior", "check", "in all"]
    return markdown(header, rows) + _origin(record)


def hmc_weights() -> str:
    """Seconds to convergence, and MMD to a run of HMC against the range of chain-wise re-splits of two runs."""
    record = read_record("hmc-cuda")
    rows = []
    for precision, name, part in _by_posterior(record["results"]["all data"], "HMC, run 1"):
        values = " / ".join(f"{1e5 * row['mmd']:.1f}" for row in part)
        inside = f"{sum(row['inside'] for row in part)} of {len(part)}"
        worst = max((row["rhat"] for row in part if row["rhat"]), default=None)
        label = "HMC, another run" if name == "HMC, run 2" else name
        rows.append(
            [f"{precision:g}: {label}", values, inside, "" if worst is None else f"{worst:.4f}", _median_seconds(part)]
        )
    header = ["prior precision: posterior", "10^5 MMD², by network", "inside the 99 % range", "R-hat", "seconds"]
    return markdown(header, rows) + _origin(record)


def hmc_predictions() -> str:
    """Predictive distance to a long run of HMC: with 20 draws by that of 20 draws of HMC, and with many."""
    record = read_record("hmc-cuda")
    rows = []
    for precision, name, part in _by_posterior(record["results"]["few points"], "HMC, long"):
        ratio, many = (" / ".join(f"{row[key]:{form}}" for row in part) for key, form in (("ratio", ".2f"), ("many", ".4f")))
        trusted = f"{sum(row['trusted'] for row in part)} of {len(part)}"
        rows.append([f"{precision:g}: {name}", ratio, many, trusted, _median_seconds(part)])
    header = ["prior precision: rung", "20 draws, by 20 of HMC", "many draws", "trusted", "seconds"]
    return markdown(header, rows) + _origin(record)


def _by_posterior(rows: list[dict[str, Any]], reference: str) -> Iterator[tuple[float, str, list[dict[str, Any]]]]:
    """Prior precision, posterior, and its rows of all networks; without the posterior that the others are compared with."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["precision"], row["posterior"]), []).append(row)
    for (precision, name), part in groups.items():
        if name != reference:
            yield precision, name, part


def _median_seconds(rows: list[dict[str, Any]]) -> str:
    return f"{statistics.median(row['seconds'] for row in rows):.1f}"


def verdicts() -> str:
    """How often the verdict is right: on the networks it was developed with, and on others."""
    records = [read_record("verdicts"), read_record("verdicts-unseen")]
    by_kind = [{(row["dim"], row["state"]): row for row in record["results"]["summary"]} for record in records]
    rows = []
    for (dim, state), first in by_kind[0].items():
        cells = []
        for row in (first, by_kind[1].get((dim, state))):
            if not row or not row["count"]:
                cells += ["", ""]
                continue
            share = f"{100 * row['share']:.1f} % ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
            cells += [f"{row['good']} of {row['count']} {row['found']}", share]
        rows.append([f"{dim}: {state}", *cells])
    first, second = (", ".join(map(str, record["config"]["seeds"])) for record in records)
    header = ["parameters: truth", f"networks {first}", "share, 95 % interval", f"networks {second}", "share, 95 % interval"]
    return markdown(header, rows) + _origin(records[0])


def sbc() -> str:
    """Excursions of rank statistics, by the simultaneous 99 % band."""
    record = read_record("sbc")
    rows = []
    for problem, result in record["results"].items():
        for method, part in result["methods"].items():
            inside = "inside" if part["inside"] else "outside"
            rows.append([f"{problem}: {method}", f"{part['excursion']:.2f}", inside, part["worst"]])
    header = ["problem: posterior", "largest excursion, by the band", "99 % band", "where"]
    return markdown(header, rows) + _origin(record)


def nuts() -> str:
    """Effective draws a second of `fit_hmc` and of Pyro's NUTS."""
    record = read_record("nuts")
    results = record["results"]
    best: dict[str, list[dict[str, Any]]] = {}
    for row in [*results["rounds"], results["by_rule"], results["raw"]]:
        best.setdefault(row["sampler"], []).append(row)
    rows = [
        [
            name,
            " / ".join(f"{row['ess_per_second']:.3g}" for row in part),
            f"{statistics.median(row['seconds'] for row in part):.0f}",
            f"{max(row['rhat'] for row in part):.4f}" if all(row["rhat"] for row in part) else "",
        ]
        for name, part in best.items()
    ]
    ratios = results["ratios"]
    adapted, unit = (", ".join(f"{ratio:.1f}" for ratio in ratios[mass]) for mass in ("adapted", "unit"))
    bound = "at least " if ratios["over_raw_is_bound"] else ""
    note = (
        f"\n\n`fit_hmc` over NUTS with the mass matrix that Pyro adapts, round by round: {adapted}; over NUTS told that "
        f"there is nothing to adapt: {unit}; over NUTS on the raw parameters: {bound}{ratios['over_raw']:.0f}."
    )
    header = ["sampler", "smallest ESS a second, by round", "seconds", "largest R-hat"]
    return markdown(header, rows) + note + _origin(record)


def all_layer() -> str:
    """NLL of every posterior of all layers, and how far HMC can be relied on."""
    record = read_record("all-layer")
    return markdown(*summarise(record)) + f"\n\n{NOTES['all-layer'](record)}" + _origin(record)


def subspaces() -> str:
    """What refining a few directions gains, beside refining all of them."""
    record = read_record("all-layer")
    return markdown(*subspace_summary(record)) + _origin(record)


def costs() -> str:
    """What each posterior costs beyond training one network: in symbols, and measured."""
    record = read_record("costs-cpu")
    rows = []
    for row in record["results"]["methods"][1:]:
        overhead = f"{row['seconds']:,.0f} s, {row['epochs']:.1f} epochs{'*' if row['extrapolated'] else ''}"
        measured = [
            overhead,
            f"{row['forwards']:.1f} passes",
            f"{row['networks']:.1f} networks, or {row['networks_with_draws']:.1f}",
        ]
        kinds = ("overhead", "prediction", "memory")
        cells = [f"{row['cost'][kind]}: {value}" for kind, value in zip(kinds, measured, strict=True)]
        rows.append([row["method"], *cells, "; ".join(row["paper"][kind] for kind in kinds)])
    symbols = "; ".join(
        f"{name}: {part['meaning']} ({part['value']:,})" for name, part in record["results"]["symbols"].items()
    )
    header = ["posterior", "overhead", "prediction, 128 points", "memory", "the paper's table"]
    note = f"\n\n{symbols}.\n\n*extrapolated from {record['config']['epochs_measured']} epochs."
    return markdown(header, rows) + note + _origin(record)


def prediction(name: str) -> str:
    """A table about prediction, with what stands below it."""
    source, make = SOURCES[name]
    record = read_record(source)
    header, rows, note = make(record)
    return f"{markdown(header, rows)}\n\n{note}" + _origin(record)


def study(name: str) -> str:
    """The table of a study, as its command prints it, and what the table leaves out."""
    record = read_record(f"study-{name}")
    return markdown(*summarise(record)) + f"\n\n{NOTES[name](record)}" + _origin(record)


def study_alone(name: str) -> str:
    """The table of a study and nothing else, for pages that lead to the one with the rest."""
    return markdown(*summarise(read_record(f"study-{name}")))


def image_study(name: str) -> str:
    """The table of an image study, as its command prints it, and how it was made."""
    record = read_record(name)
    return markdown(*summarise(record)) + f"\n\n{image_notes(record)}" + _origin(record)


def refinement_costs() -> str:
    """Seconds and ELBOs of refinement by number of classes, beside the printed seconds."""
    record = read_record("costs")
    config = record["config"]
    note = (
        f"{config['num_points']:,} points of a mixture of Gaussians with {config['num_features']:,} features, prior "
        f"precision {config['prior_precision']:g}. Our refinement: {config['num_steps']} steps of "
        f"{config['num_samples']} draws, then its judgement; the paper's: {config['num_layers']} layers and "
        f"{config['flow_epochs']} epochs. ELBOs by {config['num_draws']} draws, with standard errors."
    )
    return markdown(*summarise(record)) + f"\n\n{note}" + _origin(record)


def tabular() -> str:
    """Test log-likelihoods on tables, and wins, ties and losses."""
    record = read_record("tabular")
    ends = f"\n\nChosen at the end of its grid on most splits: {'; '.join(at_ends(record)) or 'nothing'}."
    return markdown(*summarise(record)) + ends + _origin(record)


def few_shot(dataset: str) -> str:
    """NLL and distances to HMC against the number of points."""
    record = read_record(f"few-shot-{dataset}")
    return markdown(*summarise(record)) + f"\n\n{_few_shot_notes(record)}" + _origin(record)


def _few_shot_notes(record: dict[str, Any]) -> str:
    config = record["config"]
    lines = [f"{len(config['seeds'])} networks, means and standard errors", f"NLL by {config['few']} draws"]
    lines.append(f"distances by {config['num_draws']}")
    if few_shot_trained_again(record):
        lines.append("networks of the same recipe as those of other tables, trained again")
    if config["num_train"] is not None:
        lines.append(f"networks trained on {config['num_train']:,} images for {config['num_epochs']} epochs")
    return f"{'; '.join(lines)}. Data: {'; '.join(record['data'].values())}."


def _scores(results: list[dict[str, Any]]) -> list[str]:
    """Mean and standard deviation of each metric."""

    def cell(name: str, scale: float, digits: int, unit: str) -> str:
        values = [scale * result[name] for result in results]
        return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}{unit}"

    return [cell("accuracy", 100, 1, " %"), cell("nll", 1, 4, ""), cell("ece", 100, 1, " %"), cell("brier", 1, 4, "")]


def _origin(record: dict[str, Any]) -> str:
    results = record.get("results")
    known = record.get("origins") or part_origins(record) or [record]
    origins = results.get("origins", known) if isinstance(results, dict) else known
    lines = [f"{each['device']}, torch {each['versions']['torch']}, commit {each['commit']}" for each in origins]
    return f"\n\n<sub>{'; '.join(dict.fromkeys(lines))}.</sub>"


TABLES: dict[str, Callable[[], str]] = {
    "refine": refine,
    "refine-stages": refine_stages,
    "refinement-timing": refinement_timing,
    "refinement-posteriors": refinement_posteriors,
    "compositions": compositions,
    "control-variate": control_variate,
    "evidence-gap": evidence_gap,
    "vb-divergence": vb_divergence,
    "hmc-weights": hmc_weights,
    "hmc-predictions": hmc_predictions,
    "verdicts": verdicts,
    "sbc": sbc,
    "nuts": nuts,
    "all-layer": all_layer,
    "claims-all-layer": lambda: claim_lines(all_layer_claims(read_record("all-layer"))),
    "subspaces": subspaces,
    "costs": costs,
    "refinement-costs": refinement_costs,
    "claims-refinement-costs": lambda: claim_lines(cost_claims(read_record("costs"))),
    "tabular": tabular,
    **{f"few-shot-{name}": partial(few_shot, name) for name in few_shot_sets()},
    **{f"claims-few-shot-{name}": partial(few_shot_claims, name) for name in few_shot_sets()},
    **{name: partial(prediction, name) for name in SOURCES},
    **{f"study-{name}": partial(study, name) for name in STUDIES},
    **{name: partial(image_study, name) for name in names()},
    **{f"claims-{name}": partial(claim_list, name) for name in claimed()},
    **{f"paper-{name}": partial(study_alone, name) for name in STUDIES},
    **{name: partial(lambda make: markdown(*make()), make) for name, make in {**SUMMARIES, **PAPER_TABLES}.items()},
}


def rendered(text: str, page: str) -> str:
    """A page with its tables as the records have them."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:  # studies have tables for the records that are there
            sys.exit(f"{page} wants the table {match[2]}, which has no record. Make that, or take the table out.")
        return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"

    return MARKED.sub(table, text)


def pages() -> list[Path]:
    """Every page that may hold a table."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def unshown() -> list[str]:
    """Records of studies whose table stands on no page."""
    shown = {match[2] for page in pages() for match in MARKED.finditer(page.read_text())}
    known = [*names(), *(f"few-shot-{dataset}" for dataset in few_shot_sets()), "tabular", "all-layer"]
    return [name for name in known if name not in shown]


def main() -> None:
    """Rewrites the pages, or with --check says which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    lost = unshown()
    if lost:
        sys.exit(f"records must have a table on a page, got none for {', '.join(lost)}")
    mixed = mixed_networks()
    if mixed:
        sys.exit(f"records of one data set must be of the same networks, got different ones for {', '.join(mixed)}")
    stale = []
    for page in pages():
        text, name = page.read_text(), str(page.relative_to(ROOT))
        found = rendered(text, name)
        if found != text:
            stale.append(name)
            if not check:
                page.write_text(found)
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
