"""Datasets as their ledger tells them, and what `verify` finds."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from headrace.store.contract.errors import FormatError, InvalidUri
from headrace.store.datasets.dataset import Dataset, fold_ledger
from headrace.store.datasets.manifest import bring_forward
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.balance import Balance
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    FragmentDropped,
    FragmentEnded,
    VersionPublished,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.shards import shard
from headrace.store.shards.builder import safetensors_parts
from headrace.store.shards.sidecars import documents_schema, quarantine_schema, read_table, verdicts_schema
from tests.kits.store.dataset_writer import FATES, FRAGMENT, SEQ_LEN, Writer

#: The hashes in the keys of the first shard, and of one that the writer has not written.
FIRST, OTHER = "0" * 32, "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def writer(store: FileStore) -> Writer:
    return Writer(store)


def test_a_place_without_a_ledger_holds_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InvalidUri, match="holds no dataset"):
        Dataset.open(str(tmp_path))


def test_a_dataset_is_complete_when_its_fragments_are_tiled(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES))
    assert not Dataset.open(store.uri).balance().complete
    writer.entry(writer.shard([1, 1], first=9))
    writer.entry(FragmentEnded(FRAGMENT.id, 11))
    assert Dataset.open(store.uri).balance().fragments_open == 1
    writer.entry(writer.shard(["duplicate"], first=8))
    balance = Dataset.open(store.uri).balance("write")
    assert balance.balanced
    assert balance.complete
    assert (balance.records_read, balance.records_closed, balance.fragments) == (11, 11, 1)
    assert (balance.counts.kept, balance.counts.filtered_by) == (6, {"s/r": 2})


def test_a_fragment_without_records_is_complete_by_its_end_alone(store: FileStore, writer: Writer) -> None:
    assert Dataset.open(store.uri).balance() == Balance(Counts(), 0, 1, 1, 1)
    writer.entry(FragmentEnded(FRAGMENT.id, 0))
    assert Dataset.open(store.uri).balance().complete


def test_what_was_given_up_is_balanced_by_what_is_closed_of_it(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES), FragmentEnded(FRAGMENT.id, len(FATES) + 5))
    assert Dataset.open(store.uri).balance().records_open == 5
    writer.entry(FragmentDropped(FRAGMENT.id, "gone", False))
    balance = Dataset.open(store.uri).balance()
    assert balance.complete
    assert (balance.records_read, balance.fragments_open, balance.fragments_dropped) == (len(FATES), 0, 1)


def test_two_sinks_balance_each_and_complete_together(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    other = dataclasses.replace(closed, sink="other", ranges=(Range(FRAGMENT.id, 0, 2),), counts=Counts(kept=2))
    writer.entry(closed, other, FragmentEnded(FRAGMENT.id, len(FATES)))
    dataset = Dataset.open(store.uri)
    assert (dataset.balance().records_open, dataset.balance("other").records_open) == (0, len(FATES) - 2)
    assert dataset.balance() == dataset.balance("write")
    assert not dataset.balance().complete
    assert dataset.balance().open_at == ("other",)
    assert "not at other" in dataset.balance().open_words
    assert dataset.balance("unknown").fragments_open == 1


def test_the_manifest_names_each_shard_with_checksum_and_counts(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    writer.entry(closed, VersionPublished(3, "end of run"))
    dataset = Dataset.open(store.uri)
    bring_forward(store, dataset.manifest())
    assert orjson.loads(store.get("manifest.json")) == {
        "format": 1, "dataset": "books", "version": 3, "entry": 1, "complete": False,
        "pipeline": "v1", "tokenizer": "abc", "seq_len": SEQ_LEN,
        "pad_id": 2, "eos_id": 1,
        "shards": [{
            "tokens": f"shards/1/{FIRST}.safetensors", "documents": f"shards/1/{FIRST}.documents.parquet",
            "verdicts": f"shards/1/{FIRST}.verdicts.parquet", "checksum": closed.objects[0].checksum,
            "records": 8, "kept": 4, "token_count": 11, "sequences": 3, "pipeline": "v1",
        }],
    }  # fmt: skip
    assert dataset.shards[0].object("quarantine").key == f"quarantine/1/{FIRST}.parquet"  # type: ignore[union-attr]


def test_the_manifest_names_the_shards_of_one_sink(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    fewer = dataclasses.replace(closed, sink="before", ranges=(Range(FRAGMENT.id, 0, 2),), counts=Counts(kept=2))
    writer.entry(fewer, closed)
    (listed,) = Dataset.open(store.uri).manifest()["shards"]
    assert listed["records"] == len(FATES)


def test_the_manifest_stops_at_the_newest_published_version(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard([1]))
    assert len(Dataset.open(store.uri).manifest()["shards"]) == 1
    writer.entry(VersionPublished(1, "end of run"))
    writer.entry(writer.shard([1], first=1))
    dataset = Dataset.open(store.uri)
    assert len(dataset.manifest()["shards"]) == 1
    assert len(dataset.shards) == 2


def test_a_version_shows_the_shards_that_its_entry_says(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard([1]))
    writer.entry(VersionPublished(1, "completed"))
    writer.entry(writer.shard([1], first=1))
    writer.entry(VersionPublished(2, "retraction", shows=2))
    writer.entry(VersionPublished(3, "completed"))
    dataset = Dataset.open(store.uri)
    assert [len(dataset.of_version(version).shards) for version in (1, 2, 3)] == [1, 1, 2]


def test_a_version_is_complete_by_its_publishers_word_and_nothing_open(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard([1]), VersionPublished(1, "completed"))
    assert not Dataset.open(store.uri).complete()
    writer.entry(FragmentEnded(FRAGMENT.id, 1), VersionPublished(2, "completed"))
    assert Dataset.open(store.uri).complete()
    writer.entry(VersionPublished(3, "stopped", complete=False))
    assert [Dataset.open(store.uri).complete(version) for version in (None, 1, 2, 3)] == [False, False, True, False]


def test_what_is_retracted_is_gone_through_once_for_all_shards(store: FileStore) -> None:
    looks: list[int] = []

    class Watched(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            looks.append(len(self))
            return super().__iter__()

    state = LedgerState(retracted=Watched([[1, f"{key}", [key, 5]] for key in (0, 1, 0)]))
    dataset = Dataset(store, state)
    assert [dataset.retracted(f"{key}") for key in range(3)] == [{0, 5}, {1, 5}, frozenset()]
    assert dataset.retractions("0") == [(1, [0, 5]), (1, [0, 5])]
    assert looks == [3]


def test_a_dataset_without_shards_is_described_by_its_pipeline(store: FileStore, writer: Writer) -> None:
    described = Dataset.open(store.uri).describe()
    assert dataclasses.astuple(described) == ("abc", SEQ_LEN, 2, 1, "v1")


def test_a_fold_goes_on_where_it_stopped(store: FileStore, writer: Writer) -> None:
    state = fold_ledger(store)
    writer.entry(writer.shard(FATES))
    assert fold_ledger(store, state) is state
    assert (state.number, len(state.shards)) == (1, 1)


@pytest.mark.parametrize("data", [b"not msgpack", encode_entry(Entry(9, ()))])
def test_an_entry_that_cannot_follow_is_a_format_error(store: FileStore, writer: Writer, data: bytes) -> None:
    writer.log.append(1, data)
    with pytest.raises(FormatError, match=r"entry 1\b.*restore the entry"):
        Dataset.open(store.uri)


def test_a_whole_dataset_is_sound(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES))
    writer.entry(writer.shard(["filtered", "quarantined"], first=8))
    writer.entry(writer.shard([5, 9], first=10), FragmentEnded(FRAGMENT.id, 12), VersionPublished(1, "completed"))
    dataset = Dataset.open(store.uri)
    bring_forward(store, dataset.manifest())
    report = dataset.verify()
    assert report.problems == ()
    assert report.sound
    assert (report.shards, report.objects, report.records) == (3, 11, 12)
    assert report.size == sum(info.size for info in store.list("") if info.key.startswith(("shards/", "quarantine/")))


def test_a_record_that_two_sinks_closed_is_counted_once(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard([3, "filtered", 4]))
    writer.entry(dataclasses.replace(writer.shard([5, 9], first=8), sink="other"))
    writer.entry(writer.shard([2], first=3))
    assert Dataset.open(store.uri).verify().records == 4


@pytest.mark.parametrize("role", ["tokens", "documents", "verdicts", "quarantine"])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has checksum"),
        (lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]), "has checksum"),
    ],
    ids=["missing", "short", "changed"],
)
def test_a_damaged_object_is_the_one_problem_and_named(
    store: FileStore, writer: Writer, role: str, damage: Callable[[Path], Any], problem: str
) -> None:
    closed = writer.shard(FATES)
    writer.entry(closed)
    key = next(item.key for item in closed.objects if item.role == role)
    damage(store.open_local(key))  # type: ignore[arg-type]
    problems = Dataset.open(store.uri).verify().problems
    assert len(problems) == 1
    assert problem in problems[0]
    assert key in problems[0]
    assert "restore" in problems[0]
    assert "\n" not in problems[0]


def _problems(store: FileStore, writer: Writer, *closed: Closed) -> str:
    writer.entry(*closed)
    return "\n".join(Dataset.open(store.uri).verify().problems)


def test_a_record_that_no_table_holds_is_found_even_where_counts_agree(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    moved = dataclasses.replace(closed, ranges=(Range(FRAGMENT.id, 1, len(FATES)),))
    problems = _problems(store, writer, moved)
    assert "lack 1 record of file:///corpus/a.jsonl, first record 8" in problems
    assert "hold beyond its ranges 1 record of file:///corpus/a.jsonl, first record 0" in problems


def _with_table(writer: Writer, closed: Closed, role: str, rows: list[dict[str, Any]]) -> Closed:
    schema = {"documents": documents_schema(), "verdicts": verdicts_schema(),
              "quarantine": quarantine_schema()}[role]  # fmt: skip
    other = writer.table(
        role, f"{'quarantine' if role == 'quarantine' else 'shards'}/1/{OTHER}.{role}.parquet", schema, rows
    )
    return dataclasses.replace(closed, objects=tuple(other if x.role == role else x for x in closed.objects))


def _rows(store: FileStore, closed: Closed, role: str) -> list[dict[str, Any]]:
    return read_table(store, next(x.key for x in closed.objects if x.role == role)).to_pylist()


def test_a_record_with_two_verdicts_is_found(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    rows = _rows(store, closed, "verdicts")
    problems = _problems(store, writer, _with_table(writer, closed, "verdicts", [*rows, rows[0] | {"row": 0}]))
    assert "hold more than once, or not in all parts, 1 record of file:///corpus/a.jsonl, first record 0" in problems
    assert "has 3 filtered, the ledger counts 2" in problems


def test_a_record_of_another_fragment_is_found(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    rows = _rows(store, closed, "documents")
    problems = _problems(
        store, writer, _with_table(writer, closed, "documents", [rows[0] | {"fragment": "ff"}, *rows[1:]])
    )
    assert "hold beyond its ranges 1 record of fragment ff, first record 0" in problems
    assert "lack 1 record of file:///corpus/a.jsonl, first record 0" in problems


def test_a_document_that_is_longer_than_its_pieces_is_found(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    rows = _rows(store, closed, "documents")
    problems = _problems(store, writer, _with_table(writer, closed, "documents", [rows[0] | {"tokens": 5}, *rows[1:]]))
    assert "1 document differs from the pieces, row 0 by 3 to 5 tokens" in problems


def test_a_quarantined_record_without_its_raw_bytes_is_found(store: FileStore, writer: Writer) -> None:
    closed = writer.shard(FATES)
    assert "0 raw records of fragment" in _problems(store, writer, _with_table(writer, closed, "quarantine", []))
    bare = dataclasses.replace(closed, sink="other", objects=closed.objects[:3])
    assert "0 raw records of fragment" in _problems(store, writer, bare)


@pytest.mark.parametrize("field", ["tokens", "sequences", "padding"])
def test_a_wrong_count_of_tokens_is_found(store: FileStore, writer: Writer, field: str) -> None:
    closed = writer.shard(FATES)
    counts = dataclasses.replace(closed.counts, **{field: 99})
    assert "has 11 tokens in 3 sequences" in _problems(store, writer, dataclasses.replace(closed, counts=counts))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("piece_start", [0, 0, 0, 1], "piece overlaps another"),
        ("piece_start", [0, 9, 0, 0], "lies outside"),
        ("piece_document", [1, 0, 0, 3], "not in the order"),
        ("piece_length", [3, 4, 2], "differ in length"),
        ("tokens", [1, 2], "not [sequences, seq_len]"),
    ],
)
def test_pieces_that_do_not_fit_are_found(
    store: FileStore, writer: Writer, name: str, value: list[int], problem: str
) -> None:
    closed = writer.shard(FATES)
    arrays = dict(shard.read_shard(store, closed.objects[0].key))
    arrays[name] = np.array(value, arrays[name].dtype)
    tokens = writer.object("tokens", f"shards/1/{OTHER}.safetensors", safetensors_parts(arrays, {}, blocks=True))
    assert problem in _problems(store, writer, dataclasses.replace(closed, objects=(tokens, *closed.objects[1:])))


def test_a_manifest_that_names_a_shard_unknown_to_the_ledger_is_found(store: FileStore, writer: Writer) -> None:
    writer.entry(writer.shard(FATES))
    dataset = Dataset.open(store.uri)
    manifest = dataset.manifest()
    manifest["shards"][0]["tokens"] = f"shards/1/{OTHER}.safetensors"
    bring_forward(store, manifest)
    assert f"manifest.json names shards/1/{OTHER}.safetensors" in dataset.verify().problems[0]
    store.replace("manifest.json", [b"{"])
    assert "manifest.json cannot be read" in dataset.verify().problems[0]
