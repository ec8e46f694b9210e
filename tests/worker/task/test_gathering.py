"""What a sink holds, when it seals, and what becomes of its proposals."""

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from headrace.store.ledger.core.fragments import Range
from headrace.worker.core.doubt import DOUBT_RECORDS
from headrace.worker.task.core.ranges import Ranges
from headrace.worker.task.core.sink import (
    HELD_TIMES_MAX,
    PROPOSE_AGAIN_S,
    SPILLED_TIMES_MAX,
    TRANSITIONS,
    WRITE_AGAIN_S,
    WRITE_AGAIN_S_MAX,
    BatchGathered,
    Command,
    Gathering,
    ProposeShard,
    ReleaseShard,
    RenewShard,
    SealAsked,
    SealPolicy,
    SealTimePassed,
    ShardAccepted,
    ShardOverlapped,
    ShardStalled,
    ShardState,
    ShardWritten,
    WriteShard,
)

A = b"a" * 16
POLICY = SealPolicy(target_bytes=100, held_bytes_max=300, age_s=30.0)


def batch(first: int, count: int = 1, *, target: int = 0, held: int = 1) -> BatchGathered:
    return BatchGathered(Range(A, first, count), target, held)


def written(gathering: Gathering, commands: list[Command], now: float = 0.0) -> list[Command]:
    (write,) = commands
    assert isinstance(write, WriteShard)
    return gathering.handle(ShardWritten(write.shard), now)


def test_a_shard_is_sealed_when_its_kept_rows_reach_the_target() -> None:
    gathering = Gathering(POLICY)
    assert gathering.handle(batch(0, target=99), 0.0) == []
    assert gathering.accepts
    assert gathering.handle(batch(1, target=1), 0.0) == [WriteShard(0, (Range(A, 0, 1), Range(A, 1, 1)), "size")]


class Untold(dict[bytes, list[Range]]):
    """Ranges by fragment that are not gone through."""

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("every fragment was looked at")

    items = values = keys = __iter__  # type: ignore[assignment]


def test_what_is_held_of_one_fragment_looks_at_no_other() -> None:
    gathering = Gathering(POLICY)
    for first in (0, 1):
        gathering.handle(batch(first), 0.0)
    gathering._fresh = Untold(gathering._fresh)
    assert gathering.held(A) == [Range(A, 0, 1), Range(A, 1, 1)]
    assert gathering.held(b"b" * 16) == []


def test_a_shard_seals_when_it_holds_too_much_unkept() -> None:
    (write,) = Gathering(POLICY).handle(batch(0, held=300), 0.0)
    assert write == WriteShard(0, (Range(A, 0, 1),), "size")


def first_records(*batches: tuple[int, int]) -> list[Command]:
    """What a sink with much room does about batches of so many records, so many of them quarantined."""
    gathering, at, said = Gathering(SealPolicy()), 0, list[Command]()
    for count, quarantined in batches:
        said += gathering.handle(BatchGathered(Range(A, at, count), 0, count, 0, quarantined), 0.0)
        at += count
    return said


def test_a_shard_seals_at_once_when_most_first_records_fail() -> None:
    half = DOUBT_RECORDS // 2
    (write,) = first_records((half, half), (half, 1))
    assert isinstance(write, WriteShard)
    assert (write.reason, write.ranges) == ("doubt", (Range(A, 0, half), Range(A, half, half)))


def test_fewer_records_or_fewer_quarantined_are_no_reason_to_seal() -> None:
    assert first_records((DOUBT_RECORDS - 1, DOUBT_RECORDS - 1)) == []
    assert first_records((DOUBT_RECORDS, DOUBT_RECORDS // 2)) == []


def test_only_the_first_records_are_looked_at_for_dirt() -> None:
    bad = (DOUBT_RECORDS, DOUBT_RECORDS)
    assert first_records((DOUBT_RECORDS, 0), bad, bad) == []
    assert len(first_records(bad, bad, bad)) == 1


def test_a_shard_is_sealed_when_its_oldest_batch_is_old() -> None:
    gathering = Gathering(POLICY)
    gathering.handle(batch(0), 5.0)
    gathering.handle(batch(1), 34.0)
    assert gathering.wake_at() == 35.0
    assert gathering.handle(SealTimePassed(), 34.9) == []
    (write,) = gathering.handle(SealTimePassed(), 35.0)
    assert write == WriteShard(0, (Range(A, 0, 1), Range(A, 1, 1)), "age")


@pytest.mark.parametrize("gathered_at", [0.1, 1 / 3, 7.3, 1e6 + 0.1])
def test_a_timer_that_fires_as_asked_is_never_early(gathered_at: float) -> None:
    gathering = Gathering(POLICY)
    gathering.handle(batch(0), gathered_at)
    for _ in range(2):
        wake_at = gathering.wake_at()
        assert wake_at is not None
        commands = gathering.handle(SealTimePassed(), wake_at)
        assert len(commands) == 1
        if isinstance(commands[0], WriteShard):
            written(gathering, commands, wake_at)


def test_a_shard_is_sealed_when_asked_and_nothing_when_there_is_nothing() -> None:
    gathering = Gathering(POLICY)
    assert gathering.handle(SealAsked("end"), 0.0) == []
    assert gathering.handle(batch(0), 0.0) == [], "what was asked of empty hands is not remembered"
    assert gathering.handle(SealAsked("end"), 0.0) == [WriteShard(0, (Range(A, 0, 1),), "end")]


def test_one_shard_is_written_at_a_time_and_the_next_follows() -> None:
    gathering = Gathering(POLICY)
    first = gathering.handle(batch(0, target=100), 0.0)
    assert gathering.handle(batch(1, target=100), 0.0) == []
    assert not gathering.accepts
    assert gathering.handle(SealAsked("end"), 0.0) == []
    assert written(gathering, first) == [ProposeShard(0), WriteShard(1, (Range(A, 1, 1),), "end")]
    assert gathering.accepts


def test_all_that_is_not_closed_is_held() -> None:
    gathering = Gathering(POLICY)
    first = gathering.handle(batch(0, target=100, held=7), 0.0)
    gathering.handle(batch(1, held=5), 0.0)
    assert (gathering.held(), gathering.held_bytes) == ([Range(A, 1, 1), Range(A, 0, 1)], 12)
    assert gathering.held(b"b" * 16) == []
    written(gathering, first)
    assert gathering.held_bytes == 12
    assert gathering.handle(ShardAccepted(0), 0.0) == [ReleaseShard(0)]
    assert (gathering.held(), gathering.held_bytes) == ([Range(A, 1, 1)], 5)


def test_a_sink_without_answers_stops_taking_batches_at_its_budget() -> None:
    gathering, taken = Gathering(POLICY), 0
    while gathering.accepts:
        commands = gathering.handle(batch(taken, target=50, held=50), 0.0)
        if commands:
            written(gathering, commands)
        taken += 1
    assert gathering.held_bytes == HELD_TIMES_MAX * POLICY.held_bytes_max
    gathering.handle(ShardAccepted(0), 0.0)
    assert gathering.accepts


def test_what_is_shelved_is_no_memory_but_has_a_limit_too() -> None:
    gathering = Gathering(POLICY)
    spilled = SPILLED_TIMES_MAX * POLICY.target_bytes
    (write,) = gathering.handle(BatchGathered(Range(A, 0, 1), 100, 1, spilled - 1), 0.0)
    assert isinstance(write, WriteShard)
    assert (gathering.accepts, gathering.held_bytes) == (True, 1)
    gathering.handle(BatchGathered(Range(A, 1, 1), 0, 1, 1), 0.0)
    assert (gathering.accepts, gathering.held_bytes) == (False, 2)
    written(gathering, [write])
    assert not gathering.accepts
    gathering.handle(ShardAccepted(write.shard), 0.0)
    assert (gathering.accepts, gathering.held_bytes) == (True, 1)


def test_a_proposal_without_an_answer_is_made_again() -> None:
    gathering = Gathering(POLICY)
    assert written(gathering, gathering.handle(batch(0, target=100), 0.0), 1.0) == [ProposeShard(0)]
    assert gathering.wake_at() == 1.0 + PROPOSE_AGAIN_S
    assert gathering.handle(SealTimePassed(), 0.9 + PROPOSE_AGAIN_S) == []
    assert gathering.handle(SealTimePassed(), 6.0) == [ProposeShard(0)]
    assert gathering.handle(ShardAccepted(0), 7.0) == [ReleaseShard(0)]
    assert gathering.handle(ShardAccepted(0), 7.1) == [], "the second answer finds nothing to do"
    assert gathering.wake_at() is None


def test_a_shard_that_stalls_is_held_and_written_again_without_end() -> None:
    gathering = Gathering(POLICY)
    (write,) = gathering.handle(batch(0, 2, target=100, held=7), 0.0)
    assert isinstance(write, WriteShard)
    now = 0.0
    for times in range(40):
        assert gathering.handle(ShardStalled(0, "full"), now) == []
        assert (gathering.trouble, gathering.held_bytes) == ("full", 7)
        wake_at = gathering.wake_at()
        assert wake_at == now + min(WRITE_AGAIN_S_MAX, WRITE_AGAIN_S * 2**times)
        assert gathering.handle(SealTimePassed(), wake_at - 0.01) == []
        assert gathering.handle(SealTimePassed(), wake_at) == [WriteShard(0, write.ranges, "stall")]
        assert gathering.trouble == "full", "until it is written"
        now = wake_at
    assert gathering.handle(ShardWritten(0), now) == [ProposeShard(0)]
    assert gathering.trouble == ""
    assert gathering.handle(ShardOverlapped(0, (Range(A, 0, 1),)), now) != []
    gathering.handle(ShardStalled(1, "full"), now)
    assert gathering.wake_at() == now + WRITE_AGAIN_S, "what was written once begins to wait anew"


def test_behind_a_stalled_shard_nothing_begins_or_is_taken() -> None:
    gathering = Gathering(POLICY)
    gathering.handle(batch(0, target=100), 0.0)
    gathering.handle(ShardStalled(0, "full"), 0.0)
    assert gathering.handle(batch(1, target=100), 0.1) == []
    assert gathering.handle(SealAsked("end"), 0.2) == []
    assert not gathering.accepts
    assert gathering.held() == [Range(A, 1, 1), Range(A, 0, 1)]


def test_an_overlap_is_cut_out_and_the_rest_is_proposed() -> None:
    gathering = Gathering(POLICY)
    written(gathering, gathering.handle(batch(0, 10, target=100), 0.0))
    commands = gathering.handle(ShardOverlapped(0, (Range(A, 3, 2),)), 0.0)
    assert commands == [RenewShard(0, 1), WriteShard(1, (Range(A, 0, 3), Range(A, 5, 5)), "overlap")]
    assert gathering.handle(ShardOverlapped(0, (Range(A, 3, 2),)), 0.0) == [], "it is being written again"
    assert written(gathering, commands[1:]) == [ProposeShard(1)]


def test_what_an_overlap_leaves_of_a_sealed_shard_keeps_what_it_holds() -> None:
    gathering = Gathering(POLICY)
    written(gathering, gathering.handle(BatchGathered(Range(A, 0, 10), 100, 7, 5), 0.0))
    gathering.handle(ShardOverlapped(0, (Range(A, 3, 2),)), 0.0)
    assert gathering.held_bytes == 7
    assert gathering.held() == [Range(A, 0, 3), Range(A, 5, 5)]


def test_a_shard_that_is_closed_already_is_let_go() -> None:
    gathering = Gathering(POLICY)
    written(gathering, gathering.handle(batch(2, 3, target=100), 0.0))
    assert gathering.handle(ShardOverlapped(0, (Range(A, 0, 9),)), 0.0) == [ReleaseShard(0)]
    assert gathering.held() == []


def test_a_shard_is_not_written_twice() -> None:
    gathering = Gathering(POLICY)
    commands = gathering.handle(batch(0, target=100), 0.0)
    written(gathering, commands)
    assert (ShardState.PROPOSED, "written") not in TRANSITIONS
    with pytest.raises(ValueError, match="shard 0: proposed on 'written'"):
        written(gathering, commands)


def spans(item: Range) -> set[int]:
    return set(range(item.first, item.end))


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=8)
holes_of = st.lists(st.tuples(st.integers(0, 320), st.integers(1, 30)), max_size=30)


@given(pairs, holes_of)
def test_what_is_left_is_the_difference_in_order(mine: list[tuple[int, int]], gone: list[tuple[int, int]]) -> None:
    ranges = [Range(A, 40 * index + first, count) for index, (first, count) in enumerate(mine)]
    closed = [Range(A, first, count) for first, count in gone]
    left = list(Ranges.of(ranges).minus(Ranges.of(closed)))
    holes = set[int]().union(*(spans(item) for item in closed))
    position = 0
    for item in ranges:
        parts = []
        while position < len(left) and left[position].first < item.end and left[position].first >= item.first:
            parts.append(left[position])
            position += 1
            if set[int]().union(*(spans(part) for part in parts)) == spans(item) - holes:
                break
        assert set[int]().union(*(spans(part) for part in parts)) == spans(item) - holes
    assert position == len(left)


def test_an_untouched_range_keeps_its_bytes_a_cut_one_not() -> None:
    whole, other = Range(A, 0, 4, 0, 40), Range(b"b" * 16, 0, 4, 0, 40)
    left = Ranges.of([whole, other]).minus(Ranges.of([Range(A, 1, 1)]))
    assert left == (Range(A, 0, 1), Range(A, 2, 2), other)


def test_a_shard_written_anew_ignores_a_late_answer() -> None:
    gathering = Gathering(POLICY)
    written(gathering, gathering.handle(batch(0, 10, target=100), 0.0))
    gathering.handle(ShardOverlapped(0, (Range(A, 3, 2),)), 0.0)
    assert gathering.handle(ShardAccepted(0), 1.0) == []
    assert [(item.first, item.end) for item in gathering.held()] == [(0, 3), (5, 10)]
    assert gathering.handle(ShardWritten(1), 2.0) == [ProposeShard(1)]
    assert gathering.handle(ShardAccepted(0), 3.0) == [], "the answer was to the whole, this is the rest"
    assert gathering.handle(ShardOverlapped(0, (Range(A, 0, 10),)), 3.0) == []
