"""Defects planted into the cores, to see that the simulator finds them: a checker that finds nothing proves nothing.

Each mutant breaks one rule that docs/design/ledger.md states. `planted(name)` plants it for a `with` block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import xxhash
from msgspec import structs

from headrace.chaos.sim import task_mutants, version_mutants
from headrace.chaos.sim.network import connections
from headrace.chaos.sim.nodes import SimulatedSink
from headrace.chaos.sim.planting import Patch, around, says
from headrace.chaos.sim.storage import SHARD, log, twin
from headrace.chaos.sim.world import Part
from headrace.controller.core.cluster import Controller, Members, Requests
from headrace.controller.core.log import Leadership, Turn, Write
from headrace.controller.core.messages import (
    AnswerRequest,
    Command,
    EntryRefused,
    EntryWritten,
    FragmentWasRead,
    InHand,
    Outcome,
    Records,
    ShardProposed,
    SnapshotWritten,
    TokenOffered,
    TruncateLog,
)
from headrace.controller.core.run import (
    Committer,
    Run,
    RunEvent,
    RunState,
    proposals,
)
from headrace.controller.core.run.input import (
    Comparing,
    Intake,
    KnownObjects,
    ListedAs,
    Suspicion,
    known_objects,
)
from headrace.controller.core.run.tasks import RunLinks, RunTasks
from headrace.stages.dedup import kept
from headrace.stages.sources.objects import RemoteFile
from headrace.store import ObjectInfo
from headrace.store.datasets import collection, manifest
from headrace.store.ledger import (
    ClaimsReleased,
    Closed,
    ClusterState,
    Entry,
    FragmentState,
    IntervalSet,
    Led,
    LedgerState,
    Range,
    StoredObject,
    TokenSpent,
    encode_snapshot,
)
from headrace.transport.core import CreditSender, frame
from headrace.worker.task import (
    AskNeeds,
    Duplicates,
    Gathering,
    NeedsAnswered,
    Ranges,
    ShardOverlapped,
    held,
)


def _part_unread(tile: Sequence[FragmentState]) -> dict[bytes, tuple[int, bytes]]:
    return {item.fragment.id: (item.fragment.size if item.checksum else 0, item.checksum) for item in tile}


def _nothing(*_arguments: Any) -> list[Any]:
    return []


def _taken_as_mine(self: Leadership[Any], event: EntryRefused, now: float) -> list[Command]:
    return self._on_written(EntryWritten(event.log, event.number), now)


def _any_epoch(judge: Any, self: Committer, event: ShardProposed, _version: str, _epoch: int) -> Any:
    return judge(self, event, event.version, event.epoch)


def _without_led(self: Leadership[Any], now: float) -> list[Command]:
    self._turn(Turn.LOG_IS_FREE)
    self._turn(Turn.LED_WRITTEN)
    self.term = self.ledger.term + 1
    self._wrote_at = now
    self._queue.insert(0, (Led(self.term, self.identity),))
    self._committed.append((self.ledger.number, Entry(self.term, ())))
    return []


def _overwriting(self: SimulatedSink, content: tuple[Part, ...], shard: int) -> StoredObject:
    task = self._task
    name = xxhash.xxh3_128_hexdigest(f"{task.name}/{shard}".encode())
    return task.cluster.objects.overwrite(f"shards/{task.epoch}/{name}.{SHARD}", content)


def _other_bytes(on_time: Any, self: Leadership[Any], now: float) -> Any:
    write = self._write
    if write is not None and not write.resolved and now >= write.retry_at and self._queue:
        entry = Entry(write.entry.term, (*write.entry.changes, *itertools.chain(*self._queue)))
        self._queue.clear()
        self._write = Write(write.number, entry, resolved=False, attempts=write.attempts, retry_at=write.retry_at)
    return on_time(self, now)


def _accepted_early(proposed: Any, self: proposals.Proposals, event: ShardProposed) -> list[Command]:
    commands = proposed(self, event)
    to = proposals.Waiter(event.task, event.attempt, event.proposal)
    return [*commands, *([] if commands else self.answer(to, Outcome.ACCEPTED))]


def _judged_while_waiting(dispatch: Any, self: Run, event: RunEvent, now: float) -> Any:
    if isinstance(event, ShardProposed) and self.state is RunState.OPENING:
        judgement = self.committer.judge(event, self.version, self.ledger.epoch)
        if judgement.closed is not None:
            self.leadership.submit(judgement.closed)
        return []
    return dispatch(self, event, now)


def _held_forgotten(wanted: Any, self: Intake, *arguments: Any) -> Any:
    state, _, pending = arguments
    return wanted(self, state, {}, pending)


def _neighbour_too(died_alone: Any, self: Suspicion, in_hand: Sequence[InHand], story: str, *, certain: bool) -> Any:
    beside = [InHand(hand.stage, Range(hand.range.fragment, hand.range.first + 1, 1)) for hand in in_hand]
    wrong = died_alone(self, in_hand, story, certain=certain)
    return wrong or died_alone(self, beside, story, certain=certain)


def _by_age(state: LedgerState, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """What no entry names goes, as if nobody could propose it any more after so long a time."""
    named = {item.key for shard in state.shards for item in shard.closed.objects}
    return (info for info in objects if info.key not in named)


def _without_leaders(on_snapshot: Any, self: Leadership[Any], event: SnapshotWritten) -> list[Command]:
    return [
        structs.replace(command, keep=frozenset()) if isinstance(command, TruncateLog) else command
        for command in on_snapshot(self, event)
    ]


def _at_any_rate(self: RunLinks, _plan: Any, _table: Any) -> float | None:
    return min((state.due_at for state in self._links.values() if state.pair is None and state.cuts), default=None)


def _granted_early(wished: Any, self: Requests, event: Any, now: float) -> list[Command]:
    commands = wished(self, event, now)
    return [*commands, *([] if commands else [AnswerRequest(event.request, accepted=True)])]


def _plan_kept_to_itself(record: Any, self: Controller, now: float) -> Any:
    self.plans.update({name: run.tasks.plan for name, run in self.runs.items() if run.tasks is not None})
    return record(self, now)


def _each_offer(offered: Any, self: Members, event: TokenOffered, log: Leadership[ClusterState]) -> Any:
    log.submit(TokenSpent(event.token, event.worker, event.key))
    return offered(self, event, log)


def _of_any_epoch(_self: proposals.Closings, sink: str, state: FragmentState) -> IntervalSet:
    return state.of(sink)


def _at_first_sink(unmet: Any, closings: proposals.Closings, records: Records) -> Any:
    return unmet(proposals.Closings(closings.ledger, closings.sinks[:1]), records)


def _named_by_all(self: Part) -> Duplicates:
    return Duplicates.of([(row, name) for row, name, _ in self.duplicates])


def _releases_nothing(sink: str, _records: Any) -> ClaimsReleased:
    return ClaimsReleased(sink, ())


def _one_short(key_files: Any, *arguments: Any) -> Any:
    return key_files(*arguments)[:-1]


def _of_first_sink(key_files: Any, state: Any, epoch: int, sinks: Sequence[str], *place: Any) -> Any:
    return key_files(state, epoch, sinks[:1], *place)


def _any_version(self: RemoteFile, info: ObjectInfo) -> None:
    self._size = info.size


def _believed(heard: Any, self: Comparing, event: FragmentWasRead) -> Any:
    """Whatever stands there holds the bytes that were read."""
    known = self._by_fragment.get(event.fragment)
    for state in known.tile if known is not None and not event.error else ():
        if state.fragment.id == event.fragment:
            event = structs.replace(event, checksum=state.checksum)
    return heard(self, event)


def _cut_anywhere(submit: Any, self: Leadership[Any], *changes: Any) -> None:
    for atom in [(change,) for change in changes] if isinstance(changes[0], Closed) else [changes]:
        submit(self, *atom)


def _rest_lost(flush: Any, self: Leadership[Any], now: float) -> Any:
    commands = flush(self, now)
    if commands:
        self._queue.clear()
    return commands


def _queued_counts(needs_fault: Any, self: Committer, event: ShardProposed) -> Any:
    queued = [item for closed in self._reserved.values() if closed.sink == event.sink for item in closed.ranges]
    records = tuple(
        (fragment, tuple(row for row in rows if not any(_holds(item, fragment, row) for item in queued)))
        for fragment, rows in event.needs
    )
    return needs_fault(self, structs.replace(event, needs=tuple(item for item in records if item[1])))


def _holds(item: Range, fragment: bytes, row: int) -> bool:
    return item.fragment == fragment and item.first <= row < item.end


def _unasked(overlapped: Any, self: Gathering, event: ShardOverlapped, now: float) -> list[Any]:
    commands = overlapped(self, event, now)
    return [
        item
        for command in commands
        for item in (self._answered(NeedsAnswered(command.shard), now) if isinstance(command, AskNeeds) else (command,))
    ]


def _without_releases(state: Any) -> bytes:
    if isinstance(state, LedgerState):
        state = twin(state)
        for item in state.fragments.values():
            item.released.clear()
    return encode_snapshot(state)


#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "overlap-ignored": ((Committer, "_overlaps", _nothing), (LedgerState, "conflicts", _nothing)),
    "refusal-taken-as-mine": ((Leadership, "_on_refused", _taken_as_mine),),
    "conservation-by-counts": ((proposals, "conservation_fault", says("")),),
    "unknown-epoch-accepted": (around(Committer, "judge", _any_epoch),),
    "led-skipped": ((Leadership, "_campaign", _without_led),),
    "shard-overwritten": ((SimulatedSink, "put", _overwriting),),
    "retried-with-other-bytes": (around(Leadership, "_on_time", _other_bytes),),
    "accepted-before-durable": (around(proposals.Proposals, "proposed", _accepted_early),),
    "judged-before-leading": (around(Run, "_dispatch", _judged_while_waiting),),
    "credit-ignored": ((CreditSender, "can_send", says(True)),),
    "sink-without-budget": ((Gathering, "accepts", property(says(True))),),
    "lost-forgotten": ((Intake, "requeue_lost", says(0)),),
    "suspects-given-to-all": ((Suspicion, "of", says(None)),),
    "poison-untold": ((Suspicion, "poison", says(())),),
    "cut-link-spins": ((RunLinks, "wake_at", _at_any_rate),),
    "led-truncated": (around(Leadership, "_on_snapshot", _without_leaders),),
    "collection-by-age": ((collection, "garbage", _by_age),),
    "ticket-not-compared": ((connections, "match_ticket", _nothing),),
    "checksum-not-looked-at": ((frame, "_verify", _nothing),),
    "request-granted-before-durable": (around(Requests, "_steer", _granted_early),),
    "plan-not-recorded": (around(Controller, "_record", _plan_kept_to_itself),),
    "token-spent-by-each": (around(Members, "_offered", _each_offer),),
    "needs-skipped": ((Committer, "_needs_fault", says("")), (proposals, "unmet", says(((), ())))),
    "closings-of-any-epoch": ((proposals.Closings, "of", _of_any_epoch),),
    "released-by-one-sink": (around(proposals, "unmet", _at_first_sink),),
    "settled-asked-for": ((Part, "duplicate_names", _named_by_all),),
    "index-of-one-sink": (around(kept, "key_files", _of_first_sink),),
    "index-one-entry-short": (around(kept, "key_files", _one_short),),
    "claims-not-released": ((proposals, "ClaimsReleased", _releases_nothing),),
    "index-not-fenced": ((RunTasks, "_remembers", says(False)),),
    "changed-object-read-on": ((RemoteFile, "_learn", _any_version),),
    "held-read-again": (around(Intake, "_wanted", _held_forgotten),),
    "part-taken-for-unread": ((known_objects, "evidence_of", _part_unread),),
    "content-not-compared": (around(Comparing, "heard", _believed),),
    "other-version-listed": ((KnownObjects, "listed_as", says(ListedAs.NEW)),),
    "atom-cut": (around(Leadership, "submit", _cut_anywhere),),
    "queue-cut-off": (around(Leadership, "flush", _rest_lost),),
    "queued-taken-for-kept": (around(Committer, "_needs_fault", _queued_counts),),
    "not-asked-after-overlap": (around(Gathering, "_overlapped", _unasked),),
    "snapshot-forgets-releases": ((log, "encode_snapshot", _without_releases),),
    "manifest-not-fenced": ((manifest, "_is_later", says(False)),),
    **task_mutants.MUTANTS,
    "void-verdicts-kept": ((held, "dependents", says(Ranges({}))),),
    **version_mutants.MUTANTS,
    "neighbour-poison": (around(Suspicion, "died_alone", _neighbour_too),),
}


@contextmanager
def planted(name: str, mutants: Mapping[str, tuple[Patch, ...]] = MUTANTS) -> Iterator[None]:
    """Plant one of these mutants. KeyError for a name that is none of theirs."""
    with ExitStack() as stack:
        for target, attribute, replacement in mutants[name]:
            stack.enter_context(patch.object(target, attribute, replacement))
        yield
