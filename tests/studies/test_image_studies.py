"""Records of image studies: what is there is not made again, what fails is said, and what was killed goes on."""

import copy
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from image_cases import SETTINGS, source

from burnish.errors import FitError
from burnish.studies import correlation, image_calibration, image_studies, marginals, ood, sources
from burnish.studies.data import Images
from burnish.studies.image_settings import ImageSettings
from burnish.studies.image_studies import IMAGE_STUDIES, check_options, datasets_of, record_image_study
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import record_text, summarise

# what a second run cannot have in common with the first
UNEQUAL = ("seconds", "seconds_in_all", "start_seconds", "batch_seconds", "together", "origin")
ORIGIN = ("commit", "versions", "device")
MAX_SECONDS = 240  # of one process: nothing waits for ever
MAX_MAKE = 2400  # of all small studies, on cores that others may use as well: what they take themselves is looked at


@pytest.fixture
def made(monkeypatch):
    """Studies without networks; for each seed that "marginals" is made for, an entry in the list."""
    calls = []

    def run_seed(methods):
        calls.append(methods.problem.seed)
        return {"rows": {"LA": {"ks": 0.1 * methods.problem.seed}}, "weights": []}

    monkeypatch.setattr(marginals, "run_seed", run_seed)
    monkeypatch.setattr(image_studies, "prepare", lambda problems: None)
    monkeypatch.setattr(image_studies, "train_missing", lambda setting, kind, seeds, progress: {})
    monkeypatch.setattr(
        image_studies,
        "ImageProblem",
        lambda setting, seed: types.SimpleNamespace(setting=setting, seed=seed, digest=f"network {seed}"),
    )
    monkeypatch.setattr(
        image_studies,
        "NetworkMethods",
        lambda setting, kind, seed: types.SimpleNamespace(
            seed=seed, kind=kind, names=[kind.upper()], trained=types.SimpleNamespace(digest=f"{kind} {seed}")
        ),
    )
    return calls


def record(folder, name="marginals", **options):
    return record_image_study(name, work=folder, **{"seeds": (0, 1, 2), "small": True, "progress": False, **options})


def failing(seeds, error, run_seed=None):
    run_seed = run_seed or marginals.run_seed

    def run(methods):
        if methods.problem.seed in seeds:
            raise error
        return run_seed(methods)

    return run


def parts(folder):
    return {path.name: path.stat().st_mtime_ns for path in sorted((Path(folder) / "parts").iterdir())}


def flat(value, place=""):
    """Every entry of a record by its place, without what depends on the clock and the machine."""
    if not isinstance(value, dict | list):
        return {place: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [flat(entry, f"{place}/{key}") for key, entry in entries if key not in UNEQUAL + ORIGIN]
    return {key: entry for part in parts for key, entry in part.items()}


def assert_same(found, expected):
    """To the last bit."""
    assert flat(found) == flat(expected)


def test_a_record_says_what_was_done_with_what(tmp_path, made):
    found = record(tmp_path, protocol="paper", dataset="cifar-10")
    assert (found["study"], found["failures"], found["data"]) == ("marginals", {}, {})
    settings = json.loads(json.dumps(dataclasses.asdict(ImageSettings.small())))
    assert found["config"] == {
        "dataset": "cifar-10",
        "protocol": "paper",
        "seeds": [0, 1, 2],
        "baseline_seeds": [],
        "made_images": True,
        **settings,
    }
    assert list(found["seeds"]) == ["0", "1", "2"]
    assert [part["rows"]["LA"]["ks"] for part in found["seeds"].values()] == [0.0, 0.1, 0.2]
    assert all(part["seconds_in_all"] >= 0.0 and set(part["origin"]) == set(ORIGIN) for part in found["seeds"].values())
    assert set(ORIGIN) <= set(found)
    assert json.loads(record_text(found)) == found
    assert summarise(found)[1] == [["LA", "0.1000 ± 0.0577"]]


def test_seeds_are_those_of_the_tables_unless_others_are_given():
    for dataset in datasets_of("ood"):
        benchmark = BENCHMARKS[dataset]
        assert check_options("ood", dataset)[:2] == (benchmark.seeds, benchmark.seeds[:2])
        assert check_options("ood", dataset, small=True)[:2] == ((0, 1), (0,))
    assert check_options("ood", seeds=[7, 3], baseline_seeds=[])[:2] == ((7, 3), ())
    assert check_options("ood")[2] == torch.device("cpu")


def test_finished_seeds_are_not_made_again(tmp_path, made):
    first = record(tmp_path, seeds=(1,))
    before = parts(tmp_path)
    found = record(tmp_path)
    assert made == [1, 0, 2]
    assert found["seeds"]["1"] == first["seeds"]["1"]
    assert before.items() <= parts(tmp_path).items()
    again = record(tmp_path)
    assert made == [1, 0, 2]
    assert again["seeds"] == found["seeds"]


def test_a_record_is_enough_to_add_what_it_lacks(tmp_path, made, monkeypatch):
    monkeypatch.setattr(ood, "run_seed", lambda methods: made.append(methods.problem.seed) or {"rows": {"MAP": 1.0}})
    monkeypatch.setattr(ood, "run_baseline", lambda methods: {"rows": {methods.names[0]: 2.0}})
    trained = []
    monkeypatch.setattr(
        image_studies, "train_missing", lambda setting, kind, seeds, progress: trained.append((kind, seeds)) or {}
    )
    first = record(tmp_path / "first", "ood", seeds=(0, 1), baseline_seeds=())
    before = json.loads(json.dumps(first))
    trained.clear()
    found = record(tmp_path / "second", "ood", seeds=(0, 1), baseline_seeds=(1,), earlier=first)
    assert trained == [("ours", ()), ("vb", (1,)), ("csghmc", (1,))]
    assert made == [0, 1]
    assert first == before  # the one that was given is left as it is
    assert found["seeds"]["0"] == first["seeds"]["0"]
    assert found["seeds"]["1"]["rows"] == {"MAP": 1.0, "VB": 2.0, "CSGHMC": 2.0}
    assert found["config"] == first["config"] | {"baseline_seeds": [1]}
    more = record(tmp_path / "third", "ood", seeds=(2,), baseline_seeds=(), earlier=found)
    assert made == [0, 1, 2]
    assert list(more["seeds"]) == ["0", "1", "2"]
    assert (more["config"]["seeds"], more["config"]["baseline_seeds"]) == ([0, 1, 2], [1])
    assert {seed: more["seeds"][seed] for seed in "01"} == found["seeds"]


def test_correlation_takes_from_a_record_of_calibration_what_it_has(tmp_path, made, monkeypatch):
    table = {"rows": {name: {"mmd": 0.1, "few": {"nll": 0.2}} for name in ("LA", "HMC")}}
    monkeypatch.setattr(image_calibration, "run_seed", lambda methods: copy.deepcopy(table))
    monkeypatch.setattr(image_calibration, "run_baseline", lambda methods: {"rows": {methods.names[0]: {}}})
    monkeypatch.setattr(correlation, "run_seed", lambda methods: made.append(methods.problem.seed) or {"rows": {}})
    first = record(tmp_path / "first", "image-calibration", seeds=(0, 1), baseline_seeds=(0,))
    found = record(tmp_path / "second", "correlation", seeds=(0, 1, 2), earlier=first)
    assert made == [2]
    assert (found["study"], found["config"]["baseline_seeds"], list(found["seeds"])) == ("correlation", [], ["0", "1", "2"])
    assert found["seeds"]["1"]["rows"] == {"LA": {"mmd": 0.1, "nll": 0.2}}
    again = record(tmp_path / "third", "correlation", seeds=(0, 1, 2), earlier=found)
    assert (made, again["seeds"]) == ([2], found["seeds"])
    first["config"]["num_draws"] = 7
    with pytest.raises(ValueError, match="`earlier` must have `num_draws` 32, got 7"):
        record(tmp_path / "fourth", "correlation", seeds=(0,), earlier=first)
    first["config"]["num_draws"] = found["config"]["num_draws"]
    for key in ("network", "rows"):
        broken = copy.deepcopy(first)
        broken["seeds"]["1"].pop(key)
        with pytest.raises(ValueError, match=f"`earlier` must have network, .* of every seed, got none: '{key}'. Leave"):
            record(tmp_path / "fourth", "correlation", seeds=(0,), earlier=broken)
    with pytest.raises(ValueError, match="`earlier` must have `study` marginals, got correlation"):
        record(tmp_path / "fourth", seeds=(0,), earlier=found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"study": "ood"}, "`earlier` must have `study` marginals, got ood"),
        ({"version": 0}, "`earlier` must have `version` 2, got 0"),
        ({"protocol": "paper"}, "`earlier` must have `protocol` ours, got paper"),
        ({"num_draws": 7}, "`earlier` must have `num_draws` 32, got 7"),
        ({"lengths": [3]}, r"`earlier` must have `lengths` \[1, 5\], got \[3\]"),
        ({"data": {"mnist test": "others"}}, "`earlier` must be of the data {}, got"),
        ({"config": 3}, "`earlier` must be a record of an image study"),
        ({"seeds": None}, "`earlier` must be a record of an image study"),
    ],
)
def test_records_of_something_else_cannot_be_added_to(tmp_path, made, change, text):
    first = record(tmp_path, seeds=(0,))
    for key, value in change.items():
        place = first if key in first else first["config"]
        place[key] = value
    with pytest.raises(ValueError, match=text + r".*Leave it out to make a record anew\."):
        record(tmp_path / "second", earlier=first)
    assert made == [0]


def test_results_of_another_network_are_refused(tmp_path, made, monkeypatch):
    first = record(tmp_path, seeds=(0, 1))
    assert [part["network"] for part in first["seeds"].values()] == ["network 0", "network 1"]
    for folder in (tmp_path, tmp_path / "elsewhere"):
        (folder / "networks").mkdir(parents=True, exist_ok=True)
        (folder / "networks" / "made-fashion-mnist-ours-1.safetensors").touch()  # trained anew
    monkeypatch.setattr(
        image_studies, "ImageProblem", lambda setting, seed: types.SimpleNamespace(setting=setting, seed=seed, digest="new")
    )
    text = "must hold the network that the results of marginals-fashion-mnist-ours-1 are of, network 1, got new. Delete"
    with pytest.raises(ValueError, match=text):
        record(tmp_path, seeds=(0, 1))
    with pytest.raises(ValueError, match=text):
        record(tmp_path / "elsewhere", seeds=(0, 1), earlier=first)


def test_records_from_before_blocks_of_draws_are_of_one_block(tmp_path, made):
    first = record(tmp_path, seeds=(0,))
    assert first["config"].pop("num_blocks") == 2
    with pytest.raises(ValueError, match="`earlier` must have `num_blocks` 2, got 1"):
        record(tmp_path / "second", earlier=first)
    one = dataclasses.replace(ImageSettings.small(), num_blocks=1)
    first = record(tmp_path / "third", seeds=(0,), settings=one)
    del first["config"]["num_blocks"]
    assert list(record(tmp_path / "fourth", seeds=(1,), settings=one, earlier=first)["seeds"]) == ["0", "1"]
    assert made == [0, 0, 1]


@pytest.mark.usefixtures("made")
def test_memory_for_a_covariance_is_asked_for_before_networks_are_trained_and_not_after(tmp_path, monkeypatch):
    def refuse(setting):
        raise MemoryError("too large")

    monkeypatch.setattr(image_studies.Setting, "check_memory", refuse)
    with pytest.raises(MemoryError, match="too large"):
        record(tmp_path, seeds=(0,))
    (tmp_path / "networks").mkdir(parents=True, exist_ok=True)
    (tmp_path / "networks" / "made-fashion-mnist-ours-0.safetensors").touch()  # its posteriors may be there as well
    assert list(record(tmp_path, seeds=(0,))["seeds"]) == ["0"]
    with pytest.raises(MemoryError, match="too large"):
        record(tmp_path, seeds=(0, 1))


def test_studies_data_sets_and_protocols_do_not_share_parts(tmp_path, made, monkeypatch):
    for options in ({"dataset": "cifar-10"}, {"dataset": "cifar-100"}, {"protocol": "paper"}):
        record(tmp_path, seeds=(0,), **options)
    assert made == [0, 0, 0]
    assert len(parts(tmp_path)) == 3


@pytest.mark.parametrize("error", [FitError("the chains diverged; use more."), MemoryError("needs 5 GiB")])
def test_a_seed_that_fails_is_described_and_the_others_are_there(tmp_path, made, monkeypatch, error):
    run_seed = marginals.run_seed
    monkeypatch.setattr(marginals, "run_seed", failing((1,), error))
    found = record(tmp_path)
    assert found["failures"] == {"1": f"{type(error).__name__}: {error}"}
    assert list(found["seeds"]) == ["0", "2"]
    assert len(parts(tmp_path)) == 2
    monkeypatch.setattr(marginals, "run_seed", run_seed)
    found = record(tmp_path)
    assert found["failures"] == {}
    assert list(found["seeds"]) == ["0", "1", "2"]
    assert made == [0, 2, 1]


def test_a_network_that_cannot_be_trained_fails_alone(tmp_path, made, monkeypatch):
    monkeypatch.setattr(image_studies, "train_missing", lambda setting, kind, seeds, progress: {0: "the loss is NaN"})
    found = record(tmp_path)
    assert found["failures"] == {"0": "the loss is NaN"}
    assert list(found["seeds"]) == ["1", "2"]


def test_flows_that_fail_together_are_left_to_each_seed(tmp_path, made, monkeypatch):
    def prepare(problems):
        raise FitError("problem 1 with 5 layers")

    monkeypatch.setattr(image_studies, "prepare", prepare)
    assert list(record(tmp_path)["seeds"]) == ["0", "1", "2"]


def test_networks_from_scratch_add_rows_to_those_of_their_seed(tmp_path, made, monkeypatch):
    monkeypatch.setattr(ood, "run_seed", lambda methods: {"rows": {"MAP": methods.problem.seed}, "sizes": {}})
    monkeypatch.setattr(ood, "run_baseline", lambda methods: {"rows": {methods.names[0]: 10 + methods.seed}})
    found = record(tmp_path, "ood", baseline_seeds=(0, 2))
    assert found["config"]["baseline_seeds"] == [0, 2]
    assert [part["rows"] for part in found["seeds"].values()] == [
        {"MAP": 0, "VB": 10, "CSGHMC": 10},
        {"MAP": 1},
        {"MAP": 2, "VB": 12, "CSGHMC": 12},
    ]
    assert set(found["seeds"]["0"]["baselines"]) == {"vb", "csghmc"}
    assert record(tmp_path, "ood", baseline_seeds=(0, 2))["seeds"] == found["seeds"]
    assert list(record(tmp_path, "ood", baseline_seeds=())["seeds"]["0"]["rows"]) == ["MAP"]


def test_a_network_from_scratch_that_fails_leaves_the_other_rows(tmp_path, made, monkeypatch):
    monkeypatch.setattr(ood, "run_seed", lambda methods: {"rows": {"MAP": 0}, "sizes": {}})

    def run_baseline(methods):
        if methods.kind == "vb":
            raise FitError("no.")
        return {"rows": {"CSGHMC": 1}}

    monkeypatch.setattr(ood, "run_baseline", run_baseline)
    found = record(tmp_path, "ood", seeds=(0,))
    assert found["failures"] == {"vb 0": "FitError: no."}
    assert found["seeds"]["0"]["rows"] == {"MAP": 0, "CSGHMC": 1}


def test_other_errors_end_the_study_and_keep_what_is_finished(tmp_path, made, monkeypatch):
    monkeypatch.setattr(marginals, "run_seed", failing((1,), ValueError("a damaged file")))
    with pytest.raises(ValueError, match="a damaged file"):
        record(tmp_path)
    assert list(parts(tmp_path)) == ["marginals-fashion-mnist-ours-0.json"]


def test_a_full_disk_keeps_the_first_seed_and_the_next_run_completes(tmp_path, made, monkeypatch):
    fsync, written = os.fsync, []

    def full(file):
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(file)
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"marginals-fashion-mnist-ours-1.json.*No space left on device\. Free some space"):
        record(tmp_path)
    before = parts(tmp_path)
    assert list(before) == ["marginals-fashion-mnist-ours-0.json"]
    monkeypatch.setattr(os, "fsync", fsync)
    assert list(record(tmp_path)["seeds"]) == ["0", "1", "2"]
    assert made == [0, 1, 1, 2]
    assert before.items() <= parts(tmp_path).items()


def test_parts_of_other_settings_are_refused(tmp_path, made):
    record(tmp_path)
    before = parts(tmp_path)
    with pytest.raises(ValueError, match=r"ours-0.json must be made with `few` 3, got 8\. Delete it, or work in another"):
        record(tmp_path, settings=dataclasses.replace(ImageSettings.small(), few=3))
    assert parts(tmp_path) == before


def test_images_are_read_before_the_work_and_described_at_every_run(tmp_path, made, monkeypatch):
    """The record of a study that was complete says as much about its data as that of the run that completed it."""
    images = Images(torch.zeros(50, 1, 28, 28, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64))
    missing, trained = ["kmnist"], []

    def load(name, split, folder):
        if name in missing:
            raise FileNotFoundError(errno.ENOENT, f"no {name}")
        return images

    monkeypatch.setattr(sources, "load_images", load)
    monkeypatch.setattr(image_studies, "describe", lambda name, split, folder: f"{name} {split} in {folder}")
    monkeypatch.setattr(image_studies, "train_missing", lambda *arguments, **options: trained.append(1) or {})
    monkeypatch.setattr(ood, "run_seed", lambda methods: {"rows": {"MAP": 0}, "sizes": {}})
    options = {"small": False, "data": "here", "seeds": (0,), "baseline_seeds": ()}
    with pytest.raises(FileNotFoundError, match="no kmnist"):
        record(tmp_path, "ood", **options)
    assert not trained
    missing.clear()
    first, again = (record(tmp_path, "ood", **options) for _ in range(2))
    assert first["data"] == again["data"]
    own, outside = {"fashion-mnist train", "fashion-mnist test"}, BENCHMARKS["fashion-mnist"].outside
    assert set(first["data"]) == own | {f"{name} test" for name in outside}
    assert first["data"]["mnist test"] == "mnist test in here"
    assert set(record(tmp_path, **options)["data"]) == own


@pytest.fixture
def finished(paper, tmp_path, monkeypatch):
    """A real study of one network, and the arguments that repeat it."""
    for name in paper.names:
        paper.fit(name)
    shutil.copytree(paper.setting.workspace.folder, tmp_path / "work")
    monkeypatch.setattr(sources, "made_images", source)
    options = {"dataset": "cifar-10", "protocol": "paper", "seeds": (0,), "settings": SETTINGS, "small": True}
    options |= {"name": "marginals", "work": tmp_path / "work", "progress": False}
    return record_image_study(**options), options


def test_a_study_of_what_is_there_fits_nothing(finished, paper):
    found, options = finished
    (part,) = found["seeds"].values()
    made = {"network": paper.problem.digest} | marginals.run_seed(paper)
    assert flat(part) == flat(json.loads(json.dumps(made)))
    before = files(options["work"])
    assert record_image_study(**options)["seeds"] == found["seeds"]
    assert files(options["work"]) == before


@pytest.mark.parametrize("damaged", ["networks/made-cifar-10-paper-0", "posteriors/cifar-10-paper-0-LA"])
def test_damaged_networks_and_draws_are_refused_and_kept(finished, damaged):
    _, options = finished
    shutil.rmtree(options["work"] / "parts")
    path = options["work"] / f"{damaged}.safetensors"
    content = path.read_bytes()[:-7]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path}.*[Dd]elete it"):
        record_image_study(**options)
    assert path.read_bytes() == content
    assert not files(options["work"], "parts/*")
    path.unlink()  # as it was told to
    assert list(record_image_study(**options)["seeds"]) == ["0"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "calibration"}, ValueError, "`name` must be one of 'image-calibration'"),
        ({"dataset": "mnist"}, ValueError, "`dataset` must be one of 'fashion-mnist', 'cifar-10', 'cifar-100', got 'mnist'"),
        ({"protocol": "theirs"}, ValueError, "`protocol` must be one of 'paper', 'ours', got 'theirs'"),
        ({"seeds": ()}, ValueError, "`seeds` must be different and at least one"),
        ({"seeds": (1, 1)}, ValueError, r"`seeds` must be different and at least one, got \[1, 1\]"),
        ({"seeds": (-1,)}, ValueError, "`seeds` must be at least 0, got -1"),
        ({"seeds": (0.5,)}, TypeError, "`seeds` must be an integer"),
        ({"seeds": (0, 1), "baseline_seeds": (2,)}, ValueError, r"`baseline_seeds` must be among the seeds \[0, 1\]"),
        ({"device": "gpu"}, ValueError, "`device` must be a device such as 'cpu' or 'cuda', got 'gpu'"),
        ({"device": "meta"}, ValueError, "`device` must be a device such as 'cpu' or 'cuda', got 'meta'"),
        ({"device": "cuda:99"}, ValueError, "`device` must be one that torch can use, got 'cuda:99'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        record_image_study(**{"name": "ood", "work": tmp_path / "work", "small": True, **options})
    with pytest.raises(error, match=message):
        check_options(**{"name": "ood", **options})
    assert not (tmp_path / "work").exists()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="`device` must be one that torch can use, got 'cuda', but torch sees no GPU"):
        check_options("ood", device="cuda")


def test_every_study_has_a_module_with_what_is_asked_of_it():
    for name in IMAGE_STUDIES:
        module = image_studies._module(name)
        assert callable(module.run_seed)
        assert callable(module.summary)
        assert (name in image_studies.WITH_BASELINES) == hasattr(module, "run_baseline")


# from here on, whole studies at a small scale, in processes of their own


def dataset_of(name):
    return "trec-coarse" if name == "text" else "cifar-10"


def command(name, folder, work, *more):
    arguments = ["study", name, "--small", "--dataset", dataset_of(name), "--protocol", "paper", "--out", folder]
    arguments += ["--work", work]
    return [sys.executable, "-W", "ignore", "-m", "burnish", *map(str, arguments), *more]


def start(name, folder, work):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(name, folder, work), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(name, folder, work):
    process = start(name, folder, work)
    _, errors = process.communicate(timeout=MAX_SECONDS)
    assert process.returncode == 0, errors
    return json.loads((folder / f"{name}-{dataset_of(name)}-paper-small.json").read_text())


def files(work, pattern="*/*"):
    """The finished files and when they were written."""
    return {path: path.stat().st_mtime_ns for path in work.glob(pattern) if not path.name.startswith(".")}


def kill_when(process, ready):
    """Kills the process at that moment; whether it was still running."""
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and not ready() and time.monotonic() < end:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_studies_that_are_killed_end_with_the_same_record(tmp_path):
    """The first study from nothing, killed again and again; the others when their first seed is finished."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    kills = 0
    for name in IMAGE_STUDIES:
        expected = finish(name, unbroken, unbroken / "work")
        pattern, counts = f"parts/{name}-*", (1,)
        if name == "image-calibration":
            pattern, counts = "*/*", (0, 1, 3, 5, 8, 12, 16, 20)
        for count in counts:
            before = files(broken / "work")
            process = start(name, broken, broken / "work")
            time.sleep(1.0)  # it needs more to begin with
            kills += kill_when(process, lambda p=pattern, n=count: len(files(broken / "work", p)) >= n)
            assert before.items() <= files(broken / "work").items()  # what is there is not made again
        before = files(broken / "work")
        found = finish(name, broken, broken / "work")
        assert before.items() <= files(broken / "work").items()
        assert_same(found, expected)
        assert found["failures"] == {}
    assert kills >= 10


@pytest.mark.slow
def test_studies_side_by_side_share_what_they_make(tmp_path):
    """Two of them in one folder end as they do one after another, and nothing is made twice."""
    names, alone, together = ("marginals", "shift"), tmp_path / "alone", tmp_path / "together"
    expected = {name: finish(name, alone, alone / "work") for name in names}
    processes = {name: start(name, together, together / "work") for name in names}
    for process in processes.values():
        _, errors = process.communicate(timeout=MAX_SECONDS)
        assert process.returncode == 0, errors
    for name in names:
        found = json.loads((together / f"{name}-cifar-10-paper-small.json").read_text())
        assert_same(found, expected[name])
    assert {path.relative_to(alone) for path in files(alone / "work")} == {
        path.relative_to(together) for path in files(together / "work")
    }


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_reproduce_small_leaves_every_record_with_all_seeds_in_less_than_five_minutes(tmp_path):
    root = Path(__file__).parents[2]
    before = os.times()
    # with the environment of these tests, which is not to be renewed
    variables = [f"BIN={Path(sys.executable).parent}", "READY=", f"SMALL={tmp_path}"]
    done = subprocess.run(
        ["make", "reproduce-small", *variables], cwd=root, capture_output=True, text=True, check=False, timeout=MAX_MAKE
    )
    assert done.returncode == 0, done.stderr
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    images = IMAGE_STUDIES.keys() - {"text"}
    lanes = {f"{name}-fashion-mnist-{protocol}-small" for name in images for protocol in ("paper", "ours")}
    lanes |= {f"text-{dataset}-{protocol}-small" for dataset, protocol in (("trec-coarse", "paper"), ("sst-binary", "ours"))}
    lanes |= {
        f"{name}-{lane}-small" for name in image_studies.WITH_BASELINES for lane in ("cifar-10-ours", "cifar-100-paper")
    }
    parts = {"few-shot-cifar-10-small", "tabular-small", "costs-small", "all-layer-small"}
    assert set(found) == lanes | parts == {path.stem for path in tmp_path.glob("*.svg")}
    for name in parts:
        entry = found.pop(name)
        assert entry["parts"], name
        assert entry["failures"] == {}, name
    for name, entry in found.items():
        assert entry["failures"] == {}, name
        assert list(entry["seeds"]) == ["0", "1"], name
    outside = []
    for lane in ("fashion-mnist-paper", "fashion-mnist-ours", "cifar-10-ours", "cifar-100-paper"):
        for part in found[f"image-calibration-{lane}-small"]["seeds"].values():
            rows = part["rows"]
            assert rows["recentred LA"]["mmd_paper"] < rows["LA"]["mmd_paper"] < rows["MAP"]["mmd_paper"]
            outside.append(not rows["HMC"]["inside"])
    assert sum(outside) <= 1  # each is with a chance of one in a hundred
    for part in found["marginals-fashion-mnist-paper-small"]["seeds"].values():
        assert part["rows"]["recentred LA"]["ks"] < part["rows"]["LA"]["ks"]
    assert seconds < 2 * 300.0 - 100.0  # of two cores, which are not always both busy
