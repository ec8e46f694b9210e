"""A sink behind dedup: it asks before it writes, and closes no verdict whose record is not kept."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import dedup, read_jsonl, redact_pii, write_jsonl
from headrace.stages.runtime.batch import Batch, join_verdicts, make_verdicts, no_verdicts
from headrace.stages.runtime.errors import StageContractError
from headrace.store.ledger.core.fragments import Range
from headrace.store.shards.dedup_files import RecordName
from headrace.worker.task.batch.coverage import fates
from headrace.worker.task.batch.isolation import KILLED
from headrace.worker.task.core.held import ORDINAL_BITS, dependents, needs, released
from headrace.worker.task.core.ranges import Ranges
from headrace.worker.task.core.sink import (
    NEED_BYTES,
    NEEDS_AGAIN_S,
    NEEDS_AGAIN_S_MAX,
    NEEDS_FEW,
    PROPOSE_AGAIN_S,
    AskNeeds,
    BatchGathered,
    Gathering,
    LetGo,
    NeedsAnswered,
    ProposeShard,
    ReleaseShard,
    RenewShard,
    SealAsked,
    SealPolicy,
    SealTimePassed,
    ShardAccepted,
    ShardOverlapped,
    ShardWritten,
    WriteShard,
)
from headrace.worker.task.dependencies import DuplicateDependencies
from headrace.worker.task.sink import SinkBatch, joined

A, B = b"a" * 16, b"b" * 16
POLICY = SealPolicy(target_bytes=100, held_bytes_max=4 * NEED_BYTES, age_s=30.0)


def gathered(*, reason: str = "end") -> Gathering:
    """A sink that holds four records and was asked to seal them."""
    gathering = Gathering(POLICY, dependent=True)
    gathering.handle(BatchGathered(Range(A, 0, 4), 10, 10), 0.0)
    assert gathering.handle(SealAsked(reason), 0.0) == [AskNeeds(0, (Range(A, 0, 4),))]
    return gathering


def test_a_shard_whose_needs_are_met_is_written_whole() -> None:
    assert gathered().handle(NeedsAnswered(0), 0.0) == [WriteShard(0, (Range(A, 0, 4),), "end")]


def test_waiting_verdicts_go_later_and_the_rest_at_once() -> None:
    gathering = gathered()
    (write,) = gathering.handle(NeedsAnswered(0, waiting=(Range(A, 2, 1),)), 0.0)
    assert write == WriteShard(0, (Range(A, 0, 2), Range(A, 3, 1)), "end")
    assert sorted(item.first for item in gathering.held()) == [0, 2, 3]
    assert gathering.handle(ShardWritten(0), NEEDS_AGAIN_S / 2) == [ProposeShard(0)]
    assert gathering.wake_at() == NEEDS_AGAIN_S
    assert gathering.handle(SealTimePassed(), NEEDS_AGAIN_S) == [AskNeeds(1, (Range(A, 2, 1),))]
    assert gathering.handle(NeedsAnswered(1), NEEDS_AGAIN_S) == [WriteShard(1, (Range(A, 2, 1),), "end")]


def test_waiting_verdicts_are_no_reason_to_seal_early() -> None:
    gathering = Gathering(POLICY, dependent=True)
    (question,) = gathering.handle(BatchGathered(Range(A, 0, 4), 100, 10), 0.0)
    assert isinstance(question, AskNeeds)
    gathering.handle(NeedsAnswered(0, waiting=(Range(A, 2, 1),)), 0.0)
    gathering.handle(ShardWritten(0), 0.0)
    assert gathering.handle(SealTimePassed(), 1.0) == []
    assert gathering.wake_at() == PROPOSE_AGAIN_S


def full(*, asked: bool = False) -> Gathering:
    """A sink that is full, and asks about it, before or behind somebody who wants all to be committed."""
    gathering = Gathering(POLICY, dependent=True)
    assert gathering.handle(BatchGathered(Range(A, 0, 4), 100, 10), 0.0) == [AskNeeds(0, (Range(A, 0, 4),))]
    if asked:
        gathering.handle(SealAsked("end"), 0.0)
    return gathering


WAITING = tuple(Range(A, row, 1) for row in range(3))


def test_verdicts_that_wait_leave_room_for_the_records_that_they_wait_for() -> None:
    gathering = full()
    commands = gathering.handle(NeedsAnswered(0, waiting=WAITING), 0.0)
    assert commands == [LetGo((Range(A, 2, 1),)), WriteShard(0, (Range(A, 3, 1),), "size")]
    assert sorted(item.first for item in gathering.held()) == [0, 1, 3]
    assert gathering.accepts


def test_where_all_is_to_be_committed_no_verdict_is_let_go_of() -> None:
    gathering = full(asked=True)
    assert gathering.handle(NeedsAnswered(0, waiting=WAITING), 0.0) == [WriteShard(0, (Range(A, 3, 1),), "size")]
    gathering.handle(ShardWritten(0), 0.0)
    gathering.handle(ShardAccepted(0), 0.0)
    assert len(gathering.held()) == 3


def test_waiting_verdicts_are_asked_for_soon_and_then_seldom() -> None:
    gathering, waiting, now, pauses = gathered(), tuple(Range(A, row, 1) for row in range(4)), 0.0, list[float]()
    for shard in range(8):
        gathering.handle(NeedsAnswered(shard, waiting=waiting), now)
        again = gathering.wake_at()
        assert again is not None
        pauses.append(again - now)
        now = again
        assert gathering.handle(SealTimePassed(), now) == [AskNeeds(shard + 1, waiting)]
    assert pauses[0] <= 0.02
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(NEEDS_AGAIN_S_MAX)


def test_many_waiting_verdicts_are_asked_for_seldom_at_once() -> None:
    gathering = Gathering(SealPolicy(), dependent=True)
    gathering.handle(BatchGathered(Range(A, 0, 4 * NEEDS_FEW), 10, 10), 0.0)
    gathering.handle(SealAsked("end"), 0.0)
    rows = np.arange(0, 2 * NEEDS_FEW + 2, 2)
    gathering.handle(NeedsAnswered(0, waiting=Ranges.of_records({A: rows})), 0.0)
    gathering.handle(ShardWritten(0), 0.0)
    assert gathering.wake_at() == NEEDS_AGAIN_S_MAX


def test_a_sink_whose_verdicts_wait_does_not_ask_without_a_pause() -> None:
    gathering = gathered()
    waiting = tuple(Range(A, row, 1) for row in range(4))
    gathering.handle(NeedsAnswered(0, waiting=waiting), 0.0)
    assert gathering.handle(SealTimePassed(), NEEDS_AGAIN_S / 2) == []
    assert gathering.handle(SealTimePassed(), NEEDS_AGAIN_S) == [AskNeeds(1, waiting)]


def test_verdicts_that_are_void_are_let_go_of() -> None:
    gathering = gathered()
    gathering.handle(NeedsAnswered(0, void=(Range(A, 0, 1),)), 0.0)
    assert gathering.held() == [Range(A, 1, 3)]


def test_a_shard_of_which_nothing_is_left_is_not_written() -> None:
    gathering = gathered()
    assert gathering.handle(NeedsAnswered(0, void=(Range(A, 0, 4),)), 0.0) == [ReleaseShard(0)]
    assert gathering.held() == []


def test_a_question_that_nobody_answers_is_asked_again() -> None:
    gathering = gathered()
    assert gathering.wake_at() == PROPOSE_AGAIN_S
    assert gathering.handle(SealTimePassed(), PROPOSE_AGAIN_S) == [AskNeeds(0, (Range(A, 0, 4),))]


def test_an_answer_that_comes_twice_moves_nothing() -> None:
    gathering = gathered()
    gathering.handle(NeedsAnswered(0), 0.0)
    assert gathering.handle(NeedsAnswered(0, void=(Range(A, 0, 4),)), 0.0) == []
    gathering.handle(ShardWritten(0), 0.0)
    gathering.handle(ShardAccepted(0), 0.0)
    assert gathering.handle(NeedsAnswered(0), 0.0) == []


def test_a_seal_asked_for_while_asking_is_not_forgotten() -> None:
    gathering = Gathering(POLICY, dependent=True)
    gathering.handle(BatchGathered(Range(A, 0, 4), 100, 10), 0.0)
    gathering.handle(SealAsked("pause"), 0.0)
    gathering.handle(NeedsAnswered(0, waiting=(Range(A, 1, 1),)), 0.0)
    assert AskNeeds(1, (Range(A, 1, 1),)) in gathering.handle(ShardWritten(0), 0.0)


def test_what_an_overlap_leaves_asks_anew_what_it_leans_on() -> None:
    gathering = gathered()
    gathering.handle(NeedsAnswered(0), 0.0)
    gathering.handle(ShardWritten(0), 0.0)
    cut = gathering.handle(ShardOverlapped(0, (Range(A, 1, 1),)), 1.0)
    assert cut == [RenewShard(0, 1), AskNeeds(1, (Range(A, 0, 1), Range(A, 2, 2)))]
    assert gathering.handle(NeedsAnswered(0), 1.0) == [], "that was the answer to the whole"
    # Record 3 is a duplicate of record 1, which another shard has quarantined.
    written = gathering.handle(NeedsAnswered(1, void=(Range(A, 3, 1),)), 1.0)
    assert written == [WriteShard(1, (Range(A, 0, 1), Range(A, 2, 1)), "end")]


def test_what_waits_behind_an_overlap_is_asked_for_again_soon() -> None:
    gathering = Gathering(POLICY, dependent=True)
    gathering.handle(BatchGathered(Range(A, 0, 4), 100, 10), 0.0)
    gathering.handle(NeedsAnswered(0), 0.0)
    gathering.handle(ShardWritten(0), 0.0)
    gathering.handle(SealAsked("end"), 0.0)
    gathering.handle(ShardOverlapped(0, (Range(A, 1, 1),)), 0.0)
    gathering.handle(NeedsAnswered(1, waiting=(Range(A, 3, 1),)), 0.0)
    gathering.handle(ShardWritten(1), 0.0)
    assert AskNeeds(2, (Range(A, 3, 1),)) in gathering.handle(SealTimePassed(), NEEDS_AGAIN_S)


# ---- what the tables say ----


def dependencies() -> DuplicateDependencies:
    found = DuplicateDependencies.of(
        Pipeline.chain("p", "d", read_jsonl("/in"), *dedup(), redact_pii(), write_jsonl()), "lines"
    )
    assert found is not None
    return found


def batch(
    fragment: bytes, kept: list[int], lost: dict[int, tuple[str, str, RecordName | None]], reason: str | None = None
) -> Batch:
    """Records that are kept, and others by stage, verdict and what they are duplicates of."""
    count = len(kept) + len(lost)
    keys = pa.array([bytes([row]) * (8 * 16) for row in kept], pa.binary(8 * 16))
    rows = pa.record_batch({"__row": pa.array(kept, pa.int64()), "id": pa.array(map(str, kept)), "__keys": keys})
    verdicts = [
        make_verdicts(
            rows=pa.array([row]), ids=pa.array([str(row)]), stage=stage, verdict=verdict, reasons=[reason],
            duplicates_of=[target],
        )
        for row, (stage, verdict, target) in lost.items()
    ]  # fmt: skip
    return Batch(fragment, "u", 0, count, -1, -1, rows, join_verdicts(no_verdicts(), *verdicts))


def at_sink(batch: Batch) -> SinkBatch:
    return SinkBatch.of(batch, fates(batch), dependencies())


def duplicate(fragment: bytes, row: int) -> tuple[str, str, RecordName]:
    return "dedup", "duplicate", RecordName(fragment, row)


def test_a_shard_needs_what_its_duplicates_name_and_it_does_not_keep() -> None:
    mine = batch(A, [0, 1], {2: duplicate(A, 0), 3: duplicate(B, 5), 4: duplicate(B, 1)})
    other = batch(B, [1], {0: duplicate(A, 3)})
    held = [at_sink(mine), at_sink(other)]
    assert needs(held) == ((A, (3,)), (B, (5,)))
    assert dependents(held, ((B, (5,)),)) == (Range(A, 3, 1),)
    assert dependents(held, ((B, (5,)), (B, (6,)))) == (Range(A, 3, 1),), "a fragment may be named twice"


def test_of_a_settled_record_nothing_is_asked() -> None:
    made = batch(A, [0], {1: duplicate(B, 5), 2: duplicate(A, 1), 3: duplicate(B, 7)})
    flags = pa.array([True, False, False], pa.bool_())
    at = made.verdicts.schema.get_field_index("named_settled")
    mine = at_sink(replace(made, verdicts=made.verdicts.set_column(at, "named_settled", flags)))
    assert needs([mine]) == ((A, (1,)), (B, (7,))), "a duplicate of a settled record stands no more than another"
    assert dependents([mine], ((B, (5, 7)),)) == (Range(A, 3, 1),)
    (cut,) = mine.cut(np.array([[1, 3, -1, -1]]))
    assert needs([cut]) == ((A, (1,)),)
    assert needs(joined([cut])) == ((A, (1,)),)


def test_what_dedup_let_through_and_another_stage_quarantined_is_released() -> None:
    lost = {1: ("pii", "quarantined", None), 2: ("lines", "quarantined", None), 3: ("read", "quarantined", None)}
    assert released([at_sink(batch(A, [0], {**lost, 4: duplicate(A, 0)}))]) == ((A, (1, 2)),)


def test_what_killed_before_dedup_is_released_as_well() -> None:
    lost = {1: ("read", "quarantined", None), 2: ("lines", "quarantined", None)}
    assert released([at_sink(batch(A, [0], lost, f"{KILLED}signal 11"))]) == ((A, (1, 2)),)
    assert released([at_sink(batch(A, [0], lost, "it is no record"))]) == ((A, (2,)),)


def test_a_duplicate_may_name_what_a_stage_behind_dedup_filtered() -> None:
    lost = {1: ("pii", "filtered", None), 2: ("pii", "quarantined", None)}
    mine = batch(A, [0], {**lost, 3: duplicate(A, 1), 4: duplicate(A, 2), 5: duplicate(A, 0)})
    assert needs([at_sink(mine)]) == ((A, (2,)),), "what was quarantined is given back"
    assert at_sink(mine).standing_rows().tolist() == [0, 1]
    assert released([at_sink(mine)]) == ((A, (2,)),)


def test_a_stage_behind_dedup_that_loses_the_keys_is_found_out() -> None:
    whole = batch(A, [0], {})
    bare = Batch(A, "u", 0, 1, -1, -1, whole.rows.select(["__row", "id"]), whole.verdicts)
    with pytest.raises(StageContractError, match="it must keep all columns"):
        dependencies().check(bare)


def test_a_sink_without_dedup_before_it_leans_on_nothing() -> None:
    assert DuplicateDependencies.of(Pipeline.chain("p", "d", read_jsonl("/in"), write_jsonl()), "lines") is None


def test_the_keys_of_what_is_kept_are_those_that_the_records_carry() -> None:
    from headrace.stages.dedup.stage import keys_of

    found = keys_of(batch(A, [3, 7], {}).rows.slice(1).column("__keys"))
    assert found.shape == (1, 16)
    assert (found == np.frombuffer(b"\7" * 8, "<u8")[0]).all()


def test_a_record_has_an_ordinal_below_a_limit_beside_its_fragment() -> None:
    last = (1 << ORDINAL_BITS) - 1
    assert not dependents((), ((b"a" * 16, (0, last)),))
    for beyond in (last + 1, -1):
        with pytest.raises(ValueError, match="an ordinal has"):
            dependents((), ((b"a" * 16, (beyond,)),))
