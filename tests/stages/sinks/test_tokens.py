from __future__ import annotations

import errno
import os
import pathlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from safetensors.numpy import load_file

from headrace.stages.runtime.batch import QUARANTINED, Batch, make_verdicts
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sinks.tokens import TokenSink
from headrace.stages.tokenizer.tokenize import Tokenize
from headrace.stages.tokenizer.vocabulary import resolve_tokenizer
from headrace.store.files import scratch
from headrace.store.ledger.core.entries import Closed
from headrace.store.ledger.core.fragments import Counts, Range, StoredObject
from headrace.store.open import open_store
from headrace.store.shards.builder import WINDOW_BYTES
from headrace.worker.rebuild.shard_rebuild import _written
from headrace.worker.task.batch.coverage import part
from headrace.worker.task.codec import batch_to_frame, frame_to_batch

MakeBatch = Callable[..., Batch]


def sink(**parameters: Any) -> TokenSink:
    given = {"seq_len": 16, "vocab_size": 300, "pad_id": 9, "eos_id": None, "tokenizer_sha256": "ab", **parameters}
    return TokenSink("write", **given)


def with_tokens(batch: Batch, lists: list[list[int]]) -> Batch:
    rows = pa.RecordBatch.from_arrays(
        [batch.rows.column(0), batch.rows.column(1), pa.array(lists, pa.list_(pa.uint32()))], ["__row", "id", "tokens"]
    )
    return batch.with_rows(rows)


def quarantine_last(batch: Batch) -> Batch:
    last = batch.rows.slice(batch.rows.num_rows - 1)
    verdicts = make_verdicts(
        rows=last.column("__row"),
        ids=last.column("id"),
        stage="read",
        verdict=QUARANTINED,
        reasons=["malformed JSON: here"],
        raw=[b"\xff{"],
    )
    return replace(batch, rows=batch.rows.slice(0, batch.rows.num_rows - 1), verdicts=verdicts)


def by_role(objects: tuple[StoredObject, ...], folder: pathlib.Path) -> dict[str, pathlib.Path]:
    return {item.role: folder / item.key for item in objects}


def documents_of(path: pathlib.Path) -> list[list[int]]:
    """Each document's tokens, by what docs/reference/format.md says and nothing else."""
    shard = load_file(path)
    documents: dict[int, list[int]] = {}
    for sequence, start, length, document in zip(
        shard["piece_sequence"], shard["piece_start"], shard["piece_length"], shard["piece_document"], strict=True
    ):
        documents.setdefault(int(document), []).extend(shard["tokens"][sequence, start : start + length].tolist())
    return [documents[index] for index in sorted(documents)]


def test_a_shard_gives_back_each_text_token_for_token(
    deepseek: pathlib.Path, tmp_path: pathlib.Path, batch_of: MakeBatch
) -> None:
    facts = resolve_tokenizer(str(deepseek))
    stage = Tokenize("tokenize", facts.path, facts.sha256, facts.eos_id)
    writer = sink(vocab_size=facts.vocab_size, pad_id=facts.pad_id, eos_id=facts.eos_id)
    texts = [f"document {index} " * (index % 40) for index in range(100)]
    batches = [stage.process(batch_of(texts[low : low + 30], first=low)) for low in range(0, 100, 30)]
    shard = writer.write(batches[::-1], open_store(str(tmp_path)), "shards/3/")
    paths = by_role(shard.objects, tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(deepseek))
    expected = [[*reference.encode(text, add_special_tokens=False).ids, facts.eos_id] for text in texts]
    assert documents_of(paths["tokens"]) == expected
    table = pq.read_table(paths["documents"])
    assert table.column("row").to_pylist() == list(range(100))
    assert table.column("tokens").to_pylist() == [len(tokens) for tokens in expected]
    assert table.column("id").to_pylist() == [f"r{index}" for index in range(100)]
    assert shard.counts.tokens == sum(map(len, expected)) == sum(map(writer.measure, batches)) // 4


def test_the_order_in_which_batches_arrived_does_not_matter(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batches = [with_tokens(batch_of(["a", "b"], first=first), [[first], [1, 2]]) for first in (0, 2, 4)]
    store = open_store(str(tmp_path))
    assert sink().write(batches, store, "s/").objects == sink().write(batches[::-1], store, "s/").objects


def test_a_small_vocabulary_takes_two_bytes_a_token(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batch = with_tokens(batch_of(["a"]), [[65535]])
    store = open_store(str(tmp_path))
    for size, kind in ((1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)):
        writer = sink(vocab_size=size)
        paths = by_role(writer.write([batch], store, "s/").objects, tmp_path)
        assert load_file(paths["tokens"])["tokens"].dtype == kind
        assert writer.measure(batch) == np.dtype(kind).itemsize


def test_verdicts_and_raw_records_lie_in_sidecars(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batch = quarantine_last(with_tokens(batch_of(["a", "b", "c"]), [[1], [2, 3], [4]]))
    shard = sink().write([batch], open_store(str(tmp_path)), "shards/0/")
    paths = by_role(shard.objects, tmp_path)
    assert paths["quarantine"].parent == tmp_path / "quarantine" / "0"
    (lost,) = pq.read_table(paths["verdicts"]).to_pylist()
    assert (lost["row"], lost["verdict"], lost["fragment"]) == (2, "quarantined", batch.fragment.hex())
    (raw,) = pq.read_table(paths["quarantine"]).to_pylist()
    assert (raw["raw"], raw["id"]) == (b"\xff{", "r2")
    assert (shard.counts.kept, shard.counts.quarantined) == (2, 1)
    assert shard.counts.quarantined_by == {"read/malformed JSON": 1}


def test_a_shard_without_kept_records_is_whole(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batch = quarantine_last(with_tokens(batch_of(["a"]), [[1]]))
    shard = sink().write([batch], open_store(str(tmp_path)), "s/")
    paths = by_role(shard.objects, tmp_path)
    assert load_file(paths["tokens"])["tokens"].shape == (0, 16)
    assert pq.read_table(paths["documents"]).num_rows == 0
    assert shard.counts.records == 1


def test_objects_are_named_by_their_bytes(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    import xxhash

    shard = sink().write([with_tokens(batch_of(["a"]), [[1]])], open_store(str(tmp_path)), "s/")
    for item in shard.objects:
        data = (tmp_path / item.key).read_bytes()
        assert item.checksum == f"xxh3-128:{xxhash.xxh3_128(data).hexdigest()}"
        assert item.checksum.partition(":")[2] in item.key
        assert item.size == len(data)


def test_records_without_tokens_are_a_fault_of_the_pipeline(batch_of: MakeBatch) -> None:
    with pytest.raises(StageContractError, match="put tokenize"):
        sink().measure(batch_of(["a"]))


def test_a_shard_without_block_checksums_is_made_again_equal(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batches = [with_tokens(batch_of(["a", "b"]), [[1, 2, 3], [4, 5]])]
    store = open_store(str(tmp_path))
    older = sink()
    older.has_ids = older.blocks = False
    for writer in (older, sink()):
        named = {item.role: item for item in writer.write(batches, store, "shards/0/").objects}
        closed = Closed("write", "", 0, (), tuple(named.values()), Counts())
        assert _written(sink(), batches, open_store(str(tmp_path / "scratch")), closed, named) == named


def test_a_spilled_batch_gives_the_shard_that_it_gives_unshelved(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    store = open_store(str(tmp_path))
    batches = [
        with_tokens(batch_of(["a", "b", "c"], first=first), [[first] * 40, [], [1, 2, 3]]) for first in (0, 3, 6)
    ]
    for size in (1, 1 << 20):  # a scratch file for each batch, and one for all
        writer = sink(shard_bytes=size)
        spilled = [writer.spill(batch, store) for batch in batches[::-1]]
        assert len({id(batch.scratch) for batch in spilled}) == (3 if size == 1 else 1)
        assert sink().write(spilled, store, "s/") == sink().write(batches, store, "s/")
        assert sink().write([batches[0], *spilled[:2]], store, "s/") == sink().write(batches, store, "s/")


def test_of_a_spilled_batch_parts_may_be_cut_out(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    store = open_store(str(tmp_path))
    batch = with_tokens(batch_of(["a", "b", "c", "d"]), [[1], [2, 2], [3, 3, 3], [4]])
    left = [Range(batch.fragment, 0, 1), Range(batch.fragment, 2, 2)]
    spilled = sink().spill(batch, store)
    expected = sink().write([part(batch, item) for item in left], store, "s/")
    assert sink().write([part(spilled, item) for item in left], store, "s/") == expected


def test_a_spilled_batch_leaves_no_token_in_memory(tmp_path: pathlib.Path, batch_of: MakeBatch) -> None:
    batch = frame_to_batch(batch_to_frame(with_tokens(batch_of(["a", "b"]), [[1] * 10_000, [2] * 10_000]), 0))
    spilled = sink(vocab_size=1 << 17).spill(batch, open_store(str(tmp_path)))
    assert batch.rows.get_total_buffer_size() > 80_000
    assert spilled.rows.get_total_buffer_size() < 1_000
    assert spilled.scratch is not None
    assert spilled.scratch.size == 80_000


def test_what_a_full_disk_does_not_take_is_gathered_in_memory(
    tmp_path: pathlib.Path, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "FREE_BYTES_MIN", 0)
    store = open_store(str(tmp_path))
    writer, write, taken = sink(), os.pwrite, []
    batches = [with_tokens(batch_of(["a"], first=first), [[first] * 5]) for first in (0, 1, 2)]

    def fills(descriptor: int, data: memoryview, offset: int) -> int:
        if str(tmp_path) not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return write(descriptor, data, offset)
        if taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(offset)
        return write(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fills)
        spilled = [writer.spill(batch, store) for batch in batches]
    assert len({id(batch.scratch) for batch in spilled}) == 2
    assert writer.write(spilled, store, "s/") == sink().write(batches, store, "s/")


def test_a_shard_is_gathered_and_written_in_less_memory_than_it_has(
    tmp_path: pathlib.Path, batch_of: MakeBatch
) -> None:
    writer, store = sink(seq_len=2048, vocab_size=1 << 17), open_store(str(tmp_path))
    counts = [100, 5_000, 30_000, 900] * 8
    spilled: list[Batch] = []
    before_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for first in range(0, 8 * len(counts), len(counts)):
            tokens = np.arange(sum(counts), dtype=np.uint32)
            offsets = np.concatenate(([0], np.cumsum(counts)))
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens))
            batch = batch_of(["x"] * len(counts), first=first)
            rows = pa.RecordBatch.from_arrays(
                [batch.rows.column(0), batch.rows.column(1), lists], ["__row", "id", "tokens"]
            )
            spilled.append(writer.spill(batch.with_rows(rows), store))
        del tokens, lists, batch, rows
        tracemalloc.reset_peak()
        arrow_bytes = pa.total_allocated_bytes() - before_bytes
        shard = writer.write(spilled, store, "s/")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = next(item.size for item in shard.objects if item.role == "tokens")
    assert size > 2 * WINDOW_BYTES
    assert peak_bytes < WINDOW_BYTES + (3 << 20)
    assert arrow_bytes < 1 << 20
