"""Fashion-MNIST, a LeNet-5 trained on it as in the paper, and the features of its last layer, all cached."""

import gzip
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from burnish import Batch, Model, extract_features, split_last_layer

CACHE = Path(__file__).resolve().parent.parent / ".cache"
HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}


@dataclass(frozen=True)
class LastLayer:
    """A trained network's last layer: model, parameters, and the features of training and test set."""

    model: Model
    theta: Tensor
    train: Batch
    test: Batch


def load_last_layer(folder: str | None, device: torch.device, *, seed: int = 0, num_epochs: int = 100) -> LastLayer:
    """The last layer of a LeNet trained on Fashion-MNIST; weights and features are kept under .cache."""
    sets = {split: read_set(folder, split) for split in ("train", "t10k")}
    network = trained_lenet(sets["train"], device, seed=seed, num_epochs=num_epochs)
    backbone, model, theta = split_last_layer(network, example=sets["train"][0][:8].to(device))
    train, test = (extract_features(backbone, sets[split], device=device) for split in ("train", "t10k"))
    return LastLayer(model, theta.detach(), train, test)


def trained_lenet(
    train: tuple[Tensor, Tensor], device: torch.device, *, seed: int = 0, num_epochs: int = 100
) -> nn.Sequential:
    """A LeNet trained on the training set; the weights are kept under .cache."""
    return _trained("lenet", lenet(seed), train, device, seed, num_epochs)


def trained_mlp(
    train: tuple[Tensor, Tensor], device: torch.device, *, seed: int = 0, num_epochs: int = 100
) -> nn.Sequential:
    """The network of the paper's all-layer table, 784-50-10, trained likewise."""
    return _trained("mlp", mlp(seed), train, device, seed, num_epochs)


def _trained(
    name: str, network: nn.Sequential, train: tuple[Tensor, Tensor], device: torch.device, seed: int, num_epochs: int
) -> nn.Sequential:
    path = CACHE / f"{name}-fashion-mnist-{num_epochs}-epochs-seed-{seed}.safetensors"
    if path.exists():
        network.load_state_dict(load_file(path))
    else:
        train_network(network, *train, device, num_epochs, seed)
        path.parent.mkdir(exist_ok=True)
        save_file({key: tensor.cpu().contiguous() for key, tensor in network.state_dict().items()}, path)
    return network.to(device).eval()


def lenet(seed: int) -> nn.Sequential:
    """LeNet-5 for 28 x 28 images: 84 features."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )


def mlp(seed: int) -> nn.Sequential:
    """Two layers with 50 ReLU units: 39,760 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 10))


def train_network(
    network: nn.Module, images: Tensor, labels: Tensor, device: torch.device, num_epochs: int, seed: int
) -> None:
    """Adam 1e-3, weight decay 5e-4, batches of 128, a cosine to zero: the paper's training."""
    network.to(device)
    images, labels = images.to(device), labels.to(device)
    generator = torch.Generator().manual_seed(seed)
    num_batches = -(-len(images) // 128)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs * num_batches)
    began = time.perf_counter()
    for epoch in range(num_epochs):
        order = torch.randperm(len(images), generator=generator).to(device)
        for index in order.split(128):
            loss = nn.functional.cross_entropy(network(images[index]), labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} of {num_epochs}, {time.perf_counter() - began:.0f} s", flush=True)


def read_set(folder: str | None, split: str) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of one split, "train" or "t10k"."""
    images = _read_idx(_locate(folder, f"{split}-images-idx3-ubyte.gz"))
    labels = _read_idx(_locate(folder, f"{split}-labels-idx1-ubyte.gz"))
    return torch.from_numpy(images).unsqueeze(1).float() / 255.0, torch.from_numpy(labels).long()


def _locate(folder: str | None, name: str) -> Path:
    folder = folder or os.environ.get("BURNISH_DATA")
    if folder:
        for candidate in (Path(folder) / f"fashion-mnist-{name}", Path(folder) / name):
            if candidate.exists():
                return candidate
        raise FileNotFoundError(f"`--data` {folder} holds no {name}; leave it out, and unset BURNISH_DATA, to download it.")
    import pooch

    try:
        return Path(pooch.retrieve(HOME + name, known_hash=FILES[name], fname=name, path=CACHE / "fashion-mnist"))
    except OSError as error:
        raise SystemExit(
            f"{name} could not be downloaded from {HOME} ({type(error).__name__}). "
            "Pass a folder that holds it with `--data`, or set BURNISH_DATA."
        ) from None


def _read_idx(path: Path) -> np.ndarray:
    data = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()
