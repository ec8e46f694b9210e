"""A controller with a log that answers at once, and what tasks would say to it."""

from collections.abc import Sequence
from typing import TypeVar

import xxhash

from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import ChangedInput
from headrace.controller.core.run.run import Run
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import (
    Change,
    Closed,
    Entry,
    Led,
    Resigned,
    VersionPublished,
    decode_entry,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject

LOG = "file:///data"
T = TypeVar("T")


def make_pipeline(*, rule: int = 1, replicas: int | None = None, environment: str = "1", name: str = "run") -> Pipeline:
    pipeline = Pipeline.chain(
        name,
        LOG,
        Stage("read", StageKind.SOURCE, "m:read"),
        Stage("keep", StageKind.TRANSFORM, "m:keep", {"rule": rule}, replicas=replicas),
        Stage("write", StageKind.SINK, "m:write"),
    )
    return Pipeline(pipeline.name, pipeline.dataset, pipeline.stages, environment={"python": environment})


def fragment(index: int, size: int = 100) -> Fragment:
    return Fragment.named("read", f"file:///in/{index}", "v1", start=0, end=-1, reader="lines", size=size)


def bits(*ordinals: int) -> bytes:
    return sum(1 << ordinal for ordinal in ordinals).to_bytes(8, "little")


def proposal(
    ranges: Sequence[Range],
    *,
    kept: Sequence[bytes] | None = None,
    other: Sequence[bytes] | None = None,
    counted: int | None = None,
    version: str = "v",
    epoch: int = 1,
    task: str = "run/read.0",
    attempt: int = 1,
    number: int = 0,
) -> m.ShardProposed:
    """A shard of these ranges, every record kept unless said otherwise."""
    everyone = [((1 << item.count) - 1).to_bytes(8, "little") for item in ranges]
    kept = everyone if kept is None else kept
    other = [b"\0" * 8 for _ in ranges] if other is None else other
    coverage = tuple(m.Coverage(yes, no) for yes, no in zip(kept, other, strict=True))
    marked = sum(int.from_bytes(mask, "little").bit_count() for mask in kept)
    total = sum(item.count for item in ranges)
    count = marked if counted is None else counted
    counts = Counts(kept=count, filtered=total - count)
    named = xxhash.xxh3_128_hexdigest(repr(ranges).encode())
    objects = (StoredObject("tokens", f"shards/{epoch}/{named}.safetensors", f"xxh3-128:{named}", 1),)
    return m.ShardProposed(task, attempt, number, "write", version, epoch, tuple(ranges), coverage, objects, counts)


def closed(event: m.ShardProposed) -> Closed:
    return Closed(event.sink, event.version, event.epoch, event.ranges, event.objects, event.counts)


def of(kind: type[T], commands: Sequence[object]) -> list[T]:
    return [command for command in commands if isinstance(command, kind)]


class Stand:
    """A Controller core, its log, and workers that do as they are told only when the test says so."""

    def __init__(self, log: list[Entry] | None = None, *, name: str = "a", standby: bool = False) -> None:
        self.core = Controller({"host": name, "pid": 1}, standby=standby)
        #: The log of the first dataset; every other one has its own.
        self.log = [] if log is None else log
        self._logs: dict[str, list[Entry]] = {}
        self.now = 0.0
        self.leader_alive: bool | None = None
        #: Answer writes with an error, and do not write.
        self.unresolved = False
        #: And such an error is that the store is full.
        self.stalled = False
        #: What the store says to a manifest, for which it has no room just now.
        self.full = ""
        self.fuse, self.replicas = True, 0
        self.changed_input = ChangedInput.HALT
        #: The gate of the run, whether it pauses for it, and what it breaks; or why the store does not say.
        self.gate: dict[str, object] = {}
        self.gate_pauses = False
        self.broken: tuple[str, ...] = ()
        #: What the gate was asked and has not answered, where it does not answer at once.
        self.audits: list[m.AuditDataset] | None = None

    @property
    def run(self) -> Run:
        return next(reversed(self.core.runs.values()))

    def tell(self, *events: object) -> list[m.Command]:
        """Give events to the core and answer for the log; every other command comes back."""
        queue, said = list(events), list[m.Command]()
        while queue:
            for command in self.core.handle(queue.pop(0), self.now):
                match command:
                    case m.ReadLog():
                        behind = tuple(enumerate(self._log_of(command.log)))[command.after + 1 :]
                        queue.append(m.LogRead(command.log, behind, command.after, self.leader_alive))
                    case m.WriteEntry():
                        queue.append(self._write(command))
                    case m.WriteManifest():
                        said.append(command)
                        queue.append(m.ManifestWritten(command.log, command.term, self.full, bool(self.full)))
                    case m.AuditDataset():
                        said.append(command)
                        if self.audits is None:
                            queue.append(self._audited(command))
                        else:
                            self.audits.append(command)
                    case _:
                        said.append(command)
        return said

    def answer_audits(self) -> list[m.Command]:
        """The gate answers what it was asked so far."""
        asked, self.audits = self.audits or [], []
        return self.tell(*map(self._audited, asked))

    def _audited(self, command: m.AuditDataset) -> m.DatasetAudited:
        return m.DatasetAudited(command.log, command.term, command.final, self.broken, self.full, bool(self.full))

    def _log_of(self, uri: str) -> list[Entry]:
        return self._logs.setdefault(uri, [] if self._logs else self.log)

    def _write(self, command: m.WriteEntry) -> object:
        if self.unresolved:
            return m.EntryUnresolved(command.log, command.number, "no answer", self.stalled)
        log = self._log_of(command.log)
        if command.number < len(log):
            standing = log[command.number]
            mine = standing == command.entry
            written = m.EntryWritten(command.log, command.number)
            return written if mine else m.EntryRefused(command.log, command.number, standing)
        assert command.number == len(log)
        log.append(command.entry)
        return m.EntryWritten(command.log, command.number)

    def later(self, seconds: float) -> list[m.Command]:
        self.now += seconds
        return self.tell(m.TimePassed())

    def join(self, *names: str, cores: int = 1, tasks: tuple[tuple[str, int], ...] = ()) -> list[m.Command]:
        running = tuple(m.RunningTask(*task) for task in tasks)
        return self.tell(*(m.WorkerRegistered(name, name, cores, 1 << 30, tasks=running) for name in names))

    def apply(self, pipeline: Pipeline | None = None, *, amend: bool = False) -> list[m.Command]:
        plain = (pipeline or make_pipeline()).to_dict()
        changed = self.changed_input
        request = m.PipelineRequested(
            1,
            plain,
            amend=amend,
            fuse=self.fuse,
            replicas=self.replicas,
            changed_input=changed,
            gate=self.gate,
            gate_pauses=self.gate_pauses,
        )
        return self.tell(request)

    def ready(self, commands: Sequence[object]) -> list[m.Command]:
        """Every task that was started is ready."""
        return self.tell(*(m.TaskReady(start.task, start.attempt) for start in of(m.StartTask, commands)))

    def listed(self, commands: Sequence[object], *fragments: Fragment) -> list[m.Command]:
        """The source that was asked lists these."""
        (ask,) = of(m.ListSource, commands)
        page = m.SourceListed(ask.task, ask.attempt, ask.stage, fragments, last=True, listing=ask.listing)
        return self.tell(page)

    def begin(self, *fragments: Fragment) -> list[m.Command]:
        """One worker, one fused task, and its input listed: the orders to read."""
        self.join("w1")
        return self.listed(self.ready(self.apply()), *fragments)

    def task(self, index: int = 0) -> tuple[str, int]:
        assert self.run.tasks is not None
        task = list(self.run.tasks)[index]
        return task.plan.name, task.attempt

    def read(self, item: Fragment, count: int) -> list[m.Command]:
        return self.tell(m.FragmentWasRead(*self.task(), item.id, count))

    def swept(self, commands: Sequence[object], *held: Range) -> list[m.Command]:
        """Every task that was asked to sweep answers; the first holds `held`."""
        asked = of(m.SweepTask, commands)
        holds = ((("write", tuple(held)),), *((),) * len(asked))
        return self.tell(
            *(m.TaskSwept(ask.task, ask.attempt, ask.sweep, held=hold) for ask, hold in zip(asked, holds, strict=False))
        )

    def propose(self, *ranges: Range, number: int = 0) -> list[m.Command]:
        task, attempt = self.task()
        version, epoch = self.run.version, self.run.ledger.epoch
        return self.tell(proposal(ranges, version=version, epoch=epoch, task=task, attempt=attempt, number=number))


def fold(log: Sequence[Entry]) -> LedgerState:
    """What a reader of the log makes of it, by the bytes of its entries."""
    state = LedgerState()
    for number, entry in enumerate(log):
        state.apply(number, decode_entry(encode_entry(entry)))
    return state


def amending(pipeline: Pipeline, *, request: int = 9, token: str = "") -> m.PipelineRequested:
    """A running pipeline is to be another."""
    return m.PipelineRequested(request, pipeline.to_dict(), amend=True, token=token)


def close(stand: Stand, version: str, task: str, *ranges: Range) -> list[m.Command]:
    """The first attempt of a task proposes a shard of a version, in the epoch that stands."""
    epoch, attempt = stand.run.ledger.epoch, ATTEMPTS_A_TERM + 1
    return stand.tell(proposal(ranges, version=version, epoch=epoch, task=task, attempt=attempt))


def changes(stand: Stand) -> list[str]:
    """The names of all changes in the log, in order."""
    return [type(change).__name__ for entry in stand.log for change in entry.changes]


def led(stand: Stand, change: Change) -> None:
    """Another leader commits a change behind the run of a stand, and resigns."""
    term = stand.run.ledger.term + 1
    stand.log += [Entry(term, (Led(term, {}),)), Entry(term, (change,)), Entry(term, (Resigned(term),))]


def rolled_back(stand: Stand, name: str, version: int, *fragments: Fragment) -> tuple[Stand, list[m.Command]]:
    """Restore a version, and run again over these fragments; what the run says."""
    ledger = stand.run.ledger
    shown = ledger.published[version]
    led(stand, VersionPublished(ledger.version + 1, "rollback", shown.shows, shown.complete, restores=version))
    again = Stand(stand.log, name=name)
    return again, again.begin(*fragments)


def stopped_and_completed() -> Stand:
    """Version 1 of a fragment of ten records was stopped at four, version 2 is complete."""
    first, item = Stand(), fragment(0)
    first.begin(item)
    first.swept(first.tell(m.StopRequested("run", cancel=False)), Range(item.id, 0, 4))
    first.propose(Range(item.id, 0, 4))
    second = Stand(first.log, name="b")
    second.begin(item)
    second.swept(second.read(item, 10), Range(item.id, 4, 6))
    assert of(m.ReportRun, second.propose(Range(item.id, 4, 6))) == [m.ReportRun("run", "completed")]
    return second
