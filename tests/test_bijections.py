"""Bijections: one set of laws for every family, with extreme parameters and inputs, and each family's own facts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from burnish.bijections import Planar, Radial, SinhArcsinh, Subspace
from burnish.linear_bijections import Affine, DiagonalScale, LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Diagonal

DIM = 3
EPSILON = torch.finfo(torch.float64).eps


def planar_near_the_bound(v):
    """W.u between -1 + 4e-9 and -1: raw_u against w, with product from -20 to 0."""
    w = v[:3] + 0.01
    return Planar(-(v[6].abs() / (w @ w)) * w, w, v[7])


def planar_of_short_normal(v):
    """A plane normal of length around one: the useful case."""
    w = v[:3] + 0.01
    return Planar(v[3:6], w / torch.linalg.vector_norm(w), v[7])


def orthonormal(dim, num_directions, dtype=torch.float64, seed=11):
    draw = torch.randn(dim, num_directions, generator=make_generator(seed), dtype=torch.float64)
    return torch.linalg.qr(draw).Q.to(dtype)


# from eight numbers in [-20, 20] to a bijection of three dimensions
FAMILIES = {
    "shift": lambda v: Shift(v[:3]),
    "rotation": lambda v: Rotation.cosine(v[:3]),
    "diagonal scale": lambda v: DiagonalScale(v[:3]),
    "triangular": lambda v: Triangular(torch.stack([v[:3], v[1:4], v[2:5]]), v[5:8] / 4),
    "low-rank stretch": lambda v: LowRankStretch(v[:6].view(3, 2)),
    "sinh-arcsinh": lambda v: SinhArcsinh(v[:3], v[3:6]),
    "radial": lambda v: Radial(v[:3], v[3], v[4]),
    "radial, beta near -alpha": lambda v: Radial(v[:3], v[3].abs(), -v[4].abs()),
    "planar": lambda v: Planar(v[:3], v[3:6], v[6]),
    "planar, short normal": planar_of_short_normal,
    "planar, w.u near -1": planar_near_the_bound,
    "planar, w = 0": lambda v: Planar(v[:3], torch.zeros_like(v[:3]), v[6]),
    "subspace": lambda v: Subspace(orthonormal(3, 2, v.dtype), (Radial(v[:2], v[2], v[3]), Shift(v[4:6]))),
}
MAKERS = {
    "shift": lambda like, generator: Shift.identity(like),
    "diagonal scale": lambda like, generator: DiagonalScale.identity(like),
    "triangular": lambda like, generator: Triangular.identity(like),
    "sinh-arcsinh": lambda like, generator: SinhArcsinh.identity(like),
    "radial": lambda like, generator: Radial.identity(like, generator=generator),
    "planar": lambda like, generator: Planar.identity(like, generator=generator),
    "subspace": lambda like, generator: subspace_identity(like),
}
LEARNABLE = [*MAKERS, "low-rank stretch"]  # which has no identity: it would have no gradient there


def subspace_identity(like):
    basis = orthonormal(len(like), min(2, len(like)), like.dtype)
    return Subspace(basis, (SinhArcsinh.identity(basis[0]), Shift.identity(basis[0])))


raw_parameters = st.lists(st.floats(-20, 20).map(lambda x: round(x, 3)), min_size=8, max_size=8)
points = st.lists(st.one_of(st.floats(-3, 3), st.floats(-1e6, 1e6)), min_size=DIM, max_size=DIM)
every_family = pytest.mark.parametrize("family", FAMILIES)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def generic(family, dtype=torch.float64, size=1.0):
    values = torch.randn(8, generator=make_generator(3), dtype=torch.float64)
    return FAMILIES[family]((size * values).to(dtype))


def check_laws(bijection, z):
    """Round trip, log-determinant and its sign, each as exact as the conditioning of the map at z allows."""
    image, logdet = bijection.forward(z.unsqueeze(0))
    back, inverse_logdet = bijection.inverse(image)
    for part in (image, logdet, back, inverse_logdet):
        assert bool(part.isfinite().all())
    jacobians = jacobian(lambda row: bijection.forward(row.unsqueeze(0))[0][0], z)
    stretches = torch.linalg.svdvals(jacobians)
    slope = jacobian(lambda row: bijection.forward(row.unsqueeze(0))[1][0], z)
    # a rounding of z, of its image, or of numbers of the size of the parameters, moves the image by so much
    rounding = 1e3 * EPSILON * (image.norm() + (1 + stretches.max()) * (20 + z.norm()))
    assert (bijection.forward(back)[0] - image).norm() <= rounding
    assert (back[0] - z).norm() <= rounding / stretches.min() + rounding
    uncertainty = 1e-10 * (1 + logdet.abs()) + slope.norm() * rounding / stretches.min()
    assert (inverse_logdet + logdet).abs() <= uncertainty
    truth = torch.linalg.slogdet(jacobians).logabsdet
    assert (logdet - truth).abs() <= uncertainty + 1e3 * EPSILON * stretches.max() / stretches.min()


@every_family
@given(raw=raw_parameters, z=points)
def test_laws(family, raw, z):
    check_laws(FAMILIES[family](tensor(raw)), tensor(z))


@given(z=st.lists(st.one_of(st.floats(-3, 3), st.floats(-1e6, 1e6)), min_size=6, max_size=6))
def test_laws_of_affine(scale, z):
    check_laws(Affine(torch.linspace(-20, 20, 6, dtype=torch.float64), scale), tensor(z))


@every_family
def test_laws_at_generic_values_need_no_slack(family):
    bijection, z = generic(family), torch.randn(10, DIM, generator=make_generator(5), dtype=torch.float64)
    image, logdet = bijection.forward(z)
    back, inverse_logdet = bijection.inverse(image)
    truth = [torch.linalg.slogdet(jacobian(lambda row: bijection.forward(row)[0], row)).logabsdet for row in z]
    torch.testing.assert_close(back, z, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inverse_logdet, -logdet, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(logdet, torch.stack(truth), rtol=1e-10, atol=1e-10)


@every_family
def test_rows_do_not_mix(family):
    bijection, z = generic(family), torch.randn(4, DIM, generator=make_generator(5), dtype=torch.float64)
    for call in (bijection.forward, bijection.inverse):
        moved, logdet = call(z)
        assert moved.shape == (4, DIM)
        assert logdet.shape == (4,)
        alone = [call(row.unsqueeze(0)) for row in z]
        torch.testing.assert_close(moved, torch.cat([part[0] for part in alone]), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(logdet, torch.cat([part[1] for part in alone]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("dim", [1, 3, 500])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_identity(family, dim, size, generator):
    bijection = MAKERS[family](torch.zeros(dim, dtype=torch.float64), generator)
    z = size * torch.randn(5, dim, generator=generator, dtype=torch.float64)
    for call in (bijection.forward, bijection.inverse):
        moved, logdet = call(z)
        assert (moved - z).abs().max() <= 1e-12 * size
        assert logdet.abs().max() <= 1e-12 * dim


@pytest.mark.parametrize("family", MAKERS)
def test_identity_does_not_touch_the_global_generator(family, generator, untouched_rng):
    like = torch.zeros(DIM)
    first = MAKERS[family](like, make_generator(0)).parameters()
    again = MAKERS[family](like, make_generator(0)).parameters()
    assert all(torch.equal(value, again[name]) for name, value in first.items())


@pytest.mark.parametrize(
    "family", [Radial.identity, Radial.uniform, Planar.identity, lambda like, **rest: LowRankStretch.random(like, 2, **rest)]
)
def test_generator_is_checked(family):
    with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got int"):
        family(torch.zeros(DIM), generator=0)


@every_family
def test_a_bijection_fits_its_own_dimensions_and_no_others(family):
    assert [dim for dim in (1, 2, 3, 4) if generic(family).fits(dim)] == [DIM]


@pytest.mark.parametrize("family", LEARNABLE)
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_gradients_reach_all_parameters(family, direction):
    bijection = generic(family)
    parameters = {name: value.clone().requires_grad_() for name, value in bijection.parameters().items()}
    z = torch.randn(5, DIM, generator=make_generator(5), dtype=torch.float64)
    moved, logdet = getattr(bijection.with_parameters(parameters), direction)(z)
    grads = torch.autograd.grad((moved**2).sum() + logdet.sum(), list(parameters.values()))
    for name, grad in zip(parameters, grads, strict=True):
        used = torch.ones_like(grad).tril(-1) if name == "raw_lower" else torch.ones_like(grad)
        assert bool(grad.isfinite().all())
        assert torch.equal((grad != 0).to(grad.dtype), used)


@pytest.mark.parametrize("family", LEARNABLE)
def test_parameters_make_the_same_map(family):
    bijection, z = generic(family), torch.ones(1, DIM, dtype=torch.float64)
    copy = bijection.with_parameters(bijection.parameters())
    assert torch.equal(copy.forward(z)[0], bijection.forward(z)[0])
    shifted = bijection.with_parameters({name: value + 0.1 for name, value in bijection.parameters().items()})
    assert not torch.equal(shifted.forward(z)[0], bijection.forward(z)[0])


def test_affine_has_nothing_to_learn(scale):
    bijection = Affine(torch.ones(6, dtype=torch.float64), scale)
    assert bijection.parameters() == {}
    assert [dim for dim in (5, 6, 7) if bijection.fits(dim)] == [6]
    assert bijection.with_parameters({}).scale is scale


@pytest.mark.parametrize("family", LEARNABLE)
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_derivatives_against_finite_differences(family, direction):
    bijection = generic(family)
    names, values = zip(*bijection.parameters().items(), strict=True)
    z = torch.randn(2, DIM, generator=make_generator(5), dtype=torch.float64).requires_grad_()

    def call(z, *values):
        return getattr(bijection.with_parameters(dict(zip(names, values, strict=True))), direction)(z)

    assert torch.autograd.gradcheck(call, (z, *(value.clone().requires_grad_() for value in values)))


@every_family
def test_density_gradient_against_finite_differences(family):
    bijection, step = generic(family), 1e-5
    z = torch.randn(1, DIM, generator=make_generator(5), dtype=torch.float64)

    def log_density(z):
        base, logdet = bijection.inverse(z)
        return (-0.5 * (base**2).sum(-1) + logdet).squeeze()

    grad = jacobian(log_density, z)[0]
    shifts = step * torch.eye(DIM, dtype=torch.float64)
    expected = torch.stack([(log_density(z + shift) - log_density(z - shift)) / (2 * step) for shift in shifts])
    torch.testing.assert_close(grad, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", LEARNABLE)
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_derivative_at_the_origin(family, direction):
    bijection, z = generic(family), torch.zeros(DIM, dtype=torch.float64)
    bijection = bijection.with_parameters(
        {name: torch.zeros_like(value) if name.endswith("skew") else value for name, value in bijection.parameters().items()}
    )

    def move(z):
        return getattr(bijection, direction)(z.unsqueeze(0))[0][0]

    step = 1e-6 * torch.eye(DIM, dtype=torch.float64)
    expected = torch.stack([(move(z + row) - move(z - row)) / 2e-6 for row in step], dim=1)
    torch.testing.assert_close(jacobian(move, z), expected, rtol=1e-6, atol=1e-6)


@every_family
@pytest.mark.parametrize("size", [0.0, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("raw", [0.3, 1.0, 3.0])
def test_float32_stays_finite(family, size, raw):
    bijection = generic(family, torch.float32, raw)
    z = size * torch.nn.functional.normalize(torch.randn(20, DIM, generator=make_generator(6)), dim=-1)
    z.requires_grad_()
    for call in (bijection.forward, bijection.inverse):
        moved, logdet = call(z)
        (grad,) = torch.autograd.grad(moved.sum() + logdet.sum(), z)
        assert moved.dtype == logdet.dtype == torch.float32
        assert bool(moved.isfinite().all() and logdet.isfinite().all() and grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 4.0, 20.0])
def test_planar_stays_invertible_however_far_raw_u_points_against_w(dtype, size):
    ones = torch.ones(DIM, dtype=dtype)
    bijection = Planar(-size * ones, size * ones, ones.new_zeros(()))
    z = torch.tensor([[0.0] * DIM, [1e-3] * DIM], dtype=dtype)
    for moved, logdet in (bijection.forward(z), bijection.inverse(z)):
        assert bool(moved.isfinite().all() and logdet.isfinite().all())


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-8, 1e-12, 1e-30])
def test_planar_u_depends_on_the_direction_of_w_only_in_the_limit(size):
    w = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)
    raw_u, bias = tensor([1.0, 2.0, 3.0]), tensor(50.0)  # tanh is one there, so the image of zero is u
    u = Planar(raw_u, size * w, bias).forward(torch.zeros(1, DIM, dtype=torch.float64))[0][0]
    product = size * (raw_u @ w).item()
    along = math.log1p((1 - 1 / math.e) * math.expm1(product)) / size
    torch.testing.assert_close(u, raw_u + (along - raw_u @ w) * w, rtol=1e-8, atol=1e-8)


def test_radial_inverse_gradient_far_from_a_small_alpha():
    z = torch.tensor([[1e4, 0.0, 0.0]], requires_grad=True)
    bijection = Radial(torch.zeros(DIM), torch.tensor(-12.0), torch.tensor(0.0))
    base, logdet = bijection.inverse(z)
    (grad,) = torch.autograd.grad(base.sum() + logdet.sum(), z)
    torch.testing.assert_close(grad, torch.ones_like(grad), rtol=1e-3, atol=1e-3)


def test_radial_at_its_center():
    bijection = Radial(tensor([1.0, 2.0, 3.0]), tensor(0.5), tensor(-20.0))
    center = bijection.center.unsqueeze(0)
    moved, logdet = bijection.forward(center)
    ratio = math.log1p(math.exp(-20.0)) / math.log1p(math.exp(0.5))
    assert torch.equal(moved, center)
    assert torch.equal(bijection.inverse(center)[0], center)
    assert logdet.item() == pytest.approx(DIM * math.log(ratio), rel=1e-8)


def test_radial_known_answer():
    """Alpha = 1, beta = 1: a point at distance 1 moves to distance 1.5."""
    one, two = (tensor(math.log(math.expm1(value))) for value in (1.0, 2.0))
    moved, logdet = Radial(torch.zeros(2, dtype=torch.float64), one, two).forward(tensor([[1.0, 0.0]]))
    torch.testing.assert_close(moved, tensor([[1.5, 0.0]]))
    assert logdet.item() == pytest.approx(math.log(1.5 * (1 + 1 / 4)))


@pytest.mark.parametrize("dim", [1, 100, 1000])
def test_radial_uniform(dim, generator):
    bijection = Radial.uniform(torch.zeros(dim), generator=generator)
    values = math.sqrt(dim) * torch.cat([value.flatten() for value in bijection.parameters().values()])
    assert bijection.center.shape == (dim,)
    assert bijection.raw_alpha.shape == bijection.raw_gamma.shape == ()
    assert values.abs().max() <= 1
    assert values.unique().numel() == dim + 2
    # a uniform on (-1, 1) has variance 1/3, and the mean of n of them 1/(3n)
    assert values.mean().abs() < 5 / math.sqrt(3 * (dim + 2))
    assert (values**2).mean().item() == pytest.approx(1 / 3, abs=5 * math.sqrt(4 / 45 / (dim + 2)))


@pytest.mark.parametrize(("raw_tail", "tail"), [(0.0, 1.0), (-20.0, 0.5), (20.0, 2.0)])
@pytest.mark.parametrize("skew", [-1.0, 0.0, 2.0])
def test_sinh_arcsinh_known_answer(raw_tail, tail, skew):
    z = tensor([[-1e6, -2.0, -1e-9, 0.0, 1e-9, 0.5, 3.0, 1e6]])
    bijection = SinhArcsinh(skew * torch.ones(8, dtype=torch.float64), raw_tail * torch.ones(8, dtype=torch.float64))
    expected = [math.sinh(tail * (math.asinh(value) + skew)) for value in z[0].tolist()]
    torch.testing.assert_close(bijection.forward(z)[0][0], tensor(expected), rtol=1e-12, atol=1e-15)


def test_planar_without_a_normal_is_a_shift():
    raw_u, zero, bias = tensor([1.0, -2.0, 3.0]), torch.zeros(DIM, dtype=torch.float64), tensor(0.7)
    moved, logdet = Planar(raw_u, zero, bias).forward(zero.unsqueeze(0))
    torch.testing.assert_close(moved[0], raw_u * math.tanh(0.7))
    assert logdet.item() == pytest.approx(0.0, abs=1e-15)


def bent(num_directions, seed=0):
    """Layers that skew, spread and move as many coordinates."""
    draw = torch.randn(3, num_directions, generator=make_generator(seed), dtype=torch.float64)
    return SinhArcsinh(0.5 * draw[0], 0.5 * draw[1]), Shift(draw[2])


def complement(basis):
    """Orthonormal directions (d, d - k) at right angles to all of the basis."""
    return torch.linalg.qr(basis, mode="complete").Q[:, basis.shape[1] :]


def test_a_subspace_of_coordinates_leaves_the_others_alone_to_the_last_bit():
    z = torch.randn(20, 5, generator=make_generator(5), dtype=torch.float64)
    bijection = Subspace(torch.eye(5, dtype=torch.float64)[:, [3, 1]], bent(2))
    for call in (bijection.forward, bijection.inverse):
        moved = call(z)[0]
        assert torch.equal(moved[:, [0, 2, 4]], z[:, [0, 2, 4]])
        assert bool((moved[:, [1, 3]] != z[:, [1, 3]]).all())


def test_a_subspace_looks_at_its_basis_once(monkeypatch):
    bijection = Subspace(orthonormal(7, 2), bent(2))
    monkeypatch.setattr(Subspace, "__post_init__", lambda _: pytest.fail("looked again"))
    other = bijection.with_parameters({name: value + 1.0 for name, value in bijection.parameters().items()})
    assert other.basis is bijection.basis
    for name, value in bijection.parameters().items():
        assert torch.equal(other.parameters()[name], value + 1.0)
        assert not torch.equal(bijection.parameters()[name], value + 1.0)


@pytest.mark.parametrize("num_directions", [1, 3, 6])
def test_a_subspace_leaves_its_complement_alone(num_directions):
    basis = orthonormal(7, num_directions)
    bijection, rest = Subspace(basis, bent(num_directions)), complement(basis)
    z = torch.randn(20, 7, generator=make_generator(5), dtype=torch.float64)
    for call in (bijection.forward, bijection.inverse):
        torch.testing.assert_close(call(z)[0] @ rest, z @ rest, rtol=1e-13, atol=1e-13)


def test_a_subspace_is_the_inner_bijections_in_its_coordinates():
    basis, layers = orthonormal(7, 3), bent(3)
    z = torch.randn(20, 7, generator=make_generator(5), dtype=torch.float64)
    first, first_logdet = layers[0].forward(z @ basis)
    second, second_logdet = layers[1].forward(first)
    moved, logdet = Subspace(basis, layers).forward(z)
    torch.testing.assert_close(moved @ basis, second, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(logdet, first_logdet + second_logdet)


def test_the_subspace_of_everything_is_the_inner_bijection():
    (inner, _), z = bent(4), torch.randn(20, 4, generator=make_generator(5), dtype=torch.float64)
    whole = Subspace(torch.eye(4, dtype=torch.float64), (inner,))
    for direction in ("forward", "inverse"):
        for one, other in zip(getattr(whole, direction)(z), getattr(inner, direction)(z), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_under_a_standard_normal_a_subspace_and_its_complement_stay_independent():
    """The density is that of the inner flow, times a standard normal of the complement."""
    basis, layers = orthonormal(5, 2), bent(2)
    rest, x = complement(basis), 2.0 * torch.randn(30, 5, generator=make_generator(5), dtype=torch.float64)
    whole = FlowPosterior(Gaussian.standard(x[0]), (Subspace(basis, layers),))
    inside = FlowPosterior(Gaussian.standard(basis[0]), layers)
    expected = inside.log_prob(x @ basis) + Gaussian.standard(rest[0]).log_prob(x @ rest)
    torch.testing.assert_close(whole.log_prob(x), expected, rtol=1e-12, atol=1e-12)
    draws = whole.sample(20_000, generator=make_generator(6))
    inner, outer = draws @ basis, draws @ rest
    assert float(outer.mean(0).abs().max()) < 5 / math.sqrt(len(draws))
    assert float((outer.T.cov() - torch.eye(3)).abs().max()) < 5 * math.sqrt(2 / len(draws))
    across = (inner - inner.mean(0)).T @ outer / len(draws) / inner.std(0).unsqueeze(1)
    assert float(across.abs().max()) < 5 / math.sqrt(len(draws))


def test_parameters_of_a_subspace_are_those_of_its_layers():
    basis = orthonormal(5, 2)
    bijection = Subspace(basis, (Shift(tensor([1.0, 2.0])), Rotation.cosine(basis[0]), Shift(tensor([3.0, 4.0]))))
    assert {name: value.tolist() for name, value in bijection.parameters().items()} == {
        "0.offset": [1.0, 2.0],
        "2.offset": [3.0, 4.0],
    }
    other = bijection.with_parameters({"0.offset": tensor([5.0, 6.0]), "2.offset": tensor([7.0, 8.0])})
    assert other.basis is basis
    assert other.bijections[0].offset.tolist() == [5.0, 6.0]
    assert other.bijections[2].offset.tolist() == [7.0, 8.0]
    assert bijection.bijections[0].offset.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        (torch.ones(3), r"`basis` must have shape \(d, k\) with 1 <= k <= d, got \(3,\)"),
        (torch.eye(3)[:, :0], r"`basis` must have shape .* got \(3, 0\)"),
        (torch.eye(3)[:2], r"`basis` must have shape .* got \(2, 3\). Pass one column for each direction"),
        (torch.full((3, 1), math.nan), "`basis` must be finite"),
        (2.0 * torch.eye(3), "`basis` must be orthonormal, got products off by 3. Orthonormalise it"),
        (torch.tensor([[1.0, 0.6], [0.0, 0.8]]), "`basis` must be orthonormal, got products off by 0.6"),
    ],
)
def test_wrong_bases_of_a_subspace_are_refused(basis, message):
    with pytest.raises(ValueError, match=message):
        Subspace(basis, ())


@pytest.mark.parametrize(
    "inner",
    [
        Shift(torch.zeros(3)),
        Rotation.cosine(torch.zeros(3)),
        Affine(torch.zeros(3), Diagonal(torch.ones(3))),
        Triangular.identity(torch.zeros(3)),
        Subspace(torch.eye(3), ()),
    ],
)
def test_layers_of_another_size_than_the_subspace_are_refused(inner):
    with pytest.raises(ValueError, match=f"must act on the 2 dimensions of the subspace, got a {type(inner).__name__} that"):
        Subspace(torch.eye(3)[:, :2], (Shift(torch.zeros(2)), inner))


def test_layers_of_another_type_than_the_subspace_are_refused():
    with pytest.raises(TypeError, match=r"`bijections: Shift.offset` must be torch.float32 on cpu like the basis"):
        Subspace(torch.eye(3)[:, :2], (Shift(torch.zeros(2, dtype=torch.float64)),))
