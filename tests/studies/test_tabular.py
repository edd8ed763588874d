"""Networks on tables: the small study end to end, splits, intervals and duels."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from burnish import make_generator
from burnish.errors import FitError
from burnish.report import plots
from burnish.report.tabular_figure import draw_tabular
from burnish.studies import tabular, tabular_methods
from burnish.studies.data.damage import DamagedFileError
from burnish.studies.data.tables import Table, load_table, make_table, split_rows, stratified_splits
from burnish.studies.records import summarise
from burnish.studies.tabular import MADE, at_ends, difference, duels, made_table, record_tabular
from burnish.studies.tabular_methods import ALL_LAYERS, METHODS, REFINE, run_methods
from burnish.studies.tabular_networks import Training, draw_networks, train_networks
from burnish.studies.tabular_problem import Problem
from burnish.studies.tabular_scores import choose_scale


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    work = tmp_path_factory.mktemp("tabular")
    return work, record_tabular(work=work, small=True, progress=False)


def test_the_figure_has_every_table_and_plain_numbers(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plots._STYLE, "svg.fonttype", "none")
    svg = draw_tabular(small[1])
    assert all(f">{name}</text>" in svg for name in MADE)
    assert ">0.01</text>" in svg
    assert "mathdefault" not in svg


def test_every_method_predicts_every_split(small: Any) -> None:
    record = small[1]
    assert not record["failures"]
    assert list(record["parts"]) == list(MADE)
    for name, part in record["parts"].items():
        wanted = set(METHODS) - ({"temperature"} if name == "made numbers" else set())
        assert set(part["rows"]) == wanted
        for row in part["rows"].values():
            assert all(math.isfinite(value) for value in row["log_likelihood"])
            assert len(row["log_likelihood"]) == 2


def test_networks_know_more_than_nothing(small: Any) -> None:
    found = small[1]["parts"]["made classes"]["rows"]["ensemble"]["log_likelihood"]
    assert sum(found) / len(found) > -math.log(2.0)


def test_a_complete_study_is_not_made_again(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work, record = small
    monkeypatch.setattr(tabular, "run_methods", lambda problem: pytest.fail("made again"))
    assert record_tabular(work=work, small=True, progress=False)["parts"] == record["parts"]


def test_splits_hold_every_class_out_and_no_row_is_in_two_parts() -> None:
    table = made_table(MADE[0])
    rows = split_rows(table, 3)
    sizes = [getattr(rows, name)[1].shape for name in ("train", "validation", "test")]
    assert [size[0] for size in sizes] == [3, 3, 3]
    assert sum(size[1] for size in sizes) == len(table.inputs)
    numbers = torch.arange(len(table.inputs), dtype=torch.float64)
    numbered = Table("numbered", numbers.unsqueeze(1), numbers, torch.zeros(1, dtype=torch.bool), table.splits)
    rows = split_rows(numbered, 3)
    for split in range(3):
        spread, centre = torch.std_mean(rows.train[0][split, :, 0].double(), correction=0)
        assert abs(float(centre)) < 1e-5
        parts = [getattr(rows, name)[0][split, :, 0].double() for name in ("train", "validation", "test")]
        slope = rows.target_std[split] / float(spread)
        shift = slope * parts[2][0] - float(table.splits[split][0])  # back to the numbers of rows
        found = torch.cat([slope * part - shift for part in parts]).round().long()
        assert found.sort().values.tolist() == list(range(len(numbers)))
        assert found[-len(table.splits[split]) :].tolist() == table.splits[split].tolist()
    labels = torch.tensor([0] * 70 + [1] * 30)
    tests = stratified_splits(labels, 5, generator=make_generator(0))
    assert tests.shape[0] == 5
    assert (labels[tests].sum(1) == round(0.3 * tests.shape[1])).all()


def test_inputs_are_standardised_by_training_rows_alone() -> None:
    rows = split_rows(made_table(MADE[1]), 2)
    train = rows.train[0]
    assert train[..., :2].mean(1).abs().max() < 1e-5
    assert float((rows.test[0][..., :2].mean(1)).abs().max()) > 1e-3


def test_the_scale_of_noise_is_the_one_that_was_put_in() -> None:
    generator = make_generator(0)
    targets = torch.randn(1, 4000, generator=generator, dtype=torch.float64)
    outputs = (targets + 0.5 * torch.randn(1, 4000, generator=generator, dtype=torch.float64)).view(1, 1, 4000, 1)
    scale = choose_scale(outputs, targets)[0]
    assert float(scale.flatten()[0]) == pytest.approx(0.5, rel=0.1)


def problem(rows: Any, num_classes: int | None, **changes: Any) -> Problem:
    settings = dataclasses.asdict(tabular.Settings.small()) | {"training": tabular.Settings.small().training}
    del settings["max_splits"]
    return Problem(rows=rows, num_classes=num_classes, **settings | changes)


def test_likelihoods_are_in_the_units_of_the_table() -> None:
    """A table in other units has the same likelihoods but for the logarithm of the unit."""
    table = made_table(MADE[1])
    scaled = dataclasses.replace(table, targets=10.0 * table.targets)
    plain, wide = (run_methods(problem(split_rows(each, 2), None)) for each in (table, scaled))
    for name in ("network", "ensemble", "recentred Laplace"):
        expected = [value - math.log(10.0) for value in plain[name]["log_likelihood"]]
        assert wide[name]["log_likelihood"] == pytest.approx(expected, abs=2e-3), name
        assert wide[name]["rmse"] == pytest.approx([10.0 * value for value in plain[name]["rmse"]], rel=1e-3), name


def test_posteriors_of_numbers_keep_the_noise_that_they_were_fitted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a posterior fails under one of the priors, which is then left out."""
    case = problem(split_rows(made_table(MADE[1]), 2), None, layer_precisions=(1.0, 10.0))
    fit, calls = tabular_methods.fit_laplace, []

    def fail_first(target: Any, *options: Any, **more: Any) -> Any:
        calls.append(float(target.prior_precision))
        if len(calls) == 1:
            raise FitError("not this one")
        return fit(target, *options, **more)

    monkeypatch.setattr(tabular_methods, "fit_laplace", fail_first)
    row = run_methods(case)["recentred Laplace"]
    assert calls[:4] == [1.0, 10.0, 1.0, 10.0]
    assert row["precision"][0] == 10.0
    assert row["failed_precisions"] == 1
    drawn, _ = tabular_methods._last_layer(case)
    assert drawn.scale.tolist() == case.network_noise.tolist()
    monkeypatch.setattr(tabular_methods, "fit_laplace", lambda *args, **kwargs: (_ for _ in ()).throw(FitError("none")))
    with pytest.raises(FitError, match="split 0 has a posterior under none of the priors"):
        tabular_methods._last_layer(case)


def test_each_network_has_its_own_weight_decay() -> None:
    """Each is what AdamW with its weight decay makes of it alone, on all rows at each step."""
    rows = split_rows(made_table(MADE[1]), 1)
    inputs, targets = rows.train
    training = Training(batch_size=len(inputs[0]), num_epochs=1, min_steps=30, max_steps=30)
    start, decays = draw_networks(2, inputs.shape[-1], 8, 1, generator=make_generator(0)), [0.01, 3.0]
    options = {"offsets": torch.zeros(2, dtype=torch.long), "generator": make_generator(1)}
    found = train_networks(start, inputs, targets, training, weight_decay=torch.tensor(decays), **options)
    for number, decay in enumerate(decays):
        alone = start.module(number).requires_grad_()
        optimizer = torch.optim.AdamW(alone.parameters(), lr=training.learning_rate, weight_decay=decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        for _ in range(30):
            optimizer.zero_grad()
            (0.5 * (alone(inputs[0]).squeeze(-1) - targets[0]).square().mean()).backward()
            optimizer.step()
            schedule.step()
        for ours, theirs in zip(found.module(number).parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)


def part(**scores: list[float]) -> dict[str, Any]:
    rows = {name: {"log_likelihood": values} for name, values in scores.items()}
    return {"kind": "classification", "rows": rows, "sizes": {"train": 80, "validation": 10, "test": 10}}


def test_intervals_allow_for_training_sets_that_overlap() -> None:
    found = difference(part(a=[1.0, 2.0, 3.0], b=[0.0, 0.0, 0.0]), "a", "b")
    assert found is not None
    assert found[0] == 2.0
    # Student's 97.5 % quantile with two degrees of freedom, and a share of 1/3 + 10/90
    assert found[1] == pytest.approx(4.302653 * math.sqrt(1 / 3 + 1 / 9), rel=1e-5)
    assert difference(part(a=[1.0, 2.0]), "a", "b") is None


def test_duels_count_data_sets() -> None:
    won, lost = [1.0, 1.1, 1.2], [0.0, 0.1, 0.2]
    record = {
        "parts": {
            "one": part(**{REFINE: won, ALL_LAYERS: lost, "network": lost}),
            "two": part(**{REFINE: lost, ALL_LAYERS: won, "network": [-3.0, 0.0, 3.6]}),
            "three": part(**{REFINE: lost}),
        }
    }
    found = {(duel.method, duel.rival): (duel.wins, duel.ties, duel.losses) for duel in duels(record)}
    assert found[REFINE, "network"] == (1, 1, 0)
    assert found[REFINE, ALL_LAYERS] == (1, 0, 1)
    assert found[ALL_LAYERS, "network"] == (0, 2, 0)


def test_choices_at_the_end_of_a_grid_are_told() -> None:
    grids = {"weight_decays": [0.1, 1.0], "dropouts": [0.0, 0.5], "layer_precisions": [1.0, 10.0], "precisions": [1.0, 2.0]}
    rows = {
        "network": {"weight_decay": [1.0, 1.0, 0.5]},
        "MC dropout": {"dropout": [0.0, 0.0, 0.0]},  # none at all is no end
        "recentred Laplace": {"precision": [1.0, 10.0, 5.0]},
        "mode of all layers": {"precision": [1.0, 1.0, 2.0]},
    }
    found = at_ends({"config": grids, "parts": {"wine_red": {"rows": rows}, "iris": {"rows": {}}}})
    assert found == ["network: weight decay 1 on wine red", "mode of all layers: precision 1 on wine red"]


def test_the_table_has_a_star_in_each_row_and_the_duels(small: Any) -> None:
    header, rows = summarise(small[1])
    assert header[1:] == list(METHODS)
    assert all(sum(cell.endswith("*") for cell in row) == 1 for row in rows[:2])
    assert [row[0].split(":")[0] for row in rows[2:]] == [REFINE, ALL_LAYERS]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"datasets": ["iris"]}, "`datasets` must be one of 'made classes'"),
        ({"datasets": []}, "`datasets` must be names of data sets"),
        ({"num_splits": 1}, "`num_splits` must be at least 2"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=said):
        record_tabular(work=tmp_path, small=True, progress=False, **options)


def test_missing_and_damaged_files_are_refused(tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError, match="iris"):
        load_table("iris", tmp_path)
    with pytest.raises(ValueError, match="it has no iris_X"):
        make_table("iris", {}, tmp_path / "file.npz")
    (tmp_path / "uci_classification.npz").write_bytes(b"PK cut off")
    with pytest.raises(DamagedFileError, match=r"its checksum is not the known one.*[Cc]opy it anew") as said:
        load_table("iris", tmp_path)
    assert "fetch" not in str(said.value)  # it has no public home
