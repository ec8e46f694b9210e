"""A run's records on their way in: sources are listed, fragments handed out, and their ends entered in the ledger."""

from __future__ import annotations

from collections.abc import Container

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import Command, FragmentWasRead, ReadFragment, SealSink, SourceListed
from headrace.controller.core.run.changed_input import ChangedFragments
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import RunTask, RunTasks, TaskPhase
from headrace.store.ledger import FragmentEnded, FragmentsListed, LedgerState


class InputReading:
    """Hands out fragments, and takes what sources report."""

    def __init__(
        self,
        leadership: Leadership[LedgerState],
        listing: Listing,
        intake: Intake,
        sweeps: Sweeps,
        changed: ChangedFragments,
        tasks: RunTasks,
        sinks: Container[str] = (),
    ) -> None:
        self._leadership, self._ledger = leadership, leadership.ledger
        self._listing, self._intake, self._sweeps, self._changed = listing, intake, sweeps, changed
        self._tasks = tasks
        #: Sinks that seal as soon as a source in their own task has sent all: they wait for no other task.
        self._sinks = sinks
        #: The attempts that were asked to.
        self._sealed: set[tuple[str, int]] = set()

    def source_listed(self, event: SourceListed) -> str:
        """Take a page of a listing; why the run fails, if it does."""
        if self._tasks.current(event.task, event.attempt) is None or not self._listing.expects(event):
            return ""
        if event.error:
            return event.error
        fresh, known = self._listing.take(event)
        for fragment in known:
            self._intake.admit(fragment.id)
        if fresh:
            self._leadership.submit(FragmentsListed(tuple(fresh)))
        self._changed.take_compared()
        if event.last:
            self._changed.halt_vanished(event.stage)
        return ""

    def was_read(self, event: FragmentWasRead) -> str:
        """A task has read a fragment, or compared it, or cannot read it; why the run fails, if it does."""
        if self._tasks.current(event.task, event.attempt) is None:
            return ""
        if self._listing.comparing.heard(event):
            self._changed.take_compared()
            return ""
        if event.prefix:
            if self._intake.reads(event.task, event.fragment):
                self._changed.prefix_read(event)
            return ""
        if event.error and (event.changed or event.unreadable):
            if not self._intake.reads(event.task, event.fragment):
                # Stale: the task that reads it now finds the same.
                return ""
            if event.changed and self._intake.excuses(event.task, event.fragment):
                self._sweeps.missed()
                return ""
            self._changed.halt_read(event.fragment, event.task, event.error, unreadable=event.unreadable)
            return ""
        if event.error:
            return event.error
        if self._intake.was_read(event.task, event.fragment, event.count) and event.count >= 0:
            state = self._ledger.fragments[event.fragment]
            if state.count is None and event.fragment not in self._intake.ends_submitted:
                self._intake.ends_submitted.add(event.fragment)
                self._leadership.submit(FragmentEnded(event.fragment, event.count, event.checksum))
        return ""

    def hand_out(self) -> list[Command]:
        """Have sources listed and fragments read, by tasks that are ready."""
        commands = self._listing.ask(self._tasks.table)
        if self._tasks.links_missing:
            return commands
        commands += self._hand_out_suspects()
        readers: list[RunTask] = []
        heads: dict[str, int] = {}
        for task in self._tasks.table:
            head = task.plan.stages[0]
            if not task.plan.alone and self._listing.is_source(head):
                readers.append(task)
                heads[head] = heads.get(head, 0) + 1
        commands += self._listing.comparing.ask(readers)
        for task in readers:
            head = task.plan.stages[0]
            if task.state is not TaskPhase.READY:
                continue
            given = self._intake.assign(head, task.plan.name, heads[head])
            commands += self._sealed_early(task, reads=bool(given))
            for fragment, gaps in given:
                self._sweeps.more()
                fragment = self._ledger.as_it_stands(fragment)
                commands.append(ReadFragment(task.plan.worker, task.plan.name, task.attempt, fragment, gaps))
        return commands

    def _sealed_early(self, task: RunTask, *, reads: bool) -> list[Command]:
        """Have a task seal what it holds when its source has sent all: it writes while others read still."""
        attempt, plan = (task.plan.name, task.attempt), task.plan
        if reads:
            self._sealed.discard(attempt)
        spent = self._listing.done and self._intake.spent(plan.stages[0], plan.name)
        if not spent or attempt in self._sealed or plan.stages[-1] not in self._sinks:
            return []
        self._sealed.add(attempt)
        return [SealSink(plan.worker, plan.name, task.attempt, "all is read")]

    def _hand_out_suspects(self) -> list[Command]:
        """Suspect records go to the solitary task of their route, which is started when there is work for it."""
        commands: list[Command] = []
        suspicion, solitary = self._intake.suspicion, self._intake.solitary
        for route in solitary.routes():
            task = self._tasks.solitary(route)
            if task.state is not TaskPhase.READY:
                continue
            for fragment, gaps in solitary.assign(route, task.plan.name):
                self._sweeps.more()
                guilty, trial = suspicion.poison(fragment.id), suspicion.trial(fragment.id)
                plan, fragment = task.plan, self._ledger.as_it_stands(fragment)
                commands.append(ReadFragment(plan.worker, plan.name, task.attempt, fragment, gaps, guilty, trial))
        return commands
