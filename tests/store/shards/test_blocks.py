"""Checksums of blocks: any part of a shard can be held against the header, and the header against itself."""

import functools
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.store.contract.errors import FormatError
from headrace.store.shards.builder import build_tokens
from headrace.store.shards.core import blocks
from headrace.store.shards.core.blocks import BlockTable, block_bytes_for, describe_blocks, read_blocks, seal

METADATA = {"format": "headrace-tokens/1", "dataset": "books"}


@functools.cache
def shard(rows: int = 50, **arguments: bool) -> bytes:
    tokens = np.random.default_rng(rows).integers(3, 60_000, rows * 1000, dtype=np.uint32)
    lengths = [1000] * rows
    built = build_tokens(tokens, lengths, seq_len=1000, dtype=np.uint32, pad_id=1, metadata=METADATA, **arguments)
    return b"".join(built.parts)


def table_of(data: bytes) -> BlockTable | None:
    end = 8 + int.from_bytes(data[:8], "little")
    return read_blocks(data[8:end], json.loads(data[8:end])["__metadata__"], len(data))


def test_every_block_of_a_shard_is_right_and_together_whole() -> None:
    data = shard()
    table = table_of(data)
    assert table is not None
    spans = [table.span(number, number + 1) for number in range(table.count)]
    assert all(table.is_right(number, data[at : at + size]) for number, (at, size) in enumerate(spans))
    assert b"".join(data[at : at + size] for at, size in spans) == data[table.body :]
    assert table.span(0, table.count) == (table.body, len(data) - table.body)


@given(at=st.integers(0, 200_999), flip=st.integers(1, 255))
def test_any_changed_byte_is_found_in_the_header_or_in_its_block(at: int, flip: int) -> None:
    data = bytearray(shard())
    at %= len(data)
    data[at] ^= flip
    try:
        table = table_of(bytes(data))
    except (FormatError, ValueError, KeyError, UnicodeDecodeError):
        return
    if table is None:
        # the name of the field itself was hit: such a shard is read whole, and fails the ledger's checksum
        assert at < len(data) - 50 * 4000
        return
    number, _ = table.covering(at, at + 1)
    begin, size = table.span(number, number + 1)
    assert not table.is_right(number, bytes(data[begin : begin + size]))


def test_of_several_blocks_at_once_the_first_wrong_one_is_named() -> None:
    data = bytearray(shard())
    table = table_of(bytes(data))
    assert table is not None
    begin, size = table.span(1, table.count)
    assert table.first_wrong(1, memoryview(data)[begin:]) == (None, table.count - 1)
    for number in (table.count - 1, 2):
        data[table.span(number, number + 1)[0]] ^= 1
        assert table.first_wrong(1, memoryview(data)[begin : begin + size]) == (number, table.count - 1)


def test_a_shard_of_before_has_no_blocks() -> None:
    assert table_of(shard(blocks=False)) is None


def test_a_kind_that_is_not_known_is_read_whole() -> None:
    assert read_blocks(b"{}", {"blocks": "blake3/4096/00"}, 10) is None


def test_a_shard_that_was_cut_is_refused_by_its_length() -> None:
    data = shard()
    with pytest.raises(FormatError, match="cut"):
        table_of(data[: -(70 << 10)])


def test_a_table_stays_within_its_limit_whatever_the_size_of_the_shard() -> None:
    for size in (0, 1, 64 << 10, 1 << 30, (1 << 30) + 1, 1 << 40):
        assert -(-size // block_bytes_for(size)) <= blocks.BLOCKS_MAX
    assert block_bytes_for(1 << 30) == 64 << 10


@given(sizes=st.lists(st.integers(0, 200_000), max_size=6))
def test_digests_do_not_depend_on_how_the_body_is_cut_into_parts(sizes: list[int]) -> None:
    body = np.random.default_rng(0).bytes(sum(sizes))
    ends = np.cumsum([0, *sizes])
    parts = [body[begin:end] for begin, end in itertools.pairwise(ends.tolist())]
    assert describe_blocks(parts) == describe_blocks([body])


def test_a_header_without_a_place_for_its_digest_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="one place"):
        seal(b"{}")
