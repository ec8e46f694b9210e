"""Differences: what became otherwise of records, held against a count of each of them."""

import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.store.contract.errors import StoreRefused
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import diff
from headrace.store.history.address import open_at
from headrace.store.history.diff import differences
from headrace.store.ledger.core.entries import EpochRaised, Retracted, VersionPublished
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.log import fold_log
from tests.kits.store.dataset_writer import Fate, Writer


def dataset(folder: Path, *shards: list[Fate]) -> Writer:
    """A dataset with a version behind each shard, of consecutive records."""
    made, first = Writer(FileStore(folder)), 0
    for number, fates in enumerate(shards, 1):
        made.entry(made.shard(fates, first), VersionPublished(number, "completed"))
        first += len(fates)
    return made


def changes(before: str, after: str) -> Counter[tuple[str, str]]:
    return differences(open_at(before), open_at(after)).changed


def test_each_kind_of_difference_between_two_datasets_of_one_input_is_counted(tmp_path: Path) -> None:
    old = dataset(tmp_path / "old", [3, "filtered", 6, "quarantined"], [2, 5, "duplicate"])
    new = dataset(tmp_path / "new", [3, 4], ["filtered", "quarantined", 2], [5, "duplicate", 1])
    found = differences(Dataset.open(old.store.uri), Dataset.open(new.store.uri))
    assert (found.records, found.texts) == (8, True)
    assert dict(found.changed) == {
        ("filtered s/r", "kept"): 1,
        ("kept", "filtered s/r"): 1,
        ("absent", "kept"): 1,
        # Tokens are numbered through each shard: record 5 has as many in both, and they are others.
        ("kept", "kept, other text"): 1,
    }
    assert [one.id for one in found.samples["filtered s/r", "kept"]] == ["1"]
    assert [(one.id, one.row) for one in found.samples["absent", "kept"]] == [("7", 7)]
    assert [one.id for one in found.samples["kept", "kept, other text"]] == ["5"]
    back = changes(new.store.uri, old.store.uri)
    assert {(after, before): count for (before, after), count in back.items() if "text" not in after} == {
        kind: count for kind, count in found.changed.items() if "text" not in kind[1]
    }


def test_a_dataset_differs_from_itself_in_nothing(tmp_path: Path) -> None:
    made = dataset(tmp_path, [3, "filtered"], [6])
    found = differences(Dataset.open(made.store.uri), Dataset.open(made.store.uri))
    assert (found.records, dict(found.changed)) == (3, {})


def test_two_versions_differ_by_what_came_and_what_was_hidden(tmp_path: Path) -> None:
    made = dataset(tmp_path, [3, "filtered", 5], [6])
    key = fold_log(made.log, LedgerState()).shards[0].closed.objects[0].key
    made.entry(EpochRaised("d"), Retracted(3, ((key, (1,)),), ()), VersionPublished(3, "deduplication", 2))
    uri = made.store.uri
    assert changes(f"{uri}@1", f"{uri}@2") == {("absent", "kept"): 1}
    found = differences(open_at(f"{uri}@2"), open_at(f"{uri}@3"))
    assert dict(found.changed) == {("kept", "retracted"): 1}
    assert [one.id for one in found.samples["kept", "retracted"]] == ["2"]
    assert changes(f"{uri}@3", f"{uri}@1") == {("retracted", "kept"): 1, ("kept", "absent"): 1}


@pytest.mark.parametrize("group", [1, 2, 1 << 22])
def test_the_size_of_a_group_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    monkeypatch.setattr(diff, "GROUP_RECORDS", group)
    old, new = dataset(tmp_path / "old", [3, 4, 5]), dataset(tmp_path / "new", [3], [4, "filtered"])
    assert dict(changes(old.store.uri, new.store.uri)) == {
        ("kept", "filtered s/r"): 1,
        ("kept", "kept, other text"): 1,
    }


def test_datasets_without_an_input_in_common_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataset(tmp_path / "old", [3])
    from headrace.store.ledger.core.fragments import Fragment
    from tests.kits.store import dataset_writer

    other = Fragment.named("read", "file:///other.jsonl", "1", start=0, end=-1, reader="jsonl", size=9)
    monkeypatch.setattr(dataset_writer, "FRAGMENT", other)
    new = dataset(tmp_path / "new", [4])
    with pytest.raises(StoreRefused, match="have no input in common"):
        changes(old.store.uri, new.store.uri)


def test_names_are_made_of_the_fates_that_rows_have(tmp_path: Path) -> None:
    """A table may have as many stages, and as many reasons, as rows: their pairs are a thousand times as many."""
    rows = 1000
    table = pa.table(
        {
            "verdict": ["filtered"] * rows,
            "stage": [f"s{row}" for row in range(rows)],
            "reason": [f"r{row}" for row in range(rows)],
        }
    )
    fates = diff._Fates()
    tracemalloc.start()
    try:
        codes = diff._codes(table, fates)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [fates.names[code] for code in codes] == [f"filtered s{row}/r{row}" for row in range(rows)]
    assert peak < 8 << 20
