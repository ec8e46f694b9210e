"""Targets of `headrace.store.history` and of expressions: small files beside a ledger, and what people ask for."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import Any

import msgpack
import numpy as np
import xxhash
import zstandard

from headrace.store.contract.errors import FormatError
from headrace.store.datasets import where
from headrace.store.history import address, audit, copies, trace_index
from headrace.store.shards import line_files, sidecars
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json


def run_tags(data: bytes) -> object | None:
    """What stands in the place of a file of tags: names that an address can hold, or its own error."""
    try:
        found = address.TAGS.decode(data, "it")
    except FormatError:
        return None
    assert all(address.is_tag(name) and tag.version >= 0 for name, tag in found.items())
    assert address.TAGS.decode(address.TAGS.encode(found), "it") == found
    return found


def run_copies(data: bytes) -> object | None:
    """What stands in the place of a file of copies: folders by their whole path, or its own error."""
    try:
        found = copies.COPIES.decode(data, "it")
    except FormatError:
        return None
    assert all(one.place.startswith("/") for one in found)
    assert copies.COPIES.decode(copies.COPIES.encode(found), "it") == found
    return [one.place for one in found]


def run_gate(data: bytes) -> object | None:
    """A gate that comes with a request: its own error, or tables that a ledger holds and that mean the same there."""
    try:
        found = audit.gate_of(data.decode("utf-8", "surrogateescape"))
    except audit.GateError:
        return None
    assert audit.gate_of(json.dumps(msgpack.unpackb(msgpack.packb(found)))) == found
    return sorted(found)


def run_where(data: bytes) -> object | None:
    """An expression over fields: its own error, or a test that any record answers."""
    try:
        test = where.parse_where(data.decode("utf-8", "replace"))
    except where.ExpressionError:
        return None
    records: tuple[dict[str, Any], ...] = ({}, {"a": 1, "b": "x", "c": {"d": [1, "y", None]}, "id": "r", "tokens": 3})
    answers = [test(fields) for fields in records]
    assert all(type(answer) is bool for answer in answers)
    return answers


def run_trace_index(data: bytes) -> object | None:
    """What stands in the place of an index of traces: shards that there are, or its own error."""
    found = None
    for whole in (data, _sealed(data)):
        try:
            found = trace_index.search(partial(_range, whole), 3, trace_index.hash_of("a"))
        except ValueError:
            continue
        assert all(0 <= shard < 3 for shard in found)
    return found


def run_record_facts(data: bytes) -> object | None:
    """What stands in a cell of metadata or lineage: its own error, or an object."""
    try:
        found = sidecars.json_object(data.decode("utf-8", "replace"), "metadata")
    except FormatError:
        return None
    assert type(found) is dict
    return sorted(found)


def run_line_file(data: bytes) -> object | None:
    """What stands in the place of a shard's texts: lines of no more than a file may unfold to, or its own error."""
    limit = 4096
    try:
        found = list(line_files._cut(io.BytesIO(data), limit))
    except (ValueError, zstandard.ZstdError):
        return None
    assert all(line.endswith(b"\n") for line in found[:-1])
    assert sum(map(len, found)) <= limit
    return found


def _range(data: bytes, at: int, size: int) -> bytes:
    return data[at : at + size]


def _sealed(data: bytes) -> bytes:
    """An index of one bucket with the checksums of what stands there."""
    head, rest, entries = data[:24], data[32:40], data[48:]
    end = int.from_bytes(rest, "little")
    checks = (xxhash.xxh3_64_digest(part)[::-1] for part in (head, entries[: 6 * end]))
    return head + next(checks) + rest + next(checks) + entries


def trace_indexes() -> list[bytes]:
    named = np.array([trace_index.hash_of(name) for name in ("a", "b", "c", "a")], np.uint64)
    whole = trace_index.encode_entries(named, np.array([0, 1, 2, 2], np.uint16))
    many = np.arange(2000, dtype=np.uint64) << np.uint64(53)
    return [whole, trace_index.encode_entries(many, np.zeros(2000, np.uint16))]


TARGETS = [
    Target("trace_index", ("headrace.store.history.trace_index",), run_trace_index, trace_indexes),
    Target(
        "record_facts",
        ("headrace.store.shards.sidecars",),
        run_record_facts,
        lambda: [b'{"edited_by":["a"],"b":1}', b"[1]"],
        mutate=within_json,
    ),
    Target(
        "line_file",
        ("headrace.store.shards.line_files",),
        run_line_file,
        lambda: [zstandard.ZstdCompressor().compress(text) for text in (b'{"text":"a"}\n\n{}', b"a\n" * 99)],
    ),
    Target(
        "copies",
        ("headrace.store.history.copies", "headrace.store.history.small_file"),
        run_copies,
        lambda: [
            copies.COPIES.encode([copies.Copy("/o", "h", "mds", 1, -1, 2), copies.Copy("/p", "h", "parquet", 2, 7)])
        ],
        mutate=within_json,
    ),
    Target(
        "gate",
        ("headrace.store.history.audit",),
        run_gate,
        lambda: [
            b'{"kept_share":{"min":0.5,"max":1},"drift":{"baseline":"v1","limits":{"length":0.1}}}',
            b'{"drift":{}}',
        ],
        mutate=within_json,
    ),
    Target(
        "where",
        ("headrace.store.datasets.where",),
        run_where,
        lambda: [b"a == 1 and not startswith(b, 'x')", b"c.d in [1, -2.5, None] or tokens >= 3", b"'y' not in c.d"],
    ),
    Target(
        "tags",
        ("headrace.store.history.address", "headrace.store.history.small_file"),
        run_tags,
        lambda: [address.TAGS.encode({"one": address.Tag(1, 7), "two": address.Tag(2, 9)})],
        mutate=within_json,
    ),
]
