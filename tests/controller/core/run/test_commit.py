"""Proposals: conservation by ordinals, overlaps, and the same proposal twice."""

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from headrace.controller.core.messages.messages import (
    AnswerProposal,
    Command,
    Coverage,
    FragmentWasRead,
    KillTask,
    Outcome,
    ShardProposed,
)
from headrace.controller.core.run.proposals import Committer, ProposalJudgement, Waiter, conservation_fault
from headrace.store.ledger.core.entries import (
    Entry,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Range, StoredObject
from tests.kits.controller.core import Stand, bits, closed, fold, fragment, of, proposal

A, B = fragment(0), fragment(1)


def ledger() -> LedgerState:
    """Two fragments, of which the second has ended at 10 records; epoch 1, version v."""
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}),)))
    state.apply(1, Entry(1, (PipelineApplied("v", {}), EpochRaised("created"))))
    state.apply(2, Entry(1, (FragmentsListed((A, B)), FragmentEnded(B.id, 10))))
    return state


def judge(committer: Committer, event: ShardProposed) -> ProposalJudgement:
    return committer.judge(event, "v", 1)


def commit(state: LedgerState, committer: Committer, event: ShardProposed) -> list[Waiter]:
    state.apply(state.number + 1, Entry(1, (closed(event),)))
    return committer.durable(closed(event))


FAULTS = [
    (proposal([]), "a shard that closes no records"),
    (proposal([Range(b"?" * 16, 0, 2)]), "was never listed"),
    (proposal([Range(A.id, 5, 0)]), "a range of 0 records of file:///in/0"),
    (proposal([Range(B.id, 8, 3)]), "records 8..10 are beyond the end of file:///in/1"),
    (proposal([Range(A.id, 0, 2), Range(A.id, 1, 2)]), "records 1..2 of file:///in/0 stand in the proposal twice"),
    (proposal([Range(A.id, 5, 3)], kept=[bits(0, 2)]), "file:///in/0: record 6 has no verdict"),
    (
        proposal([Range(A.id, 5, 3)], kept=[bits(0, 1)], other=[bits(1, 2)]),
        "file:///in/0: record 6 is kept and has another verdict",
    ),
    (proposal([Range(A.id, 5, 3)], kept=[bits(0, 1, 2, 3)]), "file:///in/0: a verdict for a record beyond 7"),
    (
        proposal([Range(A.id, 0, 2)], kept=[bits(0)], other=[bits(1)], counted=2),
        "1 records are marked kept, 2 are counted",
    ),
    # Counts alone would let this one pass: one record twice, another not at all.
    (
        proposal([Range(A.id, 0, 3)], kept=[bits(0, 1)], other=[bits(1)]),
        "file:///in/0: record 1 is kept and has another verdict",
    ),
]


@pytest.mark.parametrize(("event", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
def test_a_proposal_that_does_not_account_for_each_record_once_is_refused(event: ShardProposed, reason: str) -> None:
    judgement = judge(Committer(ledger()), event)
    assert judgement.outcome is Outcome.REFUSED
    assert reason in judgement.reason
    assert judgement.closed is None


def test_ranges_without_their_coverage_are_refused() -> None:
    whole = proposal([Range(A.id, 0, 2)])
    torn = ShardProposed(*(() if name == "coverage" else getattr(whole, name) for name in whole.__struct_fields__))
    assert judge(Committer(ledger()), torn).reason == "1 ranges with 0 coverages"


@pytest.mark.parametrize(("version", "epoch"), [("w", 1), ("v", 2), ("v", 0)])
def test_work_of_another_version_or_epoch_is_refused(version: str, epoch: int) -> None:
    judgement = judge(Committer(ledger()), proposal([Range(A.id, 0, 2)], version=version, epoch=epoch))
    assert judgement.outcome is Outcome.REFUSED
    assert judgement.reason == f"made by version {version} in epoch {epoch}; here run version v, epoch 1"


def test_a_sound_proposal_is_queued_and_answered_when_it_is_durable() -> None:
    state = ledger()
    committer = Committer(state)
    event = proposal([Range(A.id, 0, 4), Range(B.id, 0, 10)], number=7)
    assert judge(committer, event) == ProposalJudgement(closed=closed(event))
    assert not committer.empty
    assert commit(state, committer, event) == [Waiter("run/read.0", 1, 7)]
    assert committer.empty


def test_the_same_proposal_again_has_no_second_effect_and_the_same_answer() -> None:
    state = ledger()
    committer = Committer(state)
    event, again = (proposal([Range(A.id, 0, 4)], number=number) for number in (1, 2))
    judge(committer, event)
    assert judge(committer, again) == ProposalJudgement()
    assert [waiter.proposal for waiter in commit(state, committer, event)] == [1, 2]
    assert judge(committer, again) == ProposalJudgement(outcome=Outcome.ACCEPTED)
    assert len(state.shards) == 1


def test_an_overlap_with_what_is_closed_is_told_part_by_part() -> None:
    state = ledger()
    committer = Committer(state)
    for first in (2, 6):
        event = proposal([Range(A.id, first, 2)])
        judge(committer, event)
        commit(state, committer, event)
    judgement = judge(committer, proposal([Range(B.id, 0, 1), Range(A.id, 0, 7)]))
    assert judgement.outcome is Outcome.OVERLAPS
    assert judgement.overlaps == (Range(A.id, 2, 2), Range(A.id, 6, 1))


def test_an_overlap_with_what_is_only_queued_is_told_too() -> None:
    committer = Committer(ledger())
    judge(committer, proposal([Range(A.id, 0, 4), Range(B.id, 0, 2)]))
    judgement = judge(committer, proposal([Range(A.id, 2, 4)]))
    assert judgement.outcome is Outcome.OVERLAPS
    assert judgement.overlaps == (Range(A.id, 2, 2),)
    assert judge(committer, proposal([Range(A.id, 4, 2)])).closed is not None


def test_what_another_sink_has_queued_is_no_overlap() -> None:
    committer = Committer(ledger())
    judge(committer, structs.replace(proposal([Range(A.id, 0, 4)]), sink="copy"))
    assert judge(committer, proposal([Range(A.id, 2, 4)])).closed is not None


def test_an_object_of_another_epoch_is_refused() -> None:
    for epoch, accepted in ((0, False), (1, True), (2, False)):
        stored = StoredObject("tokens", f"shards/{epoch}/{'a' * 32}.safetensors", "xxh3-128:" + "b" * 32, 1)
        judgement = judge(Committer(ledger()), structs.replace(proposal([Range(A.id, 0, 4)]), objects=(stored,)))
        assert (judgement.closed is not None) is accepted
        assert ("outside of epoch 1" in judgement.reason) is not accepted


RANGE = Range(b"f" * 16, 3, 20)


@given(st.integers(0, (1 << 22) - 1), st.integers(0, (1 << 22) - 1))
def test_conservation_holds_exactly_when_each_record_has_one_fate(kept: int, other: int) -> None:
    cover = Coverage(kept.to_bytes(3, "little"), other.to_bytes(3, "little"))
    fates = [(kept >> bit & 1) + (other >> bit & 1) for bit in range(22)]
    sound = fates == [1] * RANGE.count + [0, 0]
    assert (conservation_fault(RANGE, cover) == "") == sound


@given(st.sets(st.integers(0, 19)))
def test_any_parting_of_the_records_is_conservation(kept: set[int]) -> None:
    cover = Coverage(bits(*kept), bits(*set(range(20)) - kept))
    assert conservation_fault(RANGE, cover) == ""


def killed(said: list[Command]) -> list[str]:
    return [kill.reason.partition(": ")[2] for kill in of(KillTask, said)]


def outcomes(said: list[Command]) -> list[Outcome]:
    return [answer.outcome for answer in of(AnswerProposal, said)]


def test_an_end_below_what_is_closed_ends_its_task_alone() -> None:
    stand = Stand()
    stand.begin(A)
    stand.propose(Range(A.id, 0, 5))
    assert killed(stand.read(A, 3)) == [f"{A.uri} ends at 3 records, and 5 of it are closed"]
    assert not stand.run.ended
    assert fold(stand.log).fragments[A.id].count is None


def test_an_end_below_a_queued_shard_ends_its_task_alone() -> None:
    stand = Stand()
    stand.begin(A)
    stand.unresolved = True
    stand.propose(Range(A.id, 0, 1))
    stand.propose(Range(A.id, 1, 6), number=1)
    assert killed(stand.read(A, 3)) == [f"{A.uri} ends at 3 records, and 7 of it are closed"]
    stand.unresolved = False
    stand.later(1.0)
    assert list(fold(stand.log).fragments[A.id].of("write")) == [(0, 7)]


def test_a_shard_beyond_a_queued_end_is_refused() -> None:
    stand = Stand()
    stand.begin(A)
    stand.unresolved = True
    stand.propose(Range(A.id, 0, 1))
    stand.read(A, 3)
    assert outcomes(stand.propose(Range(A.id, 1, 6), number=1)) == [Outcome.REFUSED]
    stand.unresolved = False
    stand.later(1.0)
    assert fold(stand.log).fragments[A.id].count == 3


@pytest.mark.parametrize("queued", [False, True])
def test_ends_that_no_sum_holds_end_their_task(queued: bool) -> None:
    stand = Stand()
    stand.begin(A, B)
    stand.unresolved = queued
    assert killed(stand.read(A, 1 << 62)) == []
    (why,) = killed(stand.read(B, 1))
    assert "no sum holds that" in why
    stand.unresolved = False
    stand.later(1.0)
    assert fold(stand.log).totals.records_of_ended == 1 << 62


def test_an_end_with_half_a_checksum_ends_its_task_alone() -> None:
    stand = Stand()
    stand.begin(A)
    said = stand.tell(FragmentWasRead(*stand.task(), A.id, 3, checksum=b"half"))
    assert killed(said) == [f"{A.uri} has a checksum of 4 bytes"]
    fold(stand.log)


def counting(stand: Stand, item: Range, counts: Counts, number: int = 0) -> list[Command]:
    """A proposal with these counts."""
    task, attempt = stand.task()
    event = proposal((item,), version=stand.run.version, epoch=stand.run.ledger.epoch, task=task, attempt=attempt)
    return stand.tell(structs.replace(event, proposal=number, counts=counts))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Counts(kept=1, tokens=(1 << 62) + 5), Counts(kept=1, tokens=(1 << 62) + 5)),
        (Counts(kept=1, edited={"a/b": 1 << 62}), Counts(kept=1, counters={"a/b": 1 << 62})),
    ],
    ids=["of one name", "of a name that readers take for another"],
)
@pytest.mark.parametrize("queued", [False, True])
def test_counts_that_add_up_to_no_number_are_refused(first: Counts, second: Counts, queued: bool) -> None:
    stand = Stand()
    stand.begin(A)
    stand.unresolved = queued
    assert Outcome.REFUSED not in outcomes(counting(stand, Range(A.id, 0, 1), first))
    assert outcomes(counting(stand, Range(A.id, 1, 1), second, 1)) == [Outcome.REFUSED]
    stand.unresolved = False
    stand.later(1.0)
    assert len(fold(stand.log).shards) == 1


def test_a_shard_that_no_reader_of_the_log_takes_is_refused() -> None:
    sound = proposal([Range(A.id, 0, 2)])
    stored = StoredObject("documents", sound.objects[0].key, sound.objects[0].checksum, 1)
    wrong = (
        structs.replace(sound, counts=Counts(kept=2, filtered_by={"keep/rule": -1})),
        structs.replace(sound, counts=Counts(kept=2, filtered=1)),
        structs.replace(sound, objects=(stored,)),
        structs.replace(sound, ranges=(Range(A.id, 0, 2, 1 << 63),)),
    )
    assert judge(Committer(ledger()), sound).closed is not None
    assert [judge(Committer(ledger()), event).outcome for event in wrong] == [Outcome.REFUSED] * len(wrong)
