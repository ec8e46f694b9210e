"""A controller of a cluster: what was asked for outlives it, and the next leader goes on with the tasks that live."""

import pytest
from msgspec import structs

from headrace.controller.core.messages import TokenOffered, messages as m
from headrace.controller.core.run.opening import REJOIN_S
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.cluster_changes import RunPlanned
from headrace.store.ledger.core.entries import Entry, Led
from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.cluster_log import CLUSTER, A, B, Bench, Store, living, succeeded
from tests.kits.controller.core import LOG, make_pipeline, of, proposal


def test_what_is_asked_for_is_in_the_log_before_it_is_answered() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    (answer,) = of(m.AnswerRequest, first.apply())
    assert answer.accepted
    state = store.fold()
    assert list(state.going_on()) == ["run"]
    assert list(state.workers) == ["w1"]
    assert state.runs["run"].options["replicas"] == 1
    assert state.runs["run"].plan is not None


def test_a_standby_takes_up_nothing_and_says_who_leads() -> None:
    store = Store()
    Bench(store, "a")
    second = Bench(store, "b")
    (answer,) = of(m.AnswerRequest, second.apply())
    assert not answer.accepted
    assert "a:1" in answer.reason
    assert not second.core.leads
    assert second.core.leader["address"] == "a:1"


def test_the_next_leader_adopts_living_tasks_and_sweeps_before_handing_out() -> None:
    store = Store()
    first = Bench(store, "a")
    start = first.begun()
    second = succeeded(store)
    commands = second.join("w1", living(start))
    assert of(m.StartTask, commands) == of(m.KillTask, commands) == of(m.ReadFragment, commands) == []
    (sweep,) = of(m.SweepTask, commands)
    pending = ((B.id, (Gap(0, UNBOUNDED, 0),)),)
    held = (("write", (Range(A.id, 0, 4),)),)
    swept = second.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep, pending, held))
    (read,) = of(m.ReadFragment, swept)
    assert (read.fragment, [gap.first for gap in read.gaps]) == (A, [4]), "what is held or given out is not read again"
    assert second.core.runs["run"].tasks is not None
    assert [task.attempt for task in second.core.runs["run"].tasks] == [start.attempt]


def test_a_plan_that_the_log_has_is_not_written_again() -> None:
    store = Store()
    start = Bench(store, "a").begun()
    succeeded(store).join("w1", living(start))
    changes = [change for entry in store.logs[CLUSTER] for change in entry.changes]
    assert len([change for change in changes if isinstance(change, RunPlanned)]) == 1


def test_a_task_of_other_stages_is_not_adopted() -> None:
    """By a plan that was not recorded its name may have come again."""
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    commands = second.join("w1", structs.replace(living(start), stages=(*start.stages, "more")))
    assert [(kill.task, kill.attempt) for kill in of(m.KillTask, commands)] == [(start.task, start.attempt)]
    (again,) = of(m.StartTask, commands)
    assert again.attempt > start.attempt


def test_a_task_of_another_epoch_is_not_adopted() -> None:
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    stale = m.RunningTask(start.task, start.attempt, start.version, start.epoch + 1, ready=True)
    commands = second.join("w1", stale)
    assert [kill.attempt for kill in of(m.KillTask, commands)] == [start.attempt]
    (again,) = of(m.StartTask, commands)
    assert again.attempt > start.attempt


def test_pages_that_an_earlier_leader_asked_for_end_no_listing() -> None:
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    second.join("w1", living(start))
    second.tell(m.SourceListed(start.task, start.attempt, "read", (), last=True, listing=1))
    assert not second.core.runs["run"].listing.done


def test_a_worker_that_stays_away_is_lost_and_its_tasks_replanned() -> None:
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    assert of(m.StartTask, second.join("w2")) == [], "the worker of the plan may come back"
    (elsewhere,) = of(m.StartTask, second.later(REJOIN_S))
    assert (elsewhere.worker, elsewhere.task) == ("w2", start.task)


def test_a_stop_that_was_asked_of_an_earlier_leader_is_seen_to() -> None:
    store = Store()
    first = Bench(store, "a")
    start = first.begun()
    first.tell(m.StopRequested("run", cancel=False))
    second = succeeded(store)
    second.join("w1", living(start))
    assert second.core.runs["run"].state is RunState.DRAINING


def test_a_run_that_has_ended_stays_ended() -> None:
    store = Store()
    first = Bench(store, "a")
    start = first.begun()
    first.tell(m.StopRequested("run", cancel=True))
    assert store.fold().runs["run"].outcome == "cancelled"
    second = succeeded(store)
    assert second.core.runs == {}
    (kill,) = of(m.KillTask, second.join("w1", living(start)))
    assert (kill.task, kill.attempt) == (start.task, start.attempt)


def test_a_leader_that_wakes_late_forgets_runs_and_tells_nothing() -> None:
    store = Store()
    first = Bench(store, "a")
    start = first.begun()
    second = succeeded(store)
    second.join("w1", living(start))
    version, epoch = start.version, start.epoch
    late = proposal((Range(A.id, 0, 4),), version=version, epoch=epoch, task=start.task, attempt=start.attempt)
    said = first.tell(late)
    assert {type(command) for command in said} == {m.StepDown}
    assert first.core.runs == {}
    assert not first.core.leads
    assert second.core.leads
    assert store.fold().going_on(), "its last words have ended nothing"


def usurped() -> tuple[Store, Bench, m.StartTask]:
    """The leader of a cluster, whose dataset was taken by the leader before it, and a task of it."""
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    second.join("w1", living(start))
    log = store.logs[LOG]
    led = [change for entry in log for change in entry.changes if isinstance(change, Led)]
    log.append(Entry(led[-1].term + 1, (Led(led[-1].term + 1, led[0].leader),)))
    return store, second, start


def test_a_dataset_that_a_late_leader_took_is_taken_back() -> None:
    store, second, start = usurped()
    log = store.logs[LOG]
    term = log[-1].term
    said = second.tell(m.FragmentWasRead(start.task, start.attempt, A.id, 10))
    assert [(kill.task, kill.attempt) for kill in of(m.KillTask, said)] == [(start.task, start.attempt)]
    (again,) = of(m.StartTask, said)
    assert again.task == start.task
    assert (log[-1].term, second.core.runs["run"].state) == (term + 1, RunState.RUNNING)
    assert list(store.fold().going_on()) == ["run"], "nobody is told that it has ended"
    assert of(m.ReportRun, said) == []


@pytest.mark.parametrize("name", ["run", "another"])
def test_nobody_begins_a_pipeline_while_a_dataset_is_taken_back(name: str) -> None:
    store, second, start = usurped()
    second.slow = CLUSTER
    second.tell(m.FragmentWasRead(start.task, start.attempt, A.id, 10))
    asked = m.PipelineRequested(7, make_pipeline(name=name).to_dict(), replicas=1)
    (answer,) = of(m.AnswerRequest, second.tell(asked))
    why = "is taken back from another controller: ask again" if name == "run" else f"writes to {LOG}: stop it first"
    assert (answer.accepted, why in answer.reason) == (False, True)
    assert second.core.gathers("run", ""), "who asks does so again"
    second.hurry()
    assert list(store.fold().going_on()) == ["run"]
    assert not second.core.gathers("run", "")


def test_who_ends_in_order_is_succeeded_at_once() -> None:
    store = Store()
    first = Bench(store, "a")
    first.begun()
    first.tell(m.ShutdownAsked())
    second = Bench(store, "b")
    assert second.core.leads
    assert list(second.core.runs) == ["run"]


def test_a_join_token_is_spent_once_and_answered_when_durable() -> None:
    store = Store()
    first = Bench(store, "a")
    while not first.core.leads:
        first.later(1.0)
    offers = [TokenOffered(number, "t", "one", key) for number, key in enumerate("kkx")]
    answers = of(m.AnswerRequest, first.tell(*offers))
    assert [(answer.request, answer.accepted) for answer in answers] == [(0, True), (1, True), (2, False)]
    assert "another node has joined" in answers[2].reason
    assert store.fold().tokens["t"].key == "k"


def test_a_spent_token_stays_spent_and_a_standby_admits_nobody() -> None:
    store = Store()
    first = Bench(store, "a")
    while not first.core.leads:
        first.later(1.0)
    first.tell(TokenOffered(1, "t", "one", "k"))
    standby = Bench(store, "b")
    (turned_away,) = of(m.AnswerRequest, standby.tell(TokenOffered(2, "u", "two", "x")))
    assert not turned_away.accepted
    assert "the one at a:1 leads" in turned_away.reason
    second = succeeded(store)
    answers = of(m.AnswerRequest, second.tell(TokenOffered(3, "t", "two", "x"), TokenOffered(4, "t", "one", "k")))
    assert [answer.accepted for answer in answers] == [False, True]


def test_offers_during_the_write_spend_the_token_no_second_time() -> None:
    store = Store()
    first = Bench(store, "a")
    while not first.core.leads:
        first.later(1.0)
    written = [said for key in "kxk" for said in first.core.handle(TokenOffered(1, "t", "one", key), first.now)]
    answers = of(m.AnswerRequest, first.do(written))
    assert [answer.accepted for answer in answers] == [True, False, True]
    assert store.fold().tokens["t"].key == "k", "a log in which it is spent twice could not be read"


@pytest.mark.parametrize("cancel", [False, True])
def test_a_stop_is_in_the_log_before_it_is_answered(cancel: bool) -> None:
    first = Bench(Store(), "a")
    first.begun()
    first.slow = CLUSTER
    stop = m.StopRequested("run", cancel, 7)
    assert of(m.AnswerRequest, first.tell(stop)) == []
    assert of(m.AnswerRequest, first.hurry()) == [m.AnswerRequest(7, accepted=True)]
    assert first.core.runs["run"].state is (RunState.CANCELLED if cancel else RunState.DRAINING)


def test_a_stop_that_the_log_never_took_is_refused() -> None:
    store = Store()
    first = Bench(store, "a")
    first.begun()
    succeeded(store)
    (answer,) = of(m.AnswerRequest, first.tell(m.StopRequested("run", False, 7)))
    assert (answer.request, answer.accepted) == (7, False)
    assert store.fold().runs["run"].stop_asked is None
    (answer,) = of(m.AnswerRequest, first.tell(m.StopRequested("run", False, 8)))
    assert answer == m.AnswerRequest(8, accepted=False, reason=first.core.elsewhere)


def test_a_stop_of_what_is_not_there_names_what_is() -> None:
    first = Bench(Store(), "a")
    first.begun()
    (answer,) = of(m.AnswerRequest, first.tell(m.StopRequested("other", False, 7)))
    assert answer.reason == "no pipeline 'other'; there are: run"


def test_a_stop_of_what_has_ended_is_accepted() -> None:
    first = Bench(Store(), "a")
    first.begun()
    for number in (7, 8):
        said = first.tell(m.StopRequested("run", True, number))
        assert of(m.AnswerRequest, said) == [m.AnswerRequest(number, accepted=True)]
