"""A simulated task: the core, the inbox and the outbox that tasks run, in a shell of virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from headrace.chaos.sim.network import MARKER_BYTES, SimulatedFrame, SimulatedLink
from headrace.chaos.sim.nodes.deciders import SimulatedAnswer, SimulatedDecider, SimulatedPartition, resumed, role_of
from headrace.chaos.sim.nodes.parts import Cluster, core_of
from headrace.chaos.sim.nodes.sinks import SimulatedSink
from headrace.chaos.sim.nodes.sources import SimulatedSource
from headrace.chaos.sim.world import ASKERS, DEDUPS, FILTER, SOURCE, Part
from headrace.controller.core.messages import dedup, messages as core
from headrace.pipeline import Pipeline
from headrace.store.ledger import Range
from headrace.worker.links import Inbox, Outbox
from headrace.worker.task import (
    DedupRole,
    PartitionRequests,
    TaskCore,
    TaskState,
    epoch_fault,
    messages,
    sink_core,
)

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.workers import SimulatedWorker

#: Seconds that a source takes for a batch, and any stage for a step.
READ_S, STEP_S = (0.05, 0.4), (0.001, 0.05)

_downstream: dict[tuple[str, str], tuple[str, ...]] = {}


def _following(order: core.StartTask) -> tuple[str, ...]:
    """The stages that records flow to from a task; a pipeline's version is the hash of what says so."""
    key = order.version, order.stages[-1]
    if key not in _downstream:
        _downstream[key] = Pipeline.from_dict(order.pipeline).flows_to(order.stages[-1])
    return _downstream[key]


class SimulatedTask:
    """One attempt."""

    def __init__(self, worker: SimulatedWorker, order: core.StartTask) -> None:
        self.cluster: Cluster = worker.cluster.of(order.task)
        self._corpus = self.cluster.corpus
        self.clock = worker.clock
        #: Until when it is stopped and does not know it, and what waits for it meanwhile, in order.
        self._frozen_until = 0.0
        self._waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.name, self.attempt = order.task, order.attempt
        self.label = f"{order.task.split('/')[1]}#{order.attempt & 0xFFFFF}"
        self.epoch, self.version, self.stages, self._waits = order.epoch, order.version, order.stages, order.waits
        self.alive, self.ready = True, False
        self.alone = order.alone
        #: What its stages had in hand when it died, and why its worker killed it, if it did.
        self.in_hand: tuple[core.InHand, ...] = ()
        self.killed_for = ""
        sinks = [stage for stage in order.stages if stage in self._corpus.sinks]
        self.sink = SimulatedSink(self, sinks[0]) if sinks else None
        self.decider: SimulatedDecider | None = None
        self.partition: SimulatedPartition | None = None
        parts, texts = self._corpus.partitions, self._corpus.texts
        #: The dedup stages that it has, or in a solitary task comes to, and of these the one that it stands before.
        self._dedups, self._stands = [stage for stage in DEDUPS if stage in order.stages], 0
        if self._dedups and texts is not None and not order.alone:
            behind, number, fenced = self._corpus.sinks, DEDUPS.index(self._dedups[0]), order.fenced
            if order.replica:
                share = order.replica - 1
                self.partition = SimulatedPartition(self, texts, number, behind, share, parts, fenced=fenced)
            else:
                self.decider = SimulatedDecider(self, texts, number, behind, parts, fenced=fenced)
        self._partitions: PartitionRequests[SimulatedFrame, SimulatedAnswer] | None = None
        if self.decider is not None and parts:
            self._partitions = PartitionRequests(parts, _cut)
        self._consulted = 0
        self._inbox = Inbox[SimulatedFrame](self._input_closed, _cut)
        self._outbox = Outbox[SimulatedFrame](_following(order), _cut)
        pairs = zip(ASKERS, DEDUPS[: self._corpus.dedups], strict=False)
        asks = next((stage for task, stage in pairs if task in order.stages and not order.alone), "")
        self._asks = asks
        self._questions = Outbox[SimulatedFrame]((asks,), _cut) if asks else None
        self._answers = Inbox[SimulatedFrame](lambda _link: None, _cut)
        #: In a task that decides: the link on which each asking task is answered, and what waits for it.
        self._askers: dict[str, tuple[SimulatedLink, deque[SimulatedFrame]]] = {}
        self._early: dict[str, deque[SimulatedFrame]] = {}
        self.core = TaskCore[SimulatedFrame, dedup.Decision](
            order.epoch,
            reads=SOURCE in order.stages,
            sink=self.sink.core if self.sink is not None else None,
            outputs=bool(_following(order)),
            dedup=DedupRole.ASKS if asks else role_of(order, consults=self._partitions is not None),
            attempt=order.attempt,
            waits=order.waits,
        )
        self._source = SimulatedSource(self, self.core.reading)
        self._worker = worker
        self._links: dict[str, SimulatedLink] = {}
        #: The frame that has arrived, and on which link.
        self._frame: SimulatedFrame | None = None
        self._came_on = ""
        #: In the solitary task: the records that are poison, by stage, and fragments whose sink died.
        self._sentences: set[tuple[bytes, int, str]] = set()
        self._trials: set[bytes] = set()
        self._told_at = 0.0
        self._timer_at: float | None = None
        self._awake = False

    # -- its life --

    def begin(self) -> None:
        """The process has come up and has built its stages."""
        if self.alive:
            if (index := self.decider or self.partition) is not None:
                index.begin(None if self._waits else self.epoch)
            said = self.cluster.checker.builds.built(self.name, self.attempt, self.version)
            self.ready = isinstance(said, core.TaskReady)
            self.say(said)
            if not self.ready:
                self.die(1, "could not be built")
            self.wake()

    def die(self, code: int, story: str) -> None:
        """The process is gone; the worker learns of it a little later."""
        if self.alive:
            self.alive = False
            # A solitary task that others kill twice at one record is a known weakness (docs/design/solitary.md).
            if self.sink is not None and not self.in_hand and not self.alone:
                self.in_hand = tuple(core.InHand(self.sink.name, item) for item in self.sink.in_hand())
            self.cluster.world.note(self.label, f"dies with {code}:", story)
            self._worker.task_gone(self, code)

    def freeze(self, until: float) -> None:
        """Stop the process until then."""
        if until > self._frozen_until:
            self._frozen_until = until
            self.cluster.world.at(until, self._thaw)

    def sleeps(self, action: Callable[..., None], *arguments: object) -> bool:
        """Whether it is frozen; then the action comes when it wakes, behind what came before."""
        if self.cluster.world.now < self._frozen_until or self._waiting:
            self._waiting.append((action, arguments))
            return True
        return False

    def _thaw(self) -> None:
        if self.cluster.world.now >= self._frozen_until:
            waiting, self._waiting = self._waiting, deque()
            for action, arguments in waiting:
                action(*arguments)

    def outlives(self, stage: str, parts: Sequence[Part], hand: Range | None = None) -> bool:
        """Whether the process lives on after a stage has had these records; `hand` is what it said that it took."""
        corpus = self._corpus
        if not any(corpus.kills(stage, part, self.cluster.world) for part in parts):
            return True
        self.in_hand = tuple(core.InHand(stage, item) for item in ([hand] if hand else [part.item for part in parts]))
        hangs = corpus.hangs and stage == FILTER
        self.killed_for = "it did not return" if hangs else ""
        self.die(-9 if hangs else -11, f"killed by a record in {stage}")
        return False

    def poison(self, fragment: bytes, ordinal: int, stage: str) -> bool:
        """Whether a record is poison at a stage."""
        return (fragment, ordinal, stage) in self._sentences

    def say(self, event: core.Event) -> None:
        """Send an event to the controller."""
        if self.alive:
            self._worker.said(event)

    def deliver(self, message: object) -> None:
        """Something for this task comes down its control channel, in order."""
        world = self.cluster.world
        self._told_at = max(self._told_at, world.now + world.between(0.0005, 0.01))
        world.at(self._told_at, self._told, message)

    def wake(self) -> None:
        """There may be something to do."""
        if not self._awake and self.alive and self.ready:
            self._awake = True
            # A batch costs a source more time than a stage behind it: so faults meet all of a run's life.
            slow = SOURCE in self.stages and self._outbox.empty and not self.alone
            self.cluster.world.within(*(READ_S if slow else STEP_S), self._turn)

    def _turn(self) -> None:
        if self.alive and self.sleeps(self._turn):
            return
        self._awake = False
        if not self.alive:
            return
        moved = self._consult()
        unsent = not self._outbox.empty or (self._questions is not None and not self._questions.empty)
        if not self.alive:
            return
        if self.core.state(self._now(), unsent=unsent) is TaskState.STOPPED:
            self.die(0, "was told to stop")
        elif self.do(messages.Turned(unsent)) or moved:
            self.wake()
        self._set_timer()

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at(self._now())
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self.cluster.world.at(self.clock.when(wake_at), self._tick)

    def _tick(self) -> None:
        if self.alive and self.sleeps(self._tick):
            return
        self._timer_at = None
        if self.alive and self.sink is not None:
            self.sink.do(sink_core.SealTimePassed())
        self.wake()

    def _now(self) -> float:
        return self.clock.at(self.cluster.world.now)

    # -- what the controller and the worker tell it --

    def _told(self, message: object) -> None:
        if not self.alive or self.sleeps(self._told, message):
            return
        match message:
            case core.ListSource():
                self._source.list(message)
                self.do(messages.ListAsked(message.listing))
            case core.ReadFragment():
                for item in message.poison:
                    self._sentences.add((message.fragment.id, item.ordinal, item.stage))
                if message.trial:
                    self._trials.add(message.fragment.id)
                self._source.check(message)
                self.do(messages.ReadAsked(message.fragment, message.gaps))
            case core.SweepTask():
                self.do(messages.SweepAsked(message.sweep, message.halt))
            case core.StopTask():
                self.do(messages.StopAsked())
            case ("open", SimulatedLink() as link):
                self._open(link)
            case ("close", SimulatedLink() as link):
                self._close(link)
            case _ if self.sink is not None and self.sink.told(message):
                pass
            case _:
                self._told_of_duplicates(message)
        self.wake()

    def _told_of_duplicates(self, message: object) -> None:
        match message:
            case core.ReleaseClaims() if self.decider is not None:
                self.decider.release(message.records)
            case dedup.AskDecision():
                self.do(messages.DecisionNeeded(message))
            case dedup.AnswerDecision():
                self.do(messages.DecisionArrived(message.decision.number, message.decision))
            case dedup.ServeIndex() if (index := self.decider or self.partition) is not None:
                index.begin(message.position)
                self.do(messages.IndexServes())
            case _:
                raise TypeError(f"{self.label} understands no {message}")

    def _open(self, link: SimulatedLink) -> None:
        if link.name in self._links:
            self._close(self._links[link.name])
        self._links[link.name] = link
        if self._questions is not None and self._asks in (link.made.sender_stage, link.made.receiver_stage):
            if link.sender is self:
                self._questions.clear()
                self._questions.open(self._asks, link.name, link)
            else:
                self._answers.open(link.name, link)
            self.do(messages.DeciderJoined())
        elif self._partitions is not None and link.made.sender_stage == link.made.receiver_stage:
            sends = link.sender is self
            self._partitions.open(link.made.receiver if sends else link.made.sender, link.name, link, sends=sends)
            self.do(messages.DeciderJoined())
        elif link.sender is not self:
            self._inbox.open(link.name, link)
            if not self.remembers:
                self.do(messages.LinkOpened(link.name))
        elif self.remembers:
            self._askers[link.made.receiver] = link, self._early.pop(link.made.receiver, deque())
        else:
            self._outbox.open(link.made.receiver_stage, link.name, link)

    def _close(self, link: SimulatedLink) -> None:
        if self._links.get(link.name) is link:
            del self._links[link.name]
            self._outbox.close(link.name)
            self._inbox.close(link.name)
            self._answers.close(link.name)
            if self._questions is not None:
                self._questions.close(link.name)
            if self._partitions is not None:
                self._partitions.close(link.name)
            self._askers = {name: pair for name, pair in self._askers.items() if pair[0] is not link}

    def _input_closed(self, link: str) -> None:
        self.do(messages.InputClosed(link))

    # -- what the core has it do --

    def do(self, event: messages.Event) -> bool:
        """Give the core an event and carry out what follows; whether anything moved."""
        moved = False
        with core_of(self.label, event):
            commands = self.core.handle(event, self._now())
        for command in commands:
            if self.alive:
                moved = self._carry_out(command) or moved
        return moved

    def _carry_out(self, command: messages.Command) -> bool:
        match command:
            case messages.ReceiveFrame():
                return self._inbox.receive(self._received)
            case messages.ReadNext():
                self._source.read()
            case messages.ListPage():
                self._source.page(command.listing)
            case messages.SendUnsent():
                asked = self._questions is not None and self._questions.flush()
                return self._outbox.flush() or asked
            case messages.SendMarkers():
                marker = SimulatedFrame(self.epoch, MARKER_BYTES, sweep=command.sweep)
                return self._outbox.mark(marker, command.sweep) and self.do(messages.MarkersSent(command.sweep))
            case messages.DropInput():
                self._source.close()
                return False
            case messages.AnswerSweep():
                mine = ((self.sink.name, command.held),) if self.sink is not None else ()
                self.say(core.TaskSwept(self.name, self.attempt, command.sweep, command.pending, mine, command.fenced))
            case messages.PutQuestion():
                stage = self._dedups[self._stands]
                question = dedup.Question(command.number, command.batch.fragment, command.batch.first, b"", stage)
                self.say(dedup.DecisionAsked(self.name, self.attempt, question))
                return False
            case messages.Decide():
                if self.decider is not None:
                    self.say(self.decider.asked(command.question))
            case _:
                self._process(command)
        return True

    def _process(self, command: messages.BatchCommand) -> None:
        match command:
            case messages.ReceiveBatch():
                assert self._frame is not None
                self.do(messages.BatchReceived(self._frame))
            case messages.RefuseFrame():
                self.die(1, command.reason)
            case messages.RunStages():
                self._run_stages(command.batch)
            case messages.ResumeStages() if self._partitions is not None:
                self._decided(command.batch, command.decision)
            case messages.ResumeStages():
                self._resume(resumed(command.batch, command.decision, self._stands))
            case messages.AskDecider() if self._partitions is not None:
                self._ask_partitions(self._partitions, command)
            case messages.AskDecider():
                assert self._questions is not None
                self._questions.put(command.batch._replace(number=command.number, quarantined=0))
            case messages.LetThroughNone():
                if self.partition is not None:
                    self._answer(self.partition.refuse(command.batch))
                elif isinstance(command.batch, SimulatedFrame):
                    self._answer(command.batch._replace(records=0))
            case messages.HoldBatch():
                self._hold(command.batch)
            case messages.SendBatch():
                if self.remembers:
                    self._answer(command.batch)
                else:
                    self._outbox.put(command.batch)
            case _:
                assert_never(command)

    def _resume(self, frame: SimulatedFrame) -> None:
        if self.alone and frame.kept and self._stands + 1 < len(self._dedups):
            self._stands += 1
            self.do(messages.BatchProcessed(frame, kept=True))
        else:
            self.do(messages.BatchDecided(frame))

    @property
    def remembers(self) -> bool:
        """Whether it decides on duplicates, or is a partition of the index."""
        return self.decider is not None or self.partition is not None

    def _ask_partitions(
        self, links: PartitionRequests[SimulatedFrame, SimulatedAnswer], command: messages.AskDecider[Any]
    ) -> None:
        assert self.decider is not None
        if command.again:
            links.ask_again()
            return
        self._consulted = command.number
        links.ask(self.decider.requests(command.batch))

    def _partitions_answered(self, answers: list[SimulatedAnswer]) -> None:
        assert self.decider is not None
        fenced = any(answer.holders is None for answer in answers)
        if fenced:
            self.decider.forbid()
        self.do(messages.AnswerArrived(self._consulted, None if fenced else answers))

    def _decided(self, question: SimulatedFrame | dedup.AskDecision, answers: list[SimulatedAnswer]) -> None:
        assert self.decider is not None
        assert self.decider.parted is not None
        self.decider.parted.answered(answers)
        if isinstance(question, SimulatedFrame):
            self.do(messages.BatchDecided(self.decider.decide(question)))
        else:
            self.say(self.decider.asked(question))

    def _partition_answer(self, link: str, frame: SimulatedFrame) -> tuple[int, SimulatedAnswer]:
        if fault := epoch_fault(link, frame.epoch, self.epoch):
            self.die(1, fault)
        answer = frame.message if isinstance(frame.message, SimulatedAnswer) else SimulatedAnswer(0, None)
        return answer.number, answer

    def _consult(self) -> bool:
        """Take every answer that is there, or send those that wait; whether anything moved."""
        moved = False
        while self.alive and self._answers.receive(self._answered):
            moved = True
        if self._partitions is not None:
            moved = self._partitions.flush() or moved
            while self.alive and self._partitions.receive(self._partition_answer, self._partitions_answered):
                moved = True
        for link, waiting in self._askers.values():
            while waiting and link.open and link.try_send(waiting[0]):
                waiting.popleft()
                moved = True
        return moved

    def _answered(self, link: str, frame: SimulatedFrame) -> None:
        if fault := epoch_fault(link, frame.epoch, self.epoch):
            self.die(1, fault)
            return
        self.do(messages.AnswerArrived(frame.number, frame if frame.records else None))

    def _answer(self, frame: SimulatedFrame) -> None:
        if self._came_on in self._links:
            task = self._links[self._came_on].made.sender
            (self._askers[task][1] if task in self._askers else self._early.setdefault(task, deque())).append(frame)
            self.wake()

    def _received(self, link: str, frame: SimulatedFrame) -> None:
        self._frame, self._came_on = frame, link
        event = messages.FrameArrived(link, frame.epoch, frame.sweep if frame.sweep >= 0 else None)
        self.do(event)
        if self.alive:
            self.cluster.checker.frame_taken(self.label, frame.epoch, self.epoch)

    def _run_stages(self, frame: SimulatedFrame) -> None:
        self._stands = 0
        if FILTER in self.stages:
            dead = frame.quarantined | self.poison(frame.fragment, frame.first, FILTER)
            if self._corpus.dies(FILTER) and not self.outlives(FILTER, [_part(frame, frame.kept & ~dead, dead)]):
                return
            passed = self._corpus.passed(self.version, frame.fragment, frame.first, frame.records)
            frame = frame._replace(kept=passed & frame.kept & ~dead, quarantined=dead)
        if self.partition is not None:
            try:
                frame = self.partition.serve(frame)
            except ValueError as error:
                self.die(1, str(error))
                return
            self.do(messages.BatchProcessed(frame, kept=True))
            return
        if self.decider is not None and self._partitions is None:
            frame = self.decider.decide(frame)
        self.do(messages.BatchProcessed(frame, kept=frame.kept > 0))

    def _hold(self, frame: SimulatedFrame) -> None:
        assert self.sink is not None
        passed = self._corpus.passed_late(self.sink.name, frame.fragment, frame.first, frame.records)
        frame = frame._replace(kept=frame.kept & passed)
        if self.poison(frame.fragment, frame.first, self.sink.name):
            frame = frame._replace(kept=0, quarantined=frame.quarantined | frame.kept)
        elif frame.fragment in self._trials and not self.outlives(self.sink.name, [_part(frame, frame.kept, 0)]):
            return
        self.sink.add(frame)
        self.cluster.checker.held(self.label, self.sink)


def _cut(_link: str, _reason: str) -> None:
    """The worker is told by the network."""


def _part(frame: SimulatedFrame, kept: int, quarantined: int) -> Part:
    return Part(Range(frame.fragment, frame.first, frame.records), kept, quarantined)
