"""The sinks of text: what they write is what was kept, and the dataset is sound without tokens."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import orjson
import pyarrow as pa
import pytest

from headrace.stages.batch import Batch
from headrace.stages.errors import StageContractError
from headrace.stages.texts import DocumentSink, JsonlSink
from headrace.store.objects import open_store
from headrace.store.shards import read_table


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
    assert sorted(objects) == ["documents", "verdicts"]
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
    monkeypatch.setattr("headrace.stages.texts.FRAME_BYTES", 60)
    store = open_store(str(tmp_path))
    shard = JsonlSink("lines").write(two(batch_of), store, "shards/1/")
    (lines,) = [item for item in shard.objects if item.role == "lines"]
    with pa.CompressedInputStream(pa.OSFile(str(tmp_path / lines.key)), "zstd") as file:
        records = [orjson.loads(line) for line in file.read().splitlines()]
    assert records[1] == {"id": "r2", "text": "c\n", "metadata": {"n": 1}}
    assert [record["text"] for record in records] == ["a", "c\n", "d", "e", ""]


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
