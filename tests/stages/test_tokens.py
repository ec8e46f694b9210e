from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from safetensors.numpy import load_file

from headrace.stages.batch import QUARANTINED, Batch, make_verdicts
from headrace.stages.errors import StageContractError
from headrace.stages.tokenizer import Tokenize
from headrace.stages.tokens import TokenSink
from headrace.stages.vocabulary import resolve_tokenizer
from headrace.store.entries import Closed, Counts, StoredObject
from headrace.store.objects import open_store
from headrace.worker.rebuild import _written

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
    """Each document's tokens, by what docs/format.md says and nothing else."""
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


def test_a_shard_of_before_the_checksums_of_blocks_is_made_again_as_it_was(
    tmp_path: pathlib.Path, batch_of: MakeBatch
) -> None:
    batches = [with_tokens(batch_of(["a", "b"]), [[1, 2, 3], [4, 5]])]
    store = open_store(str(tmp_path))
    older = sink()
    older.blocks = False
    for writer in (older, sink()):
        named = {item.role: item for item in writer.write(batches, store, "shards/0/").objects}
        closed = Closed("write", "", 0, (), tuple(named.values()), Counts())
        assert _written(sink(), batches, open_store(str(tmp_path / "scratch")), closed, named) == named
