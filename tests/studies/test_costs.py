"""What refinement costs: made features, the small study end to end, and what its record says."""

from typing import Any

import pytest
import torch

from burnish import make_generator
from burnish.studies import costs
from burnish.studies.costs import Settings, claims, record_costs, summary
from burnish.studies.made_mixture import make_mixture
from burnish.studies.printed import Printed, printed


def made(seed: int = 0, num_points: int = 103, **options: Any) -> Any:
    values = {"separation": 4.0, **options}
    return make_mixture(num_points, 30, 5, generator=make_generator(seed), **values)


def test_classes_are_even_and_points_the_same_for_a_seed() -> None:
    first, again, other = made(), made(), made(1)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)
    counts = torch.bincount(first.targets)
    assert counts.tolist() == [21, 21, 21, 20, 20]


def test_points_have_unit_variance_around_means_on_the_sphere() -> None:
    data = made(num_points=20_000, separation=7.0)
    for label in range(5):
        own = data.inputs[data.targets == label]
        assert float(own.mean(0).norm()) == pytest.approx(7.0, abs=0.15)
        assert float(own.var(0).mean()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("options", "name"), [({"num_points": 4}, "num_points"), ({"separation": 0.0}, "separation")])
def test_what_cannot_be_made_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must"):
        made(**options)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    work = tmp_path_factory.mktemp("costs")
    return work, record_costs(work=work, small=True, progress=False)


def test_the_small_study_refines_every_base(small: Any) -> None:
    record = small[1]
    assert list(record["parts"]) == ["classes-3", "classes-6", "points", "parameters"]
    assert not record["failures"]
    for name in ("classes-3", "classes-6"):
        part = record["parts"][name]
        rows = part["rows"]
        assert part["accuracy"] > 1.5 / part["classes"]
        assert rows["refined"]["elbo"] > rows["base"]["elbo"]
        assert len(rows["refined"]["all_seconds"]) == 3
        assert not rows["paper"]["extrapolated"]
    assert "refined, defaults" in record["parts"]["classes-3"]["rows"]
    assert "refined, defaults" not in record["parts"]["classes-6"]["rows"]
    assert [row["points"] for row in record["parts"]["points"]["rows"]] == [100, 300]
    assert [row["parameters"] for row in record["parts"]["parameters"]["rows"]] == [27, 51]
    assert all(row["paper"]["extrapolated"] for row in record["parts"]["points"]["rows"])


def test_what_is_there_is_not_made_again(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work, record = small
    monkeypatch.setattr(costs, "make_mixture", None)  # which would fail
    assert record_costs(work=work, small=True, progress=False)["parts"] == record["parts"]
    fewer = Settings(**{**vars(Settings.small()), "classes": (6,)})
    assert next(iter(record_costs(work=work, settings=fewer, progress=False)["parts"])) == "classes-6"


def test_a_part_that_does_not_fit_loses_no_other(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(what: str, *rest: Any) -> None:
        if "6 classes" in what:
            raise MemoryError("too large.")

    monkeypatch.setattr(costs, "check_memory", refuse)
    record = record_costs(work=tmp_path, small=True, progress=False)
    assert list(record["failures"]) == ["classes-6"]
    assert len(summary(record)[1]) == 1


def row(seconds: float, elbo: float) -> dict[str, float]:
    return {"seconds": seconds, "elbo": elbo, "elbo_error": 1.0}


def made_record(seconds: float, ours: float) -> dict[str, Any]:
    rows = {"base": row(9.0, -50.0), "paper base": row(1.0, -60.0), "refined": row(seconds, ours), "paper": row(20.0, -40.0)}
    config = {"seed": 0, **vars(Settings())}
    return {"device": "a GPU", "config": config, "parts": {"classes-10": {"classes": 10, "rows": rows}}}


@pytest.mark.parametrize(("seconds", "ours", "expected"), [(0.5, -30.0, [True, True]), (1.5, -45.0, [False, False])])
def test_claims_follow_the_numbers(seconds: float, ours: float, expected: list[bool]) -> None:
    found = claims(made_record(seconds, ours))
    assert [claim.holds for claim in found] == expected
    assert "a GPU" in found[0].measured


def test_the_summary_has_the_printed_seconds_where_sizes_are_the_papers(small: Any) -> None:
    known = printed("refinement_seconds_rtx2080ti_4096_features_10000_points", "10")
    assert isinstance(known, Printed)
    header, rows = summary(made_record(0.5, -30.0))
    assert rows == [["10", f"{known.mean:g}", "20", "9", "0.5", "-60 ± 1", "-40 ± 1", "-50 ± 1", "-30 ± 1", ""]]
    assert len(header) == len(rows[0])
    known_default = made_record(0.054, -30.0)
    known_default["parts"]["classes-10"]["rows"]["refined, defaults"] = row(4.86, -20.0)
    assert (summary(known_default)[1][0][4], summary(known_default)[1][0][-1]) == ("0.054", "-20 ± 1, 4.9 s")
    assert {line[1] for line in summary(small[1])[1]} == {""}
