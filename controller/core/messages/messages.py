"""Events that reach the controller's machines, and the commands they give: the whole vocabulary of the core.

Events are in the past tense, commands in the imperative. Each carries what is needed to act on it and nothing that
refers to a socket, a process or a clock. `cause` on a command names the event that led to it, from the ledger entry
or worker that started the chain, so that a log line on a worker can be followed back to the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct, field

from headrace.controller.core.messages.dedup import (
    AnswerNeeds as AnswerNeeds,
    DecisionCommand,
    DecisionEvent,
    NeedsAsked as NeedsAsked,
    Records as Records,
    ReleaseClaims as ReleaseClaims,
    VerdictsLetGo as VerdictsLetGo,
)
from headrace.controller.core.messages.log import (
    EntryFailed as EntryFailed,
    EntryOvertaken as EntryOvertaken,
    EntryRefused as EntryRefused,
    EntryUnresolved as EntryUnresolved,
    EntryWritten as EntryWritten,
    LogCommand as LogCommand,
    LogEvent as LogEvent,
    LogRead as LogRead,
    LogUnreadable as LogUnreadable,
    ReadLog as ReadLog,
    SnapshotWritten as SnapshotWritten,
    TruncateLog as TruncateLog,
    WriteEntry as WriteEntry,
    WriteSnapshot as WriteSnapshot,
)
from headrace.controller.core.messages.requests import (
    AmendRecorded as AmendRecorded,
    AuditDataset as AuditDataset,
    ClearRequested as ClearRequested,
    DatasetAudited as DatasetAudited,
    DrainRequested as DrainRequested,
    ExpelRequested as ExpelRequested,
    GateRecorded as GateRecorded,
    HoldDecided as HoldDecided,
    PipelineRequested as PipelineRequested,
    QueueRequested as QueueRequested,
    ScalingDecided as ScalingDecided,
    ShutdownAsked as ShutdownAsked,
    SteerAdmitted as SteerAdmitted,
    SteerRequested as SteerRequested,
    StopRequested as StopRequested,
    TokenOffered as TokenOffered,
    WorkerDrained as WorkerDrained,
    amending as amending,
    fixed_options as fixed_options,
    same_options as same_options,
)
from headrace.controller.core.messages.workers import (
    RunningLink as RunningLink,
    RunningTask as RunningTask,
    SpreadExpulsions as SpreadExpulsions,
    WorkerLost as WorkerLost,
    WorkerRegistered as WorkerRegistered,
)
from headrace.store.ledger import Counts, Fragment, Gap, Range, StoredObject

# ---- what workers and tasks report ----


class TaskReady(Struct, frozen=True):
    """A task has built its stages. `facts` are words for people, such as the tokenizer's engine."""

    task: str
    attempt: int
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Where it takes links of other workers, as host:port.
    addresses: tuple[str, ...] = ()


class LinkLost(Struct, frozen=True):
    """An end of a link between workers found it cut. `generation` says which making of it."""

    task: str
    attempt: int
    link: str
    generation: int
    reason: str
    #: The two workers cannot pass memory to each other.
    apart: bool = False
    #: The receiver answered at none of its addresses.
    unreachable: bool = False


class InHand(Struct, frozen=True):
    """What a stage was at when its task died; `range.count` 0: a source had not said how many records it would read."""

    stage: str
    range: Range


class TaskExited(Struct, frozen=True):
    """A task's process is gone. `code` is negative for a signal; `killed_for` is its worker's reason, if it had one."""

    task: str
    attempt: int
    code: int
    story: str = ""
    in_hand: tuple[InHand, ...] = ()
    killed_for: str = ""

    def ending(self) -> str:
        """How the process ended, for a verdict."""
        if self.killed_for:
            return self.killed_for
        how = "ended with exit code" if self.code >= 0 else "was killed by signal"
        return f"the process {how} {abs(self.code)}"

    def cause(self) -> str:
        """For people, in few words: how it ended, and the last line that it said."""
        said = self.story.strip().splitlines()
        return f"{self.ending()}: {said[-1].strip()}" if said and not self.killed_for else self.ending()

    def words(self) -> str:
        """For people: how it ended, and what it said last."""
        ending = f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"{ending}: {self.story.strip()}" if self.story.strip() else ending


class TaskFailed(Struct, frozen=True):
    """A task says what it cannot do; `final` where trying again cannot help."""

    task: str
    attempt: int
    error: str
    final: bool


class SourceListed(Struct, frozen=True):
    """A page of a source's listing; `error` ends it. `listing` is the number that it was asked for by.

    `skipped` comes with the last: what lies in folders of the input and is none, in words for people. `all_below`: the
    listing names all that the source has whose URIs begin with this; empty: it does not say so.
    """

    task: str
    attempt: int
    stage: str
    fragments: tuple[Fragment, ...]
    last: bool
    error: str = ""
    listing: int = 0
    skipped: str = ""
    all_below: str = ""


class FragmentWasRead(Struct, frozen=True):
    """A task sent all it was asked for of a fragment. `count` is -1 unless it read to the end."""

    task: str
    attempt: int
    fragment: bytes
    count: int
    error: str = ""
    #: The error concerns this fragment alone: its object is not the one that was listed, or its device failed.
    changed: bool = False
    unreadable: bool = False
    #: The xxh3-128 of its stored bytes, where it was read to its end, or compared; empty: nobody took it.
    checksum: bytes = b""
    #: Of what was compared: a fragment may begin behind it; under which version. None: it was read; both may be asked.
    continues: bool = False
    compared: str | None = None
    #: Not 0: it is read on, its first `count` records lie in so many bytes, and the checksum is theirs.
    prefix: int = 0


class FragmentsWereRead(Struct, frozen=True):
    """A task says of several fragments at once that they were read, in the order in which it read them."""

    task: str
    attempt: int
    reads: tuple[FragmentWasRead, ...]


class Coverage(Struct, frozen=True):
    """Which records of a range were kept and which have another verdict: one bit a record, lowest first."""

    kept: bytes
    verdicts: bytes


class ShardProposed(Struct, frozen=True):
    """A sink wrote a shard and asks that the ledger name it. `coverage` stands beside `ranges`."""

    task: str
    attempt: int
    proposal: int
    sink: str
    version: str
    epoch: int
    ranges: tuple[Range, ...]
    coverage: tuple[Coverage, ...]
    objects: tuple[StoredObject, ...]
    counts: Counts
    #: Records that its duplicates name and that it does not keep itself.
    needs: Records = ()
    #: Records that dedup let through and that it does not keep.
    released: Records = ()


class TaskSwept(Struct, frozen=True):
    """A marker has passed a task on all its inputs; `fenced`: it lets nothing through before the epoch is raised.

    `pending` are the gaps that a source had been given and not sent, `held` the ranges that a sink held at that moment.
    """

    task: str
    attempt: int
    sweep: int
    pending: tuple[tuple[bytes, tuple[Gap, ...]], ...] = ()
    held: tuple[tuple[str, tuple[Range, ...]], ...] = ()
    fenced: bool = False


# ---- what the log says ----


class ManifestWritten(Struct, frozen=True):
    """The derived manifest stands; or, with `error`, it could not be written, `stalled` for a reason that may pass."""

    log: str
    term: int
    error: str = ""
    stalled: bool = False


# ---- what people ask, and time ----


class TimePassed(Struct, frozen=True):
    """A timer that the machine asked for has run out."""


TaskEvent: TypeAlias = (
    TaskReady
    | TaskExited
    | TaskFailed
    | SourceListed
    | FragmentWasRead
    | FragmentsWereRead
    | ShardProposed
    | NeedsAsked
    | VerdictsLetGo
    | DecisionEvent
    | TaskSwept
    | LinkLost
)
#: Requests that `AnswerRequest` answers, by their number.
AnsweredRequest: TypeAlias = (
    PipelineRequested
    | StopRequested
    | SteerRequested
    | DrainRequested
    | ClearRequested
    | QueueRequested
    | TokenOffered
    | ExpelRequested
)
Event: TypeAlias = (
    TaskEvent
    | LogEvent
    | WorkerRegistered
    | WorkerLost
    | ManifestWritten
    | DatasetAudited
    | AnsweredRequest
    | ScalingDecided
    | ShutdownAsked
    | TimePassed
)


# ---- commands ----


class StartTask(Struct, frozen=True):
    """Start attempt `attempt` of a task on a worker."""

    worker: str
    task: str
    attempt: int
    stages: tuple[str, ...]
    pipeline: Mapping[str, Any]
    version: str
    epoch: int
    replica: int
    #: It has an end of a link between workers.
    listens: bool = False
    #: The solitary task: a source, transforms and a sink that take one record at a time.
    alone: bool = False
    #: Its stage that remembers lets nothing through: an index of this epoch was lost; or waits for `ServeIndex`.
    fenced: bool = False
    waits: bool = False


class MakeLink(Struct, frozen=True):
    """Join two tasks. Where they are on two workers, each of these gets one."""

    worker: str
    link: str
    transport: str
    sender: str
    sender_attempt: int
    sender_stage: str
    receiver: str
    receiver_attempt: int
    receiver_stage: str
    epoch: int
    sender_worker: str = ""
    receiver_worker: str = ""
    #: Where the receiver listens, for a link between workers.
    addresses: tuple[str, ...] = ()
    #: Which making of the link this is.
    generation: int = 0
    #: The workers that relay it, where the two cannot reach each other.
    relays: tuple[str, ...] = ()


class OpenRelay(Struct, frozen=True):
    """Have a worker relay a link between two others."""

    worker: str
    link: MakeLink


class KillTask(Struct, frozen=True):
    """End a task that must not go on."""

    worker: str
    task: str
    attempt: int
    reason: str


class StopTask(Struct, frozen=True):
    """Ask a task to end by itself."""

    worker: str
    task: str
    attempt: int
    reason: str


class ListSource(Struct, frozen=True):
    """Ask a task to list a source. Its pages bear the number `listing`, so that none of another listing is taken."""

    worker: str
    task: str
    attempt: int
    stage: str
    listing: int = 0


class PoisonRecord(Struct, frozen=True):
    """A record that killed its process at a stage, and the story for its verdict."""

    ordinal: int
    stage: str
    story: str


class ReadFragment(Struct, frozen=True):
    """Ask a task to read the gaps of a fragment; the solitary one also learns what it must not touch again.

    `trial`: its sink is to try each record by itself.
    """

    worker: str
    task: str
    attempt: int
    fragment: Fragment
    gaps: tuple[Gap, ...]
    poison: tuple[PoisonRecord, ...] = ()
    trial: bool = False


class SweepTask(Struct, frozen=True):
    """Ask a task to let marker `sweep` pass; `halt` makes sources let go of what they have not sent."""

    worker: str
    task: str
    attempt: int
    sweep: int
    halt: bool = False


class SealSink(Struct, frozen=True):
    """Ask a task's sinks to seal what they hold."""

    worker: str
    task: str
    attempt: int
    reason: str


class Outcome(Enum):
    """Answers to a proposal."""

    ACCEPTED = "accepted"
    OVERLAPS = "overlaps"
    REFUSED = "refused"


class AnswerProposal(Struct, frozen=True):
    """Tell a sink what became of its proposal."""

    worker: str
    task: str
    attempt: int
    proposal: int
    outcome: Outcome
    overlaps: tuple[Range, ...] = ()
    reason: str = ""


class AnswerRequest(Struct, frozen=True):
    """Tell whoever applied a pipeline whether it runs."""

    request: int
    accepted: bool
    reason: str = ""
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: The place in its queue, in words, of what was taken and has to wait.
    waits: str = ""
    #: It is refused for what passes by itself: asked again, it may be accepted.
    passes: bool = False


class WriteManifest(Struct, frozen=True):
    """Derive the manifest of a dataset from its ledger, for the run that leads its log in `term`."""

    log: str
    term: int


class ReportRun(Struct, frozen=True):
    """A run came to its end: completed, stopped, cancelled or failed with a reason."""

    pipeline: str
    outcome: str
    reason: str = ""


class StepDown(Struct, frozen=True):
    """This controller leads the cluster no more: send its workers and askers to whoever does."""

    reason: str


#: For a task, by its worker.
TaskCommand: TypeAlias = (
    StartTask
    | StopTask
    | ListSource
    | ReadFragment
    | SweepTask
    | SealSink
    | AnswerProposal
    | AnswerNeeds
    | DecisionCommand
)
#: For a worker.
WorkerCommand: TypeAlias = TaskCommand | KillTask | MakeLink | OpenRelay
Command: TypeAlias = (
    LogCommand | WorkerCommand | AnswerRequest | WriteManifest | AuditDataset | ReportRun | StepDown | SpreadExpulsions
)
