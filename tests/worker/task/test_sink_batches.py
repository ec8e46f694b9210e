"""Batches at a sink behind dedup: verdicts that wait are cut out as columns, and lie in a shard in their order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import ROW, Batch, make_verdicts
from headrace.stages.sinks.sidecars import lost_of
from headrace.store.ledger.core.fragments import Range
from headrace.store.shards.dedup_files import RecordName
from headrace.worker.task.batch.coverage import fates
from headrace.worker.task.core.held import (
    AskDependencies,
    BatchesWritten,
    BatchHeld,
    DependenciesAnswered,
    Duplicates,
    HeldBatches,
    ProposalAccepted,
    ProposeBatches,
    ReportLetGo,
    WriteBatches,
    dependents,
    needs,
)
from headrace.worker.task.core.ranges import Ranges, columns_of
from headrace.worker.task.core.sink import NEED_BYTES, SealPolicy
from headrace.worker.task.dependencies import duplicates_of
from headrace.worker.task.sink import JOINED_SPAN_MAX, SinkBatch, joined, laid_out

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def batch(first: int, fates: str, fragment: bytes = A) -> Batch:
    """A record a letter: `k` is kept, `f` filtered, `d` and `e` duplicates of the record of B or C with its ordinal."""
    named = {"d": B, "e": C}
    kept = [first + at for at, fate in enumerate(fates) if fate == "k"]
    lost = [first + at for at, fate in enumerate(fates) if fate != "k"]
    verdicts = make_verdicts(
        rows=pa.array(lost, pa.int64()), ids=pa.array(map(str, lost), pa.string()), stage="dedup", verdict="duplicate",
        reasons=[None for _ in lost],
        duplicates_of=[RecordName(named[fate], row) if (fate := fates[row - first]) in named else None for row in lost],
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
    assert (left.batch.edits, left.standing_rows().tolist(), left.names.rows.tolist()) == ({"upper": 1}, [5, 7, 9], [])


def test_verdicts_that_wait_hold_no_text_and_count_nothing_twice() -> None:
    (waiting,) = joined(cut(held(5, "kdkdf"), 6, 8))
    assert waiting.batch.rows.get_total_buffer_size() < 64
    assert (waiting.batch.verdicts.num_rows, waiting.batch.edits) == (2, {})
    assert (waiting.item, waiting.records) == (Range(A, 6, 3), 2)
    assert waiting.names.rows.tolist() == waiting.names.targets.tolist() == [6, 8]


def test_verdicts_of_a_fragment_wait_in_one_batch() -> None:
    parts = [*cut(held(10, "kdk"), 11), *cut(held(0, "ekd"), 0, 2), *cut(held(0, "dk", B), 0)]
    first, second = joined(parts)
    assert (first.item, first.records, second.item) == (Range(A, 0, 12), 3, Range(B, 0, 1))
    assert Ranges({A: first.ranges()}) == [Range(A, 0, 1), Range(A, 2, 1), Range(A, 11, 1)]
    assert needs([first]) == ((B, (2, 11)), (C, (0,)))
    (cut_again,) = cut(first, 2, 11)
    assert records(laid_out([cut_again])) == [(2, "l"), (11, "l")]


def test_verdicts_that_wait_far_apart_are_two_batches() -> None:
    far = JOINED_SPAN_MAX
    parts = [*cut(held(0, "dk"), 0), *cut(held(far, "dk"), far)]
    assert [batch.item.count for batch in joined(parts)] == [1, 1]


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

    def standing_rows(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(sorted(self.kept), np.int64)

    released_rows = standing_rows


names = st.tuples(st.sampled_from([A, B, C]), st.integers(0, 7))
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


def sink_of(*batches: SinkBatch, room: int = 1 << 20) -> HeldBatches[SinkBatch, str]:
    """A sink behind dedup that asks what these batches name, with room for so many bytes of what gathers."""
    policy = SealPolicy(target_bytes=100, held_bytes_max=room)
    core = HeldBatches[SinkBatch, str](policy, dependent=True, join=joined)
    for item in batches[:-1]:
        assert core.handle(BatchHeld(item, 0, 0), 0.0) == []
    (asked,) = core.handle(BatchHeld(batches[-1], 100, 0), 0.0)
    assert isinstance(asked, AskDependencies)
    return core


def test_a_shard_needs_what_it_asked_for_and_is_kept() -> None:
    core = sink_of(held(0, "kdddd"))
    (write,) = core.handle(DependenciesAnswered(0, ((B, (1,)),), ((B, (2,)),)), 0.0)
    assert isinstance(write, WriteBatches)
    assert records(laid_out(write.batches)) == [(0, "k"), (3, "l"), (4, "l")]
    (proposal,) = core.handle(BatchesWritten(0, "written"), 0.0)
    assert isinstance(proposal, ProposeBatches)
    assert proposal.needs == needs(write.batches) == ((B, (3, 4)),)


def test_verdicts_that_wait_are_held_and_not_taken_again() -> None:
    core = sink_of(held(0, "kdddd"))
    core.handle(DependenciesAnswered(0, ((B, (1, 3)),)), 0.0)
    core.handle(BatchesWritten(0, "written"), 0.0)
    core.handle(ProposalAccepted(0), 0.0)
    assert core.ranges() == [Range(A, 1, 1), Range(A, 3, 1)]
    assert (core.gathering.held_count, core.gathering.held_bytes) == ((2, 2), 2 * NEED_BYTES)
    assert core.missing(Range(A, 0, 5)) == [Range(A, 0, 1), Range(A, 2, 1), Range(A, 4, 1)]
    assert [batch.names.rows.tolist() for batch in core.batches()] == [[1, 3]]


def test_verdicts_that_are_let_go_of_are_in_no_batch() -> None:
    core = sink_of(held(0, "kdddd"), room=4 * NEED_BYTES)
    let_go, _ = core.handle(DependenciesAnswered(0, ((B, (1, 2, 3)),)), 0.0)
    assert isinstance(let_go, ReportLetGo)
    assert let_go.ranges == [Range(A, 3, 1)]
    core.handle(BatchesWritten(0, "written"), 0.0)
    core.handle(ProposalAccepted(0), 0.0)
    assert [batch.names.rows.tolist() for batch in core.batches()] == [[1, 2]]


def test_a_claim_is_released_by_the_batch_of_its_record_alone() -> None:
    whole = replace(held(0, "kffd"), released=np.array([1, 2]))
    (left,) = cut(whole, 0, 1, 3)
    assert left.released.tolist() == [1]


def test_ranges_that_touch_do_not_meet() -> None:
    ranges = Ranges.of([Range(A, 4, 2), Range(A, 0, 2)])
    assert ranges.within(Range(A, 2, 2)).tolist() == []
    assert ranges.within(Range(A, 1, 4))[:, 0].tolist() == [0, 4]


def test_a_cut_elsewhere_leaves_a_range_its_bytes() -> None:
    cut_one, other = Range(A, 0, 4, 0, 40), Range(A, 10, 4, 100, 40)
    assert Ranges.of([other, cut_one]).minus(Ranges.of([Range(A, 0, 1)])) == [Range(A, 1, 3), other]


def test_the_table_of_verdicts_names_records_as_text() -> None:
    found = lost_of(batch(7, "kdfed"))["duplicate_of"].to_pylist()
    assert found == [str(RecordName(B, 8)), None, str(RecordName(C, 10)), str(RecordName(B, 11))]
