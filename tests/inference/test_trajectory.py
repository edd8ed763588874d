"""One transition: an integrator with the laws of Hamiltonian motion, a step that leaves the target as it is, its tuning."""

import math

import pytest
import torch

from burnish.inference.coordinates import Coordinates
from burnish.inference.trajectory import _OVERSHOOT, Chains, Tuning, _energy, _move, fraction, reasonable_step, transition
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Diagonal


def draw(*shape, seed=3):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


def plain(dim, dtype=torch.float64):
    """Coordinates that are the parameters themselves."""
    return Coordinates(FlowPosterior(Gaussian.standard(torch.zeros(dim, dtype=dtype)), ()), "affine")


class Normal:
    """Independent normals about `mean` with standard deviations `std`."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std
        self.dim = len(mean)

    def log_prob_and_grad(self, theta):
        offset = (theta - self.mean) / self.std
        return -0.5 * offset.double().square().sum(-1), -offset / self.std


class Banana:
    """`x ~ N(0, 1)` and `y | x ~ N(x^2, 1/4)`, which can be drawn exactly."""

    dim = 2

    def log_prob_and_grad(self, theta):
        x, y = theta.unbind(-1)
        rest = 4.0 * (y - x * x)
        return -0.5 * (x * x + 4.0 * (y - x * x) ** 2), torch.stack([2.0 * x * rest - x, -rest], -1)

    @staticmethod
    def sample(num_samples, seed=3):
        x, noise = draw(num_samples, 2, seed=seed).unbind(1)
        return torch.stack([x, x * x + 0.5 * noise], 1)


class Quartic:
    """Flatter in the middle and steeper outside than a normal."""

    dim = 10

    def log_prob_and_grad(self, theta):
        return -0.25 * theta.pow(4).sum(-1), -(theta**3)


class Poisoned:
    """Another density, with something that is not a number for some rows."""

    def __init__(self, density, rows, value=None, grad=None):
        self.density, self.rows, self.value, self.grad = density, rows, value, grad
        self.dim = density.dim

    def log_prob_and_grad(self, theta):
        value, grad = self.density.log_prob_and_grad(theta)
        value, grad = value.clone(), grad.clone()
        if self.value is not None:
            value[self.rows] = self.value
        if self.grad is not None:
            grad[self.rows, 0] = self.grad
        return value, grad


def start(density, z):
    return Chains.at(density, plain(density.dim), z)


@pytest.mark.parametrize(("step", "num_steps"), [(0.1, 1), (0.2, 12), (0.4, 4)])
def test_a_trajectory_can_be_gone_back(step, num_steps):
    density, momentum = Banana(), draw(20, 2, seed=5)
    chains = start(density, 0.5 * draw(20, 2))
    end, there = _move(density, plain(2), chains, momentum, step, num_steps)
    back, here = _move(density, plain(2), end, -there, step, num_steps)
    assert float((end.z - chains.z).abs().min(0).values.max()) > 1e-3
    assert torch.allclose(back.z, chains.z, atol=1e-8)
    assert torch.allclose(-here, momentum, atol=1e-8)


@pytest.mark.parametrize(("step", "num_steps"), [(0.1, 1), (0.2, 8), (0.3, 3)])
def test_volume_is_kept(step, num_steps):
    """The Jacobian by central differences: gradients of the target are not followed by autograd."""
    density, dim, width = Banana(), 2, 1e-5

    def flow(point):
        end, momentum = _move(density, plain(dim), start(density, point[:, :dim]), point[:, dim:], step, num_steps)
        return torch.cat([end.z, momentum], 1)

    for point in 0.7 * draw(5, 2 * dim):
        steps = width * torch.eye(2 * dim, dtype=torch.float64)
        jacobian = (flow(point + steps) - flow(point - steps)) / (2 * width)
        assert float(torch.linalg.det(jacobian).abs()) == pytest.approx(1.0, rel=1e-5)
        assert float((jacobian - torch.eye(2 * dim)).abs().max()) > 0.05


@pytest.mark.parametrize("step", [1e-3, 0.5, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("num_steps", [1, 7])
def test_where_the_coordinates_are_right_no_step_is_too_long(step, num_steps):
    mean, std = draw(6), 10.0 ** torch.linspace(-3, 3, 6, dtype=torch.float64)
    density, coordinates = Normal(mean, std), Coordinates(FlowPosterior(Gaussian(mean, Diagonal(std)), ()), "affine")
    z, momentum = draw(50, 6), draw(50, 6, seed=5)
    chains = Chains.at(density, coordinates, z)
    end, after = _move(density, coordinates, chains, momentum, step, num_steps)
    assert float((_energy(end, after) - _energy(chains, momentum)).abs().max()) < 1e-10
    angle = step * num_steps
    assert torch.allclose(end.z, math.cos(angle) * z + math.sin(angle) * momentum, atol=1e-9)


def test_the_energy_error_is_of_second_order():
    density, momentum = Banana(), draw(200, 2, seed=5)
    chains = start(density, Banana.sample(200))
    errors = []
    for num_steps in (32, 64, 128):
        end, after = _move(density, plain(2), chains, momentum, 1.0 / num_steps, num_steps)
        errors.append(float((_energy(end, after) - _energy(chains, momentum)).abs().mean()))
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.1)


STATISTICS = {
    "x": (lambda x, y: x, 0.0),
    "x^2": (lambda x, y: x**2, 1.0),
    "y": (lambda x, y: y, 1.0),
    "y^2": (lambda x, y: y**2, 3.25),
    "xy": (lambda x, y: x * y, 0.0),
    "x^2 y": (lambda x, y: x**2 * y, 3.0),
    "beyond one": (lambda x, y: (x.abs() > 1.0).double(), 0.31731050786291415),
    "above the parabola": (lambda x, y: (y > x * x).double(), 0.5),
}


@pytest.mark.parametrize(("step", "num_steps"), [(0.35, 3), (0.6, 1), (0.15, 9)])
def test_a_transition_leaves_the_target_as_it_is(step, num_steps):
    density, generator, count = Banana(), make_generator(4), 40_000
    chains = start(density, Banana.sample(count))
    first, rates = chains.z, []
    for _ in range(6):
        done = transition(density, plain(2), chains, step * num_steps, num_steps, generator=generator)
        chains = done.chains
        rates.append(float(done.accept_prob.mean()))
    assert 0.3 < sum(rates) / 6 < 0.97  # or nothing is corrected
    assert float((chains.z == first).all(1).double().mean()) < 0.2
    for name, (statistic, truth) in STATISTICS.items():
        values = statistic(*chains.theta.unbind(1))
        assert abs(float(values.mean()) - truth) < 4.5 * float(values.std()) / math.sqrt(count), name


def test_chains_know_where_they_are(generator):
    """After acceptance or rejection, log density and gradient are those of the place."""
    density = Banana()
    chains = start(density, Banana.sample(200))
    done = transition(density, plain(2), chains, 2.0, 3, generator=generator)
    moved = (done.chains.z != chains.z).any(1)
    assert 0 < int(moved.sum()) < 200
    fresh = start(density, done.chains.z)
    for name, value in vars(fresh).items():
        assert torch.allclose(getattr(done.chains, name), value, atol=1e-12), name
    assert bool(moved[done.accept_prob == 1.0].all())
    assert not bool(moved[done.accept_prob == 0.0].any())


NOT_NUMBERS = [{"value": number} for number in (math.nan, -math.inf, math.inf)]
NOT_NUMBERS += [{"grad": number} for number in (math.nan, math.inf, -math.inf)]


@pytest.mark.parametrize("poison", NOT_NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_no_number_is_rejected_and_the_other_chains_are_spared(poison, dtype):
    clean, coordinates = Normal(torch.zeros(3, dtype=dtype), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)), plain(3, dtype)
    chains = Chains.at(clean, coordinates, draw(10, 3).to(dtype))
    rows = torch.tensor([2, 7])
    others = torch.tensor([row for row in range(10) if row not in (2, 7)])
    done, expected = (
        transition(density, coordinates, chains, 1.0, 2, generator=make_generator(1))
        for density in (Poisoned(clean, rows, **poison), clean)
    )
    for name, value in vars(done.chains).items():
        assert torch.equal(value[others], getattr(expected.chains, name)[others]), name
        assert torch.equal(value[rows], getattr(chains, name)[rows]), name
    assert torch.equal(done.accept_prob[others], expected.accept_prob[others])
    assert done.accept_prob[rows].tolist() == [0.0, 0.0]
    assert done.diverged.nonzero().flatten().tolist() == [2, 7]
    assert bool(torch.isfinite(done.jump).all())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nothing_moves_where_nothing_is_a_number(number, generator):
    clean = Normal(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    chains = start(clean, draw(4, 2))
    done = transition(Poisoned(clean, slice(None), value=number), plain(2), chains, 1.0, 1, generator=generator)
    assert torch.equal(done.chains.z, chains.z)
    assert bool(done.diverged.all())
    assert bool(torch.isfinite(done.jump).all())


def test_only_errors_beyond_all_bounds_are_divergences(generator):
    narrow = Normal(torch.zeros(1, dtype=torch.float64), torch.tensor([1e-3], dtype=torch.float64))
    chains = start(narrow, 1e-3 * draw(50, 1))
    assert bool(transition(narrow, plain(1), chains, 1.0, 1, generator=generator).diverged.all())
    done = transition(narrow, plain(1), chains, 1e-3, 1, generator=generator)
    assert not bool(done.diverged.any())
    assert float(done.accept_prob.mean()) > 0.7


def test_the_criterion_of_the_length_and_its_slope(generator):
    """By its definition, with means over the chains, where every proposal is accepted; the slope by differences."""
    z = draw(400, 3)
    standard = Normal(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    chains, values = start(standard, z), []
    for length in (0.999, 1.0, 1.001):
        done = transition(standard, plain(3), chains, length, 1, generator=make_generator(2))
        distances = [(part - part.mean(0)).square().sum(1) for part in (z, done.chains.z)]
        assert float(done.jump[0]) == pytest.approx(float(0.25 * (distances[1] - distances[0]).square().mean()), rel=1e-9)
        values.append(done.jump)
    slope = float(values[2][0] - values[0][0]) / (math.log(1.001) - math.log(0.999))
    assert float(values[1][1]) == pytest.approx(slope, rel=0.02)


def test_a_first_step_is_found(generator):
    for std in (1.0, 1e-2, 1e-5):
        density = Normal(torch.zeros(4, dtype=torch.float64), torch.full((4,), std, dtype=torch.float64))
        chains = start(density, std * draw(32, 4))
        step, count = reasonable_step(density, plain(4), chains, generator=generator)
        assert step == 0.5 ** (count - 1)
        assert 0.2 * std < step <= max(1.0, 2.0 * std)
        assert float(transition(density, plain(4), chains, step, 1, generator=generator).accept_prob.mean()) > 0.4


@pytest.mark.parametrize("wanted", [0.6, 0.8, 0.95])
def test_tuning_reaches_the_acceptance_it_is_asked_for(wanted, generator):
    density, rates = Quartic(), []
    chains = start(density, 0.5 * draw(64, 10))
    tuning = Tuning(wanted, reasonable_step(density, plain(10), chains, generator=generator)[0])
    for index in range(310):
        done = transition(density, plain(10), chains, *tuning.plan(fraction(index), 64), generator=generator)
        chains, rate = done.chains, float(done.accept_prob.mean())
        if index < 250:
            tuning.update(rate, *done.jump.tolist())
        else:
            rates.append(rate)
        if index == 249:
            tuning.settle()
            tuning.length /= _OVERSHOOT  # as it was when the step size was found
    assert sum(rates) / 60 == pytest.approx(wanted, abs=0.06)


def test_tuning_stays_within_its_bounds():
    tuning = Tuning(0.8, 1.0)
    for _ in range(300):
        tuning.update(1.0, 1.0, 100.0)
    tuning.settle()
    assert 1.5 < tuning.step_size <= 2.0  # a half turn would resonate
    assert tuning.length <= 12.0
    for _ in range(300):
        tuning.update(0.0, 1.0, -100.0)
    assert 0.0 < tuning.step_size < 1e-10
    assert tuning.length == pytest.approx(0.2)


def test_nothing_is_learnt_of_the_length_from_what_is_no_number():
    tuning = Tuning(0.8, 0.5)
    length = tuning.length
    tuning.update(0.0, math.nan, math.inf)
    assert tuning.length == length
    assert tuning.step_size < 0.5


def test_plans_vary_the_length_and_keep_to_their_limit():
    tuning = Tuning(0.8, 0.4, length=2.0)
    lengths = [tuning.plan(fraction(index), 100)[0] for index in range(255)]
    assert sum(lengths) / 255 == pytest.approx(2.0)
    assert min(lengths) < 1.6
    assert max(lengths) > 2.4
    for length, num_steps in (tuning.plan(part, 100) for part in (0.01, 0.5, 0.99)):
        assert num_steps == math.ceil(length / 0.4)
    assert tuning.plan(0.5, 3) == (pytest.approx(1.2), 3)
    assert Tuning(0.8, 2.0, length=0.2).plan(0.5, 5) == (pytest.approx(0.2), 1)


def test_fractions_are_evenly_spread():
    values = [fraction(index) for index in range(1023)]
    assert values[:7] == [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
    assert all(0.0 < value < 1.0 for value in values)
    assert sorted(values) == [number / 1024 for number in range(1, 1024)]
    for count in range(1, 1024, 37):
        ordered = sorted(values[:count])
        gap = max(abs(value - (rank + 0.5) / count) for rank, value in enumerate(ordered))
        assert gap < (1.0 + math.log2(count + 1)) / count
