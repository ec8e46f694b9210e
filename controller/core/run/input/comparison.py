"""Objects of which something was read and that stand in another version now: do they hold the same bytes?

The ledger has a checksum of each fragment that was read to its end, and of the first bytes of one that was read in
part. Source tasks read the same bytes of what stands there now for their checksum alone: an order to read a fragment
without a gap, under the new version. Nothing is read into the dataset before that is known. A touched file, or a copy
that took its place, is then the same object; a file that lines were appended to has grown; anything else is another
object, and the run's choice says what follows (docs/guide/inputs.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from headrace.controller.core.messages import Command, FragmentWasRead, ReadFragment
from headrace.controller.core.run.input.earlier import evidence_of, part_of
from headrace.controller.core.run.tasks import RunTask, TaskPhase
from headrace.store.ledger import Fragment, FragmentState, VersionSeen

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
