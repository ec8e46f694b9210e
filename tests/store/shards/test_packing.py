"""Packing: every token of every document lies in exactly one place."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.store.shards.core.packing import Packing, pack

LENGTHS = st.lists(st.integers(0, 70), max_size=60)
SEQ_LENS = st.integers(1, 33)


def _check(lengths: list[int], seq_len: int, packing: Packing) -> None:
    used = np.zeros((packing.sequences, seq_len), np.int64)
    for sequence, start, length in zip(packing.piece_sequence, packing.piece_start, packing.piece_length, strict=True):
        assert 1 <= length <= seq_len - start
        used[sequence, start : start + length] += 1
    assert used.max(initial=0) <= 1
    assert (used > 0).any(axis=1).all()
    assert packing.padding == (used == 0).sum() == packing.sequences * seq_len - sum(lengths)


@given(LENGTHS, SEQ_LENS)
def test_pieces_lie_inside_their_sequences_and_never_overlap(lengths: list[int], seq_len: int) -> None:
    _check(lengths, seq_len, pack(lengths, seq_len))


@given(LENGTHS, SEQ_LENS)
def test_a_documents_pieces_in_array_order_are_the_document(lengths: list[int], seq_len: int) -> None:
    packing = pack(lengths, seq_len)
    expected = [
        (document, offset, min(seq_len, length - offset))
        for document, length in enumerate(lengths)
        for offset in range(0, length, seq_len)
    ]
    pieces = zip(packing.piece_document, packing.piece_offset, packing.piece_length, strict=True)
    assert [tuple(map(int, piece)) for piece in pieces] == expected


@given(LENGTHS, SEQ_LENS, st.data())
def test_pieces_less_what_they_repeat_are_the_document(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, seq_len - 1))
    packing = pack(lengths, seq_len, overlap)
    end = [0] * len(lengths)
    columns = (packing.piece_document, packing.piece_offset, packing.piece_length, packing.piece_repeated)
    for document, offset, length, repeated in zip(*(column.tolist() for column in columns), strict=True):
        assert repeated == (overlap if offset else 0)
        assert offset + repeated == end[document]
        assert repeated < length <= seq_len
        end[document] = offset + length
    assert end == lengths
    assert packing.padding == packing.sequences * seq_len - int(packing.piece_length.sum())
    used = np.zeros((packing.sequences, seq_len), np.int64)
    for sequence, start, length in zip(packing.piece_sequence, packing.piece_start, packing.piece_length, strict=True):
        used[sequence, start : start + length] += 1
    assert used.max(initial=0) <= 1
    assert (used > 0).any(axis=1).all()


@given(LENGTHS, SEQ_LENS)
def test_tokens_end_at_a_sequences_front_and_padding_follows(lengths: list[int], seq_len: int) -> None:
    packing = pack(lengths, seq_len)
    filled = np.zeros(packing.sequences, np.int64)
    np.add.at(filled, packing.piece_sequence, packing.piece_length)
    ends = np.zeros(packing.sequences, np.int64)
    np.maximum.at(ends, packing.piece_sequence, packing.piece_start + packing.piece_length)
    assert np.array_equal(filled, ends)


@given(LENGTHS, SEQ_LENS)
def test_no_two_sequences_could_be_one(lengths: list[int], seq_len: int) -> None:
    packing = pack(lengths, seq_len)
    filled = np.zeros(packing.sequences, np.int64)
    np.add.at(filled, packing.piece_sequence, packing.piece_length)
    emptiest = np.sort(filled)[:2]
    assert emptiest.size < 2 or emptiest.sum() > seq_len


@given(LENGTHS, SEQ_LENS)
def test_the_same_lengths_pack_the_same(lengths: list[int], seq_len: int) -> None:
    first, second = pack(lengths, seq_len), pack(np.array(lengths, np.int32), seq_len)
    assert np.array_equal(first.piece_sequence, second.piece_sequence)
    assert np.array_equal(first.piece_start, second.piece_start)


def _naive(lengths: list[int], seq_len: int) -> list[tuple[int, int]]:
    """Room left and place of each remainder, found by looking at every sequence."""
    rooms: list[int] = []
    fits = []
    for length in sorted((length % seq_len for length in lengths if length % seq_len), reverse=True):
        tightest = min((room for room in rooms if room >= length), default=seq_len)
        if tightest == seq_len:
            rooms.append(seq_len - length)
        else:
            rooms[rooms.index(tightest)] = tightest - length
        fits.append((length, seq_len - tightest))
    return sorted(fits)


@given(LENGTHS, SEQ_LENS)
def test_each_remainder_takes_the_tightest_room(lengths: list[int], seq_len: int) -> None:
    packing = pack(lengths, seq_len)
    rest = packing.piece_length < seq_len
    found = zip(packing.piece_length[rest].tolist(), packing.piece_start[rest].tolist(), strict=True)
    assert sorted(found) == _naive(lengths, seq_len)


def test_whole_pieces_come_first_in_document_order() -> None:
    packing = pack([9, 0, 4, 3], 4)
    assert packing.piece_document.tolist() == [0, 0, 0, 2, 3]
    assert packing.piece_sequence.tolist() == [0, 1, 3, 2, 3]
    assert packing.piece_start.tolist() == [0, 0, 3, 0, 0]
    assert (packing.sequences, packing.padding) == (4, 0)


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_documents_without_tokens_need_no_sequence(lengths: list[int]) -> None:
    packing = pack(lengths, 8)
    assert (packing.sequences, packing.padding, packing.piece_start.size) == (0, 0, 0)
    assert packing.piece_sequence.dtype == np.int32


@pytest.mark.parametrize(("lengths", "seq_len"), [([1], 0), ([-1], 4), ([2**31], 4), ([1], 2**31)])
def test_what_int32_cannot_hold_is_refused(lengths: list[int], seq_len: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        pack(lengths, seq_len)


@pytest.mark.parametrize("overlap", [-1, 4])
def test_an_overlap_that_leaves_nothing_new_is_refused(overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        pack([9], 4, overlap)
