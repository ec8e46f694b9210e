"""A run's records on their way in: sources are listed, fragments handed out, and halted where input has changed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import (
    ChangedInput,
    Command,
    FragmentWasRead,
    ReadFragment,
    SealSink,
    SourceListed,
)
from headrace.controller.core.run.input import (
    GONE,
    Compared,
    Intake,
    Listing,
    ObjectChange,
    Queued,
    WholeListing,
    said_of,
)
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import RunTask, RunTasks, TaskPhase
from headrace.store import counted
from headrace.store.ledger import (
    Closed,
    Fragment,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    LedgerState,
    PrefixRead,
    VersionSeen,
)

#: Changed fragments and objects that are named at the end of a run.
CHANGED_SHOWN = ALTERED_SHOWN = 5
#: Fragments that one change lists.
LISTED_MAX = 512
#: What becomes of new objects where others are gone, for people.
_THEN = {
    ChangedInput.DROP: "the new ones are not read",
    ChangedInput.REREAD: "the new ones are read: a record that stands in both is in the dataset twice, unless a dedup "
    "stage finds it",
}
#: Why they are given up.
_UNREAD = "it may hold records that were read: it is new where objects that were read are gone"


def _rewritten_words(stage: str, whole: WholeListing) -> str:
    """What is gone of a source, and what is new."""
    missing, new = whole.missing, whole.objects
    was = counted(len(missing), "object that was read or passed over is", "objects that were read or passed over are")
    fresh = counted(len(new), "other object is", "other objects are")
    return f"source {stage}: {was} gone from {whole.place}, such as {missing[0]!r}, and {fresh} new, such as {new[0]!r}"


class ChangedFragments:
    """Open fragments that cannot be read as they were listed, and objects that hold other bytes than were read."""

    def __init__(
        self,
        choice: ChangedInput,
        sinks: tuple[str, ...],
        leadership: Leadership[LedgerState],
        listing: Listing,
        intake: Intake,
        sweeps: Sweeps,
    ) -> None:
        self._choice, self._sinks = choice, sinks
        self._leadership, self._ledger = leadership, leadership.ledger
        self._listing, self._intake, self._sweeps = listing, intake, sweeps
        #: Fragments whose object changed or vanished while they were open, and how that was found.
        self.open: dict[bytes, str] = {}
        #: Objects that were read, hold other bytes now, and are not read for it.
        self._altered: list[Compared] = []
        #: By source, what is new where something that was read is gone, and is not read for it.
        self._rewritten: dict[str, WholeListing] = {}
        #: Sources to be listed again for what this run gave up; whether that is due, and whether one was.
        self._stale: set[str] = set()
        self._relist = self._relisted = False
        #: Sources of objects that stand in another version, which can be compared now that the listed one is closed.
        self._behind: set[str] = set()
        #: Fragments of which this run gave up the rest, durable or not.
        self._given_up: set[bytes] = set()
        #: Those that a failed device keeps from being read.
        self._unreadable: set[bytes] = set()
        #: The newest words on the first bytes of fragments that are read, and how many records they cover in the log.
        self._prefixes: dict[bytes, PrefixRead] = {}
        self._covered: dict[bytes, int] = {}

    def prefix_read(self, event: FragmentWasRead) -> None:
        """A task says which bytes it has read of a fragment that it goes on to read."""
        known = self._prefixes.get(event.fragment)
        size = self._ledger.fragments[event.fragment].fragment.size
        if event.prefix <= size and (known is None or known.count < event.count):
            self._prefixes[event.fragment] = PrefixRead(event.fragment, event.count, event.prefix, event.checksum)
            self._cover(event.fragment)

    def covering(self, closed: Closed) -> list[PrefixRead]:
        """What is to stand in the log beside a shard: by it can be told later whether its input is the same."""
        found: list[PrefixRead] = []
        for item in closed.ranges:
            prefix = self._prefixes.get(item.fragment)
            if prefix is not None and self._covered.get(item.fragment, 0) < item.end <= prefix.count:
                self._covered[item.fragment] = prefix.count
                found.append(prefix)
        return found

    def _cover(self, fragment: bytes) -> None:
        """Enter the newest prefix of a fragment in the log, if more is closed than the one that is there covers."""
        prefix, state = self._prefixes.get(fragment), self._ledger.fragments[fragment]
        if prefix is None or state.checksum:
            self._prefixes.pop(fragment, None)
            return
        closed = max((end for intervals in state.closed.values() for _, end in intervals), default=0)
        if self._covered.get(fragment, 0) < closed <= prefix.count:
            self._covered[fragment] = prefix.count
            self._leadership.submit(prefix)

    def take_compared(self) -> None:
        """Act on the objects that have been compared; until then nothing of them is read."""
        for state in self._listing.comparing.take_met():
            self._intake.withhold(state.fragment.id)
        for item in self._listing.comparing.take():
            if item.finding is ObjectChange.OTHER:
                self._is_another(item)
                continue
            self._listing.note_same(item)
            fresh = self._listing.add(item.behind()) if item.finding is ObjectChange.GROWN else ()
            listed = (FragmentsListed(tuple(fresh)),) if fresh else ()
            self._leadership.submit(VersionSeen(item.stage, item.uri, item.version, True), *listed)

    def version_seen(self, change: VersionSeen) -> None:
        """An object is the same in another version: what is open of it is read under that."""
        for state in self._listing.comparing.tile_of(change) if change.same else ():
            if self._intake.release(state.fragment.id):
                self._sweeps.missed()

    def halt(self, fragment: bytes, why: str) -> None:
        """A fragment cannot be read as it was listed: go on without it, and settle it when all else is."""
        self._intake.halt(fragment)
        # What is given up is settled, though the log may not say so yet.
        if fragment not in self._given_up and not self._ledger.fragments[fragment].done(self._sinks):
            self.open[fragment] = why
            self._sweeps.more()

    def halt_read(self, fragment: bytes, task: str, why: str, *, unreadable: bool) -> None:
        """A task could not read a fragment: its object changed, or its device failed."""
        self._intake.halt(fragment, task)
        self.halt(fragment, why)
        if unreadable:
            self._unreadable.add(fragment)
        else:
            self._stale.add(self._ledger.fragments[fragment].fragment.stage)

    def halt_vanished(self, stage: str) -> None:
        """A source was listed to its end: what is open and not listed halts."""
        for gone in self._listing.vanished(stage):
            self.halt(gone.id, self._listing.why_open(gone))

    def closed(self, fragments: Iterable[bytes]) -> None:
        """More of these fragments is closed: an attempt that was thought dead may have closed the rest."""
        for fragment in fragments:
            state = self._ledger.fragments[fragment]
            self._cover(fragment)
            if fragment in self.open and state.done(self._sinks):
                del self.open[fragment]
                if self._listing.has_another(state.fragment):
                    self._behind.add(state.fragment.stage)

    def settle(self) -> str:
        """All else is closed, and what sinks held of the changed fragments: do as chosen; or why the run fails."""
        reread = self._choice is ChangedInput.REREAD
        again = reread and ((self._stale and self._relisted) or not self._unreadable.isdisjoint(self.open))
        if self._choice is ChangedInput.HALT or again:
            return "; and ".join(filter(None, (self._why_open(), self.why_held())))
        for fragment, why in self.open.items():
            self._leadership.submit(FragmentDropped(fragment, why, reread))
            item = self._ledger.fragments[fragment].fragment
            whole = self._listing.rewritten(item.stage)
            if whole is not None and whole.lacks(item.uri):
                self._leadership.submit(VersionSeen(item.stage, item.uri, GONE, False))
        self._given_up.update(self.open)
        self.open.clear()
        self._relist = reread and bool(self._stale)
        return ""

    def gives_up(self, fragments: Iterable[bytes]) -> bool:
        """Whether one of these fragments is given up by a change that is not durable yet."""
        given_up = (self._ledger.fragments.get(name) for name in fragments if name in self._given_up)
        return any(state is not None and state.dropped is None for state in given_up)

    def relist_if_due(self) -> None:
        """What was given up is in the log: before that it would be taken for open, and compared and given up again."""
        if not self._leadership.quiet:
            return
        if self._relist:
            self._relist, self._relisted = False, True
            self._listing.again(self._stale)
            self._stale.clear()
        self._listing.again(self._behind)
        self._behind.clear()

    def why_held(self) -> str:
        """Why the run fails: it found what may be read only if somebody chooses so."""
        return "; and ".join(filter(None, (self._why_altered(), self._why_rewritten())))

    def _why_altered(self) -> str:
        """It found other bytes where it had read."""
        if not self._altered:
            return ""
        objects = counted(
            len(self._altered), "object that was read has changed since", "objects that were read have changed since"
        )
        return (
            f"{objects}: {said_of(self._altered, ALTERED_SHOWN)}. All else is closed. Put the old ones back and run "
            "again, or choose: --changed-input drop goes on without what they hold now, --changed-input reread reads "
            "them whole, beside what is closed of the old ones: a record that stands in both is then in the dataset "
            "twice, unless a dedup stage finds it"
        )

    def _why_rewritten(self) -> str:
        """It found others where objects that it had read are gone."""
        if not self._rewritten:
            return ""
        words = "; ".join(_rewritten_words(stage, whole) for stage, whole in self._rewritten.items())
        return (
            f"{words}. The new ones are not read, since they may hold the same records: rewriting a table moves them "
            "to other files. All else is closed. Let the pipeline read the version (or snapshot) that was read "
            "before, or begin another dataset, or choose: --changed-input drop goes on without the new ones, "
            "--changed-input reread reads them whole, beside what is closed of the old ones: a record that stands in "
            "both is then in the dataset twice, unless a dedup stage finds it"
        )

    def settle_rewritten(self, stage: str) -> None:
        """A source was listed to its end: where it has not all that was read, what is new waits for a choice."""
        self._rewritten.pop(stage, None)
        whole = self._listing.rewritten(stage)
        if whole is None:
            return
        if self._choice is ChangedInput.HALT:
            self._rewritten[stage] = whole
            return
        self.list_fresh(self._listing.add(whole.new), unread=self._choice is ChangedInput.DROP)
        for uri in whole.gone:
            self._leadership.submit(VersionSeen(stage, uri, GONE, False))
        self._listing.note_rewritten(f"{_rewritten_words(stage, whole)}; {_THEN[self._choice]}")

    def list_fresh(self, fresh: Sequence[Fragment], *, unread: bool = False) -> None:
        """Enter what is new in the log, to be read or not."""
        for at in range(0, len(fresh), LISTED_MAX):
            listed = tuple(fresh[at : at + LISTED_MAX])
            given_up = [FragmentDropped(item.id, _UNREAD, False) for item in listed if unread]
            passed = dict.fromkeys(VersionSeen(item.stage, item.uri, item.version, False) for item in listed if unread)
            self._leadership.submit(FragmentsListed(listed), *given_up, *passed)

    def _why_open(self) -> str:
        """Why the run fails: its input changed, vanished or could not be read while it was open."""
        shown = "; ".join(list(dict.fromkeys(self.open.values()))[:CHANGED_SHOWN])
        more = len(set(self.open.values())) - CHANGED_SHOWN
        words = f"{shown}{f'; and {more} more' if more > 0 else ''}. All else is closed."
        open_still = counted(len(self.open), "fragment stands open", "fragments stand open")
        if self._unreadable.issuperset(self.open):
            return (
                f"{open_still}, since their devices failed: {words} The same command reads "
                "them when that is mended; or --changed-input drop gives up what is open of them"
            )
        return (
            f"{open_still}, since what was listed changed, vanished or cannot be read: "
            f"{words} Put the old objects back and run "
            "again, or choose: --changed-input drop gives up what is open of them, --changed-input reread gives it "
            "up and reads the new objects whole, beside what is closed of the old ones"
        )

    def _is_another(self, item: Compared) -> None:
        for state in item.tile:
            if not state.done(self._sinks):
                self.halt(state.fragment.id, f"{item.uri} has changed since it was listed: {item.why}")
        if self._choice is ChangedInput.HALT:
            self._altered.append(item)
        elif self._choice is ChangedInput.DROP:
            self._listing.note_passed(item)
            self._leadership.submit(VersionSeen(item.stage, item.uri, item.version, False))
        else:
            self._listing.note_repeated(item)
            self._leadership.submit(FragmentsListed(tuple(self._listing.add(item.listed))))


class InputReading:
    """Hands out fragments, and takes what sources report."""

    def __init__(
        self,
        leadership: Leadership[LedgerState],
        queued: Queued,
        listing: Listing,
        intake: Intake,
        sweeps: Sweeps,
        changed: ChangedFragments,
        tasks: RunTasks,
        sinks: Container[str] = (),
    ) -> None:
        self._leadership, self._ledger, self._queued = leadership, leadership.ledger, queued
        self._listing, self._intake, self._sweeps, self._changed = listing, intake, sweeps, changed
        self._tasks = tasks
        #: Sinks that seal as soon as a source in their own task has sent all: they wait for no other task.
        self._sinks = sinks
        #: The attempts that were asked to.
        self._sealed: set[tuple[str, int]] = set()

    def impossible_page(self, event: SourceListed) -> str:
        """Why a page that was asked for cannot be; empty if it can."""
        asked = self._tasks.current(event.task, event.attempt) is not None and self._listing.expects(event)
        return self._listing.fault(event) if asked else ""

    def source_listed(self, event: SourceListed) -> str:
        """Take a page of a listing; why the run fails, if it does."""
        if self._tasks.current(event.task, event.attempt) is None or not self._listing.expects(event):
            return ""
        if event.error:
            return event.error
        fresh, known = self._listing.take(event)
        for fragment in known:
            self._intake.admit(fragment.id)
        self._changed.list_fresh(fresh)
        self._changed.take_compared()
        if event.last:
            self._changed.halt_vanished(event.stage)
            self._changed.settle_rewritten(event.stage)
        return ""

    def impossible(self, event: FragmentWasRead) -> str:
        """Why what a task says of the end of a fragment cannot be; empty if it can, or is no news of an end."""
        if self._tasks.current(event.task, event.attempt) is None or event.error or event.compared is not None:
            return ""
        if event.prefix or event.count < 0:
            return ""
        return self._queued.end_fault(FragmentEnded(event.fragment, event.count, event.checksum))

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
        news = self._intake.was_read(event.task, event.fragment, event.count) and event.count >= 0
        if news and self._queued.end_of(event.fragment) is None:
            end = FragmentEnded(event.fragment, event.count, event.checksum)
            self._queued.end(end)
            self._leadership.submit(end)
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
