"""What the simulator found in take-overs: links that go on, runs that were accepted and not planned, orphans."""

from headrace.controller.core.log.fencing import Fence, fence_of
from headrace.controller.core.log.leader import TAKEOVER_S
from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.opening import REJOIN_S, WORKER_AWAY_S_MAX
from headrace.controller.core.run.tasks.run_links import MAKINGS_A_TERM, REMAKE_S_MAX
from headrace.store.ledger.core.entries import Entry, Led
from headrace.worker.core.supervisor import Fencing
from tests.kits.controller.cluster_log import Bench, Store
from tests.kits.controller.core import LOG, make_pipeline, of

PLACES = {"read": "w1", "write": "w2"}


def join(bench: Bench, worker: str, tasks: tuple[m.RunningTask, ...] = (), generation: int = 0) -> list[m.Command]:
    """A worker registers, with its tasks and, where it has one, the link that has an end there."""
    links = (m.RunningLink("run/read.0->write.0", 1048577, 1048577, generation),) if generation else ()
    return bench.tell(m.WorkerRegistered(worker, worker, 1, 1 << 30, tasks=tasks, links=links, addresses=(worker,)))


def succeeded() -> tuple[Bench, dict[str, m.RunningTask]]:
    """A leader's run on two workers with a link between them, and the next leader, to whom nobody has come yet."""
    store = Store()
    first = Bench(store, "a")
    join(first, "w1")
    join(first, "w2")
    request = m.PipelineRequested(1, make_pipeline().to_dict(), replicas=1, places=PLACES)
    starts = of(m.StartTask, first.tell(request))
    made = of(m.MakeLink, first.tell(*(m.TaskReady(start.task, start.attempt) for start in starts)))
    assert [link.generation for link in made] == [1, 1]
    second = Bench(store, "b")
    second.later(TAKEOVER_S)
    tasks = {
        start.worker: m.RunningTask(start.task, start.attempt, start.version, start.epoch, True) for start in starts
    }
    return second, tasks


def test_a_cut_link_of_an_earlier_leader_gets_a_new_number() -> None:
    leader, tasks = succeeded()
    said = [*join(leader, "w1", (tasks["w1"],), 1), *join(leader, "w2", (tasks["w2"],), 1)]
    assert of(m.StartTask, said) == []
    assert of(m.MakeLink, said) == [], "what stands is not made again"
    task = tasks["w1"]
    leader.tell(m.LinkLost(task.task, task.attempt, "run/read.0->write.0", 1, "cut"))
    again = of(m.MakeLink, leader.later(REMAKE_S_MAX))
    assert [(link.worker, link.generation) for link in again] == [
        ("w1", 2 * MAKINGS_A_TERM + 1),
        ("w2", 2 * MAKINGS_A_TERM + 1),
    ]


def test_a_link_cut_before_its_end_is_back_is_made_then() -> None:
    leader, tasks = succeeded()
    join(leader, "w1", (tasks["w1"],), 1)
    leader.tell(m.LinkLost(tasks["w1"].task, tasks["w1"].attempt, "run/read.0->write.0", 1, "cut"))
    made = of(m.MakeLink, join(leader, "w2", (tasks["w2"],)))
    assert {link.generation for link in made} == {2 * MAKINGS_A_TERM + 1}


def test_of_two_makings_of_a_link_the_newer_is_taken() -> None:
    leader, tasks = succeeded()
    join(leader, "w1", (tasks["w1"],), 2)
    assert of(m.MakeLink, join(leader, "w2", (tasks["w2"],), 1)) == []
    leader.tell(m.LinkLost(tasks["w1"].task, tasks["w1"].attempt, "run/read.0->write.0", 2, "nobody is there"))
    assert len(of(m.MakeLink, leader.later(REMAKE_S_MAX))) == 2


def test_tasks_that_the_plan_lacks_are_killed_even_if_come_early() -> None:
    leader, tasks = succeeded()
    opening = Bench(leader.store, "c")
    stray = m.RunningTask(tasks["w1"].task, 1048578, tasks["w1"].version, tasks["w1"].epoch, True)
    for worker, task in (("w1", tasks["w1"]), ("w2", tasks["w2"]), ("w3", stray)):
        opening.core.workers[worker] = m.WorkerRegistered(worker, worker, 1, 1 << 30, tasks=(task,))
        opening.core._reported.register(opening.core.workers[worker])
    killed = of(m.KillTask, opening.later(TAKEOVER_S))
    assert [(kill.worker, kill.attempt) for kill in killed] == [("w3", 1048578)]


def unplanned() -> Bench:
    """The next leader of a run that an earlier one accepted and had no time to plan."""
    store = Store()
    first = Bench(store, "a")
    join(first, "w1")
    join(first, "w2")
    request = m.PipelineRequested(1, make_pipeline().to_dict(), replicas=1, places=PLACES)
    for command in first.core.handle(request, first.now):
        assert isinstance(command, m.WriteEntry)
        store.logs[command.log].append(command.entry)
    second = Bench(store, "b")
    second.later(TAKEOVER_S)
    return second


def test_an_accepted_unplanned_run_waits_for_the_workers_in_the_log() -> None:
    leader = unplanned()
    assert of(m.ReportRun, join(leader, "w1")) == [], "the stage that is placed on w2 has no place yet"
    assert len(of(m.StartTask, join(leader, "w2"))) == 2


def test_workers_that_do_not_come_back_are_not_waited_for_for_ever() -> None:
    leader = unplanned()
    assert join(leader, "w1") == []
    assert leader.core.runs["run"].wake_at() is not None
    assert of(m.ReportRun, leader.later(REJOIN_S)) == []
    assert of(m.ReportRun, leader.later(WORKER_AWAY_S_MAX - 1.0)) == []
    (report,) = of(m.ReportRun, leader.later(1.0))
    assert report.outcome == "failed"
    assert "w2" in report.reason


def test_a_run_begins_when_a_worker_comes_late_that_its_plan_needs() -> None:
    leader = unplanned()
    join(leader, "w1")
    leader.later(REJOIN_S)
    assert len(of(m.StartTask, join(leader, "w2"))) == 2
    wake_at = leader.core.runs["run"].wake_at()
    assert wake_at is None or wake_at > leader.now


def test_where_the_last_worker_leaves_no_past_moment_is_waited_for() -> None:
    leader = unplanned()
    join(leader, "w1")
    leader.tell(m.WorkerLost("w1", "gone"))
    leader.later(REJOIN_S)
    wake_at = leader.core.runs["run"].wake_at()
    assert wake_at is None or wake_at > leader.now


def test_a_worker_of_the_last_leader_obeys_when_told_to_kill() -> None:
    leader, _ = succeeded()
    (run,) = leader.core.runs.values()
    fencing = Fencing()
    assert fencing.admits(1, LOG, 1)
    kill, sweep = m.KillTask("w1", "run/read.0", 1, "it was left behind"), m.SweepTask("w1", "run/read.0", 1, 1)
    run.leadership.term = 0
    for command in (kill, sweep):
        assert fence_of(leader.core.log, run.leadership, command) == Fence(2)
    run.leadership.term = 2
    assert fence_of(leader.core.log, run.leadership, sweep) == Fence(2, LOG, 2)
    # An earlier leader of the cluster woke late, and has led the run's log behind this one.
    assert fencing.admits(1, LOG, 3)
    given = fence_of(leader.core.log, run.leadership, kill)
    assert fencing.admits(given.term, given.log, given.log_term)
    assert fence_of(None, run.leadership, kill) == Fence(0, LOG, 2), (
        "without a cluster's log only this log's term tells"
    )


class Stuck(Bench):
    """A controller whose writes to the dataset's log have no answer."""

    def _written(self, command: m.WriteEntry) -> object:
        if command.log == LOG:
            return m.EntryUnresolved(command.log, command.number, "no answer")
        return super()._written(command)


def test_tasks_of_a_run_that_ends_before_going_on_are_killed() -> None:
    leader, tasks = succeeded()
    third = Stuck(leader.store, "c")
    third.later(TAKEOVER_S)
    assert of(m.KillTask, join(third, "w1", (tasks["w1"],))) == []
    killed = of(m.KillTask, third.tell(m.StopRequested("run", cancel=True)))
    assert [(kill.worker, kill.task) for kill in killed] == [("w1", tasks["w1"].task)]


def test_a_run_that_is_taken_back_kills_tasks_of_unrecorded_plans_too() -> None:
    store = Store()
    leader = Bench(store, "a")
    join(leader, "w1")
    starts = of(m.StartTask, leader.tell(m.PipelineRequested(1, make_pipeline().to_dict(), replicas=1)))
    leader.tell(*(m.TaskReady(start.task, start.attempt) for start in starts))
    beside = of(m.StartTask, leader.tell(m.SteerRequested(2, "run", None, {"read": 2}, {}, {})))
    assert beside, "the tasks of another plan, which is recorded when they are ready"
    # An earlier leader of the cluster woke late and took the log of the dataset.
    (led,) = (change for entry in store.logs[LOG] for change in entry.changes if isinstance(change, Led))
    store.logs[LOG].append(Entry(2, (Led(2, led.leader),)))
    said = leader.later(TAKEOVER_S)
    killed = {(kill.task, kill.attempt) for kill in of(m.KillTask, said)}
    assert killed == {(start.task, start.attempt) for start in (*starts, *beside)}
    assert min(start.attempt for start in of(m.StartTask, said)) > max(attempt for _, attempt in killed)
