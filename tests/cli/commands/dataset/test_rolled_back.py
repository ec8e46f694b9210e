"""What a rollback hides is in no number that is said of a dataset, and in nothing that is searched."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.apply import show_end
from headrace.cli.commands.dataset.show import pass_gate
from headrace.cli.commands.maintenance import findings
from headrace.cli.main import invoke
from headrace.protos import control_pb2 as pb
from headrace.stages.quality.scorecard.judgement import decide_dataset
from headrace.store.datasets import card
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.shown import as_shown
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import FragmentEnded, Resigned, VersionHeld, VersionPublished
from tests.kits.store.dataset_writer import FRAGMENT, Writer


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Version 1 shows two records, version 2 three more, and version 3 what version 1 showed."""
    made = Writer(FileStore(tmp_path / "data"))
    made.entry(made.shard([3, "filtered"]), VersionPublished(1, "completed"))
    made.entry(made.shard([6, "duplicate", 2], 2), VersionPublished(2, "completed"))
    made.entry(VersionPublished(3, "rollback", 1, restores=1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # no cell of a table is broken
    return made


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert invoke(["dataset", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("address", "records"), [("data", 2), ("data@1", 2), ("data@2", 5), ("data@3", 2)])
def test_all_pages_of_a_dataset_count_what_its_version_shows(
    writer: Writer, address: str, records: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {2: 1, 5: 3}[records]
    for command in ("show", "page"):
        found = answer(capsys, command, address)
        assert (found["records_closed"], found["kept"], found["balanced"]) == (records, kept, True)
    assert invoke(["dataset", "show", address, "--card", "card"]) == 0
    assert f"| records | {records} |" in (tmp_path / "card" / "card.md").read_text()
    gate = tmp_path / "gate.toml"
    gate.write_text(f"[records]\nmin = {records}\nmax = {records}\n[tokens_p100]\nmax = {6 if records == 5 else 3}\n")
    assert pass_gate(address, str(gate)) == 0, capsys.readouterr().out


def test_a_broken_gate_and_a_card_answer_with_one_object(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "gc", writer.store.uri)
    for least, broken in ((2, []), (3, ["records: min 3, and it is 2"])):
        Path("gate.toml").write_text(f"[records]\nmin = {least}\n")
        assert invoke(["dataset", "verify", writer.store.uri, "--gate", "gate.toml", "--json"]) == bool(broken)
        found = json.loads(capsys.readouterr().out)
        assert (found["sound"], found["gate"]) == (True, {"file": "gate.toml", "broken": broken})
    written = answer(capsys, "show", writer.store.uri, "--card", "card")
    assert written == {"card": [str(Path("card", name).resolve()) for name in ("card.md", "card.html")]}


def test_a_listing_and_the_readme_count_what_is_shown(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    (listed,) = answer(capsys, "ls", ".")["datasets"]
    assert (listed["kept"], listed["shards"]) == (1, 1)
    assert re.search(r"Version 3: 1 file\. Of 2 records 1 were kept", card.card_of(Dataset.open(writer.store.uri)))


def test_what_was_closed_since_a_rollback_is_counted(writer: Writer) -> None:
    writer.entry(writer.shard([4], 5))
    found = as_shown(Dataset.open(writer.store.uri))
    assert [shard.number for shard in found.shards] == [1, 4]
    assert (found.version, found.balance().counts.kept, found.state.unshown) == (3, 2, 1)


def test_only_what_is_shown_is_searched(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[list[int]] = []

    def search(given: Any, *_: object, **__: object) -> Iterator[Any]:
        datasets: Sequence[Dataset] = [given] if isinstance(given, Dataset) else given
        searched.extend([shard.number for shard in dataset.shards] for dataset in datasets)
        return iter(())

    monkeypatch.setattr(findings, "describe_suites", lambda *_: [])
    monkeypatch.setattr(findings, "search_dataset", search)
    monkeypatch.setattr(findings, "find_offline", search)
    answer(capsys, "contamination", "data", "--suites", "suite.jsonl")
    answer(capsys, "dedup", "data", "--dry-run")
    assert searched == [[1], [1]]
    assert decide_dataset("data", ()).num_rows == 0


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert invoke(["dataset", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_listing_says_which_shards_it_does_not_count(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    assert "3, 1 shard rolled back 1 3 1" in said(capsys, "ls", ".")
    writer.entry(writer.shard([4], 5))
    assert "3, 1 shard unshown, 1 shard rolled back 1 3 1" in said(capsys, "ls", ".")
    writer.entry(VersionPublished(4, "stopped", complete=False))
    assert "4, incomplete, 1 shard rolled back 2 7 2" in said(capsys, "ls", ".")


def test_a_trace_says_of_which_version_a_record_is_not(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    writer.entry(writer.shard([4], 5))
    for row, verdict in ((2, "kept"), (3, "duplicate"), (5, "kept")):
        (record,) = answer(capsys, "trace", "data", str(row))["records"]
        assert (record["verdict"], record["not_shown_by"]) == (verdict, 3)
        assert f"{row} {verdict}, not shown by version 3" in said(capsys, "trace", "data", str(row))
    (record,) = answer(capsys, "trace", "data@2", "2")["records"]
    assert "not_shown_by" not in {**record, **answer(capsys, "trace", "data", "0")["records"][0]}
    hidden = f"{record['shard']}:0"
    assert answer(capsys, "trace", "data", hidden)["not_shown_by"] == 3
    assert ", not shown by version 3" in said(capsys, "trace", "data", hidden)
    assert "not_shown_by" not in answer(capsys, "trace", "data@2", hidden)


def test_the_page_of_a_version_tells_earlier_ones_as_the_log_does(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.entry(VersionPublished(4, "stopped"))
    for address, newest in (("data", 4), ("data@3", 3), ("data@1", 1)):
        found = {row["version"]: row for row in answer(capsys, "page", address)["versions"]}
        log = {row["version"]: row for row in answer(capsys, "log", "data")["versions"]}
        assert list(found) == list(range(1, newest + 1))
        for version, row in found.items():
            for name in ("reason", "restores", "complete", "kept", "duplicate", "shards", "tokens"):
                assert row[name] == log[version][name], (address, version, name)


def test_what_a_gate_held_is_published_incomplete_where_a_rollback_hides_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Writer(FileStore(tmp_path / "cut"))
    made.entry(made.shard([3, "filtered"]), VersionPublished(1, "stopped", complete=False))
    made.entry(made.shard([6, "duplicate", 2], 2), FragmentEnded(FRAGMENT.id, 5), VersionPublished(2, "completed"))
    made.entry(VersionPublished(3, "rollback", 1, complete=False, restores=1), VersionHeld(4, ("kept: too few",)))
    made.entry(Resigned(1))
    assert answer(capsys, "publish", made.store.uri, "--anyway")["version"] == 4
    assert answer(capsys, "show", made.store.uri)["version_complete"] is False


def test_the_end_of_an_applied_pipeline_counts_what_is_shown(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    show_end(pb.PipelineStatus(pipeline="books", dataset=writer.store.uri, state="completed"), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["kept"], found["records_closed"], found["shards"]) == (1, 2, 1)
