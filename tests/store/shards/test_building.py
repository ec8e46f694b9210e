"""Shards that are written window by window: the bytes of those that are built in memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.store.files.scratch import Scratch, ScratchDraft
from headrace.store.shards import builder
from headrace.store.shards.builder import Documents, ScratchTokens, ShardLayout, build_tokens, write_tokens

METADATA = {"dataset": "books"}


def _draft() -> ScratchDraft:
    def no_object(_key: str) -> bool:
        raise AssertionError("nobody makes this an object")

    return ScratchDraft(Scratch.in_memory(), no_object, lambda error: error)


def _written(draft: ScratchDraft) -> bytes:
    return b"".join(bytes(piece) for piece in draft.pieces())


def _in_scratch(documents: list[list[int]], order: list[int], files: int, kind: np.dtype[Any]) -> Documents:
    """The documents in several files, each in the one and at the place that `order` gives it."""
    scratches = [Scratch.in_memory() for _ in range(files)]
    begin = np.zeros(len(documents), np.int64)
    source = np.array([index % files for index in range(len(documents))], np.int64)
    for index in order:
        data = np.array(documents[index], kind)
        begin[index] = scratches[source[index]].append(data.tobytes()) // kind.itemsize
    lengths = np.array([len(document) for document in documents], np.int64)
    return Documents(lengths, [ScratchTokens(file, kind) for file in scratches], source, begin)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), max_size=40), max_size=30),
    seq_len=st.integers(2, 17),
    overlap=st.integers(0, 1),
    files=st.integers(1, 3),
    window_bytes=st.sampled_from([1, 64, 4096]),
    apart_bytes=st.sampled_from([0, 16, 1 << 20]),
    wide=st.booleans(),
    blocks=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_a_shard_from_scratch_files_has_the_bytes_of_one_from_memory(
    monkeypatch: pytest.MonkeyPatch,
    documents: list[list[int]],
    seq_len: int,
    overlap: int,
    files: int,
    window_bytes: int,
    apart_bytes: int,
    wide: bool,
    blocks: bool,
    random: Any,
) -> None:
    monkeypatch.setattr(builder, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(builder, "APART_BYTES", apart_bytes)
    monkeypatch.setattr(builder, "READ_AHEAD_BYTES", 32)
    kind = np.dtype(np.uint32 if wide else np.uint16)
    layout = ShardLayout(seq_len, kind, 9, METADATA, overlap, blocks)
    order = list(range(len(documents)))
    random.shuffle(order)
    draft = _draft()
    built = write_tokens(draft, _in_scratch(documents, order, files, kind), layout)
    flat = np.array([token for document in documents for token in document], np.uint32)
    expected = build_tokens(
        flat,
        [len(document) for document in documents],
        seq_len=seq_len,
        dtype=kind,
        pad_id=9,
        metadata=METADATA,
        overlap=overlap,
        blocks=blocks,
    )
    assert _written(draft) == b"".join(expected.parts)
    assert (built.size, built.tokens) == (expected.size, expected.tokens)


def test_more_blocks_than_their_limit_are_larger_in_a_draft_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.store.shards.core import blocks

    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "BLOCKS_MAX", 4)
    documents = [list(range(100)), [7] * 33]
    kind = np.dtype(np.uint32)
    draft = _draft()
    write_tokens(draft, _in_scratch(documents, [1, 0], 1, kind), ShardLayout(8, kind, 9, METADATA))
    flat = np.array(documents[0] + documents[1])
    expected = build_tokens(flat, [100, 33], seq_len=8, dtype=kind, pad_id=9, metadata=METADATA)
    assert _written(draft) == b"".join(expected.parts)
