"""What workers brought with them: tasks and links that an earlier leader had started and that still live.

A claim stays here until the run that it belongs to is known and takes it up, or until it dies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.controller.core.messages import (
    LinkLost,
    RunningLink,
    RunningTask,
    TaskExited,
    TaskReady,
    WorkerRegistered,
)


@dataclass(slots=True)
class Claim:
    """What one worker has of one run."""

    tasks: dict[tuple[str, int], RunningTask] = field(default_factory=dict[tuple[str, int], RunningTask])
    links: list[RunningLink] = field(default_factory=list[RunningLink])


class Claims:
    """The claims of all workers, by run and worker."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claim] = {}

    def register(self, event: WorkerRegistered) -> None:
        """Note what a worker brings."""
        self.drop(event.worker)
        for task in event.tasks:
            self._of(task.task, event.worker).tasks[task.task, task.attempt] = task
        for link in event.links:
            self._of(link.link, event.worker).links.append(link)

    def drop(self, worker: str) -> None:
        """A worker is gone, and all that it had."""
        for key in [key for key in self._claims if key[1] == worker]:
            del self._claims[key]

    def holds(self, worker: str, task: str, attempt: int) -> bool:
        """Whether a worker brought this attempt, and no run has taken it up."""
        claim = self._claims.get((task.split("/", 1)[0], worker))
        return claim is not None and (task, attempt) in claim.tasks

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
        for claim in self._of_run(event.task, worker):
            claim.tasks.pop((event.task, event.attempt), None)

    def _ready(self, event: TaskReady, worker: str) -> None:
        """A task has built its stages."""
        for claim in self._of_run(event.task, worker):
            found = claim.tasks.get((event.task, event.attempt))
            if found is not None:
                claim.tasks[event.task, event.attempt] = replace(found, ready=True, addresses=event.addresses)

    def _cut(self, event: LinkLost, worker: str) -> None:
        """A link was found cut: it does not stand, though its worker said so when it came."""
        for claim in self._of_run(event.task, worker):
            claim.links = [
                link for link in claim.links if (link.link, link.generation) != (event.link, event.generation)
            ]

    def take(self, run: str, worker: str) -> Claim:
        """Hand out what a worker has of a run; it is not asked for again."""
        return self._claims.pop((run, worker), None) or Claim()

    def take_run(self, run: str) -> list[tuple[str, RunningTask]]:
        """Hand out the tasks of a run that nobody takes up, with their workers."""
        found: list[tuple[str, RunningTask]] = []
        for key in [key for key in self._claims if key[0] == run]:
            found += [(key[1], task) for task in self._claims.pop(key).tasks.values()]
        return found

    def runs(self) -> set[str]:
        """The runs of which something is claimed."""
        return {run for run, _ in self._claims}

    def clear(self) -> None:
        """Forget everything."""
        self._claims.clear()

    def _of(self, name: str, worker: str) -> Claim:
        return self._claims.setdefault((name.split("/", 1)[0], worker), Claim())

    def _of_run(self, task: str, worker: str) -> list[Claim]:
        run = task.split("/", 1)[0]
        return [claim for (name, of), claim in self._claims.items() if name == run and worker in ("", of)]
