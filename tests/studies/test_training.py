"""Training in files: the same bits whatever the interruption and whoever trains beside, and errors that say what to do."""

import copy
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from training_cases import NUM_POINTS, images, tiny

from burnish import _checks, storage
from burnish.storage import read_file, write_file
from burnish.studies import training
from burnish.studies.architectures import make_network
from burnish.studies.recipes import Recipe
from burnish.studies.training import Trained, read_trained, train_networks
from burnish.studies.training_steps import Run

RECIPE = Recipe(num_epochs=4, batch_size=8, learning_rate=0.05)
RECIPES = {
    "sgd": replace(RECIPE, augment=True),
    "adam": replace(RECIPE, optimizer="adam", learning_rate=0.01),
    "sghmc": replace(RECIPE, optimizer="sghmc", num_cycles=2, kept_per_cycle=2, noisy_epochs=1, temperature=1e-3),
    "flipout": replace(RECIPE, optimizer="adam", learning_rate=0.01, initial_std=0.05, kl_weight=0.1),
}
LONG = replace(RECIPES["sghmc"], num_epochs=12, augment=True)  # of the process that is killed
FIRST_FORM = """{
    "trained": {
        "num_epochs": 100, "batch_size": 128, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0005,
        "momentum": 0.9, "mixed_precision": true, "augment": true, "num_cycles": 1, "kept_per_cycle": 1,
        "noisy_epochs": 0, "temperature": 0.0, "initial_std": null, "kl_weight": 0.0, "prior_precision": 1.0
    },
    "seed": 3, "epoch": 100, "kept": 1, "losses": [2.0, 1.0], "seconds": 3.5, "together": 5,
    "origin": {"commit": "1ed07b9", "device": "NVIDIA H200", "versions": {"python": "3.12.3", "torch": "2.11.0"}}
}"""
EVERY_EPOCH = {"checkpoint_seconds": 0.0, "progress": False}


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def no_git(monkeypatch):
    """Every file says by which commit it was made, and asking takes longer than an epoch here."""
    monkeypatch.setenv("BURNISH_COMMIT", "1234567")


@pytest.fixture
def epochs(monkeypatch):
    """The epochs that were run, by seed; and `stop`, by seed the epoch that is interrupted."""
    seen = SimpleNamespace(run=defaultdict(list), stop={})
    begin = Run.begin

    def noted(self, epoch):
        if seen.stop.get(self.seed) == epoch:
            raise Interrupted
        seen.run[self.seed].append(epoch)
        begin(self, epoch)

    monkeypatch.setattr(Run, "begin", noted)
    return seen


def places(folder, *seeds):
    return {seed: folder / f"{seed}.safetensors" for seed in seeds}


def train(folder, *seeds, recipe=RECIPE, make=tiny, num_points=NUM_POINTS):
    folder.mkdir(exist_ok=True)
    return train_networks(make, *images(num_points), recipe, places(folder, *seeds), **EVERY_EPOCH)


def checkpoint(folder, seed):
    return folder / f"{seed}.safetensors.checkpoint"


def assert_same(folder, other, *seeds, recipe=RECIPE):
    """To the bit, with the same losses, and nothing but the files is left."""
    for seed in seeds:
        first, second = (read_trained(places(place, seed)[seed], recipe, seed=seed) for place in (folder, other))
        assert first.losses == second.losses
        assert len(first.states) == len(second.states) > 0
        for one, two in zip(first.states, second.states, strict=True):
            assert one.keys() == two.keys()
            assert all(torch.equal(value, two[key]) for key, value in one.items())
        assert not checkpoint(folder, seed).exists()


def interrupt(folder, seed, epoch, epochs, **options):
    """Leaves a checkpoint of so many epochs."""
    epochs.stop[seed] = epoch
    with pytest.raises(Interrupted):
        train(folder, seed, **options)
    epochs.stop.clear()
    assert read_file(checkpoint(folder, seed))[0]["epoch"] == epoch
    epochs.run.clear()


def test_a_network_learns_and_the_file_says_how(tmp_path, monkeypatch):
    recipe = replace(RECIPE, num_epochs=15)
    ticks = iter(range(10_000))
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    assert train(tmp_path, 0, 1, recipe=recipe) == {}
    found = read_trained(tmp_path / "0.safetensors", recipe)
    assert len(found.states) == 1
    assert len(found.losses) == 15
    assert found.losses[-1] < 0.2 * found.losses[0]
    assert found.seconds == 15  # a tick for every epoch
    assert found.together == 2
    assert found.origin["commit"] == "1234567"
    assert found.origin["device"].endswith("CPU, 1 threads")
    pixels, labels = images()
    network = tiny(5)
    found.load(network)
    assert float((network.eval()(pixels.float() / 255.0).argmax(1) == labels).float().mean()) > 0.95


def test_weights_of_another_network_are_refused(tmp_path):
    assert train(tmp_path, 0) == {}
    found = read_trained(tmp_path / "0.safetensors", RECIPE)
    wider, renamed = tiny(0), nn.Sequential(tiny(0))
    wider[-1] = nn.Linear(64, 5)
    for other in (wider, renamed):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match=r"0\.safetensors must have the weights .* got those of another\. Delete it"):
            found.load(other)
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("name", RECIPES)
def test_seeds_trained_together_are_those_trained_alone(name, tmp_path, untouched_rng):
    together, alone = tmp_path / "together", tmp_path / "alone"
    assert train(together, 0, 1, 2, recipe=RECIPES[name]) == {}
    for seed in (2, 0, 1):
        assert train(alone, seed, recipe=RECIPES[name]) == {}
    assert_same(together, alone, 0, 1, 2, recipe=RECIPES[name])
    first, second = (read_trained(together / f"{seed}.safetensors", RECIPES[name]).losses for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("epoch", [1, 3])
def test_what_was_interrupted_ends_with_the_same_bits(name, epoch, tmp_path, epochs):
    recipe = RECIPES[name]
    train(tmp_path / "whole", 0, recipe=recipe)
    interrupt(tmp_path / "broken", 0, epoch, epochs, recipe=recipe)
    assert train(tmp_path / "broken", 0, recipe=recipe) == {}
    assert epochs.run == {0: list(range(epoch, 4))}
    assert_same(tmp_path / "broken", tmp_path / "whole", 0, recipe=recipe)


def test_seeds_go_on_from_checkpoints_of_their_own(tmp_path, epochs, monkeypatch):
    """Nor do those that are ahead count the seconds in which others catch up."""
    for seed in (0, 1, 2):
        train(tmp_path / "alone", seed)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=iter(map(float, range(10_000))).__next__))
    broken = tmp_path / "broken"
    interrupt(broken, 0, 3, epochs)
    interrupt(broken, 1, 1, epochs)
    assert train(broken, 0, 1, 2) == {}
    assert epochs.run == {0: [3], 1: [1, 2, 3], 2: [0, 1, 2, 3]}
    assert_same(broken, tmp_path / "alone", 0, 1, 2)
    assert [read_trained(place, RECIPE).seconds for place in places(broken, 0, 1, 2).values()] == [4.0, 4.0, 4.0]


def test_buffers_of_64_bits_survive_an_interruption(tmp_path, epochs):
    interrupt(tmp_path, 0, 2, epochs)
    tensors = read_file(checkpoint(tmp_path, 0))[1]
    counter = tensors["state buffer.1.num_batches_tracked"]
    assert (counter.dtype, int(counter)) == (torch.int64, 2 * (NUM_POINTS // 8))
    train(tmp_path, 0)
    state = read_trained(tmp_path / "0.safetensors", RECIPE).states[0]
    assert int(state["1.num_batches_tracked"]) == 4 * (NUM_POINTS // 8)


def test_nothing_is_done_for_seeds_that_have_their_file(tmp_path, epochs):
    train(tmp_path, 0, 1)
    before = {seed: place.stat() for seed, place in places(tmp_path, 0, 1).items()}
    epochs.run.clear()
    checkpoint(tmp_path, 1).write_bytes(b"left by one that was killed at the very end")

    def refuse(seed):
        raise AssertionError(f"a network for seed {seed}")

    nothing = torch.empty(0)
    assert train_networks(refuse, nothing, nothing, RECIPE, {}, **EVERY_EPOCH) == {}
    assert train_networks(refuse, nothing, nothing, RECIPE, places(tmp_path, 0, 1), **EVERY_EPOCH) == {}
    assert {seed: place.stat().st_mtime_ns for seed, place in places(tmp_path, 0, 1).items()} == {
        seed: stat.st_mtime_ns for seed, stat in before.items()
    }
    assert not checkpoint(tmp_path, 1).exists()
    assert train(tmp_path, 0, 1, 2) == {}
    assert epochs.run == {2: [0, 1, 2, 3]}


def test_networks_of_every_cycle_are_kept_as_they_were_then(tmp_path):
    recipe = RECIPES["sghmc"]
    train(tmp_path, 0, recipe=replace(recipe, num_epochs=6))
    found = read_trained(tmp_path / "0.safetensors", replace(recipe, num_epochs=6))
    run = Run(tiny(0), *images(), replace(recipe, num_epochs=6), 0)
    kept = []
    for epoch in range(6):
        run.begin(epoch)
        for _ in range(run.num_steps):
            run.step()
        if epoch in (1, 2, 4, 5):
            kept.append(run.weights())
    assert len(found.states) == 4
    for state, expected in zip(found.states, kept, strict=True):
        assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_a_seed_that_leaves_the_finite_numbers_is_reported_and_the_others_end_well(tmp_path):
    def make(seed):
        network = tiny(seed)
        if seed == 1:
            nn.init.constant_(network[-1].weight, 3e38)
        return network

    failures = train(tmp_path / "mixed", 0, 1, 2, make=make)
    assert failures == {1: "loss or weights left the finite numbers in epoch 1; use a smaller `learning_rate`."}
    assert not (tmp_path / "mixed" / "1.safetensors").exists()
    for seed in (0, 2):
        train(tmp_path / "alone", seed)
    assert_same(tmp_path / "mixed", tmp_path / "alone", 0, 2)


def test_a_rate_that_is_far_too_large_is_reported_by_all(tmp_path):
    """Also where the last step of an epoch makes weights infinite after a finite loss, which no file could hold."""
    failures = train(tmp_path, 0, 1, recipe=replace(RECIPE, learning_rate=1e300, batch_size=NUM_POINTS))
    assert list(failures) == [0, 1]
    assert all("in epoch 1; use a smaller `learning_rate`" in failure for failure in failures.values())
    assert not list(tmp_path.iterdir())


class TestFilesThatDoNotFit:
    def test_another_recipe(self, tmp_path, epochs):
        train(tmp_path, 0)
        with pytest.raises(
            ValueError, match=r"0.safetensors must be of networks with `weight_decay` 0.0, got 0.0005. Delete it .* folder"
        ):
            read_trained(tmp_path / "0.safetensors", replace(RECIPE, weight_decay=0.0))
        interrupt(tmp_path, 1, 2, epochs)
        with pytest.raises(ValueError, match=r"1.safetensors.checkpoint must be of networks with `augment` True, got False"):
            train(tmp_path, 1, recipe=replace(RECIPE, augment=True))
        assert not epochs.run

    def test_another_seed(self, tmp_path, epochs):
        train(tmp_path, 0)
        assert read_trained(tmp_path / "0.safetensors", RECIPE, seed=0).losses
        with pytest.raises(ValueError, match=r"must be of networks with `seed` 3, got 0. Delete it to train anew"):
            read_trained(tmp_path / "0.safetensors", RECIPE, seed=3)
        interrupt(tmp_path, 1, 2, epochs)
        checkpoint(tmp_path, 1).rename(checkpoint(tmp_path, 2))
        with pytest.raises(
            ValueError, match=r"2.safetensors.checkpoint must be of networks with `seed` 2, got 1. Delete it"
        ):
            train(tmp_path, 2)

    @pytest.mark.parametrize("change", ["network", "points"])
    def test_a_checkpoint_of_another_network_or_of_other_data(self, change, tmp_path, epochs):
        def wider(seed):
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3))

        interrupt(tmp_path, 0, 2, epochs)
        options = {"make": wider} if change == "network" else {"num_points": 80}
        with pytest.raises(
            ValueError, match=r"must be of the same network and of as many points, .* Delete it to train anew"
        ):
            train(tmp_path, 0, **options)
        assert checkpoint(tmp_path, 0).exists()

    def test_a_checkpoint_in_another_precision(self, tmp_path, epochs, monkeypatch):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
        interrupt(tmp_path, 0, 2, epochs)
        monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
        with pytest.raises(ValueError, match=r"0\.safetensors\.checkpoint must go on in float32.* got one in bfloat16"):
            train(tmp_path, 0)
        assert checkpoint(tmp_path, 0).exists()

    @pytest.mark.parametrize("position", [0.05, 0.5, 0.95])
    def test_a_damaged_file(self, position, tmp_path, epochs):
        train(tmp_path, 0)
        interrupt(tmp_path, 1, 2, epochs)
        for path in (tmp_path / "0.safetensors", checkpoint(tmp_path, 1)):
            content = bytearray(path.read_bytes())
            content[int(position * len(content))] ^= 1
            path.write_bytes(content)
        with pytest.raises(ValueError, match=r"the file is damaged.* Delete it to train anew"):
            read_trained(tmp_path / "0.safetensors", RECIPE)
        with pytest.raises(ValueError, match=r"the file is damaged.* Delete it to train anew"):
            train(tmp_path, 1)

    def test_half_a_file(self, tmp_path):
        train(tmp_path, 0)
        path = tmp_path / "0.safetensors"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(ValueError, match="Delete it to train anew"):
            read_trained(path, RECIPE)

    def test_a_file_of_something_else(self, tmp_path, epochs):
        path = tmp_path / "0.safetensors"
        for header in ({"posterior": 1}, {"trained": "today"}):
            write_file(path, header, {"x": torch.zeros(2)})
            with pytest.raises(ValueError, match=r"must be a file of networks, got another file of burnish. Delete it"):
                read_trained(path, RECIPE)
        path.write_text("weights")
        with pytest.raises(ValueError, match="must be a burnish file"):
            read_trained(path, RECIPE)
        interrupt(tmp_path, 1, 2, epochs)
        with pytest.raises(ValueError, match="must be a file of networks, got a checkpoint"):
            read_trained(checkpoint(tmp_path, 1), RECIPE)
        with pytest.raises(FileNotFoundError):
            read_trained(tmp_path / "none", RECIPE)


def test_files_of_the_first_form_stay_readable(tmp_path):
    header = json.loads(FIRST_FORM)
    write_file(tmp_path / "old", header, {"0 0.weight": torch.ones(2), "0 1.running mean": torch.zeros(3)})
    found = read_trained(tmp_path / "old", Recipe(augment=True), seed=3)
    assert sorted(found.states[0]) == ["0.weight", "1.running mean"]
    assert (found.losses, found.seconds, found.together) == ((2.0, 1.0), 3.5, 5)
    assert found.origin == header["origin"]
    with pytest.raises(ValueError, match=r"must be of networks with `initial_std` 0\.1, got None"):
        read_trained(tmp_path / "old", Recipe(augment=True, initial_std=0.1, mean_spread=0.1))
    train(tmp_path, 0)
    written = read_file(tmp_path / "0.safetensors")[0]
    assert written.keys() == header.keys() | {"bfloat16"}  # which came later
    assert written["trained"] == asdict(RECIPE)


class TestWhatComesBeforeAnyWork:
    def refuse(self, seed):
        raise AssertionError("no network was to be made")

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(OSError, match="Create its folder first"):
            train_networks(self.refuse, *images(), RECIPE, places(tmp_path / "none", 0), **EVERY_EPOCH)

    def test_one_file_for_two_seeds(self, tmp_path):
        with pytest.raises(ValueError, match=r"`places` must be a file for each seed, got one for two of \[0, 1\]"):
            train_networks(self.refuse, *images(), RECIPE, dict.fromkeys((0, 1), tmp_path / "a"), **EVERY_EPOCH)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda pixels, labels: (pixels.float(), labels), "`pixels` must be uint8 of shape"),
            (lambda pixels, labels: (pixels.flatten(1), labels), "`pixels` must be uint8 of shape"),
            (lambda pixels, labels: (pixels, labels[:-1]), "`labels` must be int64 of shape"),
            (lambda pixels, labels: (pixels, labels.to("meta")), "`labels` must be on cpu like `pixels`, got meta"),
        ],
    )
    def test_data_of_another_form(self, change, message, tmp_path):
        with pytest.raises(ValueError, match=message):
            train_networks(self.refuse, *change(*images()), RECIPE, places(tmp_path, 0), **EVERY_EPOCH)

    def test_batches_larger_than_the_data(self, tmp_path):
        with pytest.raises(ValueError, match=f"`batch_size` must be at most {NUM_POINTS}"):
            train(tmp_path, 0, recipe=replace(RECIPE, batch_size=100))
        assert not list(tmp_path.iterdir())

    def test_more_memory_than_there_is(self, tmp_path, monkeypatch, epochs):
        size = 32 * sum(parameter.numel() for parameter in tiny(0).parameters())
        for recipe, needed in ((RECIPE, 3 * size), (RECIPES["flipout"], 6 * size), (RECIPES["sgd"], 3 * size + 6 * 44 * 64)):
            monkeypatch.setattr(_checks, "available_memory", lambda device, needed=needed: needed - 1)
            with pytest.raises(MemoryError, match=r"training 3 networks needs .*; train fewer seeds at a time"):
                train(tmp_path, 0, 1, 2, recipe=recipe)
        assert not epochs.run


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_full_disk_is_said_and_the_earlier_checkpoint_survives(at_the_end, tmp_path, monkeypatch):
    train(tmp_path / "whole", 0)
    broken = tmp_path / "broken"
    real, failing = os.replace, "0.safetensors" if at_the_end else "0.safetensors.checkpoint"
    attempts = []

    def replace_until_full(source, target):
        attempts.append(Path(target).name)
        if attempts.count(failing) == (1 if at_the_end else 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(storage.os, "replace", replace_until_full)
    with pytest.raises(OSError, match=r"No space left on device. Free some space, or choose another disk") as caught:
        train(broken, 0)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(storage.os, "replace", real)
    assert [path.name for path in broken.iterdir()] == ["0.safetensors.checkpoint"]
    assert read_file(checkpoint(broken, 0))[0]["epoch"] == (3 if at_the_end else 1)
    assert train(broken, 0) == {}
    assert_same(broken, tmp_path / "whole", 0)


def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path, epochs):
    """A real one, by SIGKILL, in the middle of an epoch."""
    train(tmp_path / "whole", 0, 1, recipe=LONG)
    epochs.run.clear()
    broken = tmp_path / "broken"
    broken.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, __file__, str(broken)], env=environment) as child:
        try:
            until = time.monotonic() + 60.0
            while not (broken / "reached").exists() and child.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            assert (broken / "reached").exists()
        finally:
            child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    half = LONG.num_epochs // 2
    assert [read_file(checkpoint(broken, seed))[0]["epoch"] for seed in (0, 1)] == [half, half]
    assert not (broken / "0.safetensors").exists()
    assert train(broken, 0, 1, recipe=LONG) == {}
    assert epochs.run == {seed: list(range(half, LONG.num_epochs)) for seed in (0, 1)}
    assert_same(broken, tmp_path / "whole", 0, 1, recipe=LONG)


def main(folder):
    """Trains until half-way, says so, and stays there to be killed."""
    torch.set_num_threads(1)
    steps = 0

    def wait(*_):
        nonlocal steps
        steps += 1
        if steps == 2 * (NUM_POINTS // 8) * LONG.num_epochs // 2 + 3:  # two seeds, and some steps into an epoch
            (folder / "reached").touch()
            time.sleep(60.0)

    def make(seed):
        network = tiny(seed)
        network.register_forward_pre_hook(wait)
        return network

    train(folder, 0, 1, recipe=LONG, make=make)


@pytest.mark.parametrize("kind", ["lenet", "wide-resnet"])  # the wide one has counts, which are tensors without a dimension
def test_networks_are_told_apart_by_all_they_keep(kind):
    def digest(seed, count):
        state = make_network(kind, 10, seed).state_dict()
        state = {name: value if value.ndim else value + count for name, value in state.items()}
        return Trained((state,), (), 0.0, 1, {}, "file").digest

    assert digest(0, 0) == digest(0, 0) != digest(1, 0)
    assert (digest(0, 1) != digest(0, 0)) == (kind == "wide-resnet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
