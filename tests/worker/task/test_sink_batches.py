"""Batches at a sink behind dedup: verdicts that wait are cut out as columns, and lie in a shard in their order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import ROW, Batch, make_verdicts
from headrace.store.ledger.core.entries import Range
from headrace.store.shards.key_files import RecordName
from headrace.worker.task.core.held import Duplicates, dependents, needs
from headrace.worker.task.core.ranges import Ranges, columns_of
from headrace.worker.task.coverage import fates
from headrace.worker.task.dependencies import duplicates_of
from headrace.worker.task.sink import SinkBatch, laid_out

A, B = b"a" * 16, b"b" * 16


def batch(first: int, fates: str, fragment: bytes = A) -> Batch:
    """A record a letter: `k` is kept, `f` is filtered, `d` is a duplicate of the record of B with its ordinal."""
    kept = [first + at for at, fate in enumerate(fates) if fate == "k"]
    lost = [first + at for at, fate in enumerate(fates) if fate != "k"]
    verdicts = make_verdicts(
        rows=pa.array(lost, pa.int64()), ids=pa.array(map(str, lost), pa.string()), stage="dedup", verdict="duplicate",
        reasons=[None for _ in lost],
        duplicates_of=[RecordName(B, row) if fates[row - first] == "d" else None for row in lost],
    )  # fmt: skip
    rows = pa.record_batch({ROW: pa.array(kept, pa.int64()), "id": pa.array(map(str, kept), pa.string())})
    return Batch(fragment, "u", first, len(fates), 10 * first, 10 * len(fates), rows, verdicts, {"upper": 1})


def held(first: int, fates_: str, fragment: bytes = A) -> SinkBatch:
    made = batch(first, fates_, fragment)
    return replace(SinkBatch.of(made, fates(made)), names=duplicates_of(made))


def records(batches: Iterable[Batch]) -> list[tuple[int, str]]:
    return [
        (row, "k" if column == ROW else "l")
        for item in batches
        for table, column in ((item.rows, ROW), (item.verdicts, "row"))
        for row in table.column(column).to_pylist()
    ]


def cut(item: SinkBatch, *rows: int) -> list[SinkBatch]:
    places = np.array(rows, np.int64)
    return item.cut(columns_of(places, places + 1))


def test_a_batch_that_loses_only_verdicts_keeps_its_rows() -> None:
    whole = held(5, "kdkdf")
    (left,) = cut(whole, 5, 7, 9)
    assert left.batch.rows is whole.batch.rows
    assert records(laid_out([left])) == [(5, "k"), (7, "k"), (9, "l")]
    assert (left.batch.edits, left.kept_rows().tolist(), left.names.rows.tolist()) == ({"upper": 1}, [5, 7], [])


def test_verdicts_that_wait_hold_no_text_and_count_nothing_twice() -> None:
    (waiting,) = cut(held(5, "kdkdf"), 6, 8)
    assert waiting.batch.rows.get_total_buffer_size() < 64
    assert (waiting.item, waiting.records, waiting.batch.edits) == (Range(A, 6, 3), 2, {})
    assert waiting.names.rows.tolist() == waiting.names.targets.tolist() == [6, 8]


def test_a_batch_that_is_asked_for_whole_is_not_cut() -> None:
    whole = held(5, "kd")
    assert whole.cut(Ranges.of([Range(A, 5, 2)]).columns(A)) == [whole]
    (waiting,) = cut(held(5, "dkd"), 5, 7)
    assert cut(waiting, 5, 7) == [waiting]
    assert cut(waiting, 6) == [], "that is another batch's"


def test_interleaved_batches_are_laid_out_in_turn() -> None:
    (outer,) = cut(held(0, "dkdkd"), 0, 2, 4)
    (inner,) = cut(held(0, "dkdkd"), 1, 3)
    (split,) = cut(held(0, "kdkdk"), 0, 2, 4)
    assert records(laid_out([inner, outer])) == [(1, "k"), (3, "k"), (0, "l"), (2, "l"), (4, "l")]
    assert records(laid_out([split, inner])) == [(row, "k") for row in range(5)]


def test_the_verdicts_of_a_fragment_are_one_batch() -> None:
    *kept, lost = laid_out([held(3, "dfd"), held(0, "kdk")])
    assert [(item.first, item.count, item.verdicts.num_rows) for item in kept] == [(0, 3, 0), (3, 3, 0)]
    assert (lost.first, lost.count, records([lost])) == (0, 6, [(row, "l") for row in (1, 3, 4, 5)])


def test_what_became_of_the_parts_of_a_record_stays_together() -> None:
    whole = held(0, "kd")
    parts = whole.batch.verdicts.set_column(1, "part", pa.array([0], pa.int32()))
    split = replace(whole, batch=replace(whole.batch, verdicts=parts))
    assert [(item.rows.num_rows, item.verdicts.num_rows) for item in laid_out([held(2, "kd"), split])] == [
        (1, 1),
        (1, 1),
    ]


def test_batches_of_two_fragments_are_not_laid_out_together() -> None:
    assert [item.fragment for item in laid_out([held(0, "dd"), held(2, "dd", B)])] == [A, B]


parts = st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=4)


@given(parts, st.randoms(use_true_random=False))
def test_each_record_of_a_cut_batch_is_laid_out_once_in_order(keeps: list[list[bool]], chance: random.Random) -> None:
    held_: list[SinkBatch] = []
    for number, kept in enumerate(keeps):
        whole = held(20 * number, "".join("k" if is_kept else "d" for is_kept in kept))
        picked = [row for row in range(20 * number, whole.item.end) if chance.random() < 0.5]
        rest = sorted(set(range(whole.item.first, whole.item.end)) - set(picked))
        held_ += [*cut(whole, *picked), *cut(whole, *rest)]
    chance.shuffle(held_)
    found = records(laid_out(held_))
    assert sorted(found) == [
        (20 * number + at, "k" if is_kept else "l")
        for number, kept in enumerate(keeps)
        for at, is_kept in enumerate(kept)
    ]
    for kind in "kl":
        rows = [row for row, fate in found if fate == kind]
        assert rows == sorted(rows)


class Bits:
    """A batch of a few records: its duplicates and the ordinals that it keeps."""

    def __init__(self, fragment: bytes, pairs: dict[int, tuple[bytes, int]], kept: set[int]) -> None:
        self.item, self.pairs, self.kept = Range(fragment, 0, 8), pairs, kept

    def cut(self, ranges: object) -> list[Bits]:
        raise NotImplementedError

    def duplicate_names(self) -> Duplicates:
        return Duplicates.of(list(self.pairs.items()))

    def kept_rows(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(sorted(self.kept), np.int64)

    released_rows = kept_rows


names = st.tuples(st.sampled_from([A, B, b"c" * 16]), st.integers(0, 7))
bits = st.builds(
    Bits,
    st.sampled_from([A, B]),
    st.dictionaries(st.integers(0, 7), names, max_size=8),
    st.sets(st.integers(0, 7), max_size=8),
)


@given(st.lists(bits, max_size=4), st.sets(names, max_size=8))
def test_columns_say_what_sets_of_names_say(batches: list[Bits], wanted: set[tuple[bytes, int]]) -> None:
    kept = {(item.item.fragment, row) for item in batches for row in item.kept}
    missing = sorted({name for item in batches for name in item.pairs.values()} - kept)
    assert [(fragment, row) for fragment, rows in needs(batches) for row in rows] == missing
    asked = tuple((fragment, (row,)) for fragment, row in wanted)
    leaning = sorted(
        (item.item.fragment, row) for item in batches for row, name in item.pairs.items() if name in wanted
    )
    assert sorted((item.fragment, item.first) for item in dependents(batches, asked)) == leaning
