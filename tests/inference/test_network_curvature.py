"""The curvature of networks in float64 against automatic differentiation by the parameters of a copy, point by point."""

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.nn.attention import SDPBackend, sdpa_kernel

from burnish.batches import Batch
from burnish.errors import FitError
from burnish.flat_network import flatten_network
from burnish.inference import network_curvature
from burnish.inference.curvature import diagonal_hessian, full_hessian, hessian_product, kronecker_hessian
from burnish.inference.laplace import fit_laplace
from burnish.inference.mode import find_mode
from burnish.inference.network_curvature import (
    check_definite,
    check_layers,
    exact_hessian,
    has_kronecker,
    kronecker_factors,
    kronecker_scale,
)
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.noise import make_generator
from burnish.target import Target
from networks import randomised, state_of

NUM_POINTS = 6
OUTPUTS = {"categorical": 3, "bernoulli": 1, "gaussian": 2}
LIKELIHOODS = {"categorical": Categorical(), "bernoulli": Bernoulli(), "gaussian": GaussianNoise(0.7)}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=make_generator(seed), dtype=torch.float64)


class Sequence(nn.Module):
    """One linear layer on every element of a sequence, and then their sum: applied many times in one call."""

    def __init__(self, count):
        super().__init__()
        self.each, self.last = nn.Linear(2, 3), nn.Linear(3, count)

    def forward(self, x):
        return self.last(torch.tanh(self.each(x)).sum(1))


def convolutional(conv, count, size, *more):
    return nn.Sequential(conv, nn.Tanh(), *more, nn.Flatten(), nn.Linear(size, count))


# name: network for a number of outputs, shape of one point
NETWORKS = {
    "tanh": (lambda n: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, n)), (3,)),
    "relu": (
        lambda n: nn.Sequential(
            nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, n)
        ),
        (3,),
    ),
    "padding and stride": (lambda n: convolutional(nn.Conv2d(2, 2, 3, padding=(1, 2), stride=(2, 1)), n, 24), (2, 4, 4)),
    "groups and dilation": (
        lambda n: convolutional(nn.Conv2d(4, 2, 2, groups=2, dilation=2, padding=1), n, 8, nn.AvgPool2d(2)),
        (4, 4, 4),
    ),
    "depthwise": (lambda n: convolutional(nn.Conv2d(2, 4, 2, groups=2, bias=False), n, 16), (2, 3, 3)),
    "circular": (lambda n: convolutional(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), n, 18), (1, 3, 3)),
    "same": (lambda n: convolutional(nn.Conv2d(1, 2, (1, 3), padding="same"), n, 18), (1, 3, 3)),
    "same and circular": (
        lambda n: convolutional(nn.Conv2d(1, 2, (2, 3), padding="same", padding_mode="circular"), n, 18),
        (1, 3, 3),
    ),
    "one dimension": (lambda n: convolutional(nn.Conv1d(2, 3, 3, padding=2, stride=2, dilation=2), n, 9), (2, 5)),
    "one dimension, reflected": (
        lambda n: convolutional(nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect", groups=2), n, 10),
        (2, 5),
    ),
    "batch norm": (lambda n: convolutional(nn.Conv2d(1, 3, 2), n, 12, nn.BatchNorm2d(3, affine=False)), (1, 3, 3)),
    "sequence": (Sequence, (4, 2)),
}


def make(network, shape, likelihood="categorical", *, weighted=True, num_points=NUM_POINTS, parameters=None, precision=1.0):
    """A target of a network, and parameters for it that are not the network's own."""
    network = randomised(network.double().eval())
    inputs, values = draw(num_points, *shape, seed=1), draw(num_points, OUTPUTS[likelihood], seed=2)
    targets = {"categorical": values.argmax(-1), "bernoulli": (values[:, 0] > 0).long(), "gaussian": values}[likelihood]
    weights = draw(num_points, seed=3).exp() if weighted else None
    model, theta = flatten_network(network, parameters, example=inputs[:2], likelihood=LIKELIHOODS[likelihood])
    return Target(model, Batch(inputs, targets, weights), precision), theta + 0.3 * draw(len(theta), seed=4)


def make_named(name, likelihood="categorical", **options):
    build, shape = NETWORKS[name]
    return make(build(OUTPUTS[likelihood]), shape, likelihood, **options)


def reference(target, theta):
    """A copy of the network that holds theta, and the parameters that theta is, in its order."""
    head = target.model.head
    network = copy.deepcopy(head.network).eval().requires_grad_()
    every = dict(network.named_parameters(remove_duplicate=False))
    parameters = [every[name] for name in head.names]
    with torch.no_grad():
        nn.utils.vector_to_parameters(theta, parameters)
    return network, parameters


def flat_gradients(output, parameters, **options):
    grads = torch.autograd.grad(output, parameters, allow_unused=True, materialize_grads=True, **options)
    return torch.cat([grad.flatten() for grad in grads])


def point_weights(target):
    return target.data.weights if target.data.weights is not None else torch.ones(len(target.data), dtype=torch.float64)


def curvatures(target, outputs):
    """Of every point's negative log-likelihood by its outputs, by autograd: weights included."""
    likelihood, targets = target.model.likelihood, target.data.targets
    blocks = [
        -hessian(lambda o, n=n: likelihood.log_prob(o.unsqueeze(0), targets[n : n + 1]).sum(), outputs[n].detach())
        for n in range(len(outputs))
    ]
    return torch.stack(blocks) * point_weights(target).view(-1, 1, 1)


def gauss_newton_truth(target, theta):
    network, parameters = reference(target, theta)
    outputs = network(target.data.inputs)
    rows = [[flat_gradients(o, parameters, retain_graph=True) for o in row] for row in outputs]
    jacobian = torch.stack([torch.stack(row) for row in rows])
    return torch.einsum("ncd,nck,nke->de", jacobian, curvatures(target, outputs), jacobian)


def hessian_truth(target, theta):
    network, parameters = reference(target, theta)
    log_probs = target.model.likelihood.log_prob(network(target.data.inputs), target.data.targets)
    gradient = flat_gradients(-(log_probs * point_weights(target)).sum(), parameters, create_graph=True)
    return torch.stack([flat_gradients(entry, parameters, retain_graph=True) for entry in gradient])


def relative_error(value, truth):
    return float((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300))


def check_all(target, theta):
    """Everything but Kronecker factors, to 1e-8."""
    truth = gauss_newton_truth(target, theta)
    vector = draw(target.dim, seed=5)
    for value, expected in (
        (full_hessian(target, theta), truth),
        (diagonal_hessian(target, theta), truth.diagonal()),
        (hessian_product(target, theta)(vector), truth @ vector),
        (exact_hessian(target, theta), hessian_truth(target, theta)),
    ):
        assert value.dtype == torch.float64
        assert relative_error(value, expected) < 1e-8


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_curvature_against_autograd(name, likelihood):
    target, theta = make_named(name, likelihood)
    assert has_kronecker(target)
    check_all(target, theta)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["tanh", "groups and dilation"])
def test_curvature_without_weights(name, likelihood):
    check_all(*make_named(name, likelihood, weighted=False))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("relu", ["0"]),
        ("relu", ["2", "4"]),
        ("relu", ["4.weight", "0.weight"]),
        ("relu", ["0.bias", "4"]),
        ("groups and dilation", ["0"]),
        ("padding and stride", ["0.weight"]),
        ("sequence", ["each"]),
    ],
)
def test_curvature_in_some_of_the_parameters(name, parameters):
    target, theta = make_named(name, parameters=parameters)
    assert target.dim < sum(parameter.numel() for parameter in target.model.head.network.parameters())
    check_all(target, theta)


def test_exact_and_gauss_newton_differ_where_the_network_bends_only():
    target, theta = make_named("tanh")
    assert relative_error(full_hessian(target, theta), exact_hessian(target, theta)) > 0.05
    target, theta = make_named("relu", parameters=["4"])
    assert relative_error(full_hessian(target, theta), exact_hessian(target, theta)) < 1e-12


@pytest.mark.parametrize("name", ["tanh", "groups and dilation", "sequence"])
def test_chunks_do_not_change_the_result(name, monkeypatch):
    target, theta = make_named(name, num_points=70)
    vector = draw(target.dim, seed=5)

    def everything():
        factors = [matrix for _, *pair in kronecker_factors(target, theta) for matrix in pair]
        product = hessian_product(target, theta)(vector)
        return full_hessian(target, theta), diagonal_hessian(target, theta), exact_hessian(target, theta), product, *factors

    whole, sizes = everything(), []
    monkeypatch.setattr("burnish.target._NETWORK_ENTRIES", {"cpu": 1})
    monkeypatch.setattr(network_curvature, "_ROW_ENTRIES", {"cpu": 3 * OUTPUTS["categorical"] * target.dim})
    monkeypatch.setattr(network_curvature, "_COLUMNS", 7)
    monkeypatch.setattr(network_curvature, "_weighted_jacobians", counted(network_curvature._weighted_jacobians, sizes))
    for found, expected in zip(everything(), whole, strict=True):
        assert relative_error(found, expected) < 1e-12
    assert sizes == [3 * OUTPUTS["categorical"]] * 23 + [OUTPUTS["categorical"]]


def counted(function, sizes):
    def wrapped(*args):
        for rows in function(*args):
            sizes.append(len(rows))
            yield rows

    return wrapped


class Normalised(nn.Module):
    """Batch norm with parameters of its own, which have no Kronecker structure."""

    def __init__(self, count):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Linear(8, count)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.conv(x))).flatten(1))


class Recurrent(nn.Module):
    """Cannot be batched over its weights, nor over points."""

    def __init__(self, count):
        super().__init__()
        self.first, self.rnn, self.last = nn.Linear(2, 2), nn.LSTM(2, 2, batch_first=True), nn.Linear(2, count)

    def forward(self, x):
        return self.last(self.rnn(torch.tanh(self.first(x)))[0][:, -1])


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("build", "shape"), [(Normalised, (1, 3, 3)), (Recurrent, (3, 2))])
def test_layers_without_a_kronecker_structure(build, shape, likelihood):
    target, theta = make(build(OUTPUTS[likelihood]), shape, likelihood)
    assert not has_kronecker(target)
    check_all(target, theta)


@pytest.mark.parametrize("parameters", [["first", "last"], ["last"]])
def test_layers_around_a_recurrent_one(parameters):
    target, theta = make(Recurrent(3), (3, 2), parameters=parameters)
    check_all(target, theta)
    assert [layer.name for layer, _, _ in kronecker_factors(target, theta)] == parameters


def test_kron_names_the_parameters_it_does_not_know():
    target, theta = make(Normalised(3), (1, 3, 3))
    message = (
        r"'kron' knows linear and convolutional layers, got 'norm.weight', 'norm.bias' besides\. Use structure='diagonal'"
    )
    with pytest.raises(ValueError, match=message):
        kronecker_factors(target, theta)
    with pytest.raises(ValueError, match=message):
        check_layers(target)
    target, theta = make(Normalised(3), (1, 3, 3), parameters=["conv", "last"])
    assert has_kronecker(target)
    check_all(target, theta)


def test_kron_does_not_name_all_of_very_many():
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(4)]
    target, _ = make(nn.Sequential(*blocks, nn.Linear(2, 3)), (2,))
    with pytest.raises(ValueError, match=r"got '0\.1\.weight', .*, '2\.1\.weight' and 3 more besides"):
        check_layers(target)


def test_a_bias_alone_has_no_kronecker_structure():
    target, theta = make_named("tanh", parameters=["0.bias", "2"])
    with pytest.raises(ValueError, match=r"got '0\.bias' besides"):
        kronecker_factors(target, theta)
    check_all(target, theta)


# Layers that are not used once, with a row for each point


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.other, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.other.weight = self.shared.weight

    def forward(self, x):
        return self.last(torch.tanh(self.other(torch.tanh(self.shared(x)))))


class Transposed(nn.Module):
    """The weights of a layer a second time, without the layer being called."""

    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(3, 4), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(nn.functional.linear(torch.tanh(self.shared(x)), self.shared.weight.T)))


class Uncalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(nn.functional.linear(x, self.shared.weight, self.shared.bias)))


class Folded(nn.Module):
    """Elements of a sequence as if they were points."""

    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.shared(x.flatten(0, 1))).view(x.shape).sum(1))


class Swapped(Folded):
    """Elements of a sequence first."""

    def forward(self, x):
        return self.last(torch.tanh(self.shared(x.transpose(0, 1))).sum(0))


IRREGULAR = {
    "called twice": (Twice, (3,)),
    "tied": (Tied, (3,)),
    "transposed": (Transposed, (3,)),
    "not called": (Uncalled, (3,)),
    "folded": (Folded, (4, 3)),
    "swapped": (Swapped, (4, 3)),
    "swapped, as many as points": (Swapped, (NUM_POINTS, 3)),
    "swapped, one element": (Swapped, (1, 3)),
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_layers_that_are_used_in_other_ways(name):
    build, shape = IRREGULAR[name]
    target, theta = make(build(), shape)
    assert not has_kronecker(target)
    with pytest.raises(
        ValueError, match=r"'kron' needs layers that are called once.*got 'shared'\. Use structure='diagonal'"
    ):
        kronecker_factors(target, theta)
    check_all(target, theta)


class Gated(Twice):
    """As if no layer were there, for most points."""

    def forward(self, x):
        gate = x[:, :1] > 0.0
        return super().forward(x) * gate


@pytest.mark.parametrize(("first", "last"), [(0, 63), (64, 64)])
def test_a_layer_is_called_twice_whatever_its_gradient(first, last):
    target, theta = make(Gated(), (3,), num_points=64)
    inputs = target.data.inputs.clone()
    inputs[first:last, 0] = -1.0  # of these points nothing is seen
    target = Target(target.model, Batch(inputs, target.data.targets), 1.0)
    with pytest.raises(ValueError, match=r"'kron' needs layers that are called once.*got 'shared'"):
        kronecker_factors(target, theta)
    assert relative_error(diagonal_hessian(target, theta), full_hessian(target, theta).diagonal()) < 1e-12


class Late(nn.Module):
    """The transposed weights, for points from some place on."""

    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        more = (x[:, :1] > 5.0) * nn.functional.linear(x, self.shared.weight.T)
        return self.last(torch.tanh(self.shared(x) + more))


def test_layers_are_verified_on_points_from_all_of_the_data():
    target, theta = make(Late(), (3,), num_points=80)
    inputs = target.data.inputs.clone()
    inputs[40:, 0] = 6.0
    with pytest.raises(ValueError, match=r"got 'shared'"):
        kronecker_factors(Target(target.model, Batch(inputs, target.data.targets), 1.0), theta)
    check_layers(Target(target.model, Batch(inputs[:40].clamp_max(4.0), target.data.targets[:40]), 1.0))


class Spare(nn.Module):
    """A layer that is never used, and one whose outputs are not."""

    def __init__(self):
        super().__init__()
        self.last, self.spare, self.unseen = nn.Linear(3, 3), nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, x):
        self.unseen(x)
        return self.last(x)


def test_layers_that_do_not_matter_have_no_curvature():
    target, theta = make(Spare(), (3,), precision=0.5)
    check_all(target, theta)
    assert float(diagonal_hessian(target, theta)[12:].abs().max()) == 0.0
    variance = kronecker_scale(target, theta, 0.5).variance()
    torch.testing.assert_close(variance[12:], torch.full((14,), 2.0, dtype=torch.float64))
    assert float(variance[:12].max()) < 2.0


# Kronecker factors


def padded(module, inputs):
    """By hand, one dimension after the other; what a convolution without padding takes."""
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(padding, padding) for padding in module.padding]
    for dim, (before, after) in enumerate(sides, start=1):
        size = inputs.shape[dim]
        index = torch.arange(-before, size + after)
        zero = (index < 0) | (index >= size)
        if module.padding_mode == "reflect":
            index = torch.where(index < 0, -index, torch.where(index >= size, 2 * (size - 1) - index, index))
        rows = inputs.index_select(dim, index % size)
        inputs = rows.movedim(dim, -1).masked_fill(zero & (module.padding_mode == "zeros"), 0.0).movedim(-1, dim)
    return inputs


def applications(module, inputs, group):
    """What the matrix of a layer, or of a group of a convolution, is multiplied with (T, Q), for one point, a loop."""
    if isinstance(module, nn.Linear):
        return inputs.reshape(-1, inputs.shape[-1])
    image = padded(module, inputs).chunk(module.groups)[group]
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if image.ndim == 2:
        image, kernel, stride, dilation = image.unsqueeze(1), (1, *kernel), (1, *stride), (1, *dilation)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    corners = [range(0, size - span + 1, s) for size, span, s in zip(image.shape[1:], spans, stride, strict=True)]
    patches = [
        image[:, i : i + spans[0] : dilation[0], j : j + spans[1] : dilation[1]].flatten()
        for i in corners[0]
        for j in corners[1]
    ]
    return torch.stack(patches)


def brute_force_factors(target, theta):
    """`{(layer's name, group): (left, right)}`: sums over points, and over the places where a layer is applied."""
    network, _ = reference(target, theta)
    layers = {name: part for name, part in network.named_modules() if f"{name}.weight" in target.model.head.names}
    seen = {}

    def record(module, args, result):
        seen[module] = args[0].detach().clone(), result
        return result.clone()  # an activation may be in place

    for part in layers.values():
        part.register_forward_hook(record)
    curved, weights = curvatures(target, network(target.data.inputs)), point_weights(target)
    sums = {}
    for point, curvature, weight in zip(target.data.inputs, curved, weights, strict=True):
        output = network(point.unsqueeze(0))[0]
        for name, module in layers.items():
            groups = getattr(module, "groups", 1)
            given, result = seen[module]
            rows = [torch.autograd.grad(o, result, retain_graph=True)[0][0] for o in output]
            for group in range(groups):
                columns = [row if groups == 1 else row.chunk(groups)[group] for row in rows]
                if not isinstance(module, nn.Linear):
                    columns = [column.flatten(1).T for column in columns]
                jacobian = torch.stack([column.reshape(-1, column.shape[-1]) for column in columns])  # (outputs, T, C)
                matrix = applications(module, given[0], group)
                if f"{name}.bias" in target.model.head.names:
                    matrix = torch.cat([matrix, torch.ones(len(matrix), 1, dtype=torch.float64)], dim=1)
                left = torch.einsum("otc,op,ptk->ck", jacobian, curvature, jacobian)
                right = float(weight) * sum(torch.outer(row, row) for row in matrix)
                totals = sums.setdefault((name, group), [0.0, 0.0, 0.0])
                totals[:] = totals[0] + left, totals[1] + right, totals[2] + float(weight) * len(matrix)
    return {key: (left / mass, right) for key, (left, right, mass) in sums.items()}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_kronecker_factors_against_their_definition(name, weighted):
    target, theta = make_named(name, weighted=weighted)
    expected = brute_force_factors(target, theta)
    factors = kronecker_factors(target, theta)
    assert [(layer.name, layer.group) for layer, _, _ in factors] == list(expected)
    for (layer, left, right), (expected_left, expected_right) in zip(factors, expected.values(), strict=True):
        assert left.dtype == right.dtype == torch.float64
        assert relative_error(left, expected_left) < 1e-8, layer.name
        assert relative_error(right, expected_right) < 1e-8, layer.name


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_kronecker_factors_of_other_likelihoods(likelihood):
    target, theta = make_named("circular", likelihood)
    for (_, *found), expected in zip(
        kronecker_factors(target, theta), brute_force_factors(target, theta).values(), strict=True
    ):
        assert max(map(relative_error, found, expected)) < 1e-8


def in_flat_order(layer, left, right):
    """`left x right` with rows and columns as the layer's parameters stand in theta, weight first and then bias."""
    order = layer.layout.from_matrix(torch.arange(layer.layout.dim).view(len(left), -1))
    return torch.kron(left, right.contiguous())[order][:, order]


@pytest.mark.parametrize("weight", [0.2, 1.0, 7.0])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_for_one_point_kronecker_blocks_are_those_of_gauss_newton(likelihood, weight):
    target, theta = make_named("relu", likelihood, num_points=1)
    data = Batch(target.data.inputs, target.data.targets, torch.tensor([weight]))
    target = Target(target.model, data, 1.0)
    full = full_hessian(target, theta)
    for layer, left, right in kronecker_factors(target, theta):
        block = full[layer.index][:, layer.index]
        torch.testing.assert_close(in_flat_order(layer, left, right), block, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "groups and dilation"])
def test_the_scale_is_that_of_the_blocks_and_the_prior(name):
    target, theta = make_named(name)
    expected = torch.zeros(target.dim, target.dim, dtype=torch.float64)
    for layer, left, right in kronecker_factors(target, theta):
        expected[layer.index.unsqueeze(1), layer.index] = in_flat_order(layer, left, right)
    precision = expected + 0.7 * torch.eye(target.dim, dtype=torch.float64)
    scale = kronecker_scale(target, theta, 0.7)
    assert (scale.order is None) == (name == "relu")  # biases of groups are not beside their weights
    torch.testing.assert_close(scale.covariance() @ precision, torch.eye(target.dim, dtype=torch.float64), rtol=0, atol=1e-9)


@cache
def linear_pair(likelihood, weighted=True, bias=True):
    """The same data and parameters for a linear network and for a linear head."""
    network = nn.Sequential(nn.Linear(4, OUTPUTS[likelihood], bias=bias))
    target, theta = make(network, (4,), likelihood, weighted=weighted, num_points=12, precision=0.8)
    data = target.data
    head = Target.last_layer(
        data.inputs,
        data.targets,
        prior_precision=0.8,
        likelihood=target.model.likelihood,
        weights=data.weights,
        num_outputs=OUTPUTS[likelihood],
        bias=bias,
    )
    return target, head, theta


@pytest.mark.parametrize(("weighted", "bias"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_linear_network_has_the_curvature_of_a_linear_head(likelihood, weighted, bias):
    target, head, theta = linear_pair(likelihood, weighted, bias)
    vector = draw(target.dim, seed=5)
    assert relative_error(full_hessian(target, theta), full_hessian(head, theta)) < 1e-12
    assert relative_error(exact_hessian(target, theta), full_hessian(head, theta)) < 1e-12
    assert relative_error(diagonal_hessian(target, theta), diagonal_hessian(head, theta)) < 1e-12
    assert relative_error(hessian_product(target, theta)(vector), hessian_product(head, theta)(vector)) < 1e-12
    ((_, left, right),) = kronecker_factors(target, theta)
    expected = kronecker_hessian(head, theta)
    assert relative_error(left, expected.left) < 1e-12
    assert relative_error(right, expected.right) < 1e-12


# Contracts


class Mode(nn.Module):
    def forward(self, x):
        return 3.0 * x if self.training else x


@pytest.mark.parametrize("name", ["relu", "batch norm", "mode"])
def test_the_network_and_theta_are_left_alone(name):
    if name == "mode":
        target, theta = make(nn.Sequential(nn.Linear(3, 4), Mode(), nn.Tanh(), nn.Linear(4, 3)), (3,), parameters=["0"])
    else:
        target, theta = make_named(name, parameters=["0"])
    random = torch.get_rng_state()
    network, before = target.model.head.network.train(), theta.clone()  # in train mode, and for some parameters frozen
    next(network.parameters()).requires_grad_(False)
    expected = state_of(network)
    check_all(target, theta)
    kronecker_scale(target, theta, 1.0)
    assert torch.equal(torch.get_rng_state(), random)
    found = state_of(network)
    assert all(torch.equal(*pair) for pair in zip(found.pop("tensors"), expected.pop("tensors"), strict=True))
    assert found == expected
    assert any(found["flags"])
    assert torch.equal(theta, before)
    assert not theta.requires_grad
    assert not exact_hessian(target, theta).requires_grad
    assert not hessian_product(target, theta)(theta).requires_grad


def test_an_error_in_the_forward_pass_leaves_no_hooks():
    target, theta = make_named("relu")
    network = target.model.head.network
    expected = state_of(network)["hooks"]
    network[3].register_forward_hook(fail)
    with pytest.raises(ArithmeticError, match="broken"):
        kronecker_factors(target, theta)
    with pytest.raises(ArithmeticError, match="broken"):
        full_hessian(target, theta)
    network[3]._forward_hooks.clear()
    assert state_of(network)["hooks"] == expected


def fail(*_):
    raise ArithmeticError("broken")


def test_single_precision_agrees_with_double():
    target, theta = make_named("padding and stride")
    exact = full_hessian(target, theta)
    network = copy.deepcopy(target.model.head.network).float()
    inputs = target.data.inputs.float()
    model, _ = flatten_network(network, example=inputs)
    rough, point = Target(model, Batch(inputs, target.data.targets, target.data.weights), 1.0), theta.float()
    assert full_hessian(rough, point).dtype == diagonal_hessian(rough, point).dtype == torch.float64
    assert relative_error(full_hessian(rough, point), exact) < 1e-4
    assert relative_error(diagonal_hessian(rough, point), exact.diagonal()) < 1e-4
    vector = draw(target.dim).float()
    product = hessian_product(rough, point)(vector)
    assert product.dtype == torch.float32
    assert relative_error(product.double(), exact @ vector.double()) < 1e-4
    assert relative_error(exact_hessian(rough, point), exact_hessian(target, theta)) < 1e-4
    scale = kronecker_scale(rough, point, 1.0)
    assert scale.variance().dtype == torch.float32
    assert relative_error(scale.variance().double(), kronecker_scale(target, theta, 1.0).variance()) < 1e-4


def test_linear_heads_are_refused():
    _, head, theta = linear_pair("categorical")
    for function in (kronecker_factors, network_curvature.gauss_newton, network_curvature.gauss_newton_diagonal):
        with pytest.raises(
            TypeError, match=r"`target` must be of a FlatNetwork here, got LinearHead\. Use `flatten_network`"
        ):
            function(head, theta)


def test_what_cannot_fit_is_refused(monkeypatch):
    target, theta = make_named("relu")
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**10)
    with pytest.raises(MemoryError, match=r"the Kronecker factors needs .*use structure='diagonal' instead"):
        kronecker_factors(target, theta)
    with pytest.raises(MemoryError, match=r"full Hessian of \d+ parameters needs .*use structure='kron'"):
        full_hessian(target, theta)
    assert diagonal_hessian(target, theta).shape == (target.dim,)


def test_a_matrix_with_a_negative_eigenvalue_is_refused_with_it():
    rotation = torch.linalg.qr(draw(3, 3)).Q
    matrix = rotation @ torch.diag(torch.tensor([2.0, 1.0, -0.125], dtype=torch.float64)) @ rotation.T
    with pytest.raises(FitError, match=r"smallest eigenvalue is -0\.125: this is not a mode\. Use curvature='gauss-newton'"):
        check_definite(matrix, "another start")
    check_definite(matrix @ matrix, "another start")


class ByKeyword(nn.Module):
    """A network that calls its layer by keyword."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.last(input=x)


def test_layers_may_be_called_by_keyword():
    network = ByKeyword()
    inputs = torch.randn(9, 3, generator=make_generator(0), dtype=torch.float64)
    data = Batch(inputs, torch.arange(9) % 2)
    model, theta = flatten_network(network, example=inputs)
    plain, _ = flatten_network(network.last, example=inputs)
    found, expected = (kronecker_factors(Target(each, data, 1.0), theta) for each in (model, plain))
    torch.testing.assert_close(found[0][1:], expected[0][1:])


@pytest.mark.parametrize(("structure", "precision"), [("kron", 1e-4), ("full", 1e-7)])
def test_weak_priors_in_single_precision(structure, precision):
    """Softmax makes the last layer's factor singular; large inputs multiply what rounding makes of its zero."""
    network = randomised(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).eval())
    inputs = 300.0 * draw(400, 3).float()
    model, theta = flatten_network(network, example=inputs)
    target = Target(model, Batch(inputs, torch.arange(400) % 3), precision)
    fit = fit_laplace(target, theta, structure=structure, recentre=False)
    exact_model, _ = flatten_network(copy.deepcopy(network).double(), example=inputs.double())
    double = Target(exact_model, target.data.to(dtype=torch.float64), precision)
    exact = fit_laplace(double, theta.double(), structure=structure, recentre=False)
    torch.testing.assert_close(fit.posterior.scale.logdet(), exact.posterior.scale.logdet(), rtol=1e-2, atol=0.5)
    find_mode(target, theta, max_iterations=3)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.last = nn.Linear(3, 8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.last(self.attend(x, x, x, need_weights=False)[0].mean(1))


def test_attention_has_products_and_an_exact_hessian():
    network, inputs = randomised(Attention().eval()), draw(6, 5, 3).float()
    model, theta = flatten_network(network, ["embed"], example=inputs)
    target = Target(model, Batch(inputs, torch.arange(6) % 3), 1.0)
    product, matrix = network_curvature.gauss_newton_product(target, theta), network_curvature.gauss_newton(target, theta)
    vector = draw(len(theta)).float()
    torch.testing.assert_close(product(vector), (matrix @ vector.double()).float(), rtol=1e-3, atol=1e-3)
    numeric = torch.func.hessian(lambda point: -(target.log_prob(point) - target.log_prior(point)))
    with sdpa_kernel(SDPBackend.MATH):
        truth = numeric(theta)
    torch.testing.assert_close(network_curvature.exact_hessian(target, theta), truth.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{"structure": "low_rank", "rank": 2}, {"structure": "full", "curvature": "exact"}])
def test_layers_without_forward_derivatives_are_refused_before_the_search(options, monkeypatch):
    monkeypatch.setattr("burnish.inference.laplace.find_mode", fail)
    monkeypatch.setattr(torch.func, "jvp", no_forward)
    target, theta = make_named("tanh")
    with pytest.raises(ValueError, match=r"need layers with forward derivatives, got one without \(no forward AD\)"):
        fit_laplace(target, theta, **options)


def no_forward(*_):
    raise NotImplementedError("no forward AD")


def test_jacobians_that_do_not_fit_are_refused(monkeypatch):
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double().eval()
    target, theta = make(network, (3,))
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"the Jacobian of \d+ points.*structure='kron', or flatten fewer"):
        network_curvature.gauss_newton_diagonal(target, theta)


def test_a_weight_used_twice_is_noticed_behind_a_layer_of_zeros():
    target, theta = make(Transposed(), (3,))
    with torch.no_grad():
        target.model.head.network.last.weight.zero_()
    with pytest.raises(ValueError, match="whose weights are used nowhere else, got 'shared'"):
        kronecker_factors(target, theta)
