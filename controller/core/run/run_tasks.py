"""A run's tasks and workers: what their ends mean."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.controller.core.messages import Command, KillTask, LinkLost, TaskExited, TaskFailed, WorkerLost
from headrace.controller.core.run.input import VAIN_MAX
from headrace.controller.core.run.run_base import WORKING, RunBase
from headrace.controller.core.run.tasks import DEATHS_MAX, Task
from headrace.pipeline import PipelineError
from headrace.store import counted
from headrace.store.ledger import UNBOUNDED, IntervalSet, Range

#: Seconds that tasks wait for a worker when theirs is lost and no other may have them.
WORKER_AWAY_S_MAX = 60.0
#: Ranges that are named of those with which a stage died.
RANGES_SHOWN = 3


class Tasks(RunBase):
    """Deaths, failures, and workers that go."""

    def _exited(self, event: TaskExited, now: float) -> list[Command]:
        task = self.crew.current(event.task, event.attempt) if self.crew else None
        if task is None or self.state not in WORKING:
            return []
        self.deaths.note("task", event.task, event.cause())
        wrong = self._suspect(event)
        if wrong:
            return self._fail(wrong)
        return self._lost(task, event.words(), now, blamed=not event.in_hand)

    def _suspect(self, event: TaskExited) -> str:
        """Charge what a dead task had in hand; what is wrong with the stage, if it cannot be the records."""
        suspicion, certain = self.intake.suspicion, bool(event.killed_for)
        if self.intake.solitary.is_task(event.task) or self._decided_alone(event):
            wrong = suspicion.died_alone(event.in_hand, event.ending(), certain=certain)
            return wrong or self._in_vain(event)
        suspicion.died(event.in_hand, certain=certain)
        return ""

    def _in_vain(self, event: TaskExited) -> str:
        """What is wrong with a stage that kills its process again and again, though no record does so alone."""
        suspicion = self.intake.suspicion
        states = [self.ledger.fragments[name] for name in suspicion.fragments()]
        closed = sum(state.of(sink).size for state in states for sink in self.sinks)
        stage = suspicion.in_vain(event.in_hand, closed)
        if not stage:
            return ""
        return (
            f"stage {stage} killed its process {VAIN_MAX} times in a row with several records in hand, the last time "
            f"{self._named(hand.range for hand in event.in_hand if hand.stage == stage)}, and no record does so alone: "
            f"{event.ending()}. Give its task more memory (--task-memory), have it write smaller shards, or mend the "
            "stage; then run the same command again"
        )

    def _named(self, ranges: Iterable[Range]) -> str:
        """Ranges in words: the records of each object, adjacent ones together."""
        held: dict[str, IntervalSet] = {}
        for item in ranges:
            records = held.setdefault(self.ledger.fragments[item.fragment].fragment.uri, IntervalSet())
            records.cover(item.first, item.end if item.count else UNBOUNDED)
        names = [
            f"records {first}..{end if end != UNBOUNDED else ''} of {uri}"
            for uri, records in held.items()
            for first, end in records
        ]
        more = len(names) - RANGES_SHOWN
        return ", ".join(names[:RANGES_SHOWN]) + (f" and {counted(more, 'more range')}" if more > 0 else "")

    def _decided_alone(self, event: TaskExited) -> bool:
        """Whether a decider died of the one record that a solitary task had asked it for."""
        stateful, suspicion = self.pipeline.stateful, self.intake.suspicion
        if stateful is None or not event.in_hand:
            return False
        (hand, *others), suspects = event.in_hand, suspicion.of(event.in_hand[0].range.fragment)
        single = not others and hand.stage == stateful.name and hand.range.count == 1
        return single and suspects is not None and bool(suspects.overlap(hand.range.first, hand.range.end))

    def _task_failed(self, event: TaskFailed, now: float) -> list[Command]:
        task = self.crew.current(event.task, event.attempt) if self.crew else None
        if task is None or self.state not in WORKING:
            return []
        if event.final:
            return self._fail(event.error)
        self.deaths.note("task", event.task, event.error)
        kill = KillTask(task.plan.worker, task.plan.name, task.attempt, event.error)
        return [*self._lost(task, event.error, now), kill]

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        self._workers.pop(event.worker, None)
        if self.crew is None or self.state not in WORKING:
            return []
        lost = self.crew.on_worker(event.worker)
        if lost:
            many = counted(len(lost), "task")
            self.deaths.note("worker", event.worker, f"it was lost with {many}: {event.reason}")
        for task in lost:
            self._lost(task, f"worker {event.worker} was lost: {event.reason}", now, blamed=False)
        self._away[event.worker] = (now, event.reason)
        return self._settle_away()

    def _settle_away(self) -> list[Command]:
        """Plan the tasks of lost workers on those that are there; what finds no place waits for one."""
        assert self.crew is not None
        for lost, (_, reason) in list(self._away.items()):
            if lost not in self._workers and self._fit_workers():
                try:
                    self.crew.move(lost, self._fit_workers(), self._beside())
                except PipelineError as error:
                    return self._fail(f"worker {lost} was lost ({reason}), and {error}")
            if lost in self._workers or not any(task.plan.worker == lost for task in self.crew):
                del self._away[lost]
        return []

    def _given_up(self, now: float) -> list[Command]:
        """Fail the run where a lost worker's tasks have waited long enough."""
        for lost, (since, reason) in self._away.items():
            if now >= since + WORKER_AWAY_S_MAX:
                return self._fail(
                    f"worker {lost} was lost ({reason}), and neither it nor another that may have its tasks came "
                    f"within {WORKER_AWAY_S_MAX:.0f} s"
                )
        return []

    def _link_lost(self, event: LinkLost, now: float) -> list[Command]:
        """A link between workers was cut: what was on it is to be found and read again, and the link is made anew."""
        if self.crew is None or self.state not in WORKING or self.crew.current(event.task, event.attempt) is None:
            return []
        given_up = self.crew.joints.lost(event, now)
        if given_up is None:
            return []
        self.intake.abort_sweep()
        self._dirty, self._settled = True, False
        return self._fail(given_up) if given_up else []

    def _lost(self, task: Task, story: str, now: float, *, blamed: bool = True) -> list[Command]:
        """A task's attempt is dead: what it alone held is to be found and read again."""
        assert self.crew is not None
        again = self.crew.roster.died(task, story, now, blamed=blamed)
        self.intake.task_died(task.plan.name)
        self.listing.task_died(task.plan.name)
        self._dirty, self._settled = True, False
        often = f"task {task.plan.name} died {DEATHS_MAX} times in a row; the last time by {story}"
        return [] if again else self._fail(often)
