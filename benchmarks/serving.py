"""What a Bayesian network costs in service: beside its network, as an exported graph, and with thousands of classes.

Three parts. What `bnn(x)` takes beyond `network(x)`, a LeNet-5 and a WideResNet-16-4, measured in turns; how far exported
graphs are from the network they were made of, and what onnxruntime takes; one input of 128 features and 3,100 classes under
a Kronecker-factored Gaussian, by draws of outputs and by draws of weights. Writes results/serving.json.

    python benchmarks/serving.py [--data DIR] [--threads 2]
"""

import argparse
import copy
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

import burnish
from burnish.studies.architectures import make_network
from fashion_mnist import read_set, trained_lenet
from records import RESULTS, measured, print_table, write_record

CPU = torch.device("cpu")
NUM_SAMPLES = 20
BATCH = 128
NUM_VALIDATION, NUM_TRAIN = 2_000, 10_000
SIZES = (1, 2, 16, 128, 1000)
NUM_FEATURES, NUM_CLASSES = 128, 3_100
TARGETS = {
    "LeNet": "at most 0.3 ms or 15 % more",
    "WRN-16-4": "at most 2 % more",
    "one input": "at most 10 ms and 1024 MiB by draws of outputs",
    "export": "at most 1e-5 from torch",
}


def quickly_refined(network: nn.Module, inputs: Tensor) -> burnish.BayesianNetwork:
    """Any posterior will do where only time is measured."""
    labels = torch.arange(len(inputs)) % 10
    options = {"prior_mean": "head", "prior_precision": 20.0, "method": "laplace", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return burnish.refine(network, (inputs, labels), num_samples=NUM_SAMPLES, **options)


@torch.no_grad()
def in_turns(first: Callable[[], Any], second: Callable[[], Any], num_rounds: int) -> dict[str, Any]:
    """Milliseconds of two calls, one after the other in every round, the order turned in every other one."""
    first(), second()
    pairs = []
    for turn in range(num_rounds):
        seconds = {}
        for call in (first, second) if turn % 2 == 0 else (second, first):
            began = time.perf_counter()
            call()
            seconds[call] = time.perf_counter() - began
        pairs.append((1e3 * seconds[first], 1e3 * seconds[second]))
    low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    return {
        "network_ms": statistics.median(a for a, _ in pairs),
        "bnn_ms": statistics.median(b for _, b in pairs),
        "difference_ms": statistics.median(b - a for a, b in pairs),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "rounds": num_rounds,
    }


def overhead(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows for both networks and, as information, for the small one in bfloat16, which few CPUs compute in."""
    generator = burnish.make_generator(options.seed)
    cases = {
        "LeNet": (make_network("lenet", 10, 0).eval(), (1, 28, 28), options.rounds),
        "WRN-16-4": (make_network("wide-resnet", 10, 0).eval(), (3, 32, 32), options.wide_rounds),
    }
    rows = []
    for name, (network, shape, num_rounds) in cases.items():
        images = torch.rand(BATCH, *shape, generator=generator)
        bnn = quickly_refined(network, images).eval()
        for dtype in (torch.float32, torch.bfloat16) if name == "LeNet" else (torch.float32,):
            bnn.to(dtype)  # and with it the network
            x = images.to(dtype)
            times = in_turns(lambda network=network, x=x: network(x), lambda bnn=bnn, x=x: bnn(x), num_rounds)
            rows.append({"network": name, "dtype": str(dtype).removeprefix("torch."), **times})
            print(f"{name} in {dtype}: {times['network_ms']:.2f} ms, {times['bnn_ms']:.2f} ms", flush=True)
    return rows


def export(options: argparse.Namespace) -> dict[str, Any]:
    """A LeNet on Fashion-MNIST, refined and exported: differences from torch, latencies of onnxruntime, bytes."""
    train, test = read_set(options.data, "train"), read_set(options.data, "t10k")
    network = trained_lenet(train, CPU, seed=options.seed)
    subset = tuple(column[:NUM_TRAIN] for column in train)
    validation = tuple(column[:NUM_VALIDATION] for column in test)
    bnn = burnish.refine(network, subset, validation=validation, num_samples=NUM_SAMPLES, seed=options.seed, progress=False)
    images = test[0][NUM_VALIDATION:]
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in ("network.onnx", "network.pt2")}
        seconds = {}
        for name, path in paths.items():
            began = time.perf_counter()
            bnn.export(path, format="onnx" if name.endswith("onnx") else "torch")
            seconds[name] = time.perf_counter() - began
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(paths["network.onnx"], settings, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_outputs()]
        feed = session.get_inputs()[0].name
        program = torch.export.load(paths["network.pt2"]).module()

        def run(x: Tensor) -> dict[str, Tensor]:
            found = session.run(None, {feed: x.numpy()})
            return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}

        rows = []
        for size in SIZES:
            x = images[:size]
            for name, call in {"onnx": run, "torch": program}.items():
                rows.append({"format": name, "batch": size, **differences(bnn, x, call(x))})
        times = [
            {"batch": size, **latencies(lambda x=images[:size]: run(x), lambda x=images[:size]: bnn(x), options.rounds)}
            for size in (1, BATCH)
        ]
        sizes = {name: path.stat().st_size for name, path in paths.items()}
    return {
        "trusted": bnn.verdict.trusted,
        "differences": rows,
        "latencies": times,
        "bytes": sizes,
        "export_seconds": seconds,
    }


@torch.no_grad()
def differences(bnn: burnish.BayesianNetwork, x: Tensor, found: dict[str, Tensor]) -> dict[str, float]:
    """The largest absolute difference of each output; and that of torch itself from its result in float64."""
    prediction, log_probs = bnn.predict(x), bnn(x)
    expected = {"log_probs": log_probs, "probs": prediction.probs, "entropy": prediction.entropy}
    expected["mutual_information"] = prediction.mutual_information
    found = {**found, "probs": found["log_probs"].exp()}
    rounding = float((copy.deepcopy(bnn).double()(x.double()) - log_probs).abs().max())
    largest = {name: float((found[name] - value).abs().max()) for name, value in expected.items()}
    return {**largest, "log_probs_of_torch": rounding, "smallest_log_prob": float(log_probs.min())}


def latencies(graph: Callable[[], Any], bnn: Callable[[], Any], num_rounds: int) -> dict[str, float]:
    """Median milliseconds of onnxruntime, which returns all outputs, and of `bnn(x)`."""
    times = in_turns(graph, bnn, num_rounds)
    return {"onnxruntime_ms": times["network_ms"], "bnn_ms": times["bnn_ms"]}


def one_input(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Many classes, a Kronecker-factored Gaussian, one input: draws of outputs beside draws of all weights."""
    generator = burnish.make_generator(options.seed)
    head = burnish.LinearHead(NUM_FEATURES, NUM_CLASSES)

    def orthogonal(size: int) -> Tensor:
        return torch.linalg.qr(torch.randn(size, size, generator=generator)).Q.contiguous()

    std = 0.05 * (0.5 + torch.rand(NUM_CLASSES, NUM_FEATURES + 1, generator=generator))
    scale = burnish.Kronecker(orthogonal(NUM_CLASSES), orthogonal(NUM_FEATURES + 1), std, head)
    posterior = burnish.Gaussian(0.1 * torch.randn(head.dim, generator=generator), scale)
    model = burnish.Model(head, burnish.Categorical())
    x = torch.randn(1, NUM_FEATURES, generator=generator)
    rows = []
    for method, num_rounds in {"mc-outputs": options.rounds // 5, "mc": 5}.items():
        seconds = []

        def call(method: str = method) -> None:
            settings = {"method": method, "num_samples": NUM_SAMPLES, "generator": generator, "keep_samples": False}
            burnish.predict(model, posterior, x, **settings)

        with measured(CPU) as report:  # with what the first call alone allocates
            for _ in range(3):
                call()
        for _ in range(num_rounds):
            began = time.perf_counter()
            call()
            seconds.append(1e3 * (time.perf_counter() - began))
        low, middle, high = statistics.quantiles(seconds, n=4)
        times = {"ms": middle, "ms_low": low, "ms_high": high, "peak_mib": report["peak_mib"], "rounds": num_rounds}
        rows.append({"method": method, "classes": NUM_CLASSES, "features": NUM_FEATURES, **times})
    return rows


def main() -> None:
    """Runs all parts, prints their tables and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=400, help="of the LeNet and of latencies")
    parser.add_argument("--wide-rounds", type=int, default=30, help="of the WideResNet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "serving.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {"targets": TARGETS, "one_input": one_input(options), "overhead": overhead(options), "export": export(options)}
    for rows in (*(results[name] for name in ("overhead", "one_input")), *list(results["export"].values())[1:3]):
        print_table(rows)
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    config |= {"batch": BATCH, "num_samples": NUM_SAMPLES, "num_train": NUM_TRAIN, "num_validation": NUM_VALIDATION}
    write_record(options.out, config, results, CPU)


if __name__ == "__main__":
    main()
