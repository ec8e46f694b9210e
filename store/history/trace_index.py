"""Which shards may hold a record of an id: `trace/<first>-<end>-<digest>.index`, a file for each run of shards.

Derived from the sidecars: files that are missing or damaged cost time, and no answer. The digest is of the shards'
objects, so a file says nothing about others. After a header of 32 bytes (magic, bits, entries, the xxh3-64 of these)
comes a directory of 2^bits buckets, each where its entries end and their xxh3-64; then the entries, sorted: 32 bits of
the hash of an id, and the shard. The bucket is the highest bits of the hash, so that a search reads three small ranges
of each file.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.store import ObjectStore, StoreError, put
from headrace.store.datasets import Dataset
from headrace.store.ledger import ClosedShard, LedgerState
from headrace.store.shards import column_names, read_table

logger = logging.getLogger("headrace.store")

#: Records, and shards, of which one file says where they are.
FILE_RECORDS, FILE_SHARDS = 1 << 24, 1 << 16
#: Entries of a bucket, about; and at most: those of one id all lie in one.
BUCKET_ENTRIES, BUCKET_ENTRIES_MAX = 512, 1 << 24
FILES_MAX = 100_000
_BITS_MAX = 24
_PREFIX = "trace/"
_MAGIC = b"HRTRACE1"
_HEADER = struct.Struct("<8sQQQ")
_SLOT = np.dtype([("end", "<u8"), ("check", "<u8")])
_ENTRY = np.dtype([("mark", "<u4"), ("shard", "<u2")])
_NAME = re.compile(r"trace/([0-9]{1,12})-([0-9]{1,12})-([0-9a-f]{16})\.index")

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _File:
    """A run of shards, by their places in the ledger."""

    first: int
    end: int
    digest: str

    @property
    def key(self) -> str:
        return f"{_PREFIX}{self.first}-{self.end}-{self.digest}.index"


def shards_with(dataset: Dataset, name: str) -> list[ClosedShard]:
    """The shards that may have a record of this id, or a part of it, in the ledger's order. Raises StoreError."""
    shards, at, found = dataset.state.shards, 0, set[int]()
    hashed = hash_of(name)
    for file in _sound_files(dataset.store, dataset.state):
        if file.first < at:
            continue
        try:
            hits = search(partial(dataset.store.get, file.key), file.end - file.first, hashed)
        except (StoreError, ValueError) as error:
            logger.warning("%s: %s: %s; its shards are read in its place", dataset.uri, file.key, error)
            continue
        found |= {*range(at, file.first), *(file.first + hit for hit in hits)}
        at = file.end
    return [shards[number] for number in sorted(found | set(range(at, len(shards))))]


def write_trace_index(dataset: Dataset) -> tuple[int, int]:
    """Write what is missing, and delete what is out of date; how many files were written, and how many there are."""
    store, wanted = dataset.store, list(_plan(dataset.state))
    there = {info.key for info in store.list(_PREFIX)}
    written = 0
    for file in wanted:
        if file.key not in there:
            put(store, file.key, [_encode(dataset, file)])
            written += 1
    for key in there - {file.key for file in wanted}:
        if _NAME.fullmatch(key):
            store.delete(key)
    return written, len(wanted)


def _plan(state: LedgerState) -> Iterator[_File]:
    """The runs of shards in which a dataset is indexed: the same for the same ledger."""
    first = records = 0
    for number, shard in enumerate(state.shards):
        if number > first and (records + shard.closed.counts.records > FILE_RECORDS or number - first == FILE_SHARDS):
            yield _File(first, number, _digest(state.shards[first:number]))
            first, records = number, 0
        records += shard.closed.counts.records
    if first < len(state.shards):
        yield _File(first, len(state.shards), _digest(state.shards[first:]))


def _digest(shards: Sequence[ClosedShard]) -> str:
    """What a run of shards is known by: the tables that name its records."""
    state = xxhash.xxh3_64()
    for shard in shards:
        for item in shard.closed.objects:
            if item.role in ("documents", "verdicts"):
                state.update(item.checksum.encode())
        state.update(b";")
    return state.hexdigest()


def _sound_files(store: ObjectStore, state: LedgerState) -> list[_File]:
    """The files of shards that the ledger has, in their order."""
    found: list[_File] = []
    for info in store.list(_PREFIX):
        parts = _NAME.fullmatch(info.key)
        if parts is None or len(found) == FILES_MAX:
            continue
        file = _File(int(parts[1]), int(parts[2]), parts[3])
        whole = file.first < file.end <= min(len(state.shards), file.first + FILE_SHARDS) and file.key == info.key
        if whole and _digest(state.shards[file.first : file.end]) == file.digest:
            found.append(file)
    return sorted(found, key=lambda file: (file.first, -file.end))


def hash_of(name: str) -> int:
    """The hash by which an id is looked up."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


def _split(hashed: Hashes, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """The bucket and the mark of each hash."""
    buckets = (hashed >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(hashed), np.int64)
    return buckets, hashed.astype(np.uint32)


def search(get: Callable[[int, int], bytes], shards: int, hashed: int) -> set[int]:
    """Which of a file's shards may have a hash; `get` reads a range of it. ValueError where it is unsound."""
    wrong = "no index of traces, or a damaged one"
    head = get(0, _HEADER.size)
    if len(head) != _HEADER.size:
        raise ValueError(wrong)
    magic, bits, entries, check = _HEADER.unpack(head)
    if magic != _MAGIC or bits > _BITS_MAX or check != xxhash.xxh3_64_intdigest(head[:-8]):
        raise ValueError(wrong)
    buckets, marks = _split(np.array([hashed], np.uint64), bits)
    bucket = int(buckets[0])
    before = min(bucket, 1)
    read = get(_HEADER.size + (bucket - before) * _SLOT.itemsize, (before + 1) * _SLOT.itemsize)
    if len(read) != (before + 1) * _SLOT.itemsize:
        raise ValueError(wrong)
    slots = np.frombuffer(read, _SLOT)
    start, end = int(slots["end"][0]) if before else 0, int(slots["end"][-1])
    if not start <= end <= entries or end - start > BUCKET_ENTRIES_MAX:
        raise ValueError(wrong)
    place = _HEADER.size + (_SLOT.itemsize << bits) + start * _ENTRY.itemsize
    data = get(place, (end - start) * _ENTRY.itemsize) if end > start else b""
    if len(data) != (end - start) * _ENTRY.itemsize or xxhash.xxh3_64_intdigest(data) != int(slots["check"][-1]):
        raise ValueError(wrong)
    found = np.frombuffer(data, _ENTRY)
    hits = set(found["shard"][found["mark"] == marks[0]].tolist())
    if any(hit >= shards for hit in hits):
        raise ValueError(wrong)
    return hits


def _encode(dataset: Dataset, file: _File) -> bytes:
    """The bytes of a file: the same for the same shards."""
    hashes: list[Hashes] = []
    shards: list[npt.NDArray[np.uint16]] = []
    for number, shard in enumerate(dataset.state.shards[file.first : file.end]):
        own = np.unique(np.fromiter(_hashes(dataset, shard), np.uint64))
        hashes.append(own)
        shards.append(np.full(len(own), number, np.uint16))
    return encode_entries(np.concatenate(hashes), np.concatenate(shards))


def encode_entries(hashed: Hashes, shards: npt.NDArray[np.uint16]) -> bytes:
    """The bytes of a file with an entry for each hash."""
    bits = min(_BITS_MAX, max(0, (len(hashed) // BUCKET_ENTRIES).bit_length()))
    buckets, marks = _split(hashed, bits)
    order = np.lexsort((shards, marks, buckets))
    entries = np.zeros(len(hashed), _ENTRY)
    entries["mark"], entries["shard"] = marks[order], shards[order]
    slots = np.zeros(1 << bits, _SLOT)
    slots["end"] = np.cumsum(np.bincount(buckets, minlength=1 << bits))
    start = 0
    for number, end in enumerate(slots["end"].tolist()):
        slots["check"][number] = xxhash.xxh3_64_intdigest(entries[start:end].tobytes())
        start = end
    head = _HEADER.pack(_MAGIC, bits, len(hashed), 0)[:-8]
    sealed = head + xxhash.xxh3_64_digest(head)[::-1]
    return sealed + slots.tobytes() + entries.tobytes()


def _hashes(dataset: Dataset, shard: ClosedShard) -> Iterator[int]:
    """The hashes of the ids of a shard's records; of a part also that of its record."""
    for item in shard.closed.objects:
        if item.role not in ("documents", "verdicts"):
            continue
        known = column_names(dataset.store, item.key)
        table = read_table(dataset.store, item.key, [name for name in ("id", "part") if name in known])
        names = [str(name) for name in table.column("id").to_pylist()]
        parts = table.column("part").to_pylist() if "part" in table.column_names else [None] * len(names)
        for name, part in zip(names, parts, strict=True):
            yield hash_of(name)
            if part is not None:
                # As `rows_named` finds it, where a part was split again too.
                outer = name.rpartition("/")[0]
                yield hash_of(outer)
                yield hash_of(outer.rpartition("/")[0])
