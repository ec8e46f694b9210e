"""A version that is not whole says so to whoever asks, and a retraction shows what its base version showed."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import invoke
from headrace.loader.dataset.dataset import open_dataset
from headrace.store.datasets.dataset import Completeness, Dataset, completeness_of
from headrace.store.datasets.manifest import bring_forward
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import (
    Change,
    FragmentEnded,
    FragmentsListed,
    Resigned,
    VersionPublished,
)
from headrace.store.ledger.core.fragments import Fragment, Range
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer

LATER = Fragment.named("read", "file:///corpus/b.jsonl", "9-9-9", start=0, end=-1, reader="jsonl", size=9)


def write(folder: Path, *, complete: bool = True, killed: bool = False) -> Path:
    """A dataset with a version, whole or stopped; `killed`: a later run has closed a shard and was killed."""
    store = FileStore(folder)
    writer = Writer(store)
    ended: list[Change] = [FragmentEnded(FRAGMENT.id, len(FATES))] if complete else []
    writer.entry(writer.shard(FATES), *ended, VersionPublished(1, "run", complete=complete))
    bring_forward(store, Dataset.open(store.uri).manifest())
    if killed:
        half = dataclasses.replace(writer.shard([4], first=8), ranges=(Range(LATER.id, 0, 1),))
        writer.entry(FragmentsListed((LATER,)), half)
    writer.entry(Resigned(1))
    return folder


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert invoke(["dataset", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["dataset", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_retraction_behind_a_killed_run_shows_what_its_base_version_showed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write(tmp_path, killed=True)
    before = open_dataset(str(dataset))
    assert asked(capsys, "retract", str(dataset), "0")["version"] == 2
    after = open_dataset(str(dataset))
    assert after.layout.root == before.layout.root
    assert [shard.tokens for shard in after.manifest.shards] == [shard.tokens for shard in before.manifest.shards]
    assert asked(capsys, "show", str(dataset))["version_complete"]


def test_a_retraction_before_the_first_version_publishes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FileStore(tmp_path)
    writer = Writer(store)
    writer.entry(writer.shard(FATES), Resigned(1))
    assert asked(capsys, "retract", store.uri, "0")["version"] == 0
    assert store.head("manifest.json") is None
    # The first version hides it: nothing is forgotten.
    writer.go_on(Dataset.open(store.uri).state)
    writer.entry(VersionPublished(1, "completed"))
    assert Dataset.open(store.uri).manifest()["retracted"][0]["documents"] == [0]


@pytest.mark.parametrize("command", ["show", "verify", "ls"])
def test_a_version_whose_run_was_stopped_is_told_to_be_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    dataset = write(tmp_path, complete=False)
    assert "incomplete" in told(capsys, command, str(dataset))
    facts = asked(capsys, command, str(dataset))
    assert (facts["datasets"][0] if command == "ls" else facts)["version_complete"] is False


def test_an_export_of_an_incomplete_version_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write(tmp_path / "dataset", complete=False)
    said = told(capsys, "export", str(dataset), str(tmp_path / "out"), "--format", "megatron")
    assert "version 1 is incomplete" in said


def test_a_loader_says_that_its_version_is_incomplete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = write(tmp_path, complete=False)
    with caplog.at_level(logging.WARNING, "headrace.loader"):
        assert not open_dataset(str(dataset)).complete
    assert "version 1 is incomplete" in caplog.text


def test_what_a_killed_run_has_closed_is_told_beside_the_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write(tmp_path, killed=True)
    assert "1 shard is closed that version 1 does not show" in told(capsys, "show", str(dataset))
    assert asked(capsys, "show", str(dataset))["shards_unshown"] == 1


def test_what_is_closed_since_is_told_of_the_newest_version_alone(tmp_path: Path) -> None:
    dataset = write(tmp_path, killed=True)
    state = Dataset.open(str(dataset)).state
    assert completeness_of(state, 1) == completeness_of(state) == Completeness(1, complete=True, unshown=1)
    assert invoke(["dataset", "retract", str(dataset), "0"]) == 0
    state = Dataset.open(str(dataset)).state
    assert (completeness_of(state).version, completeness_of(state).unshown) == (2, 1)
    assert completeness_of(state, 1) == Completeness(1, complete=True, unshown=0, superseded=True)


def test_a_whole_version_has_nothing_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = write(tmp_path)
    assert "incomplete" not in told(capsys, "show", str(dataset)) + told(capsys, "ls", str(dataset))
    assert open_dataset(str(dataset)).complete
    assert not caplog.records


@pytest.mark.parametrize("address", ["", "@3"])
def test_no_run_is_said_to_go_on_with_what_a_rollback_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, address: str
) -> None:
    store = FileStore(tmp_path)
    writer = Writer(store)
    writer.entry(writer.shard(FATES[:3]), VersionPublished(1, "stopped", complete=False))
    assert "the same run again goes on with it" in told(capsys, "show", store.uri)
    writer.entry(writer.shard(FATES[3:], 3), FragmentEnded(FRAGMENT.id, len(FATES)), VersionPublished(2, "completed"))
    writer.entry(VersionPublished(3, "rollback", 1, complete=False, restores=1), Resigned(1))
    bring_forward(store, Dataset.open(store.uri).manifest())
    said = told(capsys, "show", store.uri + address)
    assert "version 3 is incomplete: a rollback hides a part of its input" in said
    assert "goes on with it" not in said
    said = told(capsys, "show", store.uri + "@1")
    assert "version 1 is incomplete: its run ended before it had closed all of its input" in said
    assert "goes on with it" not in said
    open_dataset(store.uri)
    assert "goes on with it, unless a rollback hides the rest" in caplog.text
