"""A snapshot that was cut stops nobody while what it stands for is there, and `verify` names it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import MANIFEST_KEY, bring_forward, doubt
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import EpochRaised, FragmentEnded, VersionPublished
from headrace.store.ledger.log import Log, begins_a_term
from headrace.store.ledger.snapshot import encode_snapshot
from tests.kits.store.dataset_writer import FATES, FRAGMENT, Writer


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A dataset with three snapshots, and an entry behind them."""
    store = FileStore(tmp_path)
    writer, log = Writer(store), Log(store)
    for changes in (
        (writer.shard(FATES), FragmentEnded(FRAGMENT.id, len(FATES)), VersionPublished(1, "completed")),
        (EpochRaised("collection"),),
        (EpochRaised("collection"),),
    ):
        writer.entry(*changes)
        state = Dataset.open(store.uri).state
        log.write_snapshot(state.number, encode_snapshot(state))
    writer.entry(EpochRaised("collection"))
    bring_forward(store, Dataset.open(store.uri).manifest())
    return store


def cut(store: FileStore, number: int) -> None:
    key = Log(store).snapshot_key(number)
    store.replace(key, [store.get(key)[:40]])


def test_the_one_before_is_taken_and_a_warning_says_so(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    whole, number = Dataset.open(store.uri).state, Log(store).snapshots()[-1]
    cut(store, number)
    with caplog.at_level(logging.WARNING):
        assert Dataset.open(store.uri).state == whole
    assert f"{number}.snapshot cannot be read" in caplog.text
    assert doubt(store, 1, 1) == ""


def test_it_is_taken_where_the_entries_before_it_are_gone_as_well(store: FileStore) -> None:
    whole, log = Dataset.open(store.uri).state, Log(store)
    first, *_, last = log.snapshots()
    for number in range(1, first + 1):
        store.delete(log.key(number))
    cut(store, last)
    assert Dataset.open(store.uri).state == whole


def test_the_entries_are_taken_where_no_snapshot_can_be_read(store: FileStore) -> None:
    whole = Dataset.open(store.uri).state
    for number in Log(store).snapshots():
        cut(store, number)
    assert Dataset.open(store.uri).state == whole


def test_it_is_refused_by_name_where_nothing_else_is_there(store: FileStore) -> None:
    log = Log(store)
    last = log.snapshots()[-1]
    log.truncate(last, keep=(0,))
    cut(store, last)
    with pytest.raises(FormatError, match=rf"{last}.snapshot cannot be read: .*; restore it from a copy"):
        Dataset.open(store.uri)


def test_one_ahead_of_the_log_is_named_where_a_term_begins(store: FileStore) -> None:
    log = Log(store)
    store.create(log.snapshot_key(100), [b""])
    with pytest.raises(FormatError, match=r"ledger/0*100\.snapshot cannot be read: .*; restore it from a copy, or"):
        begins_a_term(log, 99)


def test_one_of_another_entry_than_its_name_says_is_not_taken(store: FileStore) -> None:
    whole, log = Dataset.open(store.uri).state, Log(store)
    first = log.snapshots()[0]
    store.create(log.snapshot_key(100), [log.read_snapshot(first)])
    assert Dataset.open(store.uri).state == whole
    (problem,) = Dataset.open(store.uri).verify().problems
    assert f"100.snapshot cannot be read: it is that of entry {first}" in problem


def test_verify_names_it(store: FileStore) -> None:
    assert Dataset.open(store.uri).verify().sound
    cut(store, Log(store).snapshots()[0])
    (problem,) = Dataset.open(store.uri).verify().problems
    assert "readers take what stands before it" in problem
    assert MANIFEST_KEY not in problem
