"""Few points: the small study end to end, on images and on texts, and what its record says."""

import copy
from typing import Any

import pytest

from burnish.report.few_shot_figure import draw_few_shot
from burnish.studies import few_shot
from burnish.studies.few_shot import by_count, claims, few_ratio, record_few_shot
from burnish.studies.few_shot_methods import ADAPTED, METHODS, SCRATCH, TARGETS, Settings
from burnish.studies.image_posteriors import FLOW, HMC, RECENTRED
from burnish.studies.records import summarise

SETTINGS = Settings(counts=(20, 60), num_draws=32, few=8, num_chains=16, num_superchains=4, max_draws=60)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    work = tmp_path_factory.mktemp("few-shot")
    record = record_few_shot(dataset="cifar-10", seeds=(0, 1), work=work, settings=SETTINGS, small=True, progress=False)
    return work, record


def test_every_network_number_and_target_is_a_part(small: Any) -> None:
    record = small[1]
    assert not record["failures"]
    for kind in TARGETS:
        groups = by_count(record, kind)
        assert {count: [part["seed"] for part in parts] for count, parts in groups.items()} == {20: [0, 1], 60: [0, 1]}
    for part in record["parts"].values():
        assert tuple(part["rows"]) == METHODS
        assert part["target"]["points"] == part["count"]
        assert part["target"]["prior_mean"] == "zero" if part["kind"] == SCRATCH else part["target"]["precision"] != 1.0


def test_the_network_is_the_same_for_all_numbers_and_targets(small: Any) -> None:
    for seed in (0, 1):
        scores = {part["rows"]["MAP"]["many"]["nll"] for part in small[1]["parts"].values() if part["seed"] == seed}
        assert len(scores) == 1


def test_a_flow_is_closer_to_hmc_than_a_gaussian_where_points_are_few(small: Any) -> None:
    for part in by_count(small[1], SCRATCH)[20]:
        assert part["rows"][FLOW]["tv"] < part["rows"][RECENTRED]["tv"]
        assert part["rows"][HMC]["tv"] <= 1.5 * part["judge"]["largest_tv"]


def test_a_complete_study_is_not_made_again(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work, record = small
    monkeypatch.setattr(few_shot, "run_case", lambda case: pytest.fail("made again"))
    again = record_few_shot(dataset="cifar-10", seeds=(0, 1), work=work, settings=SETTINGS, small=True, progress=False)
    assert again["parts"] == record["parts"]


def test_texts_have_the_same_study(tmp_path: Any) -> None:
    settings = Settings(counts=(20,), num_draws=32, few=8, num_chains=16, num_superchains=4, max_draws=20)
    record = record_few_shot(dataset="sst-binary", seeds=(0,), work=tmp_path, settings=settings, small=True, progress=False)
    assert not record["failures"]
    assert len(record["parts"]) == len(TARGETS)


def test_the_table_has_a_row_for_each_target_and_number_and_the_figure_is_drawn(small: Any) -> None:
    header, rows = summarise(small[1])
    assert [row[0] for row in rows] == [f"{kind}, {count}" for kind in TARGETS for count in (20, 60)]
    assert all(len(row) == len(header) for row in rows)
    assert draw_few_shot(small[1]).startswith("<svg")


def test_claims_follow_the_record(small: Any) -> None:
    record = copy.deepcopy(small[1])

    def about(what: str) -> list[bool]:
        return [claim.holds for claim in claims(record) if what in claim.statement]

    def of(part: Any, *names: str) -> list[Any]:
        return [part["rows"][name] for name in names]

    for part in record["parts"].values():
        part["judge"] |= {"largest_tv": 1.0, "largest_nll_gap": 0.1}
        part["rows"][HMC]["fit"]["nested_rhat"] = 1.005
        part["rows"]["burnish"]["few"]["nll"] = part["rows"]["MAP-Temp"]["few"]["nll"] - 0.1
        for row in of(part, RECENTRED, FLOW, "burnish"):
            row |= {"tv_few": 1.05 * part["rows"][HMC]["tv_few"], "nll_gap": -0.05}
    assert all(claim.holds for claim in claims(record))
    recentred, flow = of(part, RECENTRED, FLOW)
    recentred["tv"] = 1.1
    part["rows"][HMC]["fit"]["nested_rhat"] = 1.02
    assert about(f"{SCRATCH}: predictions of 32 draws of recentred") == [False]
    assert about(f"{ADAPTED}: predictions of 32 draws of recentred") == [True]
    flow |= {"tv_few": 1.2 * part["rows"][HMC]["tv_few"], "nll_gap": -0.11}  # and less on the other network
    assert about(f"{SCRATCH}: 8 draws of burnish, flow") == [False]
    assert about(f"{SCRATCH}: 8 draws of recentred") == [True]
    assert about(f"{SCRATCH}: NLL of 32 draws of burnish, flow") == [False]
    assert about(f"{SCRATCH}: NLL of 32 draws of burnish, auto") == [True]
    assert few_ratio([part, by_count(record, SCRATCH)[60][0]], FLOW) == pytest.approx(1.125)
    assert about("HMC has converged") == [False]
    for worse in by_count(record, ADAPTED)[60]:
        worse["rows"]["burnish"]["few"]["nll"] += 0.2
        worse["rows"][RECENTRED]["tv_few"] = 0.8 * worse["rows"][HMC]["tv_few"]  # draws that are too much alike
    assert about("60 points: NLL") == [False]
    assert about("20 points: NLL") == [True]
    assert about(f"{ADAPTED}: 8 draws of recentred") == [False]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "imagenet"}, "`dataset` must be one of"),
        ({"seeds": ()}, "`seeds` must be different and at least one"),
        ({"device": "gpu"}, "`device` must be a device"),
        ({"settings": Settings(counts=(100_000,))}, "`settings.counts` must have one of at most"),
    ],
)
def test_wrong_options_are_refused_before_any_work(options: dict[str, Any], said: str, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=said):
        record_few_shot(**{"dataset": "cifar-10", "work": tmp_path / "work", "small": True, **options})
    assert not (tmp_path / "work" / "networks").exists()


@pytest.mark.parametrize("options", [{"counts": (5,)}, {"counts": (50, 20)}, {"num_chains": 7}, {"few": 7}])
def test_wrong_sizes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must"):
        Settings(**options)
