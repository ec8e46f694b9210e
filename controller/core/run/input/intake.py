"""What is to be read, by whom, and what was lost on the way.

A fragment waits in the queue, or is assigned to one source task, or has been sent. What was sent and is not closed is
soft state in links and sinks. When a task dies nobody can say what it alone held, so the controller does not guess: it
lets a marker sweep through every link. A source says at the marker what it was given and has not sent; a sink says
what it holds when the marker has come in on all its inputs. What is handed out after that goes behind the marker. What
is open and in none of these is lost, and is read again:

    lost = [0, end) - closed - pending at sources - held at sinks - handed out since the sweep began

The marker travels behind the data, so nothing that was sent before it can still be on its way. The same sweep finds
the end of a run: when all has been sent and nothing is lost, the sinks seal.

Prior art: the aligned barriers of Chandy and Lamport (1985), as in Apache Flink, without the checkpoint behind them.
Known weakness: a sweep waits for the slowest path, and for tasks that are starting again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from headrace.controller.core.messages import Records, TaskSwept
from headrace.controller.core.run.input.suspicion import Solitary, Suspicion
from headrace.store.ledger import (
    UNBOUNDED,
    UNKNOWN,
    Fragment,
    FragmentState,
    Gap,
    IntervalSet,
    LedgerState,
    Range,
    still_open,
)

#: Bytes and fragments that a source task is given ahead of what it reads, so that it never waits for an answer. One of
#: several is given half of an even share of what waits: it goes on while a standby takes over, and as the input ends no
#: task holds what another could read, however long the stages behind take for a record. Beyond the next fragment that
#: is at most a part of what it has read: of tasks that join later none waits for those that were there before.
AHEAD_BYTES = 8 << 20
AHEAD_BYTES_MIN, AHEAD_BYTES_MAX = 256 << 10, 256 << 20
AHEAD_OF_READ = 8
AHEAD_FRAGMENTS = 256

#: The gaps of a fragment that each sink wants, in the order of the sinks.
Wanted: TypeAlias = tuple[tuple[Gap, ...], ...]


class Intake:
    """Fragments of one run: queued, assigned, sent; and the sweep in progress."""

    def __init__(self, ledger: LedgerState, sinks: tuple[str, ...], sources: tuple[str, ...] = ()) -> None:
        self._ledger = ledger
        self._sinks = sinks
        self.suspicion = Suspicion(sources, sinks)
        self.solitary = Solitary(ledger, sinks, self.suspicion)
        #: By stage: fragments that wait, and what each sink wants of them.
        self._queue: dict[str, deque[tuple[bytes, Wanted]]] = {}
        #: Bytes of the fragments that wait, by stage.
        self._waiting: dict[str, int] = {}
        self._assigned: dict[bytes, str] = {}
        self._loads: dict[str, dict[bytes, int]] = {}
        #: Tasks that can be given no more, until they have read something or more waits; among how many.
        self._full: dict[str, int] = {}
        #: Bytes of the fragments that a task has read.
        self._read: dict[str, int] = {}
        #: Ends that a source reported and the ledger may not hold yet.
        self._ends: dict[bytes, int] = {}
        #: Fragments of this run that are not done.
        self._open: dict[bytes, None] = {}
        #: What was handed out by an earlier leader is not known before a sweep has been through.
        self._distrusts = False
        #: Fragments that are open and not read any more, since their object is not the one that was listed; and the
        #: newest sweep that had begun when that was found.
        self._halted: dict[bytes, int] = {}
        #: Fragments that are open and not handed out, since it is not known yet whether their object is the same; and
        #: those that may have been handed out before that was known, under the version that they were listed in.
        self._withheld: set[bytes] = set()
        self._outdated: set[bytes] = set()
        #: The newest sweep, and the newest that went through.
        self.sweep = self._through = 0
        self._awaited: set[str] = set()
        self._pending: dict[bytes, list[Gap]] = {}
        #: What was handed out since the newest sweep began: behind its marker, so that the sweep cannot see it.
        self._given: dict[bytes, list[Gap]] = {}
        self._held: dict[tuple[str, bytes], list[Range]] = {}
        #: The same by task, as it said so.
        self._held_by: dict[str, tuple[tuple[str, tuple[Range, ...]], ...]] = {}

    # -- the queue --

    def inherit(self) -> None:
        """An earlier leader's tasks go on: hand nothing out before a sweep has told what they have."""
        self.distrust()
        for fragment in self._ledger.fragments:
            self.admit(fragment)

    def distrust(self) -> None:
        """Some task has what this leader has not given it, or has forgotten."""
        self._distrusts = True

    def admit(self, fragment: bytes) -> None:
        """Take up a fragment that the ledger knows, unless it is done."""
        state = self._ledger.fragments[fragment]
        if fragment in self._open or fragment in self._halted or state.done(self._sinks):
            return
        self._open[fragment] = None
        if not self._distrusts:
            self._enqueue(fragment, self._wanted(state, {}, ()))

    def settle(self, fragments: Iterable[bytes]) -> None:
        """Forget those of these fragments that have become done."""
        for fragment in fragments:
            if fragment in self._open and self._ledger.fragments[fragment].done(self._sinks):
                del self._open[fragment]

    @property
    def done(self) -> bool:
        """Every admitted fragment is done, or halted."""
        return not self._open

    @property
    def idle(self) -> bool:
        """Nothing waits and nobody reads."""
        return not self._assigned and not any(self._queue.values()) and self.solitary.idle

    def assign(self, stage: str, task: str, among: int = 1) -> list[tuple[Fragment, tuple[Gap, ...]]]:
        """What to hand to a source task now, one of `among`: a fragment at least, and what it may have ahead."""
        queue = self._queue.get(stage)
        if not queue or self._full.get(task) == among:
            return []
        load = self._loads.setdefault(task, {})
        given: list[tuple[Fragment, tuple[Gap, ...]]] = []
        ahead = sum(load.values())
        share = self._waiting.get(stage, 0) // (2 * among)
        limit = min(AHEAD_BYTES_MAX, share) if among > 1 else AHEAD_BYTES
        earned = max(AHEAD_BYTES_MIN, self._read.get(task, 0) // AHEAD_OF_READ)
        while queue and len(load) < AHEAD_FRAGMENTS:
            if load and (ahead >= limit or (len(load) > 1 and ahead >= earned)):
                break
            name, wanted = queue.popleft()
            state = self._ledger.fragments[name]
            fragment = state.fragment
            self._waiting[stage] -= fragment.size
            # Some of what a sink wanted may have been closed meanwhile: who was thought dead had it.
            gaps = _union([still_open(mine, [state.of(sink)]) for sink, mine in zip(self._sinks, wanted, strict=True)])
            if not gaps or name in self._halted or name in self._withheld:
                continue
            self._assigned[name] = task
            if self._awaited:
                self._given.setdefault(name, []).extend(gaps)
            load[name] = fragment.size
            ahead += fragment.size
            given.append((fragment, gaps))
        self._full[task] = among
        return given

    def spent(self, stage: str, task: str) -> bool:
        """Whether a source task has sent all that it was given, and nothing waits for it."""
        return not (self._queue.get(stage) or self._loads.get(task) or self._distrusts)

    def was_read(self, task: str, fragment: bytes, count: int) -> bool:
        """Note that a task has sent a fragment; False for stale news. `count` -1: the end was not asked for."""
        if self.solitary.was_read(task, fragment):
            if count >= 0:
                self._ends[fragment] = count
            return True
        if self._assigned.get(fragment) != task:
            # Where an earlier leader handed it out, only the end is news: what it sent is found by the sweep.
            known = self._distrusts and fragment in self._ledger.fragments
            if known and count >= 0:
                self._ends[fragment] = count
            return known
        del self._assigned[fragment]
        self._full.pop(task, None)
        self._read[task] = self._read.get(task, 0) + self._loads[task].pop(fragment, 0)
        if count >= 0:
            self._ends[fragment] = count
        return True

    def reads(self, task: str, fragment: bytes) -> bool:
        """Whether a fragment was given to this task, as far as is known: not all of it is, under a new leader."""
        given = self._assigned.get(fragment) == task or self.solitary.has(task, fragment)
        return given or (self._distrusts and fragment not in self._assigned)

    def halt(self, fragment: bytes, task: str = "") -> None:
        """Read no more of a fragment in this run; what of it is closed, or held by a sink, stays good."""
        self.was_read(task, fragment, UNKNOWN)
        self._open.pop(fragment, None)
        self._given.pop(fragment, None)
        self._withheld.discard(fragment)
        self._halted.setdefault(fragment, self.sweep)
        self.solitary.halt(fragment)

    def withhold(self, fragment: bytes) -> None:
        """Hand nothing out of a fragment until it is released, or halted: its object is being compared."""
        if not self._ledger.fragments[fragment].done(self._sinks):
            self._withheld.add(fragment)
            self.solitary.halt(fragment)

    def release(self, fragment: bytes) -> bool:
        """Its object is the same: go on with a fragment; whether a sweep has to tell first what is open of it."""
        self._withheld.discard(fragment)
        if fragment not in self._open:
            self.admit(fragment)
            return False
        if self._distrusts or fragment in self._assigned or self.solitary.reads(fragment):
            self._outdated.add(fragment)
        return True

    def excuses(self, task: str, fragment: bytes) -> bool:
        """Whether a task may have found a change only since its order is older than what is known of the object.

        If so the task has let go of it, and what is open is found by a sweep. An order is excused once.
        """
        if fragment not in self._withheld and fragment not in self._outdated:
            return False
        self._outdated.discard(fragment)
        self.was_read(task, fragment, UNKNOWN)
        self._given.pop(fragment, None)
        return True

    def task_died(self, task: str) -> None:
        """Let go of what a task was given; the next sweep finds what is lost."""
        self.let_go(task)
        self._awaited.clear()

    def let_go(self, task: str) -> None:
        """A task that halted has what it was given no more; the sweep that it answered finds what is open."""
        self._read.pop(task, None)
        self._full.pop(task, None)
        for fragment in self._loads.pop(task, {}):
            self._assigned.pop(fragment, None)
            self._given.pop(fragment, None)
        self.solitary.task_died(task)

    def drop_queue(self) -> None:
        """Nothing more is handed out."""
        self._queue.clear()
        self.solitary.drop_queue()
        self._waiting.clear()

    def begin_again(self) -> None:
        """Every source has let go, and what sinks held is closed: queue all that is open."""
        self.drop_queue()
        self._assigned.clear()
        self._loads.clear()
        self._full.clear()
        self.solitary.let_go()
        self._pending.clear()
        self._given.clear()
        self.requeue_lost()

    # -- the sweep --

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is under way."""
        return bool(self._awaited)

    def begin_sweep(self, tasks: Iterable[str]) -> int:
        """Start a sweep through these tasks and give its number."""
        self.sweep += 1
        self._awaited = set(tasks)
        self._pending.clear()
        self._given.clear()
        self.solitary.sweep_began()
        self._held.clear()
        self._held_by.clear()
        return self.sweep

    def swept(self, event: TaskSwept) -> bool:
        """Take one task's answer; True when it was the last."""
        if event.sweep != self.sweep or event.task not in self._awaited:
            return False
        for fragment, gaps in event.pending:
            self._pending.setdefault(fragment, []).extend(gaps)
            known = fragment in self._assigned or self.solitary.has(event.task, fragment)
            if self._distrusts and gaps and not known:
                self._assigned[fragment] = event.task
                load = self._loads.setdefault(event.task, {})
                load[fragment] = self._ledger.fragments[fragment].fragment.size
        for sink, ranges in event.held:
            for item in ranges:
                self._held.setdefault((sink, item.fragment), []).append(item)
        self._held_by[event.task] = event.held
        self._awaited.discard(event.task)
        if not self._awaited:
            self._through = self.sweep
        return not self._awaited

    def abort_sweep(self) -> None:
        """Forget the sweep under way; its answers will be stale."""
        self._awaited.clear()

    def held_are_closed(self) -> bool:
        """Whether all that sinks held at the last sweep has been closed since."""
        return not self._awaited and all(self._closed(sink, ranges) for (sink, _), ranges in self._held.items())

    def answered(self, tasks: Collection[str], since: int) -> bool:
        """Whether these tasks have answered a sweep behind number `since` that goes on, or has gone through."""
        goes_on = bool(self._awaited) or self._through == self.sweep
        return goes_on and since < self.sweep and self._held_by.keys() >= set(tasks)

    def have_left(self, tasks: Collection[str], since: int) -> bool:
        """Whether these tasks have answered a sweep behind number `since`, and all that they held then is closed."""
        if not self.answered(tasks, since):
            return False
        return all(self._closed(sink, ranges) for task in tasks for sink, ranges in self._held_by.get(task, ()))

    def _closed(self, sink: str, ranges: Iterable[Range]) -> bool:
        for item in ranges:
            closed = self._ledger.fragments[item.fragment].of(sink)
            if sum(end - first for first, end in closed.overlap(item.first, item.end)) < item.count:
                return False
        return True

    def parted(self, sinks: Sequence[str], records: Records) -> tuple[Records, Records]:
        """Of these records, those that one of the sinks held at the last sweep, and the others."""
        held: list[tuple[bytes, tuple[int, ...]]] = []
        others: list[tuple[bytes, tuple[int, ...]]] = []
        for fragment, rows in records:
            ranges = IntervalSet()
            for item in (item for sink in sinks for item in self._held.get((sink, fragment), ())):
                ranges.cover(item.first, item.end)
            mine = {row for row in rows if ranges.overlap(row, row + 1)}
            held += [(fragment, tuple(sorted(mine)))] if mine else []
            others += [(fragment, tuple(row for row in rows if row not in mine))] if len(mine) < len(rows) else []
        return tuple(held), tuple(others)

    def parted_halted(self, sinks: Sequence[str], records: Records) -> tuple[Records, Records]:
        """Of these records, those that may be closed still, and those that nobody reads any more.

        The latter are of halted fragments, and no sink held them when a marker had passed behind what was sent.
        """
        if self._through != self.sweep:
            return records, ()
        halted = tuple(item for item in records if self._idles(item[0]))
        held, never = self.parted(sinks, halted)
        return (*(item for item in records if item not in halted), *held), never

    def _idles(self, fragment: bytes) -> bool:
        """Whether a fragment was halted before the newest sweep began, and no source has any of it in front of it."""
        halted = self._halted.get(fragment, self.sweep) < self.sweep
        return halted and fragment not in self._assigned and not self._pending.get(fragment)

    def requeue_lost(self) -> int:
        """Queue what is open and held by nobody; how many fragments that concerned."""
        self._distrusts = False
        lost = 0
        waiting = {name for queue in self._queue.values() for name, _ in queue}
        for fragment in self.suspicion.fragments():
            if fragment in self._open and fragment not in self._withheld:
                lost += self.solitary.requeue(fragment, self._held, self._ends.get(fragment))
        for fragment in self._open:
            if fragment in waiting or fragment in self._assigned or fragment in self._withheld:
                continue
            state = self._ledger.fragments[fragment]
            held = {sink: self._held.get((sink, fragment), []) for sink in self._sinks}
            coming = (*self._pending.get(fragment, ()), *self._given.get(fragment, ()))
            lost += self._enqueue(fragment, self._wanted(state, held, coming))
        return lost

    def _enqueue(self, fragment: bytes, wanted: Wanted) -> bool:
        """Queue a fragment, unless no sink wants anything of it."""
        if not any(wanted):
            return False
        facts = self._ledger.fragments[fragment].fragment
        self._waiting[facts.stage] = self._waiting.get(facts.stage, 0) + facts.size
        self._queue.setdefault(facts.stage, deque()).append((fragment, wanted))
        self._full.clear()
        return True

    def _wanted(self, state: FragmentState, held: Mapping[str, Sequence[Range]], coming: Sequence[Gap]) -> Wanted:
        """What each sink has neither closed nor in its hands nor coming to it."""
        count = state.count if state.count is not None else self._ends.get(state.fragment.id)
        wanted: list[tuple[Gap, ...]] = []
        suspects = self.suspicion.of(state.fragment.id)
        for sink in self._sinks:
            covered = state.of(sink).copy()
            for item in held.get(sink, ()):
                covered.cover(item.first, item.end, item.offset, item.stop)
            for first, end, offset, stop in suspects.runs() if suspects is not None else ():
                covered.cover(first, end, offset, stop)
            for gap in coming:
                if gap.first < gap.end:
                    covered.cover(gap.first, gap.end, gap.offset)
            wanted.append(tuple(covered.gaps(UNBOUNDED if count is None else count)))
        return tuple(wanted)


def _union(wanted: Sequence[tuple[Gap, ...]]) -> tuple[Gap, ...]:
    """What one of the sinks wants at least."""
    if len(wanted) == 1:
        return wanted[0]
    union = IntervalSet()
    offsets: dict[int, int] = {}
    for gap in (gap for gaps in wanted for gap in gaps):
        union.cover(gap.first, gap.end, gap.offset)
        offsets.setdefault(gap.first, gap.offset)
    return tuple(Gap(first, end, offsets.get(first, -1)) for first, end in union)
