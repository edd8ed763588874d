"""The paper's networks for images, with weights drawn from a seed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from burnish._checks import check_at_least, check_choice

__all__ = ["ARCHITECTURES", "lenet", "make_network", "mlp", "tiny", "wide_resnet"]


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
        self.shortcut = None if same else nn.Conv2d(num_inputs, num_outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ready = self.ready(x)
        passed = x if self.shortcut is None else self.shortcut(ready)
        outputs: Tensor = passed + self.body(ready)
        return outputs


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


ARCHITECTURES: dict[str, Callable[[int], nn.Sequential]] = {
    "lenet": lenet,
    "wide-resnet": wide_resnet,
    "mlp": mlp,
    "tiny": tiny,
}


def make_network(name: str, num_classes: int, seed: int) -> nn.Sequential:
    """A network of `ARCHITECTURES` on the CPU, the same for a seed everywhere; the global random state is untouched."""
    check_choice("name", name, ARCHITECTURES)
    check_at_least("num_classes", num_classes, 1)
    check_at_least("seed", seed, 0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed GPUs too
        return ARCHITECTURES[name](num_classes)
