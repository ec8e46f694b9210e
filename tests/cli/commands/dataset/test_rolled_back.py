"""What a rollback hides is in no number that is said of a dataset, and in nothing that is searched."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.dataset.show import pass_gate
from headrace.cli.commands.maintenance import findings
from headrace.cli.main import invoke
from headrace.stages.quality.scorecard.judgement import decide_dataset
from headrace.store.datasets import card
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.shown import as_shown
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import VersionPublished
from tests.kits.store.dataset_writer import Writer


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Version 1 shows two records, version 2 three more, and version 3 what version 1 showed."""
    made = Writer(FileStore(tmp_path / "data"))
    made.entry(made.shard([3, "filtered"]), VersionPublished(1, "completed"))
    made.entry(made.shard([6, "duplicate", 2], 2), VersionPublished(2, "completed"))
    made.entry(VersionPublished(3, "rollback", 1, restores=1))
    monkeypatch.chdir(tmp_path)
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
