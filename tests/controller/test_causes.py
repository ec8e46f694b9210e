"""What begins something gets a name, and what follows from it bears that name."""

import re

from headrace.controller.core.messages import messages as m
from headrace.controller.event_log import Causes
from headrace.daemon.log_lines import caused_by, current_cause

EXIT = m.TaskExited("run/read.0", 1, -9)
START = m.StartTask("w1", "run/read.0", 2, ("read",), {}, "v", 1, 0)


def test_each_beginning_has_a_name_of_its_own() -> None:
    causes = Causes()
    names = [causes.of(m.StopRequested("run", cancel=False)), causes.of(EXIT), causes.of(m.TimePassed())]
    assert [re.sub(r"\.[0-9a-f]{4}\.", ".", name) for name in names] == ["stop.1", "exit.2", "timer.3"]
    assert Causes().of(EXIT) != causes.of(EXIT)


def test_an_answer_goes_on_with_what_it_answers() -> None:
    causes = Causes()
    ready = m.TaskReady("run/read.0", 1)
    assert causes.of(ready, "apply.1f.3") == "apply.1f.3"
    with caused_by("apply.1f.3"):
        assert causes.of(m.ManifestWritten("file:///log", 1)) == "apply.1f.3", "the store's answer, in the same context"
        assert causes.of(EXIT) != "apply.1f.3", "a death has a cause of its own"
    assert current_cause() == ""


def test_a_task_that_died_is_started_again_for_its_death() -> None:
    causes = Causes()
    with caused_by("exit.w1.1"):
        causes.note(EXIT, ())
    with caused_by("timer.1f.9"):
        assert causes.of_command(START) == "exit.w1.1"
        assert causes.of_command(START) == "timer.1f.9", "once"


def test_ended_tasks_and_those_of_ended_runs_leave_nothing() -> None:
    causes = Causes()
    with caused_by("stop.1f.1"):
        causes.note(m.TaskExited("run/read.0", 1, 0), ())
    with caused_by("exit.w1.1"):
        causes.note(m.TaskExited("run/write.0", 1, -9), ())
    causes.of_command(m.ReportRun("run", "failed", "it died too often"))
    assert causes._deaths == {}
