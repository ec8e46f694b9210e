"""The file of exports: who notes one, and what is refused in it."""

import json
from pathlib import Path

import pytest

from headrace.store.contract.errors import FormatError, StoreRefused
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import copies
from headrace.store.history.copies import COPIES, note_copy, renew_copy
from headrace.store.ledger.core.entries import VersionPublished
from tests.kits.store.dataset_writer import Writer


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = Writer(FileStore(tmp_path))
    made.entry(made.shard([3]), VersionPublished(1, "completed"))
    return Dataset.open(str(tmp_path))


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


def test_too_many_exports_are_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIES_MAX", 1)
    note_copy(dataset, "/a", "mds")
    note_copy(dataset, "/a", "mds")
    with pytest.raises(StoreRefused, match="knows 1 copies"):
        note_copy(dataset, "/b", "mds")


ONE = {"place": "/a", "host": "h", "kind": "mds", "version": 1, "without": 2}


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
