"""The product: a network whose last layer is a set of posterior samples, to call, to save and to load."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least
from burnish.batches import split_rows, to_device
from burnish.drift import Drift
from burnish.encoding import decode, encode
from burnish.exporting import NamedOutputs, export_network
from burnish.features import Backbone, call_network, place_of
from burnish.heads import Model
from burnish.held_out import HeldOut, Score
from burnish.input_form import InputForm
from burnish.ladder import Rung
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.posteriors import KINDS as POSTERIOR_KINDS
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior, WeightedSamples, check_weights
from burnish.prediction import Prediction
from burnish.predictive import predict_at
from burnish.storage import Fingerprint, check_fingerprint, fingerprint, read_file, write_file
from burnish.target import PriorCandidate, PriorTuning
from burnish.verdict import Verdict

__all__ = ["BayesianNetwork", "Refinement", "load"]


@dataclass(frozen=True, eq=False)
class Refinement:
    """All that is known about a last layer after refinement; what a saved file holds, without the training data."""

    head: str
    """Name of the layer in the network."""
    model: Model
    samples: Tensor
    """(S, d): the draws of the posterior that predictions are averaged over."""
    posterior: Gaussian | FlowPosterior | SamplePosterior
    prior: Gaussian
    verdict: Verdict
    rungs: tuple[Rung, ...]
    """Every posterior that was tried, with its verdict and its seconds; the last one is this one."""
    tuning: PriorTuning
    """How the prior and the data to fit on were chosen."""
    temperature: float | None
    """What temperature scaling divides the outputs by, from the held-out data."""
    seconds: dict[str, float]
    """What each stage took."""
    fingerprint: Fingerprint
    """Of the network without its last layer."""
    weights: Tensor | None = None
    """(S,): how much each sample counts; None where all count alike."""
    inputs: InputForm | None = None
    """Shape and dtype of an input point, where it was a tensor or a dictionary of tensors; not in older files."""

    def __post_init__(self) -> None:
        """Refuses parts that do not belong together, as only a damaged file has them."""
        expected = {"model": Model, "prior": Gaussian, "verdict": Verdict, "tuning": PriorTuning, "fingerprint": Fingerprint}
        for name, kind in expected.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"`{name}` must be a {kind.__name__}, got {type(getattr(self, name)).__name__}.")
        if not isinstance(self.posterior, Gaussian | FlowPosterior | SamplePosterior) or not isinstance(self.head, str):
            raise TypeError("`posterior` must be a posterior and `head` a name.")
        if not self.rungs or not all(isinstance(rung, Rung) for rung in self.rungs):
            raise TypeError(f"`rungs` must hold at least one Rung, got {self.rungs!r}.")
        dim = self.model.head.dim
        if self.samples.ndim != 2 or len(self.samples) == 0 or self.samples.shape[1] != dim:
            raise ValueError(f"`samples` must have shape (S, {dim}) for this head, got {tuple(self.samples.shape)}.")
        if self.samples.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"`samples` must be float32 or float64, got {self.samples.dtype}. Pass them as they were drawn.")
        if self.weights is not None:
            check_weights(self.weights, self.samples)
        if not isinstance(self.inputs, InputForm | None):
            raise TypeError(f"`inputs` must be an InputForm or None, got {type(self.inputs).__name__}.")
        if self.posterior.dim != dim or self.prior.dim != dim:
            raise ValueError(
                f"`posterior` and `prior` must have {dim} dimensions, got {self.posterior.dim} and {self.prior.dim}."
            )


_KINDS = (
    *(Refinement, Model, Categorical, Bernoulli, GaussianNoise, *POSTERIOR_KINDS),
    *(Verdict, Drift, HeldOut, Score, Rung, PriorTuning, PriorCandidate, Fingerprint, InputForm),
)
_LATER_FIELDS = {"weights": None, "inputs": None}  # of Refinement: files from before them have none


class BayesianNetwork(nn.Module):
    """A network with a posterior in place of its last layer, as `refine` and `load` make it.

    `bnn(x)` stands in for `network(x)`: it returns the log of the predictive probabilities, whose softmax they are; for a
    binary network with one output the logit of the predictive probability; for regression the predictive mean.
    Predictions are one pass of the backbone and one matrix product with samples drawn beforehand: the same input always
    gives the same output, and the module can be exported.

    The backbone is the user's network, shared and not copied: `.to(...)` moves or casts both. It runs in eval mode whatever
    `.train()` says. In half precision, cast or by `torch.autocast`, it is the backbone that runs so: samples stay what they
    were, and their outputs and averages are float32.
    """

    rows: Tensor
    biases: Tensor | None
    weights: Tensor | None

    def __init__(self, backbone: Backbone, refinement: Refinement) -> None:
        super().__init__()
        self.backbone = backbone
        self.refinement = refinement
        home, _ = place_of(backbone, refinement.samples.device)
        rows, biases = refinement.model.linear_head.to_rows(refinement.samples.to(home))
        self.register_buffer("rows", rows)  # as the product needs them: to copy them at every call would take longer
        self.register_buffer("biases", biases)
        self.register_buffer("weights", None if refinement.weights is None else refinement.weights.to(home))

    @property
    def samples(self) -> Tensor:
        """(S, d): the draws of the posterior that predictions are averaged over."""
        return self.model.linear_head.from_rows(self.rows, self.biases)

    @property
    def _independent(self) -> bool:
        """Whether samples were drawn one by one: those of a Gaussian or a flow come in antithetic pairs."""
        return isinstance(self.posterior, SamplePosterior) and self.weights is None

    @property
    def posterior(self) -> Gaussian | FlowPosterior | SamplePosterior:
        """The distribution over the last layer's parameters, where it was fitted or loaded; `.to` does not move it."""
        return self.refinement.posterior

    @property
    def prior(self) -> Gaussian:
        """The prior that was chosen, or given."""
        return self.refinement.prior

    @property
    def verdict(self) -> Verdict:
        """Whether to trust it, and why."""
        return self.refinement.verdict

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Every posterior that was tried, with its verdict and its seconds; the last one was taken."""
        return self.refinement.rungs

    @property
    def tuning(self) -> PriorTuning:
        """How prior and data were chosen."""
        return self.refinement.tuning

    @property
    def seconds(self) -> dict[str, float]:
        """What each stage of the refinement took."""
        return dict(self.refinement.seconds)

    @property
    def model(self) -> Model:
        """Head and likelihood."""
        return self.refinement.model

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Log-probabilities (N, C), one logit (N, 1) or means (N, C), for inputs as the network takes them.

        The first argument has a name for the sake of `torch.export`, which describes shapes by it.
        """
        features = self.backbone(**kwargs) if x is None else self.backbone(x, *args, **kwargs)
        if features.ndim != 2:
            raise ValueError(f"`x` must be a batch, with one row per point, got features of shape {tuple(features.shape)}.")
        return self._average(features)

    def _average(self, features: Tensor) -> Tensor:
        """Over the samples, in their precision."""
        kind = self.rows.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._average(features)
        outputs = self.model.linear_head.of_rows(self.rows, self.biases, features.to(self.rows.dtype))
        return self.model.likelihood.average(outputs, self.weights)

    @torch.no_grad()
    def predict(self, x: Any, *, batch_size: int = 512, keep_samples: bool = True) -> Prediction:
        """Probabilities, or means, with their uncertainty.

        Args:
            x: a tensor, an array, or a dictionary of them, as the network takes them, on any device.
            batch_size: points that go through the network at once.
            keep_samples: whether the result holds every sample's own prediction, (S, N, K).
        """
        check_at_least("batch_size", batch_size, 1)
        known = isinstance(x, Tensor | Mapping | list | tuple) or hasattr(x, "__array__")
        if not known or getattr(x, "ndim", 1) == 0:
            raise TypeError(f"`x` must be a tensor, an array or a dictionary of them, got {x!r}. Pass one row per point.")
        home, dtype = place_of(self.backbone, self.rows.device)
        try:
            parts = [call_network(self.backbone, to_device(piece, home, dtype)) for piece in split_rows(x, batch_size)]
        except Exception as error:  # whatever the user's forward raises
            raise ValueError(
                f"`x` must be inputs that the network takes, but it fails with {type(error).__name__}: {error}. "
                "Pass them as in training: shape, type and form."
            ) from error
        if not parts:
            raise ValueError("`x` must hold at least one point, got none. Pass one row per point.")
        features = torch.cat(parts).to(self.rows)
        if features.ndim != 2 or features.shape[1] != self.model.linear_head.num_features:
            raise ValueError(
                f"`x` must be a batch of inputs with one row per point, got one that has features of shape "
                f"{tuple(features.shape)}. Add the dimension of the batch: `x.unsqueeze(0)`."
            )
        with torch.autocast(self.rows.device.type, enabled=False):
            options: Any = {"independent": self._independent, "keep_samples": keep_samples}
            return predict_at(self.model, self.samples, features, weights=self.weights, **options)

    def with_samples(self, samples: WeightedSamples) -> "BayesianNetwork":
        """A Bayesian network around the same backbone that predicts with these samples, such as `select_samples` chooses.

        Posterior, prior and verdict remain those of the refinement.
        """
        if not isinstance(samples, WeightedSamples):
            raise TypeError(
                f"`samples` must be WeightedSamples, got {type(samples).__name__}. Pass `select_samples(...).posterior`, or "
                "`WeightedSamples(samples, weights)`."
            )
        if samples.dim != self.model.head.dim:
            raise ValueError(
                f"`samples` must have the {self.model.head.dim} dimensions of the last layer, got {samples.dim}. "
                "Pass samples of this network's posterior."
            )
        refinement = replace(self.refinement, samples=samples.samples, weights=samples.weights)
        return BayesianNetwork(self.backbone, refinement)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Moves and casts, but never the samples below float32: rounded, they would be other samples."""
        own = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in own.items():
            after = self._buffers[name]
            if after is not None and after.is_floating_point() and after.element_size() < 4:
                self._buffers[name] = before.to(after.device, torch.float32)
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets only the module's own flag: the shared network keeps its mode, and predictions are in eval mode always."""
        self.training = mode
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes samples, posterior, prior, verdict and a fingerprint of the backbone to a safetensors file, at once or not.

        The network's own weights and the training data are not in it.
        """
        tree, tensors = encode(replace(self.refinement, fingerprint=self._current_fingerprint()), _KINDS)
        write_file(path, {"refinement": tree}, tensors)

    def export(self, path: str | os.PathLike[str], example: Any = None, *, format: str = "onnx") -> None:
        """Writes the network with its samples as one graph: a file that needs neither burnish nor the network's code.

        It takes batches of any size, under the names of the network's own arguments, draws nothing, and returns `log_probs`
        (N, C), `entropy` (N,) and `mutual_information` (N,), of one logit with two columns; for regression `mean`,
        `epistemic_variance` and `variance`. All dimensions but that of the batch are those of the example: texts, for
        instance, must have its length.

        Args:
            path: a file in an existing folder; one that exists is replaced.
            example: a batch of inputs, as the network takes them; of the form that `refine` has seen when not given.
            format: "onnx", or "torch" for a program that `torch.export.load` reads (.pt2).
        """
        if example is None:
            if self.refinement.inputs is None:
                raise ValueError(
                    "`example` must be given, because the form of the inputs is not known: the file is older, or they were "
                    "neither a tensor nor a dictionary of tensors. Pass a batch of inputs."
                )
            example = self.refinement.inputs.example(place_of(self.backbone)[1])
        graph = NamedOutputs(self.backbone, self.model, self.samples, self.weights, self._independent)
        export_network(path, graph, example, format)

    def _current_fingerprint(self) -> Fingerprint:
        """Of the backbone as it is: in another precision perhaps, but not with other weights."""
        before, now = self.refinement.fingerprint, fingerprint(self.backbone)
        if before.shapes == now.shapes and before.values != now.values:
            raise ValueError(
                "`network` must have the weights that this posterior was made for, but they have changed since. "
                "Refine it again, and save that."
            )
        return now

    def extra_repr(self) -> str:
        """One line: how many samples of what."""
        head = self.model.linear_head
        count = len(self.rows) // head.num_outputs
        return f"{count} samples of {head.num_outputs} x {head.num_features} weights, {self.model.likelihood}"


def load(path: str | os.PathLike[str], network: nn.Module) -> BayesianNetwork:
    """The Bayesian network that was saved, around the network it was made for.

    Args:
        path: a file that `BayesianNetwork.save` wrote.
        network: the trained network, with the weights it had then; another one is refused.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"`network` must be a torch.nn.Module, got {type(network).__name__}. Pass the trained module.")
    header, tensors = read_file(path)
    tree = header.get("refinement")
    if isinstance(tree, dict) and isinstance(tree.get("fields"), dict):
        tree = {**tree, "fields": {**_LATER_FIELDS, **tree["fields"]}}
    refinement = decode(tree, tensors, _KINDS)
    if not isinstance(refinement, Refinement):
        raise ValueError(f"`path` {os.fspath(path)} must hold a refinement, got {type(refinement).__name__}. Save it again.")
    layer = dict(network.named_modules(remove_duplicate=False)).get(refinement.head)
    head = refinement.model.linear_head
    if not isinstance(layer, nn.Linear) or (layer.in_features, layer.out_features) != (head.num_features, head.num_outputs):
        raise ValueError(
            f"`network` must have a linear layer {refinement.head!r} from {head.num_features} to {head.num_outputs}, got "
            f"{layer if layer is not None else 'no such layer'}. Pass the network that this posterior was made for."
        )
    backbone = Backbone.cut(network, refinement.head)
    check_fingerprint(refinement.fingerprint, backbone)
    return BayesianNetwork(backbone, refinement)
