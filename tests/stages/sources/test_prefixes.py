"""What a source says of the bytes that it has read of a fragment, so that they can be known again."""

from __future__ import annotations

import gzip
import json
import pathlib
from dataclasses import replace
from itertools import islice

import pytest
import xxhash

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import ContentAnswer, Prefix
from headrace.stages.sources import base
from headrace.stages.sources.mixed import MixedSource
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.store.open import open_store
from tests.kits.inputs import files
from tests.kits.store.s3_server import shared_server

LINES = b"".join(json.dumps({"id": index, "text": "x" * 1000}).encode() + b"\n" for index in range(200))


def source_of(place: str) -> MixedSource:
    return MixedSource("read", [place], batch_records=10, batch_bytes=20_000)


def place_of(tmp_path: pathlib.Path, where: str, name: str, data: bytes) -> str:
    if where == "file":
        files.write(tmp_path / name, data)
        return str(tmp_path)
    uri = shared_server().uri(f"prefixes-{tmp_path.name}")
    open_store(uri).create(name, [data])
    return uri


@pytest.mark.parametrize("where", ["file", "s3"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_source_knows_the_bytes_in_which_lies_what_it_gave(tmp_path: pathlib.Path, where: str, name: str) -> None:
    data = gzip.compress(LINES, 1, mtime=0) if name.endswith("gz") else LINES
    source = source_of(place_of(tmp_path, where, name, data))
    (fragment,) = [item for item in source.list() if item is not None]
    assert source.prefix(fragment) is None
    read = source.read(fragment, [Gap(0, UNBOUNDED, 0)])
    given = [item for item in islice(read, 5) if isinstance(item, Batch)]
    prefix = source.prefix(fragment)
    assert prefix is not None
    assert prefix.checksum == xxhash.xxh3_128_digest(data[: prefix.size])
    if name == "a.jsonl":
        assert prefix.size >= given[-1].offset + given[-1].length
    *_, answer = source.compare(replace(fragment, size=prefix.size, end=-1))
    assert answer == ContentAnswer(prefix.checksum)


def test_a_source_that_reads_on_counts_what_lies_before(tmp_path: pathlib.Path) -> None:
    place = place_of(tmp_path, "file", "a.jsonl", LINES)
    (fragment,) = [item for item in source_of(place).list() if item is not None]
    whole = [item for item in source_of(place).read(fragment, [Gap(0, UNBOUNDED, 0)]) if isinstance(item, Batch)]
    ends = [batch.offset + batch.length for batch in whole]
    source = source_of(place)
    read = source.read(fragment, [Gap(20, 30, ends[1]), Gap(60, UNBOUNDED, ends[5])])
    seen = [item for item in islice(read, 2) if isinstance(item, Batch)]
    assert [item.first for item in seen] == [20, 60]
    prefix = source.prefix(fragment)
    assert prefix is not None
    assert prefix == Prefix(prefix.size, xxhash.xxh3_128_digest(LINES[: prefix.size]))
    assert prefix.size >= ends[6]


def test_a_source_that_reads_on_far_behind_says_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "FETCHED_BYTES_MAX", 1000)
    source = source_of(place_of(tmp_path, "file", "a.jsonl", LINES))
    (fragment,) = [item for item in source.list() if item is not None]
    batches = [item for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]) if isinstance(item, Batch)]
    for gaps in ([], [Gap(0, 10, 0)]):
        read = source.read(fragment, [*gaps, Gap(100, UNBOUNDED, batches[10].offset)])
        assert len(list(islice(read, len(gaps) + 1))) == len(gaps) + 1
        assert source.prefix(fragment) is None


def test_a_source_says_nothing_of_another_version_than_it_read(tmp_path: pathlib.Path) -> None:
    source = source_of(place_of(tmp_path, "file", "a.jsonl", LINES))
    (fragment,) = [item for item in source.list() if item is not None]
    next(iter(source.read(fragment, [Gap(0, UNBOUNDED, 0)])))
    assert source.prefix(replace(fragment, version="v2")) is None
