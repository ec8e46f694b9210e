"""Targets of `headrace.store`: what stands in files and stores, and what an endpoint answers."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.store.columnar import gate
from headrace.store.contract.errors import FormatError
from headrace.store.contract.objects import ObjectInfo
from headrace.store.datasets import manifest
from headrace.store.ledger import snapshot
from headrace.store.ledger.core import cluster_changes, entries, intervals
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Entry
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.core.log_state import LogState
from headrace.store.shards import builder, dedup_files, header, object_keys, profile, shard
from headrace.store.shards.core import blocks
from tests.fuzz.harness import Target
from tests.fuzz.mutations import changed_tree, within_json, within_msgpack

# -- ledgers --

A, B = (
    entries.Fragment.named("read", f"file:///{name}", "v", start=0, end=-1, reader="lines", size=90) for name in "ab"
)
KEY = "shards/1/" + "ab" * 16 + ".safetensors"
STORED = entries.StoredObject("tokens", KEY, "xxh3-128:" + "0" * 32, 5)
COUNTS = entries.Counts(2, 1, 0, 1, {"keep/short": 1}, {"read/bad": 1}, {"trim": 1}, 30, 2, 1, {"trim/cut": 2})
CLOSED = entries.Closed("write", "v1", 1, (entries.Range(A.id, 0, 4, 0, 40),), (STORED,), COUNTS)

#: A ledger that is short and has every kind of change: entries by number.
LEDGER = (
    Entry(1, (entries.Led(1, {"host": "here", "pid": 7}),)),
    Entry(1, (entries.EpochRaised("begin"), entries.PipelineApplied("v1", {"stages": [{"name": "read"}]}))),
    Entry(
        1,
        (
            entries.FragmentsListed((A, B)),
            entries.VersionSeen("read", "file:///c", "v2", True),
            entries.PrefixRead(B.id, 3, 1, b"c" * 16),
        ),
    ),
    Entry(1, (CLOSED, entries.FragmentEnded(A.id, 4, b"c" * 16), entries.ClaimsReleased("write", ((A.id, (1, 2)),)))),
    Entry(1, (entries.FragmentDropped(B.id, "gone", False), entries.Beat(1), entries.VersionPublished(1, "done"))),
    Entry(1, (entries.Retracted(2, ((KEY, (0, 1)),), ((KEY, STORED),)), entries.Resigned(1))),
    Entry(1, (entries.VersionPublished(2, "rollback", 4, False, 1_800_000_000, 1), entries.VersionHeld(3, ("a",)))),
)
WISH = {"pause": None, "replicas": {"a": 2}, "places": {}, "transports": {}}
CLUSTER = (
    Entry(1, (entries.Led(1, {"host": "here"}), cluster_changes.WorkerJoined("w1", "h", 4))),
    Entry(1, (cluster_changes.RunBegun("main", {"stages": []}, {"limit": 3}), cluster_changes.RunPlanned("main", {}))),
    Entry(1, (cluster_changes.RunSteered("main", WISH), cluster_changes.RunChanged("main", {"a": 1}, True))),
    Entry(1, (cluster_changes.WorkerDrainAsked("w1", False), cluster_changes.TokenSpent("t", "w1", "k"))),
    Entry(1, (cluster_changes.RunStopAsked("main", False), cluster_changes.RunEnded("main", "stopped", "asked"))),
    Entry(1, (cluster_changes.RunScaled("main", {"kind": "scale", "after": {"a": 2}, "records_s": 1.5}),)),
    Entry(1, (cluster_changes.QueueSet("a", 2, 8, 1, "operator/ann"), cluster_changes.QueueRemoved("a", "anna"))),
    Entry(
        1, (cluster_changes.RunQueued("one", {"stages": []}, {"queue": "a"}), cluster_changes.RunHeld("a", True, "b"))
    ),
    Entry(1, (cluster_changes.RunUnqueued("one", "cancelled", "asked"),)),
    Entry(1, (cluster_changes.RunsCleared(("main",)), cluster_changes.WorkerLeft("w1", "left"))),
)


def run_entry(data: bytes) -> object | None:
    """An entry is decoded, is the same when it is written again, and what folds it refuses it by name or takes it."""
    try:
        entry = entries.decode_entry(data)
    except entries.EntryError:
        return None
    again = entries.encode_entry(entry)
    # By its bytes: NaN, which plain data may hold, is not equal to itself.
    assert entries.encode_entry(entries.decode_entry(again)) == again
    for state, before in ((LedgerState(), LEDGER), (ClusterState(), CLUSTER)):
        folded(state, (*before[:4], entry))
    folded(LedgerState(), (*LEDGER, entry))
    return again


def folded(state: LogState, log: tuple[Entry, ...]) -> LogState | None:
    try:
        for number, entry in enumerate(log):
            state.apply(number, entry)
    except FoldError:
        return None
    # What was taken can be kept, and is what it was.
    kept = snapshot.encode_snapshot(state)
    assert snapshot.encode_snapshot(snapshot.decode_snapshot(kept)) == kept
    return state


def entry_seeds() -> list[bytes]:
    return [entries.encode_entry(entry) for entry in (*LEDGER, *CLUSTER)]


def run_snapshot(data: bytes) -> object | None:
    found = None
    for candidate in (data, sealed_snapshot(data)):
        with contextlib.suppress(FormatError):
            state = snapshot.decode_snapshot(candidate)
            found = snapshot.encode_snapshot(state)
            assert snapshot.encode_snapshot(snapshot.decode_snapshot(found)) == found
    return found


def sealed_snapshot(data: bytes) -> bytes:
    """The snapshot with the checksum of its arrays."""
    parts = snapshot_parts(data)
    return data if parts is None else snapshot_of(*parts)


def snapshot_parts(data: bytes) -> tuple[list[Any], bytes] | None:
    length = int.from_bytes(data[8:16], "little")
    try:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        unpacker.feed(data[16 : 16 + length])
        head = unpacker.unpack()
    except Exception:  # noqa: BLE001 - whatever the codec raises for what it does not know
        return None
    return (head, data[16 + length :]) if isinstance(head, list) and len(head) == 6 else None


def snapshot_of(head: list[Any], body: bytes) -> bytes:
    try:
        packed = msgpack.packb([*head[:5], xxhash.xxh3_128_hexdigest(body)], use_bin_type=True)
    except (ValueError, TypeError, OverflowError):
        return b""
    packed += b"\xc1" * (-(16 + len(packed)) % 8)
    return b"".join((snapshot.MAGIC, len(packed).to_bytes(8, "little"), packed, body))


def snapshot_mutation(data: bytes, random: Random) -> bytes:
    """Within the header, or one number of the arrays."""
    parts = snapshot_parts(data)
    if parts is None:
        return data
    head, body = parts
    if random.random() < 0.4 and body:
        at = random.randrange(len(body)) & -8
        value = random.choice((-1, 0, 1, 2, 5, 1 << 40, (1 << 63) - 1))
        body = body[:at] + value.to_bytes(8, "little", signed=True) + body[at + 8 :]
    else:
        at = random.randrange(2, 5)
        head = [*head[:at], changed_tree(head[at], random), *head[at + 1 :]]
    return snapshot_of(head, body)


def snapshot_seeds() -> list[bytes]:
    found = []
    for state, log in ((LedgerState(), LEDGER), (LedgerState(), LEDGER[:3]), (ClusterState(), CLUSTER[:5])):
        for number, entry in enumerate(log):
            state.apply(number, entry)
        found.append(snapshot.encode_snapshot(state))
    return found


def run_intervals(data: bytes) -> object | None:
    """Bytes as verbs of a set, and the same as a set of numbers; and as columns of a snapshot."""
    held, plain = intervals.IntervalSet(), set[int]()
    for first, count in zip(data[::2], data[1::2], strict=False):
        end = first + count % 16
        taken = set(range(first, end))
        with contextlib.suppress(ValueError):
            held.add(first, end, first * 10, end * 10)
            assert taken
            assert not plain & taken
            plain |= taken
    assert held.size == len(plain)
    assert {at for first, end in held for at in range(first, end)} == plain
    gaps = {at for gap in held.gaps(300) for at in range(gap.first, gap.end)}
    assert gaps == set(range(300)) - plain
    columns = [list(data[at::4]) for at in range(4)]
    with contextlib.suppress(ValueError):
        made = intervals.IntervalSet.of_columns(*columns)
        assert made == made.copy()
    return list(held) or None


# -- shards --


class OneObject:
    """A store that holds one object."""

    uri = "memory:one"
    is_remote = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._data), "e")

    def get(self, _key: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._data[offset:] if length is None else self._data[offset : offset + length]

    def open_local(self, _key: str) -> None:
        return None


def run_shard_header(data: bytes) -> object | None:
    """A shard, and a header behind which whatever it asks for is found."""
    found = None
    room = min(len(data), 65_535)
    for candidate in (data, room.to_bytes(8, "little") + data[:room] + bytes(256)):
        store: Any = OneObject(candidate)
        with contextlib.suppress(FormatError):
            header.data_end(store, "k")
        with contextlib.suppress(FormatError):
            read = shard.read_header(store, "k")
            with contextlib.suppress(FormatError):
                found = sorted(shard.read_shard(store, "k", read)), read.metadata
        with contextlib.suppress(FormatError):
            plain = header.read_plain_header(store, "k")
            text = candidate[8 : plain.body]
            blocks.read_blocks(text, plain.metadata, plain.size)
    return found


def whole_shard() -> bytes:
    arrays = {"tokens": np.arange(24, dtype="<u2").reshape(3, 8), "offsets": np.arange(4, dtype="<i8")}
    return b"".join(
        bytes(part) for part in builder.safetensors_parts(arrays, {"format": "1", "note": "é"}, blocks=True)
    )


def shard_mutation(data: bytes, random: Random) -> bytes:
    """Within the header, whose length stays right."""
    length = int.from_bytes(data[:8], "little")
    text = within_json(data[8 : 8 + length], random)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def run_blocks(data: bytes) -> object | None:
    """A header that is sealed, whatever it says of its blocks."""
    try:
        metadata = orjson.loads(data)
        text = {str(name): str(value) for name, value in metadata.items()}
        sealed = blocks.seal(orjson.dumps({"__metadata__": text | {blocks.HEADER_CHECK: "0" * 16}}))
    except (ValueError, AttributeError, TypeError):
        return None
    read = orjson.loads(sealed)["__metadata__"]
    size = 8 + len(sealed) + 100
    try:
        table = blocks.read_blocks(sealed, read, size)
    except FormatError:
        return None
    if table is None:
        return None
    body = bytes(100)
    wrong, count = table.first_wrong(0, memoryview(body))
    assert count == table.count
    assert table.span(0, table.count) == (8 + len(sealed), 100)
    return table.block_bytes, wrong is None


def block_seeds() -> list[bytes]:
    return [orjson.dumps(blocks.describe_blocks([bytes(100)])), orjson.dumps({blocks.BLOCKS: "xxh3-64/50/" + "0" * 32})]


def run_key(data: bytes) -> object | None:
    text = data.decode("utf-8", "surrogateescape")
    epoch = object_keys.epoch_of(text)
    assert object_keys.is_key(text) == (epoch is not None)
    key, checksum = f"shards/0/{'0' * 32}.a", f"xxh3-128:{'0' * 32}"
    assert object_keys.are_keys([key, text, key]) == (epoch is not None)
    assert object_keys.are_checksums([checksum, text, checksum]) == object_keys.is_checksum(text)
    with contextlib.suppress(ValueError):
        name = dedup_files.RecordName.parse(text)
        assert dedup_files.RecordName.parse(str(name)) == name
    if epoch is not None:
        assert ".." not in text
        assert text.isascii()
        assert text.count("/") == 2
    return None if epoch is None else text


def run_manifest(data: bytes) -> object | None:
    """What stands in the place of a manifest, to whoever would put another there."""
    store: Any = OneObject(data)
    with patch.object(manifest, "_said", return_value=({7: 0, 9: 2}, False)):
        later = manifest._is_later(store, data, 3)
    with contextlib.suppress(ValueError, AttributeError):
        entry = manifest.entry_of(orjson.loads(data))
        assert -1 <= entry <= manifest.NUMBER_MAX
        assert entry > 3 or not later
        return None if entry < 0 else (entry, later)
    return None


def run_key_file(data: bytes) -> object | None:
    """The file of keys: as it is, and with facts that are whatever the input says."""
    found = None
    for candidate in (data, with_facts(data)):
        with contextlib.suppress(FormatError):
            read = dedup_files.decode_keys(candidate, "s1", "it")
            assert len(read.keys) == len(read.words) == len(read.holders)
            assert len(read.places) == len(read.records)
            assert all(0 <= place < len(read.fragments) for place in read.places.tolist())
            found = [str(read.name(place)) for place in range(len(read.records))]
    return found


def with_facts(data: bytes) -> bytes:
    """A file of keys of three columns that the input names in JSON: facts, fragments, rows."""
    try:
        facts, fragments, rows = orjson.loads(data)
        columns = [pa.array([1, 2], kind) for kind in (pa.uint64(), pa.uint64(), pa.uint16())]
        columns += [pa.array(fragments, pa.string()), pa.array(rows, pa.int64())]
        table = pa.Table.from_arrays(columns, names=list(dedup_files._KEYS_COLUMNS))
    except (ValueError, TypeError, pa.ArrowException, OverflowError):
        return data
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({dedup_files._KEYS_METADATA: orjson.dumps(facts)}), sink)
    return sink.getvalue().to_pybytes()


def key_file_seeds() -> list[bytes]:
    rows, words = np.array([1, 5]), np.arange(6, dtype=np.uint64).reshape(2, 3)
    facts = {"format": 1, "scheme": "s1", "partitions": [0, 2]}
    return [dedup_files.encode_keys([(A.id, rows, words)], "s1"), orjson.dumps([facts, ["ab", "ab"], [1, 2]])]


def run_sketch_file(data: bytes) -> object | None:
    """The file of sketches: as it is, and with facts that are whatever the input says."""
    found = None
    for candidate in (data, with_sketch_facts(data)):
        with contextlib.suppress(FormatError):
            table = dedup_files._sketches_table(candidate, "it")
            assert table.schema.names == list(dedup_files._SKETCHES_COLUMNS)
            found = table.column("row").to_pylist()
    return found


def with_sketch_facts(data: bytes) -> bytes:
    """A file of sketches that the input names in JSON: facts, fragments, rows, sketches."""
    try:
        facts, fragments, rows, sketches = orjson.loads(data)
        columns = [pa.array(fragments, pa.string()), pa.array(rows, pa.int64())]
        columns.append(pa.array([text.encode() for text in sketches], pa.binary()))
        table = pa.Table.from_arrays(columns, names=list(dedup_files._SKETCHES_COLUMNS))
    except (ValueError, TypeError, AttributeError, pa.ArrowException, OverflowError):
        return data
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({dedup_files._SKETCHES_METADATA: orjson.dumps(facts)}), sink)
    return sink.getvalue().to_pybytes()


def sketch_file_seeds() -> list[bytes]:
    sketches = pa.array([b"\x00ab", b"\x01abcd"], pa.binary())
    whole = dedup_files.encode_sketches([(A.id, np.array([1, 5]), sketches)])
    return [whole, orjson.dumps([{"format": 1}, ["ab", "ab"], [1, 2], ["\0ab", "\1abcd"]])]


def run_profile(data: bytes) -> object | None:
    """The file of a profile: what is read is written the same, and adds up with itself."""
    try:
        found = profile.decode_profile(data, "it")
    except FormatError:
        return None
    assert profile.decode_profile(profile.encode_profile(found), "it") == found
    names = sorted(found)
    profile.Profile().add(found)
    return names


def profile_seeds() -> list[bytes]:
    builder = profile.ProfileBuilder()
    builder.token_counter(4, 0)(np.arange(4, dtype=np.uint16))
    columns = {"source": ["s3://a/b"], "tokens": [3], "metadata": ['{"url":"https://a.org","language":"en"}']}
    builder.add(pa.table({**columns, "score.a.b": [0.5]}))
    return [profile.encode_profile(builder.finish({"kept": 1}))]


def run_parquet_head(data: bytes) -> object | None:
    """What the process that reads a footer says of it, whatever has become of that process."""
    found = None
    for candidate in (data, with_shape(data)):
        with contextlib.suppress(gate.UnsoundColumns):
            head = gate._head_of(bytearray(candidate))
            assert head.numbers.ndim == 2
            found = len(head), head.schema.names
    return found


def with_shape(data: bytes) -> bytes:
    """A schema as bytes, and behind it as many numbers as are there: of one row group."""
    size = int.from_bytes(data[:2], "little")
    told, numbers = data[2 : 2 + size], data[2 + size :]
    columns = max(0, len(numbers) // 16 - 1)
    return gate._SHAPE.pack(len(told), 1, columns) + told + numbers[: 16 + 16 * columns]


def parquet_heads() -> list[bytes]:
    told = pa.schema([("a", pa.int64())]).serialize().to_pybytes()
    return [len(told).to_bytes(2, "little") + told + bytes(32)]


def run_parquet_rows(data: bytes) -> object | None:
    with contextlib.suppress(gate.UnsoundColumns):
        rows = gate._rows_of(bytearray(data), 16)
        rows.validate()
        return rows.num_rows, rows.schema.names
    return None


def parquet_rows() -> list[bytes]:
    rows = pa.record_batch({"a": pa.array([1, 2, None]), "t": pa.array(["x", "é", "yy"])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return [sink.getvalue().to_pybytes()]


TARGETS = [
    Target("parquet_head", ("headrace.store.columnar.gate",), run_parquet_head, parquet_heads),
    Target("parquet_rows", ("headrace.store.columnar.gate",), run_parquet_rows, parquet_rows),
    Target(
        "ledger_entry",
        ("headrace.store.ledger.core.entries", "headrace.store.ledger.core.fold"),
        run_entry,
        entry_seeds,
        mutate=within_msgpack,
    ),
    Target(
        "snapshot",
        ("headrace.store.ledger.snapshot",),
        run_snapshot,
        snapshot_seeds,
        mutate=snapshot_mutation,
        bytes_max=4096,
    ),
    Target(
        "intervals",
        ("headrace.store.ledger.core.intervals",),
        run_intervals,
        lambda: [b"\x01\x04\x09\x02", b"\0\x05\x05\x05\x14\x03"],
    ),
    Target(
        "shard_header",
        ("headrace.store.shards.header", "headrace.store.shards.shard"),
        run_shard_header,
        lambda: [whole_shard()],
        mutate=shard_mutation,
    ),
    Target("blocks", ("headrace.store.shards.core.blocks",), run_blocks, block_seeds, mutate=within_json),
    Target(
        "keys",
        ("headrace.store.shards.object_keys",),
        run_key,
        lambda: [KEY.encode(), KEY.replace("shards", "quarantine").encode()],
    ),
    Target(
        "key_file",
        ("headrace.store.shards.dedup_files",),
        run_key_file,
        key_file_seeds,
        mutate=within_json,
        bytes_max=4096,
    ),
    Target(
        "sketch_file",
        ("headrace.store.shards.dedup_files",),
        run_sketch_file,
        sketch_file_seeds,
        mutate=within_json,
        bytes_max=4096,
    ),
    Target(
        "profile", ("headrace.store.shards.profile",), run_profile, profile_seeds, mutate=within_msgpack, bytes_max=4096
    ),
    Target(
        "manifest",
        ("headrace.store.datasets.manifest",),
        run_manifest,
        lambda: [orjson.dumps(manifest.removal(7))],
        mutate=within_json,
    ),
]
