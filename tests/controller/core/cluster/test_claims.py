"""What a worker brought with it, and what is said of it before its run is known."""

from headrace.controller.core.messages.messages import LinkLost, TaskExited, TaskReady
from headrace.controller.core.messages.workers import RunningLink, RunningTask, WorkerRegistered
from headrace.controller.core.run.tasks.workers import ReportedTasks

LINK = RunningLink("run/read.0->write.0", 1, 1, generation=3)


def registered() -> ReportedTasks:
    claims = ReportedTasks()
    task = RunningTask("run/read.0", 1, "v", 1, ready=False)
    claims.register(WorkerRegistered("one", "one", 1, 1 << 30, tasks=(task,), links=(LINK,)))
    return claims


def test_a_link_found_cut_before_its_run_is_known_stays_unclaimed() -> None:
    claims = registered()
    claims.heard(LinkLost("run/read.0", 1, LINK.link, generation=2, reason="an earlier making"))
    claims.heard(LinkLost("run/read.0", 1, LINK.link, generation=3, reason="cut"))
    assert claims.take("run", "one").links == []


def test_news_of_an_earlier_making_leaves_the_link_claimed() -> None:
    claims = registered()
    claims.heard(LinkLost("run/read.0", 1, LINK.link, generation=2, reason="an earlier making"))
    assert claims.take("run", "one").links == [LINK]


def test_a_task_that_becomes_ready_or_exits_meanwhile_is_claimed_so() -> None:
    claims = registered()
    claims.heard(TaskReady("run/read.0", 1))
    claim = claims.take("run", "one")
    assert [task.ready for task in claim.tasks.values()] == [True]
    claims = registered()
    claims.heard(TaskExited("run/read.0", 1, -9))
    assert claims.take("run", "one").tasks == {}
