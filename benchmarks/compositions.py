"""Which layers a flow should have by default: ELBO and seconds of compositions, from two dimensions to 850.

python benchmarks/compositions.py --data DIR
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from burnish import (
    Bijection,
    DiagonalScale,
    Gaussian,
    Planar,
    Radial,
    Rotation,
    Shift,
    SinhArcsinh,
    Target,
    diagnostics,
    fit_flow,
    fit_laplace,
    make_generator,
)
from fashion_mnist import load_last_layer
from records import RESULTS, print_table, write_record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from two_dimensions import toy_target


def compositions(base: Gaussian) -> dict[str, Callable[[torch.Generator], Sequence[Bijection]]]:
    """The candidates, each from the identity."""
    like = base.mean
    shift, scale, skew = Shift.identity(like), DiagonalScale.identity(like), SinhArcsinh.identity(like)
    rotation = Rotation.cosine(like)
    return {
        "shift": lambda _: (shift,),
        "scale, shift": lambda _: (scale, shift),
        "sinh-arcsinh, shift": lambda _: (skew, shift),
        "sinh-arcsinh, scale, shift": lambda _: (skew, scale, shift),
        "sinh-arcsinh twice, rotated between, shift": lambda _: (skew, rotation, skew, rotation.transposed(), shift),
        "radial, sinh-arcsinh, shift": lambda g: (Radial.identity(like, generator=g), skew, shift),
        "planar, sinh-arcsinh, shift": lambda g: (Planar.identity(like, generator=g), skew, shift),
        "5 radial": lambda g: tuple(Radial.identity(like, generator=g) for _ in range(5)),
        "5 planar": lambda g: tuple(Planar.identity(like, generator=g) for _ in range(5)),
    }


def main() -> None:
    """Runs the benchmark, prints its tables and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with Fashion-MNIST; BURNISH_DATA, or a download, when not given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of the LeNet, trained once and cached")
    parser.add_argument("--out", type=Path, default=RESULTS / "compositions.json")
    options = parser.parse_args()
    device = torch.device("cpu")
    layer = load_last_layer(options.data, device, num_epochs=options.epochs)
    few = layer.train.subset(torch.randperm(len(layer.train), generator=make_generator(0))[:600])
    narrow = few.inputs[:100, few.inputs.std(0).argsort(descending=True)[:4]]
    targets = {
        "2 dimensions, 50 points": toy_target(1),
        "50 dimensions, 100 points, precision 0.1": Target.last_layer(
            narrow, few.targets[:100], prior_precision=0.1, num_outputs=10
        ),
        "850 dimensions, 600 points, precision 5": Target(layer.model, few, 5.0),
        "850 dimensions, 600 points, precision 0.5": Target(layer.model, few, 0.5),
        "850 dimensions, 60000 points, precision 40": Target(layer.model, layer.train, 40.0),
    }
    results = {}
    for name, target in targets.items():
        base = fit_laplace(target).posterior
        rows = []
        for composition, build in compositions(base).items():
            elbos, seconds = [], []
            for seed in range(options.seeds):
                generator = make_generator(seed)
                fit = fit_flow(target, base, generator=generator, bijections=build(generator))
                elbos.append(diagnostics.elbo(target, fit.posterior, num_samples=2000, generator=make_generator(99)).value)
                seconds.append(fit.seconds)
            row = {"composition": composition, "elbo": statistics.mean(elbos), "spread": statistics.stdev(elbos)}
            rows.append(row | {"seconds": statistics.median(seconds)})
        print(f"\n{name}; Laplace {diagnostics.elbo(target, base, num_samples=500, generator=make_generator(99)).value:.2f}")
        print_table(rows)
        results[name] = rows
    config = {key: value for key, value in vars(options).items() if key not in ("out", "data")}
    write_record(options.out, config, results, device)


if __name__ == "__main__":
    main()
