"""Sampling: what it promises of its randomness and its result, what survives an interruption, and what it refuses."""

import math
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import classification, regression, regression_truth

from burnish.bijections import SinhArcsinh
from burnish.convergence import ess_bulk, ess_tail, nested_rhat, rhat
from burnish.encoding import encode
from burnish.errors import FitError
from burnish.inference.coordinates import Coordinates
from burnish.inference.hmc import _MIN_WARMUP, _MIN_WARMUP_ADAPTING, _WARMUP, fit_hmc
from burnish.inference.laplace import fit_laplace
from burnish.inference.sampler import _relocate, begin, leave_flow
from burnish.linear_bijections import Affine, Rotation, Shift
from burnish.noise import make_generator
from burnish.posteriors import KINDS, FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Diagonal
from burnish.storage import write_file

SMALL = {"num_chains": 4, "num_warmup": _MIN_WARMUP, "max_draws": 20}
ADAPTING = {"num_warmup": _MIN_WARMUP_ADAPTING}


class Normal:
    dim = 3

    def log_prob_and_grad(self, theta):
        return -0.5 * theta.double().square().sum(-1), -theta


class Wells:
    """Two normals ten apart, each with standard deviation one half."""

    dim = 1

    def log_prob_and_grad(self, theta):
        offset = theta - 5.0 * theta.sign()
        return -2.0 * offset.square().sum(-1), -4.0 * offset


class Funnel:
    """Neal's: the width of three parameters is the exponential of a fourth."""

    dim = 4

    def log_prob_and_grad(self, theta):
        v, x = theta[:, :1], theta[:, 1:]
        square = (x.square() * (-v).exp()).sum(1, keepdim=True)
        value = -0.5 * (v.square() / 9.0 + square + 3.0 * v)
        return value.squeeze(1), torch.cat([0.5 * square - 1.5 - v / 9.0, -x * (-v).exp()], 1)


class Broken:
    """A normal with something else than numbers from its center on."""

    dim = 2

    def __init__(self, value=None, grad=None):
        self.value, self.grad = value, grad

    def log_prob_and_grad(self, theta):
        value, grad = -0.5 * theta.square().sum(-1), -theta.clone()
        right = theta[:, 0] >= 0.0
        if self.value is not None:
            value = torch.where(right, self.value, value)
        if self.grad is not None:
            grad[right, 1] = self.grad
        return value, grad


class Island:
    """A normal, and far away a single point with a density."""

    dim = 1
    point = 50.0

    def log_prob_and_grad(self, theta):
        inside = (theta.abs() < 10.0) | (theta == self.point)
        grad = torch.where(theta == self.point, 0.0, -theta)  # by that of a normal, a quarter turn would lead home
        return torch.where(inside, -0.5 * theta.square(), -math.inf).sum(-1), grad


class Itself:
    """A posterior as the target."""

    def __init__(self, posterior):
        self.posterior, self.dim = posterior, posterior.dim

    def log_prob_and_grad(self, theta):
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            value = self.posterior.log_prob(leaf)
            return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


class Interrupted(Exception):
    pass


class Counted:
    """Another target, which counts how often it is evaluated, and is interrupted at the given time."""

    def __init__(self, target, limit=math.inf):
        self.target, self.limit, self.calls, self.dim = target, limit, 0, target.dim

    def log_prob_and_grad(self, theta):
        if self.calls >= self.limit:
            raise Interrupted
        self.calls += 1
        return self.target.log_prob_and_grad(theta)


def standard(dim=3, dtype=torch.float64):
    return Gaussian.standard(torch.zeros(dim, dtype=dtype))


def skewed_flow(dim=3):
    like = torch.zeros(dim, dtype=torch.float64)
    return FlowPosterior.whitened(
        standard(dim), [SinhArcsinh(like + 0.7, like + 0.3), Rotation.cosine(like), Shift(like + 1)]
    )


def absurd_flow():
    """Its fourth powers of normals are as wide as a normal, but turn one into a box with walls as of an eighth power."""
    like = torch.zeros(3, dtype=torch.float64)
    layers = (SinhArcsinh(like, like + 10.0), SinhArcsinh(like, like + 10.0), Affine(like, Diagonal(like + 0.03)))
    return FlowPosterior(standard(), layers)


def sample(target, start=None, seed=1, **options):
    return fit_hmc(target, start, generator=make_generator(seed), **(SMALL | options))


def assert_same_run(first, second):
    assert torch.equal(first.posterior.samples, second.posterior.samples)
    numbers = [{**vars(fit), "posterior": fit.posterior.num_chains} for fit in (first, second)]
    for fields in numbers:
        fields.pop("seconds"), fields.pop("warmup_seconds")
    assert numbers[0] == numbers[1]


# Randomness


STARTS = {
    "gaussian": standard,
    "flow": skewed_flow,
    "samples": lambda: SamplePosterior(standard().sample(50, generator=make_generator(3))),
    "rows": lambda: standard().sample(4, generator=make_generator(3)),
    "a vector": lambda: torch.zeros(3, dtype=torch.float64),
    "single precision": lambda: standard(dtype=torch.float32),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("name", STARTS)
def test_the_same_generator_gives_the_same_bits(name, untouched_rng):
    start = STARTS[name]()
    options = {} if hasattr(start, "sample") else ADAPTING
    first, second = (sample(Normal(), start, max_draws=10, **options) for _ in range(2))
    other = sample(Normal(), start, seed=2, max_draws=10, **options)
    assert_same_run(first, second)
    assert first.posterior.draws.shape == (4, 10, 3)
    assert first.posterior.samples.dtype == (torch.float32 if name == "single precision" else torch.float64)
    assert not torch.equal(first.posterior.samples, other.posterior.samples)


def test_what_is_given_is_not_changed():
    rows = standard().sample(4, generator=make_generator(3)).requires_grad_()
    before = rows.detach().clone()
    fit = sample(Normal(), rows, **ADAPTING)
    assert torch.equal(rows, before)
    assert rows.grad is None
    assert not fit.posterior.samples.requires_grad
    flow = skewed_flow()
    tensors = encode(flow, KINDS)[1]
    sample(Normal(), flow)
    assert all(torch.equal(value, tensors[name]) for name, value in encode(flow, KINDS)[1].items())


def test_no_gradients_around_it_change_nothing():
    plain = sample(Normal(), skewed_flow())
    with torch.no_grad():
        assert_same_run(sample(Normal(), skewed_flow()), plain)


def test_nothing_is_printed_where_nobody_is_watching(capfd):
    sample(Normal(), standard(), progress=True)
    assert capfd.readouterr() == ("", "")


# The result


def test_a_run_that_converges_says_so():
    fit = fit_hmc(Normal(), standard(), generator=make_generator(0), num_chains=16)
    draws = fit.posterior.draws
    assert fit.converged
    assert fit.stopped_by == "rule"
    assert fit.nested_rhat is None
    assert fit.rhat == float(rhat(draws).max()) < 1.01
    assert fit.ess_bulk == float(ess_bulk(draws).min()) >= 400.0
    assert fit.ess_tail == float(ess_tail(draws).min())
    assert 0.8 < fit.accept_rate <= 1.0
    assert fit.divergences == 0
    assert fit.coordinates == "affine"
    assert fit.num_warmup == _WARMUP
    assert 0.0 < fit.warmup_seconds < fit.seconds
    assert draws.shape[1] in (50, 75, 112, 168, 252, 378)
    assert torch.equal(fit.posterior.samples.view(16, -1, 3), draws)


def test_the_exact_posterior_of_a_regression_without_any_start():
    target = regression(num_features=2, num_outputs=1)
    mean, covariance, _ = regression_truth(target)
    fit = fit_hmc(target, generator=make_generator(0), num_warmup=100, num_chains=32)
    assert fit.converged
    assert fit.coordinates == "adapted"
    spread = covariance.diagonal().sqrt()
    assert float(((fit.posterior.samples.mean(0) - mean) / spread).abs().max()) < 4.5 / math.sqrt(fit.ess_bulk)
    error = (fit.posterior.samples.T.cov() - covariance) / torch.outer(spread, spread)
    assert float(error.abs().max()) < 6.0 * math.sqrt(2 / fit.ess_bulk)


def test_all_evaluations_are_counted():
    for start, options in ((standard(), {}), (torch.full((3,), 30.0, dtype=torch.float64), ADAPTING)):
        target = Counted(Normal())
        assert sample(target, start, **options).num_gradients == target.calls


def test_budgets_end_a_run_that_does_not_converge():
    fit = sample(Normal(), standard())
    assert (fit.converged, fit.stopped_by, fit.posterior.draws.shape) == (False, "max_draws", (4, 20, 3))
    assert fit.rhat == float(rhat(fit.posterior.draws).max())
    fit = sample(Normal(), standard(), max_draws=10**6, min_draws=4, min_ess=1e9, max_seconds=1.0)
    assert (fit.converged, fit.stopped_by) == (False, "max_seconds")
    assert 4 <= fit.posterior.draws.shape[1] < 10**6
    assert 1.0 < fit.seconds < 3.0
    assert fit.rhat == float(rhat(fit.posterior.draws).max())


def test_what_the_rule_asks_for_is_what_it_gets():
    loose = sample(Normal(), standard(), min_draws=4, max_draws=500, max_rhat=1.2, min_ess=10)
    strict = sample(Normal(), standard(), min_draws=4, max_draws=500, max_rhat=1.03, min_ess=1000)
    assert loose.converged
    assert strict.converged
    assert strict.rhat < 1.03
    assert strict.ess_bulk >= 1000
    assert loose.posterior.draws.shape[1] < strict.posterior.draws.shape[1]
    assert torch.equal(strict.posterior.draws[:, : loose.posterior.draws.shape[1]], loose.posterior.draws)


def test_chains_in_different_modes_are_told_and_kept_apart():
    places = torch.tensor([[-5.0], [5.0], [5.0], [-5.0]], dtype=torch.float64)
    fit = sample(Wells(), places, **ADAPTING)
    assert not fit.converged
    assert fit.rhat > 1.5
    for chain, place in zip(fit.posterior.draws, places, strict=True):
        assert bool((chain.sign() == place.sign()).all())


def test_many_short_chains_are_judged_by_nested_rhat():
    fit = fit_hmc(Normal(), standard(), generator=make_generator(0), num_chains=512)
    assert fit.stopped_by == "rule"
    assert fit.nested_rhat == float(nested_rhat(fit.posterior.draws, 16).max()) < 1.01
    assert fit.rhat == float(rhat(fit.posterior.draws).max())
    assert 5 <= fit.posterior.draws.shape[1] < 20


def test_superchains_that_never_meet_do_not_converge():
    places = torch.tensor([[-5.0], [5.0], [5.0], [-5.0]], dtype=torch.float64)
    fit = sample(Wells(), places, **ADAPTING, num_chains=32, num_superchains=4, min_ess=10)
    assert not fit.converged
    assert fit.nested_rhat > 1.5
    for group, place in zip(fit.posterior.draws.view(4, 8, 20), places, strict=True):
        assert bool((group.sign() == place.sign()).all())


def test_superchains_start_together(monkeypatch):
    start = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    seen = []
    monkeypatch.setattr(Normal, "log_prob_and_grad", lambda self, theta: (seen.append(theta), 0 / 0))
    with pytest.raises(ZeroDivisionError):
        sample(Normal(), start, **ADAPTING, num_chains=32, num_superchains=4)
    assert torch.equal(seen[0], start.repeat_interleave(8, 0))


def test_chains_from_one_place_are_no_superchains():
    """Of two modes they know one, and superchains that all start there agree about it."""
    start = torch.tensor([5.0], dtype=torch.float64)
    fit = sample(Wells(), start, **ADAPTING, num_chains=256)
    assert fit.nested_rhat is None
    message = complaint(ValueError, Wells(), start, num_chains=256, num_superchains=16)
    assert_clear(message, "num_superchains", "16 with one for each chain or for all of them")


def test_chains_that_start_apart_are_no_superchains():
    """Two modes far apart: each chain stays in its own, and groups of chains look alike."""

    class Modes:
        dim = 1

        def log_prob_and_grad(self, theta):
            near = theta - 50.0 * theta.sign()
            return -0.5 * near.square().sum(1), -near

    start = torch.linspace(-1.0, 1.0, 256, dtype=torch.float64).view(256, 1).flip(0)[torch.arange(256) * 77 % 256]
    fit = sample(Modes(), 50.0 * start.sign(), num_chains=256, num_warmup=60, min_draws=10, max_draws=10)
    assert not fit.converged
    assert fit.nested_rhat is None
    message = complaint(ValueError, Modes(), start, num_chains=256, num_superchains=16)
    assert_clear(message, "num_superchains", "16 with one for each chain")


def test_a_density_with_data_of_its_own():
    class Owner(Normal):
        data = torch.zeros(3)

    assert sample(Owner(), **ADAPTING).posterior.dim == Owner().dim


def test_starts_of_our_own_are_in_the_precision_of_the_data():
    target = classification(num_features=2, num_outputs=2, dtype=torch.float32)
    assert sample(target, **ADAPTING).posterior.samples.dtype == torch.float32


def test_a_flow_is_used_as_coordinates():
    """Where it is right, steps are as long as they may be; in those of a Gaussian, the same target takes many more."""
    flow = skewed_flow()
    gaussian = SamplePosterior(flow.sample(500, generator=make_generator(0)))
    bent, straight = (sample(Itself(flow), start, num_chains=32) for start in (flow, gaussian))
    assert bent.coordinates == "flow"
    assert straight.coordinates == "affine"
    assert bent.step_size > 2 * straight.step_size
    assert bent.num_gradients < straight.num_gradients / 2
    assert bent.accept_rate > 0.8


def test_a_flow_in_which_trajectories_diverge_is_left():
    fit = sample(Normal(), absurd_flow(), num_chains=16, min_draws=20, max_draws=500)
    assert re.fullmatch("(affine|adapted) after flow", fit.coordinates)
    assert fit.converged
    assert fit.divergences == 0
    samples = fit.posterior.samples
    assert float(samples.mean(0).abs().max()) < 4.5 / math.sqrt(fit.ess_bulk)
    assert float((samples.var(0) - 1.0).abs().max()) < 6.0 * math.sqrt(2 / fit.ess_bulk)


def test_a_trajectory_is_not_longer_than_its_steps_allow(monkeypatch):
    free = sample(Funnel(), standard(4), num_chains=16)
    assert free.length > 1.01 * free.step_size
    monkeypatch.setattr("burnish.inference.hmc.MAX_STEPS", 1)
    assert sample(Funnel(), standard(4), num_chains=16).length == free.step_size


def test_divergences_are_in_the_result():
    fit = sample(Funnel(), standard(4), num_chains=16, max_draws=60)
    assert fit.divergences > 0
    assert not fit.converged
    assert fit.coordinates == "affine"


def test_no_chain_goes_where_there_is_no_density():
    for target in (Broken(value=-math.inf), Broken(value=math.nan), Broken(value=math.inf), Broken(grad=math.nan)):
        start = -standard(2).sample(8, generator=make_generator(0)).abs()
        fit = sample(target, start, num_chains=8, **ADAPTING)
        assert bool((fit.posterior.samples[:, 0] < 0.0).all())
        assert fit.divergences > 0


def test_a_chain_that_cannot_move_is_sent_to_the_others():
    start = torch.tensor([[-1.0], [0.0], [Island.point], [1.0]], dtype=torch.float64)
    fit = sample(Island(), start, **ADAPTING)
    assert bool((fit.posterior.samples.abs() < 10.0).all())
    assert fit.relocated == 1
    assert sample(Island(), start[:2].repeat(2, 1), **ADAPTING).relocated == 0


def test_a_chain_is_sent_to_its_own_superchain_where_one_moves():
    state = begin(Normal(), Coordinates.of(standard(), generator=make_generator(0)), torch.zeros(8, 3).double(), 30)
    state.chains_together = 4
    state.chains = replace(state.chains, z=torch.arange(8.0).view(8, 1).expand(8, 3).double())
    stuck = torch.tensor([True, True, False, True, True, True, True, True])
    _relocate(state, stuck, make_generator(0))
    assert state.chains.z[:, 0].tolist() == [2.0] * 8
    assert state.relocated == 7
    state.chains = replace(state.chains, z=torch.arange(8.0).view(8, 1).expand(8, 3).double())
    _relocate(state, torch.tensor([True, False, False, False, False, False, False, True]), make_generator(0))
    assert state.chains.z[0, 0] in (1.0, 2.0, 3.0)
    assert state.chains.z[7, 0] in (4.0, 5.0, 6.0)


# Interruptions


def trained():
    return classification(num_points=30, num_features=2, num_outputs=2, prior_precision=0.5)


def flow_of(target):
    laplace, like = fit_laplace(target).posterior, torch.zeros(target.dim, dtype=torch.float64)
    return FlowPosterior.whitened(laplace, [SinhArcsinh(like + 0.2, like - 0.1), Rotation.cosine(like)])


RUNS = {
    "gaussian": lambda: (trained(), fit_laplace(trained()).posterior, {}),
    "kronecker": lambda: (trained(), fit_laplace(trained(), structure="kron").posterior, {}),
    "flow": lambda: (trained(), flow_of(trained()), {}),
    "own coordinates": lambda: (trained(), None, ADAPTING),
    "superchains": lambda: (Normal(), standard(), {"num_chains": 8, "num_superchains": 2}),
    "a flow that is left": lambda: (Normal(), absurd_flow(), {"num_chains": 16}),
    "single precision": lambda: (Normal(), standard(dtype=torch.float32), {}),
}


@pytest.fixture
def eager(monkeypatch, tmp_path):
    """Options with which every transition is written; without waiting for the disk."""
    monkeypatch.setattr("burnish.inference.hmc._PATIENCE", 0.0)
    monkeypatch.setattr("burnish.storage.os.fsync", lambda _: None)
    return {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 1e-9}


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_ends_as_if_it_had_not_been(name, eager):
    target, start, options = RUNS[name]()
    options = {"max_draws": 10} | options
    whole = Counted(target)
    expected = sample(whole, start, **options)
    assert expected.coordinates.endswith("after flow") == (name == "a flow that is left")
    for share in (0.2, 0.55, 0.95):
        eager["checkpoint"].unlink(missing_ok=True)
        with pytest.raises(Interrupted):
            sample(Counted(target, int(share * whole.calls)), start, **options, **eager)
        rest = Counted(target)
        assert_same_run(sample(rest, start, **options, **eager), expected)
        assert rest.calls < (1.2 - share) * whole.calls + 20
    assert os.listdir(eager["checkpoint"].parent) == ["run.safetensors"]


def test_a_run_may_be_interrupted_again_and_again(eager):
    """Even where it gets no further than a few transitions each time."""
    target, start, options = RUNS["own coordinates"]()
    options = {"max_draws": 10} | options
    expected, interruptions = sample(target, start, **options), 0
    while True:
        try:
            fit = sample(Counted(target, 45), start, **options, **eager)
            break
        except Interrupted:
            interruptions += 1
    assert interruptions >= 3
    assert_same_run(fit, expected)


def test_the_generator_goes_on_where_it_was(eager):
    whole = make_generator(1)
    fit_hmc(Normal(), standard(), generator=whole, **SMALL)
    with pytest.raises(Interrupted):
        sample(Counted(Normal(), 20), standard(), **eager)
    resumed = make_generator(1)
    fit_hmc(Normal(), standard(), generator=resumed, **SMALL, **eager)
    assert torch.equal(resumed.get_state(), whole.get_state())


@pytest.mark.parametrize("stopped_by", ["rule", "max_draws"])
def test_a_run_that_has_ended_is_read_and_not_gone_on_with(stopped_by, eager):
    options = {"max_draws": 500, "min_draws": 4, "min_ess": 10, "max_rhat": 1.3} if stopped_by == "rule" else {}
    expected = sample(Normal(), standard(), **options, **eager)
    assert expected.stopped_by == stopped_by
    assert_same_run(sample(Counted(Normal(), 60), standard(), **options, **eager), expected)


def test_a_run_can_be_continued_with_more_draws_or_a_stricter_rule(eager):
    long = sample(Normal(), standard(), max_draws=45)
    sample(Normal(), standard(), max_draws=20, **eager)
    assert_same_run(sample(Normal(), standard(), max_draws=45, **eager), long)
    fewer = sample(Counted(Normal(), 60), standard(), max_draws=30, **eager)
    assert fewer.stopped_by == "max_draws"


def test_a_checkpoint_is_not_written_more_often_than_asked(tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr("burnish.inference.hmc.write_checkpoint", lambda *_: times.append(1))
    sample(Normal(), standard(), checkpoint=tmp_path / "run", checkpoint_seconds=1000.0)
    assert len(times) <= 2  # at the end, and perhaps once to see whether it can be written


@pytest.fixture
def stopped(eager):
    """The file of a run that was interrupted, and how to call it again."""
    with pytest.raises(Interrupted):
        sample(Counted(Normal(), 20), standard(), **eager)
    return eager["checkpoint"], lambda target=None, start=None, **options: sample(
        target or Normal(), start or standard(), **eager, **options
    )


def damages(content):
    yield content[: len(content) // 2]
    yield content[:-1]
    yield b""
    for place in (3, 100, len(content) // 2, len(content) - 10):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_a_damaged_checkpoint_is_not_read(stopped):
    path, again = stopped
    for content in damages(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*damaged|damaged.*{re.escape(str(path))}"):
            again()
        assert path.read_bytes() == content


def test_a_file_of_something_else_is_no_checkpoint(stopped):
    path, again = stopped
    tree, tensors = encode(standard(), KINDS)
    for header, content in (({}, {}), ({"posterior": tree}, tensors), ({"hmc": tree}, tensors)):
        write_file(path, header, content)
        with pytest.raises(ValueError, match=r"`checkpoint` must be one of `fit_hmc`, got '.*run\.safetensors'"):
            again()


class Shifted(Normal):
    def log_prob_and_grad(self, theta):
        return super().log_prob_and_grad(theta - 0.01)


class Wider(Normal):
    dim = 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": Shifted()}, r"`checkpoint` must be of this target, got a log density of"),
        ({"target": Wider(), "start": standard(4)}, r"`checkpoint` must be of a target with 4 parameters, got 3"),
        ({"num_chains": 6}, r"`checkpoint` must be of a run with `num_chains` 6, got 4"),
        ({"num_superchains": 2}, r"`checkpoint` must be of a run with `num_superchains` 2, got None"),
        ({"num_warmup": 99}, rf"`checkpoint` must be of a run with `num_warmup` 99, got {_MIN_WARMUP}"),
        ({"target_accept": 0.9}, r"`checkpoint` must be of a run with `target_accept` 0.9, got 0.8"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(stopped, change, message):
    path, again = stopped
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message + r".*Pass the path of another file, or delete '.*run\.safetensors'"):
        again(**change)
    assert path.read_bytes() == before


def test_a_checkpoint_in_another_precision_is_refused(eager):
    options = SMALL | eager
    for dtype in (torch.float64, torch.float32):
        target = classification(num_features=2, num_outputs=2, dtype=dtype)
        if dtype == torch.float64:
            fit_hmc(target, fit_laplace(target).posterior, generator=make_generator(0), **options)
            continue
        with pytest.raises(ValueError, match=r"`checkpoint` must .*got .*delete"):
            fit_hmc(target, fit_laplace(target).posterior, generator=make_generator(0), **options)


@pytest.mark.parametrize("name", ["missing/run", "file/run"])
def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_work(tmp_path, name):
    (tmp_path / "file").touch()
    target = Counted(Normal())
    with pytest.raises(OSError, match=r"must be a file that can be written, got '.*run'.*Create its folder first"):
        sample(target, standard(), checkpoint=tmp_path / name)
    assert target.calls <= 10


# What is refused


def complaint(error, *arguments, **options):
    with pytest.raises(error) as caught:
        fit_hmc(*arguments, **{"generator": make_generator(0), "num_chains": 4, "max_draws": 10} | options)
    return str(caught.value)


def assert_clear(message, name, got):
    """It names the argument, says what came, and what to do."""
    assert re.fullmatch(rf"`{name}` must .*\bgot {got}.*?\. [A-Z`].*\.", message), message


@pytest.mark.parametrize(
    ("options", "name", "got"),
    [
        ({"num_chains": 0}, "num_chains", "0"),
        ({"num_chains": 1}, "num_chains", "1"),
        ({"num_warmup": _MIN_WARMUP - 1}, "num_warmup", _MIN_WARMUP - 1),
        ({"num_warmup": 0}, "num_warmup", "0"),
        ({"max_draws": 0}, "max_draws", "0"),
        ({"max_draws": 3}, "max_draws", "3"),
        ({"max_draws": 20, "min_draws": 30}, "max_draws", "20"),
        ({"min_draws": 3}, "min_draws", "3"),
        ({"num_superchains": 1}, "num_superchains", "1"),
        ({"num_superchains": 3}, "num_superchains", "3"),
        ({"num_superchains": 4}, "num_superchains", "4"),
        ({"target_accept": 0.0}, "target_accept", "0"),
        ({"target_accept": 1.0}, "target_accept", "1.0"),
        ({"target_accept": math.nan}, "target_accept", "nan"),
        ({"max_rhat": 0.9}, "max_rhat", "0.9"),
    ],
)
def test_numbers_that_do_not_fit(options, name, got):
    assert_clear(complaint(ValueError, Normal(), standard(), **options), name, got)


@pytest.mark.parametrize("name", ["max_seconds", "min_ess", "checkpoint_seconds"])
def test_numbers_that_must_be_positive(name):
    assert_clear(complaint(TypeError, Normal(), standard(), **{name: "5"}), name, "str")
    for value in (0, -1.5, math.inf, math.nan):
        message = complaint(ValueError, Normal(), standard(), **{name: value})
        assert_clear(message, name, f"{value:g}")


def test_a_checkpoint_that_is_no_path():
    assert_clear(complaint(TypeError, Normal(), standard(), checkpoint=3), "checkpoint", "int")


@pytest.mark.parametrize("name", ["num_chains", "num_warmup", "max_draws", "min_draws", "num_superchains"])
def test_counts_that_are_no_integers(name):
    for value in (2.5, "many", True):
        assert f"`{name}` must be an integer, got {type(value).__name__}" in complaint(
            TypeError, Normal(), standard(), **{name: value}
        )


def test_a_warm_up_that_has_to_find_coordinates_needs_longer():
    for start in (None, torch.zeros(3, dtype=torch.float64)):
        few = _MIN_WARMUP_ADAPTING - 1
        assert_clear(complaint(ValueError, Normal(), start, num_warmup=few), "num_warmup", few)


def test_too_little_time_is_a_fit_error():
    message = complaint(FitError, Normal(), standard(), max_seconds=1e-6, num_warmup=40)
    assert re.search("`max_seconds` 1e-06 .* 1 transitions, before 40 of warm-up and 10 draws; allow more time", message)


def test_a_run_that_had_too_little_time_can_be_given_more(eager):
    options = eager | {"checkpoint_seconds": 1e9}  # so that only the end is written, beside the beginning
    with pytest.raises(FitError):
        sample(Normal(), standard(), max_seconds=1e-6, **options)
    count = Counted(Normal())
    resumed = sample(count, standard(), **options)
    assert torch.equal(resumed.posterior.samples, sample(Normal(), standard()).posterior.samples)
    assert resumed.seconds > 0.0


def test_too_little_time_after_a_flow_was_left_says_so(monkeypatch):
    def leave(state, *arguments, **options):
        left = leave_flow(state, *arguments, **options)
        time.sleep(0.1 if state.left_flow else 0.0)
        return left

    monkeypatch.setattr("burnish.inference.hmc.leave_flow", leave)
    with pytest.raises(FitError, match="in affine coordinates, those of the flow having been left, before 30 of warm-up"):
        sample(Normal(), absurd_flow(), num_chains=16, min_draws=20, max_seconds=2.0)


@pytest.mark.parametrize("found", [torch.zeros(4), (torch.zeros(4),), (np.zeros(4), np.zeros((4, 3))), None])
def test_what_is_no_value_with_a_gradient(found):
    class Odd(Normal):
        def log_prob_and_grad(self, theta):
            return found

    assert_clear(complaint(TypeError, Odd(), standard()), "target.log_prob_and_grad", type(found).__name__)


@pytest.mark.parametrize("dim", [0, 3.0, lambda: 3, "3"])
def test_what_is_no_number_of_dimensions(dim):
    class Odd(Normal):
        pass

    Odd.dim = dim
    message = complaint((TypeError, ValueError), Odd(), standard())
    assert_clear(message, "target.dim", ".*" if callable(dim) else "0" if dim == 0 else type(dim).__name__)


def test_draws_that_do_not_fit_into_memory_are_refused_before_the_work():
    message = complaint(MemoryError, Normal(), standard(), num_chains=10**12)
    assert "draws of 3 parameters needs" in message
    assert "use fewer chains" in message


@pytest.mark.parametrize("part", [0, 1])
def test_densities_of_another_shape(part):
    """A column of values would be broadcast, silently."""

    class Column(Normal):
        def log_prob_and_grad(self, theta):
            found = list(super().log_prob_and_grad(theta))
            found[part] = found[part].unsqueeze(-1)
            return tuple(found)

    message = complaint(ValueError, Column(), standard())
    got = r"\(4, 1\) and \(4, 3\)" if part == 0 else r"\(4,\) and \(4, 3, 1\)"
    assert re.search(rf"`target.log_prob_and_grad` must give .* \(4,\) and .* \(4, 3\), got {got}\.", message)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["value", "grad"])
@pytest.mark.parametrize("start", [None, standard(2), torch.tensor([[-1.0, 0], [-1, 1], [1, 0], [1, 1]]).double()])
def test_a_density_that_is_not_finite_at_a_start(number, part, start):
    message = complaint(ValueError, Broken(**{part: number}), start)
    assert_clear(message, "target", r".*at chain \d \(\d of 4 chains\)")
    assert "`start`" in message
    if part == "value":
        assert f"got a log density of {number:g} at chain" in message


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_a_posterior_of_another_dimension(dim):
    assert_clear(complaint(ValueError, Normal(), standard(dim)), "start", dim)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 3), (5, 3), (4, 2), (0, 3), (1, 4, 3)])
def test_starts_of_another_shape(shape):
    message = complaint(ValueError, Normal(), torch.zeros(shape, dtype=torch.float64))
    assert re.match(r"`start` must have shape \(3,\) or \(4, 3\), got ", message)
    assert f"got {shape}. Pass one row" in message


@pytest.mark.parametrize("start", ["laplace", standard().mean.numpy(), [0.0, 0.0, 0.0], 3, Normal(), Normal])
def test_what_is_no_posterior(start):
    assert_clear(complaint((TypeError, ValueError), Normal(), start), "start", f".*{type(start).__name__}")


def test_a_fit_is_no_posterior():
    target = regression()
    assert_clear(complaint((TypeError, ValueError), target, fit_laplace(target)), "start", ".*LaplaceFit")


@pytest.mark.parametrize("target", [object(), torch.zeros(3), standard(), "target", lambda theta: theta])
def test_what_is_no_target(target):
    assert_clear(complaint(TypeError, target, standard()), "target", type(target).__name__)


@pytest.mark.parametrize("start", [None, standard(), torch.zeros(3, dtype=torch.float64)])
def test_what_is_no_generator(start):
    assert_clear(complaint(TypeError, Normal(), start, generator=0), "generator", "int")


def test_a_generator_on_another_device():
    start = torch.zeros(3, device="meta")
    assert_clear(complaint(ValueError, Normal(), start), "generator", "one on cpu")


@pytest.mark.parametrize("start", [torch.zeros(6, dtype=torch.float64), standard(6)])
def test_a_start_in_another_precision_than_the_data(start):
    """The argument is called start, not theta, by whoever calls this."""
    target = classification(num_features=2, num_outputs=2, dtype=torch.float32)
    assert_clear(complaint((TypeError, ValueError), target, start), "start", "torch.float64")


def test_starts_that_are_no_floats():
    assert_clear(complaint((TypeError, ValueError), Normal(), torch.zeros(3, dtype=torch.int64)), "start", "torch.int64")


def test_arguments_are_checked_before_any_work():
    target = Counted(Normal())
    for options in ({"num_chains": 0}, {"target_accept": 2.0}, {"max_draws": 2}, {"checkpoint_seconds": 0}):
        complaint(ValueError, target, standard(), **options)
    complaint(ValueError, target, standard(4))
    assert target.calls == 0


def test_samples_that_do_not_vary_give_no_coordinates():
    message = complaint((FitError, ValueError), Normal(), SamplePosterior(torch.zeros(5, 3, dtype=torch.float64)))
    assert "`start`" in message
    assert "chains do not move" not in message  # none has been asked to


def test_results_are_values():
    fit = sample(Normal(), standard())
    with pytest.raises(AttributeError):
        fit.converged = True
    assert replace(fit, converged=True).converged
