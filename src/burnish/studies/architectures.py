"""The paper's networks for images and texts, with weights drawn from a seed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_choice

__all__ = [
    "ARCHITECTURES",
    "NUM_WORDS",
    "gru",
    "lenet",
    "make_network",
    "mlp",
    "tiny",
    "tiny_gru",
    "tiny_mlp",
    "wide_resnet",
]

NUM_WORDS = 10_000
"""Numbers of words that a network for texts knows."""


class _Shortcut(nn.Conv2d):
    """A 1 x 1 convolution around a block; of a kind of its own because variational training is to leave it as it is."""


class _Block(nn.Module):
    """Two convolutions, each after normalisation and ReLU, around which the input goes by, or a 1 x 1 convolution of it."""

    def __init__(self, num_inputs: int, num_outputs: int, stride: int) -> None:
        super().__init__()
        self.ready = nn.Sequential(nn.BatchNorm2d(num_inputs), nn.ReLU())
        self.body = nn.Sequential(
            *(nn.Conv2d(num_inputs, num_outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(num_outputs), nn.ReLU()),
            nn.Conv2d(num_outputs, num_outputs, 3, 1, 1, bias=False),
        )
        same = num_inputs == num_outputs and stride == 1
        self.shortcut = None if same else _Shortcut(num_inputs, num_outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ready = self.ready(x)
        passed = x if self.shortcut is None else self.shortcut(ready)
        outputs: Tensor = passed + self.body(ready)
        return outputs


class _Reader(nn.Module):
    """Words as numbers (N, L), with zeros behind them, to the state (N, H) of a recurrent network at the last word."""

    def __init__(self, num_words: int, width: int, num_features: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width, padding_idx=0)
        self.gru = nn.GRU(width, num_features, num_layers, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        outputs, _ = self.gru(self.embedding(words))
        last = (
            (words != 0).sum(1).sub(1).clamp_min(0)
        )  # a padded sequence, since a packed one would need its lengths on the CPU
        found: Tensor = outputs.gather(1, last.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])).squeeze(1)
        return found


def lenet(num_classes: int) -> nn.Sequential:
    """LeNet-5 for 28 x 28 grey images: 84 features."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)),
    )


def wide_resnet(num_classes: int) -> nn.Sequential:
    """WideResNet-16-4 for colour images: 256 features, 2.7 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    for num_inputs, num_outputs, stride in ((16, 64, 1), (64, 128, 2), (128, 256, 2)):
        layers += [_Block(num_inputs, num_outputs, stride), _Block(num_outputs, num_outputs, 1)]
    layers += [nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, num_classes)]
    for layer in (part for top in layers for part in top.modules() if isinstance(part, nn.Conv2d)):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(*layers)


def mlp(num_classes: int) -> nn.Sequential:
    """784-50-C with ReLU, the network of the paper's all-layer table."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, num_classes))


def tiny(num_classes: int) -> nn.Sequential:
    """Two convolutions for colour images, 16 features: to try things out."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes)),
    )


def tiny_mlp(num_classes: int) -> nn.Sequential:
    """16-8-C with ReLU, on 28 x 28 grey images that are averaged over squares of 7: to try things out."""
    return nn.Sequential(
        *(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, num_classes)),
    )


def gru(num_classes: int) -> nn.Sequential:
    """Two recurrent layers of 128 units over embeddings of 50, the network of the paper's table of texts."""
    return nn.Sequential(_Reader(NUM_WORDS, 50, 128, 2), nn.Linear(128, num_classes))


def tiny_gru(num_classes: int) -> nn.Sequential:
    """One recurrent layer, 16 features: to try things out."""
    return nn.Sequential(_Reader(64, 8, 16, 1), nn.Linear(16, num_classes))


ARCHITECTURES: dict[str, Callable[[int], nn.Sequential]] = {
    "lenet": lenet,
    "wide-resnet": wide_resnet,
    "mlp": mlp,
    "tiny": tiny,
    "tiny-mlp": tiny_mlp,
    "gru": gru,
    "tiny-gru": tiny_gru,
}


def make_network(name: str, num_classes: int, seed: int) -> nn.Sequential:
    """A network of `ARCHITECTURES` on the CPU, the same for a seed everywhere; the global random state is untouched."""
    check_choice("name", name, ARCHITECTURES)
    check_at_least("num_classes", num_classes, 1)
    check_at_least("seed", seed, 0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed GPUs too
        return ARCHITECTURES[name](num_classes)
