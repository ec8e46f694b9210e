"""Sweeps of one run: when a marker passes all tasks, and what is known of the records between sources and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.controller.core.messages import Command, TaskSwept
from headrace.controller.core.run.input import Intake
from headrace.controller.core.run.states import SWEEP_TRANSITIONS, Machine, SweepState, SweepTurn
from headrace.controller.core.run.tasks import RunTask, RunTasks

_HALT_SWEEPS = (SweepState.HALT_SWEEP, SweepState.HALT_OUTDATED)


@dataclass(frozen=True, slots=True)
class SweepScope:
    """What a sweep passes: the tasks that have had input, by plan, and the names of those that get none any more."""

    plans: tuple[RunTasks, ...]
    leaving: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[RunTask]:
        return (task for tasks in self.plans for task in tasks)

    @property
    def stable(self) -> bool:
        """Whether all are ready and joined."""
        return all(tasks.table.stable and not tasks.links_missing for tasks in self.plans)

    def seal(self, sinks: Sequence[str], reason: str) -> list[Command]:
        """Have their sinks seal."""
        return [command for tasks in self.plans for command in tasks.seal(sinks, reason)]


class Sweeps:
    """Begins sweeps through the tasks, and seals the sinks where one has left nothing on its way."""

    def __init__(self, intake: Intake, sinks: Sequence[str]) -> None:
        self._intake, self._sinks = intake, sinks
        self._machine = Machine("sweep", SWEEP_TRANSITIONS, SweepState.FLOWING)

    @property
    def settled(self) -> bool:
        """All input was sent, nothing was lost, and what sinks held at the last sweep is closed."""
        return self._machine.state is SweepState.SETTLED and self._intake.held_are_closed()

    @property
    def empty(self) -> bool:
        """Sources have let go, nothing is on its way, and what sinks held is closed."""
        return self._machine.state is SweepState.HALTED and self._intake.held_are_closed()

    @property
    def nothing_flows(self) -> bool:
        """No record is between a source and a sink."""
        return self._machine.state in (SweepState.SETTLED, SweepState.HALTED)

    def lost(self) -> None:
        """An attempt died or a link was cut: find and read again what it had."""
        self._intake.abort_sweep()
        self._machine.note(SweepTurn.LOST)

    def missed(self) -> None:
        """Open records are in no queue, and a sweep has to find them."""
        self._machine.note(SweepTurn.MISSED)

    def more(self) -> None:
        """Something is on its way that the last sweep did not see."""
        self._machine.note(SweepTurn.MORE)

    def halt(self) -> None:
        """The next sweep has sources let go of what they have not sent."""
        self._intake.abort_sweep()
        self._machine.note(SweepTurn.HALT_ASKED)

    def resume(self) -> None:
        """Sources read again."""
        self._machine.turn(SweepTurn.RESUMED)

    def begin_if_due(self, passed: SweepScope, *, all_read: bool, finish: bool) -> list[Command]:
        """Begin a sweep where one is due; `finish`: also if nothing was lost. What leaves halts in any sweep."""
        state = self._machine.state
        due = state in (SweepState.MISSING, SweepState.HALTING) or (state is SweepState.FLOWING and finish)
        if not due or not passed.stable:
            return []
        last = all_read and state is not SweepState.HALTING
        self._machine.turn(SweepTurn.BEGAN_LAST if last else SweepTurn.BEGAN)
        number, halt = self._intake.begin_sweep(task.plan.name for task in passed), state is SweepState.HALTING
        return [command for tasks in passed.plans for command in tasks.sweep(number, halt=halt, leaving=passed.leaving)]

    def swept(self, event: TaskSwept, passed: SweepScope, *, listed: bool, halted_for: str) -> list[Command]:
        """A marker passed a task; behind the last task of a sweep, queue what was lost, and seal if nothing was."""
        through, halts = self._intake.swept(event), self._machine.state in _HALT_SWEEPS
        seals: list[Command] = []
        if event.task in passed.leaving and not halts and self._intake.answered(passed.leaving, event.sweep - 1):
            # At once: those that take their place may be full until these have left, and the marker waits there.
            sealed = (seal for tasks in passed.plans for seal in tasks.seal(self._sinks, "amended"))
            seals = [seal for seal in sealed if seal.task in passed.leaving]
        if not through:
            return seals
        if halts:
            self._machine.turn(SweepTurn.SWEPT)
            return passed.seal(self._sinks, halted_for)
        lost = self._intake.requeue_lost()
        # What a source sent after the marker is still on its way if it was reading when the sweep began.
        clean = self._machine.state is SweepState.FINAL and not lost and self._intake.idle and listed
        self._machine.turn(SweepTurn.SWEPT_CLEAN if clean else SweepTurn.SWEPT)
        if clean:
            return passed.seal(self._sinks, "end")
        return seals
