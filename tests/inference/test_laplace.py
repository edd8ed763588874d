"""Laplace posteriors: exact where they should be, and consistent with their definition elsewhere."""

import math
import subprocess
import sys

import pytest
import torch
from problems import binary, classification, features, regression, regression_truth
from test_mode import DEGENERATE
from test_network_curvature import (
    IRREGULAR,
    LIKELIHOODS,
    Normalised,
    Recurrent,
    gauss_newton_truth,
    hessian_truth,
    linear_pair,
    make,
    make_named,
)
from torch import nn

from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference.curvature import _DENSE_COPIES, diagonal_hessian, full_hessian
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import STRUCTURES, choose_structure, fit_laplace
from burnish.inference.mode import Mode
from burnish.inference.network_curvature import kronecker_scale
from burnish.inference.prior import tune_prior
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.predictive import predict
from burnish.scales import Dense, Diagonal, LowRank
from burnish.target import Target


def test_conjugate_regression_is_exact():
    target = regression()
    mean, covariance, log_evidence = regression_truth(target)
    fit = fit_laplace(target)
    assert torch.allclose(fit.posterior.mean, mean, atol=1e-10)
    assert torch.allclose(fit.posterior.scale.covariance(), covariance, atol=1e-12)
    assert fit.log_evidence == pytest.approx(log_evidence, abs=1e-8)


def test_kronecker_is_exact_for_conjugate_regression_too():
    target = regression()
    fit = fit_laplace(target, structure="kron")
    assert torch.allclose(fit.posterior.scale.covariance(), regression_truth(target)[1], atol=1e-12)
    assert fit.log_evidence == pytest.approx(regression_truth(target)[2], abs=1e-8)


@pytest.mark.parametrize("make", [classification, binary])
def test_precision_is_hessian_plus_prior(make):
    target = make(weighted=True)
    fit = fit_laplace(target)
    eye = torch.eye(target.dim, dtype=torch.float64)
    expected = full_hessian(target, fit.posterior.mean) + 2.0 * eye
    assert torch.allclose(torch.linalg.inv(fit.posterior.scale.covariance()), expected, rtol=1e-8, atol=1e-8)
    fit = fit_laplace(target, structure="diagonal")
    assert torch.allclose(1 / fit.posterior.scale.variance(), diagonal_hessian(target, fit.posterior.mean) + 2.0)


def test_vector_precisions():
    precision = torch.linspace(0.5, 4.0, 16, dtype=torch.float64)
    target = classification(prior_precision=precision)
    fit = fit_laplace(target)
    expected = full_hessian(target, fit.posterior.mean) + precision.diag()
    assert torch.allclose(torch.linalg.inv(fit.posterior.scale.covariance()), expected, rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="'kron' needs one prior precision"):
        fit_laplace(target, structure="kron")


def test_evidence_of_one_parameter_against_quadrature():
    target = binary(num_points=200, num_features=1, bias=False)
    grid = torch.linspace(-6, 6, 20_001, dtype=torch.float64).unsqueeze(1)
    truth = float(target.log_prob(grid).logsumexp(0)) + math.log(12 / 20_000)
    assert fit_laplace(target).log_evidence == pytest.approx(truth, abs=5e-3)


def test_without_recentring_the_mean_is_the_start():
    target = classification()
    start = torch.randn(target.dim, generator=make_generator(2), dtype=torch.float64)
    fit = fit_laplace(target, start, recentre=False)
    assert torch.equal(fit.posterior.mean, start)
    assert fit.iterations == 0
    assert fit.gradient_norm == pytest.approx(float(torch.func.grad(target.log_prob)(start).norm()))


def test_recentring_reports_its_work():
    fit = fit_laplace(classification(), structure="diagonal")
    assert fit.converged
    assert fit.iterations >= 1
    assert fit.gradient_norm < 1e-2
    assert fit.seconds > 0


def rank_for(target):
    """As many directions as usual, where there are so many."""
    return min(20, target.dim - 1)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", DEGENERATE)
def test_degenerate_data_gives_finite_posteriors(make, structure):
    target = make()
    fit = fit_laplace(target, structure=structure, rank=rank_for(target))
    draws = fit.posterior.sample(10, generator=make_generator(0))
    assert bool(torch.isfinite(draws).all())
    assert math.isfinite(fit.log_evidence)


def test_a_missing_class_keeps_the_uncertainty_of_the_prior_in_its_contrast():
    """Nothing is known of a class that was never seen but that it is rare: its weights vary almost as a priori."""
    target = DEGENERATE[1]()
    variance = target.model.head.to_matrix(fit_laplace(target).posterior.scale.variance())
    assert float(variance[2].mean()) > float(variance[[0, 1, 3]].mean())


def test_single_precision_agrees_with_double():
    rough = fit_laplace(classification(dtype=torch.float32)).posterior
    exact = fit_laplace(classification()).posterior
    assert rough.mean.dtype == torch.float32
    assert torch.allclose(rough.scale.covariance().double(), exact.scale.covariance(), atol=1e-5)


def test_kron_never_forms_a_full_matrix(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 0)
    assert isinstance(fit_laplace(classification(), structure="kron").posterior.scale, Kronecker)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`structure` must be one of 'full', 'kron', 'diagonal', 'low_rank', got 'dense'"):
        fit_laplace(classification(), structure="dense")
    with pytest.raises(ValueError, match="`start` must be given without `recentre`"):
        fit_laplace(classification(), recentre=False)


def large_and_separable() -> Target:
    inputs = 30 * features(300, 20, dtype=torch.float32)
    return Target.last_layer(inputs, (inputs[:, 0] > 0).long(), prior_precision=1e-3)


def large_duplicates() -> Target:
    inputs = 10 * features(200, 4, dtype=torch.float32)
    labels = torch.arange(200) % 3
    return Target.last_layer(torch.cat([inputs, inputs], 1), labels, prior_precision=1e-4)


def one_class_only() -> Target:
    return Target.last_layer(
        features(60, 3, dtype=torch.float32), torch.zeros(60).long(), prior_precision=1e-4, num_outputs=3
    )


@pytest.mark.filterwarnings("ignore:the evidence is best at the bound")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", [large_and_separable, large_duplicates, one_class_only])
def test_single_precision_survives_weak_priors_and_degenerate_data(make, structure):
    """Rounding of a float32 Hessian is larger than such a prior: directions that only the prior holds must survive it."""
    target = make()
    fit = fit_laplace(target, structure=structure, rank=rank_for(target))
    exact = Target(target.model, target.data.to(dtype=torch.float64), target.prior_precision)
    reference = fit_laplace(exact, structure=structure, rank=rank_for(target))
    assert fit.converged
    assert fit.log_evidence == pytest.approx(reference.log_evidence, abs=0.5)
    refined = fit_flow(target, fit.posterior, generator=make_generator(0), max_steps=40)
    prediction = predict(target.model, refined.posterior, target.data.inputs, generator=make_generator(0))
    assert bool(torch.isfinite(prediction.probs).all())
    if structure != "low_rank" or target.dim > 20:
        assert tune_prior(target, structure=structure).prior_precision > 0


def test_what_cannot_fit_is_refused_before_the_search(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**10)
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
    with pytest.raises(MemoryError, match="use structure='kron'"):
        fit_laplace(classification())


def test_targets_beyond_the_numbers_are_a_fit_error():
    target = Target.last_layer(
        features(20, 2, dtype=torch.float32), 1e25 * torch.ones(20), prior_precision=1.0, likelihood=GaussianNoise(1.0)
    )
    with pytest.raises(FitError, match="scale features and targets"):
        fit_laplace(target)


# Networks


def eye(target):
    return torch.eye(target.dim, dtype=torch.float64)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_network_gets_a_gaussian_at_its_mode(likelihood):
    target, start = make_named("tanh", likelihood, num_points=30, precision=2.0)
    fit = fit_laplace(target, start)
    assert isinstance(fit.posterior.scale, Dense)
    assert fit.converged
    assert fit.iterations >= 1
    mean = fit.posterior.mean
    assert fit.gradient_norm == pytest.approx(float(target.log_prob_and_grad(mean)[1].norm()), abs=1e-9)
    assert fit.gradient_norm < 0.1 * float(target.log_prob_and_grad(start)[1].norm())
    expected = gauss_newton_truth(target, mean) + 2.0 * eye(target)
    torch.testing.assert_close(fit.posterior.scale.covariance() @ expected, eye(target), rtol=0, atol=1e-8)
    determinant = float(torch.linalg.slogdet(expected).logabsdet)
    evidence = float(target.log_prob(mean)) - 0.5 * determinant + 0.5 * target.dim * math.log(2.0 * math.pi)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-8)


def test_the_other_structures_of_a_network():
    target, start = make_named("groups and dilation", num_points=30, precision=2.0)
    truth = gauss_newton_truth(target, start)
    fits = {name: fit_laplace(target, start, structure=name, rank=4, recentre=False).posterior for name in STRUCTURES}
    assert all(torch.equal(posterior.mean, start) for posterior in fits.values())
    kinds = {name: type(posterior.scale) for name, posterior in fits.items()}
    assert kinds == {"full": Dense, "kron": BlockDiagonal, "diagonal": Diagonal, "low_rank": LowRank}
    torch.testing.assert_close(1 / fits["diagonal"].scale.variance(), truth.diagonal() + 2.0, rtol=1e-8, atol=1e-8)
    expected = kronecker_scale(target, start, 2.0).covariance()
    torch.testing.assert_close(fits["kron"].scale.covariance(), expected, rtol=1e-10, atol=1e-12)
    values, vectors = torch.linalg.eigh(truth)
    leading = vectors[:, -4:] @ values[-4:].diag() @ vectors[:, -4:].T
    expected = (leading + 2.0 * eye(target)).inverse()
    torch.testing.assert_close(fits["low_rank"].scale.covariance(), expected, rtol=0, atol=1e-4)


def test_low_rank_with_all_directions_of_the_curvature_is_full():
    target, start = make_named("relu", num_points=4, precision=0.5)  # rank eight at most, of 55
    full = fit_laplace(target, start, recentre=False)
    fit = fit_laplace(target, start, structure="low_rank", rank=10, recentre=False)
    torch.testing.assert_close(fit.posterior.scale.covariance(), full.posterior.scale.covariance(), rtol=0, atol=1e-4)
    assert fit.log_evidence == pytest.approx(full.log_evidence, abs=1e-3)


@pytest.mark.parametrize("structure", ["full", "diagonal", "low_rank"])
def test_a_precision_for_every_parameter_of_a_network(structure):
    target, start = make_named("relu", num_points=4)
    precision = torch.linspace(0.5, 4.0, target.dim, dtype=torch.float64)
    target = target.with_prior(precision)
    expected = (gauss_newton_truth(target, start) + precision.diag()).inverse()
    found = fit_laplace(target, start, structure=structure, rank=10, recentre=False).posterior.scale.covariance()
    if structure == "diagonal":
        expected = (gauss_newton_truth(target, start).diagonal() + precision).reciprocal().diag()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_linear_network_gets_the_posterior_of_a_linear_head(likelihood, structure):
    target, head, start = linear_pair(likelihood)
    options = {"structure": structure, "rank": 4}  # equal eigenvalues come in pairs for two outputs with Gaussian noise
    fit, expected = fit_laplace(target, start, **options), fit_laplace(head, start, **options)
    assert fit.converged
    assert fit.log_evidence == pytest.approx(expected.log_evidence, abs=1e-5)
    torch.testing.assert_close(fit.posterior.mean, expected.posterior.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(fit.posterior.scale.covariance(), expected.posterior.scale.covariance(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [lambda: Normalised(3), lambda: Recurrent(3)])
@pytest.mark.parametrize("structure", ["full", "diagonal", "low_rank"])
def test_layers_of_every_kind_have_a_posterior(build, structure):
    target, start = make(build(), (1, 3, 3) if isinstance(build(), Normalised) else (3, 2), precision=3.0)
    fit = fit_laplace(target, start, structure=structure, rank=3)
    assert float(target.log_prob(fit.posterior.mean)) > float(target.log_prob(start))
    assert bool(torch.isfinite(fit.posterior.sample(5, generator=make_generator(0))).all())


@pytest.mark.parametrize("name", IRREGULAR)
def test_layers_used_in_other_ways_have_a_diagonal_posterior_but_no_kronecker_one(name, monkeypatch):
    build, shape = IRREGULAR[name]
    target, start = make(build(), shape)
    fit = fit_laplace(target, start, structure="diagonal", recentre=False)
    truth = gauss_newton_truth(target, start).diagonal() + 1.0
    torch.testing.assert_close(1 / fit.posterior.scale.variance(), truth, rtol=1e-8, atol=1e-8)
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
    with pytest.raises(ValueError, match="'kron' needs layers that are called once"):
        fit_laplace(target, start, structure="kron")


def test_exact_curvature_is_the_inverse_hessian_at_a_mode():
    target, start = make_named("tanh", "gaussian", num_points=30, precision=2.0)
    fit = fit_laplace(target, start, curvature="exact")
    expected = hessian_truth(target, fit.posterior.mean) + 2.0 * eye(target)
    torch.testing.assert_close(fit.posterior.scale.covariance() @ expected, eye(target), rtol=0, atol=1e-8)
    other = fit_laplace(target, start)
    assert not torch.allclose(fit.posterior.scale.covariance(), other.posterior.scale.covariance(), rtol=0.01)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ({"converged": True}, r"or a start that leads to one\."),
        ({"converged": False}, r"or more `max_iterations`, as the search for one has not ended\."),
        ({"converged": False, "stalled": True}, r"or a smooth activation, or another start: the search for one stalled"),
    ],
)
def test_the_way_to_a_mode_is_by_how_the_search_for_one_ended(monkeypatch, ending, message):
    target, start = make_named("tanh", num_points=30, precision=1e-3)
    mode = Mode(start, gradient_norm=1.0, decrement=1.0, iterations=1, **ending)
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_, **__: mode)
    with pytest.raises(FitError, match=message):
        fit_laplace(target, start, curvature="exact")


def test_an_indefinite_exact_curvature_is_refused_with_its_smallest_eigenvalue():
    target, start = make_named("tanh", num_points=30, precision=1e-3)
    smallest = float(torch.linalg.eigvalsh(hessian_truth(target, start))[0]) + 1e-3
    assert smallest < 0.0
    with pytest.raises(
        FitError, match=rf"not positive definite, its smallest eigenvalue is {smallest:.3g}: this is not a mode"
    ):
        fit_laplace(target, start, curvature="exact", recentre=False)
    fit_laplace(target, start, recentre=False)


def test_exact_curvature_of_a_linear_head_is_its_own():
    target = classification()
    exact, usual = fit_laplace(target, curvature="exact"), fit_laplace(target)
    assert torch.equal(exact.posterior.scale.factor, usual.posterior.scale.factor)


def test_a_network_in_single_precision():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    exact, start = make(network, (3,), num_points=30, precision=2.0)
    data = exact.data.to(dtype=torch.float32)
    model, _ = flatten_network(network.float(), example=data.inputs)
    rough = Target(model, data, 2.0)
    for structure in STRUCTURES:
        options = {"structure": structure, "rank": 5, "recentre": False}
        fit = fit_laplace(rough, start.float(), **options)
        assert fit.posterior.mean.dtype == fit.posterior.sample(2, generator=make_generator(0)).dtype == torch.float32
        network.double()
        expected = fit_laplace(exact, start, **options)
        network.float()
        assert fit.log_evidence == pytest.approx(expected.log_evidence, abs=1e-2)


def test_the_network_is_left_alone():
    target, start = make_named("batch norm", precision=10.0)
    before = [tensor.clone() for tensor in target.model.head.network.state_dict().values()]
    given = start.clone()
    for structure in STRUCTURES:
        fit_laplace(target, start, structure=structure, rank=3)
    after = target.model.head.network.state_dict().values()
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert torch.equal(start, given)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"start": None}, ValueError, r"`start` must be given for a network, got None\. Pass the network's parameters"),
        ({"start": None, "recentre": False}, ValueError, r"`start` must be given without `recentre`, got None"),
        ({"structure": "blocks"}, ValueError, r"`structure` must be one of 'full', 'kron', 'diagonal', 'low_rank', got"),
        ({"curvature": "hessian"}, ValueError, r"`curvature` must be one of 'gauss-newton', 'exact', got 'hessian'"),
        (
            {"curvature": "exact", "structure": "kron"},
            ValueError,
            r"`curvature` 'exact' must come with structure='full', got 'kron'\. Use 'gauss-newton'",
        ),
        ({"curvature": "exact", "structure": "low_rank"}, ValueError, r"must come with structure='full', got 'low_rank'"),
        ({"structure": "low_rank", "rank": 0}, ValueError, r"`rank` must be at least 1, got 0"),
        ({"structure": "low_rank", "rank": 2.0}, TypeError, r"`rank` must be an integer, got float"),
        (
            {"structure": "low_rank", "rank": 31},
            ValueError,
            r"`rank` must be below the 31 parameters, got 31\. Use structure='full'",
        ),
    ],
)
def test_wrong_options_for_a_network(options, error, message, monkeypatch):
    target, start = make_named("tanh")
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
    with pytest.raises(error, match=message):
        fit_laplace(target, **{"start": start, **options})


def test_kron_needs_one_precision_and_layers_it_knows(monkeypatch):
    monkeypatch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
    target, start = make_named("tanh")
    with pytest.raises(ValueError, match=r"'kron' needs one prior precision for all parameters, got 31 of them"):
        fit_laplace(target.with_prior(torch.ones(target.dim, dtype=torch.float64)), start, structure="kron")
    target, start = make(Normalised(3), (1, 3, 3))
    with pytest.raises(ValueError, match=r"got 'norm.weight', 'norm.bias' besides\. Use structure='diagonal'"):
        fit_laplace(target, start, structure="kron")


def test_a_network_that_cannot_fit_is_refused_before_the_search(monkeypatch):
    target, start = make_named("tanh")
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**8)
    with monkeypatch.context() as patch:
        patch.setattr("burnish.inference.laplace.find_mode", lambda *_: pytest.fail("searched first"))
        with pytest.raises(
            MemoryError, match=r"full Hessian of 31 parameters .*use structure='kron' or structure='diagonal'"
        ):
            fit_laplace(target, start)
        with pytest.raises(MemoryError, match=r"the Kronecker factors .*use structure='diagonal'"):
            fit_laplace(target, start, structure="kron")
    for structure in ("diagonal", "low_rank"):  # which need no such room, nor does the search for the mode
        fit = fit_laplace(target, start, structure=structure, rank=3)
        assert float(target.log_prob(fit.posterior.mean)) > float(target.log_prob(start))


def test_the_structure_that_is_chosen(monkeypatch):
    regular, _ = make_named("tanh")
    normalised, _ = make(Normalised(3), (1, 3, 3))
    build, shape = IRREGULAR["called twice"]
    twice, _ = make(build(), shape)
    vector = regular.with_prior(torch.ones(regular.dim, dtype=torch.float64))
    assert {choose_structure(target) for target in (regular, normalised, twice, vector)} == {"full"}
    monkeypatch.setattr("burnish.inference.laplace._DENSE_NETWORK", 10)
    assert choose_structure(regular) == "kron"
    assert choose_structure(regular.with_prior(torch.tensor(2.0, dtype=torch.float64))) == "kron"
    assert {choose_structure(target) for target in (normalised, twice, vector)} == {"diagonal"}
    assert choose_structure(classification()) == "full"


@pytest.mark.parametrize("limit", [6000, 1])
def test_auto_is_what_is_chosen(limit, monkeypatch):
    monkeypatch.setattr("burnish.inference.laplace._DENSE_DIM", limit)
    target = classification()
    found, expected = (
        fit_laplace(target, structure=structure).posterior.scale for structure in ("auto", choose_structure(target))
    )
    assert type(found) is type(expected) is (Dense if limit > 1 else Kronecker)
    torch.testing.assert_close(found.logdet(), expected.logdet())


@pytest.mark.parametrize("recentre", [False, True])
def test_starts_that_do_not_fit_are_refused(recentre):
    target = classification()
    for start, error, message in (
        (torch.zeros(1, target.dim).double(), ValueError, r"`start` must be one vector of shape"),
        (torch.full((target.dim,), math.nan).double(), ValueError, "`start` must be finite"),
        (torch.zeros(target.dim + 1).double(), ValueError, "must have shape"),
        ([0.0] * target.dim, TypeError, "`start` must be a torch.Tensor"),
    ):
        with pytest.raises(error, match=message):
            fit_laplace(target, start, recentre=recentre)


def test_a_search_may_be_cut_short():
    target = classification()
    fit = fit_laplace(target, torch.ones(target.dim).double(), max_iterations=1)
    assert (fit.iterations, fit.converged) == (1, False)


MEMORY = """
import sys
from pathlib import Path

import torch

from burnish import Target, fit_laplace


def peak():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def fitted(num_outputs):
    dtype = getattr(torch, sys.argv[1])
    inputs = torch.randn(200, 39, generator=torch.Generator().manual_seed(0), dtype=dtype)
    target = Target.last_layer(inputs, torch.arange(200) % num_outputs, prior_precision=10.0, num_outputs=num_outputs)
    fit_laplace(target, torch.zeros(target.dim, dtype=dtype), recentre=False)
    return target.dim


torch.set_num_threads(1)
fitted(5)  # whatever is loaded at the first use
before = peak()
dim = fitted(100)
print(dim, (peak() - before) / (8 * dim**2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is counted in other ways")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_full_covariance_takes_no_more_memory_than_is_asked_for(dtype):
    out = subprocess.run([sys.executable, "-c", MEMORY, dtype], capture_output=True, text=True, timeout=120, check=True)
    dim, copies = out.stdout.split()
    assert dim == "4000"
    assert 2.0 < float(copies) < _DENSE_COPIES[getattr(torch, dtype)]
