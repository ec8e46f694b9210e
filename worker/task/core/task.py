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
from headrace.worker.task.core import messages
from headrace.worker.task.core.asked import WAITING_MAX, AskedBatches
from headrace.worker.task.core.held import HeldBatches
from headrace.worker.task.core.source import ReadQueue

#: Seconds after which a source that had nothing more to list is asked again.
LISTING_AGAIN_S = 0.5


#: Seconds without an answer after which a question is asked again; the same question has the same answer.
ASK_AGAIN_S = 1.0

B = TypeVar("B")
D = TypeVar("D")


class DedupRole(Enum):
    """What a task has to do with duplicates."""

    NONE = "none"
    #: Its stage decides.
    DECIDES = "decides"
    #: Its stage decides, and asks the partitions of its index first, for one batch at a time.
    CONSULTS = "consults"
    #: It is given batches and lets nothing through, until the epoch is raised.
    FENCED = "fenced"
    #: It asks the one that decides, a batch at a time, over links.
    ASKS = "asks"
    #: It is a solitary task, and asks by way of the controller.
    ASKS_ALONE = "asks alone"


class TaskState(Enum):
    """What a task is at."""

    STOPPED = "stopped"
    SENDING = "sending"
    RESUMING = "resuming"
    WAITING = "waiting"
    SWEEPING = "sweeping"
    FULL = "full"
    ASKING = "asking"
    LISTING = "listing"
    READING = "reading"
    RECEIVING = "receiving"
    IDLE = "idle"


class SweepMarkers:
    """Markers on their way through the task: which has come in on which input (`controller/core/run/input/intake.py`).

    A sweep is due when the controller has asked for it and every input has brought its marker. A source has no inputs
    and is asked alone. A marker of an abandoned sweep is lower than the one asked for and moves nothing.
    """

    def __init__(self) -> None:
        self._asked = 0
        #: Whether the sweep that is due wants sources to let go of what they have not sent.
        self.halting = False
        self._done = 0
        self._inputs: dict[str, int] = {}

    def asked(self, sweep: int, *, halt: bool = False) -> None:
        """The controller asks for a sweep; `halt`: let go of what has not been sent."""
        if sweep > self._asked:
            self._asked, self.halting = sweep, halt

    def opened(self, link: str) -> None:
        """An input link stands."""
        self._inputs.setdefault(link, 0)

    def closed(self, link: str) -> None:
        """An input link is gone; nothing more comes on it."""
        self._inputs.pop(link, None)

    def arrived(self, link: str, sweep: int) -> None:
        """A marker came in, behind all that was sent before it on this link."""
        if link in self._inputs:
            self._inputs[link] = max(self._inputs[link], sweep)

    def due(self) -> int | None:
        """The sweep to pass on and answer now."""
        if self._asked > self._done and all(seen >= self._asked for seen in self._inputs.values()):
            return self._asked
        return None

    def passed(self, sweep: int) -> None:
        """The marker was passed on and the answer given."""
        self._done = max(self._done, sweep)


class PendingQuestion:
    """The one question that a solitary task may have on its way to the decider.

    Only the source has its record meanwhile, and has not sent it: a sweep says so, and one that halts lets go of it. An
    answer to any question but the last is of no use.
    """

    def __init__(self) -> None:
        #: Of the last question.
        self.number = 0
        self._due_at: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether a question has no answer yet."""
        return self._due_at is not None

    def ask(self, now: float) -> int:
        """There is a question, to be put at once; its number."""
        self.number += 1
        self._due_at = now
        return self.number

    def wake_at(self) -> float | None:
        """When it is to be put, for the first time or again."""
        return self._due_at

    def due(self, now: float) -> bool:
        """Whether it is to be put now; not again before a while has passed."""
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at = now + ASK_AGAIN_S
        return True

    def answered(self, number: int) -> bool:
        """An answer came; whether it is to the question that waits."""
        if self._due_at is None or number != self.number:
            return False
        self._due_at = None
        return True

    def let_go(self) -> None:
        """The record is to be read again by whoever is told to: its answer is of no use."""
        self._due_at = None


def epoch_fault(link: str, frame_epoch: int, epoch: int) -> str:
    """Why a task of `epoch` refuses a frame; empty where it takes it.

    A frame of another epoch holds what was read for a task that is fenced off by now: its records are read again.
    """
    if frame_epoch == epoch:
        return ""
    return f"link {link}: a frame of epoch {frame_epoch}, this task is of {epoch}"


class TaskCore(Generic[B, D]):
    """The state machine of one attempt. `outputs`: stages follow that are not of this task."""

    def __init__(
        self,
        epoch: int,
        *,
        reads: bool,
        sink: HeldBatches[Any, Any] | None = None,
        outputs: bool = False,
        dedup: DedupRole = DedupRole.NONE,
        attempt: int = 0,
        waits: bool = False,
    ) -> None:
        self.epoch = epoch
        #: Whether what it remembers waits for its epoch: it takes no question before.
        self._waits_for_epoch = waits
        self.reading, self.sink = ReadQueue(), sink
        self._reads, self._outputs, self._dedup = reads, outputs, dedup
        self._markers, self._question = SweepMarkers(), PendingQuestion()
        self.asked = AskedBatches[Any](attempt, 1 if dedup is DedupRole.CONSULTS else WAITING_MAX)
        #: In a decider: records of solitary tasks that wait until the batch at hand is decided.
        self._decisions: list[Any] = []
        #: The range of the batch at hand, until it is passed on.
        self._item: Range | None = None
        #: The record that waits for a decision, and the decision.
        self._undecided: B | None = None
        self._decision: D | None = None
        self._listing: int | None = None
        self._listing_at = 0.0
        self._stopped = False

    @property
    def due(self) -> bool:
        """Whether a sweep is to be passed on and answered."""
        return self._markers.due() is not None

    def state(self, now: float, *, unsent: bool) -> TaskState:
        """What the task is at."""
        return next(state for state, holds in ORDER if holds(self, now, unsent))

    def wake_at(self, now: float) -> float | None:
        """When it may be at something else without an event from outside."""
        times = [self.sink.wake_at() if self.sink is not None else None]
        if self.sink is None or self.sink.accepts:
            times.append(self._question.wake_at())
        if self._listing is not None and self._listing_at > now:
            times.append(self._listing_at)
        return min((time for time in times if time is not None), default=None)

    def handle(self, event: messages.Event, now: float) -> list[messages.Command]:
        """Take one event; give the commands that follow from it. Carry out each before the next event."""
        match event:
            case messages.Turned():
                return self._turn(self.state(now, unsent=event.unsent), now)
            case messages.BatchRead():
                return self._begin(event.batch, event.item)
            case messages.BatchReceived():
                return self._begin(event.batch, None)
            case messages.BatchProcessed():
                return self._processed(event, now)
            case messages.BatchDecided():
                return self._pass_on(event.batch, decided=self._dedup is DedupRole.ASKS)
            case messages.DeciderJoined():
                return [messages.AskDecider(*question, again=True) for question in self.asked.unanswered()]
            case messages.FrameArrived():
                return self._arrived(event)
            case messages.MarkersSent():
                return self._swept(event.sweep)
            case messages.DecisionNeeded():
                return self._asked_alone(event.question)
            case messages.AnswerArrived() if self._dedup is DedupRole.CONSULTS and event.answer is None:
                return self._fence()
            case _:
                self._note(event, now)
                return []

    def _note(
        self,
        event: messages.ListAsked
        | messages.ReadAsked
        | messages.SweepAsked
        | messages.DecisionArrived[Any]
        | messages.AnswerArrived[Any]
        | messages.IndexServes
        | messages.StopAsked
        | messages.LinkOpened
        | messages.InputClosed
        | messages.PageListed
        | messages.ListingPaused,
        now: float,
    ) -> None:
        """What changes what the next turn does, and nothing at once."""
        match event:
            case messages.ListAsked():
                self._listing, self._listing_at = event.listing, now
            case messages.ReadAsked():
                self.reading.give(event.fragment, event.gaps)
            case messages.SweepAsked():
                self._markers.asked(event.sweep, halt=event.halt)
            case messages.DecisionArrived():
                if self._question.answered(event.number):
                    self._decision = event.decision
            case messages.AnswerArrived():
                self.asked.answered(event.number, event.answer)
            case messages.IndexServes():
                self._waits_for_epoch = False
            case messages.StopAsked():
                self._stopped = True
            case messages.LinkOpened():
                self._markers.opened(event.link)
            case messages.InputClosed():
                self._markers.closed(event.link)
            case messages.PageListed():
                self._listing = None if event.last else self._listing
            case messages.ListingPaused():
                self._listing_at = now + LISTING_AGAIN_S
            case _:
                assert_never(event)

    # -- one turn --

    def _turn(self, state: TaskState, now: float) -> list[messages.Command]:
        match state:
            case TaskState.SENDING:
                return [messages.SendUnsent()]
            case TaskState.RESUMING:
                return [messages.ResumeStages(*self.asked.take()), *self._next_decision()]
            case TaskState.SWEEPING:
                return self._sweep()
            case TaskState.ASKING:
                return self._ask(now)
            case TaskState.LISTING:
                assert self._listing is not None
                return [messages.ListPage(self._listing)]
            case TaskState.READING:
                return [messages.ReadNext()]
            case TaskState.RECEIVING:
                return [messages.ReceiveFrame()]
            case TaskState.STOPPED | TaskState.WAITING | TaskState.FULL | TaskState.IDLE:
                return []
            case _:
                assert_never(state)

    def _sweep(self) -> list[messages.Command]:
        sweep, commands = self._markers.due(), list[messages.Command]()
        assert sweep is not None
        if self._markers.halting and (self.reading.fragments or self._undecided is not None):
            self.reading.halt()
            self._question.let_go()
            self._undecided = self._decision = self._item = None
            commands.append(messages.DropInput())
        return [*commands, *([messages.SendMarkers(sweep)] if self._outputs else self._swept(sweep))]

    def _swept(self, sweep: int) -> list[messages.Command]:
        self._markers.passed(sweep)
        held = tuple(self.sink.ranges()) if self.sink is not None else ()
        return [messages.AnswerSweep(sweep, tuple(self.reading.pending()), held, self._dedup is DedupRole.FENCED)]

    def _ask(self, now: float) -> list[messages.Command]:
        assert self._undecided is not None
        if self._question.due(now):
            return [messages.PutQuestion(self._question.number, self._undecided)]
        if self._decision is None:
            return []
        batch, decision = self._undecided, self._decision
        self._undecided = self._decision = None
        return [messages.ResumeStages(batch, decision)]

    # -- the way of a batch --

    def _arrived(self, event: messages.FrameArrived) -> list[messages.Command]:
        if fault := epoch_fault(event.link, event.epoch, self.epoch):
            return [messages.RefuseFrame(fault)]
        if event.sweep is None:
            return [messages.ReceiveBatch()]
        self._markers.arrived(event.link, event.sweep)
        return []

    def _begin(self, batch: B, item: Range | None) -> list[messages.Command]:
        self._item = item
        if self._dedup is DedupRole.FENCED:
            # It is open and held by nobody, and read again when the epoch is raised.
            self._sent()
            return [messages.LetThroughNone(batch)]
        return [messages.RunStages(batch)]

    def _processed(self, event: messages.BatchProcessed[B], now: float) -> list[messages.Command]:
        if self._dedup is DedupRole.ASKS_ALONE and event.kept:
            # It is pending until it is decided: a sweep says so.
            self._undecided = event.batch
            self._question.ask(now)
            return []
        if self._dedup in (DedupRole.ASKS, DedupRole.CONSULTS) and event.kept:
            # It is on its way: a sweep waits until it is passed on.
            self._sent()
            return [messages.AskDecider(self.asked.ask(event.batch), event.batch)]
        return self._pass_on(event.batch)

    def _asked_alone(self, question: Any) -> list[messages.Command]:
        if self._waits_for_epoch:
            # It is asked again.
            return []
        if self._dedup is DedupRole.CONSULTS:
            if question not in self._decisions:
                self._decisions.append(question)
            return self._next_decision()
        return [messages.Decide(question)] if self._dedup is DedupRole.DECIDES else []

    def _next_decision(self) -> list[messages.Command]:
        if self.asked.full or not self._decisions:
            return []
        question = self._decisions.pop(0)
        return [messages.AskDecider(self.asked.ask(question), question)]

    def _fence(self) -> list[messages.Command]:
        """A partition was lost, with claims: nothing is let through from now on."""
        dropped, self.asked = [batch for _, batch in self.asked.unanswered()], AskedBatches[Any]()
        self._dedup = DedupRole.FENCED
        self._decisions.clear()
        return [messages.LetThroughNone(batch) for batch in dropped]

    @property
    def _waits(self) -> bool:
        """Whether nothing goes on before an answer comes. A decider has no batch that a sweep asks for."""
        if self._waits_for_epoch:
            return not self.due
        if self._dedup is DedupRole.CONSULTS:
            return self.asked.full and not self.due
        return self.asked.full or (self.due and not self.asked.empty)

    def _pass_on(self, batch: B, *, decided: bool = False) -> list[messages.Command]:
        self._sent()
        return [messages.HoldBatch(batch) if self.sink is not None else messages.SendBatch(batch, decided)]

    def _sent(self) -> None:
        """The batch is on its way, and pending no longer."""
        item, self._item = self._item, None
        if item is not None:
            self.reading.sent(item.fragment, item.first, item.end, item.stop)


#: The order of a turn: a task is at the first of these that holds. Nothing is read past a batch that waits for credit,
#: nor past a marker that waits for room, or for batches before it: what came behind a marker would be counted as lost.
ORDER: tuple[tuple[TaskState, Callable[[TaskCore[Any, Any], float, bool], bool]], ...] = (
    (TaskState.STOPPED, lambda core, _now, _unsent: core._stopped),
    (TaskState.SENDING, lambda _core, _now, unsent: unsent),
    (TaskState.RESUMING, lambda core, _now, _unsent: core.asked.ready and (core.sink is None or core.sink.accepts)),
    (TaskState.WAITING, lambda core, _now, _unsent: core._waits),
    (TaskState.SWEEPING, lambda core, _now, _unsent: core.due),
    (TaskState.FULL, lambda core, _now, _unsent: core.sink is not None and not core.sink.accepts),
    (TaskState.ASKING, lambda core, _now, _unsent: core._undecided is not None),
    (TaskState.LISTING, lambda core, now, _unsent: core._listing is not None and now >= core._listing_at),
    (TaskState.READING, lambda core, _now, _unsent: core.reading.fragments > 0),
    (TaskState.RECEIVING, lambda core, _now, _unsent: not core._reads),
    (TaskState.IDLE, lambda _core, _now, _unsent: True),
)
