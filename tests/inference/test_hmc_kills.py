"""Sampling that is killed at any moment ends with the same draws: real processes, real SIGKILL.

The test runs this file as a program. It forks a process for every run, so that none has to import anything, and so that
nothing but files is left of one that was killed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from problems import classification

from burnish.bijections import SinhArcsinh
from burnish.inference import hmc
from burnish.inference.laplace import fit_laplace
from burnish.linear_bijections import Rotation
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior
from burnish.storage import read_file

pytestmark = pytest.mark.slow

NUM_KILLS = 10  # of each kind of run
MAX_SECONDS = 120  # of one run: nothing waits for ever


class Counted:
    def __init__(self, target):
        self.target, self.dim, self.calls = target, target.dim, 0

    def log_prob_and_grad(self, theta):
        self.calls += 1
        return self.target.log_prob_and_grad(theta)


def sample(kind, folder):
    """One run, to its end; its draws and what it took go into files."""
    target = classification(num_points=200, num_features=6, num_outputs=4, prior_precision=0.5)
    options = {"num_chains": 32, "min_ess": 1e9, "checkpoint": folder / "run", "checkpoint_seconds": 0.05}
    if kind == "flow":
        laplace = fit_laplace(target).posterior
        layers = [SinhArcsinh(0.1 + 0.0 * laplace.mean, 0.0 * laplace.mean), Rotation.cosine(laplace.mean)]
        start, options["max_draws"] = FlowPosterior.whitened(laplace, layers), 300
    else:
        start, options["max_draws"], options["num_warmup"] = None, 200, 200
    counted = Counted(target)
    fit = hmc.fit_hmc(counted, start, generator=make_generator(3), **options)
    numbers = {name: value for name, value in vars(fit).items() if name not in ("posterior", "seconds", "warmup_seconds")}
    torch.save(fit.posterior.samples, folder / "draws.part")
    (folder / "numbers").write_text(json.dumps({"fit": numbers, "calls": counted.calls}))
    os.replace(folder / "draws.part", folder / "draws")


def spawn(kind, folder):
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(MAX_SECONDS)
        try:
            sample(kind, folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def temporaries(folder):
    return [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def transitions(path):
    """How far a run was when its file was last written, None without one; the file is whole at any time."""
    state = read_file(path)[0]["hmc"]["fields"]["state"]["fields"] if path.exists() else {}
    return state.get("iteration")


def kill_once(kind, folder, moment, in_write):
    """Runs until the moment, or a write after it, and kills; what is there then, or None if the run was faster."""
    child, began = spawn(kind, folder), time.perf_counter()
    time.sleep(moment)
    while in_write and not temporaries(folder) and time.perf_counter() < began + moment + 1.0:
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return None
    return {"moment": moment, "transitions": transitions(folder / "run"), "torn": len(temporaries(folder))}


def main(kind, folder):
    """An unbroken run, then runs that are killed once each and gone on with; all that happened as JSON."""
    torch.set_num_threads(1)
    hmc._PATIENCE = 0.0  # writes as often as it was told to
    began, generator = time.perf_counter(), random.Random(kind)
    assert os.waitpid(spawn(kind, folder / "unbroken"), 0)[1] == 0
    seconds, kills = time.perf_counter() - began, []
    while len(kills) < NUM_KILLS:
        place = folder / f"killed {len(kills)}"
        # the moments are spread over the whole run, from before its first write on
        moment = 0.9 * seconds * (len(kills) + generator.random()) / NUM_KILLS
        kill = None
        while kill is None:
            for path in place.iterdir() if place.exists() else ():
                path.unlink()
            kill = kill_once(kind, place, moment, in_write=len(kills) % 3 == 1)
            moment *= 0.8  # it had ended before: other processes were slowing the unbroken one
        assert os.waitpid(spawn(kind, place), 0)[1] == 0
        kills.append(kill)
    (folder / "kills").write_text(json.dumps(kills))


def read(folder):
    return torch.load(folder / "draws"), json.loads((folder / "numbers").read_text())


@pytest.mark.parametrize("kind", ["own coordinates", "flow"])
def test_a_killed_run_ends_with_the_same_draws(kind, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, kind, str(tmp_path)], check=True, env=environment)
    kills = json.loads((tmp_path / "kills").read_text())
    expected, whole = read(tmp_path / "unbroken")
    assert len(kills) == NUM_KILLS
    for index, kill in enumerate(kills):
        folder = tmp_path / f"killed {index}"
        draws, numbers = read(folder)
        assert torch.equal(draws, expected), kill
        assert numbers["fit"] == whole["fit"], kill
        if kill["transitions"]:
            assert numbers["calls"] < whole["calls"], kill  # it has not begun again
        # whoever is killed while writing cannot take the temporary file away, and nobody else knows whose it is
        assert len(temporaries(folder)) == kill["torn"] <= 1
        names = {path.name for path in folder.iterdir() if path not in temporaries(folder)}
        assert names == {"run", "draws", "numbers"}
    reached = [kill["transitions"] or 0 for kill in kills]
    assert min(reached) < whole["fit"]["num_warmup"] < max(reached)
    assert sum(number > 0 for number in reached) >= NUM_KILLS // 2
    assert sum(kill["torn"] for kill in kills) >= 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
