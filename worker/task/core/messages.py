"""What happens to a task (events, past tense) and what its core has the shell do (commands, imperative)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from headrace.store.ledger import Fragment, Gap, Range

B = TypeVar("B")
Q = TypeVar("Q")
D = TypeVar("D")


class ListAsked(Struct, frozen=True):
    """The controller asks what there is to read; `listing` is the number of its request."""

    listing: int


class ReadAsked(Struct, frozen=True):
    """The controller asks for these gaps of a fragment; without any the fragment is to be compared."""

    fragment: Fragment
    gaps: Sequence[Gap]


class SweepAsked(Struct, frozen=True):
    """The controller asks for a sweep; `halt`: let go of what has not been sent."""

    sweep: int
    halt: bool = False


class DecisionNeeded(Struct, Generic[Q], frozen=True):
    """A solitary task asks whether a record is a duplicate."""

    question: Q


class DecisionArrived(Struct, Generic[D], frozen=True):
    """The answer to this task's question of that number."""

    number: int
    decision: D


class DeciderJoined(Struct, frozen=True):
    """A link to the decider, or from it, stands anew."""


class AnswerArrived(Struct, Generic[B], frozen=True):
    """The decider's answer to the question of that number, or its partitions'; None: nothing is let through."""

    number: int
    answer: B | None


class IndexServes(Struct, frozen=True):
    """What the task remembers waited for its epoch, and serves from now on."""


class StopAsked(Struct, frozen=True):
    """The task is to end."""


class LinkOpened(Struct, frozen=True):
    """An input link stands."""

    link: str


class InputClosed(Struct, frozen=True):
    """An input link is gone; nothing more comes on it."""

    link: str


class Turned(Struct, frozen=True):
    """The task has nothing in hand. `unsent`: a batch waits for credit."""

    unsent: bool


class PageListed(Struct, frozen=True):
    """A page of the listing was reported; `last`: there is no other."""

    last: bool


class ListingPaused(Struct, frozen=True):
    """There is nothing more to list now; there may be later."""


class BatchRead(Struct, Generic[B], frozen=True):
    """The source has read a batch: `item`, or None where `reading` knows it already, as of small files."""

    batch: B
    item: Range | None


class FrameArrived(Struct, frozen=True):
    """A frame came in on a link: the marker of a sweep, or data (None)."""

    link: str
    epoch: int
    sweep: int | None


class BatchReceived(Struct, Generic[B], frozen=True):
    """The batch of a frame."""

    batch: B


class BatchProcessed(Struct, Generic[B], frozen=True):
    """The stages have run, those before dedup where the task asks; `kept`: a record is left."""

    batch: B
    kept: bool


class BatchDecided(Struct, Generic[B], frozen=True):
    """The stages from dedup on have run, with the decision that was asked for."""

    batch: B


class MarkersSent(Struct, frozen=True):
    """Every output link has taken the marker of a sweep."""

    sweep: int


class ListPage(Struct, frozen=True):
    """Report a page of the listing."""

    listing: int


class ReadNext(Struct, frozen=True):
    """Read a batch of what `reading` gives."""


class ReceiveFrame(Struct, frozen=True):
    """Take a frame from some input link."""


class ReceiveBatch(Struct, frozen=True):
    """Decode the frame that has arrived."""


class RefuseFrame(Struct, frozen=True):
    """The frame is not for this task, which fails."""

    reason: str


class RunStages(Struct, Generic[B], frozen=True):
    """Run the stages on a batch, up to dedup where the task asks."""

    batch: B


class ResumeStages(Struct, Generic[B, D], frozen=True):
    """Run the stages from dedup on, with the decider's answer."""

    batch: B
    decision: D


class AskDecider(Struct, Generic[B], frozen=True):
    """Ask the decider which records of this batch are duplicates; `again`: the answer may have been lost.

    A decider whose index has partitions asks those, for a batch or for a record of a solitary task.
    """

    number: int
    batch: B
    again: bool = False


class LetThroughNone(Struct, Generic[B], frozen=True):
    """Answer that no record of this batch is let through: this decider is fenced."""

    batch: B


class HoldBatch(Struct, Generic[B], frozen=True):
    """Give a batch to the sink."""

    batch: B


class SendBatch(Struct, Generic[B], frozen=True):
    """Send a batch to each stage that follows; `decided`: only past the decider, the others have it already."""

    batch: B
    decided: bool = False


class SendUnsent(Struct, frozen=True):
    """Send what waits for credit."""


class SendMarkers(Struct, frozen=True):
    """Send the marker of a sweep on every output link that has not taken it."""

    sweep: int


class DropInput(Struct, frozen=True):
    """Let go of what was read ahead: the source was told to halt."""


class AnswerSweep(Struct, frozen=True):
    """Say what was not sent, what the sink holds, and whether nothing is let through before the epoch is raised."""

    sweep: int
    pending: tuple[tuple[bytes, tuple[Gap, ...]], ...]
    held: tuple[Range, ...]
    fenced: bool = False


class PutQuestion(Struct, Generic[B], frozen=True):
    """Ask whether the record of this batch is a duplicate."""

    number: int
    batch: B


class Decide(Struct, Generic[Q], frozen=True):
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
