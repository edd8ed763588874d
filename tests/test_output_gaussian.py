"""Outputs under a Gaussian over parameters: against products with the Jacobian in full, for every structure."""

import pytest
import torch
from torch import nn

from burnish.flat_network import flatten_network
from burnish.heads import LinearHead
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.noise import make_generator
from burnish.output_gaussian import OutputGaussian, output_gaussians
from burnish.posteriors import Gaussian
from burnish.scales import Dense, Diagonal, LowRank
from networks import randomised

FEATURES, OUTPUTS, POINTS = 3, 4, 5


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def scale_of(kind, dim, head=None):
    if kind == "diagonal":
        return Diagonal(normal(dim).abs() + 0.1)
    if kind == "dense":
        root = normal(dim, dim)
        return Dense.from_covariance(root @ root.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64))
    if kind == "low rank":
        return LowRank.from_covariance(normal(dim).abs() + 0.1, normal(dim, 2, seed=1))
    if kind == "blocks":
        return BlockDiagonal((scale_of("dense", dim - 2), scale_of("diagonal", 2)))
    left, right = (
        root @ root.T for root in (normal(head.num_outputs, head.num_outputs), normal(*[FEATURES + head.bias] * 2))
    )
    return Kronecker.from_precision(left, right, 0.7, head)


def gather(head, posterior, inputs, joint):
    parts = list(output_gaussians(head, posterior, inputs, joint=joint))
    return [torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance")] + [parts]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank", "blocks", "kronecker"])
def test_a_linear_head_against_its_jacobian(kind, bias):
    head = LinearHead(FEATURES, OUTPUTS, bias)
    posterior = Gaussian(normal(head.dim, seed=3), scale_of(kind, head.dim, head))
    inputs = normal(POINTS, FEATURES, seed=4)
    jacobian = torch.func.jacrev(lambda theta: head(theta, inputs))(posterior.mean)
    truth = jacobian @ posterior.scale.covariance() @ jacobian.mT
    mean, variance, parts = gather(head, posterior, inputs, joint=True)
    torch.testing.assert_close(mean, head(posterior.mean, inputs))
    torch.testing.assert_close(variance, truth.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(torch.cat([part.covariance for part in parts]), truth)
    projection = torch.eye(OUTPUTS, dtype=torch.float64) - 1 / OUTPUTS
    contrasts = (projection @ truth @ projection).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(torch.cat([part.contrast_variance for part in parts]), contrasts)
    torch.testing.assert_close(gather(head, posterior, inputs, joint=False)[1], truth.diagonal(dim1=1, dim2=2))


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), (3,)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)),
        (1, 4, 4),
    ),
    "gru": (lambda: LastStep(), (4, 2)),
}


class LastStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_against_its_jacobian(name, kind, monkeypatch):
    make, shape = NETWORKS[name]
    network = randomised(make().double()).eval()
    inputs = normal(POINTS, *shape, seed=4)
    model, theta = flatten_network(network, example=inputs)
    posterior = Gaussian(theta, scale_of(kind, len(theta)))
    jacobian = torch.stack(
        [torch.stack([row(theta, inputs[k : k + 1], c, model.head) for c in range(2)]) for k in range(POINTS)]
    )
    truth = jacobian @ posterior.scale.covariance() @ jacobian.mT
    monkeypatch.setattr("burnish.output_gaussian._CHUNK_ENTRIES", 4 * len(theta))  # two points at a time
    mean, variance, parts = gather(model.head, posterior, inputs, joint=True)
    assert len(parts) == 3
    torch.testing.assert_close(mean, network(inputs))
    torch.testing.assert_close(variance, truth.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(torch.cat([part.covariance for part in parts]), truth)


def row(theta, point, output, head):
    leaf = theta.clone().requires_grad_()
    return torch.autograd.grad(head(leaf, point)[0, output], leaf)[0]


@pytest.mark.parametrize("directions", ["none", "shared", "own"])
def test_draws_have_the_moments_they_claim(directions):
    shapes = {"none": None, "shared": (3, 3), "own": (2, 3, 3)}
    root = None if shapes[directions] is None else normal(*shapes[directions])
    outputs = OutputGaussian(normal(2, 3, seed=1), normal(2, 3, seed=2).abs(), root)
    draws = outputs.mean + outputs.deviations(normal(200_000, 2, 3, seed=5))
    error = 5 * (outputs.variance.max() / 200_000).sqrt()
    torch.testing.assert_close(draws.mean(0), outputs.mean, atol=float(error), rtol=0)
    for point in range(2):
        torch.testing.assert_close(torch.cov(draws[:, point].T), outputs.covariance[point], atol=0.03, rtol=0.03)


def test_outputs_that_do_not_move_have_no_variance():
    """Without a bias, features of zero give outputs that are certain: the covariance has no Cholesky factor."""
    head = LinearHead(FEATURES, OUTPUTS, bias=False)
    posterior = Gaussian(normal(head.dim), scale_of("dense", head.dim))
    inputs = torch.cat([torch.zeros(1, FEATURES, dtype=torch.float64), normal(2, FEATURES)])
    (outputs,) = output_gaussians(head, posterior, inputs, joint=True)
    assert bool((outputs.covariance[0] == 0).all())
    assert bool((outputs.variance[1:] > 0).all())
    assert bool(torch.isfinite(outputs.deviations(normal(2, 3, OUTPUTS))).all())


def test_jacobians_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 1000)
    head = LinearHead(FEATURES, OUTPUTS)
    posterior = Gaussian(normal(head.dim), scale_of("low rank", head.dim))
    with pytest.raises(MemoryError, match=r"the Jacobian of 5 points needs .* use method='linearised'"):
        list(output_gaussians(head, posterior, normal(POINTS, FEATURES), joint=True))
