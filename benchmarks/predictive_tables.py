"""Tables about prediction: every approximation against its integral, few samples against many, and what service costs."""

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["SOURCES"]

Table = tuple[list[str], list[list[str]], str]
"""Header, rows, and what stands below."""


def two_classes(record: dict[str, Any]) -> Table:
    """Errors of the probability of a class over a grid of means and standard deviations of the logit."""
    rows = [[_method(row), f"{row['mean']:.4f}", f"{row['max']:.4f}"] for row in record["results"]["two classes"]]
    note = (
        "Absolute errors of one probability against the trapezoid rule, for logits with means in [-10, 10] and standard "
        "deviations in (0, 10], 1,640 cells; of draws the mean over "
        f"{record['config']['repeats']} repetitions. Draws of weights are the same for all cells, those of outputs are not."
    )
    return ["two classes", "mean error", "largest error"], rows, note


def more_classes(record: dict[str, Any]) -> Table:
    """Distances to a million draws, by problem."""
    found = record["results"]["more classes"]
    problems = list(dict.fromkeys((row["classes"], row["logits"]) for row in found))
    methods = list(dict.fromkeys(_method(row) for row in found))
    cells = {(row["classes"], row["logits"], _method(row)): f"{row['distance']:.4f}" for row in found}
    rows = [[f"{count}: {logits}", *(cells[count, logits, method] for method in methods)] for count, logits in problems]
    config = record["config"]
    note = (
        f"Mean total variation distance to {config['draws']:,} draws of the logits, over {config['points']} points, and "
        f"ten times as many of Fashion-MNIST; of draws the mean over {config['repeats']} repetitions."
    )
    return ["classes: logits", *methods], rows, note


def _method(row: dict[str, Any]) -> str:
    return f"{row['method']}, S = {row['samples']:,}" if row["samples"] else row["method"]


def sample_efficiency(record: dict[str, Any]) -> Table:
    """Distance of few samples to HMC's predictions, for every way to come by them, with few data."""
    return _efficiency(record, 600)


def sample_efficiency_all(record: dict[str, Any]) -> Table:
    """The same with all data."""
    return _efficiency(record, 60_000)


def _efficiency(record: dict[str, Any], num_points: int) -> Table:
    found = [row for row in record["results"] if row["points"] == num_points]
    sizes, seeds = record["config"]["sizes"], record["config"]["seeds"]
    ways = list(dict.fromkeys(row["way"] for row in found if row["samples"]))
    cells = {(row["way"], row["samples"], row["seed"]): row for row in found}

    def mean(way: str, size: int, key: str = "distance") -> float:
        return statistics.mean(cells[way, size, seed][key] for seed in seeds)

    rows = []
    for way in ways:
        ratios = [cells[way, 20, seed]["distance"] / cells["drawn", 20, seed]["distance"] for seed in seeds]
        rows.append(
            [
                way,
                *(f"{1e3 * mean(way, size):.2f}" for size in sizes),
                " / ".join(f"{ratio:.2f}" for ratio in ratios),
                f"{1e3 * mean(way, 20, 'information_error'):.2f}",
            ]
        )
    flow, other = (1e3 * mean(way, 0) for way in ("flow, 8,000 draws", "HMC, another run"))
    seconds = statistics.median(cells["selected, weighted and moved", 20, seed]["seconds"] for seed in seeds)
    config = record["config"]
    note = (
        f"N = {num_points:,}, prior precision {found[0]['precision']:g}: mean total variation distance to the predictions "
        f"of a long HMC run on the test set, times 1,000, mean over {len(seeds)} networks. The flow's own distance, with "
        f"8,000 draws, is {flow:.2f}; that of another run of HMC {other:.2f}. Selected by {config['unlabelled']:,} "
        f"training inputs that the posterior was not fitted to; selecting 20 takes {seconds:.1f} s. Of random sets "
        f"{config['sets']} each, of selections {config['selections']}. The last column is the mean "
        f"error of mutual information at S = 20, in nats times 1,000; HMC's mutual information is "
        f"{1e3 * statistics.mean(row['judge_information'] for row in found):.2f}."
    )
    header = ["samples", *(f"S = {size}" for size in sizes), "by drawn, S = 20, by network", "information"]
    return header, rows, note


def serving_overhead(record: dict[str, Any]) -> Table:
    """What `bnn(x)` takes beyond the network."""
    rows = [
        [
            f"{row['network']}, {row['dtype']}",
            f"{row['network_ms']:.2f}",
            f"{row['bnn_ms']:.2f}",
            f"{row['difference_ms']:+.2f}",
            f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})",
        ]
        for row in record["results"]["overhead"]
    ]
    config = record["config"]
    note = (
        f"Batches of {config['batch']}, {config['num_samples']} samples, {config['threads']} threads, in turns; medians, "
        "and quartiles of the ratio. The difference is the median of differences."
    )
    return ["milliseconds", "network", "`bnn(x)`", "difference", "ratio (quartiles)"], rows, note


def serving_classes(record: dict[str, Any]) -> Table:
    """One input with thousands of classes."""
    rows = [
        [row["method"], f"{row['ms']:.1f} ({row['ms_low']:.1f} to {row['ms_high']:.1f})", f"{row['peak_mib']:.0f}"]
        for row in record["results"]["one_input"]
    ]
    first = record["results"]["one_input"][0]
    note = (
        f"{first['features']} features, {first['classes']:,} classes, a Kronecker-factored posterior, "
        f"{record['config']['num_samples']} samples, one input; median and quartiles."
    )
    return ["method", "milliseconds", "MiB"], rows, note


def serving_export(record: dict[str, Any]) -> Table:
    """How far exported graphs are from torch."""
    result = record["results"]["export"]
    names = ("probs", "entropy", "mutual_information", "log_probs")
    rows = [
        [
            f"{row['format']}, batch {row['batch']:,}",
            *(f"{row[name]:.1e}" for name in names),
            f"{row['smallest_log_prob']:.0f}",
        ]
        for row in result["differences"]
    ]
    times = "; ".join(
        f"batch {row['batch']}: onnxruntime {row['onnxruntime_ms']:.2f} ms, `bnn(x)` {row['bnn_ms']:.2f} ms"
        for row in result["latencies"]
    )
    rounding = max(row["log_probs_of_torch"] for row in result["differences"])
    note = (
        f"Largest absolute differences from torch, a LeNet on Fashion-MNIST. Torch's own log-probabilities differ by up to "
        f"{rounding:.1e} from those it computes in float64. Latencies, {times}."
    )
    return ["format", "probabilities", "entropy", "mutual information", "log-probabilities", "smallest of them"], rows, note


SOURCES: dict[str, tuple[str, Callable[[dict[str, Any]], Table]]] = {
    "predictives-two-classes": ("predictives", two_classes),
    "predictives-more-classes": ("predictives", more_classes),
    "sample-efficiency": ("sample-efficiency", sample_efficiency),
    "sample-efficiency-all": ("sample-efficiency", sample_efficiency_all),
    "serving-overhead": ("serving", serving_overhead),
    "serving-classes": ("serving", serving_classes),
    "serving-export": ("serving", serving_export),
}
"""For every table its record and the function that makes it."""
