"""Tables of docs/reproduction: which records they are of, and what is said of how those were made."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from burnish.studies.image_settings import ImageSettings
from burnish.studies.protocols import BENCHMARKS
from burnish.studies.records import finite
from burnish.studies.workspace import VERSION

SCRIPTS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import reproduction_tables

        yield reproduction_tables
    for name in ("reproduction_tables", "committed", "records"):
        sys.modules.pop(name)


def write(folder, name, **changes):
    """A record as studies leave it, in little; the name says what of."""
    dataset = next(each for each in BENCHMARKS if f"-{each}-" in name)
    study, protocol = name.split(f"-{dataset}-")
    seeds = list(BENCHMARKS[dataset].seeds)
    config = {
        "dataset": dataset,
        "protocol": protocol,
        "seeds": seeds,
        **finite(asdict(ImageSettings.usual(dataset, protocol))),
    }
    record = {
        "study": study,
        "version": VERSION,
        "config": config,
        "data": {"a": "some images"},
        "failures": {},
        "seeds": {},
    } | changes
    (folder / f"{name}.json").write_text(json.dumps(record))
    return record


def part(network="abc", **rows):
    return {"network": network, "origin": {}, "rows": rows}


@pytest.fixture
def folder(tables, tmp_path, monkeypatch):
    """In place of that of the committed records."""
    monkeypatch.setattr(sys.modules["committed"], "RESULTS", tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "texts").mkdir()
    return tmp_path / "images"


def test_records_are_found_by_the_names_of_studies_data_sets_and_protocols(tables, folder):
    known = ["ood-cifar-10-paper", "ood-cifar-10-ours", "marginals-cifar-10-ours", "correlation-cifar-10-paper"]
    for name in (*known, "ood-cifar-10-ours-small", "ood-cifar-10-ours-short", "something-else"):
        (folder / f"{name}.json").write_text("{}")
    assert tables.names() == known
    assert tables.pictured() == ["ood-cifar-10-ours", "correlation-cifar-10-paper"]
    assert tables.claimed() == ["ood-ours", "ood-paper"]


def test_records_of_texts_have_a_folder_of_their_own(tables, folder):
    for name in ("text-trec-fine-ours", "text-trec-fine-paper", "text-cifar-10-ours"):
        (folder.parent / "texts" / f"{name}.json").write_text("{}")
    (folder / "text-sst-fine-ours.json").write_text("{}")
    assert tables.names() == ["text-trec-fine-paper", "text-trec-fine-ours"]
    assert tables.pictured() == tables.claimed() == ["text-trec-fine-ours"]


def test_claims_do_not_mix_protocols(tables, folder, monkeypatch):
    for name in ("ood-cifar-10-ours", "ood-fashion-mnist-ours", "ood-cifar-10-paper"):
        write(folder, name)
    read = []
    monkeypatch.setattr(tables, "ood_claims", lambda records: read.append([record["config"] for record in records]) or [])
    for name in tables.claimed():
        tables.claim_list(name)
    found = [[config["protocol"] for config in configs] for configs in read]
    assert found == [["ours", "ours"], ["paper"]]


def test_studies_of_one_data_set_have_the_same_networks(tables, folder):
    for name in ("ood-cifar-10-ours", "shift-cifar-10-ours"):
        write(folder, name, seeds={"3": part("abc")})
    write(folder, "ood-cifar-10-paper", seeds={"3": part("def")})
    assert tables.mixed_networks() == []
    write(folder, "correlation-cifar-10-ours", seeds={"3": part("ghi")})
    assert tables.mixed_networks() == ["cifar-10 ours 3"]


def test_studies_that_stand_alone_may_have_networks_of_their_own_and_say_so(tables, folder):
    kept = write(folder, "image-calibration-cifar-10-paper", seeds={"3": part("abc", HMC={"draws": 600})})
    again = write(folder, "few-vs-many-cifar-10-paper", seeds={"3": part("def")})
    write(folder, "flow-from-prior-cifar-10-paper", seeds={"3": part("def")})
    write(folder, "marginals-cifar-10-paper", seeds={"3": part("ghi")})
    assert tables.mixed_networks() == []
    assert "not the networks of most tables: seeds 3 trained again, as a seed does not fix" in tables.image_notes(again)
    assert "trained again" not in tables.image_notes(kept)
    same = write(folder, "flow-from-prior-cifar-10-paper", seeds={"3": part("abc")})
    assert tables.mixed_networks() == ["cifar-10 paper (few-vs-many and flow-from-prior) 3"]
    assert "trained again" not in tables.image_notes(same)


def test_few_points_say_where_their_networks_are_others(tables, folder):
    write(folder, "image-calibration-cifar-10-ours", seeds={"0": part("abc"), "1": part("def")})
    (folder.parent / "texts" / "text-sst-fine-ours.json").write_text("{")

    def again(*networks):
        return tables.few_shot_trained_again(
            {"config": {"dataset": "cifar-10"}, "parts": dict(enumerate(map(part, networks)))}
        )

    assert not again("abc", "abc", "def")
    assert again("abc", "ghi")
    with pytest.raises(SystemExit, match=r"results/texts/text-sst-fine-ours\.json must be a record"):
        tables.usual_record("sst-fine")


def test_both_protocols_have_the_same_networks_of_vb_and_csghmc(tables, folder):
    def with_baseline(network):
        return {"3": part("abc") | {"baselines": {"vb": {"network": network}}}}

    write(folder, "ood-cifar-10-ours", seeds=with_baseline("vb one"))
    write(folder, "shift-cifar-10-paper", seeds=with_baseline("vb one"))
    assert tables.mixed_networks() == []
    write(folder, "shift-cifar-10-paper", seeds=with_baseline("vb two"))
    assert tables.mixed_networks() == ["cifar-10 vb 3"]


def test_notes_say_what_stands_behind_a_table(tables, folder):
    def notes(name, count=2):
        return tables.image_notes(write(folder, name, seeds={str(seed): part() for seed in range(count)}))

    assert notes("ood-cifar-10-ours") == (
        "2 networks (seeds 0, 1), means and standard errors; predictions by 20 draws. Data: some images."
    )
    assert notes("marginals-cifar-10-ours", 1) == "1 network (seed 0). Data: some images."
    assert "(seeds 0, 1), means; the record has those of every network;" in notes("shift-cifar-10-ours")
    assert "predictions by 20 draws; of HMC by 600." in notes("shift-cifar-10-paper")


@pytest.mark.parametrize(("dataset", "says_so"), [("cifar-10", True), ("cifar-100", True), ("fashion-mnist", False)])
def test_notes_say_where_vb_has_no_divergence(tables, folder, dataset, says_so):
    parts = {"3": part("abc") | {"baselines": {"vb": {"network": "vb"}}}}
    record = write(folder, f"ood-{dataset}-ours", seeds=parts)
    record["config"]["baseline_seeds"] = [3]
    assert ("; VB without its divergence;" in tables.image_notes(record)) == says_so


def test_records_that_are_missing_damaged_or_old_are_named(tables, folder):
    read = sys.modules["committed"].read_record
    assert not tables.has_record("ood-cifar-10-ours")
    with pytest.raises(SystemExit, match=r"results/images/ood-cifar-10-ours\.json must be there for the pages, got no such"):
        read("ood-cifar-10-ours")
    with pytest.raises(SystemExit, match=r"results/texts/text-sst-fine-ours\.json must be there"):
        read("text-sst-fine-ours")
    (folder.parent / "nuts.json").write_text('{"config": {')
    with pytest.raises(SystemExit, match=r"results/nuts\.json must be a record in JSON, got a damaged file .* Make it anew"):
        read("nuts")
    (folder.parent / "nuts.json").write_text('{"config": {}, "version": 3}')
    with pytest.raises(SystemExit, match=r"but it is of version 3, and the code of version 1\. Make it anew"):
        read("nuts")
    write(folder, "ood-cifar-10-ours", version=VERSION - 1)
    with pytest.raises(SystemExit, match=f"but it is of version {VERSION - 1}, and the code of version {VERSION}. Make it"):
        read("ood-cifar-10-ours")
    write(folder, "ood-cifar-10-ours", failures={"3": "no memory"})
    with pytest.raises(SystemExit, match=r"ood-cifar-10-ours\.json must be whole, but it lacks what failed: 3\. Make"):
        read("ood-cifar-10-ours")
    assert write(folder, "ood-cifar-10-ours") == read("ood-cifar-10-ours")


def test_a_table_without_its_record_is_named(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import tables\n"
        "del tables.TABLES['tabular']\n"
        "tables.mixed_networks = lambda: []\n"
        "tables.pages = lambda: [tables.ROOT / 'docs' / 'tabular.md']\n"
        "tables.unshown = lambda: []\n"
        "tables.main()\n"
    )
    command = [sys.executable, "-c", code, str(SCRIPTS), "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    text = "docs/tabular.md wants the table tabular, which has no record. Make that, or take the table out.\n"
    assert (done.returncode, done.stderr) == (1, text)


def test_a_record_without_a_place_on_a_page_is_named(tmp_path):
    """Its table would be missing without a word."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import reproduction_tables, tables\n"
        "known = tables.names()\n"
        "tables.names = lambda: [*known, 'ood-new-ours']\n"
        "tables.main()\n"
    )
    command = [sys.executable, "-c", code, str(SCRIPTS), "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "records must have a table on a page, got none for ood-new-ours\n")
