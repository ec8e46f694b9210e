"""Tasks, workers and links that a run loses: what it means, and when the run gives up."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.controller.core.messages import LinkLost, TaskExited, WorkerLost
from headrace.controller.core.run.input import VAIN_MAX, Intake, Listing
from headrace.controller.core.run.opening import WORKER_AWAY_S_MAX
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import DEATHS_MAX, DeathCounts, RunTask, RunTasks, Workers
from headrace.pipeline import Pipeline, PipelineError
from headrace.store import counted
from headrace.store.ledger import UNBOUNDED, IntervalSet, LedgerState, Range

#: Ranges that are named of those with which a stage died.
RANGES_SHOWN = 3


class RunLosses:
    """Each method takes one loss and gives why the run fails; empty if it goes on."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: LedgerState,
        sinks: tuple[str, ...],
        workers: Workers,
        intake: Intake,
        listing: Listing,
        sweeps: Sweeps,
        tasks: RunTasks,
    ) -> None:
        self._pipeline, self._ledger, self._sinks, self._workers = pipeline, ledger, sinks, workers
        self._intake, self._listing, self._sweeps, self._tasks = intake, listing, sweeps, tasks
        #: Ends of tasks and workers that nobody had asked for.
        self.deaths = DeathCounts()
        #: Lost workers whose tasks have no place: since when, and why.
        self._away: dict[str, tuple[float, str]] = {}

    def wake_times(self) -> list[float]:
        """When the run gives up waiting for each lost worker."""
        return [since + WORKER_AWAY_S_MAX for since, _ in self._away.values()]

    def exited(self, task: RunTask, event: TaskExited, now: float) -> str:
        """A task's process is gone."""
        self.deaths.note("task", event.task, event.cause())
        return self._suspect(event) or self._lost(task, event.words(), now, blamed=not event.in_hand)

    def failed(self, task: RunTask, error: str, now: float) -> str:
        """A task cannot go on, and another attempt may."""
        self.deaths.note("task", task.plan.name, error)
        return self._lost(task, error, now)

    def worker_lost(self, event: WorkerLost, now: float) -> str:
        """A worker is gone with its tasks."""
        lost = self._tasks.on_worker(event.worker)
        if lost:
            many = counted(len(lost), "task")
            self.deaths.note("worker", event.worker, f"it was lost with {many}: {event.reason}")
        for task in lost:
            self._lost(task, f"worker {event.worker} was lost: {event.reason}", now, blamed=False)
        self._away[event.worker] = (now, event.reason)
        return self.settle_away()

    def settle_away(self) -> str:
        """Plan the tasks of lost workers on those that are there; a task without a place waits for one."""
        for lost, (_, reason) in list(self._away.items()):
            fit = self._workers.fit()
            if lost not in self._workers.present and fit:
                try:
                    self._tasks.move(lost, fit, self._workers.reserved())
                except PipelineError as error:
                    return f"worker {lost} was lost ({reason}), and {error}"
            if lost in self._workers.present or not any(task.plan.worker == lost for task in self._tasks):
                del self._away[lost]
        return ""

    def waited_too_long(self, now: float) -> str:
        """A lost worker's tasks have waited long enough for a place."""
        for lost, (since, reason) in self._away.items():
            if now >= since + WORKER_AWAY_S_MAX:
                return (
                    f"worker {lost} was lost ({reason}), and neither it nor another that may have its tasks came "
                    f"within {WORKER_AWAY_S_MAX:.0f} s"
                )
        return ""

    def link_lost(self, event: LinkLost, now: float) -> str:
        """A link between workers was cut: find and read again what was on it, and make it anew."""
        given_up = self._tasks.links.lost(event, now)
        if given_up is not None:
            self._sweeps.lost()
        return given_up or ""

    def _lost(self, task: RunTask, story: str, now: float, *, blamed: bool = True) -> str:
        """An attempt is dead: find and read again what it alone held."""
        again = self._tasks.table.died(task, story, now, blamed=blamed)
        self._intake.task_died(task.plan.name)
        self._listing.task_died(task.plan.name)
        self._sweeps.lost()
        return "" if again else f"task {task.plan.name} died {DEATHS_MAX} times in a row; the last time by {story}"

    def _suspect(self, event: TaskExited) -> str:
        """Charge what a dead task had in hand; what is wrong with the stage, if it cannot be the records."""
        suspicion, certain = self._intake.suspicion, bool(event.killed_for)
        if self._intake.solitary.is_task(event.task) or self._decided_alone(event):
            wrong = suspicion.died_alone(event.in_hand, event.ending(), certain=certain)
            return wrong or self._in_vain(event)
        suspicion.died(event.in_hand, certain=certain)
        return ""

    def _in_vain(self, event: TaskExited) -> str:
        """What is wrong with a stage that kills its process again and again, though no record does so alone."""
        suspicion = self._intake.suspicion
        states = [self._ledger.fragments[name] for name in suspicion.fragments()]
        closed = sum(state.of(sink).size for state in states for sink in self._sinks)
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
            records = held.setdefault(self._ledger.fragments[item.fragment].fragment.uri, IntervalSet())
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
        decide, suspicion = [stage.name for stage in self._pipeline.stateful], self._intake.suspicion
        if not decide or not event.in_hand:
            return False
        (hand, *others), suspects = event.in_hand, suspicion.of(event.in_hand[0].range.fragment)
        single = not others and hand.stage in decide and hand.range.count == 1
        return single and suspects is not None and bool(suspects.overlap(hand.range.first, hand.range.end))
