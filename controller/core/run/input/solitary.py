"""What the solitary tasks are to read: the open part of what is suspect, for one sink each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.controller.core.plan import Route
from headrace.controller.core.run.input.suspicion import Suspicion
from headrace.store.ledger import UNBOUNDED, UNKNOWN, Fragment, Gap, IntervalSet, LedgerState, Range, still_open


@dataclass(slots=True)
class _Work:
    queue: deque[tuple[bytes, tuple[Gap, ...]]] = field(default_factory=deque[tuple[bytes, tuple[Gap, ...]]])
    assigned: set[bytes] = field(default_factory=set[bytes])
    #: What the task was given since the newest sweep began, which cannot see it.
    given: dict[bytes, list[Gap]] = field(default_factory=dict[bytes, list[Gap]])
    task: str = ""


class Solitary:
    """Queued and assigned work of the solitary tasks of one run."""

    def __init__(self, ledger: LedgerState, sinks: tuple[str, ...], suspicion: Suspicion) -> None:
        self._ledger, self._sinks, self._suspicion = ledger, sinks, suspicion
        self._work: dict[Route, _Work] = {}

    @property
    def idle(self) -> bool:
        """Nothing waits and nobody reads."""
        return not any(work.queue or work.assigned for work in self._work.values())

    def routes(self) -> list[Route]:
        """The routes for which there is work, in a stable order."""
        return sorted(route for route, work in self._work.items() if work.queue)

    def is_task(self, task: str) -> bool:
        """Whether this is a solitary task that was given work."""
        return any(work.task == task for work in self._work.values())

    def assign(self, route: Route, task: str) -> list[tuple[Fragment, tuple[Gap, ...]]]:
        """All that waits for one route goes to its task."""
        work = self._work[route]
        work.task = task
        waiting = list(work.queue)
        work.queue.clear()
        states = self._ledger.fragments
        left = [(name, still_open(gaps, [states[name].of(route.sink)])) for name, gaps in waiting]
        given = [(name, gaps) for name, gaps in left if gaps]
        work.assigned.update(name for name, _ in given)
        for name, gaps in given:
            work.given.setdefault(name, []).extend(gaps)
        return [(states[name].fragment, gaps) for name, gaps in given]

    def has(self, task: str, fragment: bytes) -> bool:
        """Whether a solitary task was given some of a fragment."""
        return any(work.task == task and fragment in work.assigned for work in self._work.values())

    def reads(self, fragment: bytes) -> bool:
        """Whether some solitary task was given some of a fragment."""
        return any(fragment in work.assigned for work in self._work.values())

    def was_read(self, task: str, fragment: bytes) -> bool:
        """Note that a solitary task has read what it was given of a fragment; False for any other."""
        for work in self._work.values():
            if work.task == task and fragment in work.assigned:
                work.assigned.discard(fragment)
                return True
        return False

    def task_died(self, task: str) -> None:
        """Let go of what a task was given."""
        for work in self._work.values():
            if work.task == task:
                work.assigned.clear()
                work.given.clear()

    def drop_queue(self) -> None:
        """Nothing more is handed out."""
        for work in self._work.values():
            work.queue.clear()

    def halt(self, fragment: bytes) -> None:
        """No more of a fragment is handed out."""
        for work in self._work.values():
            work.given.pop(fragment, None)
            work.queue = deque(item for item in work.queue if item[0] != fragment)

    def let_go(self) -> None:
        """No task has anything any more."""
        for work in self._work.values():
            work.assigned.clear()
            work.given.clear()

    def sweep_began(self) -> None:
        """A marker follows what was handed out so far."""
        for work in self._work.values():
            work.given.clear()

    def requeue(self, fragment: bytes, held: Mapping[tuple[str, bytes], Sequence[Range]], count: int | None) -> int:
        """Queue what is suspect, open and held by nobody, once a sweep is through; how many routes that concerned."""
        state = self._ledger.fragments[fragment]
        end = state.count if state.count is not None else count
        queued = 0
        for sink in self._sinks:
            work = self._work.setdefault(Route(state.fragment.stage, sink), _Work())
            if fragment in work.assigned or any(name == fragment for name, _ in work.queue):
                continue
            suspects = self._suspicion.of(fragment)
            ranges, coming = held.get((sink, fragment), ()), work.given.get(fragment, ())
            gaps = _gaps(suspects, state.of(sink), ranges, coming, end) if suspects else ()
            if gaps:
                work.queue.append((fragment, gaps))
                queued += 1
        return queued


def _gaps(
    suspects: IntervalSet, closed: IntervalSet, held: Sequence[Range], coming: Sequence[Gap], end: int | None
) -> tuple[Gap, ...]:
    """The suspect records that a sink has neither closed nor in its hands nor coming to it."""
    covered = IntervalSet()
    position = 0
    for first, stop, offset, _ in suspects.runs():
        if first > position:
            covered.add(position, first, UNKNOWN, offset)
        position = stop
    if position < UNBOUNDED:
        covered.add(position, UNBOUNDED)
    for first, stop, offset, last in closed.runs():
        covered.cover(first, stop, offset, last)
    for item in held:
        covered.cover(item.first, item.end, item.offset, item.stop)
    for gap in coming:
        covered.cover(gap.first, gap.end, gap.offset)
    return tuple(covered.gaps(UNBOUNDED if end is None else end))
