"""What a worker may say: each event of a task is held against the session that it came by, before anything is done.

A worker speaks for the attempts that it was given, and for no others: of those it is not believed, and nothing happens
(`stranger`). An attempt speaks of the stages that it was born with, of fragments of its sources, of links that it is an
end of, in numbers that can be; where it does not, its process is wrong or lies, and is ended like one that failed
(`fault`). So a worker that lies can spoil the tasks that it was given, which it could anyway, and no others.

Every kind of event has its case here; one without is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from math import isfinite

from msgspec import structs

from headrace.controller.core.messages import (
    DecisionAsked,
    DecisionMade,
    FragmentsWereRead,
    FragmentWasRead,
    LinkLost,
    NeedsAsked,
    Records,
    RunningLink,
    RunningTask,
    ShardProposed,
    SourceListed,
    TaskEvent,
    TaskExited,
    TaskFailed,
    TaskReady,
    TaskSwept,
    VerdictsLetGo,
    WorkerRegistered,
)
from headrace.controller.core.run import Run
from headrace.controller.core.run.tasks import AttemptFacts, ReportedTasks
from headrace.pipeline import STAGES_MAX
from headrace.store.ledger import UNBOUNDED, Fragment, Gap, IntervalSet, Range
from headrace.store.shards import epoch_of

#: Characters of a text that a task or a worker may say, and of a name, an address or a label.
TEXT_MAX = 64 << 10
NAME_MAX = 4096
#: Characters of a worker's name.
WORKER_NAME_MAX = 255
#: Facts, addresses and labels that are told of one task or worker.
WORDS_MAX = 1024
#: Objects of a shard.
OBJECTS_MAX = 64
#: Bytes of the keys of one record, as a dedup stage asks about them.
KEYS_BYTES_MAX = 1 << 20
#: Attempts, generations and numbers of requests: a thousandth of what the wire holds, so that some can be added.
NUMBER_MAX = 1 << 53
#: Cores of one worker; tasks and links that it may bring.
CORES_MAX = 1 << 16
#: The largest number that a worker may have measured on its host.
MEASURED_MAX = 1e18
BROUGHT_MAX = 1 << 20
PORT_MAX = (1 << 16) - 1
#: Characters of what is wrong that are said again.
_SHOWN = 80


def stranger(worker: str, task: str, attempt: int, born: AttemptFacts | None) -> str:
    """Why a worker may not speak for an attempt; empty if it may."""
    if born is None:
        return f"worker {worker} speaks of attempt {attempt} of task {task[:NAME_MAX]!r}, which is not known here"
    if born.worker != worker:
        return f"worker {worker} speaks of attempt {attempt} of task {task}, which is worker {born.worker}'s"
    return ""


def fault(event: TaskEvent, born: AttemptFacts, known: Run) -> str:
    """What an attempt says that it cannot know, or that cannot be; empty if nothing is."""
    check = _CHECKS.get(type(event))
    return f"{type(event).__name__} is no word of a task" if check is None else check(event, born, known)


def registration_fault(event: WorkerRegistered) -> str:
    """What is wrong with what a worker says of itself; empty if nothing is."""
    name = event.worker
    if not name or len(name) > WORKER_NAME_MAX or not name.isprintable():
        return f"{name[:WORKER_NAME_MAX]!r} is no name for a worker: 1 to {WORKER_NAME_MAX} characters that print"
    if not 0 <= event.cores <= CORES_MAX or not 0 <= event.memory_bytes < UNBOUNDED:
        return f"{event.cores} cores and {event.memory_bytes} bytes of memory"
    words = (event.host, event.host_id, event.door, *event.addresses, *event.labels, *event.relay_addresses)
    if len(words) > WORDS_MAX or any(len(word) > NAME_MAX for word in words):
        return f"more than {WORDS_MAX} addresses and labels, or one of more than {NAME_MAX} characters"
    if wrong := _addresses_fault(event.relay_addresses) or _measured_fault(event.measured):
        return wrong
    if len(event.tasks) > BROUGHT_MAX or len(event.links) > BROUGHT_MAX:
        return f"more than {BROUGHT_MAX} tasks or links"
    brought = (*map(_task_fault, event.tasks), *map(_link_fault, event.links))
    return next(filter(None, brought), "")


def _measured_fault(measured: Sequence[tuple[str, float]]) -> str:
    if len(measured) > WORDS_MAX or any(len(name) > NAME_MAX for name, _ in measured):
        return f"more than {WORDS_MAX} measured facts, or one with a name of more than {NAME_MAX} characters"
    wrong = next((item for item in measured if not (isfinite(item[1]) and 0 < item[1] <= MEASURED_MAX)), None)
    return f"measured fact {wrong[0]} is {wrong[1]:g}: it is above 0 and at most {MEASURED_MAX:g}" if wrong else ""


def _task_fault(item: RunningTask) -> str:
    if len(item.addresses) > WORDS_MAX:
        return f"task {item.task[:NAME_MAX]!r} has more than {WORDS_MAX} addresses"
    if len(item.stages) > STAGES_MAX or any(len(stage) > NAME_MAX for stage in item.stages):
        return f"task {item.task[:NAME_MAX]!r} has more than {STAGES_MAX} stages, or one with too long a name"
    return _addresses_fault(item.addresses) or _numbers_fault(item.task, item.attempt, item.epoch)


def _link_fault(item: RunningLink) -> str:
    return _numbers_fault(item.link, item.sender_attempt, item.receiver_attempt, item.generation)


def _numbers_fault(name: str, *numbers: int) -> str:
    if len(name) > NAME_MAX:
        return f"a task or link with a name of {len(name)} characters"
    return "" if all(0 <= number < NUMBER_MAX for number in numbers) else f"{name!r} has numbers {numbers}"


# ---- one check for each kind of event ----


def _ready(event: TaskReady, _born: AttemptFacts, _known: Run) -> str:
    words = (*event.facts, *event.facts.values(), *event.addresses)
    if len(words) > WORDS_MAX or any(len(word) > NAME_MAX for word in words):
        return f"more than {WORDS_MAX} facts and addresses, or one of more than {NAME_MAX} characters"
    return _addresses_fault(event.addresses)


def _exited(event: TaskExited, born: AttemptFacts, known: Run) -> str:
    for hand in event.in_hand:
        if hand.stage not in born.stages:
            return f"stage {hand.stage[:NAME_MAX]!r} had something in hand, and the task has none of that name"
        if wrong := _range_fault(hand.range, known, least=0):
            return wrong
    return _text_fault(event.story, event.killed_for)


def _failed(event: TaskFailed, _born: AttemptFacts, _known: Run) -> str:
    return _text_fault(event.error)


def _listed(event: SourceListed, born: AttemptFacts, known: Run) -> str:
    if event.stage not in born.stages or event.stage not in known.sources:
        return f"a listing of {event.stage[:NAME_MAX]!r}, which is no source of the task"
    for item in event.fragments:
        if wrong := _fragment_fault(item, event.stage):
            return wrong
    return _text_fault(event.error, event.skipped, event.all_below)


def _was_read(event: FragmentWasRead, born: AttemptFacts, known: Run) -> str:
    if not -1 <= event.count <= UNBOUNDED:
        return f"a fragment of {event.count} records"
    if event.prefix and not (event.count > 0 and event.prefix > 0 and event.checksum):
        return f"{event.count} records in {event.prefix} bytes, with a checksum of {len(event.checksum)} bytes"
    return _source_fault(event.fragment, born, known) or _text_fault(event.error, event.compared or "")


def _were_read(event: FragmentsWereRead, born: AttemptFacts, known: Run) -> str:
    return next((wrong for item in event.reads if (wrong := _was_read(item, born, known))), "")


def _proposed(event: ShardProposed, born: AttemptFacts, known: Run) -> str:
    if event.sink not in born.stages:
        return f"a shard of {event.sink[:NAME_MAX]!r}, which is no sink of the task"
    if len(event.ranges) != len(event.coverage):
        return f"{len(event.ranges)} ranges with {len(event.coverage)} coverages"
    for item, cover in zip(event.ranges, event.coverage, strict=True):
        if wrong := _range_fault(item, known, least=1):
            return wrong
        if item.count > 8 * max(len(cover.kept), len(cover.verdicts)):
            return f"{item.count} records, and bits for {8 * max(len(cover.kept), len(cover.verdicts))}"
    wrong = _objects_fault(event) or _counts_fault(event) or _records_fault(event.needs)
    return wrong or _released_fault(event)


def _needs(event: NeedsAsked, born: AttemptFacts, _known: Run) -> str:
    if event.sink not in born.stages:
        return f"a question of {event.sink[:NAME_MAX]!r}, which is no sink of the task"
    return _records_fault(event.records)


def _let_go(_event: VerdictsLetGo, _born: AttemptFacts, _known: Run) -> str:
    return ""


def _asked(event: DecisionAsked, born: AttemptFacts, known: Run) -> str:
    question = event.question
    if not born.alone:
        return "a question for the decider, and the task is no solitary one"
    if question.stage not in born.stages:
        return f"a question for {question.stage[:NAME_MAX]!r}, which is no stage of the task"
    if len(question.keys) > KEYS_BYTES_MAX or not 0 <= question.row <= UNBOUNDED:
        return f"a question of {len(question.keys)} bytes about record {question.row}"
    return _fragment_known(question.fragment, known)


def _decided(event: DecisionMade, _born: AttemptFacts, _known: Run) -> str:
    # That it is the decider who decides, and a living task that is told, is seen to where it is passed on.
    target = event.decision.duplicate_of
    return "" if target is None or 0 <= target[1] <= UNBOUNDED else f"a duplicate of record {target[1]}"


def _swept(event: TaskSwept, born: AttemptFacts, known: Run) -> str:
    for fragment, gaps in event.pending:
        if wrong := _source_fault(fragment, born, known) or _gaps_fault(gaps):
            return wrong
    for sink, ranges in event.held:
        if sink not in born.stages:
            return f"{sink[:NAME_MAX]!r} holds something, which is no sink of the task"
        for item in ranges:
            if wrong := _range_fault(item, known, least=1):
                return wrong
    return ""


def _link_lost(event: LinkLost, _born: AttemptFacts, known: Run) -> str:
    link = known.link(event.link)
    if link is not None and event.task not in (link.sender, link.receiver):
        return f"link {event.link} is cut, and the task is no end of it"
    return _text_fault(event.link, event.reason)


_CHECKS: Mapping[type, Callable[..., str]] = {
    TaskReady: _ready,
    TaskExited: _exited,
    TaskFailed: _failed,
    SourceListed: _listed,
    FragmentWasRead: _was_read,
    FragmentsWereRead: _were_read,
    ShardProposed: _proposed,
    NeedsAsked: _needs,
    VerdictsLetGo: _let_go,
    DecisionAsked: _asked,
    DecisionMade: _decided,
    TaskSwept: _swept,
    LinkLost: _link_lost,
}


# ---- the parts ----


def _text_fault(*texts: str) -> str:
    return next((f"a text of {len(text)} characters" for text in texts if len(text) > TEXT_MAX), "")


def _addresses_fault(addresses: Iterable[str]) -> str:
    """Other workers' tasks send datagrams there: a name would be looked up, and anything else ends them."""
    return next((f"{text[:_SHOWN]!r} is no address in numbers" for text in addresses if not _is_address(text)), "")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    # a scope, behind %, is a name on one host, and what no interface has for a name is looked up elsewhere
    if "%" in host:
        return False
    try:
        found, number = ip_address(host.removeprefix("[").removesuffix("]")), int(port)
    except ValueError:
        return False
    return 0 < number <= PORT_MAX and text == (f"[{found}]:{number}" if found.version == 6 else f"{found}:{number}")


def _fragment_known(fragment: bytes, known: Run) -> str:
    return "" if fragment in known.fragments else f"fragment {fragment[:16].hex()} was never listed"


def _source_fault(fragment: bytes, born: AttemptFacts, known: Run) -> str:
    state = known.fragments.get(fragment)
    if state is None:
        return _fragment_known(fragment, known)
    stage = state.fragment.stage
    return "" if stage in born.stages else f"fragment {fragment.hex()} is of source {stage}, which the task has not"


def _range_fault(item: Range, known: Run, *, least: int) -> str:
    if item.first < 0 or item.count < least or item.end > UNBOUNDED:
        return f"a range of {item.count} records from {item.first} on"
    if not (-1 <= item.offset < UNBOUNDED and -1 <= item.length < UNBOUNDED):
        return f"a range of {item.length} bytes from {item.offset} on"
    return _fragment_known(item.fragment, known)


def _gaps_fault(gaps: Iterable[Gap]) -> str:
    for gap in gaps:
        if not (0 <= gap.first <= gap.end <= UNBOUNDED and -1 <= gap.offset < UNBOUNDED):
            return f"records {gap.first} to {gap.end} from byte {gap.offset} on"
    return ""


def _fragment_fault(item: Fragment, stage: str) -> str:
    if item.stage != stage:
        return f"a fragment of {item.stage[:NAME_MAX]!r} in a listing of {stage}"
    if item.start < 0 or not -1 <= item.end < UNBOUNDED or not 0 <= item.size < UNBOUNDED:
        return f"a fragment of {item.size} bytes, from {item.start} to {item.end}"
    if max(len(item.uri), len(item.version), len(item.reader)) > TEXT_MAX:
        return f"a fragment with a name of more than {TEXT_MAX} characters"
    named = Fragment.named(
        stage, item.uri, item.version, start=item.start, end=item.end, reader=item.reader, size=item.size
    )
    return "" if named.id == item.id else f"a fragment named {item.id[:16].hex()}, which its facts do not give"


def _objects_fault(event: ShardProposed) -> str:
    if len(event.objects) > OBJECTS_MAX:
        return f"a shard of {len(event.objects)} objects"
    for item in event.objects:
        if epoch_of(item.key) is None:
            return f"an object with the key {item.key[:NAME_MAX]!r}, which no sink writes"
        if not 0 <= item.size < UNBOUNDED or max(len(item.role), len(item.checksum)) > WORKER_NAME_MAX:
            return f"{item.key} has {item.size} bytes, or a role or checksum without end"
    return ""


def _counts_fault(event: ShardProposed) -> str:
    counts, records = event.counts, sum(item.count for item in event.ranges)
    numbers = (counts.kept, counts.filtered, counts.duplicate, counts.quarantined, counts.tokens, counts.sequences)
    if min(*numbers, counts.padding) < 0 or counts.records != records:
        return f"{counts.records} verdicts for {records} records, or a count below nothing"
    by_name = (counts.filtered_by, counts.quarantined_by, counts.edited, counts.counters)
    if any(len(name) > TEXT_MAX for counted in by_name for name in counted):
        return f"a count with a name of more than {TEXT_MAX} characters"
    return ""


def _records_fault(records: Records) -> str:
    for _, rows in records:
        if rows and not (min(rows) >= 0 and max(rows) < UNBOUNDED):
            return f"records {min(rows)} to {max(rows)}"
    return ""


def _released_fault(event: ShardProposed) -> str:
    """What a proposal releases must stand in it: of no other record does a sink know that it is not kept."""
    mine: dict[bytes, IntervalSet] = {}
    for item in event.ranges if event.released else ():
        mine.setdefault(item.fragment, IntervalSet()).cover(item.first, item.end)
    for fragment, rows in event.released:
        for row in rows:
            if fragment not in mine or not mine[fragment].overlap(row, row + 1):
                return f"it releases record {row} of fragment {fragment[:16].hex()}, which is not in it"
    return ""


class Witness:
    """Judges what workers say, by the runs and the reported tasks of one controller."""

    def __init__(self, runs: Mapping[str, Run], reported: ReportedTasks) -> None:
        self._runs, self._reported = runs, reported

    def hear(self, worker: str, event: TaskEvent) -> tuple[TaskEvent | None, str]:
        """What is believed of an event that came by a worker's session, and why that is not what it said, if so.

        Nothing is believed of another's attempt. An attempt that says what cannot be has failed; that it has ended is
        believed all the same.
        """
        if refused := self.stranger(worker, event.task, event.attempt):
            return None, refused
        run, born = self._attempt(event.task, event.attempt)
        wrong = fault(event, born, run) if run is not None and born is not None and not run.ended else ""
        if not wrong:
            return event, ""
        why = f"task {event.task} of worker {worker} says what cannot be: {wrong}"
        if isinstance(event, TaskExited):
            return structs.replace(event, in_hand=(), story=why, killed_for=""), why
        return TaskFailed(event.task, event.attempt, why, final=False), why

    def stranger(self, worker: str, task: str, attempt: int) -> str:
        """Why a worker may not speak for an attempt; empty if it may."""
        if self._reported.holds(worker, task, attempt):
            return ""
        _, born = self._attempt(task, attempt)
        return stranger(worker, task, attempt, born)

    def _attempt(self, task: str, attempt: int) -> tuple[Run | None, AttemptFacts | None]:
        run = self._runs.get(task.split("/", 1)[0])
        return run, run.works.attempt(task, attempt) if run is not None and run.works is not None else None
