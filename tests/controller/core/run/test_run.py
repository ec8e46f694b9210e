"""A run from its request to its end: admission, reading, deaths, drains, and handing the log over."""

from typing import Any, cast

import pytest

from headrace.controller.core.log.leader import TAKEOVER_S, LeaderState
from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.publishing import MANIFEST_AGAIN_S
from headrace.controller.core.run.run import OPENING_S_MAX
from headrace.controller.core.run.states import RunState
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM, START_S_MAX
from headrace.store.ledger.core.entries import (
    Beat,
    Closed,
    Entry,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    Resigned,
    VersionPublished,
)
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import LOG, Stand, changes, fragment, make_pipeline, of, proposal

A, B = fragment(0), fragment(1)
COUNT = 10


def complete(stand: Stand) -> list[m.Command]:
    """Begin, read one fragment, close it, and end."""
    stand.begin(A)
    commands = stand.read(A, COUNT)
    return [*stand.swept(commands, Range(A.id, 0, COUNT)), *stand.propose(Range(A.id, 0, COUNT))]


def answers(commands: list[m.Command]) -> list[m.AnswerRequest]:
    return of(m.AnswerRequest, commands)


# -- the store takes no first entry --


@pytest.mark.parametrize("full", [False, True])
def test_a_full_store_is_waited_for_and_a_silent_one_not(
    full: bool,
) -> None:
    stand = Stand()
    stand.unresolved, stand.stalled = True, full
    stand.join("w1")
    said = stand.apply()
    for _ in range(4):
        said += stand.later(OPENING_S_MAX / 2)
    assert [report.outcome for report in of(m.ReportRun, said)] == ([] if full else ["failed"])
    assert stand.run.trouble(stand.now) or not full
    stand.unresolved = False
    stand.later(OPENING_S_MAX)
    assert ("PipelineApplied" in changes(stand)) == full


# -- the whole way --


def test_a_run_reads_closes_publishes_and_hands_the_log_over() -> None:
    stand = Stand()
    commands = complete(stand)
    assert changes(stand) == [
        *("Led", "PipelineApplied", "EpochRaised", "FragmentsListed", "FragmentEnded", "Closed"),
        *("VersionPublished", "Resigned"),
    ]
    assert of(m.SealSink, commands)[0].reason == "end"
    assert of(m.AnswerProposal, commands)[0].outcome is m.Outcome.ACCEPTED
    assert of(m.WriteManifest, commands) == [m.WriteManifest(LOG, 1)]
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "completed")]
    assert len(of(m.StopTask, commands)) == 1
    assert stand.run.over
    assert stand.core.wake_at() is None


def test_a_task_whose_source_has_sent_all_seals_at_once() -> None:
    stand = Stand()
    commands = stand.begin(A, B)
    task, attempt = (order := of(m.ReadFragment, commands)[0]).task, order.attempt
    assert of(m.SealSink, stand.tell(m.FragmentWasRead(task, attempt, A.id, 10))) == []
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, 10))
    assert [(seal.task, seal.reason) for seal in of(m.SealSink, said)] == [(task, "all is read")]
    assert of(m.SealSink, stand.tell(m.TimePassed())) == [], "it is asked once"


def test_a_manifest_without_room_is_written_again_until_there_is_some() -> None:
    stand = Stand()
    stand.full = "no room"
    commands = complete(stand)
    for _ in range(10):
        assert of(m.WriteManifest, commands) == [m.WriteManifest(LOG, 1)]
        assert of(m.ReportRun, commands) == []
        assert stand.run.trouble(stand.now) == "no room"
        assert stand.core.wake_at() is not None
        commands = stand.later(MANIFEST_AGAIN_S)
    stand.full = ""
    assert of(m.ReportRun, stand.later(MANIFEST_AGAIN_S)) == [m.ReportRun("run", "completed")]
    assert stand.run.trouble(stand.now) == ""


def test_a_run_about_to_end_wakes_for_its_manifest_only() -> None:
    stand = Stand()
    stand.full, stand.replicas = "no room", 2
    stand.begin(A)
    stand.read(A, COUNT)
    stand.tell(m.TaskExited(*stand.task(1), -9))
    assert of(m.StartTask, stand.later(1.0)), "it is starting, and will never be ready"
    assert of(m.WriteManifest, stand.propose(Range(A.id, 0, COUNT)))
    for _ in range(3):
        stand.later(START_S_MAX)
        wake_at = stand.run.wake_at()
        assert wake_at is not None
        assert wake_at > stand.now, "a moment that is past would have its controller look again and again"


def test_a_run_that_waits_for_its_log_has_resumed_nothing_yet() -> None:
    stand = Stand()
    stand.join("w1")
    stand.unresolved = True
    stand.apply()
    assert (stand.run.bytes_resumed, stand.run.records_resumed) == (0, 0)


def test_nothing_is_started_before_the_epoch_is_durable() -> None:
    stand = Stand()
    stand.join("w1")
    stand.unresolved = True
    assert of(m.StartTask, stand.apply()) == []
    stand.unresolved = False
    (start,) = of(m.StartTask, stand.later(1.0))
    assert start.epoch == 1
    assert start.attempt == ATTEMPTS_A_TERM + 1


def test_an_input_without_records_is_no_success_and_publishes_nothing() -> None:
    stand = Stand()
    (report,) = of(m.ReportRun, stand.begin())
    assert report.outcome == "failed"
    assert report.reason.startswith("nothing was kept, since the input holds no records")
    assert "VersionPublished" not in changes(stand)


def test_a_second_run_of_what_is_done_reads_nothing_and_publishes_nothing() -> None:
    stand = Stand()
    complete(stand)
    before = len(stand.log)
    commands = stand.listed(stand.ready(stand.apply()), A)
    assert of(m.ReadFragment, commands) == []
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "completed")]
    assert changes(stand)[-2:] == ["Led", "Resigned"]
    assert len(stand.log) == before + 2
    assert stand.run.records_resumed == COUNT


def test_what_was_unpublished_at_a_crash_is_published_next() -> None:
    first = Stand()
    complete(first)
    second = Stand(first.log, name="b")
    second.begin(A, B)
    second.swept(second.read(B, COUNT), Range(B.id, 0, COUNT))
    second.propose(Range(B.id, 0, COUNT))
    published = max(
        number for number, entry in enumerate(second.log) if VersionPublished(2, "completed") in entry.changes
    )
    third = Stand(second.log[:published], name="c")
    third.leader_alive = False
    assert of(m.ReportRun, third.begin(A, B)) == [m.ReportRun("run", "completed")]
    assert third.run.ledger.version == 2
    assert third.run.ledger.unshown == 0


def test_a_stop_without_news_publishes_nothing_and_keeps_the_version() -> None:
    stand = Stand()
    complete(stand)
    again = Stand(stand.log, name="b")
    again.begin(A, B)
    commands = again.swept(again.tell(m.StopRequested("run", cancel=False)))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "stopped")]
    assert again.run.ledger.version == 1
    assert again.run.ledger.newest == (5, 5, True, "completed", 0, ())


def test_only_what_is_open_is_read_after_a_crash() -> None:
    first = Stand()
    first.begin(A, B)
    first.propose(Range(A.id, 2, 3, 20, 30))
    second = Stand(first.log, name="b")
    second.leader_alive = False
    reads = of(m.ReadFragment, second.begin(A, B))
    assert [[(gap.first, gap.offset) for gap in read.gaps] for read in reads] == [[(0, 0), (5, 50)], [(0, 0)]]
    assert second.run.records_resumed == 3


# -- admission --


def test_another_pipeline_is_refused_with_the_difference_and_leaves_no_trace() -> None:
    stand = Stand()
    complete(stand)
    before = list(stand.log)
    (answer,) = answers(stand.apply(make_pipeline(rule=2)))
    assert not answer.accepted
    assert answer.differences == ("keep.rule: 1 -> 2",)
    assert "--amend" in answer.reason
    assert stand.log == before
    assert stand.run.over, "a refused run must not stand in the way of the next one"
    assert answers(stand.apply(make_pipeline(rule=2), amend=True))[0].accepted


def test_an_amended_pipeline_raises_the_epoch_and_old_work_is_refused() -> None:
    stand = Stand()
    stand.begin(A)
    old_version, old_epoch = stand.run.version, stand.run.ledger.epoch
    stand.tell(m.StopRequested("run", cancel=True))
    stand.ready(stand.apply(make_pipeline(rule=2), amend=True))
    assert stand.run.ledger.epoch > old_epoch
    task, attempt = stand.task()
    late = proposal([Range(A.id, 0, 3)], version=old_version, epoch=old_epoch, task=task, attempt=attempt)
    (answer,) = of(m.AnswerProposal, stand.tell(late))
    assert answer.outcome is m.Outcome.REFUSED


def test_another_environment_is_a_warning() -> None:
    stand = Stand()
    stand.begin(A)
    stand.tell(m.StopRequested("run", cancel=True))
    (answer,) = answers(stand.apply(make_pipeline(environment="2")))
    assert answer.accepted
    assert answer.warnings == ("environment differs: python: 1 -> 2",)


def test_a_pipeline_without_a_worker_is_refused_and_can_be_applied_again() -> None:
    stand = Stand()
    (answer,) = answers(stand.apply())
    assert not answer.accepted
    assert "headrace worker" in answer.reason
    assert stand.log == []
    stand.join("w1")
    assert answers(stand.apply())[0].accepted


def test_a_dataset_that_a_living_process_writes_is_refused_with_its_name() -> None:
    first, second = Stand(), Stand(name="b")
    first.begin(A)
    second.log, second.leader_alive = first.log, True
    second.join("w1")
    (answer,) = answers(second.apply())
    assert not answer.accepted
    assert "is being written by process 1 on host a (term 1)" in answer.reason


def test_a_running_pipeline_is_not_applied_twice_nor_its_dataset() -> None:
    stand = Stand()
    stand.begin(A)
    assert answers(stand.apply())[0].reason == "pipeline 'run' is running: stop it first"
    other = answers(stand.apply(make_pipeline(name="other")))[0]
    assert other.reason == f"pipeline 'run' writes to {LOG}: stop it first, or choose another dataset"


def test_a_dictionary_that_is_no_pipeline_is_refused() -> None:
    stand = Stand()
    assert not answers(stand.tell(m.PipelineRequested(7, {"name": "x"})))[0].accepted


# -- leadership --


def led_by_another(stand: Stand) -> None:
    term = stand.log[-1].term + 1
    stand.log.append(Entry(term, (Led(term, {"host": "b", "pid": 2}),)))


def test_a_deposed_run_stops_its_tasks_and_says_who_leads() -> None:
    stand = Stand()
    stand.begin(A)
    led_by_another(stand)
    commands = stand.later(3600.0)
    assert len(of(m.StopTask, commands)) == 1
    (report,) = of(m.ReportRun, commands)
    assert report.outcome == "failed"
    assert "taken over by process 2 on host b (term 2)" in report.reason
    assert stand.run.over
    assert not any(isinstance(change, Beat) for entry in stand.log for change in entry.changes)


def test_a_deposed_leader_accepts_nothing() -> None:
    stand = Stand()
    stand.begin(A)
    led_by_another(stand)
    assert of(m.AnswerProposal, stand.propose(Range(A.id, 0, 3))) == []


def standby_of(first: Stand) -> Stand:
    standby = Stand(first.log, name="b", standby=True)
    assert answers(standby.apply())[0].accepted
    assert standby.run.leadership.state is LeaderState.WATCHING
    return standby


def test_a_standby_takes_over_and_waits_for_its_workers() -> None:
    first = Stand()
    first.begin(A)
    standby = standby_of(first)
    while standby.run.leadership.state is not LeaderState.LEADING:
        assert standby.core.wake_at() is not None
        assert of(m.StartTask, standby.later(0.5)) == []
    assert standby.now >= TAKEOVER_S
    assert standby.run.state is RunState.OPENING
    commands = standby.join("w1", tasks=(first.task(),))
    assert len(of(m.KillTask, commands)) == 1, "what the dead leader started is not known here"
    (start,) = of(m.StartTask, commands)
    assert start.attempt == 2 * ATTEMPTS_A_TERM + 1, "and numbered lower than what is started now"


def test_a_standby_that_waits_judges_no_proposal() -> None:
    first = Stand()
    first.begin(A)
    first.propose(Range(A.id, 0, 3))
    standby = standby_of(first)
    version, epoch = first.run.version, first.run.ledger.epoch
    late = proposal([Range(A.id, 3, 3)], version=version, epoch=epoch, task=first.task()[0], attempt=first.task()[1])
    assert standby.tell(late) == []
    assert standby.run.committer.empty


def test_a_standby_that_leads_looks_again_at_the_pipeline() -> None:
    first = Stand()
    first.begin(A)
    first.propose(Range(A.id, 0, 3))
    standby = standby_of(first)
    first.tell(m.StopRequested("run", cancel=True))
    first.apply(make_pipeline(rule=2), amend=True)
    first.tell(m.StopRequested("run", cancel=True))
    (report,) = of(m.ReportRun, standby.later(1.0))
    assert report.outcome == "failed"
    assert "was made by another pipeline" in report.reason
    assert changes(standby)[-2:] == ["Led", "Resigned"]


def test_a_run_is_not_opened_by_an_earlier_runs_answer() -> None:
    stand = Stand()
    (ask,) = stand.core.handle(m.PipelineRequested(1, make_pipeline().to_dict()), 0.0)
    assert isinstance(ask, m.ReadLog)
    assert stand.core.handle(m.LogRead(LOG, (), after=22), 0.0) == []
    assert of(m.AnswerRequest, stand.core.handle(m.LogRead(LOG, (), after=ask.after), 0.0))


@pytest.mark.parametrize("moment", ["reading", "watching", "campaigning"])
def test_a_run_cancelled_before_it_leads_never_leads(moment: str) -> None:
    first, stand = Stand(), Stand(name="b", standby=True)
    first.begin(A)
    cancel = m.StopRequested("run", cancel=True)
    if moment == "reading":
        (ask,) = stand.core.handle(m.PipelineRequested(1, make_pipeline().to_dict()), 0.0)
        assert isinstance(ask, m.ReadLog)
        stand.tell(cancel, m.LogRead(LOG, (), after=-1))
        assert stand.log == []
    elif moment == "watching":
        stand = standby_of(first)
        stand.tell(cancel)
        stand.later(100.0)
        assert len(stand.log) == len(first.log)
    else:
        stand.unresolved = True
        stand.apply()
        stand.tell(cancel)
        stand.unresolved = False
        stand.later(1.0)
        assert changes(stand) == ["Led", "Resigned"]
    assert stand.run.state is RunState.CANCELLED
    assert stand.run.over
    assert stand.core.wake_at() is None


def test_a_log_that_cannot_be_read_ends_the_run() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.run.give_up("the disk is gone")
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "failed", "the disk is gone")]
    assert stand.core.wake_at() is not None, "the resignation is still to be written"
    stand.later(0.0)
    assert changes(stand)[-1] == "Resigned"


def test_an_unwritable_log_ends_the_run_and_its_tasks() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.run.leadership.submit(FragmentEnded(A.id, 1))
    (write,) = of(m.WriteEntry, stand.run.leadership.flush(0.0))
    commands = stand.run.handle(m.EntryFailed(write.log, write.number, "a newer Headrace wrote it"), 0.0)
    (report,) = of(m.ReportRun, commands)
    assert (report.outcome, report.reason.partition(": ")[2]) == ("failed", "a newer Headrace wrote it")
    assert of(m.StopTask, commands) or of(m.KillTask, commands)
    assert stand.run.over


# -- input --


def test_a_fragment_that_vanished_when_it_was_done_is_no_matter() -> None:
    stand = Stand()
    complete(stand)
    assert of(m.ReportRun, stand.listed(stand.ready(stand.apply())))[0].outcome == "completed"


@pytest.mark.parametrize("what", ["listing", "fragment"])
def test_an_input_that_cannot_be_read_fails_the_run_with_its_words(what: str) -> None:
    stand = Stand()
    stand.begin(A)
    if what == "listing":
        stand = Stand()
        stand.join("w1")
        (ask,) = of(m.ListSource, stand.ready(stand.apply()))
        commands = stand.tell(
            m.SourceListed(ask.task, ask.attempt, "read", (), last=True, error="no match for *.x", listing=ask.listing)
        )
    else:
        commands = stand.tell(m.FragmentWasRead(*stand.task(), A.id, -1, error="no match for *.x"))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "failed", "no match for *.x")]


# -- links --


def test_links_are_made_when_both_ends_are_ready_and_remade() -> None:
    stand = Stand()
    stand.fuse = False
    stand.join("w1")
    starts = of(m.StartTask, stand.apply())
    assert of(m.MakeLink, stand.ready(starts[:1])) == []
    assert [link.link for link in of(m.MakeLink, stand.ready(starts[1:2]))] == ["run/read.0->keep.0"]
    assert [link.link for link in of(m.MakeLink, stand.ready(starts[2:]))] == ["run/keep.0->write.0"]
    stand.tell(m.TaskExited(starts[1].task, starts[1].attempt, -9))
    links = of(m.MakeLink, stand.ready(stand.later(0.1)))
    assert sorted(link.link for link in links) == ["run/keep.0->write.0", "run/read.0->keep.0"]
    assert {link.epoch for link in links} == {1}


def test_nothing_is_read_before_the_links_stand() -> None:
    stand = Stand()
    stand.fuse = False
    stand.join("w1")
    starts = of(m.StartTask, stand.apply())
    commands = stand.listed(stand.ready(starts[:1]), A)
    assert of(m.ReadFragment, commands) == []
    assert len(of(m.ReadFragment, stand.ready(starts[1:]))) == 1


def test_the_ledger_says_the_same_to_whoever_folds_it() -> None:
    stand = Stand()
    complete(stand)
    kinds = {type(change) for entry in stand.log for change in entry.changes}
    assert kinds == {
        *(Led, PipelineApplied, EpochRaised, FragmentsListed, FragmentEnded, Closed, VersionPublished, Resigned),
    }
    second = Stand(stand.log)
    second.join("w1")
    second.apply()
    assert second.run.ledger.counts["write"].kept == COUNT


def test_an_unknown_event_is_an_error() -> None:
    stand = Stand()
    stand.begin(A)
    with pytest.raises(AssertionError, match="news"):
        stand.core.handle(cast("Any", "news"), 0.0)
    with pytest.raises(AssertionError, match="news"):
        stand.run.handle(cast("Any", "news"), 0.0)
