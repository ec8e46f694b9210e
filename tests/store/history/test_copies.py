"""The file of exports: who notes one, and what is refused in it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.store.contract.errors import FormatError, StoreRefused
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import copies
from headrace.store.history.copies import COPIES, copies_of, note_copy, renew_copy
from headrace.store.ledger.core.entries import (
    EpochRaised,
    FragmentsListed,
    PipelineApplied,
    Removed,
    VersionPublished,
)
from tests.kits.store.dataset_writer import FRAGMENT, PIPELINE, Writer


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(FileStore(tmp_path))
    made.entry(made.shard([3]), VersionPublished(1, "completed"))
    return made


@pytest.fixture
def dataset(writer: Writer) -> Dataset:
    return opened(writer)


def opened(writer: Writer) -> Dataset:
    return Dataset.open(writer.store.uri)


def test_an_export_is_noted_once_a_place(dataset: Dataset) -> None:
    for place, kind in (("/a", "mds"), ("/b", "parquet"), ("/a", "megatron")):
        note_copy(dataset, place, kind)
    found = COPIES.read(dataset.store)
    assert [(one.place, one.kind, one.version, one.without) for one in found] == [
        ("/b", "parquet", 1, -1),
        ("/a", "megatron", 1, -1),
    ]
    renew_copy(dataset.store, found[0], 9)
    assert [one.without for one in COPIES.read(dataset.store)] == [9, -1]


def test_a_note_that_is_taken_back_leaves_what_was_noted_before(dataset: Dataset) -> None:
    note_copy(dataset, "/a", "mds")
    before = COPIES.read(dataset.store)
    note_copy(dataset, "/a", "parquet")()
    note_copy(dataset, "/b", "parquet")()
    assert COPIES.read(dataset.store) == before == copies_of(dataset)


def test_a_folder_that_no_file_can_name_is_refused(dataset: Dataset) -> None:
    with pytest.raises(StoreRefused, match="no UTF-8"):
        note_copy(dataset, "/a\udcff", "mds")


def test_a_dataset_begun_anew_has_no_copy_of_the_removed_one(writer: Writer) -> None:
    note_copy(opened(writer), "/a", "mds")
    writer.entry(EpochRaised("removal"), Removed("removal"))
    writer.entry(PipelineApplied("v1", PIPELINE), FragmentsListed((FRAGMENT,)))
    closed = writer.shard([3], 8)
    objects = tuple(replace(item, key=item.key.replace("shards/1/", "shards/2/")) for item in closed.objects)
    writer.entry(replace(closed, epoch=2, objects=objects), VersionPublished(1, "completed"))
    assert copies_of(opened(writer)) == []
    note_copy(opened(writer), "/b", "mds")
    assert [one.place for one in copies_of(opened(writer))] == ["/b"]


def test_a_note_of_before_entries_were_noted_is_of_this_dataset(dataset: Dataset) -> None:
    note_copy(dataset, "/a", "mds")
    told = json.loads(dataset.store.get(COPIES.key))
    del told["copies"][0]["entry"]
    dataset.store.replace(COPIES.key, [json.dumps(told).encode()])
    assert [(one.place, one.entry) for one in copies_of(dataset)] == [("/a", -1)]


def test_too_many_exports_are_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIES_MAX", 1)
    note_copy(dataset, "/a", "mds")
    note_copy(dataset, "/a", "mds")
    with pytest.raises(StoreRefused, match="knows 1 copies"):
        note_copy(dataset, "/b", "mds")


ONE = {"place": "/a", "host": "h", "kind": "mds", "version": 1, "entry": 1, "without": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"place": "a"},
        {"place": 1},
        {"place": "/" * 5000},
        {"place": "/"},
        {"place": "/a/../b"},
        {"place": "/a\0"},
        {"kind": "zip"},
        {"version": True},
        {"entry": "1"},
        {"without": -2},
        {"more": 1},
    ],
)
def test_a_copy_that_nobody_notes_is_refused(dataset: Dataset, change: dict[str, object]) -> None:
    data = json.dumps({"format": 1, "copies": [{**ONE, **change}]}).encode()
    with pytest.raises(FormatError, match="malformed"):
        COPIES.decode(data, "it")
    dataset.store.replace(COPIES.key, [data])
    with pytest.raises(FormatError, match="malformed"):
        note_copy(dataset, "/b", "mds")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format": 2}', b" " * ((1 << 20) + 1)])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        COPIES.decode(data, "it")
