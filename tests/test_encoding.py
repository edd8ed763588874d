"""The codec between values and JSON with named tensors: exact round trips, and everything else refused."""

import json
import math
import struct
from dataclasses import dataclass, field, fields, is_dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from burnish.bijections import Bijection, Planar, Radial, SinhArcsinh, Subspace
from burnish.encoding import decode, encode
from burnish.heads import LinearHead, Model
from burnish.inference.rotated import RotatedKronecker
from burnish.layer_scales import BlockDiagonal
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise
from burnish.linear_bijections import Affine, DiagonalScale, LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import make_generator
from burnish.posteriors import KINDS as POSTERIORS
from burnish.posteriors import FlowPosterior, Gaussian, MixturePosterior, SamplePosterior
from burnish.scales import Dense, Diagonal, LowRank, Scale
from burnish.storage import read_file, write_file
from burnish.target import PriorTuning

BIJECTIONS = (
    *(Affine, DiagonalScale, LowRankStretch, Planar, Radial, Rotation),
    *(Shift, SinhArcsinh, Subspace, Triangular),
)
MODELS = (Model, LinearHead, Categorical, Bernoulli, GaussianNoise)


@dataclass(frozen=True, eq=False)
class Leaf:
    """Anything, for the codec's own tests."""

    content: object = None
    number: float = 0.0


@dataclass(frozen=True, eq=False)
class Pair:
    left: object
    right: object
    derived: int = field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "derived", 7)


@dataclass(frozen=True)
class Picky:
    size: int

    def __post_init__(self):
        if self.size < 0:
            raise AttributeError("an odd error of a constructor")


KINDS = (Leaf, Pair, Picky)


def same(first, second):
    """Equal to the bit, in type and structure."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and first.shape == second.shape and first.tolist() == second.tolist()
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if is_dataclass(first):
        return all(same(getattr(first, item.name), getattr(second, item.name)) for item in fields(first))
    return first == second


def through_a_file(value, path, kinds):
    tree, tensors = encode(value, kinds)
    write_file(path, {"value": tree}, tensors)
    header, tensors = read_file(path)
    assert set(header) == {"value"}
    return decode(header["value"], tensors, kinds)


# Round trips


def cast(value, dtype):
    """A value with all its floating-point tensors in another dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(cast(item, dtype) for item in value)
    if is_dataclass(value):
        return replace(value, **{item.name: cast(getattr(value, item.name), dtype) for item in fields(value)})
    return value


def draw(*shape):
    return torch.randn(shape, generator=make_generator(3), dtype=torch.float64)


def flow(whitened):
    like, generator = draw(6), make_generator(4)
    bijections = (
        Shift(draw(6)),
        DiagonalScale(0.1 * draw(6)),
        SinhArcsinh(0.1 * draw(6), 0.1 * draw(6)),
        Rotation.cosine(like),
        Rotation.cosine(like).transposed(),  # a view that is not contiguous
        Radial.identity(like, generator=generator),
        Radial.uniform(like, generator=generator),  # three views of one storage
        Planar.identity(like, generator=generator),
        Triangular(draw(6, 6), 0.1 * draw(6)),
        LowRankStretch(0.3 * draw(6, 2)),
        Subspace(torch.linalg.qr(draw(6, 2)).Q, (Shift(draw(2)), Triangular(draw(2, 2), 0.1 * draw(2)))),
        Affine(draw(6), Diagonal(0.5 + draw(6).abs())),
    )
    base = Gaussian(draw(6), Dense(0.2 * draw(6, 6).tril(-1) + torch.eye(6, dtype=torch.float64)))
    return FlowPosterior.whitened(base, bijections) if whitened else FlowPosterior(base, bijections)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussians_come_back_exactly(tmp_path, scale, dtype):
    posterior = cast(Gaussian(draw(6), scale), dtype)
    check_exact(posterior, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("whitened", [False, True])
def test_flows_come_back_exactly(tmp_path, whitened, dtype):
    posterior = cast(flow(whitened), dtype)
    assert {type(bijection) for bijection in posterior.bijections} == set(BIJECTIONS)
    check_exact(posterior, tmp_path)


def test_every_scale_and_bijection_can_be_kept():
    def leaves(kind):
        return {leaf for child in kind.__subclasses__() for leaf in leaves(child)} or {kind}

    ours = {kind for base in (Scale, Bijection) for kind in leaves(base) if kind.__module__.startswith("burnish.")}
    assert ours - {RotatedKronecker} <= set(POSTERIORS)  # which is turned back before anyone sees it


def test_mixtures_come_back_exactly(tmp_path, scale):
    check_exact(MixturePosterior((Gaussian(draw(6), scale), flow(True))), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_come_back_exactly(tmp_path, dtype):
    check_exact(SamplePosterior(draw(5, 6).to(dtype)), tmp_path)


def check_exact(posterior, folder):
    back = through_a_file(posterior, folder / "posterior.safetensors", POSTERIORS)
    assert same(back, posterior)
    sample = [value.sample(4, generator=make_generator(5)) for value in (posterior, back)]
    assert torch.equal(*sample)
    if not isinstance(posterior, SamplePosterior):
        assert torch.equal(posterior.log_prob(sample[0]), back.log_prob(sample[0]))


@pytest.mark.parametrize(
    "model",
    [Model(LinearHead(3, 2)), Model(LinearHead(3, 1, False), Bernoulli()), Model(LinearHead(2, 4), GaussianNoise(0.1))],
)
def test_models_come_back_equal(tmp_path, model):
    assert through_a_file(model, tmp_path / "model.safetensors", MODELS) == model


def test_results_with_odd_numbers_come_back(tmp_path):
    tuning = PriorTuning("évidence", (("zero", 1e-300, -math.inf), ("head", 0.1, math.nan)), "zero", math.inf, True)
    back = through_a_file(tuning, tmp_path / "tuning.safetensors", (PriorTuning,))
    assert same(back, tuning)


def test_the_tree_is_json_and_names_are_paths():
    value = {"posterior": FlowPosterior(Gaussian.standard(torch.zeros(2)), (Shift(torch.ones(2)), Shift(torch.ones(2))))}
    tree, tensors = encode(value, POSTERIORS)
    assert set(tensors) == {
        "posterior.base.mean",
        "posterior.base.scale.std",
        "posterior.bijections.0.offset",
        "posterior.bijections.1.offset",
    }
    shift = tree["dict"]["posterior"]["fields"]["bijections"]["tuple"][1]
    assert shift == {"kind": "Shift", "fields": {"offset": {"tensor": "posterior.bijections.1.offset"}}}
    assert encode((math.inf, -math.inf, math.nan, 1.5), ())[0] == {
        "tuple": [{"float": "inf"}, {"float": "-inf"}, {"float": "nan"}, 1.5]
    }
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree


def test_stored_tensors_are_plain_copies(tmp_path):
    whole = torch.randn(4, 6, generator=make_generator(0))
    negated = torch.complex(whole, whole).conj().imag  # a negation bit, which is not in its bytes
    parameter = nn.Parameter(whole)
    value = (whole, whole.T, whole[:, ::2], whole[0], parameter, whole.expand(2, 4, 6), negated)
    _, tensors = encode(value, ())
    assert all(item.is_contiguous() and not item.requires_grad and not item.is_neg() for item in tensors.values())
    assert len({item.data_ptr() for item in tensors.values()} | {whole.data_ptr()}) == len(tensors) + 1
    back = through_a_file(value, tmp_path / "file", ())
    assert all(torch.equal(first, second) for first, second in zip(value, back, strict=True))
    for item in back:
        item.add_(1)  # writable, and nobody else's
    assert torch.equal(back[0], whole + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_every_dtype_and_odd_shapes_come_back(tmp_path, dtype):
    value = tuple(torch.ones(shape, dtype=dtype) for shape in [(), (0,), (0, 3), (2, 0), (3,), (1, 2, 3), (1,) * 64])
    assert same(through_a_file(value, tmp_path / "file", ()), value)


def test_layouts_come_back(tmp_path):
    """Matrix products depend on them in the last bit."""
    whole = torch.arange(24.0).view(2, 3, 4)
    value = tuple(whole.permute(order) for order in [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
    tree, tensors = encode(value, ())
    assert tree["tuple"][:2] == [{"tensor": "0"}, {"tensor": "1", "order": [1, 2, 0]}]
    assert all(
        torch.equal(tensors[str(index)], item) and tensors[str(index)].is_contiguous() for index, item in enumerate(value)
    )
    back = through_a_file(value, tmp_path / "file", ())
    assert same(back, value)
    assert [item.stride() for item in back] == [item.stride() for item in value]


def test_names_that_collide_or_are_reserved_stay_apart(tmp_path):
    one, two = torch.ones(1), torch.zeros(2)
    value = {"a.b": one, "a": {"b": two, "b'": one}, "__metadata__": two, "\ud800": one, "": two, '\0\n"é': one}
    assert same(through_a_file(value, tmp_path / "file", ()), value)
    assert same(through_a_file(one, tmp_path / "file", ()), one)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from([math.nan])
    | st.text(max_size=8)
)
tensors_strategy = st.lists(st.floats(-10, 10, width=32), max_size=3).map(torch.tensor)
values = st.recursive(
    scalars | tensors_strategy,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.builds(Leaf, inner, st.floats(allow_nan=False))
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@given(values)
def test_any_tree_comes_back(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    assert same(through_a_file(value, path, KINDS), value)


# What the codec refuses


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {1: 2},
        {1, 2},
        b"bytes",
        object(),
        1j,
        torch.float32,
        torch.Size([2]),
        Shift(torch.ones(2)),
        Leaf,
        len,
        Leaf([1]),
    ],
)
def test_other_things_are_not_encoded(value):
    with pytest.raises(TypeError, match=r"must be a tensor, number, .* got \w+\. Convert it before saving\."):
        encode(value, KINDS)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.int32),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.ones((1,) * 65),
    ],
)
def test_other_tensors_are_not_encoded(tensor):
    with pytest.raises(TypeError, match=r"`content` must be a dense tensor of one of torch.float16.*Convert it"):
        encode(Leaf(tensor), KINDS)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_must_be_finite(tmp_path, number, dtype):
    tensor = torch.tensor([1.0, number], dtype=dtype)
    with pytest.raises(ValueError, match=r"`content` must be finite"):
        encode(Leaf(tensor), KINDS)
    with pytest.raises(ValueError, match=r"`x` must be finite"):
        write_file(tmp_path / "file", {}, {"x": tensor})
    with pytest.raises(ValueError, match=r"damaged at `value`: `x` must be finite"):
        decode({"tensor": "x"}, {"x": tensor}, ())


def test_bools_must_be_bools():
    odd = torch.tensor([0, 2], dtype=torch.uint8).view(torch.bool)
    with pytest.raises(ValueError, match="bytes 0 and 1"):
        encode(odd, ())
    with pytest.raises(ValueError, match="bytes 0 and 1"):
        decode({"tensor": "x"}, {"x": odd}, ())


def test_deep_nesting_is_refused():
    value, tree = (), {"tuple": []}
    for _ in range(2000):
        value, tree = (value,), {"tuple": [tree]}
    with pytest.raises(ValueError, match="nested at most 64 deep"):
        encode(value, ())
    for bad in (tree, tree["tuple"]):
        with pytest.raises(ValueError, match="damaged"):
            decode(bad, {}, ())
    itself = {}
    itself["itself"] = itself
    with pytest.raises(ValueError, match="nested"):
        encode(itself, ())


def test_a_kind_is_known_by_its_class_not_its_name():
    impostor = dataclass(frozen=True)(type("Leaf", (), {"__annotations__": {"content": int}}))
    with pytest.raises(TypeError, match="got Leaf"):
        encode(impostor(1), KINDS)
    for kinds in ((Leaf, impostor), (Leaf, int)):
        with pytest.raises(TypeError, match="`kinds` must be dataclasses with different names"):
            encode(1, kinds)


X = {"x": torch.ones(2)}


@pytest.mark.parametrize(
    ("tree", "tensors", "message"),
    [
        ({"kind": "Shift", "fields": {"offset": {"tensor": "x"}}}, X, "'Shift' is none of Leaf, Pair, Picky"),
        ({"kind": "object", "fields": {}}, {}, "'object' is none of"),
        ({"kind": "Pair", "fields": {"left": 1}}, {}, r"missing fields \['right'\]"),
        ({"kind": "Leaf", "fields": {"content": 1}}, {}, r"missing fields \['number'\]"),
        ({"kind": "Pair", "fields": {"left": 1, "right": 1, "derived": 1}}, {}, r"unknown fields \['derived'\]"),
        ({"kind": "Picky", "fields": {"size": -1}}, {}, "Picky refuses its fields .AttributeError: an odd error"),
        ({"kind": "Picky", "fields": {"size": "text"}}, {}, "Picky refuses its fields .TypeError"),
        ({"tuple": [1, {"dict": {"key": {"kind": "Picky", "fields": {"size": -1}}}}]}, {}, "`1.key`: Picky refuses"),
        ({"kind": "Picky"}, {}, "no value is written as"),
        ({"kind": "Picky", "fields": {"size": 1}, "more": 1}, {}, "no value is written as"),
        ({"kind": "Picky", "fields": [1]}, {}, "no value is written as"),
        ({"kind": 1, "fields": {}}, {}, "no value is written as"),
        ({"kind": ["Picky"], "fields": {}}, {}, "no value is written as"),
        ({}, {}, "no value is written as"),
        ([], {}, "no value is written as"),
        ((), {}, "no value is written as"),
        (math.nan, {}, "no value is written as nan"),
        (math.inf, {}, "no value is written as inf"),
        ({"float": "1.0"}, {}, "no value is written as"),
        ({"float": 1.0}, {}, "no value is written as"),
        ({"tuple": {}}, {}, "no value is written as"),
        ({"tuple": "text"}, {}, "no value is written as"),
        ({"dict": []}, {}, "no value is written as"),
        ({"dict": {1: 2}}, {}, "no value is written as"),
        ({"tensor": 1}, {}, "no value is written as"),
        ({"tensor": ["x"]}, X, "no value is written as"),
        ({"tensor": "x", "tuple": []}, X, "no value is written as"),
        ({"tensor": "x", "order": [1, 0]}, X, "is no order of its dimensions"),
        ({"tensor": "x", "order": [-1]}, X, "is no order of its dimensions"),
        ({"tensor": "x", "order": [0.0]}, X, "permute"),
        ({"tensor": "x", "order": ["0", 1]}, X, "not supported between"),
        ({"tensor": "x", "order": 0}, X, "no value is written as"),
        ({"tensor": "y"}, X, "the tensor 'y' is missing"),
        ({"tuple": [{"tensor": "x"}, {"tensor": "x"}]}, X, "`1`: the tensor 'x' is used twice"),
        (1, X, r"nothing refers to the tensors \['x'\]"),
        ({"tensor": "x"}, {"x": torch.ones(2, dtype=torch.int32)}, "must be a dense tensor"),
    ],
)
def test_other_trees_are_not_decoded(tree, tensors, message):
    with pytest.raises(ValueError, match=rf"the file is damaged at .*{message}.*Save it again, or use another copy\."):
        decode(tree, tensors, KINDS)


def every_tree_with(wrong, applies, node):
    """Copies of a tree with one node replaced."""
    if applies(node):
        yield wrong
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        for new in every_tree_with(wrong, applies, item):
            copy = node.copy()
            copy[key] = new
            yield copy


@pytest.mark.parametrize("wrong", ["text", 1, -1, 0.5, None, True, {"tuple": []}, {"dict": {}}, {"float": "nan"}, []])
@pytest.mark.parametrize("posterior", [flow(True), Gaussian(draw(3), Diagonal(draw(3).abs())), SamplePosterior(draw(2, 3))])
def test_anything_in_the_place_of_a_tensor_is_refused(posterior, wrong):
    tree, tensors = encode(posterior, POSTERIORS)
    trees = list(every_tree_with(wrong, lambda node: isinstance(node, dict) and "tensor" in node, tree))
    assert len(trees) == len(tensors)
    for bad, name in zip(trees, tensors, strict=True):
        others = {key: tensor for key, tensor in tensors.items() if key != name}
        with pytest.raises(ValueError, match=r"refuses its fields|no value is written as"):
            decode(bad, others, POSTERIORS)


@pytest.mark.parametrize("wrong", ["text", 1, 0.5, True, {"tuple": []}, {"dict": {}}, {"float": "nan"}, []])
@pytest.mark.parametrize(
    ("scale", "name"),
    [
        (LowRank(torch.ones(3), torch.eye(3)[:, :1], torch.ones(1), torch.ones(3)), "inner"),
        (BlockDiagonal((Diagonal(torch.ones(1)), Diagonal(torch.ones(2))), torch.tensor([1, 0, 2])), "order"),
    ],
)
def test_a_tensor_that_may_be_missing_is_a_tensor_or_missing(scale, name, wrong):
    tree, tensors = encode(scale, POSTERIORS)
    others = {key: tensor for key, tensor in tensors.items() if key != name}
    assert set(tensors) - set(others) == {name}
    with pytest.raises(ValueError, match=r"refuses its fields|no value is written as"):
        decode({**tree, "fields": {**tree["fields"], name: wrong}}, others, POSTERIORS)
    without = decode({**tree, "fields": {**tree["fields"], name: None}}, others, POSTERIORS)
    assert getattr(without, name) is None


@pytest.mark.parametrize("inside", [1, "text", None, {"kind": "Shift", "fields": {"offset": {"tensor": "x"}}}])
def test_only_scales_are_blocks(inside):
    tree, tensors = encode(Gaussian(torch.zeros(3), BlockDiagonal((Diagonal(torch.ones(3)),))), POSTERIORS)
    tree["fields"]["scale"]["fields"]["blocks"]["tuple"][0] = inside
    given = {"mean": tensors["mean"], **(X if isinstance(inside, dict) else {})}
    with pytest.raises(ValueError, match="refuses its fields"):
        decode(tree, given, POSTERIORS)


def test_a_class_is_not_saved_with_something_else_in_a_tensors_place():
    with pytest.raises(TypeError, match="`offset` of Shift must be a tensor, got str"):
        encode(Shift("text"), POSTERIORS)


def test_constructors_check_what_they_are_given():
    tree, tensors = encode(Gaussian(draw(3), Diagonal(draw(3).abs())), POSTERIORS)
    with pytest.raises(
        ValueError, match=r"damaged at `scale`: Diagonal refuses its fields .ValueError: `std` must be positive"
    ):
        decode(tree, {**tensors, "scale.std": -tensors["scale.std"]}, POSTERIORS)
    with pytest.raises(ValueError, match=r"damaged at `value`: Gaussian refuses its fields .TypeError"):
        decode(tree, {**tensors, "mean": tensors["mean"].float()}, POSTERIORS)
