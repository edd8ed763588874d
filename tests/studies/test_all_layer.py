"""All layers: the small study end to end, what is kept and what is not lost, and what its record says."""

import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.errors import FitError
from burnish.inference.curvature import diagonal_hessian
from burnish.report.all_layer_figure import draw_all_layer
from burnish.studies import all_layer, all_layer_hmc
from burnish.studies.all_layer import Settings, by_posterior, claims, record_all_layer, subspace_summary, summary
from burnish.studies.all_layer_hmc import compare, pool_runs
from burnish.studies.all_layer_paper import paper_base
from burnish.studies.all_layer_problem import Problem, Setting
from burnish.studies.all_layer_settings import HMC, REFINED, base_name, flow_name, kinds
from burnish.studies.all_layer_tables import printed_nll
from burnish.studies.part_studies import PART_STUDIES
from burnish.studies.protocols import split_rows
from burnish.studies.records import finite, summarise

SETTINGS = replace(
    Settings.small(),
    num_points=100,
    num_epochs=40,
    batch_size=50,
    few=4,
    many=8,
    max_steps=20,
    max_draws=10,
    start_steps=20,
    num_followed=20,
    lengths=(1, 2),
)
RECORD = Path(__file__).resolve().parents[2] / "results" / "all-layer.json"


def study(work: Any, **options: Any) -> dict[str, Any]:
    return record_all_layer(
        **{"seeds": (0,), "work": work, "settings": SETTINGS, "small": True, "progress": False, **options}
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    work = tmp_path_factory.mktemp("all-layer")
    return work, study(work)


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


def numbers(part: dict[str, Any]) -> dict[str, Any]:
    """What a part has measured, but seconds."""
    timed = ("seconds", "choice_seconds")
    return {name: {key: row[key] for key in row if key not in timed} for name, row in part["rows"].items()}


def made_rows(*failing: str) -> Callable[[Problem, str], list[dict[str, Any]]]:
    """In place of all posteriors, others that take no time; kinds of parts that are named fail."""

    def make(problem: Problem, kind: str) -> list[dict[str, Any]]:
        if kind in failing:
            raise FitError("the chains diverged; use more.")
        probs = problem.model(problem.theta, problem.test.inputs).softmax(-1)
        known = {"num_threads": torch.get_num_threads()}
        if kind == "hmc":
            followed = torch.rand(2, 8, 5, generator=problem.generator())
            return [problem.score(HMC, probs.double(), followed=followed, **known) | {"probs": probs.double().cpu()}]
        base, _, length = kind.partition("-")
        name = flow_name(base, int(length)) if length else kind
        return [problem.score(name, probs.sqrt() / probs.sqrt().sum(-1, keepdim=True), **known)]

    return make


def test_every_kind_of_posterior_is_a_part(small: Any) -> None:
    record = small[1]
    assert not record["failures"]
    assert list(record["parts"]) == [f"{kind}-0" for kind in kinds(SETTINGS)]
    assert {part["network"] for part in record["parts"].values()} == {record["parts"]["hmc-0"]["network"]}
    assert set(by_posterior(record)) == set(by_posterior(json.loads(RECORD.read_text()))) - {
        flow_name(base, length) for base in ("paper", "own") for length in (5, 10, 30)
    } | {flow_name(base, 2) for base in ("paper", "own")}
    assert record["config"]["num_parameters"] == 16 * 8 + 8 + 8 * 10 + 10
    assert record["parts"]["own-1-0"]["origin"]["device"].endswith("CPU, 1 threads")
    assert record["origins"] == [record["parts"]["flows-0"]["origin"]]


def test_rows_have_their_distance_to_hmc_and_the_share_of_the_gap_that_they_close(small: Any) -> None:
    record = small[1]
    rows = {name: row for part in record["parts"].values() for name, row in part["rows"].items()}
    assert all(0.0 <= row["distance"] <= 1.0 for row in rows.values())
    assert rows[HMC]["distance"] == 0.0  # one run is all runs
    paper = min(rows[flow_name(base, 2)]["few_nll"] for base in ("paper", "own"))
    assert record["judge"]["nll"] == pytest.approx(rows[HMC]["nll"], abs=1e-12)
    expected = (paper - rows[REFINED]["few_nll"]) / (paper - record["judge"]["nll"])
    assert rows[REFINED]["closed"] == pytest.approx(expected)
    assert rows[REFINED]["distance"] < rows["network"]["distance"]
    assert rows[REFINED]["gain"] > 0.0


def test_a_complete_study_is_not_made_again(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_layer, "_rows", lambda *part: pytest.fail("made again"))
    again = study(small[0])
    assert again["parts"] == small[1]["parts"]
    assert again["judge"] == small[1]["judge"]


def test_what_was_interrupted_goes_on_to_the_same_numbers(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    shutil.copytree(small[0], work)
    for name in ("parts/all-layer-hmc-0.json", "predictions/all-layer-hmc-0.safetensors"):
        (work / name).unlink()
    for name in ("parts/all-layer-own-2-0.json", "checkpoints/all-layer-hmc-0.safetensors"):
        (work / name).unlink()
    whole, lengths = all_layer_hmc.fit_hmc, []

    def killed(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options | {"min_draws": 4, "max_draws": 4})
        raise KeyboardInterrupt

    def resumed(*arguments: Any, **options: Any) -> Any:
        lengths.append(options["checkpoint"].stat().st_size)
        return whole(*arguments, **options)

    monkeypatch.setattr(all_layer_hmc, "fit_hmc", killed)
    with pytest.raises(KeyboardInterrupt):
        study(work)
    assert not (work / "parts" / "all-layer-hmc-0.json").exists()
    monkeypatch.setattr(all_layer_hmc, "fit_hmc", resumed)
    again = study(work)
    assert lengths[0] > 0
    for name, part in small[1]["parts"].items():
        assert numbers(again["parts"][name]) == numbers(part), name
    assert again["judge"] == small[1]["judge"]


def test_predictions_that_are_lost_are_asked_for_and_made_with_their_part(small: Any, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(small[0], work)
    (work / "predictions" / "all-layer-paper-1-0.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"`work` must hold the predictions of the part all-layer-paper-1-0, got none.*Delete"
    ):
        study(work)
    (work / "parts" / "all-layer-paper-1-0.json").unlink()
    again = study(work)["parts"]["paper-1-0"]
    assert numbers(again) == numbers(small[1]["parts"]["paper-1-0"])


def test_a_part_is_refused_where_its_own_sizes_are_others(small: Any) -> None:
    with pytest.raises(ValueError, match=r"all-layer-hmc-0.json must be made with `max_draws` 12, got 10"):
        study(small[0], settings=replace(SETTINGS, max_draws=12))
    other = replace(SETTINGS, hmc_seconds=99.0, num_chains=3, max_draws=12)
    assert other.of_part("flows") == SETTINGS.of_part("flows")
    assert other.of_part("paper-1") == replace(SETTINGS, max_steps=9).of_part("paper-1")
    assert replace(SETTINGS, few=9).of_part("hmc") != SETTINGS.of_part("hmc")


@pytest.mark.parametrize("failing", ["gaussians", "hmc", "paper-2", "flows"])
def test_a_part_that_fails_loses_no_other(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_layer, "_rows", made_rows(failing))
    record = study(tmp_path, seeds=(0, 1))
    wanted = {f"{failing}-{seed}": "FitError: the chains diverged; use more." for seed in (0, 1)}
    assert record["failures"] == wanted
    assert len(record["parts"]) == 2 * (len(kinds(SETTINGS)) - 1)
    rows = [row for part in record["parts"].values() for row in part["rows"].values()]
    assert (record["judge"] is None) == (failing == "hmc")
    assert all((row["distance"] is None) == (failing == "hmc") for row in rows)
    header, table = summarise(record)
    assert all(len(line) == len(header) for line in table)
    assert isinstance(claims(record), list)
    assert draw_all_layer(record).startswith("<svg")
    for name in ("hmc-0", "paper-1-0"):  # a figure of next to nothing
        assert draw_all_layer({**record, "parts": {key: record["parts"][key] for key in [name] if key in record["parts"]}})
    monkeypatch.setattr(all_layer, "_rows", made_rows())
    assert not study(tmp_path, seeds=(0, 1))["failures"]


def test_the_papers_flows_have_one_thread_and_others_keep_theirs(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small[0] / "networks", tmp_path / "networks")
    monkeypatch.setattr(all_layer, "_rows", made_rows())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        record = study(tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    counts = {name: row["num_threads"] for part in record["parts"].values() for name, row in part["rows"].items()}
    assert {name for name, count in counts.items() if count == 1} == {
        flow_name(base, length) for base in ("paper", "own") for length in SETTINGS.lengths
    }
    assert [origin["device"].rpartition("CPU, ")[2] for origin in record["origins"]] == ["2 threads", "1 threads"]


def test_validation_and_test_points_are_the_papers(small: Any) -> None:
    setting = Setting.of(SETTINGS, None, small[0], True)
    images = setting.source("fashion-mnist", "test")
    rows = split_rows("paper", 500, len(images))
    for batch, name in zip(setting.held_out, ("validation", "test"), strict=True):
        part, index = rows[name]
        assert part == "test"
        expected = images.take(index).inputs()
        own, other = (points.flatten(1).double().sum(1).sort().values for points in (batch.inputs, expected))
        assert torch.equal(own, other)


def test_the_papers_base_is_diagonal_at_the_network_under_either_prior(small: Any) -> None:
    problem = Problem(Setting.of(SETTINGS, None, small[0], True), 0, torch.device("cpu"))
    curvature = diagonal_hessian(problem.target, problem.theta).float()
    for chosen in (False, True):
        base, precision = paper_base(problem, chosen=chosen)
        assert torch.equal(base.mean, problem.theta)
        assert torch.allclose(base.scale.std, (curvature + precision).rsqrt())
        assert (precision == SETTINGS.precision) is not chosen


def test_runs_of_hmc_are_pooled_by_their_shortest() -> None:
    probs = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.7, 0.3], [0.5, 0.5]]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    runs = [
        {"probs": each, "followed": torch.rand(2, length, 3, generator=generator)}
        for each, length in zip(probs, (8, 12), strict=True)
    ]
    mean, judge = pool_runs(runs, torch.tensor([0, 1]))
    assert torch.allclose(mean, torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=torch.float64))
    assert judge["between"] == pytest.approx([0.1])
    assert judge["num_followed"] == 3


def test_probabilities_that_are_rounded_to_zero_and_one_leave_a_judge(committed: Any) -> None:
    followed = torch.rand(2, 8, 3, generator=torch.Generator().manual_seed(0))
    followed[0, 3, 0] = 0.0
    followed[..., 2] = 1.0
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    _, judge = pool_runs([{"probs": probs, "followed": followed}], torch.tensor([1, 0]))
    assert math.isfinite(judge["nll_rhat"])
    assert judge["nll"] == math.inf
    rows = {flow_name("own", 2): {"few_nll": 0.5}}
    found = compare(rows, {flow_name("own", 2): probs}, (probs, judge), SETTINGS)
    assert found[flow_name("own", 2)] == {"few_nll": 0.5, "distance": 0.0, "closed": None}
    record = finite({**committed, "judge": judge | {"predictive_rhat": math.nan}})
    assert about(record, "HMC has converged")
    assert draw_all_layer(record).startswith("<svg")


def test_a_gap_is_closed_from_the_better_of_the_longest_flows() -> None:
    names = {flow_name("paper", 2): 0.5, flow_name("own", 2): 0.4, flow_name("own", 1): 0.3, HMC: 0.2}
    rows = {name: {"few_nll": value} for name, value in names.items()}
    probs = {name: torch.tensor([[0.25, 0.75]]) for name in names}
    judge = torch.tensor([[0.5, 0.5]]), {"nll": 0.2}
    found = compare(rows, probs, judge, SETTINGS)
    assert [row["closed"] for row in found.values()] == pytest.approx([-0.5, 0.0, 0.5, 1.0])
    assert all(row["distance"] == 0.25 for row in found.values())
    nowhere = compare({**rows, HMC: {"few_nll": None}}, probs, judge, SETTINGS)
    assert nowhere[HMC]["closed"] is None
    bare = compare(rows, probs, None, SETTINGS)
    assert all(row["closed"] is row["distance"] is None for row in bare.values())
    shorter = compare({HMC: rows[HMC]}, probs, judge, SETTINGS)
    assert shorter[HMC]["closed"] is None
    assert shorter[HMC]["distance"] == 0.25


def test_the_table_has_a_row_for_each_posterior_and_the_figure_is_drawn(small: Any) -> None:
    header, rows = summarise(small[1])
    assert {row[0] for row in rows} == set(by_posterior(small[1]))
    assert all(len(row) == len(header) for row in rows)
    assert {row[3] for row in rows} == {""}  # nothing is printed about made images
    assert len(subspace_summary(small[1])[1]) == 5
    assert draw_all_layer(small[1]).startswith("<svg")


def test_the_committed_record_has_the_papers_numbers_beside_its_own(committed: Any) -> None:
    header, rows = summary(committed)
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert found[REFINED]["NLL, 20 draws"] == "0.3109 ± 0.0006"
    assert found[REFINED]["closed, %"] == "58 / 60 / 62"
    assert found[HMC]["printed NLL"] == "0.2908"
    assert found[base_name("own")]["printed NLL"] == found[base_name("paper")]["printed NLL"] == "0.3597"
    assert found[flow_name("own", 30)]["printed NLL"] == "0.3432"
    assert printed_nll(committed, REFINED) is None
    assert subspace_summary(committed)[1][-1][0] == "all 39,760"
    assert draw_all_layer(committed) == draw_all_layer(json.loads(json.dumps(committed)))
    other = copy.deepcopy(committed)
    other["config"]["num_points"] = 1000
    assert printed_nll(other, HMC) is None


def about(record: dict[str, Any], what: str) -> list[bool]:
    found = [claim.holds for claim in claims(record) if what in claim.statement]
    assert found
    return found


def test_the_committed_record_says_what_holds_and_what_does_not(committed: Any) -> None:
    assert about(committed, "from the target's own prior, NLL of the paper's flows falls") == [True]
    assert about(committed, "from a prior chosen on validation points") == [False]
    assert about(committed, "of the paper's protocol predicts better than the network") == [False]
    assert about(committed, "NLL of the paper's flows, from the target's own prior, is the printed one") == [True]
    assert about(committed, "NLL of the base of the paper's flows") == [False]
    assert about(committed, "NLL of HMC is the printed one") == [True]
    assert about(committed, "closes at least half of the gap from the paper's 30 layers to HMC") == [True]
    assert about(committed, "no posterior predicts better than HMC") == [True]
    assert about(committed, "HMC has converged") == [False]
    assert any("1.028" in claim.measured for claim in claims(committed))


def test_claims_follow_the_record(committed: Any) -> None:
    record = copy.deepcopy(committed)
    rows = record["parts"]["flows-1"]["rows"]
    rows[REFINED]["closed"] = 0.49
    rows["network"]["few_nll"] = 0.1
    record["judge"]["nll_rhat"] = 1.009
    for seed in (0, 1, 2):
        record["parts"][f"own-5-{seed}"]["rows"][flow_name("own", 5)]["few_nll"] = 0.36
    assert about(record, "closes at least half") == [False]
    assert about(record, "no posterior predicts better than HMC") == [False]
    assert about(record, "HMC has converged") == [True]
    assert about(record, "from the target's own prior, NLL of the paper's flows falls") == [False]
    assert about(record, "NLL of the paper's flows, from the target's own prior, is the printed one") == [False]


def test_a_posterior_without_a_finite_nll_is_shown_without_one(committed: Any) -> None:
    record = copy.deepcopy(committed)
    for seed in (0, 1, 2):
        rows = record["parts"][f"flows-{seed}"]["rows"]
        rows["recentred network"] |= {"few_nll": None, "nll": None, "closed": None}
        rows[REFINED] |= {"gain": None, "elbo": None}
    assert summary(record)[1][0][:2] == ["recentred network", ""]
    assert subspace_summary(record)[1][-1][1] == ""
    assert claims(record) == claims(committed)
    assert draw_all_layer(record).startswith("<svg")


def test_it_is_a_study_of_the_command_line() -> None:
    known = PART_STUDIES["all-layer"]
    assert known.record is record_all_layer
    assert known.options == ("seeds", "device", "data")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": ()}, "`seeds` must be different and at least one"),
        ({"seeds": (-1,)}, "`seeds` must be at least 0"),
        ({"device": "gpu"}, "`device` must be a device"),
        ({"data": "/nowhere", "small": False}, "`folder` must name existing folders"),
    ],
)
def test_wrong_options_are_refused_before_any_work(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=said):
        study(tmp_path / "work", **options)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": ()}, "`lengths` must rise and be at least 1, got"),
        ({"lengths": (5, 1)}, "`lengths` must rise and be at least 1, got"),
        ({"few": 0}, "`few` must be at least 1, got 0"),
        ({"snapshots": 2}, "`snapshots` must be at least 3, got 2"),
        ({"precision": -1.0}, "`precision` must be"),
        ({"hmc_seconds": 0.0}, "`hmc_seconds` must be .* Pass None for no limit"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**options)


@pytest.mark.slow
def test_the_small_study_has_two_networks_whose_runs_of_hmc_agree(tmp_path: Path) -> None:
    record = record_all_layer(work=tmp_path, small=True, progress=False)
    assert not record["failures"]
    assert record["config"]["seeds"] == [0, 1]
    assert len(record["judge"]["between"]) == 1
    assert record["judge"]["between"][0] < 0.1
    for seed in (0, 1):  # how much of the gap that is depends on the sizes, and says nothing about small ones
        rows = record["parts"][f"flows-{seed}"]["rows"]
        refined, base = rows[REFINED], rows["Laplace, Kronecker, recentred"]
        assert refined["elbo"] > base["elbo"]
        assert refined["distance"] < base["distance"]
        assert refined["closed"] > base["closed"]
