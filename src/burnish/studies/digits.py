"""The demo: a small network trained on scikit-learn's digits, and what each method makes of its uncertainty.

Every posterior in the comparison approximates the same target, the one that `burnish.refine` chooses for itself.
"""

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from burnish import metrics
from burnish._checks import check_at_least
from burnish.batches import Batch
from burnish.bayesian_network import BayesianNetwork
from burnish.diagnostics import Elbo, elbo, importance, log_ratios
from burnish.features import extract_features, split_last_layer
from burnish.heads import Model
from burnish.inference.flow import FlowFit, fit_flow, paper_protocol
from burnish.inference.folds import combine
from burnish.inference.laplace import fit_laplace
from burnish.inference.temperature import fit_temperature
from burnish.ladder import Rung
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior, FlowPosterior, Posterior
from burnish.prediction import Prediction
from burnish.predictive import predict
from burnish.progress import Stages
from burnish.refine import refine
from burnish.studies.imagery import SIZES, Split, load_split, outside_images
from burnish.target import Target
from burnish.verdict import Verdict

__all__ = ["DigitsDemo", "Row", "Settings", "Split", "load_split", "run_demo", "train_network"]

NUM_FEATURES = 32
NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 100, 64, 5e-3  # far past 100 % on the training set, as networks often are trained
NUM_PAPER_LAYERS = 5
NETWORK, TEMPERATURE, BURNISH, RECENTRED = "the network", "temperature scaling", "burnish", "recentred Laplace"
AT_NETWORK = "Laplace at the network's weights"
PAPER = f"the paper's flow ({NUM_PAPER_LAYERS} radial layers)"


@dataclass(frozen=True)
class Settings:
    """Sizes of the demo: its parts, images of noise and of letters, samples behind a prediction, draws for marginals."""

    sizes: tuple[int, int, int] = SIZES
    num_epochs: int = NUM_EPOCHS
    num_outside: int = 500
    num_samples: int = 20
    num_draws: int = 2000


@dataclass(frozen=True, eq=False)
class Row:
    """One method: what it predicts, how good that is, and the posterior behind it where there is one."""

    name: str
    probs: Tensor  # (N, 10) on the test digits
    outside: Mapping[str, Tensor]  # (M, 10) for each set of images that are no upright digits
    accuracy: float
    nll: float
    ece: float
    brier: float
    seconds: float | None = None
    """Of fitting, from cached features and a chosen target; for burnish of the whole call of `refine`."""
    elbo: Elbo | None = None  # on the target that all posteriors share
    draws: Tensor | None = None  # (S, d) of the posterior
    trace: Tensor | None = None  # (steps,): the ELBO estimated while its flow was trained


@dataclass(frozen=True, eq=False)
class DigitsDemo:
    """All that the report shows, and `record()` for what is worth keeping."""

    rows: tuple[Row, ...]
    test: Batch
    theta: Tensor  # the last layer of the network
    prediction: Prediction  # of burnish on the test digits
    log_evidence: float  # of the shared target, by importance sampling from a refined posterior
    nll_difference: metrics.Interval
    """Test NLL of burnish less that of temperature scaling, with its bootstrap interval over test digits."""
    verdict: Verdict
    rungs: tuple[Rung, ...]
    """The posteriors that were tried."""
    seed: int
    settings: Settings
    target: Mapping[str, Any]
    """What the shared target is: prior mean, precision, data and number of points it is fitted to, parameters."""
    train_accuracy: float  # of the network
    seconds: Mapping[str, float]  # of training the network, of refining it, of each stage of that, of all else
    versions: Mapping[str, str]

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def record(self) -> dict[str, Any]:
        """Plain JSON types only, no arrays; numbers that JSON has not are the strings "inf", "-inf" and "nan"."""
        names = ("seed", "settings", "target", "train_accuracy", "log_evidence", "nll_difference", "seconds", "versions")
        columns = ("name", "accuracy", "nll", "ece", "brier", "elbo", "seconds")
        rows = [
            {
                **{name: getattr(row, name) for name in columns},
                "outside": {key: self.outside_scores(row, key) for key in row.outside},
            }
            for row in self.rows
        ]
        record = {name: getattr(self, name) for name in names} | {"rows": rows}
        record["verdict"] = {**asdict(self.verdict), "text": str(self.verdict)}
        record["rungs"] = self.rungs
        return {key: _plain(value) for key, value in record.items()}

    def outside_scores(self, row: Row, name: str) -> dict[str, float]:
        """The mean largest probability on a set outside, and the AUROC of telling test digits from it by that."""
        inside, outside = row.probs.max(1).values, row.outside[name].max(1).values
        return {"mean_confidence": float(outside.double().mean()), "auroc": metrics.auroc(inside, outside)}


@dataclass(frozen=True, eq=False)
class _Bench:
    """What every method of the comparison is given."""

    model: Model
    theta: Tensor
    target: Target
    validation: Batch
    features: Mapping[str, Tensor]  # of the test digits and of the images outside
    labels: Tensor
    train_accuracy: float
    settings: Settings
    seed: int

    def row(self, name: str, probs: Callable[[str], Tensor], posterior: Posterior | None = None, **rest: Any) -> Row:
        """A row from what a method predicts for each set of images, and from its posterior where it has one."""
        inside, *outside = ((key, probs(key)) for key in self.features)
        scores = {key: getattr(metrics, key)(inside[1], self.labels) for key in ("accuracy", "nll", "ece", "brier")}
        if posterior is not None:
            generator = make_generator(self.seed + 1)
            rest["draws"] = posterior.sample(self.settings.num_draws, generator=generator)
            if isinstance(posterior, DensityPosterior):
                rest["elbo"] = elbo(self.target, posterior, generator=generator)
        return Row(name, inside[1], dict(outside), **scores, **rest)

    def point_row(self, name: str, theta: Tensor, **rest: Any) -> Row:
        """The row of one set of weights."""
        return self.row(name, lambda key: self.model(theta, self.features[key]).softmax(-1), **rest)

    def posterior_row(self, name: str, posterior: DensityPosterior, **rest: Any) -> Row:
        """The row of a posterior; the samples are the same for every set of images."""

        def probs(key: str) -> Tensor:
            options: dict[str, Any] = {"num_samples": self.settings.num_samples, "generator": make_generator(self.seed + 2)}
            return predict(self.model, posterior, self.features[key], **options).probs

        return self.row(name, probs, posterior, **rest)


def train_network(seed: int = 0, *, split: Split | None = None, num_epochs: int = NUM_EPOCHS) -> nn.Module:
    """A small convolutional network, trained by Adam without any regularisation. The global random state is untouched.

    Args:
        seed: of weights and batches.
        split: whose training part is used; `load_split(seed)` when not given.
        num_epochs: passes over it.
    """
    check_at_least("num_epochs", num_epochs, 1)
    train = (load_split(seed) if split is None else split).train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(16 * 4 * 4, NUM_FEATURES), nn.ReLU(), nn.Linear(NUM_FEATURES, 10)),
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        for _ in range(num_epochs):
            for index in torch.split(torch.randperm(len(train)), BATCH_SIZE):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(network(train.inputs[index]), train.targets[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return network.eval()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors here are small: more threads gain nothing, and on busy cores they wait for each other, for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def run_demo(seed: int = 0, *, settings: Settings | None = None, progress: bool = True) -> DigitsDemo:
    """Trains the network, refines it, and compares the result with what else one could do.

    Args:
        seed: of split, training, images and every method.
        settings: other sizes than those of the demo.
        progress: whether to say on a terminal what is going on.
    """
    settings = Settings() if settings is None else settings
    check_at_least("settings.num_draws", settings.num_draws, 25, "The log evidence is estimated from as many.")
    with Stages("demo", show=progress) as stages:
        with stages.stage("training the network"):
            split = load_split(seed, sizes=settings.sizes)
            network = train_network(seed, split=split, num_epochs=settings.num_epochs)
        with stages.stage("refining it"):
            train, validation = ((part.inputs, part.targets) for part in (split.train, split.validation))
            bnn = refine(network, train, validation=validation, num_samples=settings.num_samples, seed=seed, progress=False)
        with stages.stage("comparing it"):
            images = {"test digits": split.test.inputs, **outside_images(split.test, settings.num_outside, seed=seed)}
            bench = _set_up(bnn, network, split, images, settings, seed)
            rivals, flow = _rivals(bench)
            trace = flow.trace[:, 0] if isinstance(bnn.posterior, FlowPosterior) else None
            own: dict[str, Any] = {"posterior": bnn.posterior, "seconds": stages.seconds["refining it"], "trace": trace}
            rows = (*rivals, bench.row(BURNISH, lambda key: bnn.predict(images[key]).probs, **own))
    return DigitsDemo(
        rows=rows,
        test=split.test,
        theta=bench.theta,
        prediction=bnn.predict(split.test.inputs),
        log_evidence=_log_evidence(bench, flow.posterior),
        nll_difference=_nll_difference(rows, split.test.targets, seed),
        verdict=bnn.verdict,
        rungs=bnn.rungs,
        seed=seed,
        settings=settings,
        target=_describe(bench.target),
        train_accuracy=bench.train_accuracy,
        seconds={**stages.seconds, **{f"refining it: {name}": value for name, value in bnn.seconds.items()}},
        versions={"python": platform.python_version(), **{name: version(name) for name in ("torch", "burnish")}},
    )


@torch.no_grad()
def _set_up(
    bnn: BayesianNetwork, network: nn.Module, split: Split, images: Mapping[str, Tensor], settings: Settings, seed: int
) -> _Bench:
    """The network split and its features cached; the target is the one that `refine` has chosen."""
    backbone, model, theta = split_last_layer(network, example=split.train.inputs[:8])
    train, validation = (extract_features(backbone, (part.inputs, part.targets)) for part in (split.train, split.validation))
    tuning = bnn.tuning
    target = Target(model, combine(tuning.data, train, validation), tuning.precision, bnn.prior.mean, tuning)
    features = {name: backbone(x) for name, x in images.items()}
    train_accuracy = metrics.accuracy(model(theta, train.inputs).softmax(-1), train.targets)
    return _Bench(model, theta, target, validation, features, split.test.targets, train_accuracy, settings, seed)


def _rivals(bench: _Bench) -> tuple[list[Row], FlowFit]:
    """Every row but burnish's own, and a refinement by burnish's flow, of which `refine` keeps at most the end."""
    began = time.perf_counter()
    temperature = fit_temperature(bench.model, bench.theta, bench.validation).temperature
    seconds = time.perf_counter() - began
    at_network = fit_laplace(bench.target, bench.theta, recentre=False)
    recentred = fit_laplace(bench.target, bench.theta)
    base, generator = at_network.posterior, make_generator(bench.seed)
    protocol = paper_protocol(bench.target, base, NUM_PAPER_LAYERS, generator=generator)
    flow = fit_flow(bench.target, base, generator=generator, **protocol)
    own = fit_flow(bench.target, recentred.posterior, generator=make_generator(bench.seed))
    rows = [
        bench.point_row(NETWORK, bench.theta),
        bench.point_row(TEMPERATURE, bench.theta / temperature, seconds=seconds),
        bench.posterior_row(AT_NETWORK, base, seconds=at_network.seconds),
        bench.posterior_row(RECENTRED, recentred.posterior, seconds=recentred.seconds),
        bench.posterior_row(PAPER, flow.posterior, seconds=at_network.seconds + flow.seconds, trace=flow.trace[:, 0]),
    ]
    return rows, own


@torch.no_grad()
def _log_evidence(bench: _Bench, posterior: DensityPosterior) -> float:
    generator = make_generator(bench.seed + 3)
    return importance(log_ratios(bench.target, posterior, bench.settings.num_draws, generator=generator)).log_evidence


def _nll_difference(rows: tuple[Row, ...], labels: Tensor, seed: int) -> metrics.Interval:
    """Paired over test digits: both methods see the same ones."""
    losses = {row.name: -row.probs.gather(1, labels.unsqueeze(1)).double().log() for row in rows}
    own, rival = losses[BURNISH], losses[TEMPERATURE]
    return metrics.bootstrap(lambda a, b: float((a - b).mean()), own, rival, generator=make_generator(seed + 4))


def _describe(target: Target) -> dict[str, Any]:
    assert target.tuning is not None  # `refine` says how it chose
    chosen = {name: getattr(target.tuning, name) for name in ("prior_mean", "precision", "data")}
    return chosen | {"parameters": target.dim, "fitted_to": len(target.data)}


def _plain(value: Any) -> Any:
    """The value in types that JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
