"""Sizes of the studies of last layers: the paper's, those that a CPU can do, and those to try things out with."""

from dataclasses import dataclass
from typing import Any

from burnish.studies.data import TEXTS

__all__ = ["ImageSettings"]

# of HMC, where a draw costs ten times as much as on ten classes, or has no GPU: as many draws of each chain as elsewhere
_FEWER_CHAINS: dict[str, Any] = {"num_chains": 120, "num_superchains": 12, "spacing": 10}
_LARGE_LAYERS = ("cifar-100",)


@dataclass(frozen=True)
class ImageSettings:
    """Sizes of the image studies."""

    num_draws: int = 600
    """Of each posterior: the paper's."""
    num_blocks: int = 1
    """Of so many draws, that scores are averaged over: where points or networks are few, the draws of one leave noise."""
    few: int = 20
    """Draws behind a prediction."""
    num_chains: int = 300
    """Of HMC, which keeps twice as many draws as other posteriors have."""
    num_superchains: int = 20
    spacing: int = 25
    """Draws of a chain from one that is kept to the next, which make those that are kept as good as independent."""
    max_seconds: float | None = None
    """Of HMC."""
    lengths: tuple[int, ...] = (1, 5, 10, 30)
    """Of the paper's flows."""
    flow_epochs: int = 20
    precisions: tuple[float, ...] = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 510.0, 1e3, 2e3, 4e3, 8e3)
    num_splits: int = 2000
    """Random halves of HMC's chains, for the range of its MMD."""
    num_epochs: int | None = None
    """Of training, where not those of the paper."""
    batch_size: int | None = None
    """Of training with other epochs than the paper's, where not the paper's."""
    num_train: int | None = None
    """Images that networks are trained on and layers fitted to, drawn by chance, where not all there are."""
    structure: str | None = None
    """Of Gaussians at the mode; full on a GPU and `fit_laplace`'s choice elsewhere when not given."""
    tiny: bool = False
    """Whether a tiny network stands in for the wide one, on made images."""

    def __post_init__(self) -> None:
        if self.num_chains < 1 or 2 * self.num_draws % self.num_chains:
            raise ValueError(
                f"`num_chains` must divide twice the {self.num_draws} draws, of which each chain leaves as many, "
                f"got {self.num_chains}. Pass a divisor of {2 * self.num_draws}."
            )

    @classmethod
    def small(cls) -> "ImageSettings":
        """For trying the studies out on made images."""
        return cls(
            num_draws=32,
            num_blocks=2,
            few=8,
            num_chains=64,
            num_superchains=4,
            spacing=4,
            lengths=(1, 5),
            flow_epochs=3,
            precisions=(0.1, 1.0, 10.0, 100.0, 1000.0),
            num_splits=200,
            num_epochs=12,
            batch_size=16,
            tiny=True,
        )

    @classmethod
    def usual(cls, dataset: str, protocol: str) -> "ImageSettings":
        """Of studies of a set of images or texts, unless others are asked for."""
        if dataset in TEXTS:
            return cls.text(protocol)
        if dataset not in _LARGE_LAYERS:
            return cls()
        return cls(num_blocks=10 if protocol == "ours" else 1, **_FEWER_CHAINS)

    @classmethod
    def text(cls, protocol: str) -> "ImageSettings":
        """For texts, whose sets and layers are small enough for a CPU; the paper has flows of five layers alone.

        The paper's protocol has one block of draws, as the paper has. With as few test points as some sets have that is
        mostly noise, so in ours there are more.
        """
        num_blocks = 20 if protocol == "ours" else 1
        return cls(num_blocks=num_blocks, **_FEWER_CHAINS, lengths=(5,), structure="full")

    @classmethod
    def short(cls) -> "ImageSettings":
        """For real images on a CPU: fewer of them, fewer epochs, and fewer chains of HMC; all else as in full studies.

        Kept draws of a chain are closer to each other; ranges are of halves of whole chains, so they allow for that.
        """
        return cls(
            num_chains=40,
            num_superchains=10,
            spacing=2,
            num_epochs=20,
            batch_size=64,
            num_train=10_000,
            structure="full",
        )
