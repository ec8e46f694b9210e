"""Defects planted into the cores, to see that the simulator finds them: a checker that finds nothing proves nothing.

Each mutant breaks one rule that docs/design/ledger.md states. `planted(name)` plants it for a `with` block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import xxhash

from headrace.chaos.sim import task_mutants, version_mutants
from headrace.chaos.sim.network import connections
from headrace.chaos.sim.nodes import SimulatedSink
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
    PoisonRecord,
    Records,
    ShardProposed,
    SnapshotWritten,
    TokenOffered,
    TruncateLog,
)
from headrace.controller.core.run import (
    Committer,
    ProposalJudgement,
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
    Gap,
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


def _counts_only(_item: Any, _cover: Any) -> str:
    return ""


def _any_epoch(self: Committer, event: ShardProposed, _version: str, _epoch: int) -> ProposalJudgement:
    return _judge(self, event, event.version, event.epoch)


_judge = Committer.judge


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


def _other_bytes(self: Leadership[Any], now: float) -> list[Command]:
    write = self._write
    if write is not None and not write.resolved and now >= write.retry_at and self._queue:
        entry = Entry(write.entry.term, (*write.entry.changes, *itertools.chain(*self._queue)))
        self._queue.clear()
        self._write = Write(write.number, entry, resolved=False, attempts=write.attempts, retry_at=write.retry_at)
    return _on_time(self, now)


_on_time = Leadership._on_time


def _accepted_early(self: proposals.Proposals, event: ShardProposed) -> list[Command]:
    commands = _proposed(self, event)
    to = proposals.Waiter(event.task, event.attempt, event.proposal)
    return [*commands, *([] if commands else self.answer(to, Outcome.ACCEPTED))]


_proposed = proposals.Proposals.proposed


def _judged_while_waiting(self: Run, event: RunEvent, now: float) -> list[Command]:
    if isinstance(event, ShardProposed) and self.state is RunState.OPENING:
        judgement = self.committer.judge(event, self.version, self.ledger.epoch)
        if judgement.closed is not None:
            self.leadership.submit(judgement.closed)
        return []
    return _dispatch(self, event, now)


_dispatch = Run._dispatch


def _always(*_arguments: Any) -> bool:
    return True


def _none_lost(_self: Intake) -> int:
    return 0


def _held_forgotten(self: Intake, *arguments: Any) -> tuple[tuple[Gap, ...], ...]:
    state, _, pending = arguments
    return _wanted(self, state, {}, pending)


_wanted = Intake._wanted


def _no_suspects(_self: Suspicion, _fragment: bytes) -> None:
    return None


def _untold(_self: Suspicion, _fragment: bytes) -> tuple[PoisonRecord, ...]:
    return ()


def _neighbour_too(self: Suspicion, in_hand: Sequence[InHand], story: str, *, certain: bool) -> str:
    beside = [InHand(hand.stage, Range(hand.range.fragment, hand.range.first + 1, 1)) for hand in in_hand]
    wrong = _died_alone(self, in_hand, story, certain=certain)
    return wrong or _died_alone(self, beside, story, certain=certain)


_died_alone = Suspicion.died_alone


def _by_age(state: LedgerState, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """What no entry names goes, as if nobody could propose it any more after so long a time."""
    named = {item.key for shard in state.shards for item in shard.closed.objects}
    return (info for info in objects if info.key not in named)


def _without_leaders(self: Leadership[Any], event: SnapshotWritten) -> list[Command]:
    return [
        replace(command, keep=frozenset()) if isinstance(command, TruncateLog) else command
        for command in _on_snapshot(self, event)
    ]


_on_snapshot = Leadership._on_snapshot


def _at_any_rate(self: RunLinks, _plan: Any, _table: Any) -> float | None:
    return min((state.due_at for state in self._links.values() if state.pair is None and state.cuts), default=None)


def _granted_early(self: Requests, event: Any, now: float) -> list[Command]:
    commands = _wished(self, event, now)
    return [*commands, *([] if commands else [AnswerRequest(event.request, accepted=True)])]


_wished = Requests._steer


def _plan_kept_to_itself(self: Controller, now: float) -> list[Command]:
    self.plans.update({name: run.tasks.plan for name, run in self.runs.items() if run.tasks is not None})
    return _record(self, now)


_record = Controller._record


def _each_offer(self: Members, event: TokenOffered, log: Leadership[ClusterState]) -> list[Command]:
    log.submit(TokenSpent(event.token, event.worker, event.key))
    return _offered(self, event, log)


_offered = Members._offered


def _no_needs(*_arguments: Any, **_options: Any) -> tuple[Any, Any]:
    return (), ()


def _of_any_epoch(_self: proposals.Closings, sink: str, state: FragmentState) -> IntervalSet:
    return state.of(sink)


def _at_first_sink(closings: proposals.Closings, records: Records) -> tuple[Records, Records]:
    return _unmet(proposals.Closings(closings.ledger, closings.sinks[:1]), records)


_unmet = proposals.unmet


def _named_by_all(self: Part) -> Duplicates:
    return Duplicates.of([(row, name) for row, name, _ in self.duplicates])


def _no_fault(*_arguments: Any) -> str:
    return ""


def _releases_nothing(sink: str, _records: Any) -> ClaimsReleased:
    return ClaimsReleased(sink, ())


def _one_short(state: LedgerState, epoch: int, sinks: Sequence[str], uri: str, number: int = 0) -> list[kept.KeyFile]:
    return _key_files(state, epoch, sinks, uri, number)[:-1]


def _of_first_sink(
    state: LedgerState, epoch: int, sinks: Sequence[str], uri: str, number: int = 0
) -> list[kept.KeyFile]:
    return _key_files(state, epoch, sinks[:1], uri, number)


_key_files = kept.key_files


def _any_version(self: RemoteFile, info: ObjectInfo) -> None:
    self._size = info.size


def _believed(self: Comparing, event: FragmentWasRead) -> bool:
    """Whatever stands there holds the bytes that were read."""
    known = self._by_fragment.get(event.fragment)
    for state in known.tile if known is not None and not event.error else ():
        if state.fragment.id == event.fragment:
            event = replace(event, checksum=state.checksum)
    return _HEARD(self, event)


_HEARD = Comparing.heard


def _new(*_arguments: Any) -> ListedAs:
    return ListedAs.NEW


def _never(*_arguments: Any) -> bool:
    return False


def _cut_anywhere(self: Leadership[Any], *changes: Any) -> None:
    for atom in [(change,) for change in changes] if isinstance(changes[0], Closed) else [changes]:
        _submit(self, *atom)


_submit = Leadership.submit


def _rest_lost(self: Leadership[Any], now: float) -> list[Command]:
    commands = _flush(self, now)
    if commands:
        self._queue.clear()
    return commands


_flush = Leadership.flush


def _queued_counts(self: Committer, event: ShardProposed) -> str:
    queued = [item for closed in self._reserved.values() if closed.sink == event.sink for item in closed.ranges]
    records = tuple(
        (fragment, tuple(row for row in rows if not any(_holds(item, fragment, row) for item in queued)))
        for fragment, rows in event.needs
    )
    return _needs_fault(self, replace(event, needs=tuple(item for item in records if item[1])))


def _holds(item: Range, fragment: bytes, row: int) -> bool:
    return item.fragment == fragment and item.first <= row < item.end


_needs_fault = Committer._needs_fault


def _unasked(self: Gathering, event: ShardOverlapped, now: float) -> list[Any]:
    commands = _overlapped(self, event, now)
    return [
        item
        for command in commands
        for item in (self._answered(NeedsAnswered(command.shard), now) if isinstance(command, AskNeeds) else (command,))
    ]


_overlapped = Gathering._overlapped


def _without_releases(state: Any) -> bytes:
    if isinstance(state, LedgerState):
        state = twin(state)
        for item in state.fragments.values():
            item.released.clear()
    return encode_snapshot(state)


def _no_dependents(*_arguments: Any) -> Ranges:
    return Ranges({})


Patch = tuple[type[Any] | Any, str, Callable[..., Any] | property | tuple[Any, ...]]

#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "overlap-ignored": ((Committer, "_overlaps", _nothing), (LedgerState, "conflicts", _nothing)),
    "refusal-taken-as-mine": ((Leadership, "_on_refused", _taken_as_mine),),
    "conservation-by-counts": ((proposals, "conservation_fault", _counts_only),),
    "unknown-epoch-accepted": ((Committer, "judge", _any_epoch),),
    "led-skipped": ((Leadership, "_campaign", _without_led),),
    "shard-overwritten": ((SimulatedSink, "put", _overwriting),),
    "retried-with-other-bytes": ((Leadership, "_on_time", _other_bytes),),
    "accepted-before-durable": ((proposals.Proposals, "proposed", _accepted_early),),
    "judged-before-leading": ((Run, "_dispatch", _judged_while_waiting),),
    "credit-ignored": ((CreditSender, "can_send", _always),),
    "sink-without-budget": ((Gathering, "accepts", property(_always)),),
    "lost-forgotten": ((Intake, "requeue_lost", _none_lost),),
    "suspects-given-to-all": ((Suspicion, "of", _no_suspects),),
    "poison-untold": ((Suspicion, "poison", _untold),),
    "cut-link-spins": ((RunLinks, "wake_at", _at_any_rate),),
    "led-truncated": ((Leadership, "_on_snapshot", _without_leaders),),
    "collection-by-age": ((collection, "garbage", _by_age),),
    "ticket-not-compared": ((connections, "match_ticket", _nothing),),
    "checksum-not-looked-at": ((frame, "_verify", _nothing),),
    "request-granted-before-durable": ((Requests, "_steer", _granted_early),),
    "plan-not-recorded": ((Controller, "_record", _plan_kept_to_itself),),
    "token-spent-by-each": ((Members, "_offered", _each_offer),),
    "needs-skipped": ((Committer, "_needs_fault", _no_fault), (proposals, "unmet", _no_needs)),
    "closings-of-any-epoch": ((proposals.Closings, "of", _of_any_epoch),),
    "released-by-one-sink": ((proposals, "unmet", _at_first_sink),),
    "settled-asked-for": ((Part, "duplicate_names", _named_by_all),),
    "index-of-one-sink": ((kept, "key_files", _of_first_sink),),
    "index-one-entry-short": ((kept, "key_files", _one_short),),
    "claims-not-released": ((proposals, "ClaimsReleased", _releases_nothing),),
    "index-not-fenced": ((RunTasks, "_remembers", _never),),
    "changed-object-read-on": ((RemoteFile, "_learn", _any_version),),
    "held-read-again": ((Intake, "_wanted", _held_forgotten),),
    "part-taken-for-unread": ((known_objects, "evidence_of", _part_unread),),
    "content-not-compared": ((Comparing, "heard", _believed),),
    "other-version-listed": ((KnownObjects, "listed_as", _new),),
    "atom-cut": ((Leadership, "submit", _cut_anywhere),),
    "queue-cut-off": ((Leadership, "flush", _rest_lost),),
    "queued-taken-for-kept": ((Committer, "_needs_fault", _queued_counts),),
    "not-asked-after-overlap": ((Gathering, "_overlapped", _unasked),),
    "snapshot-forgets-releases": ((log, "encode_snapshot", _without_releases),),
    "manifest-not-fenced": ((manifest, "_is_later", _never),),
    **task_mutants.MUTANTS,
    "void-verdicts-kept": ((held, "dependents", _no_dependents),),
    **version_mutants.MUTANTS,
    "neighbour-poison": ((Suspicion, "died_alone", _neighbour_too),),
}


@contextmanager
def planted(name: str, mutants: Mapping[str, tuple[Patch, ...]] = MUTANTS) -> Iterator[None]:
    """Plant one of these mutants. KeyError for a name that is none of theirs."""
    with ExitStack() as stack:
        for target, attribute, replacement in mutants[name]:
            stack.enter_context(patch.object(target, attribute, replacement))
        yield
