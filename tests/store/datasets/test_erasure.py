"""Erasure: shards written anew at the same geometry, and what the fold knows of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard

from headrace.cli.commands.dataset.page import facts_of
from headrace.loader.dataset.dataset import open_dataset
from headrace.stages.export.records import named_records
from headrace.store.contract.errors import FormatError
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.manifest import bring_forward
from headrace.store.datasets.retraction import erase, find_records, to_erase, write_rewritten
from headrace.store.files.store import FileStore
from headrace.store.history.versions import history_of
from headrace.store.ledger.core.entries import EpochRaised, FragmentEnded, Retracted, VersionPublished
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.log import fold_log
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot
from headrace.store.shards import documents_schema, read_lines, read_shard, read_table, table_to_parquet
from tests.kits.store.dataset_writer import FRAGMENT, Writer


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(FileStore(tmp_path))
    made.entry(made.shard([3, "filtered", 6, 2]), FragmentEnded(FRAGMENT.id, 4), VersionPublished(1, "completed"))
    return made


def state_of(writer: Writer) -> LedgerState:
    return fold_log(writer.log, LedgerState())


def retract(writer: Writer, *rows: int, reason: str = "retraction") -> None:
    state = state_of(writer)
    key = state.shards[0].closed.objects[0].key
    version = state.version + 1
    writer.entry(EpochRaised(reason), Retracted(version, ((key, rows),), ()), VersionPublished(version, reason, 2))


def purge(writer: Writer) -> None:
    state = state_of(writer)
    made = [item for shard in to_erase(state) for item in erase(writer.store, shard, state.epoch)]
    version = state.version + 1
    writer.entry(Retracted(version, (), tuple(made)), VersionPublished(version, "purge", 2))


def test_an_erased_document_is_padding_and_all_else_stands_where_it_stood(writer: Writer) -> None:
    before = state_of(writer)
    old = {item.role: item for item in before.shards[0].closed.objects}
    bring_forward(writer.store, Dataset(writer.store, before).manifest())
    root = open_dataset(writer.store.uri).layout.root
    retract(writer, 1)
    (waiting,) = to_erase(state_of(writer))
    assert (waiting.rows, waiting.gone) == ((1,), ())
    purge(writer)
    state = state_of(writer)
    new = {item.role: item for item in state.shards[0].closed.objects}
    assert new["tokens"].size == old["tokens"].size
    assert {role for role in new if new[role] != old[role]} == {"tokens", "documents"}
    was, now = (read_shard(writer.store, item["tokens"].key) for item in (old, new))
    erased = np.zeros(was["tokens"].shape, np.bool_)
    for piece in np.flatnonzero(was["piece_document"] == 1):
        start = was["piece_start"][piece]
        erased[was["piece_sequence"][piece], start : start + was["piece_length"][piece]] = True
    assert erased.sum() == 6
    assert (now["tokens"][erased] == 2).all()
    assert np.array_equal(now["tokens"][~erased], was["tokens"][~erased])
    for name in was.keys() - {"tokens"}:
        assert np.array_equal(was[name], now[name])
    assert read_table(writer.store, new["documents"].key).column("id").to_pylist() == ["0", "2", "3"]
    assert to_erase(state) == []
    assert state.erased_rows(new["tokens"].key) == (1,)
    assert state.retracted == [[2, new["tokens"].key, [1]]]
    bring_forward(writer.store, Dataset(writer.store, state).manifest())
    assert open_dataset(writer.store.uri).layout.root == root
    assert Dataset.open(writer.store.uri).verify().problems == ()


def test_a_second_purge_erases_what_came_since_and_keeps_the_first_checksum(writer: Writer) -> None:
    first = state_of(writer).shards[0].closed.objects[0].checksum
    for row in (0, 2):
        retract(writer, row)
        purge(writer)
    state = state_of(writer)
    (found,) = state.erased.values()
    assert found == [first, [0, 2]]
    (listed,) = Dataset(writer.store, state).manifest()["shards"]
    assert (listed["layout"], listed["checksum"] != first) == (first, True)
    assert decode_snapshot(encode_snapshot(state)) == state


def test_a_deduplication_is_not_erased(writer: Writer) -> None:
    retract(writer, 1, reason="deduplication")
    assert to_erase(state_of(writer)) == []


@pytest.mark.parametrize("erased", [{"k": []}, {"k": ["x", [1]]}, {"k": ["xxh3-128:" + "0" * 32, [-1]]}, {"k": 1}])
def test_a_snapshot_with_erased_rows_of_nothing_is_refused(writer: Writer, erased: dict[str, list[object]]) -> None:
    state = state_of(writer)
    state.erased = erased
    with pytest.raises(FormatError):
        decode_snapshot(encode_snapshot(state))


def test_a_shard_whose_bytes_would_have_another_size_is_not_written(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.store.datasets import retraction

    retract(writer, 1)
    (waiting,) = to_erase(state_of(writer))
    monkeypatch.setattr(retraction, "BLOCKS", "format_version")
    with pytest.raises(FormatError, match="written anew"):
        erase(writer.store, replace(waiting), state_of(writer).epoch)


def lines_of(metadata: str, ids: Sequence[int]) -> bytes:
    """Records as the sink of JSON Lines once wrote them, whatever their metadata."""
    return b"".join(b'{"id":"%d","text":"t","metadata":%b}\n' % (name, metadata.encode()) for name in ids)


def with_lines(folder: Path, metadata: str, ids: Sequence[int] = (0, 2, 3)) -> Writer:
    made = Writer(FileStore(folder))
    closed = made.shard([3, "filtered", 6, 2])
    lines = made.object("lines", f"shards/1/{0:032x}.jsonl.zst", [zstandard.compress(lines_of(metadata, ids))])
    closed = replace(closed, objects=(lines, *(item for item in closed.objects if item.role != "tokens")))
    made.entry(closed, FragmentEnded(FRAGMENT.id, 4), VersionPublished(1, "completed"))
    bring_forward(made.store, Dataset(made.store, state_of(made)).manifest())
    return made


def take_down(writer: Writer, name: str) -> None:
    state = state_of(writer)
    found = find_records(writer.store, state, [name], [])
    made = write_rewritten(writer.store, found, state.epoch)
    version = state.version + 1
    shown = VersionPublished(version, "retraction", 1)
    writer.entry(EpochRaised("retraction"), Retracted(version, found.documents, made), shown)
    bring_forward(writer.store, Dataset(writer.store, state_of(writer)).manifest())


def test_lines_are_as_many_as_records_whose_text_is_left(tmp_path: Path) -> None:
    writer = with_lines(tmp_path, '{"n":1}')
    assert Dataset.open(writer.store.uri).verify().problems == ()
    for name, left in (("2", ["0", "3"]), ("0", ["3"])):
        take_down(writer, name)
        (lines,) = (item for item in state_of(writer).shards[0].closed.objects if item.role == "lines")
        assert [orjson.loads(line)["id"] for line in read_lines(writer.store, lines.key)] == left
        assert Dataset.open(writer.store.uri).verify().problems == ()


def test_lines_that_are_more_than_the_records_are_found_and_left(tmp_path: Path) -> None:
    writer = with_lines(tmp_path, '{\n"n":1}')
    (problem,) = Dataset.open(writer.store.uri).verify().problems
    assert "has 6 lines for 3 records" in problem
    before = state_of(writer)
    with pytest.raises(FormatError, match="has 6 lines for 3 records"):
        take_down(writer, "2")
    assert state_of(writer) == before


def test_a_line_of_another_record_is_not_shown(tmp_path: Path) -> None:
    writer = with_lines(tmp_path, '{"n":1}', (0, 3, 2))
    with pytest.raises(FormatError, match=r"line 1 of .* is of '3', not of '2'"):
        list(named_records(Dataset.open(writer.store.uri), ["2"]))


def test_a_record_is_named_by_its_parts_and_by_no_others(tmp_path: Path) -> None:
    writer = Writer(FileStore(tmp_path))
    closed = writer.shard([3, 6, 2])
    names, parts = ["x/0", "x/1", "x/y/0"], [0, 1, 0]
    (documents,) = (item for item in closed.objects if item.role == "documents")
    rows = read_table(writer.store, documents.key).to_pylist()
    rows = [row | {"id": name, "part": part} for row, name, part in zip(rows, names, parts, strict=True)]
    table = writer.table("documents", f"shards/1/{1:032x}.documents.parquet", documents_schema(), rows)
    objects = tuple(table if item is documents else item for item in closed.objects)
    writer.entry(replace(closed, objects=objects), FragmentEnded(FRAGMENT.id, 3), VersionPublished(1, "completed"))
    found = find_records(writer.store, state_of(writer), ["x", "x/y/0", "x/0/1", "y"], [])
    assert found.named == {"x", "x/y/0"}
    assert [rows for _, rows in found.documents] == [(0, 1, 2)]


def test_a_record_of_two_sinks_is_retracted_once(writer: Writer) -> None:
    closed = state_of(writer).shards[0].closed
    rows = read_table(writer.store, closed.objects[1].key)
    table = writer.object("documents", f"shards/1/{1:032x}.documents.parquet", [table_to_parquet(rows)])
    writer.entry(replace(closed, sink="other", objects=(table,)), VersionPublished(2, "completed", 2))
    found = find_records(writer.store, state_of(writer), ["0", "3"], [])
    assert ([rows for _, rows in found.documents], found.kept) == ([(0, 2), (0, 2)], 2)
    for reason in ("retraction", "deduplication"):
        state = state_of(writer)
        shown = VersionPublished(state.version + 1, reason, 2)
        writer.entry(EpochRaised(reason), Retracted(state.version + 1, found.documents, ()), shown)
    for sink, first in (("write", 2), ("other", 0)):
        assert [one.retracted for one in history_of(state_of(writer), sink)] == [first, 2, 2, 2]
    assert facts_of(Dataset.open(writer.store.uri))["retracted"] == 2
