"""What must hold of reading: input that changes meanwhile, and what is read again after a death.

Invariant 6 of docs/design/ledger.md: a record has its ordinal in one version of its object. So what is closed was
read under that version, no record is closed under two names unless somebody asked for it, and only what was open of
an object that changed is given up.

Invariant 19, asked of each order to read: no source is told to read what the ledger says is closed at every sink,
what the sinks of living tasks hold, or what another living source has in front of it. So what is read again is at
most what is open less what sinks hold. And no task gives way to another while its sink holds what is open.

Known weakness: a frame that was overtaken, or came twice, by a fault may arrive when it has been given up as lost;
then of that fragment nothing is asked any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.chaos.sim.world import Part, ViolationError
from headrace.controller.core.messages import ChangedInput, Command, ReadFragment, StopTask, SweepTask, TaskSwept
from headrace.controller.core.run import GIVES_WAY, Run
from headrace.store.ledger import (
    UNBOUNDED,
    Fragment,
    FragmentDropped,
    FragmentsListed,
    FragmentState,
    Gap,
    IntervalSet,
    LedgerState,
    Removed,
    VersionSeen,
)

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import Cluster, SimulatedController


class Provenance:
    """Where what the ledger names has come from."""

    def __init__(self, cluster: Cluster, ledger: LedgerState) -> None:
        self._cluster, self._ledger = cluster, ledger
        self._by_uri: dict[str, list[FragmentState]] = {}
        #: The version that a fragment was read in, where nothing was closed of the one that it was listed in.
        self._read_in: dict[bytes, Fragment] = {}

    def change(self, number: int, change: object) -> None:
        """An entry is durable, and not folded yet."""
        if isinstance(change, FragmentsListed):
            for fragment in change.fragments:
                self._listed(number, fragment)
        elif isinstance(change, FragmentDropped):
            self._dropped(number, change)
        elif isinstance(change, VersionSeen):
            self._seen(number, change)

    def folded(self, change: object) -> None:
        """And now it is."""
        if isinstance(change, Removed):
            self._by_uri.clear()
        if isinstance(change, FragmentsListed):
            for fragment in change.fragments:
                self._by_uri.setdefault(fragment.uri, []).append(self._ledger.fragments[fragment.id])

    def read(self, number: int, part: Part) -> None:
        """6: the bytes of a closed range are those of the version that was listed."""
        name, writings = part.item.fragment, self._cluster.corpus.writings
        state = self._ledger.fragments[name]
        if not any(state.closed.values()) and part.read_from == writings[name]:
            # A later version stood for it, of which nothing was closed, and is gone: the listed one is back.
            self._read_in.pop(name, None)
        writing = writings[self._read_as(state).id]
        if part.read_from != writing:
            raise ViolationError(
                6,
                f"entry {number} closes records of {state.fragment.uri} as writing {writing}, "
                f"read from {part.read_from}",
            )

    def _listed(self, number: int, fragment: Fragment) -> None:
        if ChangedInput.REREAD in self._cluster.inputs.choices:
            return
        for state in self._by_uri.get(fragment.uri, ()):
            raise ViolationError(
                6,
                f"entry {number} lists version {fragment.version} of {fragment.uri}, and version "
                f"{state.fragment.version} was listed: nobody asked for both",
            )

    def _seen(self, number: int, change: VersionSeen) -> None:
        """6: what is not read for being the same is the same, and what is passed over was to be."""
        inputs, known = self._cluster.inputs, self._by_uri.get(change.uri, ())
        there = inputs.of_version(change.uri, change.version)
        # It is said of the newest: what is open of one before it is read on in its own bytes, or given up.
        newest = next((item for item in reversed(known) if item.dropped is None), None)
        same = newest is not None and inputs.holds_same(there, self._read_as(newest))
        if change.same and not same and newest is not None and not any(newest.closed.values()):
            same = newest.fragment.size == there.size
            self._read_in[newest.fragment.id] = there
        if change.same and not same:
            raise ViolationError(6, f"entry {number} takes {change.uri} for the same in version {change.version}")
        if not change.same and ChangedInput.DROP not in self._cluster.inputs.choices:
            raise ViolationError(6, f"entry {number} passes {change.uri} over, and nobody chose that")

    def _read_as(self, state: FragmentState) -> Fragment:
        return self._read_in.get(state.fragment.id, state.fragment)

    def _dropped(self, number: int, change: FragmentDropped) -> None:
        state = self._ledger.fragments[change.fragment]
        uri = state.fragment.uri
        choice = ChangedInput.REREAD if change.reread else ChangedInput.DROP
        if choice not in self._cluster.inputs.choices:
            raise ViolationError(6, f"entry {number} gives up {uri}, and nobody chose to {choice.value}")
        if uri not in self._cluster.inputs.disturbed:
            raise ViolationError(6, f"entry {number} gives up {uri}, which never changed")
        if state.done(self._cluster.corpus.sinks):
            raise ViolationError(6, f"entry {number} gives up {uri}, of which nothing is open")

    def finish(self) -> None:
        """5, 8: what was listed is closed or given up; what stands in the end was listed, unless it was given up."""
        corpus, ledger = self._cluster.corpus, self._ledger
        for state in ledger.fragments.values():
            ended = state.dropped is not None or state.count == corpus.records[state.fragment.id]
            if not ended or not state.done(corpus.sinks):
                raise ViolationError(5, f"{state.fragment.uri} is not done: {state}")
        for uri, fragment in self._cluster.inputs.standing.items():
            given_up = any(
                known.dropped is not None and not known.dropped.reread for known in self._by_uri.get(uri, ())
            )
            seen = ledger.seen.get((fragment.stage, uri))
            known = seen is not None and seen.version == fragment.version
            if fragment.id not in ledger.fragments and not given_up and not known:
                raise ViolationError(5, f"{uri} stands in version {fragment.version}, and was never listed")
        for sink in corpus.sinks:
            records = ledger.counts[sink].records if sink in ledger.counts else 0
            closed = sum(state.records_due(sink) for state in ledger.fragments.values())
            if records != closed:
                raise ViolationError(8, f"{records} verdicts of {sink} for {closed} records")


#: Sweeps that are looked through for the newest that was not broken off.
SWEEPS_BACK = 20


class Rereading:
    """The orders to read of one seed, and what sinks said in sweeps."""

    def __init__(self, cluster: Cluster, ledger: LedgerState) -> None:
        self._cluster, self._ledger = cluster, ledger
        #: By controller and sweep: the tasks that were asked, and what each answered.
        self._asked: dict[tuple[str, int], set[str]] = {}
        self._answers: dict[tuple[str, int], dict[str, TaskSwept]] = {}

    def commanded(self, controller: SimulatedController, run: Run, command: Command) -> None:
        """A controller gives an order."""
        if isinstance(command, SweepTask):
            self._asked.setdefault((controller.identity, command.sweep), set()).add(command.task)
        elif isinstance(command, ReadFragment):
            self._ordered(controller, run, command)
        elif isinstance(command, StopTask) and command.reason == GIVES_WAY:
            self._gave_way(run, command)

    def answered(self, controller: SimulatedController, event: TaskSwept) -> None:
        """A task has let a marker pass."""
        self._answers.setdefault((controller.identity, event.sweep), {})[event.task] = event

    def _ordered(self, controller: SimulatedController, run: Run, command: ReadFragment) -> None:
        """19: a source is told to read these gaps: each record in them is missing at a sink."""
        fragment = command.fragment
        if fragment.id in self._cluster.wires.strayed or run.leadership.term < self._ledger.term:
            return  # of a leader that another has replaced no worker takes an order
        state = run.ledger.fragments[fragment.id]
        alone = _alone(run, command)
        covered: list[IntervalSet] = []
        for sink in alone or run.sinks:
            have = state.of(sink).copy()
            for first, end in self._held(controller, run, sink, fragment):
                have.cover(first, end)
            covered.append(have)
        for gap in command.gaps:
            for first, end in _common(gap, covered):
                raise ViolationError(
                    19,
                    f"{controller.name} has {command.task} read records {first}..{end - 1} of {fragment.uri} again, "
                    "which are closed or held at every sink",
                )
        for gap in () if alone else self._pending(run, command):
            for mine in command.gaps:
                if max(gap.first, mine.first) < min(gap.end, mine.end):
                    raise ViolationError(19, f"{fragment.uri} is read by two: {gap} and {mine}")

    def _gave_way(self, run: Run, command: StopTask) -> None:
        """19: a task ends since others have taken its place: what its sink holds is closed."""
        task = self._cluster.attempt(command.task, command.attempt)
        if task is None or task.core.sink is None:
            return
        for item in task.core.sink.ranges():
            closed = run.ledger.fragments[item.fragment].of(task.stages[-1]).overlap(item.first, item.end)
            if item.fragment not in self._cluster.wires.strayed and sum(b - a for a, b in closed) < item.count:
                raise ViolationError(19, f"{command.task} gives way and holds {item}")

    def _held(
        self, controller: SimulatedController, run: Run, sink: str, fragment: Fragment
    ) -> Iterator[tuple[int, int]]:
        """What sinks that live said in the newest sweep that went through."""
        for task in self._newest(controller, run).values():
            if run.works is not None and run.works.current(task.task, task.attempt) is not None:
                for name, ranges in task.held:
                    for item in ranges if name == sink else ():
                        if item.fragment == fragment.id:
                            yield item.first, item.end

    def _newest(self, controller: SimulatedController, run: Run) -> dict[str, TaskSwept]:
        for sweep in range(run.intake.sweep, max(0, run.intake.sweep - SWEEPS_BACK), -1):
            answers = self._answers.get((controller.identity, sweep), {})
            if answers and answers.keys() >= self._asked[controller.identity, sweep]:
                return answers
        return {}

    def _pending(self, run: Run, command: ReadFragment) -> Iterator[Gap]:
        """What other living sources were given of it and have not sent."""
        for task in self._cluster.living(run):
            if task.name != command.task and not task.alone:
                for name, gaps in task.core.reading.pending():
                    yield from gaps if name == command.fragment.id else ()


def _alone(run: Run, command: ReadFragment) -> tuple[str, ...]:
    """The sink of the solitary task that is told; of any other task, none."""
    task = run.works.of(command.task).tasks.table.tasks[command.task] if run.works is not None else None
    return task.plan.stages[-1:] if task is not None and task.plan.alone else ()


def _common(gap: Gap, covered: list[IntervalSet]) -> list[tuple[int, int]]:
    """The parts of a gap that every one of these sets has."""
    parts = [(gap.first, min(gap.end, UNBOUNDED))]
    for have in covered:
        parts = [common for first, end in parts for common in have.overlap(first, end)]
    return parts
