"""Sizes of the study of all layers, and what its parts and posteriors are called."""

from dataclasses import dataclass

from burnish._checks import check_at_least, check_positive

__all__ = [
    "BASES",
    "FINISHED",
    "HMC",
    "NETWORK",
    "RECENTRED",
    "REFINED",
    "TEMPERATURE",
    "Settings",
    "base_name",
    "flow_name",
    "kinds",
]

BASES = {"paper": "paper", "own": "paper, target's prior"}
"""Parts of the paper's protocol by the prior of their base, and what their posteriors are called."""

NETWORK, TEMPERATURE, RECENTRED, HMC = "network", "temperature scaling", "recentred network", "HMC"
REFINED, FINISHED = "refined, Kronecker, recentred", "refined, Kronecker, then HMC"

_COMMON = ("num_points", "precision", "num_epochs", "batch_size", "few", "num_sets", "many", "num_elbo_draws", "tiny")
_OWN = {
    "flows": ("max_steps", "finish_warmup", "finish_draws"),
    "gaussians": ("max_steps", "num_directions", "snapshots", "snapshot_every"),
    "hmc": ("num_chains", "hmc_seconds", "num_warmup", "min_draws", "max_draws", "start_steps", "num_followed"),
}


@dataclass(frozen=True)
class Settings:
    """Sizes of the study."""

    num_points: int = 60_000
    """Of the training set, the first ones, in the likelihood of the target; networks are trained on all."""
    precision: float = 30.0
    """Of the target's prior, which is the paper's and that of its training."""
    num_epochs: int = 100
    batch_size: int = 128
    """Of training."""
    few: int = 20
    """Draws behind a prediction."""
    num_sets: int = 5
    """Of few draws, that their NLL is averaged over."""
    many: int = 200
    num_elbo_draws: int = 64
    max_steps: int = 2000
    """Of refinements and variational fits."""
    num_directions: int = 20
    """Of a refined subspace, and of Gaussians of low rank."""
    snapshots: int = 20
    """Of SGD's path, which give directions."""
    snapshot_every: int = 469
    """Steps from one to the next: an epoch."""
    lengths: tuple[int, ...] = (1, 5, 10, 30)
    """Of the paper's flows; the longest ones are what gaps are measured from."""
    num_chains: int = 8
    hmc_seconds: float | None = 1255.0
    """Of HMC, after which it ends wherever it is; None for no such end."""
    num_warmup: int = 150
    min_draws: int = 10
    max_draws: int = 2000
    """Of each chain of HMC."""
    start_steps: int = 500
    """Of the variational Gaussian in whose coordinates HMC runs."""
    num_followed: int = 500
    """Test points whose predictions are followed along the chains."""
    finish_warmup: int = 30
    finish_draws: int = 4
    """Transitions by which draws of a refined posterior are moved, after those of the warm-up."""
    tiny: bool = False
    """Whether a tiny network stands in for the paper's."""

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 1:
            raise ValueError(f"`lengths` must rise and be at least 1, got {self.lengths}. Pass (1, 5), say.")
        for name in ("num_points", "few", "num_sets", "many", "max_steps", "num_directions", "start_steps", "num_followed"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("snapshots", self.snapshots, 3, "Two directions are the fewest that they can span.")
        check_at_least("num_elbo_draws", self.num_elbo_draws, 2, "One has no standard error.")
        check_positive("precision", self.precision)
        if self.hmc_seconds is not None:
            check_positive("hmc_seconds", self.hmc_seconds, "Pass None for no limit.")

    @classmethod
    def small(cls) -> "Settings":
        """For trying the study out on made images."""
        return cls(
            num_points=300,
            precision=1.0,
            num_epochs=100,
            batch_size=16,
            few=8,
            num_sets=2,
            many=32,
            num_elbo_draws=8,
            max_steps=40,
            num_directions=4,
            snapshots=5,
            snapshot_every=5,
            lengths=(1, 5),
            num_chains=4,
            hmc_seconds=None,  # draws would depend on the machine's speed
            num_warmup=30,
            max_draws=24,
            start_steps=60,
            num_followed=50,
            tiny=True,
        )

    def of_part(self, kind: str) -> dict[str, object]:
        """The sizes that a part of this kind is made with: others may change and leave it as it is."""
        return {name: getattr(self, name) for name in (*_COMMON, *_OWN.get(kind, ()))}


def kinds(settings: Settings) -> tuple[str, ...]:
    """Of parts, of which every network has one each."""
    return ("flows", "gaussians", "hmc", *(f"{base}-{length}" for base in BASES for length in settings.lengths))


def base_name(base: str) -> str:
    """What the paper's Laplace posterior is called."""
    return f"{BASES[base]}: Laplace"


def flow_name(base: str, length: int) -> str:
    """What its refinement is called."""
    return f"{BASES[base]}: {length} radial"
