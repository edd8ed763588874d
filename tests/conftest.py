"""Settings and small cases shared by all tests."""

import pytest
import torch
from hypothesis import settings

from burnish.heads import LinearHead
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.noise import make_generator
from burnish.scales import Dense, Diagonal, LowRank

torch.set_num_threads(1)  # tensors here are small: more threads gain little, and on busy cores they wait for each other

settings.register_profile("burnish", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("burnish")


@pytest.fixture
def generator():
    return make_generator(0)


@pytest.fixture
def untouched_rng():
    """Fails the test if it moved the global random state."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


def _draw(*shape):
    return torch.randn(shape, generator=make_generator(1), dtype=torch.float64)


def _dense():
    return Dense(0.3 * _draw(6, 6).tril(-1) + torch.diag(0.5 + _draw(6).abs()))


def _kronecker(bias):
    layout = LinearHead(2 if bias else 3, 2, bias)
    left, right = torch.linalg.qr(_draw(2, 2)).Q, torch.linalg.qr(_draw(3, 3)).Q
    return Kronecker(left, right, 0.5 + _draw(2, 3).abs(), layout)


def _low_rank():
    vectors = torch.linalg.qr(_draw(6, 2)).Q
    return LowRank(0.5 + _draw(6).abs(), vectors, torch.tensor([0.6, 1.7], dtype=torch.float64))


def _blocks(order):
    kronecker = Kronecker(
        torch.eye(2, dtype=torch.float64), torch.linalg.qr(_draw(2, 2)).Q, _draw(2, 2).exp(), LinearHead(1, 2)
    )
    blocks = (
        Diagonal(torch.tensor([0.7], dtype=torch.float64)),
        kronecker,
        Diagonal(torch.tensor([2.0], dtype=torch.float64)),
    )
    return BlockDiagonal(blocks, order)


_SCALES = {
    "diagonal": lambda: Diagonal(0.5 + _draw(6).abs()),
    "dense": _dense,
    "kronecker": lambda: _kronecker(True),
    "kronecker without bias": lambda: _kronecker(False),
    "low rank": _low_rank,
    "low rank, stretched": lambda: _low_rank().stretched(0.5 + _draw(6).abs().flip(0)),
    "blocks": lambda: _blocks(None),
    "blocks in another order": lambda: _blocks(torch.tensor([4, 0, 5, 2, 1, 3])),
}


@pytest.fixture(params=_SCALES, scope="session")
def scale(request):
    """Every kind of scale, in six dimensions and float64."""
    return _SCALES[request.param]()
