"""The workers of a run, and the tasks and links that workers reported: an earlier leader started them, and they live.

A report stays until the run that it belongs to is known and takes it up, or until the task dies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from headrace.controller.core.messages import (
    LinkLost,
    RunningLink,
    RunningTask,
    TaskExited,
    TaskReady,
    WorkerRegistered,
)
from headrace.controller.core.plan import Need, WorkerFacts


@dataclass(slots=True)
class Reported:
    """What one worker has of one run."""

    tasks: dict[tuple[str, int], RunningTask] = field(default_factory=dict[tuple[str, int], RunningTask])
    links: list[RunningLink] = field(default_factory=list[RunningLink])


class ReportedTasks:
    """The reports of all workers, by run and worker."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], Reported] = {}

    def register(self, event: WorkerRegistered) -> None:
        """Note what a worker brings."""
        self.drop(event.worker)
        for task in event.tasks:
            self._of(task.task, event.worker).tasks[task.task, task.attempt] = task
        for link in event.links:
            self._of(link.link, event.worker).links.append(link)

    def drop(self, worker: str) -> None:
        """A worker is gone, and all that it had."""
        for key in [key for key in self._reported if key[1] == worker]:
            del self._reported[key]

    def holds(self, worker: str, task: str, attempt: int) -> bool:
        """Whether a worker brought this attempt, and no run has taken it up."""
        report = self._reported.get((task.split("/", 1)[0], worker))
        return report is not None and (task, attempt) in report.tasks

    def heard(self, event: object, worker: str = "") -> None:
        """A task said something before its run took up what it has; by the session of `worker`, if that is known."""
        match event:
            case TaskExited():
                self._exited(event, worker)
            case TaskReady():
                self._ready(event, worker)
            case LinkLost():
                self._cut(event, worker)
            case _:
                pass

    def _exited(self, event: TaskExited, worker: str) -> None:
        """A task is gone."""
        for report in self._of_run(event.task, worker):
            report.tasks.pop((event.task, event.attempt), None)

    def _ready(self, event: TaskReady, worker: str) -> None:
        """A task has built its stages."""
        for report in self._of_run(event.task, worker):
            found = report.tasks.get((event.task, event.attempt))
            if found is not None:
                report.tasks[event.task, event.attempt] = structs.replace(found, ready=True, addresses=event.addresses)

    def _cut(self, event: LinkLost, worker: str) -> None:
        """A link was found cut: it does not stand, though its worker said so when it came."""
        for report in self._of_run(event.task, worker):
            report.links = [
                link for link in report.links if (link.link, link.generation) != (event.link, event.generation)
            ]

    def take(self, run: str, worker: str) -> Reported:
        """Hand out what a worker has of a run; it is not asked for again."""
        return self._reported.pop((run, worker), None) or Reported()

    def take_run(self, run: str) -> list[tuple[str, RunningTask]]:
        """Hand out the tasks of a run that nobody takes up, with their workers."""
        found: list[tuple[str, RunningTask]] = []
        for key in [key for key in self._reported if key[0] == run]:
            found += [(key[1], task) for task in self._reported.pop(key).tasks.values()]
        return found

    def runs(self) -> set[str]:
        """The runs of which something is reported."""
        return {run for run, _ in self._reported}

    def clear(self) -> None:
        """Forget everything."""
        self._reported.clear()

    def _of(self, name: str, worker: str) -> Reported:
        return self._reported.setdefault((name.split("/", 1)[0], worker), Reported())

    def _of_run(self, task: str, worker: str) -> list[Reported]:
        run = task.split("/", 1)[0]
        return [report for (name, of), report in self._reported.items() if name == run and worker in ("", of)]


class Workers:
    """The workers of one run. `drained` get no tasks; `reserved` gives what other runs reserve, by worker."""

    def __init__(
        self,
        workers: Sequence[WorkerFacts],
        drained: Collection[str],
        reserved: Callable[[], Mapping[str, Need]],
    ) -> None:
        self.present = {worker.name: worker for worker in workers}
        self.drained, self.reserved = drained, reserved

    def fit(self) -> list[WorkerFacts]:
        """Those that may be given tasks."""
        return [worker for worker in self.present.values() if worker.name not in self.drained]
