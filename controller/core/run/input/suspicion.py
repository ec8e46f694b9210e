"""Which records are suspected of killing the tasks that have them, and what the solitary tasks are to read of these.

When a task dies its worker says what its stages had in hand. Each such range gets a strike; where ranges of two
deaths overlap, the second is suspect: it goes to no ordinary task any more, but to the solitary one, which takes up
one record at a time. A record that is alone in hand at two deaths of that task is poison: quarantined with the story.
Where the worker itself killed the task (a deadline, a cap) one death is enough for either. The death of a worker says
nothing.

Known weakness: a process killed twice by somebody else, at the very same record alone, condemns that record.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.controller.core.messages import InHand, PoisonRecord
from headrace.controller.core.plan import Route
from headrace.store.ledger import UNBOUNDED, UNKNOWN, Fragment, Gap, IntervalSet, LedgerState, Range, still_open

#: Records that a source may have been at when it died, if it did not say how many.
SOURCE_WINDOW = 4096
#: Deaths at one record alone after which it is poison.
DEATHS_ALONE = 2
#: Deaths of a stage of a solitary task in a row, of which none has a record to answer for and between which nothing of
#: what is suspect was closed or poison, after which the stage is at fault.
VAIN_MAX = 8
#: Poison neighbours after which it is not the records that are at fault.
NEIGHBOURS_MAX = 8
#: Poison records of one run after which the stage is at fault all the same.
POISON_MAX = 100


@dataclass(slots=True)
class _File:
    """What is known of one fragment."""

    struck: IntervalSet = field(default_factory=IntervalSet)
    suspects: IntervalSet = field(default_factory=IntervalSet)
    alone: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    #: By ordinal and stage: a record may kill several stages, as each of two sinks.
    poison: dict[int, dict[str, PoisonRecord]] = field(default_factory=dict[int, dict[str, PoisonRecord]])
    trial: bool = False


class Suspicion:
    """The strikes of one run."""

    def __init__(self, sources: Iterable[str] = (), sinks: Iterable[str] = ()) -> None:
        self._sources, self._sinks = tuple(sources), tuple(sinks)
        self._files: dict[bytes, _File] = {}
        self._poison = 0
        #: Of each stage: what had been decided at the last such death, and how many there were in a row.
        self._vain: dict[str, tuple[int, int]] = {}

    def of(self, fragment: bytes) -> IntervalSet | None:
        """The suspect records of a fragment; None where there are none."""
        file = self._files.get(fragment)
        return file.suspects if file is not None and len(file.suspects) else None

    def fragments(self) -> list[bytes]:
        """The fragments with suspect records."""
        return [name for name, file in self._files.items() if len(file.suspects)]

    def poison(self, fragment: bytes) -> tuple[PoisonRecord, ...]:
        """The poison records of a fragment, each at every stage that it kills."""
        file = self._files.get(fragment)
        return tuple(one for ordinal in sorted(file.poison) for one in file.poison[ordinal].values()) if file else ()

    def trial(self, fragment: bytes) -> bool:
        """Whether a sink died of records of this fragment."""
        file = self._files.get(fragment)
        return file is not None and file.trial

    def died(self, in_hand: Iterable[InHand], *, certain: bool) -> None:
        """An ordinary task died with these ranges in hand. `certain`: its worker knows that it was for one of them."""
        for hand in in_hand:
            item = hand.range
            end = item.end if item.count else item.first + SOURCE_WINDOW
            file = self._files.setdefault(item.fragment, _File())
            if certain or file.struck.overlap(item.first, end):
                file.suspects.cover(item.first, item.end if item.count else UNBOUNDED, item.offset, item.stop)
                file.trial = file.trial or hand.stage in self._sinks
            file.struck.cover(item.first, end)

    def died_alone(self, in_hand: Iterable[InHand], story: str, *, certain: bool) -> str:
        """The solitary task died: condemn its record if it is time. What is wrong with the stage, if anything is."""
        in_hand = list(dict.fromkeys(in_hand))
        ranges = Counter(hand.stage for hand in in_hand)
        for hand in in_hand:
            item = hand.range
            file = self._files.setdefault(item.fragment, _File())
            # A sink that writes a shard has all its ranges in hand, and some file may have given it one record.
            alone = item.count == 1 and ranges[hand.stage] == 1
            if hand.stage in self._sinks and not alone:
                file.trial = True
            if not alone:
                continue
            key = (item.first, hand.stage)
            file.alone[key] = file.alone.get(key, 0) + 1
            sentences = file.poison.get(item.first, {})
            if (certain or file.alone[key] >= DEATHS_ALONE) and hand.stage not in sentences:
                sentences[hand.stage] = last = PoisonRecord(item.first, hand.stage, story)
                self._poison += item.first not in file.poison
                file.poison[item.first] = sentences
                if hand.stage in self._sources:
                    self._narrow(file, item.first)
                if wrong := self._wrong(file, last):
                    return wrong
        return ""

    def in_vain(self, in_hand: Iterable[InHand], closed: int) -> str:
        """The solitary task died of more than one record: the stage, where it did so too often and to no avail.

        `closed` is how much of what is suspect is closed by now, in records. What kills only in company, as a sink that
        dies of a shard's size, would else be started again for ever.
        """
        ranges = Counter(hand.stage for hand in set(in_hand))
        decided = closed + self._poison
        for hand in in_hand:
            if hand.range.count == 1 and ranges[hand.stage] == 1:
                continue
            before, deaths = self._vain.get(hand.stage, (decided, 0))
            self._vain[hand.stage] = (decided, deaths + 1 if decided == before else 1)
            return hand.stage if self._vain[hand.stage][1] >= VAIN_MAX else ""
        return ""

    @staticmethod
    def _narrow(file: _File, ordinal: int) -> None:
        """A source said not how many records it was at: now the culprit is known, what is behind it is free."""
        suspects = IntervalSet()
        for first, end, offset, stop in file.suspects.runs():
            narrowed = first <= ordinal and end == UNBOUNDED
            suspects.add(first, ordinal + 1 if narrowed else end, offset, UNKNOWN if narrowed else stop)
        file.suspects = suspects

    def _wrong(self, file: _File, last: PoisonRecord) -> str:
        if all(last.ordinal - step in file.poison for step in range(NEIGHBOURS_MAX)):
            return (
                f"stage {last.stage} killed its process on {NEIGHBOURS_MAX} records in a row, each alone in a process "
                f"of its own; the last time: {last.story}"
            )
        if self._poison > POISON_MAX:
            return (
                f"stage {last.stage} killed its process again: more than {POISON_MAX} records of this run have; "
                f"the last time: {last.story}"
            )
        return ""


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
