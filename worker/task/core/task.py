"""What a task does next: the pure half of `worker/task/task.py`, which the simulator drives as well.

One batch at a time goes through a task. It is read or received, run through the stages, and then held by the sink or
sent. `ORDER` says what comes first; while one state lasts, nothing of those below it is begun. The batches, the frames
and the questions are the shell's own and pass through unopened. The parts are machines of their own: what a source was
given, which markers came, the question that waits, what the sink holds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar, assert_never

from headrace.store.ledger import Range
from headrace.worker.core import arrivals
from headrace.worker.task.core.dedup_client import Asking
from headrace.worker.task.core.held import HeldBatches
from headrace.worker.task.core.messages import (
    AnswerSweep,
    BatchDecided,
    BatchProcessed,
    BatchRead,
    BatchReceived,
    Command,
    Decide,
    DecisionArrived,
    DecisionAsked,
    DropInput,
    Event,
    FrameArrived,
    HoldBatch,
    LinkClosed,
    LinkOpened,
    ListAsked,
    ListingPaused,
    ListPage,
    MarkersSent,
    PageListed,
    PutQuestion,
    ReadAsked,
    ReadNext,
    ReceiveBatch,
    ReceiveFrame,
    RefuseFrame,
    ResumeStages,
    RunStages,
    SendBatch,
    SendMarkers,
    SendUnsent,
    StopAsked,
    SweepAsked,
    Turned,
)
from headrace.worker.task.core.source import Reading
from headrace.worker.task.core.sweep import Sweeping

#: Seconds after which a source that had nothing more to list is asked again.
LISTING_AGAIN_S = 0.5


B = TypeVar("B")
D = TypeVar("D")


class Dedup(Enum):
    """What a task has to do with duplicates."""

    NONE = "none"
    #: Its stage decides.
    DECIDES = "decides"
    #: It is given batches and lets nothing through, until the epoch is raised.
    FENCED = "fenced"
    #: It is a solitary task, and asks the one that decides.
    ASKS = "asks"


class TaskState(Enum):
    """What a task is at."""

    STOPPED = "stopped"
    SENDING = "sending"
    SWEEPING = "sweeping"
    FULL = "full"
    ASKING = "asking"
    LISTING = "listing"
    READING = "reading"
    RECEIVING = "receiving"
    IDLE = "idle"


class TaskCore(Generic[B, D]):
    """The state machine of one attempt. `outputs`: stages follow that are not of this task."""

    def __init__(
        self,
        epoch: int,
        *,
        reads: bool,
        sink: HeldBatches[Any, Any] | None = None,
        outputs: bool = False,
        dedup: Dedup = Dedup.NONE,
    ) -> None:
        self.epoch = epoch
        self.reading, self.sink = Reading(), sink
        self._reads, self._outputs, self._dedup = reads, outputs, dedup
        self._sweeping, self._asking = Sweeping(), Asking()
        #: The range of the batch at hand, until it is passed on.
        self._item: Range | None = None
        #: The record that waits for a decision, and the decision.
        self._undecided: B | None = None
        self._decision: D | None = None
        self._listing: int | None = None
        self._listing_at = 0.0
        self._stopped = False

    def state(self, now: float, *, unsent: bool) -> TaskState:
        """What the task is at."""
        return next(state for state, holds in ORDER if holds(self, now, unsent))

    def wake_at(self, now: float) -> float | None:
        """When it may be at something else without an event from outside."""
        times = [self.sink.wake_at() if self.sink is not None else None]
        if self.sink is None or self.sink.accepts:
            times.append(self._asking.wake_at())
        if self._listing is not None and self._listing_at > now:
            times.append(self._listing_at)
        return min((time for time in times if time is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it. Carry out each before the next event."""
        match event:
            case Turned():
                return self._turn(self.state(now, unsent=event.unsent), now)
            case BatchRead():
                return self._begin(event.batch, event.item)
            case BatchReceived():
                return self._begin(event.batch, None)
            case BatchProcessed():
                return self._processed(event, now)
            case BatchDecided():
                return self._pass_on(event.batch)
            case FrameArrived():
                return self._arrived(event)
            case MarkersSent():
                return self._swept(event.sweep)
            case DecisionAsked():
                return [Decide(event.question)] if self._dedup is Dedup.DECIDES else []
            case _:
                self._note(event, now)
                return []

    def _note(
        self,
        event: ListAsked
        | ReadAsked
        | SweepAsked
        | DecisionArrived[Any]
        | StopAsked
        | LinkOpened
        | LinkClosed
        | PageListed
        | ListingPaused,
        now: float,
    ) -> None:
        """What changes what the next turn does, and nothing at once."""
        match event:
            case ListAsked():
                self._listing, self._listing_at = event.listing, now
            case ReadAsked():
                self.reading.give(event.fragment, event.gaps)
            case SweepAsked():
                self._sweeping.asked(event.sweep, halt=event.halt)
            case DecisionArrived():
                if self._asking.answered(event.number):
                    self._decision = event.decision
            case StopAsked():
                self._stopped = True
            case LinkOpened():
                self._sweeping.opened(event.link)
            case LinkClosed():
                self._sweeping.closed(event.link)
            case PageListed():
                self._listing = None if event.last else self._listing
            case ListingPaused():
                self._listing_at = now + LISTING_AGAIN_S
            case _:
                assert_never(event)

    # -- one turn --

    def _turn(self, state: TaskState, now: float) -> list[Command]:
        match state:
            case TaskState.SENDING:
                return [SendUnsent()]
            case TaskState.SWEEPING:
                return self._sweep()
            case TaskState.ASKING:
                return self._ask(now)
            case TaskState.LISTING:
                assert self._listing is not None
                return [ListPage(self._listing)]
            case TaskState.READING:
                return [ReadNext()]
            case TaskState.RECEIVING:
                return [ReceiveFrame()]
            case TaskState.STOPPED | TaskState.FULL | TaskState.IDLE:
                return []
            case _:
                assert_never(state)

    def _sweep(self) -> list[Command]:
        sweep, commands = self._sweeping.due(), list[Command]()
        assert sweep is not None
        if self._sweeping.halting and (self.reading.fragments or self._undecided is not None):
            self.reading.halt()
            self._asking.let_go()
            self._undecided = self._decision = self._item = None
            commands.append(DropInput())
        return [*commands, *([SendMarkers(sweep)] if self._outputs else self._swept(sweep))]

    def _swept(self, sweep: int) -> list[Command]:
        self._sweeping.passed(sweep)
        held = tuple(self.sink.ranges()) if self.sink is not None else ()
        return [AnswerSweep(sweep, tuple(self.reading.pending()), held)]

    def _ask(self, now: float) -> list[Command]:
        assert self._undecided is not None
        if self._asking.due(now):
            return [PutQuestion(self._asking.number, self._undecided)]
        if self._decision is None:
            return []
        batch, decision = self._undecided, self._decision
        self._undecided = self._decision = None
        return [ResumeStages(batch, decision)]

    # -- the way of a batch --

    def _arrived(self, event: FrameArrived) -> list[Command]:
        if fault := arrivals.epoch_fault(event.link, event.epoch, self.epoch):
            return [RefuseFrame(fault)]
        if event.sweep is None:
            return [ReceiveBatch()]
        self._sweeping.arrived(event.link, event.sweep)
        return []

    def _begin(self, batch: B, item: Range | None) -> list[Command]:
        self._item = item
        if self._dedup is Dedup.FENCED:
            # It is open and held by nobody, and read again when the epoch is raised.
            self._sent()
            return []
        return [RunStages(batch)]

    def _processed(self, event: BatchProcessed[B], now: float) -> list[Command]:
        if self._dedup is Dedup.ASKS and event.kept:
            # It is pending until it is decided: a sweep says so.
            self._undecided = event.batch
            self._asking.ask(now)
            return []
        return self._pass_on(event.batch)

    def _pass_on(self, batch: B) -> list[Command]:
        self._sent()
        return [HoldBatch(batch) if self.sink is not None else SendBatch(batch)]

    def _sent(self) -> None:
        """The batch is on its way, and pending no longer."""
        item, self._item = self._item, None
        if item is not None:
            self.reading.sent(item.fragment, item.first, item.end, item.stop)


#: The order of a turn: a task is at the first of these that holds. Nothing is read past a batch that waits for credit,
#: nor past a marker that waits for room: what came behind a marker would be counted as lost.
ORDER: tuple[tuple[TaskState, Callable[[TaskCore[Any, Any], float, bool], bool]], ...] = (
    (TaskState.STOPPED, lambda core, _now, _unsent: core._stopped),
    (TaskState.SENDING, lambda _core, _now, unsent: unsent),
    (TaskState.SWEEPING, lambda core, _now, _unsent: core._sweeping.due() is not None),
    (TaskState.FULL, lambda core, _now, _unsent: core.sink is not None and not core.sink.accepts),
    (TaskState.ASKING, lambda core, _now, _unsent: core._undecided is not None),
    (TaskState.LISTING, lambda core, now, _unsent: core._listing is not None and now >= core._listing_at),
    (TaskState.READING, lambda core, _now, _unsent: core.reading.fragments > 0),
    (TaskState.RECEIVING, lambda core, _now, _unsent: not core._reads),
    (TaskState.IDLE, lambda _core, _now, _unsent: True),
)
