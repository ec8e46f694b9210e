"""The listing of a run's sources: asked of one task each, compared with what the ledger knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.controller.core.messages import ChangedInput, Command, ListSource, SourceListed
from headrace.controller.core.run.input.known_objects import Compared, Comparing, KnownObjects, ListedAs
from headrace.controller.core.run.input.rewritten import WholeListing
from headrace.controller.core.run.tasks import RunTask, TaskPhase
from headrace.store import counted
from headrace.store.ledger import UNBOUNDED, Fragment, LedgerState


@dataclass(frozen=True, slots=True)
class ListingCounts:
    """The fragments that are listed and in the ledger, how many of them are done, and the bytes of all as stored.

    Of a source that lists more bytes than there can be, the most that a status holds.
    """

    fragments: int = 0
    done: int = 0
    size: int = 0


class Copies:
    """What one run has read under a new name, though it was read under another. Told by the first fragment of each."""

    def __init__(self, ledger: LedgerState) -> None:
        self._ledger = ledger
        #: The first URI of each checksum; made when it is asked for, since a run of what is done reads nothing.
        self._names: dict[bytes, str] | None = None
        #: By source: how many, and the first with its twin.
        self._found: dict[str, tuple[int, str, str]] = {}

    def note(self, fragment: Fragment, checksum: bytes) -> None:
        """A fragment was read to its end, and the ledger says so."""
        if not checksum or fragment.start or not fragment.size:
            return
        if self._names is None:
            states = self._ledger.fragments.values()
            known = [state for state in states if state.checksum and state.fragment.size and not state.fragment.start]
            self._names = {state.checksum: state.fragment.uri for state in known if state.fragment.id != fragment.id}
        twin = self._names.setdefault(checksum, fragment.uri)
        if twin != fragment.uri:
            count, *first = self._found.get(fragment.stage, (0, fragment.uri, twin))
            self._found[fragment.stage] = count + 1, first[0], first[1]

    def notes(self) -> list[str]:
        """A line a source."""
        return [
            f"source {stage}: {counted(count, 'object holds, or begins', 'objects hold, or begin')} with, the same "
            "bytes as another that was read: their records are in the dataset twice, unless a dedup stage finds them; "
            f"the first is {name!r} as {twin!r}"
            for stage, (count, name, twin) in self._found.items()
        ]


class Listing:
    """Which sources are being listed, and which fragments they have."""

    def __init__(
        self,
        ledger: LedgerState,
        sources: tuple[str, ...],
        sinks: tuple[str, ...],
        choice: ChangedInput = ChangedInput.HALT,
    ) -> None:
        self._ledger = ledger
        self._sinks = sinks
        self._done: dict[str, bool] = dict.fromkeys(sources, False)
        self._lister: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        #: The number of the newest listing; a later leader begins higher.
        self.number = 0
        self._submitted: dict[bytes, Fragment] = {}
        #: Bytes of all fragments, those that were submitted among them; None before a source is listed.
        self._bytes: int | None = None
        self._earlier: KnownObjects | None = None
        #: Whether other versions of what is open are listed as new ones.
        self._reread = choice is ChangedInput.REREAD
        #: Fragments in this run's listings, and in the newest one of each source.
        self.seen: set[bytes] = set()
        #: Of these, those that the ledger did not know when `counts` was asked last, and those that were not done.
        self._unknown: list[bytes] = []
        self._undone: set[bytes] = set()
        self._counts = ListingCounts()
        #: What each source skipped as no input, in words.
        self._skipped: dict[str, str] = {}
        self._newest: dict[str, set[bytes]] = {}
        #: The newest listing of each source that names all it has.
        self._whole: dict[str, WholeListing] = {}
        #: By source, the objects that were read, hold other bytes now, and are read again, or not: how many, the first.
        self._repeated: dict[str, tuple[int, str]] = {}
        self._passed: dict[str, tuple[int, str]] = {}
        #: What is said of sources of which something was read and is gone while something is new.
        self._rewritten: list[str] = []
        #: Objects that stand in another version of which no checksum tells whether it is the same: which one.
        self._untold: dict[tuple[str, str], str] = {}
        self.comparing = Comparing()
        self.copies = Copies(ledger)
        #: Fragments of which records of this epoch may be on their way. None: of any, as an earlier leader began.
        self.handed: set[bytes] | None = None
        #: By source, the objects that stand in another version and hold what was read: how many, the first.
        self._same: dict[str, tuple[int, str]] = {}

    @property
    def done(self) -> bool:
        """Whether each source has been listed to its end, and what it has is compared with what was read."""
        return all(self._done.values()) and self.comparing.done

    def is_source(self, stage: str) -> bool:
        """Whether this stage is one of the run's sources."""
        return stage in self._done

    def ask(self, tasks: Iterable[RunTask]) -> list[Command]:
        """Have each source listed by the first of its tasks that is ready."""
        if all(done or stage in self._lister for stage, done in self._done.items()):
            return []
        ready = [task for task in tasks if task.state is TaskPhase.READY]
        commands: list[Command] = []
        for stage, done in self._done.items():
            lister = next((task for task in ready if stage in task.plan.stages), None)
            if not done and stage not in self._lister and lister is not None:
                self.number += 1
                self._lister[stage], self._numbers[stage] = lister.plan.name, self.number
                # What an earlier listing of this run had may be open, and another object by now.
                self._earlier, self._newest[stage] = None, set()
                self._whole.pop(stage, None)
                ask = ListSource(lister.plan.worker, lister.plan.name, lister.attempt, stage, self.number)
                commands.append(ask)
        return commands

    def expects(self, event: SourceListed) -> bool:
        """Whether a page comes from the task that was asked, and of the listing that it was asked for."""
        asked = self._lister.get(event.stage) == event.task
        return asked and event.listing == self._numbers[event.stage]

    def fault(self, event: SourceListed) -> str:
        """Why a page cannot be: with what is known it has more bytes than any sum holds; empty if it has not."""
        if self._bytes is None:
            self._bytes = sum(state.fragment.size for state in self._ledger.fragments.values())
        unknown = (item for item in event.fragments if item.id not in self._ledger.fragments)
        fresh = sum(item.size for item in unknown if item.id not in self._submitted)
        if self._bytes + fresh <= UNBOUNDED:
            return ""
        return f"source {event.stage} lists {fresh} more bytes where {self._bytes} are listed: no sum holds that"

    def take(self, event: SourceListed) -> tuple[list[Fragment], list[Fragment]]:
        """Fragments of a page that are new, and those that the ledger knows.

        Another version of an object of which something is open is neither, unless it is to be read again.
        """
        if self._earlier is None:
            self._earlier = KnownObjects(self._ledger, self._sinks, self._submitted.values(), self.handed)
        fresh: list[Fragment] = []
        known: list[Fragment] = []
        whole = self._whole_of(event)
        for fragment in event.fragments:
            if whole is not None:
                whole.meet(fragment.uri)
            if fragment.id in self._ledger.fragments and not self._is_back(fragment):
                self._note_seen(fragment)
                known.append(fragment)
            elif fragment.id in self._submitted:
                self._note_seen(fragment)
            else:
                fresh += self._unknown_named(fragment, known)
        if whole is not None:
            fresh += self.add(whole.take())
        if event.last:
            self._done[event.stage] = True
            self._skipped[event.stage] = event.skipped
        self._hand(fragment.id for fragment in (*fresh, *known))
        return fresh, known

    def _whole_of(self, event: SourceListed) -> WholeListing | None:
        """The listing that a page is of, where the source names all it has."""
        if event.all_below and event.stage not in self._whole:
            self._whole[event.stage] = WholeListing(self._ledger, self._sinks, event.stage, event.all_below)
        return self._whole.get(event.stage)

    def rewritten(self, stage: str) -> WholeListing | None:
        """The listing of a source that names all it has, where something is new and not all that was read is there."""
        whole = self._whole.get(stage)
        return whole if whole is not None and whole.new else None

    def _unknown_named(self, fragment: Fragment, known: list[Fragment]) -> list[Fragment]:
        """What is new of a fragment that the ledger does not know by its name; `known` gets what it knows for it."""
        assert self._earlier is not None
        known_as = self._earlier.listed_as(fragment)
        if known_as is ListedAs.NEW and fragment.stage in self._whole:
            self._whole[fragment.stage].new.append(fragment)
            return []
        if known_as is ListedAs.NEW or (known_as is ListedAs.CONTRADICTED and self._reread):
            return self.add((fragment,))
        if known_as is ListedAs.CONTRADICTED:
            self._untold[fragment.stage, fragment.uri] = fragment.version
        if known_as not in (ListedAs.THERE, ListedAs.TO_COMPARE):
            return []
        tile = self._earlier.tile(fragment)
        for state in tile:
            self._note_seen(state.fragment)
        if known_as is ListedAs.THERE:
            known += [state.fragment for state in tile]
            return self.add(self._earlier.uncovered(fragment))
        self.comparing.meet(fragment, tile)
        return []

    def _note_seen(self, fragment: Fragment) -> None:
        """It is in this run's listings, and in the newest of its source."""
        if fragment.id not in self.seen:
            self.seen.add(fragment.id)
            self._unknown.append(fragment.id)
        self._newest[fragment.stage].add(fragment.id)

    def _is_back(self, fragment: Fragment) -> bool:
        """Whether an object stands in the version that it was listed in, and something was read of another since."""
        seen = self._ledger.seen.get((fragment.stage, fragment.uri))
        another = seen is not None and seen.version != fragment.version
        return another and self._ledger.fragments[fragment.id].dropped is None

    def _hand(self, fragments: Iterable[bytes]) -> None:
        """Tasks may be given these."""
        if self.handed is not None:
            self.handed.update(fragments)

    def add(self, fragments: Iterable[Fragment]) -> list[Fragment]:
        """Fragments that are listed as new from now on."""
        fresh: list[Fragment] = []
        for item in fragments:
            if item.id not in self._submitted and item.id not in self._ledger.fragments:
                self._submitted[item.id] = item
                self._bytes = (self._bytes or 0) + item.size
                self._note_seen(item)
                fresh.append(item)
        return fresh

    def note_same(self, item: Compared) -> None:
        """An object that was read holds the same in another version: it is read on under that."""
        self._hand(state.fragment.id for state in item.tile)
        if all(state.done(self._sinks) for state in item.tile):
            return
        count, first = self._same.get(item.stage, (0, item.uri))
        self._same[item.stage] = count + 1, first

    def note_repeated(self, item: Compared) -> None:
        """An object that was read is read again in another version."""
        count, first = self._repeated.get(item.stage, (0, item.uri))
        self._repeated[item.stage] = count + 1, first

    def note_passed(self, item: Compared) -> None:
        """An object that was read is not read in another version, by somebody's choice."""
        count, first = self._passed.get(item.stage, (0, item.uri))
        self._passed[item.stage] = count + 1, first

    def note_rewritten(self, words: str) -> None:
        """What became of what is new where something that was read is gone."""
        self._rewritten.append(words)

    def notes(self) -> list[str]:
        """What was skipped as no input, and what is read a second time, a line a source each."""
        notes = [f"source {stage}: {words}" for stage, words in self._skipped.items() if words]
        for stage, (count, first) in self._same.items():
            objects = counted(count, "object stands in another version", "objects stand in another version")
            notes.append(f"source {stage}: {objects} with the bytes that were read, and read on: first {first!r}")
        for stage, (count, first) in self._repeated.items():
            objects = counted(count, "object that was read holds", "objects that were read hold")
            notes.append(
                f"source {stage}: {objects} other bytes now and {'is' if count == 1 else 'are'} read as new: a record "
                f"that stands in both is in the dataset twice, unless a dedup stage finds it; the first is {first!r}"
            )
        for stage, (count, first) in self._passed.items():
            objects = counted(count, "object that was read holds", "objects that were read hold")
            notes.append(f"source {stage}: {objects} other bytes now, which are not read; the first is {first!r}")
        return [*notes, *self._rewritten, *self.copies.notes()]

    def settle(self, fragments: Iterable[bytes]) -> None:
        """Something has become of these fragments: count those that are done."""
        for name in fragments:
            if name in self._undone and self._ledger.fragments[name].done(self._sinks):
                self._undone.discard(name)

    def counts(self) -> ListingCounts:
        """What this run's listings hold by now; costs as much as is new, since it is asked for again and again."""
        unknown, self._unknown = self._unknown, []
        counted, size = self._counts.fragments, self._counts.size
        for name in unknown:
            state = self._ledger.fragments.get(name)
            if state is None:
                self._unknown.append(name)
                continue
            counted, size = counted + 1, size + state.fragment.size
            if not state.done(self._sinks):
                self._undone.add(name)
        self._counts = ListingCounts(counted, counted - len(self._undone), min(size, UNBOUNDED))
        return self._counts

    def vanished(self, stage: str) -> list[Fragment]:
        """The fragments that the ledger holds open and this listing does not have."""
        seen = self._newest.get(stage, ())
        return [
            state.fragment
            for state in self._ledger.fragments.values()
            if state.fragment.stage == stage and state.fragment.id not in seen and not state.done(self._sinks)
        ]

    def why_open(self, gone: Fragment) -> str:
        """What is said of a fragment that `vanished` has."""
        why = f"{gone.uri} changed or vanished since it was listed (then: {gone.version}"
        now = self._untold.get((gone.stage, gone.uri))
        if now is None:
            return f"{why})"
        return f"{why}, now: {now}): it has another size, or no checksum tells whether what was read of it is the same"

    def has_another(self, fragment: Fragment) -> bool:
        """Whether a listing of this run had the object in another version, which could not be compared."""
        return (fragment.stage, fragment.uri) in self._untold

    def again(self, stages: Iterable[str]) -> None:
        """Have these sources listed once more."""
        for stage in stages:
            self._done[stage] = False
            self._lister.pop(stage, None)
            for item in [item for item in self._untold if item[0] == stage]:
                del self._untold[item]

    def task_died(self, task: str) -> None:
        """What this task was listing is listed again from the beginning."""
        for stage, lister in list(self._lister.items()):
            if lister == task:
                del self._lister[stage]
        self.comparing.drop_asked(task)
