"""`manifest.json` beside its ledger: the newest stays, and one that is not so is noticed by whoever reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.dataset.dataset import open_dataset
from headrace.store.contract.errors import FormatError
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import MANIFEST_KEY, bring_forward, doubt, mend, removal
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import EpochRaised, FragmentEnded, Removed, Retracted, VersionPublished
from headrace.store.ledger.log import Log
from headrace.store.ledger.snapshot import encode_snapshot
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer

PUBLISHED = 1


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def writer(store: FileStore) -> Writer:
    """A dataset of one shard: version 1, published by entry 1."""
    writer = Writer(store)
    writer.entry(writer.shard(FATES), FragmentEnded(FRAGMENT.id, len(FATES)), VersionPublished(1, "completed"))
    return writer


def derived(store: FileStore) -> dict[str, Any]:
    return Dataset.open(store.uri).manifest()


def retract(store: FileStore, writer: Writer, row: int) -> None:
    """As `headrace dataset retract` does, up to its manifest."""
    state = Dataset.open(store.uri).state
    tokens = state.shards[0].closed.objects[0].key
    assert state.newest is not None
    shown = VersionPublished(state.version + 1, "retraction", state.newest.shows, state.newest.complete)
    writer.entry(Retracted(state.version + 1, ((tokens, (row,)),), ()), shown)


def test_a_writer_that_slept_leaves_the_manifest_of_a_later_entry(store: FileStore, writer: Writer) -> None:
    retract(store, writer, 0)
    slept = derived(store)
    retract(store, writer, 2)
    assert bring_forward(store, derived(store))
    assert not bring_forward(store, slept)
    assert json.loads(store.get(MANIFEST_KEY))["version"] == 3


def test_a_manifest_that_cannot_be_read_is_replaced(store: FileStore, writer: Writer) -> None:
    store.create(MANIFEST_KEY, [b"{"])
    assert bring_forward(store, derived(store))
    assert json.loads(store.get(MANIFEST_KEY)) == derived(store)


def test_a_writer_that_slept_does_not_bring_a_removed_dataset_back(store: FileStore, writer: Writer) -> None:
    slept = derived(store)
    writer.entry(EpochRaised("removal"), Removed("removal"))
    assert bring_forward(store, removal(writer.number - 1))
    assert not bring_forward(store, slept)
    with pytest.raises(FormatError, match="the dataset was removed"):
        open_dataset(store.uri)


def test_the_manifest_of_the_newest_version_is_not_doubted_whatever_came_behind(
    store: FileStore, writer: Writer
) -> None:
    writer.entry(writer.shard([1], first=len(FATES) + 1))
    assert doubt(store, PUBLISHED, 1) == ""


def test_what_was_retracted_is_not_shown_where_an_older_manifest_stands(store: FileStore, writer: Writer) -> None:
    bring_forward(store, derived(store))
    retract(store, writer, 0)
    assert open_dataset(store.uri).version == 2
    assert [one.documents for one in open_dataset(store.uri).manifest.retracted] == [(0,)]


def test_a_manifest_that_names_another_entry_is_not_believed(store: FileStore, writer: Writer) -> None:
    bring_forward(store, {**derived(store), "entry": 0, "shards": []})
    assert len(open_dataset(store.uri).manifest.shards) == 1


def test_a_manifest_of_before_names_no_entry_and_the_ledger_is_read(store: FileStore, writer: Writer) -> None:
    fields = derived(store)
    del fields["entry"]
    store.replace(MANIFEST_KEY, [json.dumps({**fields, "shards": []}).encode()])
    assert len(open_dataset(store.uri).manifest.shards) == 1


def test_a_manifest_whose_ledger_is_not_there_is_refused(store: FileStore, writer: Writer) -> None:
    bring_forward(store, derived(store))
    for info in list(store.list("ledger/")):
        store.delete(info.key)
    with pytest.raises(FormatError, match=r"names entry 1, and the ledger beside it has none"):
        open_dataset(store.uri)


def test_a_manifest_is_held_against_a_snapshot_where_its_entry_was_truncated(store: FileStore, writer: Writer) -> None:
    bring_forward(store, derived(store))
    state = Dataset.open(store.uri).state
    log = Log(store)
    log.write_snapshot(state.number, encode_snapshot(state))
    log.truncate(state.number, keep=(0,))
    assert doubt(store, PUBLISHED, 1) == ""
    retract(store, writer, 0)
    assert "entry 2 published version 2" in doubt(store, PUBLISHED, 1)


@pytest.mark.parametrize("field", ["shards", "retracted", "complete", "pipeline"])
def test_verify_finds_a_manifest_that_says_otherwise_than_its_entry(
    store: FileStore, writer: Writer, field: str
) -> None:
    bring_forward(store, derived(store))
    assert Dataset.open(store.uri).verify().sound
    store.replace(MANIFEST_KEY, [json.dumps({**derived(store), field: [] if field == "shards" else "x"}).encode()])
    (problem,) = Dataset.open(store.uri).verify().problems
    assert f"says otherwise than the ledger in '{field}'" in problem


def test_verify_finds_a_manifest_behind_its_ledger_and_one_that_is_missing(store: FileStore, writer: Writer) -> None:
    (problem,) = Dataset.open(store.uri).verify().problems
    assert "manifest.json is missing, and entry 1 published a version" in problem
    bring_forward(store, derived(store))
    retract(store, writer, 0)
    (problem,) = Dataset.open(store.uri).verify().problems
    assert "shows version 1, and entry 2 published version 2" in problem


def damaged(store: FileStore, **fields: object) -> None:
    store.replace(MANIFEST_KEY, [json.dumps({**derived(store), **fields}).encode()])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"entry": 99}, "named entry 99, which the ledger has not"),
        ({"entry": 2}, "names entry 2 for version 1, and that entry does not publish it"),
        ({"entry": 2, "version": 7}, "names entry 2 for version 7, and that entry does not publish it"),
        ({"entry": 99, "version": 0, "removed": True}, "named entry 99, which the ledger has not"),
        ({"entry": 0}, "names entry 0 for version 1, and that entry does not publish it"),
        ({"version": None}, "is of a dataset that was removed"),
    ],
)
def test_a_manifest_unlike_the_ledger_is_named_and_mended(
    store: FileStore, writer: Writer, fields: dict[str, object], wrong: str
) -> None:
    writer.entry(EpochRaised("collection"))
    damaged(store, **fields)
    (problem,) = Dataset.open(store.uri).verify().problems
    assert "headrace dataset gc" in problem
    assert mend(store, derived(store)) == wrong
    assert Dataset.open(store.uri).verify().sound
    assert open_dataset(store.uri).version == 1


def test_a_manifest_that_is_missing_is_derived_again(store: FileStore, writer: Writer) -> None:
    with pytest.raises(FormatError, match="headrace dataset gc"):
        open_dataset(store.uri)
    assert mend(store, derived(store)) == "was missing"
    assert mend(store, derived(store)) == ""
    assert open_dataset(store.uri).version == 1


def test_a_manifest_ahead_of_its_ledger_holds_back_nobody(store: FileStore, writer: Writer) -> None:
    damaged(store, entry=99)
    retract(store, writer, 0)
    assert bring_forward(store, derived(store))
    assert open_dataset(store.uri).version == 2


def test_a_mend_that_slept_leaves_what_was_published_meanwhile(store: FileStore, writer: Writer) -> None:
    slept = derived(store)
    retract(store, writer, 0)
    bring_forward(store, derived(store))
    assert mend(store, slept) == ""
    assert open_dataset(store.uri).version == 2
