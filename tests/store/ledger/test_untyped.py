"""Bytes that a codec takes and that say what nobody of ours writes: refused by name where they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from headrace.store.contract.errors import FormatError, InvalidUri, StoreUnavailable
from headrace.store.ledger.core.cluster_changes import MemberExpelled, RunBegun, RunQueued
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import (
    Beat,
    Closed,
    Entry,
    EntryError,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    VersionPublished,
    decode_entry,
    encode_entry,
)
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from headrace.store.ledger.core.log_state import LogState
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot
from headrace.store.open import one_name, open_store
from headrace.store.s3.connection import config, wire
from headrace.store.s3.connection.wire import Answer
from headrace.store.s3.connection.xml import read_xml
from headrace.store.s3.listing import list_flat
from headrace.store.shards import dedup_files

A = Fragment.named("read", "file:///a", "v", start=0, end=-1, reader="lines", size=9)
CHANGES = (
    Led(1, {"host": "here"}),
    Beat(1),
    EpochRaised("begin"),
    PipelineApplied("v1", {"stages": []}),
    FragmentsListed((A,)),
    FragmentEnded(A.id, 4, b""),
    Closed("write", "v1", 0, (Range(A.id, 0, 1),), (), Counts(kept=1)),
    VersionPublished(1, "done"),
)
#: Of no kind that any field has, but where anything plain may stand.
ODD = (1.5, 1e308, 2**63, -2, None, [1.5], {"a": 2**64 - 1, "b": 1.5})


def with_field(change: Any, at: int, value: object) -> bytes:
    body = msgpack.unpackb(encode_entry(Entry(1, (change,))))
    body[2][0][1][at] = value
    return bytes(msgpack.packb(body))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_field_of_another_kind_is_refused_and_named(change: Any) -> None:
    for at, field in enumerate(type(change).__match_args__):
        for value in ODD:
            data = with_field(change, at, value)
            if isinstance(value, dict) and field in ("leader", "pipeline"):
                assert encode_entry(decode_entry(data)) == data
                continue
            with pytest.raises(EntryError, match=rf"{type(change).__name__}|entry"):
                decode_entry(data)


@pytest.mark.parametrize("term", [1.5, 1e308, "1", -1, None, 2**63])
def test_a_term_that_is_no_number_is_refused(term: object) -> None:
    with pytest.raises(EntryError):
        decode_entry(msgpack.packb([1, term, []]))


def test_what_cannot_be_folded_is_said_in_one_way() -> None:
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}), FragmentsListed((A,)))))
    with pytest.raises(FoldError, match="entry 1: Closed cannot be"):
        state.apply(1, Entry(1, (Closed("write", "v1", 0, (Range(A.id, 5, 0),), (), Counts()),)))


def snapshot_with(change: Any, state: LogState | None = None) -> bytes:
    if state is None:
        state = LedgerState()
        state.apply(0, Entry(1, (Led(1, {}), FragmentsListed((A,)))))
    data = encode_snapshot(state)
    length = int.from_bytes(data[8:16], "little")
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data[16 : 16 + length])
    head, body = unpacker.unpack(), data[16 + length :]
    change(head)
    packed = msgpack.packb([*head[:5], xxhash.xxh3_128_hexdigest(body)])
    packed += b"\xc1" * (-(16 + len(packed)) % 8)
    return data[:8] + len(packed).to_bytes(8, "little") + packed + body


@pytest.mark.parametrize("name", ["number", "term", "leader", "origin", "epoch", "pipeline", "version", "retracted"])
def test_a_snapshot_with_a_field_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        decode_snapshot(snapshot_with(lambda head: head[2].update({name: 1.5})))


@pytest.mark.parametrize("rows", [["1", 2], [None], [1.5], [2**64 - 1]])
def test_a_snapshot_with_released_rows_of_another_kind_is_refused(rows: list[Any]) -> None:
    with pytest.raises(FormatError):
        decode_snapshot(snapshot_with(lambda head: head[3].update({"released": [[A.id, "write", rows]]})))
    data = snapshot_with(lambda head: head[3].update({"released": [[A.id, "write", [1, 2]]]}))
    assert encode_snapshot(decode_snapshot(data))


@pytest.mark.parametrize("table", ["counts", "runs", "queued", "expelled"])
def test_a_snapshot_with_names_of_another_kind_is_refused(table: str) -> None:
    cluster = ClusterState()
    cluster.apply(0, Entry(1, (Led(1, {}), MemberExpelled("worker/w"), RunBegun("p", {}, {}), RunQueued("q", {}, {}))))
    ledger = LedgerState()
    ledger.apply(0, Entry(1, (Led(1, {}), FragmentsListed((A,)), CHANGES[-2])))
    state = ledger if table == "counts" else cluster

    def other(head: list[Any]) -> None:
        ((_, value),) = head[3][table].items()
        head[3][table] = {7: value}

    with pytest.raises(FormatError, match=table):
        decode_snapshot(snapshot_with(other, state))


@pytest.mark.parametrize("said", [{"drained": [7]}, {"expelled": {"worker/w": [7]}}])
def test_a_snapshot_with_members_that_are_no_texts_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=next(iter(said))):
        decode_snapshot(snapshot_with(lambda head: head[3].update(said), ClusterState()))


def test_a_snapshot_says_nothing_but_what_snapshots_say() -> None:
    state = decode_snapshot(snapshot_with(lambda head: head[2].update({"fragments": "x", "apply": 3})))
    assert isinstance(state, LedgerState)
    assert list(state.fragments) == [A.id]


def test_a_snapshot_with_an_array_of_another_type_is_refused() -> None:
    def other(head: list[Any]) -> None:
        head[4][0][1] = "|V8"

    with pytest.raises(FormatError, match=r"fragment\.id"):
        decode_snapshot(snapshot_with(other))


def keys_file(columns: dict[str, pa.Array], facts: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns).replace_schema_metadata({"headrace.keys": facts}), sink)
    return sink.getvalue().to_pybytes()


GOOD = b'{"format":1,"scheme":"s1"}'
COLUMNS = {
    "high": pa.array([1], pa.uint64()),
    "low": pa.array([1], pa.uint64()),
    "word": pa.array([0], pa.uint16()),
    "fragment": pa.array(["ab"]),
    "row": pa.array([1]),
}


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"high": COLUMNS["high"]}, GOOD),
        (COLUMNS | {"row": pa.array(["1"])}, GOOD),
        (COLUMNS | {"fragment": pa.array([None], pa.string())}, GOOD),
        (COLUMNS | {"fragment": pa.array(["no hex"])}, GOOD),
        (COLUMNS, b"[1]"),
        (COLUMNS, b"1"),
    ],
)
def test_a_file_of_keys_that_holds_something_else_is_refused(columns: dict[str, pa.Array], facts: bytes) -> None:
    assert dedup_files.decode_keys(keys_file(COLUMNS, GOOD), "s1", "it").records.tolist() == [1]
    assert np.all(dedup_files.decode_keys(keys_file(COLUMNS, GOOD), "s1", "it").words == 0)
    with pytest.raises(FormatError):
        dedup_files.decode_keys(keys_file(columns, facts), "s1", "it")


def test_a_listing_of_objects_smaller_than_nothing_is_not_followed() -> None:
    page = b"<R><Name>b</Name><Contents><Key>a</Key><ETag>e</ETag><Size>-1</Size></Contents></R>"
    with pytest.raises(StoreUnavailable, match="less than no bytes"):
        list(list_flat(lambda _: Answer(200, {}, page), "", ""))


@pytest.mark.parametrize("said", ["", "x", "-1", "1.5", "12, 12", "٣", "9" * 20])
def test_a_length_that_is_no_number_is_no_answer(said: str) -> None:
    with pytest.raises(wire.NoAnswer, match="no number"):
        wire.announced_bytes({"Content-Length": said})


def test_a_folder_named_outside_utf_8_is_found_by_its_uri(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    open_store(folder).create("a", [b"x"])
    uri = open_store(folder).uri
    assert uri.isascii()
    assert open_store(uri).get("a") == b"x"
    assert one_name(uri) == one_name(folder)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/\udce9", "s3://bucket/%E9", "s3://[bucket/a", "s3://bucket?kms_key=\udce9"]
)
def test_a_uri_of_s3_that_is_no_text_is_refused(uri: str) -> None:
    with pytest.raises(InvalidUri):
        config.resolve(uri, {"HOME": "/nonexistent"})


def test_xml_is_read_in_the_encoding_in_which_it_was_looked_at() -> None:
    # In the encoding that it names it would be another document than the one that was looked at.
    hidden = b'<?xml version="1.0" encoding="utf-16"?><Error><Code>SlowDown</Code></Error>'
    assert read_xml(hidden).findtext("Code") == "SlowDown"
