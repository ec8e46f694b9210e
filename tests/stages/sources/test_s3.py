"""Input from a real S3 server: every format, and a run from the command line."""

from __future__ import annotations

import gzip
import io
import itertools
import pathlib
import secrets
import threading
import time

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.chaos.gates.s3 import S3Proxy
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import FragmentEnd
from headrace.stages.runtime.errors import FragmentChanged, InputError
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects.inputs import Inputs
from headrace.stages.sources.objects.streams import BLOCK_BYTES
from headrace.stages.sources.tables.columns import ParquetSource
from headrace.store.contract.errors import StoreError
from headrace.store.open import open_store
from tests.kits.inputs import files, reading
from tests.kits.store.s3_server import S3Server, shared_server
from tests.run.inputs.test_runs import balance, run

#: For a request to arrive.
FETCH_S_MAX = 60.0


@pytest.fixture(scope="module")
def server() -> S3Server:
    return shared_server()


@pytest.fixture
def prefix(server: S3Server, tmp_path: pathlib.Path) -> str:
    """A prefix that holds a file of each format."""
    name = secrets.token_hex(6)
    store = open_store(server.uri(name))
    store.create("a.jsonl", [files.lines()])
    store.create("b.jsonl.gz", [gzip.compress(files.lines())])
    store.create("c/train-00000.parquet", [files.parquet_of(tmp_path / "c.parquet").read_bytes()])
    store.create("d.warc.gz", [files.members(files.warc())])
    store.create("e.txt", [b"plain"])
    return name


def uri(server: S3Server, path: str) -> str:
    return server.uri(path)


def test_every_format_is_read_from_a_bucket_with_any_gaps(server: S3Server, prefix: str) -> None:
    source = MixedSource("read", [uri(server, prefix)], fragment_bytes=1024, batch_bytes=400)
    found = reading.read_all(source)
    assert len(found) == 3 * 60 + 22 + 1
    assert [fate[2] for fate in found if fate[0] == "kept"][-1] == "plain"
    reading.check_gaps(source, rounds=3)


def test_a_glob_over_keys_and_an_exact_key(server: S3Server, prefix: str) -> None:
    found = [item.uri for item in Inputs([uri(server, f"{prefix}/*.jsonl*")], ())]
    assert found == [f"s3://{server.bucket}/{prefix}/{name}" for name in ("a.jsonl", "b.jsonl.gz")]
    assert len(list(Inputs([uri(server, f"{prefix}/a.jsonl")], ()))) == 1
    with pytest.raises(InputError, match="no file matches"):
        list(Inputs([uri(server, f"{prefix}/nope*.jsonl")], ()))


def test_an_object_that_was_replaced_is_refused(server: S3Server, prefix: str) -> None:
    source = MixedSource("read", [uri(server, f"{prefix}/a.jsonl")])
    (fragment,) = source.list()
    open_store(server.uri(prefix)).replace("a.jsonl", [files.lines()[::-1]])
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.read(fragment, reading.WHOLE))


def test_an_object_is_read_by_one_request_a_block_and_none_besides(server: S3Server, prefix: str) -> None:
    with S3Proxy(server.endpoint) as proxy:
        for name, records in (("a.jsonl", 60), ("b.jsonl.gz", 60), ("d.warc.gz", 22), ("e.txt", 1)):
            source = MixedSource("read", [f"s3://{server.bucket}/{prefix}/{name}?endpoint={proxy.endpoint}"])
            (fragment,) = source.list()
            proxy.seen.clear()
            *batches, end = source.read(fragment, reading.WHOLE)
            assert isinstance(end, FragmentEnd)
            assert (end.count, len(end.checksum)) == (records, 16)
            assert sum(batch.count for batch in batches if isinstance(batch, Batch)) == records
            assert [line.split("?")[0] for line in proxy.seen] == [f"GET /{server.bucket}/{prefix}/{name}"]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "d.warc.gz", "e.txt"])
def test_what_is_read_next_is_fetched_early_and_once(server: S3Server, prefix: str, name: str) -> None:
    with S3Proxy(server.endpoint) as proxy:
        source = MixedSource("read", [f"s3://{server.bucket}/{prefix}/{name}?endpoint={proxy.endpoint}"])
        (fragment,) = source.list()
        alone = [item.rows for item in source.read(fragment, reading.WHOLE) if isinstance(item, Batch)]
        proxy.seen.clear()
        source.expect(fragment, reading.WHOLE)
        source.expect(fragment, reading.WHOLE)
        deadline = time.monotonic() + FETCH_S_MAX
        while not proxy.seen:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        found = [item.rows for item in source.read(fragment, reading.WHOLE) if isinstance(item, Batch)]
        assert found == alone
        assert [line.split("?")[0] for line in proxy.seen] == [f"GET /{server.bucket}/{prefix}/{name}"]


def test_what_was_fetched_of_a_replaced_object_is_refused(server: S3Server, prefix: str) -> None:
    source = MixedSource("read", [uri(server, f"{prefix}/e.txt")])
    (fragment,) = source.list()
    open_store(server.uri(prefix)).replace("e.txt", [b"another text"])
    source.expect(fragment, reading.WHOLE)
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.read(fragment, reading.WHOLE))


def test_a_parquet_file_is_read_by_one_request_a_row_group(server: S3Server) -> None:
    key = f"{secrets.token_hex(6)}/c.parquet"
    texts = [secrets.token_hex(50_000) for _ in range(12)]
    packed = io.BytesIO()
    pq.write_table(pa.table({"id": [str(n) for n in range(12)], "text": texts}), packed, row_group_size=4)
    open_store(server.uri(key.partition("/")[0])).create("c.parquet", [packed.getvalue()])
    with S3Proxy(server.endpoint) as proxy:
        source = MixedSource("read", [f"s3://{server.bucket}/{key}?endpoint={proxy.endpoint}"])
        (fragment,) = source.list()
        at_file = [line.partition(" ")[0] for line in proxy.seen if line.endswith(key)]
        assert at_file == ["HEAD", "GET"], "the key was looked for, and its footer read"
        proxy.seen.clear()
        *batches, end = source.read(fragment, reading.WHOLE)
        assert end == FragmentEnd(12)
        found = [batch.rows.column("text").to_pylist() for batch in batches if isinstance(batch, Batch)]
        assert list(itertools.chain(*found)) == texts
        assert [line.partition(" ")[0] for line in proxy.seen] == ["HEAD", *["GET"] * 4], "the footer, and three groups"


def test_a_large_row_group_is_read_by_column_blocks_once(server: S3Server) -> None:
    prefix = secrets.token_hex(6)
    texts = [secrets.token_hex(2_000) for _ in range(3_000)]
    others = [secrets.token_hex(300) for _ in range(3_000)]
    packed = io.BytesIO()
    table = pa.table({"id": [f"r{n}" for n in range(3_000)], "text": texts, "other": others})
    pq.write_table(table, packed, compression="none", use_dictionary=False)
    group = pq.ParquetFile(packed).metadata.row_group(0)
    sizes = [group.column(number).total_compressed_size for number in range(3)]
    assert sizes[1] > BLOCK_BYTES > sizes[2]
    open_store(server.uri(prefix)).create("c.parquet", [packed.getvalue()])
    with S3Proxy(server.endpoint) as proxy:
        source = MixedSource("read", [f"s3://{server.bucket}/{prefix}/c.parquet?endpoint={proxy.endpoint}"])
        (fragment,) = source.list()
        proxy.seen.clear()
        batches = [item for item in source.read(fragment, reading.WHOLE) if isinstance(item, Batch)]
        rows = [row for batch in batches for row in batch.rows.to_pylist()]
        assert [row["text"] for row in rows] == texts
        assert [orjson.loads(row["metadata"])["other"] for row in rows] == others
        seen = [line.partition(" ")[0] for line in proxy.seen]
        of_columns = ["GET"] * sum(-(-size // BLOCK_BYTES) for size in sizes)
        assert seen == ["HEAD", "GET", *of_columns, "GET"], (
            "the footer, the columns, and the first bytes to the checksum"
        )


def test_a_replaced_parquet_file_is_refused_at_listing_and_reading(server: S3Server) -> None:
    prefix = secrets.token_hex(6)
    store = open_store(server.uri(prefix))

    def put(text: str) -> None:
        packed = io.BytesIO()
        pq.write_table(pa.table({"text": [text]}), packed)
        store.replace("c.parquet", [packed.getvalue()])

    put("one")
    source = ParquetSource("read", [uri(server, f"{prefix}/c.parquet")])
    (listed,) = source.inputs
    (fragment,) = source.list()
    put("two")
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.fragments(listed))
    with pytest.raises(FragmentChanged, match="has changed since it was listed"):
        list(source.read(fragment, reading.WHOLE))


def test_a_bucket_that_is_not_there_is_named(server: S3Server) -> None:
    with pytest.raises((StoreError, InputError), match="nobody-has-this"):
        list(MixedSource("read", [f"s3://nobody-has-this/*.jsonl?endpoint={server.endpoint}"]).list())


def test_a_run_reads_a_bucket_and_writes_a_folder(server: S3Server, prefix: str, tmp_path: pathlib.Path) -> None:
    report = balance(run(tmp_path, uri(server, prefix)))
    assert (report["kept"], report["filtered"]) == (3 * 60 + 20 + 1, 2)
