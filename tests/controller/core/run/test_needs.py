"""What duplicates lean on, and what the loss of an index leads to: the controller's half of deduplication."""

from dataclasses import replace

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.dedup import Records
from headrace.controller.core.run.proposals import Closings, Committer, unmet
from headrace.controller.core.run.states import RunState
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import (
    ClaimsReleased,
    Entry,
    EpochRaised,
    FragmentDropped,
    FragmentsListed,
    Led,
    PipelineApplied,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Range
from headrace.store.shards.dedup_files import RecordName
from tests.kits.controller.cluster_log import Bench, Store, living, succeeded
from tests.kits.controller.core import Stand, bits, changes, closed, fragment, of, proposal
from tests.kits.store.duplicates import leaning_faults

A, B = fragment(0), fragment(1)


def ledger() -> LedgerState:
    """Two fragments; of the first the records 0 to 3 are closed, of which 3 was released."""
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}),)))
    state.apply(1, Entry(1, (PipelineApplied("v", {}), EpochRaised("created"), FragmentsListed((A, B)))))
    first = closed(proposal([Range(A.id, 0, 4)], kept=[bits(0, 1, 2)], other=[bits(3)]))
    state.apply(2, Entry(1, (first, ClaimsReleased("write", ((A.id, (3,)),)))))
    return state


def leaning(*needs: tuple[bytes, tuple[int, ...]]) -> m.ShardProposed:
    """Of two records of B the second is a duplicate."""
    return structs.replace(proposal([Range(B.id, 0, 2)], kept=[bits(0)], other=[bits(1)]), needs=needs)


def judge(committer: Committer, event: m.ShardProposed) -> m.Outcome | None:
    return committer.judge(event, "v", 1).outcome


# ---- needs ----


def test_a_duplicate_of_a_record_that_is_kept_is_queued() -> None:
    assert judge(Committer(ledger(), ("write",)), leaning((A.id, (0, 2)))) is None


@pytest.mark.parametrize(
    "needs",
    [(A.id, (0, 4)), (A.id, (3,)), (b"?" * 16, (0,))],
    ids=["open", "released", "unknown"],
)
def test_a_duplicate_of_a_record_that_is_not_kept_is_refused(needs: tuple[bytes, tuple[int, ...]]) -> None:
    judgement = Committer(ledger(), ("write",)).judge(leaning(needs), "v", 1)
    assert judgement.outcome is m.Outcome.REFUSED
    assert f"record {needs[1][-1]} of fragment {needs[0].hex()}, which is not kept" in judgement.reason


def test_a_duplicate_of_a_queued_record_is_refused_until_logged() -> None:
    state = ledger()
    committer = Committer(state, ("write",))
    queued = committer.judge(proposal([Range(A.id, 4, 1)]), "v", 1).closed
    assert queued is not None
    assert judge(committer, leaning((A.id, (4,)))) is m.Outcome.REFUSED
    state.apply(3, Entry(1, (queued,)))
    assert judge(committer, leaning((A.id, (4,)))) is None


def test_a_duplicate_leans_on_no_record_that_a_queued_shard_quarantines() -> None:
    committer = Committer(ledger(), ("write",))
    dead = proposal([Range(A.id, 4, 1)], kept=[bits()], other=[bits(0)])
    assert judge(committer, structs.replace(dead, released=((A.id, (4,)),))) is None
    assert judge(committer, leaning((A.id, (4,)))) is m.Outcome.REFUSED


def test_without_needs_a_duplicate_leans_on_nothing_and_that_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant "needs skipped"."""
    monkeypatch.setattr(Committer, "_needs_fault", lambda *_: "")
    state = ledger()
    judgement = Committer(state, ("write",)).judge(leaning((A.id, (4,))), "v", 1)
    assert judgement.closed is not None
    state.apply(3, Entry(1, (judgement.closed,)))
    kept = {RecordName(A.id, row): 2 for row in range(3)} | {RecordName(B.id, 0): 3}
    (found,) = leaning_faults([(3, RecordName(B.id, 1), RecordName(A.id, 4))], kept)
    assert found.endswith(f"is a duplicate of {RecordName(A.id, 4)}, which is not kept")


def test_records_are_told_apart_into_kept_open_and_gone() -> None:
    state = ledger()
    everything: Records = ((A.id, (0, 3, 9)), (B.id, (1,)))
    assert unmet(Closings(state, ("write",)), everything) == (((A.id, (9,)), (B.id, (1,))), ((A.id, (3,)),))
    assert unmet(Closings(state, ("another",)), ((A.id, (0,)),)) == (((A.id, (0,)),), ())
    state.apply(3, Entry(1, (FragmentDropped(B.id, "it changed", reread=False),)))
    assert unmet(Closings(state, ("write",)), ((B.id, (1,)),)) == ((), ((B.id, (1,)),))


def test_of_several_sinks_one_that_has_closed_a_record_is_enough() -> None:
    state = ledger()
    closings, asked = Closings(state, ("write", "archive", "sample")), ((A.id, (0, 3, 9)),)
    assert unmet(closings, asked) == (((A.id, (3, 9)),), ()), "another sink may still keep what one has released"
    later = closed(structs.replace(proposal([Range(A.id, 3, 1)], kept=[bits()], other=[bits(0)]), sink="archive"))
    state.apply(3, Entry(1, (later, ClaimsReleased("archive", ((A.id, (3,)),)))))
    assert unmet(closings, asked) == (((A.id, (3, 9)),), ())
    state.apply(4, Entry(1, (closed(structs.replace(proposal([Range(A.id, 3, 1)]), sink="sample")),)))
    assert unmet(closings, asked) == (((A.id, (9,)),), ())


def test_what_all_sinks_have_released_is_gone() -> None:
    state = ledger()
    for number, sink in ((3, "archive"), (4, "sample")):
        shard = closed(structs.replace(proposal([Range(A.id, 3, 1)], kept=[bits()], other=[bits(0)]), sink=sink))
        state.apply(number, Entry(1, (shard, ClaimsReleased(sink, ((A.id, (3,)),)))))
    assert unmet(Closings(state, ("write", "archive", "sample")), ((A.id, (3,)),)) == ((), ((A.id, (3,)),))


def test_what_an_earlier_epoch_closed_says_nothing_of_this_one() -> None:
    state = ledger()
    closings, asked = Closings(state, ("write", "archive")), ((A.id, (0,)),)
    assert unmet(closings, asked) == ((), ())
    state.apply(3, Entry(1, (EpochRaised("another version"),)))
    assert unmet(closings, asked) == (asked, ())
    state.apply(4, Entry(1, (closed(structs.replace(proposal([Range(A.id, 0, 1)], epoch=3), sink="archive")),)))
    assert unmet(closings, asked) == ((), ())


# ---- a run with a decider ----


def pipeline() -> Pipeline:
    return Pipeline.chain(
        "run",
        "file:///data",
        Stage("read", StageKind.SOURCE, "m:read"),
        Stage("dedup", StageKind.STATEFUL, "m:dedup", replicas=1),
        # In a task of its own, and not in that of the source.
        Stage("write", StageKind.SINK, "m:write", replicas=1),
    )


READ, DEDUP, WRITE = range(3)


def begun(stand: Stand, of_pipeline: Pipeline | None = None) -> list[m.Command]:
    """A run whose source, decider and sink are tasks of their own, and whose input is listed."""
    stand.join("w1")
    return stand.listed(stand.ready(stand.apply(of_pipeline or pipeline())), A, B)


def propose(stand: Stand, *ranges: Range, number: int = 0) -> list[m.Command]:
    task, attempt = stand.task(WRITE)
    run = stand.run
    event = proposal(ranges, version=run.version, epoch=run.ledger.epoch, task=task, attempt=attempt, number=number)
    return stand.tell(event)


def ask(stand: Stand, *records: tuple[bytes, tuple[int, ...]]) -> list[m.Command]:
    return stand.tell(m.NeedsAsked(*stand.task(WRITE), 0, "write", records))


def swept(stand: Stand, commands: list[m.Command], *held: Range) -> list[m.Command]:
    """Every task answers a sweep; the sink holds `held`."""
    return stand.tell(
        *(
            m.TaskSwept(
                order.task, order.attempt, order.sweep, held=(("write", held),) if "write" in order.task else ()
            )
            for order in of(m.SweepTask, commands)
        )
    )


def test_a_sink_is_told_what_is_open_while_it_may_still_come() -> None:
    stand = Stand()
    begun(stand)
    propose(stand, Range(A.id, 0, 4))
    (answer,) = of(m.AnswerNeeds, ask(stand, (A.id, (1, 7))))
    assert (answer.open, answer.gone) == (((A.id, (7,)),), ())


def test_an_unkept_claim_is_released_and_its_dependents_read_again() -> None:
    stand = Stand()
    begun(stand)
    task, attempt = stand.task(WRITE)
    run = stand.run
    event = proposal([Range(A.id, 0, 2)], kept=[bits(0)], other=[bits(1)], version=run.version, task=task)
    stand.tell(structs.replace(event, attempt=attempt, epoch=run.ledger.epoch, released=((A.id, (1,)),)))
    assert "ClaimsReleased" in changes(stand)
    commands = ask(stand, (A.id, (0, 1)))
    assert of(m.ReleaseClaims, commands) == [m.ReleaseClaims("w1", *stand.task(DEDUP), ((A.id, (1,)),))]
    (answer,) = of(m.AnswerNeeds, commands)
    assert (answer.open, answer.gone) == ((), ((A.id, (1,)),))
    assert len(of(m.SweepTask, commands)) == 3


def test_each_decider_lets_go_of_a_record_that_nobody_keeps() -> None:
    stages = [replace(stage, after=()) for stage in pipeline().stages]
    again = (Stage("again", StageKind.TRANSFORM, "m:again"), replace(stages[1], name="second"))
    stand = Stand()
    begun(stand, Pipeline.chain("run", "file:///data", *stages[:2], *again, stages[2]))
    tasks = {task.plan.stages[0]: (task.plan.name, task.attempt) for task in stand.run.tasks or ()}
    event = proposal([Range(A.id, 0, 2)], kept=[bits(0)], other=[bits(1)], version=stand.run.version)
    (name, attempt), gone = tasks["write"], ((A.id, (1,)),)
    stand.tell(structs.replace(event, task=name, attempt=attempt, epoch=stand.run.ledger.epoch, released=gone))
    commands = stand.tell(m.NeedsAsked(name, attempt, 0, "write", gone))
    assert of(m.ReleaseClaims, commands) == [
        m.ReleaseClaims("w1", *tasks[stage], gone) for stage in ("dedup", "second")
    ]


def killed(stand: Stand) -> list[m.Command]:
    """The decider dies; what is said until its next attempt is ready."""
    stand.tell(m.TaskExited(*stand.task(DEDUP), -9))
    started = stand.later(1.0)
    assert [(start.task, start.fenced) for start in of(m.StartTask, started)] == [("run/dedup.0", True)]
    return stand.ready(started)


def test_proposals_during_the_epochs_write_are_not_queued_behind_it() -> None:
    stand = Stand()
    begun(stand)
    sweep, epoch = killed(stand), stand.run.ledger.epoch
    stand.unresolved = True
    assert of(m.SealSink, swept(stand, sweep))
    # From a sink that was given up, and that holds what this sweep did not see.
    assert propose(stand, Range(A.id, 0, 4)) == []
    stand.unresolved = False
    assert of(m.StopTask, stand.later(10.0))
    assert stand.run.ledger.epoch > epoch
    assert "Closed" not in changes(stand)


def test_released_verdicts_are_looked_for_before_the_run_ends() -> None:
    stand = Stand()
    begun(stand)
    read = stand.tell(*(m.FragmentWasRead(*stand.task(READ), item.id, 8) for item in (A, B)))
    sealed = swept(stand, read, Range(A.id, 0, 8), Range(B.id, 0, 8))
    assert [order.reason for order in of(m.SealSink, sealed)] == ["end"]
    commands = stand.tell(m.VerdictsLetGo(*stand.task(WRITE)))
    assert len(of(m.SweepTask, commands)) == 3
    again = swept(stand, commands, Range(A.id, 0, 8), Range(B.id, 0, 7))
    (order,) = of(m.ReadFragment, again)
    assert (order.fragment.id, order.gaps[0].first) == (B.id, 7)


def test_an_indexs_death_raises_the_epoch_once_sinks_have_committed() -> None:
    stand = Stand()
    begun(stand)
    epoch = stand.run.ledger.epoch
    sweep = killed(stand)
    assert {order.halt for order in of(m.SweepTask, sweep)} == {True}
    sealed = swept(stand, sweep, Range(A.id, 0, 4))
    assert [order.reason for order in of(m.SealSink, sealed)] == ["pause"]
    assert stand.run.ledger.epoch == epoch, "what sinks hold is committed in the old epoch"
    commands = propose(stand, Range(A.id, 0, 4))
    assert stand.run.ledger.epoch > epoch
    assert {stop.task for stop in of(m.StopTask, commands)} == {"run/read.0", "run/dedup.0", "run/write.0"}
    starts = of(m.StartTask, [*commands, *stand.later(0.1)])
    assert {(start.task, start.epoch, start.fenced) for start in starts} == {
        (name, stand.run.ledger.epoch, False) for name in ("run/read.0", "run/dedup.0", "run/write.0")
    }
    orders = of(m.ReadFragment, [*stand.ready(starts), *stand.later(0.1)])
    assert {order.fragment.id: order.gaps[0].first for order in orders} == {A.id: 4, B.id: 0}
    assert stand.run.state is RunState.RUNNING


def test_dependents_of_a_lost_record_do_not_hold_up_the_epoch() -> None:
    stand = Stand()
    begun(stand)
    epoch = stand.run.ledger.epoch
    swept(stand, killed(stand), Range(A.id, 0, 4))
    # Record 2 leans on one that no sink holds: it is let go of, and another sweep sees that.
    commands = ask(stand, (B.id, (7,)))
    (answer,) = of(m.AnswerNeeds, commands)
    assert answer.gone == ((B.id, (7,)),)
    swept(stand, commands, Range(A.id, 0, 2), Range(A.id, 3, 1))
    propose(stand, Range(A.id, 0, 2), Range(A.id, 3, 1))
    assert stand.run.ledger.epoch > epoch


def test_while_a_marker_is_on_its_way_again_nothing_is_called_lost() -> None:
    stand = Stand()
    begun(stand)
    swept(stand, killed(stand), Range(A.id, 0, 4))
    assert of(m.SweepTask, ask(stand, (B.id, (7,)))), "another marker goes through"
    (answer,) = of(m.AnswerNeeds, ask(stand, (A.id, (1,)), (B.id, (6,))))
    assert (answer.open, answer.gone) == (((A.id, (1,)), (B.id, (6,))), ())


def test_while_a_shard_is_queued_for_the_log_nothing_is_called_lost() -> None:
    stand = Stand()
    begun(stand)
    sweep = killed(stand)
    stand.unresolved = True
    # Of a sink that was given up: it is queued, and no sink holds it.
    propose(stand, Range(B.id, 0, 8))
    swept(stand, sweep, Range(A.id, 0, 4))
    (answer,) = of(m.AnswerNeeds, ask(stand, (B.id, (7,))))
    assert (answer.open, answer.gone) == (((B.id, (7,)),), ())


def test_a_claim_of_halted_input_without_sink_ends_with_its_epoch() -> None:
    stand = Stand()
    begun(stand)
    first, epoch = stand.task(WRITE), stand.run.ledger.epoch
    # A sink that is given up has a record of A, and A changes before that is read again.
    stand.tell(m.TaskExited(*first, -9))
    stand.tell(m.FragmentWasRead(*stand.task(READ), A.id, -1, "it changed", changed=True))
    sweep = stand.ready(stand.later(1.0))
    swept(stand, sweep)
    commands = ask(stand, (A.id, (3,)))
    (answer,) = of(m.AnswerNeeds, commands)
    assert answer.gone == ((A.id, (3,)),), "what leans on it is read again"
    assert of(m.ReleaseClaims, commands) == [], "that sink may come back and have it closed"
    assert {order.halt for order in of(m.SweepTask, commands)} == {True}
    starts = of(m.StartTask, [*swept(stand, commands), *stand.later(0.1)])
    assert stand.run.ledger.epoch > epoch
    assert {start.epoch for start in starts} == {stand.run.ledger.epoch}
    late = proposal([Range(A.id, 3, 1)], version=stand.run.version, epoch=epoch, task=first[0], attempt=first[1])
    assert (
        Committer(stand.run.ledger, ("write",)).judge(late, stand.run.version, stand.run.ledger.epoch).outcome
        is m.Outcome.REFUSED
    )
    orders = of(m.ReadFragment, [*stand.ready(starts), *stand.later(0.1)])
    assert {order.fragment.id for order in orders} == {B.id}


def test_a_run_begins_one_epoch_with_its_pipeline() -> None:
    stand = Stand()
    begun(stand)
    assert changes(stand)[:4] == ["Led", "PipelineApplied", "EpochRaised", "FragmentsListed"]


def test_behind_a_new_epoch_what_is_open_may_still_come() -> None:
    stand = Stand()
    begun(stand)
    swept(stand, killed(stand), Range(A.id, 0, 4))
    starts = of(m.StartTask, [*propose(stand, Range(A.id, 0, 4)), *stand.later(0.1)])
    stand.ready(starts)
    assert stand.run.state is RunState.RUNNING
    (answer,) = of(m.AnswerNeeds, ask(stand, (A.id, (1, 7))))
    assert (answer.open, answer.gone) == (((A.id, (7,)),), ())


@pytest.mark.parametrize("victim", [READ, WRITE], ids=["source", "sink"])
def test_the_death_of_another_task_raises_no_epoch(victim: int) -> None:
    stand = Stand()
    begun(stand)
    epoch = stand.run.ledger.epoch
    stand.tell(m.TaskExited(*stand.task(victim), -9))
    started = stand.later(1.0)
    assert [start.fenced for start in of(m.StartTask, started)] == [False]
    swept(stand, stand.ready(started))
    assert (stand.run.ledger.epoch, stand.run.state) == (epoch, RunState.RUNNING)


def test_an_index_that_dies_unserved_is_begun_again_in_its_epoch() -> None:
    stand = Stand()
    stand.join("w1")
    starts = of(m.StartTask, stand.apply(pipeline()))
    decider = next(start for start in starts if "dedup" in start.stages)
    stand.tell(m.TaskExited(decider.task, decider.attempt, 1))
    assert [start.fenced for start in of(m.StartTask, stand.later(1.0))] == [False]


def test_a_run_on_an_existing_dataset_begins_an_epoch_with_index() -> None:
    first = Stand()
    begun(first)
    propose(first, Range(A.id, 0, 4))
    first.tell(m.StopRequested("run", cancel=True))
    second = Stand(first.log)
    second.leader_alive = False
    second.join("w1")
    starts = of(m.StartTask, second.apply(pipeline()))
    closed_at = changes(second).index("Closed")
    assert "EpochRaised" in changes(second)[closed_at:]
    assert {start.epoch for start in starts} == {second.run.ledger.epoch}
    assert second.run.ledger.epoch == len(second.log) - 1


def test_a_decider_cannot_be_scaled() -> None:
    stand = Stand()
    begun(stand)
    (answer,) = of(m.AnswerRequest, stand.tell(m.SteerRequested(7, "run", replicas={"dedup": 2})))
    assert not answer.accepted
    assert "one decides" in answer.reason


def test_what_is_fused_past_a_decider_is_scaled_without_it() -> None:
    alone = [replace(stage, replicas=1, after=()) for stage in pipeline().stages]
    stand = Stand()
    stand.join("w1")
    starts = of(m.StartTask, stand.apply(Pipeline.chain("run", "file:///data", *alone)))
    assert [start.stages for start in starts] == [("read", "write"), ("dedup",)]
    stand.tell(*(m.TaskReady(start.task, start.attempt) for start in starts))
    stand.tell(m.SteerRequested(7, "run", replicas={"read": 2}))
    assert [dict(change.replicas) for change in stand.run.reconfiguration.waiting] == [{"read": 2, "write": 2}]


def taken_over(*, decider_lives: bool, linked: bool = True, fenced: bool = False) -> tuple[Bench, list[m.Command]]:
    """Another leader takes over from the one that began the run; the worker comes with what it still has."""
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    starts = of(m.StartTask, first.tell(m.PipelineRequested(1, pipeline().to_dict(), replicas=1)))
    first.tell(*(m.TaskReady(start.task, start.attempt) for start in starts))
    second = succeeded(store)
    lives = [
        structs.replace(living(start), linked=linked, fenced=fenced and "dedup" in start.stages)
        for start in starts
        if decider_lives or "dedup" not in start.stages
    ]
    return second, second.join("w1", *lives)


def test_an_index_that_outlives_its_leader_serves_on() -> None:
    second, commands = taken_over(decider_lives=True)
    assert of(m.StartTask, commands) == of(m.KillTask, commands) == []
    (run,) = second.core.runs.values()
    assert run.tasks is not None
    assert (run.state, run.tasks.index.lost) == (RunState.RUNNING, False)


def test_an_index_that_died_with_its_leader_is_missed_by_the_next() -> None:
    second, commands = taken_over(decider_lives=False)
    (start,) = of(m.StartTask, commands)
    assert ("dedup" in start.stages, start.fenced) == (True, True)
    (run,) = second.core.runs.values()
    second.tell(m.TaskReady(start.task, start.attempt))
    assert run.state is RunState.PAUSING


def test_the_next_leader_raises_the_epoch_that_was_due() -> None:
    second, commands = taken_over(decider_lives=True, fenced=True)
    assert of(m.StartTask, commands) == of(m.KillTask, commands) == []
    (run,) = second.core.runs.values()
    assert run.tasks is not None
    assert (run.state, run.tasks.index.lost) == (RunState.PAUSING, True)


def test_a_decider_that_says_it_is_fenced_raises_the_epoch() -> None:
    """A partition was lost, the leader that knew it too, and the partition has come back to the next one."""
    second, commands = taken_over(decider_lives=True)
    (run,) = second.core.runs.values()
    assert run.tasks is not None
    sweeps = {"dedup" in ask.task: ask for ask in of(m.SweepTask, commands)}
    source, decider = sweeps[False], sweeps[True]
    second.tell(m.TaskSwept(source.task, source.attempt, source.sweep, fenced=True))
    assert not run.tasks.index.lost, "no index is there that could be lost"
    second.tell(m.TaskSwept(decider.task, decider.attempt - 1, decider.sweep, fenced=True))
    assert not run.tasks.index.lost, "of an earlier attempt"
    second.tell(m.TaskSwept(decider.task, decider.attempt, decider.sweep, fenced=True))
    assert (run.state, run.tasks.index.lost) == (RunState.PAUSING, True)


def test_an_index_without_a_link_does_not_serve_another_leader() -> None:
    """Its own leader may have given it up before it was ready, and let another serve."""
    _, commands = taken_over(decider_lives=True, linked=False)
    assert ["dedup" in kill.task for kill in of(m.KillTask, commands)] == [True]
    assert [("dedup" in start.stages, start.fenced) for start in of(m.StartTask, commands)] == [(True, True)]


def test_an_index_that_comes_back_ready_to_its_own_leader_has_served() -> None:
    stand = Stand()
    stand.join("w1")
    starts = of(m.StartTask, stand.apply(pipeline()))
    stand.tell(m.WorkerLost("w1", "its connection broke"))
    brought = [(start.task, start.attempt, start.version, start.epoch, True) for start in starts]
    assert of(m.StartTask, stand.join("w1", tasks=tuple(brought))) == []
    stand.tell(m.TaskExited(*stand.task(DEDUP), -9))
    assert [start.fenced for start in of(m.StartTask, stand.later(1.0))] == [True]
