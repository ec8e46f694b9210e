"""Objects of a real S3 server that stand in another version: their bytes are compared as those of files are."""

from __future__ import annotations

import gzip
import io
import pathlib
import secrets
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from minio import Minio
from minio.datatypes import Part

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import FragmentEnd
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects import streams
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.store.open import open_store
from tests.kits.inputs import files, reading
from tests.kits.store.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, shared_server
from tests.stages.sources.test_altered import report, run, state

NAMES = ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.warc.gz", "e.txt")


@pytest.fixture(scope="module")
def server() -> S3Server:
    return shared_server()


def contents(tmp_path: pathlib.Path) -> dict[str, bytes]:
    packed = [
        files.lines(),
        gzip.compress(files.lines(), mtime=0),
        files.parquet_of(tmp_path / "c.parquet").read_bytes(),
    ]
    return dict(zip(NAMES, [*packed, files.members(files.warc()), b"plain"], strict=True))


def put_in_parts(server: S3Server, key: str, data: bytes) -> None:
    """The object in one part of an upload in parts, whose ETag is not that of an upload as a whole."""
    client = Minio(server.endpoint.partition("//")[2], ACCESS_KEY, SECRET_KEY, secure=False)
    upload = client._create_multipart_upload(server.bucket, key, {})
    tag = client._upload_part(server.bucket, key, data, None, upload, 1)
    client._complete_multipart_upload(server.bucket, key, upload, [Part(1, tag)])


def test_objects_put_again_are_the_same_unless_bytes_differ(server: S3Server, tmp_path: pathlib.Path) -> None:
    name, held = secrets.token_hex(6), contents(tmp_path)
    store = open_store(server.uri(name))
    for key, data in held.items():
        store.create(key, [data])
    options = ("-p", f"input={server.uri(name)}")
    first = report(tmp_path, *options)
    assert all(fragment.checksum for fragment in state(tmp_path).fragments.values())
    versions = {info.key: info.version for info in store.list("")}
    for key, data in held.items():
        put_in_parts(server, f"{name}/{key}", data)
    assert not versions.items() & {info.key: info.version for info in store.list("")}.items(), "each has another ETag"
    again = report(tmp_path, *options)
    assert (again["kept"], again["bytes_read"], again["warnings"]) == (first["kept"], 0, [])
    assert len(state(tmp_path).seen) == len(NAMES)
    spoilt = bytearray(held["c.parquet"])
    spoilt[len(spoilt) // 2] ^= 1
    put_in_parts(server, f"{name}/c.parquet", bytes(spoilt))
    halted = run(tmp_path, *options)
    assert halted.returncode == 1
    assert f"s3://{server.bucket}/{name}/c.parquet" in halted.stderr
    assert "it holds other bytes than when it was read" in halted.stderr


def ends(source: MixedSource, fragment: Fragment, gaps: Sequence[Gap]) -> FragmentEnd:
    *_, end = source.read(fragment, gaps)
    assert isinstance(end, FragmentEnd)
    return end


def test_parquet_of_a_store_has_the_checksum_that_its_file_has(
    server: S3Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # row groups that are fetched as a whole, and larger ones whose columns are fetched beside one another
    monkeypatch.setattr(streams, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr("headrace.stages.sources.tables.columns.BLOCK_BYTES", 1 << 16)
    packed = io.BytesIO()
    texts = {f"text {letter}".strip(): [secrets.token_hex(100) for _ in range(900)] for letter in "ab"}
    table = pa.table({"text": texts["text a"], **texts})
    with pq.ParquetWriter(packed, table.schema, compression="none") as writer:
        for rows in (20, 400, 300, 20, 60):
            writer.write_table(table.slice(0, rows))
    prefix = secrets.token_hex(6)
    open_store(server.uri(prefix)).create("c.parquet", [packed.getvalue()])
    files.write(tmp_path / "c.parquet", packed.getvalue())
    there = MixedSource("read", [server.uri(prefix)], fragment_bytes=200_000)
    here = MixedSource("read", [str(tmp_path / "c.parquet")], fragment_bytes=200_000)
    pairs = list(zip(filter(None, there.list()), filter(None, here.list()), strict=True))
    assert len(pairs) > 1
    for remote, local in pairs:
        end = ends(there, remote, reading.WHOLE)
        assert end.checksum
        assert end.checksum == ends(here, local, reading.WHOLE).checksum
        assert end.checksum == next(item.checksum for item in there.compare(remote) if item is not None)


@pytest.mark.parametrize("name", NAMES[:4])
def test_an_object_read_from_its_middle_has_a_checksum(
    server: S3Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prefix, data = secrets.token_hex(6), contents(tmp_path)[name]
    open_store(server.uri(prefix)).create(name, [data])
    source = MixedSource("read", [server.uri(prefix)], batch_bytes=200)
    (fragment,) = filter(None, source.list())
    batches = [item for item in source.read(fragment, reading.WHOLE) if isinstance(item, Batch)]
    middle = batches[len(batches) // 2]
    whole = ends(source, fragment, reading.WHOLE).checksum
    assert whole
    assert ends(source, fragment, [Gap(middle.first, UNBOUNDED, middle.offset)]).checksum == whole
    assert ends(source, fragment, [Gap(0, 2, 0), Gap(middle.first, UNBOUNDED, middle.offset)]).checksum == whole
    monkeypatch.setattr(streams, "FETCHED_BYTES_MAX", -1)
    assert ends(source, fragment, [Gap(middle.first, UNBOUNDED, middle.offset)]).checksum in (b"", whole)
