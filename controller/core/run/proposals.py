"""What sinks ask: proposals on their way into the ledger, the records that duplicates depend on, and decisions.

A proposal is checked before it is queued, and answered when it is durable. The record that a duplicate's verdict names
must be kept, or the verdict is void. A sink asks before it writes (`NeedsAsked`), so that no shard waits for another:
verdicts whose records are not closed yet stay in the sink and go with a later shard, and kept rows are closed at once.
A record that dedup let through may be gone, since it raised after dedup or its fragment was given up: its duplicates
are read again, and the claim is released, so that the next of them is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import (
    AnswerDecision,
    AnswerNeeds,
    AnswerProposal,
    AskDecision,
    Command,
    Coverage,
    DecisionAsked,
    DecisionEvent,
    DecisionMade,
    NeedsAsked,
    Outcome,
    Records,
    ReleaseClaims,
    ShardProposed,
)
from headrace.controller.core.run.input import Intake, Queued
from headrace.controller.core.run.reading import ChangedFragments
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import RunTasks, TaskPhase
from headrace.store.ledger import (
    ClaimsReleased,
    Closed,
    FragmentState,
    IntervalSet,
    LedgerState,
    Range,
    counts_of,
    counts_row,
)
from headrace.store.shards import epoch_of, is_checksum, is_key, is_key_of


@dataclass(frozen=True, slots=True)
class Waiter:
    """The sink that waits for the answer to a proposal."""

    task: str
    attempt: int
    proposal: int


@dataclass(frozen=True, slots=True)
class ProposalJudgement:
    """What to do with a proposal: queue `closed`, or answer at once with `outcome`, or neither (its twin is queued)."""

    closed: Closed | None = None
    outcome: Outcome | None = None
    overlaps: tuple[Range, ...] = ()
    reason: str = ""


class Committer:
    """Proposals that were queued and are not durable yet. `sinks` are those behind the dedup stage, if there is one."""

    def __init__(self, ledger: LedgerState, sinks: Sequence[str] = ()) -> None:
        self._ledger, self.closings = ledger, Closings(ledger, sinks)
        self.queued = Queued(ledger)
        self._waiting: dict[bytes, list[Waiter]] = {}
        self._reserved: dict[bytes, Closed] = {}

    def judge(self, event: ShardProposed, version: str, epoch: int) -> ProposalJudgement:
        """Check version, epoch, conservation and overlap of one proposal."""
        if event.version != version or event.epoch != epoch:
            reason = (
                f"made by version {event.version} in epoch {event.epoch}; here run version {version}, epoch {epoch}"
            )
            return ProposalJudgement(outcome=Outcome.REFUSED, reason=reason)
        # As every reader of the log will have them: what is edited is not always named as it is written.
        counts = counts_of(counts_row(event.counts)) if event.counts.edited else event.counts
        closed = Closed(event.sink, event.version, event.epoch, event.ranges, event.objects, counts)
        identity = closed.identity()
        if identity in self._ledger.accepted:
            return ProposalJudgement(outcome=Outcome.ACCEPTED)
        waiter = Waiter(event.task, event.attempt, event.proposal)
        if identity in self._waiting:
            self._waiting[identity].append(waiter)
            return ProposalJudgement()
        fault = self._fault(event)
        if fault:
            return ProposalJudgement(outcome=Outcome.REFUSED, reason=fault)
        overlaps = self._overlaps(closed)
        if overlaps:
            return ProposalJudgement(outcome=Outcome.OVERLAPS, overlaps=tuple(overlaps))
        if fault := self.queued.take(closed):
            return ProposalJudgement(outcome=Outcome.REFUSED, reason=fault)
        self._waiting[identity] = [waiter]
        self._reserved[identity] = closed
        return ProposalJudgement(closed=closed)

    def durable(self, closed: Closed) -> list[Waiter]:
        """The entry that names a shard is durable: the sinks to answer."""
        self._reserved.pop(closed.identity(), None)
        return self._waiting.pop(closed.identity(), [])

    @property
    def empty(self) -> bool:
        """Nothing waits for the log."""
        return not self._waiting

    def _fault(self, event: ShardProposed) -> str:
        if not event.ranges:
            return "a shard that closes no records"
        for stored in event.objects:
            if not (is_key(stored.key) and is_key_of(stored.role, stored.key) and is_checksum(stored.checksum)):
                named = f"{stored.role[:80]} {stored.key[:200]!r} with checksum {stored.checksum[:80]!r}"
                return f"{named} is no object that sinks write"
            if epoch_of(stored.key) != event.epoch:
                return f"{stored.key} lies outside of epoch {event.epoch}: a collection may delete it"
        if len(event.ranges) != len(event.coverage):
            return f"{len(event.ranges)} ranges with {len(event.coverage)} coverages"
        kept = 0
        seen: dict[bytes, IntervalSet] = {}
        for item, cover in zip(event.ranges, event.coverage, strict=True):
            state = self._ledger.fragments.get(item.fragment)
            if state is None:
                return f"fragment {item.fragment.hex()} was never listed"
            if item.count < 1:
                return f"a range of {item.count} records of {state.fragment.uri}"
            count = self.queued.end_of(item.fragment)
            if count is not None and item.end > count:
                return f"records {item.first}..{item.end - 1} are beyond the end of {state.fragment.uri}"
            mine = seen.setdefault(item.fragment, IntervalSet())
            if mine.overlap(item.first, item.end):
                return f"records {item.first}..{item.end - 1} of {state.fragment.uri} stand in the proposal twice"
            mine.add(item.first, item.end)
            fault = conservation_fault(item, cover)
            if fault:
                return f"{state.fragment.uri}: {fault}"
            kept += int.from_bytes(cover.kept, "little").bit_count()
        if kept != event.counts.kept:
            return f"{kept} records are marked kept, {event.counts.kept} are counted"
        return self._needs_fault(event)

    def _needs_fault(self, event: ShardProposed) -> str:
        """A duplicate depends on a record that the ledger keeps, or on one of its own shard."""
        still_open, gone = unmet(self.closings, event.needs)
        if still_open or gone:
            return f"its duplicates name {first_of(still_open or gone)}, which is not kept"
        return ""

    def _overlaps(self, closed: Closed) -> list[Range]:
        found = self._ledger.conflicts(closed)
        mine: dict[bytes, IntervalSet] = {}
        for other in (other for other in self._reserved.values() if other.sink == closed.sink):
            if not mine:
                for item in closed.ranges:
                    mine.setdefault(item.fragment, IntervalSet()).add(item.first, item.end)
            for item in other.ranges:
                both = mine[item.fragment].overlap(item.first, item.end) if item.fragment in mine else ()
                found += [Range(item.fragment, first, end - first) for first, end in both]
        return found


def conservation_fault(item: Range, cover: Coverage) -> str:
    """What is wrong with the claim that each record of a range has exactly one verdict; empty if nothing is."""
    bits = 8 * max(len(cover.kept), len(cover.verdicts))
    if item.count > bits:
        # Before anything of this size is made.
        return f"record {item.first + bits} has no verdict"
    kept, other = int.from_bytes(cover.kept, "little"), int.from_bytes(cover.verdicts, "little")
    whole = (1 << item.count) - 1
    twice, missing = kept & other, whole & ~(kept | other)
    if (kept | other) > whole:
        return f"a verdict for a record beyond {item.end - 1}"
    if twice:
        return f"record {item.first + (twice & -twice).bit_length() - 1} is kept and has another verdict"
    if missing:
        return f"record {item.first + (missing & -missing).bit_length() - 1} has no verdict"
    return ""


class Closings:
    """What each of the sinks behind a dedup stage has closed in the ledger's epoch.

    One of several may have closed a record in an earlier epoch, as filtered by another version say, and another takes
    it now: what dedup has let through since then says nothing of that.
    """

    def __init__(self, ledger: LedgerState, sinks: Sequence[str]) -> None:
        self.ledger = ledger
        #: Another version of the pipeline, which begins with an epoch, may have others.
        self.sinks = tuple(sinks)
        self._epoch, self._seen = -1, 0
        self._closed: dict[tuple[str, bytes], IntervalSet] = {}

    def of(self, sink: str, state: FragmentState) -> IntervalSet:
        """The intervals of a fragment that a sink has closed in this epoch."""
        if len(self.sinks) == 1:
            # What is named in this epoch was open in it.
            return state.of(sink)
        self._catch_up()
        return self._closed.get((sink, state.fragment.id), _NOTHING)

    def _catch_up(self) -> None:
        shards = self.ledger.shards
        if self._epoch != self.ledger.epoch or len(shards) < self._seen:
            self._closed.clear()
            self._epoch, self._seen = self.ledger.epoch, len(shards)
            # Those of an epoch stand together.
            while self._seen and shards[self._seen - 1].closed.epoch == self._epoch:
                self._seen -= 1
        for shard in shards[self._seen :]:
            for item in shard.closed.ranges:
                place = shard.closed.sink, item.fragment
                self._closed.setdefault(place, IntervalSet()).cover(item.first, item.end)
        self._seen = len(shards)


_NOTHING = IntervalSet()


def unmet(closings: Closings, records: Records) -> tuple[Records, Records]:
    """Of records that were let through in this epoch, those that are open and those that are gone for good.

    On the others a duplicate may lean: a sink has closed them, and not released. Of several sinks one is enough; a
    record is gone when none can keep it any more. What is only queued for the log is open.
    """
    still_open: list[tuple[bytes, tuple[int, ...]]] = []
    gone: list[tuple[bytes, tuple[int, ...]]] = []
    for fragment, rows in records:
        state, left = closings.ledger.fragments.get(fragment), set(rows)
        lost = left
        if state is not None:
            for sink in closings.sinks:
                left = left - (_within(closings.of(sink, state), left) - state.released.get(sink, set()))
            if state.dropped is None:
                lost = left.intersection(*(_within(state.of(sink), left) for sink in closings.sinks))
            else:
                lost = left
        for found, mine in ((still_open, left - lost), (gone, lost)):
            if mine:
                found.append((fragment, tuple(sorted(mine))))
    return tuple(still_open), tuple(gone)


def _within(closed: IntervalSet, rows: Iterable[int]) -> set[int]:
    firsts, ends, _, _ = closed.columns()
    return {row for row in rows if (at := bisect_right(firsts, row)) and row < ends[at - 1]}


def first_of(records: Records) -> str:
    """One of these records and how many there are, for people."""
    count = sum(len(rows) for _, rows in records)
    fragment, rows = records[0]
    return f"record {rows[0]} of fragment {fragment.hex()}{f' and {count - 1} more' if count > 1 else ''}"


class Proposals:
    """Answers what sinks and solitary tasks ask while the run has tasks."""

    def __init__(
        self,
        version: str,
        leadership: Leadership[LedgerState],
        committer: Committer,
        intake: Intake,
        sweeps: Sweeps,
        changed: ChangedFragments,
        tasks: RunTasks,
    ) -> None:
        self._version, self._leadership, self._ledger = version, leadership, leadership.ledger
        self._committer, self._intake, self._sweeps, self._changed = committer, intake, sweeps, changed
        self._tasks = tasks

    def proposed(self, event: ShardProposed) -> list[Command]:
        """Judge a proposal: the leader alone knows all that is closed. A sink without an answer proposes again."""
        if self._ledger.pipeline_version != self._version:
            # A version is judged from its entry on; what the one before it holds is closed first.
            return []
        if self._changed.gives_up(item.fragment for item in event.ranges):
            # Its end is queued: this would stand after it in the log.
            return []
        judgement = self._committer.judge(event, self._version, self._ledger.epoch)
        if judgement.closed is not None:
            released = (ClaimsReleased(event.sink, event.released),) if event.released else ()
            self._leadership.submit(judgement.closed, *released, *self._changed.covering(judgement.closed))
        if judgement.outcome is None:
            return []
        to = Waiter(event.task, event.attempt, event.proposal)
        return self.answer(to, judgement.outcome, judgement.overlaps, judgement.reason)

    def accepted(self, to: Waiter) -> list[Command]:
        """The answer to a proposal that is durable."""
        return self.answer(to, Outcome.ACCEPTED)

    def answer(self, to: Waiter, outcome: Outcome, overlaps: tuple[Range, ...] = (), reason: str = "") -> list[Command]:
        """The answer to a proposal, if its attempt lives."""
        current = self._tasks.current(to.task, to.attempt)
        if current is None:
            return []
        return [AnswerProposal(current.plan.worker, to.task, to.attempt, to.proposal, outcome, overlaps, reason)]

    def needs_asked(self, event: NeedsAsked) -> list[Command]:
        """Say which records a sink's duplicates may depend on; those whose records are gone are read again."""
        task = self._tasks.current(event.task, event.attempt)
        if task is None:
            return []
        still_open, gone = unmet(self._committer.closings, event.records)
        lost: Records = ()
        sinks = self._committer.closings.sinks
        if self._committer.empty and self._sweeps.nothing_flows:
            # What no sink holds is not closed before these sinks are empty, or never.
            still_open, lost = self._intake.parted(sinks, still_open)
        elif self._committer.empty:
            # A queued record may be in no sink any more and be kept: while one is queued, nothing is called lost.
            # Verdicts that depend on halted records would be read again and again, so that nothing ever settles.
            still_open, lost = self._intake.parted_halted(sinks, still_open)
        if any(fragment in self._changed.open for fragment, _ in lost):
            # This run reads them no more, and a sink that was given up may hold them still and come back: only a new
            # epoch refuses what it proposes, and only there may a duplicate of them be kept.
            self._tasks.index.lost = True
        commands: list[Command] = []
        if gone:
            # Nobody keeps these records, so each of the deciders lets go of what they hold there.
            commands += [
                ReleaseClaims(decider.plan.worker, decider.plan.name, decider.attempt, gone)
                for decider in self._tasks.deciders
            ]
        if gone or lost:
            self._sweeps.missed()
        answer = AnswerNeeds(task.plan.worker, event.task, event.attempt, event.proposal, still_open, (*gone, *lost))
        return [*commands, answer]

    def passed_on(self, event: DecisionEvent) -> list[Command]:
        """A solitary task and a decider speak with each other, while both are the current attempts."""
        ready = [decider for decider in self._tasks.deciders if decider.state is TaskPhase.READY]
        match event:
            case DecisionAsked():
                known = self._tasks.current(event.task, event.attempt) is not None
                return [
                    AskDecision(
                        decider.plan.worker,
                        decider.plan.name,
                        decider.attempt,
                        event.task,
                        event.attempt,
                        event.question,
                    )
                    for decider in ready
                    if known and event.question.stage in decider.plan.stages
                ]
            case DecisionMade():
                asking_task = self._tasks.current(event.asking_task, event.asking_attempt)
                if asking_task is None or all((event.task, event.attempt) != (d.plan.name, d.attempt) for d in ready):
                    return []
                return [
                    AnswerDecision(asking_task.plan.worker, event.asking_task, event.asking_attempt, event.decision)
                ]
            case _:
                assert_never(event)
