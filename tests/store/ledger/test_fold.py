"""The fold of a ledger: what it knows, and what it refuses to know."""

import io
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, strategies as st

from headrace.store.ledger.core.entries import (
    Beat,
    Change,
    Closed,
    Entry,
    EpochRaised,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    PrefixRead,
    Removed,
    Resigned,
    Retracted,
    VersionHeld,
    VersionPublished,
)
from headrace.store.ledger.core.fold import DEDUPLICATION, ROLLBACKS_MAX, FoldError, LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.store.ledger.snapshot import HELD_FORMAT, SNAPSHOT_FORMAT, decode_snapshot, encode_snapshot

A = Fragment.named("read", "file:///a", "1", start=0, end=-1, reader="lines", size=100)
UNKNOWN = b"?" * 16


def close(*spans: tuple[int, int], sink: str = "write", fragment: bytes = A.id, counted: int | None = None) -> Closed:
    ranges = tuple(Range(fragment, first, end - first) for first, end in spans)
    total = sum(item.count for item in ranges) if counted is None else counted
    return Closed(sink, "v", 1, ranges, (), Counts(kept=total))


def folded(*changes: Change) -> LedgerState:
    """Term 1, with a fragment, and each change in an entry of its own."""
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {"host": "a"}), FragmentsListed((A,)))))
    for change in changes:
        state.apply(state.number + 1, Entry(1, (change,)))
    return state


def test_a_new_ledger_is_free_and_knows_nothing() -> None:
    state = LedgerState()
    assert state.number == -1
    assert state.resigned
    assert state.term == 0


def test_the_fold_knows_who_leads_and_what_was_said() -> None:
    state = folded(PipelineApplied("v", {"name": "p"}), EpochRaised("created"), Beat(1), VersionPublished(1, "done"))
    assert (state.term, state.leader, state.resigned) == (1, {"host": "a"}, False)
    assert (state.pipeline, state.pipeline_version, state.pipeline_number) == ({"name": "p"}, "v", 1)
    assert state.epoch == 2
    assert (state.version, state.newest) == (1, (4, 4, False, "done", 0, ()))
    state.apply(5, Entry(1, (Resigned(1),)))
    assert state.resigned
    state.apply(6, Entry(2, (Led(2, {"host": "b"}),)))
    assert (state.term, state.leader, state.resigned) == (2, {"host": "b"}, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (FragmentsListed((A,)), "entry 3 lists file:///a again"),
        (FragmentsListed((replace(A, id=bytes(15)),)), "lists file:///a by a name of 15 bytes"),
        (FragmentEnded(UNKNOWN, 1), "which was never listed"),
        (FragmentDropped(UNKNOWN, "gone", False), "which was never listed"),
        (FragmentEnded(A.id, 9), "ended at 10, now at 9"),
        (close((2, 4)), "closes records .* of file:///a a second time"),
        (close((9, 11)), "closes file:///a up to 11, it has 10"),
        (close((5, 6), (5, 6)), "a second time"),
        (close((0, 1), fragment=UNKNOWN), "which was never listed"),
        (close((5, 7), counted=3), "a shard of 3 verdicts closes another number"),
        (Led(1, {}), r"Led\(1\) in term 1 behind term 1"),
        (Led(3, {}), r"Led\(3\) in term 1"),
    ],
)
def test_a_change_that_breaks_the_ledger_is_refused_with_its_number(change: Change, words: str) -> None:
    state = folded(FragmentEnded(A.id, 10), close((0, 3)))
    with pytest.raises(FoldError, match=words):
        state.apply(3, Entry(1, (change,)))


def test_of_what_is_given_up_nothing_is_open_or_closed_later() -> None:
    state = folded(close((0, 3)), FragmentDropped(A.id, "it changed", False))
    fragment = state.fragments[A.id]
    assert fragment.done(("write", "copy"))
    assert fragment.open_gaps("write") == []
    assert (fragment.records_due("write"), fragment.records_due("copy")) == (3, 0)
    assert fragment.stored_bytes("write") < A.size
    assert state.conflicts(close((2, 5))) == [Range(A.id, 2, 3)]
    for change, words in (
        (close((3, 5)), "file:///a, which was given up"),
        (FragmentDropped(A.id, "again", False), "gives up file:///a a second time"),
    ):
        with pytest.raises(FoldError, match=words):
            state.apply(state.number + 1, Entry(1, (change,)))


def test_an_end_before_what_is_closed_is_refused() -> None:
    with pytest.raises(FoldError, match="ends at 2, closed beyond it"):
        folded(close((0, 3)), FragmentEnded(A.id, 2))


def test_a_change_of_another_kind_is_refused() -> None:
    with pytest.raises(FoldError, match="str does not belong into a dataset's ledger"):
        folded().apply(1, Entry(1, ("news",)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "entry", "words"),
    [
        (2, Entry(1, (Beat(1),)), "entry 2 does not follow entry 0: the log has a hole"),
        (0, Entry(1, (Beat(1),)), "entry 0 does not follow entry 0"),
        (1, Entry(0, (Beat(0),)), "of term 0 behind term 1"),
        (1, Entry(2, (Beat(2),)), "is the first of term 2 and does not begin with Led"),
        (1, Entry(2, ()), "does not begin with Led"),
    ],
)
def test_an_entry_out_of_turn_is_refused(number: int, entry: Entry, words: str) -> None:
    with pytest.raises(FoldError, match=words):
        folded().apply(number, entry)


def test_conflicts_are_the_parts_that_the_same_sink_has_closed() -> None:
    state = folded(close((2, 4), (6, 8)))
    assert state.conflicts(close((0, 7))) == [Range(A.id, 2, 2), Range(A.id, 6, 1)]
    assert state.conflicts(close((0, 7), sink="copy")) == []
    assert state.conflicts(close((0, 7), fragment=UNKNOWN)) == []


def test_an_accepted_proposal_and_its_entry_are_remembered() -> None:
    shard = close((0, 3))
    state = folded(shard)
    assert state.accepted == {shard.identity(): 1}
    assert [(item.number, item.closed) for item in state.shards] == [(1, shard)]
    assert state.counts["write"].kept == 3


def test_an_empty_fragment_is_done_when_its_end_is_logged() -> None:
    state = folded()
    assert not state.fragments[A.id].done(("write",))
    state.apply(1, Entry(1, (FragmentEnded(A.id, 0),)))
    assert state.fragments[A.id].done(("write",))


@given(st.permutations([(0, 3), (3, 4), (4, 9), (9, 10)]), st.integers(0, 4), st.booleans())
def test_a_fragment_is_done_when_all_sinks_closed_it_to_the_end(
    spans: list[tuple[int, int]], closed: int, ended: bool
) -> None:
    state = folded(close((0, 10), sink="copy"), *(close(span) for span in spans[:closed]))
    if ended:
        state.apply(state.number + 1, Entry(1, (FragmentEnded(A.id, 10),)))
    fragment = state.fragments[A.id]
    assert fragment.done(("write", "copy")) == (ended and closed == len(spans))
    assert fragment.done(("copy",)) == ended
    missing = {ordinal for first, end in spans[closed:] for ordinal in range(first, end)}
    gaps = fragment.open_gaps("write")
    found = {ordinal for gap in gaps for ordinal in range(gap.first, min(gap.end, 10))}
    assert found == missing
    if not ended:
        assert gaps[-1] == Gap(gaps[-1].first, UNBOUNDED, gaps[-1].offset)


def test_what_was_made_in_the_epoch_before_is_fenced_off() -> None:
    state = folded(EpochRaised("created"), EpochRaised("an index was lost"))
    assert state.epoch == 2
    with pytest.raises(FoldError, match="made in epoch 1, fenced off by 2"):
        state.apply(3, Entry(1, (close((0, 3)),)))


def test_an_epoch_may_have_the_number_of_an_earlier_entry() -> None:
    state = folded(EpochRaised("created"), Beat(1), Beat(1), EpochRaised("another index takes over", 3))
    assert (state.epoch, state.number) == (3, 4)


@pytest.mark.parametrize("number", [1, 4])
def test_an_epoch_has_no_number_of_the_past_or_the_future(number: int) -> None:
    state = folded(EpochRaised("created"), Beat(1))
    with pytest.raises(FoldError, match=f"raises the epoch from 1 to {number}"):
        state.apply(3, Entry(1, (EpochRaised("another index takes over", number),)))


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_shard_names_no_object_that_a_collection_may_have_deleted(epoch: int) -> None:
    state = folded(EpochRaised("created"), EpochRaised("collection"))
    stored = StoredObject("tokens", f"shards/{epoch}/{'a' * 32}.safetensors", "xxh3-128:" + "b" * 32, 10)
    entry = Entry(1, (replace(close((0, 3)), epoch=2, objects=(stored,)),))
    if epoch < 2:
        with pytest.raises(FoldError, match="a collection may have deleted"):
            state.apply(3, entry)
    else:
        state.apply(3, entry)
        assert state.shards[0].closed.objects == (stored,)


def test_a_version_that_is_published_loses_no_record_any_more() -> None:
    stored = StoredObject("tokens", f"shards/1/{'a' * 32}.safetensors", "xxh3-128:" + "b" * 32, 10)
    state = folded(replace(close((0, 3)), objects=(stored,)), VersionPublished(1, "done"))
    with pytest.raises(FoldError, match="retracts from version 1 on, 1 is published"):
        state.apply(3, Entry(1, (Retracted(1, ((stored.key, (0,)),), ()),)))
    state.apply(3, Entry(1, (Retracted(2, ((stored.key, (0,)),), ()),)))
    assert state.retracted == [[2, stored.key, [0]]]


def test_a_dataset_is_removed_only_behind_the_raising_of_its_epoch() -> None:
    state = folded(EpochRaised("created"), close((0, 3)))
    with pytest.raises(FoldError, match="does not raise the epoch first"):
        state.apply(3, Entry(1, (Removed("removal"),)))
    state.apply(3, Entry(1, (EpochRaised("removal"), Removed("removal"))))
    assert (state.removed, state.epoch, state.shards) == (True, 3, [])


def test_a_version_that_shows_less_than_the_one_before_it_is_refused() -> None:
    state = folded(close((0, 1)), VersionPublished(1, "done"))
    with pytest.raises(FoldError, match="shows entries up to 1"):
        state.apply(state.number + 1, Entry(1, (VersionPublished(2, "done", shows=1),)))


def test_the_longest_prefix_is_known_until_all_is_read() -> None:
    short, long = (PrefixRead(A.id, count, 9 * count, b"c" * 16) for count in (2, 5))
    assert folded(short).fragments[A.id].prefix == short
    for order in ((short, long), (long, short)):
        assert folded(*order).fragments[A.id].prefix == long
    state = folded(long, FragmentEnded(A.id, 10, b"d" * 16))
    assert (state.fragments[A.id].prefix, state.fragments[A.id].checksum) == (None, b"d" * 16)
    state.apply(state.number + 1, Entry(1, (short,)))
    assert state.fragments[A.id].prefix is None


def test_a_version_is_not_published_a_second_time() -> None:
    state = folded(VersionPublished(1, "done"))
    with pytest.raises(FoldError, match="publishes version 1 behind version 1"):
        state.apply(state.number + 1, Entry(1, (VersionPublished(1, "done"),)))


def test_what_no_version_shows_yet_is_known() -> None:
    assert folded(close((0, 1))).unshown == 1
    assert folded(close((0, 1)), VersionPublished(1, "done")).unshown == 0
    assert folded(VersionPublished(1, "done"), close((0, 1)), VersionPublished(2, "done", shows=1)).unshown == 1


def test_a_held_version_shows_nothing() -> None:
    state = folded(close((0, 1)), VersionPublished(1, "done"))
    state.apply(state.number + 1, Entry(1, (close((1, 2)), VersionHeld(2, ("kept_share",)))))
    assert (state.version, state.held, state.held_at, state.unshown) == (1, ("kept_share",), state.number, 1)
    for read in (state, decode_snapshot(encode_snapshot(state))):
        assert isinstance(read, LedgerState)
        assert (read.held, read.held_at) == (("kept_share",), 3)
        read.apply(read.number + 1, Entry(1, (VersionPublished(2, "retract", shows=state.published[1].shows),)))
        assert read.held, "it shows no more than before"
        read.apply(read.number + 1, Entry(1, (VersionPublished(3, "anyway"),)))
        assert (read.held, read.held_at) == ((), -1)


def test_what_was_held_is_published_with_what_came_before_it() -> None:
    state = folded(close((0, 1)))
    state.apply(state.number + 1, Entry(1, (close((1, 2)), VersionHeld(1, ("kept_share",)))))
    held = state.held_at
    state.apply(state.number + 1, Entry(1, (VersionPublished(1, "anyway", shows=held - 1),)))
    assert state.held, "what was held is not shown"
    state.apply(state.number + 1, Entry(1, (VersionPublished(2, "anyway", shows=held),)))
    assert (state.held, state.unshown) == ((), 0)


def test_a_version_that_is_published_is_not_held() -> None:
    state = folded(VersionPublished(1, "done"))
    with pytest.raises(FoldError, match="behind version 1"):
        state.apply(state.number + 1, Entry(1, (VersionHeld(1, ("a",)),)))


def test_a_snapshot_of_a_held_version_has_a_format_of_its_own() -> None:
    # A Headrace that knows no gate reads format 1 alone.
    for change, known in ((VersionHeld(1, ("a",)), HELD_FORMAT), (VersionPublished(1, "done"), SNAPSHOT_FORMAT)):
        data = encode_snapshot(folded(change))
        assert msgpack.Unpacker(io.BytesIO(data[16:]), strict_map_key=False).unpack()[0] == known


def test_what_a_deduplication_hides_keeps_its_text_when_others_lose_theirs() -> None:
    stored, fresh = (StoredObject("tokens", f"shards/1/{name}", "xxh3-128:" + "0" * 32, 1) for name in ("old", "new"))
    state = folded(
        replace(close((0, 3)), objects=(stored,)),
        VersionPublished(1, "end"),
        Retracted(2, ((stored.key, (0,)),), ()),
        VersionPublished(2, DEDUPLICATION),
        Retracted(3, ((stored.key, (2,)),), ()),
        VersionPublished(3, "retraction"),
        Retracted(4, (), ((stored.key, fresh),)),
    )
    assert state.erased_rows(fresh.key) == (2,)
    assert [rows for _, key, rows in state.retracted if key == fresh.key] == [[0], [2]], "both stay hidden"


def test_rollbacks_of_rollbacks_end() -> None:
    """Each remembers all of its own: twenty thousand of them in one entry were two gigabytes."""
    chain = [VersionPublished(1, "done", shows=1)]
    chain += [VersionPublished(v, "rollback", shows=1, restores=v - 1) for v in range(2, ROLLBACKS_MAX + 2)]
    state = folded(*chain)
    assert len(state.published[ROLLBACKS_MAX + 1].rollbacks) == ROLLBACKS_MAX
    further = VersionPublished(ROLLBACKS_MAX + 2, "rollback", shows=1, restores=ROLLBACKS_MAX + 1)
    with pytest.raises(FoldError, match="restores version 1001, 1,000 rollbacks deep"):
        state.apply(state.number + 1, Entry(1, (further,)))
