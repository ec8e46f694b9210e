"""What the ledger knows of each object that is listed, and whether one in another version holds the same bytes.

The ledger has a checksum of each fragment that was read to its end, and of the first bytes of one that was read in
part. Source tasks read the same bytes of what stands there now for their checksum alone: an order to read a fragment
without a gap, under the new version. Nothing is read into the dataset before that is known. A touched file, or a copy
that took its place, is then the same object; a file that lines were appended to has grown; anything else is another
object, and the run's choice says what follows (docs/guide/inputs.md).

An object is recorded with its version when it is listed. One that is not the same any more cannot be read on: its
records have other ordinals. What is open of it halts, and the run's choice says what follows (docs/guide/inputs.md).
One that was read to its end is compared with what was read, before anything of it is read again (`Comparing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from headrace.controller.core.messages import Command, FragmentWasRead, ReadFragment
from headrace.controller.core.run.tasks import RunTask, TaskPhase
from headrace.store.ledger import Fragment, FragmentState, IntervalSet, LedgerState, VersionSeen


class ListedAs(Enum):
    """What a listed fragment, which the ledger does not know by its name, is to what it does know of the object."""

    #: Nothing is known of the object.
    NEW = "new"
    #: The object is known in this version, or in one that held the same bytes.
    THERE = "there"
    #: It was given up, or skipped in this version, by somebody's choice.
    SKIPPED = "skipped"
    #: Something is open of it in another version that nobody can tell from this one.
    CONTRADICTED = "contradicted"
    #: It was read in another version, to its end: whether that held the same bytes can be told.
    TO_COMPARE = "to compare"


class KnownObjects:
    """What is known of each object when a listing begins.

    `submitted` are fragments that may be on their way into the ledger, `handed` those of which records may be on their
    way; None: nobody knows which.
    """

    def __init__(
        self,
        ledger: LedgerState,
        sinks: tuple[str, ...],
        submitted: Iterable[Fragment] = (),
        handed: Container[bytes] | None = None,
    ) -> None:
        self._seen, self._sinks, self._handed = ledger.seen, sinks, handed
        #: By stage and URI; most objects have one fragment, and there may be millions.
        self._known: dict[str, dict[str, FragmentState | list[FragmentState]]] = {}
        self._submitted: dict[tuple[str, str], list[Fragment]] = {}
        self._tiles: dict[tuple[str, str], tuple[FragmentState, ...]] = {}
        for fragment in submitted:
            if fragment.id not in ledger.fragments:
                self._submitted.setdefault((fragment.stage, fragment.uri), []).append(fragment)
        for state in ledger.fragments.values():
            objects = self._known.setdefault(state.fragment.stage, {})
            first = objects.setdefault(state.fragment.uri, state)
            if isinstance(first, list):
                first.append(state)
            elif first is not state:
                objects[state.fragment.uri] = [first, state]

    def _of(self, fragment: Fragment) -> Sequence[FragmentState]:
        found = self._known.get(fragment.stage, {}).get(fragment.uri, [])
        return found if isinstance(found, list) else (found,)

    def listed_as(self, fragment: Fragment) -> ListedAs:
        """See `ListedAs`."""
        key = fragment.stage, fragment.uri
        known, submitted = self._of(fragment), self._submitted.get(key, ())
        if not known and not submitted:
            return ListedAs.NEW
        seen = self._seen.get(key)
        if seen is not None and seen.version == fragment.version:
            return ListedAs.THERE if seen.same else ListedAs.SKIPPED
        if seen is None and any(state.fragment.version == fragment.version for state in self.tile(fragment)):
            return ListedAs.THERE
        if any(item.version == fragment.version for item in submitted):
            return ListedAs.THERE
        if any(state.dropped is not None and not state.dropped.reread for state in known):
            return ListedAs.SKIPPED
        if not self.tile(fragment) and not submitted:
            return ListedAs.NEW
        unknown = [state for state in known if not state.checksum and not state.done(self._sinks)]
        told = not unknown or self._are_told(fragment, unknown)
        return ListedAs.TO_COMPARE if told and not submitted else ListedAs.CONTRADICTED

    def _are_told(self, fragment: Fragment, unknown: Sequence[FragmentState]) -> bool:
        """Whether these were read in part, and checksums say of which bytes. What is on its way is of any others.

        An object that was not read to its end is another one if it has another size.
        """
        tile = self.tile(fragment)
        whole = fragment.start == 0 and fragment.end < 0
        if whole and fragment.size != sum(state.fragment.size for state in tile):
            return False
        if self._handed is None or evidence_of(tile) is None:
            return False
        return all(state in tile and state.fragment.id not in self._handed for state in unknown)

    def tile(self, fragment: Fragment) -> tuple[FragmentState, ...]:
        """The fragments that account for what its object held last: the newest of those that meet one another."""
        key = fragment.stage, fragment.uri
        if key not in self._tiles:
            covered = IntervalSet()
            tile: list[FragmentState] = []
            for state in reversed(self._of(fragment)):
                first, end = _span(state.fragment)
                if state.dropped is not None or (first < end and covered.overlap(first, end)):
                    continue
                if first < end:
                    covered.add(first, end)
                tile.append(state)
            self._tiles[key] = tuple(reversed(tile))
        return self._tiles[key]

    def uncovered(self, fragment: Fragment) -> list[Fragment]:
        """The parts of a fragment of an object that is there which no fragment of it has: it was cut otherwise.

        What was given up, and is not to be read again, has its part.
        """
        key = fragment.stage, fragment.uri
        covered = IntervalSet()
        given_up = [state for state in self._of(fragment) if state.dropped is not None and not state.dropped.reread]
        known = (state.fragment for state in (*self.tile(fragment), *given_up))
        for item in (*known, *self._submitted.get(key, ())):
            covered.cover(*_span(item))
        first, end = _span(fragment)
        parts: list[Fragment] = []
        for low, high in (*covered.overlap(first, end), (end, end)):
            if first < low:
                parts.append(part_of(fragment, first, low))
            first = high
        return parts


def evidence_of(tile: Sequence[FragmentState]) -> Mapping[bytes, tuple[int, bytes]] | None:
    """By fragment, how many of its first bytes were read, as far as anything of it is closed, and their checksum.

    None where nobody took it. The last record of a fragment ends in the next one: that was read as well then.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    crossed = False
    for state in sorted(tile, key=lambda state: state.fragment.start):
        fragment, prefix = state.fragment, state.prefix
        closed = max((end for intervals in state.closed.values() for _, end in intervals), default=0)
        if state.checksum:
            found[fragment.id] = fragment.size, state.checksum
        elif state.count is None and prefix is not None and prefix.count >= closed:
            found[fragment.id] = prefix.size, prefix.checksum
        elif state.count is None and not closed and not crossed:
            found[fragment.id] = 0, b""
        else:
            return None
        crossed = found[fragment.id][0] == fragment.size
    return found


def _span(fragment: Fragment) -> tuple[int, int]:
    """Its bytes as they are stored."""
    return fragment.start, fragment.start + fragment.size


def part_of(fragment: Fragment, first: int, end: int) -> Fragment:
    """The fragment of some of another's bytes; as open at its end, where it ends with it, as that is."""
    if (first, end) == _span(fragment):
        return fragment
    stop = fragment.end if end == fragment.start + fragment.size else end
    facts = fragment.stage, fragment.uri, fragment.version
    return Fragment.named(*facts, start=first, end=stop, reader=fragment.reader, size=end - first)


#: Fragments that one task is asked to compare ahead of what it compares.
COMPARE_AHEAD = 16


class ObjectChange(Enum):
    """What an object in another version is."""

    SAME = "same"
    GROWN = "grown"
    OTHER = "other"


@dataclass(slots=True)
class Compared:
    """One object: what is known of it, what was listed of it, and what came of comparing them."""

    stage: str
    uri: str
    version: str
    tile: tuple[FragmentState, ...]
    listed: list[Fragment] = field(default_factory=list[Fragment])
    #: How many of the first bytes of each fragment are to have which checksum.
    expected: Mapping[bytes, tuple[int, bytes]] = field(default_factory=dict[bytes, tuple[int, bytes]])
    #: Fragments whose bytes are not compared yet.
    waiting: set[bytes] = field(default_factory=set[bytes])
    finding: ObjectChange | None = None
    #: What is another, in words.
    why: str = ""

    @property
    def read_bytes(self) -> int:
        """Bytes of the object when it was read."""
        return sum(state.fragment.size for state in self.tile)

    @property
    def bytes(self) -> int:
        """Bytes of what was listed: of all of it behind the last fragment."""
        return max((item.start + item.size for item in self.listed), default=0)

    def behind(self) -> list[Fragment]:
        """What was listed behind the bytes that were read."""
        begin = self.read_bytes
        parts = [(item, max(begin, item.start), item.start + item.size) for item in self.listed]
        return [part_of(item, first, end) for item, first, end in parts if first < end]


class Comparing:
    """The objects of one run that are compared, or were."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], Compared] = {}
        #: By the fragment that is compared.
        self._by_fragment: dict[bytes, Compared] = {}
        self._queue: dict[str, deque[bytes]] = {}
        self._asked: dict[str, set[bytes]] = {}
        self._met: list[FragmentState] = []
        self._found: list[Compared] = []
        #: Objects of which it is not known yet.
        self._open = 0

    @property
    def done(self) -> bool:
        """Whether it is known of each, and taken."""
        return not self._open and not self._found

    def meet(self, fragment: Fragment, tile: tuple[FragmentState, ...]) -> None:
        """A fragment was listed of an object that these account for in another version; the last one begins it."""
        key = fragment.stage, fragment.uri
        known = self._objects.get(key)
        if known is None or known.version != fragment.version:
            if known is not None and known.finding is None:
                self._forget(known)
            known = self._objects[key] = Compared(*key, fragment.version, tile)
            self._open += 1
            self._met += tile
        if known.finding is None and fragment not in known.listed:
            known.listed.append(fragment)
            if fragment.end < 0 and not known.waiting:
                self._begin(known)

    def ask(self, readers: Iterable[RunTask]) -> list[Command]:
        """Have tasks that are ready compare what waits."""
        commands: list[Command] = []
        for task in readers:
            queue = self._queue.get(task.plan.stages[0])
            asked = self._asked.setdefault(task.plan.name, set())
            while queue and task.state is TaskPhase.READY and len(asked) < COMPARE_AHEAD:
                name = queue.popleft()
                known = self._by_fragment.get(name)
                if known is None:
                    continue
                asked.add(name)
                fragment = next(state.fragment for state in known.tile if state.fragment.id == name)
                size, _ = known.expected[name]
                if size < fragment.size:
                    fragment = replace(fragment, size=size, end=-1)
                grown = known.bytes > known.read_bytes and name == known.tile[-1].fragment.id
                end = fragment.start + fragment.size if grown else fragment.end
                now = replace(fragment, version=known.version, end=end)
                commands.append(ReadFragment(task.plan.worker, task.plan.name, task.attempt, now, ()))
        return commands

    def heard(self, event: FragmentWasRead) -> bool:
        """Take what a task says of a fragment; False if it read it, and did not compare it."""
        if event.compared is None:
            return False
        known = self._by_fragment.get(event.fragment)
        if known is None or known.version != event.compared:
            # Old news: it is known by now, or the object stands in another version again.
            return True
        self._asked.get(event.task, set()).discard(event.fragment)
        state = next(state for state in known.tile if state.fragment.id == event.fragment)
        last = state is known.tile[-1]
        if event.error:
            self._settle(known, ObjectChange.OTHER, event.error)
        elif event.checksum != known.expected[event.fragment][1]:
            self._settle(known, ObjectChange.OTHER, "it holds other bytes than when it was read")
        elif last and known.bytes > known.read_bytes and not event.continues:
            sizes = f"it has {known.bytes:,} bytes where {known.read_bytes:,} were read"
            why = f"{sizes}, and cannot be read on there: cut off what was appended, into a file of its own"
            self._settle(known, ObjectChange.OTHER, why)
        else:
            known.waiting.discard(event.fragment)
            del self._by_fragment[event.fragment]
            if not known.waiting:
                self._settle(known, ObjectChange.GROWN if known.bytes > known.read_bytes else ObjectChange.SAME)
        return True

    def take(self) -> list[Compared]:
        """Objects of which it has become known since this was asked last."""
        found, self._found = self._found, []
        return found

    def take_met(self) -> list[FragmentState]:
        """What accounts for the objects whose comparing began since this was asked last."""
        met, self._met = self._met, []
        return met

    def tile_of(self, change: VersionSeen) -> tuple[FragmentState, ...]:
        """What accounts for an object that was compared in this version; nothing for any other."""
        known = self._objects.get((change.stage, change.uri))
        return known.tile if known is not None and known.version == change.version else ()

    def drop_asked(self, task: str = "") -> None:
        """What this task was asked to compare, or each of them, is to be asked again."""
        for name in [task] if task else list(self._asked):
            for fragment in self._asked.pop(name, ()):
                if fragment in self._by_fragment:
                    self._queue[self._by_fragment[fragment].stage].append(fragment)

    def _begin(self, known: Compared) -> None:
        tile = known.tile
        ends = [state.fragment.start + state.fragment.size for state in tile]
        expected = evidence_of(tile)
        if known.bytes < known.read_bytes:
            why = f"it has {known.bytes:,} bytes and had {known.read_bytes:,} when it was read"
            self._settle(known, ObjectChange.OTHER, why)
        elif not tile or max(ends) != known.read_bytes or expected is None:
            self._settle(known, ObjectChange.OTHER, "nobody took a checksum of all of it when it was read")
        elif known.bytes > known.read_bytes and not all(state.checksum for state in tile):
            why = f"it has {known.bytes:,} bytes and had {known.read_bytes:,}, not all of which were read"
            self._settle(known, ObjectChange.OTHER, why)
        else:
            known.tile = tuple(sorted(tile, key=lambda state: state.fragment.start))
            known.expected = expected
            for state in known.tile:
                if not expected[state.fragment.id][1]:
                    continue
                known.waiting.add(state.fragment.id)
                self._by_fragment[state.fragment.id] = known
                self._queue.setdefault(known.stage, deque()).append(state.fragment.id)
            if not known.waiting:
                self._settle(known, ObjectChange.SAME)

    def _settle(self, known: Compared, finding: ObjectChange, why: str = "") -> None:
        self._forget(known)
        known.finding, known.why = finding, why
        self._found.append(known)

    def _forget(self, known: Compared) -> None:
        for name in known.waiting:
            self._by_fragment.pop(name, None)
        known.waiting.clear()
        self._open -= 1


def said_of(objects: Sequence[Compared], shown: int) -> str:
    """Some of these by name, with what is another of each."""
    named = [f"{item.uri!r} ({item.why})" for item in objects[:shown]]
    return "; ".join(named) + (f"; and {len(objects) - shown} more" if len(objects) > shown else "")
