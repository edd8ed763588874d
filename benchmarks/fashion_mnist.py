"""Fashion-MNIST, networks trained on it as in the paper, and the features of a last layer; weights are kept under .cache."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from burnish import Batch, Model, extract_features, split_last_layer
from burnish.studies.architectures import make_network
from burnish.studies.data import load_images
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.training import read_trained, train_networks

CACHE = Path(__file__).resolve().parent.parent / ".cache"
BENCHMARK = BENCHMARKS["fashion-mnist"]


@dataclass(frozen=True)
class LastLayer:
    """A trained network's last layer: model, parameters, and the features of training and test set."""

    model: Model
    theta: Tensor
    train: Batch
    test: Batch


def load_last_layer(folder: str | None, device: torch.device, *, seed: int = 0, num_epochs: int = 100) -> LastLayer:
    """The last layer of a LeNet trained on Fashion-MNIST, whose weights are kept under .cache."""
    sets = {split: read_set(folder, split) for split in ("train", "t10k")}
    network = trained_lenet(sets["train"], device, seed=seed, num_epochs=num_epochs)
    backbone, model, theta = split_last_layer(network, example=sets["train"][0][:8].to(device))
    train, test = (extract_features(backbone, sets[split], device=device) for split in ("train", "t10k"))
    return LastLayer(model, theta.detach(), train, test)


def trained_lenet(
    train: tuple[Tensor, Tensor], device: torch.device, *, seed: int = 0, num_epochs: int = 100
) -> nn.Sequential:
    """A LeNet trained on the training set."""
    plain = CACHE / f"lenet-fashion-mnist-{num_epochs}-epochs-seed-{seed}.safetensors"
    if not plain.exists():
        return train_network(train, device, num_epochs, seed, CACHE).eval()
    network = make_network(BENCHMARK.architecture, BENCHMARK.num_classes, seed)
    network.load_state_dict(load_file(plain))  # from before weights were kept with their recipe
    return network.to(device).eval()


def train_network(
    train: tuple[Tensor, Tensor], device: torch.device, num_epochs: int, seed: int, folder: Path
) -> nn.Sequential:
    """Adam 1e-3, weight decay 5e-4, batches of 128, a cosine to zero: the paper's training, unless the folder has it."""
    recipe = replace(BENCHMARK.recipe, num_epochs=num_epochs)
    folder.mkdir(exist_ok=True)
    place = folder / f"fashion-mnist-{BENCHMARK.architecture}-{num_epochs}-epochs-seed-{seed}.safetensors"
    images, labels = (part.to(device) for part in train)
    pixels = images.mul(255.0).round_().to(torch.uint8)
    make = partial(make_network, BENCHMARK.architecture, BENCHMARK.num_classes)
    if failures := train_networks(make, pixels, labels, recipe, {seed: place}):
        raise SystemExit(f"{place.name}: {failures[seed]}")
    network = make(seed)
    network.load_state_dict(read_trained(place, recipe, seed=seed).states[-1])
    return network.to(device)


def read_set(folder: str | None, split: str) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of one split, "train" or "t10k"."""
    images = load_images("fashion-mnist", "train" if split == "train" else "test", folder)
    assert images.labels is not None
    return images.inputs(), images.labels
