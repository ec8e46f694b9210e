"""The sinks of text: what they write is what was kept, and the dataset is sound without tokens."""

from __future__ import annotations

import pathlib
import random
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.stages.library import read, read_jsonl
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage
from headrace.stages.runtime.contract import WrittenShard
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sinks.sidecars import create_object, documents_table
from headrace.stages.sinks.texts import DocumentSink, JsonlSink, TextLayout
from headrace.store.contract.objects import Buffer
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed
from headrace.store.ledger.core.fragments import Counts
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.store.open import open_store
from headrace.store.shards.sidecars import read_table, table_to_parquet
from headrace.worker.rebuild.shard_rebuild import _written


def two(batch_of: Callable[..., Batch]) -> list[Batch]:
    """Six records, one of them filtered."""
    first = batch_of(["a", "bé", "c\n"])
    return [
        batch_of(["d", "e", ""], first=3),
        first.keep(np.array([True, False, True]), "short", [None, "short", None]),
    ]


def test_documents_hold_the_kept_text_in_order_and_verdicts_the_rest(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    store = open_store(str(tmp_path))
    sink = DocumentSink("documents")
    shard = sink.write(two(batch_of), store, "shards/1/")
    objects = {item.role: item for item in shard.objects}
    assert sorted(objects) == ["documents", "profile", "verdicts"]
    rows = read_table(store, objects["documents"].key).to_pylist()
    assert [(row["row"], row["id"], row["text"]) for row in rows] == [
        (0, "r0", "a"),
        (2, "r2", "c\n"),
        (3, "r3", "d"),
        (4, "r4", "e"),
        (5, "r5", ""),
    ]
    assert rows[0]["metadata"] == '{"n":1}'
    assert read_table(store, objects["verdicts"].key).column("row").to_pylist() == [1]
    assert (shard.counts.kept, shard.counts.filtered, shard.counts.tokens) == (5, 1, 0)
    assert sum(sink.measure(batch) for batch in two(batch_of)) > 0


def test_json_lines_are_read_back_by_any_zstd_and_hold_the_same(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stages.sinks.texts.FRAME_BYTES", 60)
    store = open_store(str(tmp_path))
    shard = JsonlSink("lines").write(two(batch_of), store, "shards/1/")
    (lines,) = [item for item in shard.objects if item.role == "lines"]
    with pa.CompressedInputStream(pa.OSFile(str(tmp_path / lines.key)), "zstd") as file:
        records = [orjson.loads(line) for line in file.read().splitlines()]
    assert records[1] == {"id": "r2", "text": "c\n", "metadata": {"n": 1}}
    assert [record["text"] for record in records] == ["a", "c\n", "d", "e", ""]


def test_written_json_lines_read_again_are_the_same_records(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    store = open_store(str(tmp_path))
    shard = JsonlSink("lines").write([batch_of(["d", "e", ""]), batch_of(["f"], first=3)], store, "shards/1/")
    (lines,) = [item for item in shard.objects if item.role == "lines"]
    declared = read(str(tmp_path / lines.key))
    for stage in (declared, read_jsonl(str(tmp_path / lines.key))):
        source = build_stage(stage, {})
        found = [item for fragment in source.list() for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)])]
        rows = [row for item in found if isinstance(item, Batch) for row in item.rows.to_pylist()]
        given = [*batch_of(["d", "e", ""]).rows.to_pylist(), *batch_of(["f"], first=3).rows.to_pylist()]
        columns = ("id", "text", "metadata")
        assert [[row[name] for name in columns] for row in rows] == [[row[name] for name in columns] for row in given]
        assert rows[0]["metadata"] == '{"n":1}'


class Noting(FileStore):
    """A bucket that notes which keys somebody wants to create."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.asked: list[str] = []

    @property
    def is_remote(self) -> bool:
        return True

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.asked.append(key)
        return super().create(key, parts)


def test_the_table_without_verdicts_is_stored_once_and_named(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    store = Noting(tmp_path)
    tables = []
    for first in (0, 1, 2):
        shard = DocumentSink("documents").write([batch_of(["a"], first=first)], store, "shards/1/")
        tables += [item.key for item in shard.objects if item.role == "verdicts"]
    assert len(set(tables)) == 1
    assert store.asked.count(tables[0]) == 1
    assert read_table(store, tables[0]).num_rows == 0


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_the_same_batches_in_any_order_give_the_same_objects(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], kind: type[DocumentSink | JsonlSink]
) -> None:
    batches = two(batch_of)
    written = [
        kind("sink").write(order, open_store(str(tmp_path / name)), "p/").objects
        for name, order in (("a", batches), ("b", batches[::-1]))
    ]
    assert written[0] == written[1]


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_a_shard_of_nothing_kept_is_a_shard(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], kind: type[DocumentSink | JsonlSink]
) -> None:
    batch = batch_of(["a"]).keep(np.array([False]), "short", ["short"])
    shard = kind("sink").write([batch], open_store(str(tmp_path)), "p/")
    assert (shard.counts.kept, shard.counts.filtered) == (0, 1)


def test_a_sink_of_text_behind_tokenize_says_where_it_belongs(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(["a"])
    without = batch.with_rows(batch.rows.drop_columns(["text"]))
    with pytest.raises(StageContractError, match=r"put it before tokenize\(\.\.\.\)"):
        DocumentSink("documents").measure(without)


def many(batch_of: Callable[..., Batch], sizes: list[int]) -> list[Batch]:
    """Sixty records in batches of these sizes, a third of them filtered."""
    batches: list[Batch] = []
    first = 0
    for size in sizes:
        batch = batch_of([f'{row} "quoted"\n' * (row % 7) for row in range(first, first + size)], first=first)
        mask = np.arange(first, first + size) % 3 > 0
        batches.append(batch.keep(mask, "third", [None if kept else "third" for kept in mask]))
        first += size
    return batches


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_equal_records_in_other_batches_give_equal_objects(
    tmp_path: pathlib.Path,
    batch_of: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[DocumentSink | JsonlSink],
) -> None:
    for name, value in (("ROW_GROUP_BYTES", 700), ("WINDOW_BYTES", 90), ("FRAME_BYTES", 400)):
        monkeypatch.setattr(f"headrace.stages.sinks.texts.{name}", value)
    written: list[WrittenShard] = []
    for number, sizes in enumerate(([60], [1] * 60, [7, 40, 13])):
        store, sink = open_store(str(tmp_path / str(number))), kind("sink", shard_bytes=500)
        batches = many(batch_of, sizes)
        written.append(sink.write(batches, store, "p/"))
        spilled = [sink.spill(batch, store) for batch in batches[::-1]]
        assert len({id(batch.scratch) for batch in spilled}) > 1 or number == 0
        written.append(sink.write(spilled, store, "p/"))
    assert all(shard == written[0] for shard in written)
    assert (written[0].counts.kept, written[0].counts.filtered) == (40, 20)


def test_a_row_group_ends_behind_the_record_with_which_it_is_full(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stages.sinks.texts.ROW_GROUP_BYTES", 20)
    store = open_store(str(tmp_path))
    shard = DocumentSink("documents").write([batch_of(["a" * 10, "b" * 10, "c", "d" * 99, "e"])], store, "p/")
    footer = pq.ParquetFile(tmp_path / shard.objects[0].key).metadata
    assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [2, 2, 1]


def test_a_row_group_ends_at_many_rows_however_short(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stages.sinks.texts.TEXT_GROUP_ROWS", 2)
    store = open_store(str(tmp_path))
    for kind in (DocumentSink, JsonlSink):
        objects = kind("sink").write([batch_of(["a", "b", "c", "d", "e"])], store, "p/").objects
        footer = pq.ParquetFile(tmp_path / next(item.key for item in objects if item.role == "documents")).metadata
        assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [2, 2, 1]


def test_a_table_within_a_row_group_has_its_memorys_bytes(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    for number, texts in enumerate((["a", "bé", "c\n"] * 50, [])):
        batches = [batch_of(texts)]
        table = documents_table(batches)
        table = table.append_column("text", pa.chunked_array([batches[0].rows.column("text")]))
        store = open_store(str(tmp_path / str(number)))
        key = DocumentSink("documents").write(batches, store, "p/").objects[0].key
        assert store.get(key) == table_to_parquet(table)


def test_a_shard_of_before_sinks_streamed_is_made_again_as_it_was(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stages.sinks.texts.ROW_GROUP_BYTES", 700)
    batches = many(batch_of, [20, 40])
    table = documents_table(batches)
    text = pa.chunked_array([batch.rows.column("text") for batch in batches])
    names = table.column("id").to_pylist()
    lines = [{"id": name, "text": one, "metadata": {"n": 1}} for name, one in zip(names, text.to_pylist(), strict=True)]
    frame = pa.Codec("zstd", compression_level=3).compress(
        b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines), asbytes=True
    )
    store = open_store(str(tmp_path))
    for kind, before in (
        (DocumentSink, {"documents": table_to_parquet(table.append_column("text", text), has_ids=False)}),
        (JsonlSink, {"documents": table_to_parquet(table, has_ids=False), "lines": frame}),
    ):
        now = {item.role: item for item in kind("sink").write(batches, store, "shards/0/").objects}
        assert any(store.get(now[role].key) != data for role, data in before.items())
        older = kind("sink")
        older.use_older_layout()
        named = {item.role: item for item in older.write(batches, store, "shards/0/").objects}
        for role, data in before.items():
            suffix = now[role].key.partition(".")[2]
            named[role] = create_object(store, role, "shards/0/", f".{suffix}", [data])
        closed = Closed("sink", "", 0, (), tuple(named.values()), Counts())
        assert _written(kind("sink"), batches, open_store(str(tmp_path / "again")), closed, named) == named
        assert _written(kind("sink"), batches, open_store(str(tmp_path / "again")), closed, now) == now


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_a_shard_of_larger_row_groups_is_made_again_as_it_was(
    tmp_path: pathlib.Path,
    batch_of: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[DocumentSink | JsonlSink],
) -> None:
    for name, value in (("ROW_GROUP_BYTES", 700), ("TEXT_GROUP_ROWS", 9), ("LARGER_GROUP_BYTES", 1400)):
        monkeypatch.setattr(f"headrace.stages.sinks.texts.{name}", value)
    batches = many(batch_of, [20, 40])
    store = open_store(str(tmp_path))
    older = kind("sink")
    while older.layout is not TextLayout.LARGER_GROUPS:
        assert older.use_older_layout()
    named = {item.role: item for item in older.write(batches, store, "shards/0/").objects}
    now = {item.role: item for item in kind("sink").write(batches, store, "shards/0/").objects}
    assert named["documents"] != now["documents"]
    closed = Closed("sink", "", 0, (), tuple(named.values()), Counts())
    assert _written(kind("sink"), batches, open_store(str(tmp_path / "again")), closed, named) == named


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_what_no_layout_gives_is_compared_with_the_newest(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], kind: type[DocumentSink | JsonlSink]
) -> None:
    batches = many(batch_of, [60])
    store = open_store(str(tmp_path))
    now = {item.role: item for item in kind("sink").write(batches, store, "shards/0/").objects}
    named = now | {"documents": create_object(store, "documents", "shards/0/", ".documents.parquet", [b"other"])}
    closed = Closed("sink", "", 0, (), tuple(named.values()), Counts())
    sink = kind("sink")
    assert _written(sink, batches, open_store(str(tmp_path / "again")), closed, named) == now
    assert not sink.use_older_layout()


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_a_shard_is_gathered_and_written_in_less_memory_than_it_has(
    tmp_path: pathlib.Path,
    batch_of: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[DocumentSink | JsonlSink],
) -> None:
    monkeypatch.setattr("headrace.stages.sinks.texts.ROW_GROUP_BYTES", 1 << 20)
    sink, store = kind("sink"), open_store(str(tmp_path))
    text = random.Random(1).randbytes(10_000).hex()
    spilled = [sink.spill(batch_of([text] * 25, first=first), store) for first in range(0, 1000, 25)]
    size = sum(sink.measure(batch_of([text])) for _ in range(1000))
    tracemalloc.start()
    try:
        shard = sink.write(spilled, store, "s/")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shard.counts.kept == 1000
    assert size > 19 << 20
    assert sum(batch.rows.get_total_buffer_size() for batch in spilled) < size / 100
    assert peak_bytes < 8 << 20
