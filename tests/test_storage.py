"""Files that hold posteriors: written at once or not at all, read only if every byte is right; and fingerprints."""

import errno
import hashlib
import json
import math
import os
import random
import resource
import stat
import struct
import time

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from burnish import storage
from burnish.bijections import Subspace
from burnish.encoding import decode, encode
from burnish.layer_scales import BlockDiagonal
from burnish.linear_bijections import LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian
from burnish.scales import Dense, Diagonal, LowRank
from burnish.storage import FORMAT_VERSION, Fingerprint, check_fingerprint, fingerprint, read_file, write_file
from test_encoding import POSTERIORS, X, draw, every_tree_with, same, through_a_file

# Writing


def test_what_is_written_comes_back_and_is_a_safetensors_file(tmp_path):
    header = {"a": [1, 2.5, None, True, "é\ud800"], "b": {"c": {}}}
    tensors = {"x": torch.arange(3.0), "y": torch.tensor(True)}
    write_file(tmp_path / "file", header, tensors)
    back, back_tensors = read_file(str(tmp_path / "file"))
    assert back == header
    assert same(dict(sorted(back_tensors.items())), tensors)
    assert set(parts((tmp_path / "file").read_bytes())[0]["__metadata__"]) == {"burnish", "checksum"}
    first = (tmp_path / "file").read_bytes()
    write_file(tmp_path / "file", header, dict(reversed(tensors.items())))
    back_again = (tmp_path / "file").read_bytes()
    assert parts(first)[0]["__metadata__"] == parts(back_again)[0]["__metadata__"]
    write_file(tmp_path / "empty", {}, {})
    assert read_file(tmp_path / "empty") == ({}, {})


@pytest.mark.parametrize(
    "header",
    [
        {"a": (1, 2)},
        {1: 2},
        {"a": {1: 2}},
        {"a": object()},
        {"a": {1, 2}},
        {"format": "other"},
        {"version": 1},
        {"a": {"b": b""}},
    ],
)
def test_headers_must_be_plain_json(tmp_path, header):
    with pytest.raises(TypeError):
        write_file(tmp_path / "file", header, {})
    assert os.listdir(tmp_path) == []


def test_numbers_that_json_has_not_are_no_header(tmp_path):
    with pytest.raises(ValueError):
        write_file(tmp_path / "file", {"a": math.nan}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_open(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_file(tmp_path / "file", {}, X)
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
    (tmp_path / "file").chmod(0o640)
    write_file(tmp_path / "file", {"a": 1}, {})
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert read_file(tmp_path / "file") == ({"a": 1}, {})


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    for number in (1, 2):
        write_file(tmp_path / "link", {"a": number}, X)
        assert (tmp_path / "link").is_symlink()
        assert read_file(tmp_path / "folder" / "file")[0] == {"a": number}
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_relative_path_and_a_very_long_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("file", "n" * 255):
        write_file(name, {"a": 1}, X)
        assert read_file(name)[0] == {"a": 1}
    with pytest.raises(OSError, match="`path` must be a file that can be written"):
        write_file("n" * 256, {"a": 1}, X)
    assert sorted(os.listdir(tmp_path)) == ["file", "n" * 255]


def fail_with(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device. Free some space"),
        (OSError(errno.EROFS, "Read-only file system"), "Choose a folder that you may write to"),
        (OSError("without a number"), "without a number. Choose another place"),
        (PermissionError(errno.EACCES, "Permission denied"), "Choose a folder that you may write to"),
        (KeyboardInterrupt(), None),
        (MemoryError(), None),
    ],
)
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, function, error, remedy):
    path = tmp_path / "file"
    write_file(path, {"old": 1}, X)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, function, fail_with(error))
        with pytest.raises(type(error)) as caught:
            write_file(path, {"new": 1}, X)
    if remedy is not None:
        assert remedy in str(caught.value)
        assert f"`path` must be a file that can be written, got {str(path)!r}" in str(caught.value)
        assert caught.value.errno == (error.errno or errno.EIO)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path):
    """A real failure of the system: files may not grow beyond 10,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(OSError, match=r"File too large\. Free some space") as caught:
            write_file(tmp_path / "file", {}, {"x": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("missing/file", FileNotFoundError, "No such file or directory. Create its folder first"),
        ("regular/file", NotADirectoryError, "Not a directory. Create its folder first"),
        ("folder", IsADirectoryError, "it is a folder. Add a file name"),
        ("", IsADirectoryError, "it is a folder. Add a file name"),
        ("/", IsADirectoryError, "it is a folder. Add a file name"),
        ("pipe", FileExistsError, "it is a device, a pipe or a socket. Choose another place"),
        ("/dev/null", FileExistsError, "it is a device, a pipe or a socket. Choose another place"),
        ("/proc/burnish.safetensors", OSError, "`path` must be a file that can be written"),
        ("/sys/burnish.safetensors", OSError, "`path` must be a file that can be written"),
    ],
)
def test_places_that_cannot_be_written(tmp_path, monkeypatch, path, error, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "regular").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        write_file(path, {}, X)
    assert f"`path` must be a file that can be written, got {path!r}" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe", "regular"]
    assert (tmp_path / "regular").read_text() == "mine"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """By hand, because nothing stops the superuser."""
    monkeypatch.setattr("builtins.open", fail_with(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(PermissionError, match=r"Permission denied\. Choose a folder that you may write to"):
        write_file(tmp_path / "file", {}, X)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", [3, None, b"bytes"])
def test_a_path_is_a_name(path):
    with pytest.raises(TypeError):
        write_file(path, {}, X)
    with pytest.raises(TypeError):
        read_file(path)


# Reading


def parts(content):
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def assemble(entries, data=b""):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def canonical(**header):
    return json.dumps(header, sort_keys=True, separators=(",", ":"))


def checksum(text, *tensors):
    """The definition, a second time: over the text, then each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode() + b"\n")
    for name, dtype, shape, data in tensors:
        digest.update(json.dumps([name, dtype, shape]).encode() + b"\n" + data)
    return digest.hexdigest()


TEXT = canonical(format="burnish", version=FORMAT_VERSION)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DATA = struct.pack("<2f", 1.0, 2.0)


def file_with(text=TEXT, entries=None, data=DATA, labels=(("x", "torch.float32", [2], DATA),), metadata=None):
    entries = {"x": ENTRY} if entries is None else entries
    metadata = {"burnish": text, "checksum": checksum(text, *labels)} if metadata is None else metadata
    return assemble({"__metadata__": metadata, **entries}, data)


def refuses(folder, content, message):
    (folder / "file").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message) as caught:
        read_file(folder / "file")
    assert time.perf_counter() - start < 1.0
    text = str(caught.value)
    assert text.startswith(f"`path` must be a burnish file, got {str(folder / 'file')!r}: ")
    assert text.endswith(
        ("another copy.", "that burnish saved.", "Upgrade burnish.", "with this burnish.", "fit again.", "comparison.")
    )


def test_a_file_made_by_hand_is_read(tmp_path):
    (tmp_path / "file").write_bytes(file_with())
    header, tensors = read_file(tmp_path / "file")
    assert header == {}
    assert same(tensors, {"x": torch.tensor([1.0, 2.0])})
    write_file(tmp_path / "ours", {}, tensors)
    assert parts((tmp_path / "ours").read_bytes()) == parts(file_with())


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path` must be an existing file, got '.*nothing'. Check the spelling"):
        read_file(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/null", ""):
        with pytest.raises(ValueError, match=r"`path` must be a regular file, got .*Pass a file that burnish saved"):
            read_file(path)


def test_a_file_larger_than_the_memory_is_not_read(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(2**43)
    with pytest.raises(MemoryError, match=r"reading .*file needs"):
        read_file(tmp_path / "file")


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\1\0\0", "a header of 1 bytes in a file of 3"),
        (bytes(8), "not a plain JSON object"),
        (b"\xff" * 100, "a header of 18446744073709551615 bytes"),
        (b"PK\3\4" * 100, "a header of"),
        ((17).to_bytes(8, "little") + b"{}" + b" " * 14, "a header of 17 bytes in a file of 24"),
        (assemble(b"{'a': 1}"), "not a plain JSON object"),
        (assemble(b"[]"), "not an object"),
        (assemble(b'"text"'), "not an object"),
        (assemble(b'{"a": "\xff"}'), "not a plain JSON object .*utf-8"),
        (assemble("{}".encode("utf-16")), "not a plain JSON object"),
        (assemble(b"\xef\xbb\xbf{}"), "not a plain JSON object .*BOM"),
        (assemble(b'{"a": NaN}'), "NaN is not finite"),
        (assemble(b'{"a": -Infinity}'), "-Infinity is not finite"),
        (assemble(b'{"a": 1e999}'), "1e999 is not finite"),
        (assemble(b'{"a": ' + b"9" * 5000 + b"}"), "not a plain JSON object"),
        (assemble(DEEP), "not a plain JSON object"),
        (assemble(b'{"a":' * 100_000), "not a plain JSON object"),
        (assemble(b'{"a": 1, "a": 1}'), "a key occurs twice"),
        (assemble(b'{"x": {"dtype": "F32", "dtype": "F32"}}'), "a key occurs twice"),
        (assemble(b'{"__metadata__": {"burnish": "", "burnish": ""}}'), "a key occurs twice"),
        (save(X), "is not a burnish file"),
        (save(X, {"format": "pt"}), "is not a burnish file"),
        (save({"x": torch.ones(2, dtype=torch.int32)}), "is not a burnish file"),
        (assemble({"__metadata__": [1]}), "is not a burnish file"),
        (assemble({}), "is not a burnish file"),
        (file_with(canonical(format="other", version=1)), "is not a burnish file"),
        (file_with(canonical(version=1)), "is not a burnish file"),
        (file_with(metadata={"burnish": TEXT}), r"the metadata are \['burnish'\]"),
        (file_with(metadata={"burnish": TEXT, "checksum": "", "more": ""}), "the metadata are"),
        (file_with(metadata={"burnish": TEXT, "checksum": 1}), "the metadata are"),
        (file_with(metadata={"burnish": {}, "checksum": ""}), "the metadata are"),
        (file_with(metadata={"burnish": TEXT, "checksum": "0" * 64}), "the checksum does not match"),
        (file_with(metadata={"burnish": TEXT, "checksum": ""}), "the checksum does not match"),
        (file_with("text"), "not a plain JSON object"),
        (file_with("[1]"), "not an object"),
        (file_with('{"format":"burnish","version":1,"a":NaN}'), "NaN is not finite"),
        (file_with('{"format":"burnish","version":1,"version":1}'), "a key occurs twice"),
        (file_with('{"format":"burnish","version":1,"a":{"b":1,"b":2}}'), "a key occurs twice"),
        (file_with('{"format":"burnish","version":1,"a":' + DEEP.decode()), "not a plain JSON object"),
        (file_with(metadata={"burnish": TEXT[:-1] + ',"a":"\ud800"}', "checksum": ""}), "safetensors does not read it"),
        (
            file_with(canonical(format="burnish", version=2)),
            r"has version 2, this burnish reads version 1\. Upgrade burnish",
        ),
        (file_with(canonical(format="burnish", version=0)), r"version 0, this burnish reads version 1\. Save it again"),
        (file_with(canonical(format="burnish", version=True)), "the version is True"),
        (file_with(canonical(format="burnish", version="1")), "the version is '1'"),
        (file_with(canonical(format="burnish", version=1.0)), "the version is 1.0"),
        (file_with(canonical(format="burnish")), "the version is None"),
    ],
)
def test_headers_that_are_refused(tmp_path, content, message):
    refuses(tmp_path, content, message)


def test_a_header_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_MAX_HEADER", 100)
    refuses(tmp_path, file_with(), "a header of")
    with pytest.raises(ValueError, match="a header of"):
        write_file(tmp_path / "new", {}, X)


@pytest.mark.parametrize(
    "entry",
    [
        1,
        [],
        {},
        {"dtype": "F32", "shape": [2]},
        {**ENTRY, "more": 1},
        {**ENTRY, "dtype": "I32"},
        {**ENTRY, "dtype": "F8_E5M2"},
        {**ENTRY, "dtype": "pickle"},
        {**ENTRY, "dtype": ["F32"]},
        {**ENTRY, "dtype": "F64"},
        {**ENTRY, "shape": [3]},
        {**ENTRY, "shape": 2},
        {**ENTRY, "shape": "2"},
        {**ENTRY, "shape": [2.0]},
        {**ENTRY, "shape": [True, 2]},
        {**ENTRY, "shape": [-1, -2]},
        {**ENTRY, "shape": [2] + [1] * 100_000},
        {**ENTRY, "shape": [2**62, 2**62]},
        {**ENTRY, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
        {**ENTRY, "shape": [0, 2**63], "data_offsets": [0, 0]},
        {**ENTRY, "data_offsets": [0]},
        {**ENTRY, "data_offsets": [0, 8, 8]},
        {**ENTRY, "data_offsets": [8, 0]},
        {**ENTRY, "data_offsets": [0, 16]},
        {**ENTRY, "data_offsets": [-8, 0]},
        {**ENTRY, "data_offsets": [4, 12]},
        {**ENTRY, "data_offsets": [False, 8]},
        {**ENTRY, "data_offsets": [0, 10**4000]},
    ],
)
def test_tensors_that_are_refused(tmp_path, entry):
    refuses(tmp_path, file_with(entries={"x": entry}), "is described as|safetensors does not read it")


def test_tensors_that_overlap_or_leave_gaps_are_refused(tmp_path):
    refuses(tmp_path, file_with(entries={"x": ENTRY, "y": ENTRY}), "safetensors does not read it")
    refuses(tmp_path, file_with(data=DATA + b"\0"), "safetensors does not read it")
    refuses(tmp_path, file_with(entries={}), "safetensors does not read it")
    gap = {"x": ENTRY, "y": {**ENTRY, "data_offsets": [12, 20]}}
    refuses(tmp_path, file_with(entries=gap, data=DATA + bytes(4) + DATA), "safetensors does not read it")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_payloads_that_are_not_finite_are_refused_with_the_right_checksum(tmp_path, number):
    data = struct.pack("<2f", 1.0, number)
    refuses(tmp_path, file_with(data=data, labels=[("x", "torch.float32", [2], data)]), r"`x` must be finite, got 1 NaN")


def test_a_bool_of_another_byte_is_refused_with_the_right_checksum(tmp_path):
    entry = {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}
    content = file_with(entries={"x": entry}, data=b"\1\2", labels=[("x", "torch.bool", [2], b"\1\2")])
    refuses(tmp_path, content, "`x` must hold bytes 0 and 1")


def test_the_checksum_covers_names_dtypes_shapes_and_the_header(tmp_path):
    refuses(tmp_path, file_with(entries={"y": ENTRY}), "checksum")
    refuses(tmp_path, file_with(entries={"x": {**ENTRY, "shape": [1, 2]}}), "checksum")
    refuses(tmp_path, file_with(entries={"x": {**ENTRY, "dtype": "F64", "shape": [1]}}), "checksum")
    right = parts(file_with())[0]["__metadata__"]
    text = canonical(format="burnish", version=1, a=1)
    refuses(tmp_path, file_with(metadata={**right, "burnish": text}), "checksum")
    refuses(tmp_path, file_with(metadata={**right, "burnish": TEXT + " "}), "checksum")


# Damage


@pytest.fixture
def saved(tmp_path):
    """A posterior, the bytes of its file, and a function that loads other bytes."""
    scale = Dense(0.3 * draw(3, 3).tril(-1) + torch.eye(3, dtype=torch.float64))
    posterior = FlowPosterior.whitened(Gaussian(draw(3), scale), [Shift(draw(3)), Rotation.cosine(draw(3))])
    value = {"posterior": posterior, "elbo": (1.0, -math.inf, 2.5)}
    path = tmp_path / "posterior.safetensors"
    assert same(through_a_file(value, path, POSTERIORS), value)

    def load(content):
        path.write_bytes(content)
        header, tensors = read_file(path)
        return decode(header["value"], tensors, POSTERIORS)

    return value, path.read_bytes(), load


def test_every_truncation_is_refused(saved):
    _, content, load = saved
    for length in range(len(content)):
        with pytest.raises(ValueError, match="damaged"):
            load(content[:length])


def mutate(content, chance):
    """One random accident to a file."""
    content = bytearray(content)
    start = chance.randrange(len(content))
    stop = min(len(content), start + chance.choice([1, 1, 2, 4, 8, 50, 1000]))
    match chance.randrange(8):
        case 0:
            content[start] ^= 1 << chance.randrange(8)
        case 1:
            content[start] = chance.randrange(256)
        case 2:
            del content[start:stop]
        case 3:
            content[start:start] = chance.randbytes(stop - start)
        case 4:
            other = chance.randrange(len(content))
            content[start], content[other] = content[other], content[start]
        case 5:
            del content[start:]
        case 6:
            content[start:stop] = bytes(stop - start)
        case 7:
            content[stop:stop] = content[start:stop]
    return bytes(content)


def test_a_thousand_accidents(saved):
    value, content, load = saved
    chance, refused, slowest = random.Random(0), 0, 0.0
    for _ in range(1000):
        bad = mutate(content, chance)
        start = time.perf_counter()
        try:
            back = load(bad)
        except ValueError:
            refused += 1
        else:
            assert same(back, value)
        slowest = max(slowest, time.perf_counter() - start)
    assert refused > 900
    assert slowest < 1.0


def test_every_flipped_bit_of_the_payload_is_refused(saved):
    _, content, load = saved
    first = 8 + int.from_bytes(content[:8], "little")
    for position in range(first, len(content)):
        bad = bytearray(content)
        bad[position] ^= 1 << position % 8
        with pytest.raises(ValueError, match="checksum"):
            load(bytes(bad))


def layered():
    """A posterior of a network's layers, refined in a subspace: everything that is nested or may be missing."""
    low_rank = LowRank(draw(3).exp(), torch.linalg.qr(draw(3, 2)).Q, draw(2).exp(), draw(3).exp())
    scale = BlockDiagonal((Diagonal(draw(1).exp()), low_rank), torch.tensor([2, 0, 3, 1]))
    inner = (Shift(draw(2)), Triangular(draw(2, 2), draw(2)))
    bijections = [Subspace(torch.linalg.qr(draw(4, 2)).Q, inner), LowRankStretch(draw(4, 1))]
    return {"posterior": FlowPosterior.whitened(Gaussian(draw(4), scale), bijections), "elbo": (1.0,)}


def test_a_posterior_of_layers_comes_back_and_draws_the_same(tmp_path):
    value = layered()
    back = through_a_file(value, tmp_path / "file", POSTERIORS)
    assert same(back, value)
    draws = [kept["posterior"].sample_and_log_prob(5, generator=make_generator(0)) for kept in (value, back)]
    assert all(torch.equal(first, second) for first, second in zip(*draws, strict=True))


@pytest.mark.parametrize("layers", [False, True])
def test_accidents_to_the_tree_behind_a_right_checksum(saved, layers):
    """What a checksum cannot see: each node of the tree in turn is another thing."""
    value = layered() if layers else saved[0]
    tree, tensors = encode(value, POSTERIORS)
    for wrong in ("text", -1, 2.5, None, {}, [], {"tensor": "posterior.base.mean"}, {"kind": "Shift", "fields": {}}):
        for bad in every_tree_with(wrong, lambda node: isinstance(node, dict), tree):
            try:
                decode(bad, tensors, POSTERIORS)
            except ValueError:
                continue
            assert bad == tree or bad["dict"]["elbo"] != tree["dict"]["elbo"]  # in a tuple of numbers, any will do


# Fingerprints


class Network(nn.Module):
    def __init__(self, first="first"):
        super().__init__()
        generator = make_generator(0)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        self.add_module(first, nn.Conv2d(3, 4, 3))
        self.norm = nn.BatchNorm2d(4)  # has an integer buffer without dimensions
        self.last = nn.Linear(4, 4)
        self.register_buffer("sixteen", normal(3).half())
        self.register_buffer("brain", normal(3).bfloat16())
        self.register_buffer("empty", torch.empty(0, 2))
        self.register_buffer("scalar", torch.tensor(2.0))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(normal(*parameter.shape))

    def get_extra_state(self):
        return {"not": "a tensor"}

    def set_extra_state(self, state):
        pass


def test_fingerprints_count_and_are_stored(tmp_path):
    found = fingerprint(Network())
    state = {name: item for name, item in Network().state_dict().items() if isinstance(item, Tensor)}
    assert found.num_tensors == len(state) == 14
    assert found.num_values == sum(item.numel() for item in state.values())
    assert len(found.shapes) == len(found.values) == 64
    assert through_a_file(found, tmp_path / "file", (Fingerprint,)) == found
    assert fingerprint(nn.Identity()).num_tensors == 0


def test_fingerprints_do_not_see_modes_gradients_and_layouts():
    reference = fingerprint(Network())
    assert fingerprint(Network().eval()) == reference
    assert fingerprint(Network().requires_grad_(False)) == reference
    assert fingerprint(Network().to(memory_format=torch.channels_last)) == reference
    strided = Network()
    strided.last.weight.data = strided.last.weight.data.T.contiguous().T
    assert not strided.last.weight.is_contiguous()
    assert fingerprint(strided) == reference
    other = Network()
    other.passing.zero_()
    assert fingerprint(other) == reference
    with torch.inference_mode():
        assert fingerprint(Network()) == reference
    check_fingerprint(reference, other)


def test_fingerprints_do_not_see_the_order_of_registration():
    one, two = nn.Linear(2, 2), nn.Linear(2, 3)
    first, second = nn.ModuleDict({"one": one, "two": two}), nn.ModuleDict({"two": two, "one": one})
    assert list(first.state_dict()) != list(second.state_dict())
    assert fingerprint(first) == fingerprint(second)


def test_a_fingerprint_changes_nothing():
    network = Network().to(memory_format=torch.channels_last).train()
    before = {name: (item.clone(), item.stride()) for name, item in network.state_dict().items() if isinstance(item, Tensor)}
    fingerprint(network)
    for name, item in network.state_dict().items():
        if isinstance(item, Tensor):
            assert torch.equal(item, before[name][0])
            assert item.stride() == before[name][1]
    assert network.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize(
    "name", [n for n, item in Network().state_dict().items() if isinstance(item, Tensor) and item.numel()]
)
def test_a_fingerprint_sees_one_changed_bit(name):
    network, reference = Network(), fingerprint(Network())
    network.state_dict()[name].view(-1).view(torch.uint8)[0] ^= 1
    found = fingerprint(network)
    assert found.shapes == reference.shapes
    assert found.values != reference.values
    with pytest.raises(
        ValueError,
        match=r"`network` must be the one this posterior was made for, got the same architecture, other weights: "
        r"retrained, or in another precision\. Pass that network",
    ):
        check_fingerprint(reference, network)


def _transpose(network):
    network.first.weight.data = network.first.weight.data.transpose(0, 1)


def _narrow(network):
    network.last.half()


def _reshape(network):
    network.empty = torch.empty(2, 0)


def _more(network):
    network.more = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("change", [_transpose, _narrow, _reshape, _more])
def test_a_fingerprint_sees_shapes_and_dtypes(change):
    network, reference = Network(), fingerprint(Network())
    change(network)
    assert_another_architecture(reference, network)


def test_a_fingerprint_sees_names():
    assert_another_architecture(fingerprint(Network()), Network("zeroth"))


def assert_another_architecture(reference, network):
    found = fingerprint(network)
    assert found.shapes != reference.shapes
    assert found.values != reference.values
    with pytest.raises(
        ValueError, match=r"`network` must be the one .*, got one with other names, shapes or dtypes"
    ) as caught:
        check_fingerprint(reference, network)
    assert f"({found.num_tensors} tensors with {found.num_values} values" in str(caught.value)
    assert f"had {reference.num_tensors} with {reference.num_values})" in str(caught.value)
