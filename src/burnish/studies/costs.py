"""What refinement costs: seconds and ELBOs by number of classes as in the paper's figure, and seconds by size.

The paper times a flow of five layers on 4,096 features of 10,000 points of a mixture of Gaussians. Here that protocol, in
the lean form of `fit_paper_flows`, and `fit_flow` refine a given base of the same target in the same run. Each starts from
its own: the paper's from a diagonal Laplace posterior, ours from a Kronecker-factored one, both at the mode.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from burnish._checks import check_at_least, check_memory
from burnish.diagnostics import elbo
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior
from burnish.studies.claims import Claim
from burnish.studies.cost_clocks import clock, time_default, time_paper, time_refinement
from burnish.studies.made_mixture import make_mixture
from burnish.studies.parts import check_device, gather_parts
from burnish.studies.printed import Printed, printed
from burnish.studies.records import finite, origin
from burnish.studies.workspace import VERSION, Workspace
from burnish.target import Target

__all__ = ["Settings", "by_classes", "claims", "printed_seconds", "record_costs", "summary"]

_PRINTED = "refinement_seconds_rtx2080ti_4096_features_10000_points"
_GOAL = 1.0  # seconds of refinement from a given base


@dataclass(frozen=True)
class Settings:
    """Sizes of the problems, and how they are refined and timed."""

    classes: tuple[int, ...] = (10, 100, 1000)
    num_points: int = 10_000
    num_features: int = 4096
    default_classes: tuple[int, ...] = (10,)
    """Classes with which the defaults of `fit_flow` run, too: up to ten times the steps of four times the draws."""
    points: tuple[int, ...] = (1000, 3000, 10_000, 30_000, 100_000)
    """Of the curve by size of the data, with `curve_features` and `curve_classes`."""
    features: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    """Of the curve by number of parameters, with `curve_points` and `curve_classes`."""
    curve_points: int = 10_000
    curve_features: int = 256
    curve_classes: int = 10
    separation: float = 4.0
    prior_precision: float = 40.0
    num_samples: int = 2
    """Of refinement, at each step: it is the cost of a step that is bounded here."""
    num_steps: int = 60
    """As many as a card of today takes in less than a second with a thousand classes: far from all that would pay."""
    repetitions: int = 3
    slow_parameters: int = 1_000_000
    """From which on one repetition must do."""
    num_layers: int = 5
    flow_epochs: int = 20
    epochs_measured: int = 2
    """Of the paper's protocol on the curves, from which all are extrapolated."""
    num_draws: int = 32
    """That ELBOs are estimated from."""

    @classmethod
    def small(cls) -> "Settings":
        """For trying the study out."""
        return cls(
            classes=(3, 6),
            num_points=300,
            num_features=20,
            default_classes=(3,),
            points=(100, 300),
            features=(8, 16),
            curve_points=200,
            curve_features=8,
            curve_classes=3,
            num_steps=30,
            flow_epochs=3,
            epochs_measured=1,
        )


def record_costs(
    *,
    device: str | torch.device = "cpu",
    work: str | os.PathLike[str] = "burnish-work",
    settings: Settings | None = None,
    small: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs what is missing of the study and describes all of it.

    Args:
        device: where everything is timed.
        work: folder that keeps the parts.
        settings: other sizes than the paper's.
        small: small sizes, to try it out.
        seed: of features and fits.
        progress: whether to show a bar on a terminal.
    """
    check_at_least("seed", seed, 0, "Pass 0, say.")
    device = check_device(device)
    if settings is None:
        settings = Settings.small() if small else Settings()
    sizes = finite(asdict(settings))
    lists = ("classes", "default_classes", "points", "features")
    common = {"seed": seed, "device": device.type} | {key: value for key, value in sizes.items() if key not in lists}
    configs: dict[str, dict[str, Any]] = {
        f"classes-{count}": common | {"classes": count, "default": count in settings.default_classes}
        for count in settings.classes
    }
    configs["points"] = common | {"points": sizes["points"]}
    configs["parameters"] = common | {"features": sizes["features"]}
    run = _Run(settings, device, seed)
    parts, failures = gather_parts(Workspace(work), "costs", configs, run.part, device=device, progress=progress)
    record: dict[str, Any] = {"study": "costs", "version": VERSION, "config": {"seed": seed, **sizes}, **origin(device)}
    record["data"] = {"features": "made: one Gaussian for each class, means on a sphere"}
    record["seconds"] = sum(part["seconds_in_all"] for part in parts.values())
    described: dict[str, Any] = finite({**record, "failures": failures, "parts": parts})
    return described


@dataclass(frozen=True)
class _Run:
    """Makes the parts."""

    settings: Settings
    device: torch.device
    seed: int

    def part(self, name: str) -> dict[str, Any]:
        """The part of that name."""
        settings = self.settings
        if name == "points":
            sizes = [(count, settings.curve_features) for count in settings.points]
            return {"rows": [self._size(*size) for size in sizes]}
        if name == "parameters":
            sizes = [(settings.curve_points, count) for count in settings.features]
            return {"rows": [self._size(*size) for size in sizes]}
        return self._classes(int(name.partition("-")[2]))

    def _classes(self, num_classes: int) -> dict[str, Any]:
        """Bases, both refinements of them, and the ELBOs of all, under one target."""
        settings = self.settings
        target = self._target(settings.num_points, settings.num_features, num_classes)
        laplace, base_seconds = self._base(target)
        began = clock(self.device)
        paper_base = fit_laplace(target, laplace.posterior.mean, structure="diagonal", recentre=False).posterior
        paper_base_seconds = clock(self.device) - began
        repetitions = 1 if target.dim >= settings.slow_parameters else settings.repetitions
        own, refined = time_refinement(target, laplace.posterior, settings, repetitions, self.seed)
        paper, flow = time_paper(target, paper_base, settings, settings.flow_epochs, self.seed)
        rows = {
            "base": {"seconds": base_seconds} | self._elbo(target, laplace.posterior),
            "paper base": {"seconds": paper_base_seconds} | self._elbo(target, paper_base),
            "refined": own | self._elbo(target, refined.posterior),
            "paper": paper | self._elbo(target, flow),
        }
        if num_classes in settings.default_classes:
            known, refined = time_default(target, laplace.posterior, self.seed)
            rows["refined, defaults"] = known | self._elbo(target, refined.posterior)
        sizes = {"classes": num_classes, "parameters": target.dim, "converged": laplace.converged}
        return sizes | {"accuracy": self._accuracy(laplace, num_classes), "rows": rows}

    def _size(self, num_points: int, num_features: int) -> dict[str, Any]:
        """Seconds of base and refinements at one point of a curve."""
        settings = self.settings
        target = self._target(num_points, num_features, settings.curve_classes)
        laplace, base_seconds = self._base(target)
        diagonal = fit_laplace(target, laplace.posterior.mean, structure="diagonal", recentre=False).posterior
        own, _ = time_refinement(target, laplace.posterior, settings, settings.repetitions, self.seed)
        paper, _ = time_paper(target, diagonal, settings, settings.epochs_measured, self.seed)
        sizes = {"points": num_points, "features": num_features, "parameters": target.dim}
        return sizes | {"base_seconds": base_seconds, "refined": own, "paper": paper}

    def _target(self, num_points: int, num_features: int, num_classes: int) -> Target:
        settings = self.settings
        # features once more where they are turned, and the draws of an ELBO in float32 and three times in float64
        size = 8 * num_points * num_features + 28 * settings.num_draws * num_classes * (num_features + 1)
        remedy = "pass `Settings` with fewer classes or points."
        check_memory(f"Refining a layer of {num_features} features and {num_classes} classes", size, self.device, remedy)
        data = make_mixture(
            num_points,
            num_features,
            num_classes,
            separation=settings.separation,
            generator=make_generator(self.seed, self.device),
        )
        precision = settings.prior_precision
        return Target.last_layer(data.inputs, data.targets, prior_precision=precision, num_outputs=num_classes)

    def _base(self, target: Target) -> tuple[LaplaceFit, float]:
        began = clock(self.device)
        fit = fit_laplace(target, structure="kron")
        return fit, clock(self.device) - began

    def _elbo(self, target: Target, posterior: DensityPosterior) -> dict[str, float]:
        generator = make_generator(self.seed + 1, self.device)
        found = elbo(target, posterior, num_samples=self.settings.num_draws, generator=generator)
        return {"elbo": found.value, "elbo_error": found.standard_error}

    def _accuracy(self, laplace: LaplaceFit, num_classes: int) -> float:
        """Of the mode on new points: the same means, as they are drawn first, and other points around them."""
        settings = self.settings
        more = self._target(2 * settings.num_points, settings.num_features, num_classes)
        inputs, labels = more.data.inputs[settings.num_points :], more.data.targets[settings.num_points :]
        outputs = more.model(laplace.posterior.mean, inputs)
        return float((outputs.argmax(-1) == labels).double().mean())


def summary(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: seconds and ELBOs by number of classes, the paper's protocol as printed, here, and ours."""
    header = [
        "classes",
        "printed: the paper's flow, s",
        "the paper's flow here, s",
        "our base, s",
        "our refinement, s",
        "ELBO: the paper's base",
        "the paper's flow",
        "our base",
        "refined",
        "refined by defaults",
    ]
    rows = []
    for part in by_classes(record):
        found = part["rows"]
        elbos = [_elbo_text(found[name]) for name in ("paper base", "paper", "base", "refined")]
        default = found.get("refined, defaults")
        elbos.append("" if default is None else f"{_elbo_text(default)}, {_seconds_text(default['seconds'])} s")
        seconds = [_seconds_text(found[name]["seconds"]) for name in ("paper", "base", "refined")]
        known = printed_seconds(record, part["classes"])
        rows.append([f"{part['classes']:,}", "" if known is None else f"{known:g}", *seconds, *elbos])
    return header, rows


def printed_seconds(record: Mapping[str, Any], num_classes: int) -> float | None:
    """The paper's, where problem and flow have its sizes."""
    config, own = record["config"], Settings()
    keys = ("num_points", "num_features", "num_layers", "flow_epochs")
    comparable = all(config[key] == getattr(own, key) for key in keys)
    value = printed(_PRINTED, str(num_classes)) if comparable else None
    return value.mean if isinstance(value, Printed) else value if isinstance(value, float) else None


def claims(record: Mapping[str, Any]) -> list[Claim]:
    """What the record shows, on the device it was made on."""
    found = []
    for part in by_classes(record):
        rows, what = part["rows"], f"with {part['classes']:,} classes"
        ours, paper = rows["refined"], rows["paper"]
        base, flow = (_seconds_text(rows[name]["seconds"]) for name in ("base", "paper"))
        times = f"{_seconds_text(ours['seconds'])} s on {record['device']} (base {base} s; the paper's flow {flow} s)"
        statement = f"{what}, refinement of a given base takes at most {_GOAL:g} s"
        found.append(Claim(statement, times, ours["seconds"] <= _GOAL))
        statement = f"{what}, its ELBO is at least that of the paper's protocol"
        texts = f"{_elbo_text(ours)} against {_elbo_text(paper)}"
        found.append(Claim(statement, texts, ours["elbo"] >= paper["elbo"]))
    return found


def by_classes(record: Mapping[str, Any]) -> list[Any]:
    """The parts of the paper's figure, those with few classes first."""
    parts = [part for name, part in record["parts"].items() if name.startswith("classes-")]
    return sorted(parts, key=lambda part: int(part["classes"]))


def _elbo_text(row: Mapping[str, Any]) -> str:
    return f"{row['elbo']:,.0f} ± {row['elbo_error']:,.0f}"


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 10.0 else f"{seconds:.0f}"
