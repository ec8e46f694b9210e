"""What happens to a task (events, past tense) and what its core has the shell do (commands, imperative)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.store.ledger import Fragment, Gap, Range

B = TypeVar("B")
Q = TypeVar("Q")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ListAsked:
    """The controller asks what there is to read; `listing` is the number of its request."""

    listing: int


@dataclass(frozen=True, slots=True)
class ReadAsked:
    """The controller asks for these gaps of a fragment; without any the fragment is to be compared."""

    fragment: Fragment
    gaps: Sequence[Gap]


@dataclass(frozen=True, slots=True)
class SweepAsked:
    """The controller asks for a sweep; `halt`: let go of what has not been sent."""

    sweep: int
    halt: bool = False


@dataclass(frozen=True, slots=True)
class DecisionNeeded(Generic[Q]):
    """A solitary task asks whether a record is a duplicate."""

    question: Q


@dataclass(frozen=True, slots=True)
class DecisionArrived(Generic[D]):
    """The answer to this task's question of that number."""

    number: int
    decision: D


@dataclass(frozen=True, slots=True)
class DeciderJoined:
    """A link to the decider, or from it, stands anew."""


@dataclass(frozen=True, slots=True)
class AnswerArrived(Generic[B]):
    """The decider's answer to the question of that number, or its partitions'; None: nothing is let through."""

    number: int
    answer: B | None


@dataclass(frozen=True, slots=True)
class IndexServes:
    """What the task remembers waited for its epoch, and serves from now on."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The task is to end."""


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """An input link stands."""

    link: str


@dataclass(frozen=True, slots=True)
class InputClosed:
    """An input link is gone; nothing more comes on it."""

    link: str


@dataclass(frozen=True, slots=True)
class Turned:
    """The task has nothing in hand. `unsent`: a batch waits for credit."""

    unsent: bool


@dataclass(frozen=True, slots=True)
class PageListed:
    """A page of the listing was reported; `last`: there is no other."""

    last: bool


@dataclass(frozen=True, slots=True)
class ListingPaused:
    """There is nothing more to list now; there may be later."""


@dataclass(frozen=True, slots=True)
class BatchRead(Generic[B]):
    """The source has read a batch: `item`, or None where `reading` knows it already, as of small files."""

    batch: B
    item: Range | None


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A frame came in on a link: the marker of a sweep, or data (None)."""

    link: str
    epoch: int
    sweep: int | None


@dataclass(frozen=True, slots=True)
class BatchReceived(Generic[B]):
    """The batch of a frame."""

    batch: B


@dataclass(frozen=True, slots=True)
class BatchProcessed(Generic[B]):
    """The stages have run, those before dedup where the task asks; `kept`: a record is left."""

    batch: B
    kept: bool


@dataclass(frozen=True, slots=True)
class BatchDecided(Generic[B]):
    """The stages from dedup on have run, with the decision that was asked for."""

    batch: B


@dataclass(frozen=True, slots=True)
class MarkersSent:
    """Every output link has taken the marker of a sweep."""

    sweep: int


@dataclass(frozen=True, slots=True)
class ListPage:
    """Report a page of the listing."""

    listing: int


@dataclass(frozen=True, slots=True)
class ReadNext:
    """Read a batch of what `reading` gives."""


@dataclass(frozen=True, slots=True)
class ReceiveFrame:
    """Take a frame from some input link."""


@dataclass(frozen=True, slots=True)
class ReceiveBatch:
    """Decode the frame that has arrived."""


@dataclass(frozen=True, slots=True)
class RefuseFrame:
    """The frame is not for this task, which fails."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunStages(Generic[B]):
    """Run the stages on a batch, up to dedup where the task asks."""

    batch: B


@dataclass(frozen=True, slots=True)
class ResumeStages(Generic[B, D]):
    """Run the stages from dedup on, with the decider's answer."""

    batch: B
    decision: D


@dataclass(frozen=True, slots=True)
class AskDecider(Generic[B]):
    """Ask the decider which records of this batch are duplicates; `again`: the answer may have been lost.

    A decider whose index has partitions asks those, for a batch or for a record of a solitary task.
    """

    number: int
    batch: B
    again: bool = False


@dataclass(frozen=True, slots=True)
class LetThroughNone(Generic[B]):
    """Answer that no record of this batch is let through: this decider is fenced."""

    batch: B


@dataclass(frozen=True, slots=True)
class HoldBatch(Generic[B]):
    """Give a batch to the sink."""

    batch: B


@dataclass(frozen=True, slots=True)
class SendBatch(Generic[B]):
    """Send a batch to each stage that follows; `decided`: only past the decider, the others have it already."""

    batch: B
    decided: bool = False


@dataclass(frozen=True, slots=True)
class SendUnsent:
    """Send what waits for credit."""


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Send the marker of a sweep on every output link that has not taken it."""

    sweep: int


@dataclass(frozen=True, slots=True)
class DropInput:
    """Let go of what was read ahead: the source was told to halt."""


@dataclass(frozen=True, slots=True)
class AnswerSweep:
    """Say what was not sent, what the sink holds, and whether nothing is let through before the epoch is raised."""

    sweep: int
    pending: tuple[tuple[bytes, tuple[Gap, ...]], ...]
    held: tuple[Range, ...]
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class PutQuestion(Generic[B]):
    """Ask whether the record of this batch is a duplicate."""

    number: int
    batch: B


@dataclass(frozen=True, slots=True)
class Decide(Generic[Q]):
    """Decide on the record of a solitary task."""

    question: Q


Event = (
    ListAsked
    | ReadAsked
    | SweepAsked
    | DecisionNeeded[Any]
    | DecisionArrived[Any]
    | DeciderJoined
    | AnswerArrived[Any]
    | IndexServes
    | StopAsked
    | LinkOpened
    | InputClosed
    | Turned
    | PageListed
    | ListingPaused
    | BatchRead[Any]
    | FrameArrived
    | BatchReceived[Any]
    | BatchProcessed[Any]
    | BatchDecided[Any]
    | MarkersSent
)
#: On the way of a batch.
BatchCommand = (
    ReceiveBatch
    | RefuseFrame
    | RunStages[Any]
    | ResumeStages[Any, Any]
    | AskDecider[Any]
    | LetThroughNone[Any]
    | HoldBatch[Any]
    | SendBatch[Any]
)
Command = (
    BatchCommand
    | ListPage
    | ReadNext
    | ReceiveFrame
    | SendUnsent
    | SendMarkers
    | DropInput
    | AnswerSweep
    | PutQuestion[Any]
    | Decide[Any]
)
