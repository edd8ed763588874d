"""Settings and small cases shared by all tests."""

import pytest
import torch
from hypothesis import settings

from burnish.heads import LinearHead
from burnish.noise import make_generator
from burnish.scales import Dense, Diagonal, Kronecker

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


_SCALES = {
    "diagonal": lambda: Diagonal(0.5 + _draw(6).abs()),
    "dense": _dense,
    "kronecker": lambda: _kronecker(True),
    "kronecker without bias": lambda: _kronecker(False),
}


@pytest.fixture(params=_SCALES, scope="session")
def scale(request):
    """Every kind of scale, in six dimensions and float64."""
    return _SCALES[request.param]()
