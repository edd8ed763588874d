"""The folder that studies work in: what was put there comes back, and nothing else is taken for it."""

import errno
import json
import os
import subprocess
import sys
import threading

import pytest
import torch

from burnish.studies import workspace
from burnish.studies.workspace import Workspace

CONFIG = {"dataset": "cifar-10", "seed": 3, "lengths": (1, 5), "max_seconds": None}
NAMES = {"tensors": "posteriors/draws.safetensors", "part": "parts/draws.json"}


@pytest.fixture
def room(tmp_path):
    return Workspace(tmp_path / "new" / "work")


def write(room, kind, config=CONFIG):
    if kind == "tensors":
        room.write_tensors("posteriors", "draws", config, {"seconds": 1.5, "rungs": ["flow"]}, {"draws": torch.ones(3, 2)})
    else:
        room.write_part("draws", config, {"rows": {"LA": {"nll": 0.25}}})
    return room.folder / NAMES[kind]


def read(room, kind, config=CONFIG):
    return room.read_tensors("posteriors", "draws", config) if kind == "tensors" else room.read_part("draws", config)


def test_tensors_come_back_with_what_is_known_about_them(room):
    draws = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).T  # not contiguous
    room.write_tensors("posteriors", "a", CONFIG, {"steps": (1, 2)}, {"draws": draws.requires_grad_()})
    facts, tensors = room.read_tensors("posteriors", "a", CONFIG)
    assert facts == {"steps": [1, 2]}
    assert torch.equal(tensors["draws"], draws)
    assert not tensors["draws"].requires_grad


def test_parts_come_back(room):
    write(room, "part")
    assert read(room, "part") == {"rows": {"LA": {"nll": 0.25}}}


@pytest.mark.parametrize("kind", NAMES)
def test_there_is_nothing_where_nothing_was_written(room, kind):
    assert read(room, kind) is None


def test_networks_have_places_in_a_folder_that_exists(room):
    paths = {room.network(dataset, kind, seed) for dataset in ("a", "b") for kind in ("vb", "paper") for seed in (0, 1)}
    assert len(paths) == 8
    assert all(path.parent.is_dir() and not path.exists() for path in paths)


def test_states_of_chains_have_places_in_a_folder_that_exists(room):
    first, second = (room.checkpoint(f"all-layer-hmc-{seed}") for seed in (0, 1))
    assert first != second
    assert first.parent.is_dir()
    assert not first.exists()


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "made with `seed` 4, got 3"),
        ({"lengths": (1, 5, 10)}, r"made with `lengths` \[1, 5, 10\], got \[1, 5\]"),
        ({"max_seconds": 9.0}, "made with `max_seconds` 9.0, got None"),
        ({"tiny": True}, "made with `tiny` True, got None"),
    ],
)
def test_files_made_with_anything_else_are_refused_and_kept(room, kind, change, message):
    path = write(room, kind)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"{path} must be {message}. Delete it, or work in another folder"):
        read(room, kind, CONFIG | change)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", NAMES)
def test_a_setting_that_is_not_given_is_the_same_as_none(room, kind):
    write(room, kind)
    assert read(room, kind, {name: value for name, value in CONFIG.items() if name != "max_seconds"}) is not None


@pytest.mark.parametrize("kind", NAMES)
def test_files_of_another_version_are_refused(room, kind, monkeypatch):
    monkeypatch.setattr(workspace, "VERSION", 7)
    path = write(room, kind)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"{path} must be of version {workspace.VERSION}, got 7. Delete it"):
        read(room, kind)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_truncated_files_are_refused(room, kind, keep):
    path = write(room, kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=rf"{path}.*[Dd]elete it, or work in another folder \(`--work`\)"):
        read(room, kind)


def test_a_changed_byte_of_draws_is_noticed(room):
    path = write(room, "tensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        read(room, "tensors")


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        "text",
        None,
        {"study_version": workspace.VERSION},
        {"study_version": workspace.VERSION, "config": None, "part": {}},
        {"study_version": workspace.VERSION, "config": [], "part": {}},
        {"study_version": workspace.VERSION, "config": {**CONFIG, "lengths": [1, 5]}},
        {"study_version": workspace.VERSION, "config": {**CONFIG, "lengths": [1, 5]}, "part": [1]},
    ],
)
def test_json_that_is_no_part_is_refused(room, content):
    path = write(room, "part")
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{path} must .*Delete it, or work in another folder"):
        read(room, "part")


def test_what_cannot_be_kept_leaves_what_was_there(room, monkeypatch):
    parts, tensors = write(room, "part"), write(room, "tensors")
    before = parts.read_bytes(), tensors.read_bytes()
    with pytest.raises(ValueError, match="Out of range float"):
        room.write_part("draws", CONFIG, {"nll": float("nan")})
    with pytest.raises(ValueError, match="finite"):
        room.write_tensors("posteriors", "draws", CONFIG, {}, {"draws": torch.tensor([float("inf")])})

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for kind in NAMES:
        with pytest.raises(OSError, match=r"No space left on device\. Free some space"):
            write(room, kind)
    assert (parts.read_bytes(), tensors.read_bytes()) == before
    assert sorted(path.name for path in room.folder.rglob("*") if path.is_file()) == ["draws.json", "draws.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks")
class TestLocks:
    def test_one_at_a_time(self, room):
        seen = []

        def wait():
            with room.lock("flows"):
                seen.append("other")

        with room.lock("flows"):
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(0.2)
            seen.append("first")
        thread.join(10.0)
        assert seen == ["first", "other"]

    def test_other_names_do_not_wait(self, room):
        with room.lock("flows"), room.lock("networks"):
            pass

    def test_a_process_that_is_killed_has_it_no_more(self, room):
        code = "import sys, time; from burnish.studies.workspace import Workspace\n"
        code += "with Workspace(sys.argv[1]).lock('flows'): print('has it', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code, str(room.folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "has it\n"
        process.kill()
        process.wait()
        process.stdout.close()
        with room.lock("flows"):
            pass
