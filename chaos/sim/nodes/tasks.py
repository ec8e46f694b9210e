"""A simulated task: the real cores of reading, gathering and sweeping, in a shell that acts out worker/task/task.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.chaos.sim.network import MARKER_BYTES, Frame, SimulatedLink
from headrace.chaos.sim.nodes.deciders import SimulatedDecider
from headrace.chaos.sim.nodes.dedup_clients import SimulatedInquiry
from headrace.chaos.sim.nodes.sinks import SimulatedSink
from headrace.chaos.sim.nodes.sources import SimulatedSource
from headrace.chaos.sim.world import DEDUP, FILTER, SOURCE, Cluster, Host, Input, Part
from headrace.controller.core.messages import dedup, messages as core
from headrace.pipeline import Pipeline
from headrace.store.ledger import Range
from headrace.worker.core import arrivals
from headrace.worker.task import Sweeping

#: Seconds that a source takes for a batch, and any stage for a step.
READ_S, STEP_S = (0.05, 0.4), (0.001, 0.05)

_downstream: dict[tuple[str, str], tuple[str, ...]] = {}


def _following(order: core.StartTask) -> tuple[str, ...]:
    """The stages behind a task's last one; a pipeline's version is the hash of what says so."""
    key = order.version, order.stages[-1]
    if key not in _downstream:
        _downstream[key] = Pipeline.from_dict(order.pipeline).downstream(order.stages[-1])
    return _downstream[key]


class SimulatedTask:
    """One attempt."""

    def __init__(self, worker: Host, order: core.StartTask) -> None:
        self.cluster: Cluster = worker.cluster
        self._corpus = worker.cluster.corpus
        self.clock = worker.clock
        #: Until when it is stopped and does not know it, and what waits for it meanwhile, in order.
        self._frozen_until = 0.0
        self._waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.name, self.attempt = order.task, order.attempt
        self.label = f"{order.task.split('/')[1]}#{order.attempt & 0xFFFFF}"
        self.epoch, self.version, self.stages = order.epoch, order.version, order.stages
        self.alive, self.ready = True, False
        self.alone = order.alone
        #: What its stages had in hand when it died, and why its worker killed it, if it did.
        self.in_hand: tuple[core.InHand, ...] = ()
        self.killed_for = ""
        self.source = SimulatedSource(self) if SOURCE in order.stages else None
        sinks = [stage for stage in order.stages if stage in self._corpus.sinks]
        self.sink = SimulatedSink(self, sinks[0]) if sinks else None
        self.decider: SimulatedDecider | None = None
        self._inquiry: SimulatedInquiry | None = None
        if DEDUP in order.stages and order.alone:
            self._inquiry = SimulatedInquiry(self)
        elif DEDUP in order.stages and self._corpus.texts is not None:
            self.decider = SimulatedDecider(self, self._corpus.texts, self._corpus.sinks[0], fenced=order.fenced)
        #: The stages that read from the last one of this task.
        self._following = _following(order)
        self._sweeping = Sweeping()
        self._worker = worker
        self._inbox: deque[tuple[Input, Frame]] = deque()
        self._inputs: dict[str, SimulatedLink] = {}
        self._outputs: dict[str, SimulatedLink] = {}
        #: What waits to be sent: a batch for the best link to a stage, or a marker for one certain link.
        self._outbox: deque[tuple[str, Frame]] = deque()
        #: In the solitary task: the records that are condemned, by stage, and fragments whose sink died.
        self._sentences: set[tuple[bytes, int, str]] = set()
        self._trials: set[bytes] = set()
        self._told_at = 0.0
        self._awake = False

    # -- its life --

    def begin(self) -> None:
        """The process has come up and has built its stages."""
        if self.alive:
            if self.decider is not None:
                self.decider.begin()
            self.ready = True
            self.say(core.TaskReady(self.name, self.attempt))
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

    def condemned(self, fragment: bytes, ordinal: int, stage: str) -> bool:
        """Whether a record is condemned at a stage."""
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
            slow = self.source is not None and not self._outbox and not self.alone
            self.cluster.world.within(*(READ_S if slow else STEP_S), self._turn)

    def arrived(self, link: Input, frame: Frame) -> None:
        """A frame came in on an input."""
        if self.alive and not self.sleeps(self.arrived, link, frame):
            if not link.open and self._inputs.get(link.name) is not link:
                return  # this end has closed it
            self._inbox.append((link, frame))
            self.wake()

    # -- commands --

    def _told(self, message: object) -> None:
        if not self.alive or self.sleeps(self._told, message):
            return
        match message:
            case core.ListSource() if self.source is not None:
                self.source.list(message)
            case core.ReadFragment() if self.source is not None:
                for item in message.condemned:
                    self._sentences.add((message.fragment.id, item.ordinal, item.stage))
                if message.trial:
                    self._trials.add(message.fragment.id)
                self.source.give(message)
            case core.SweepTask():
                self._sweeping.asked(message.sweep, halt=message.halt)
            case core.SealSink() if self.sink is not None:
                self.sink.seal(message.reason)
            case core.AnswerProposal() if self.sink is not None:
                self.sink.answered(message)
            case core.AnswerNeeds() if self.sink is not None:
                self.sink.needs_answered(message)
            case core.StopTask():
                self.die(0, "was told to stop")
            case ("open", SimulatedLink() as link):
                self._open(link)
            case ("close", SimulatedLink() as link):
                self._close(link)
            case _:
                self._told_of_claims(message)
        self.wake()

    def _told_of_claims(self, message: object) -> None:
        match message:
            case core.ReleaseClaims() if self.decider is not None:
                self.decider.release(message.records)
            case dedup.AskDecision() if self.decider is not None:
                made = self.decider.asked(message)
                if made is not None:
                    self.say(made)
            case dedup.AnswerDecision() if self._inquiry is not None:
                decided = self._inquiry.answered(message.decision)
                if decided is not None and self._gather(decided) and self.source is not None:
                    self.source.sent(decided)
            case _:
                raise TypeError(f"{self.label} understands no {message}")

    def _open(self, link: SimulatedLink) -> None:
        if link.sender is self:
            self._outputs[link.name] = link
        else:
            self._inputs[link.name] = link
            self._sweeping.opened(link.name)

    def _close(self, link: SimulatedLink) -> None:
        if self._outputs.get(link.name) is link:
            del self._outputs[link.name]
        if self._inputs.get(link.name) is link:
            del self._inputs[link.name]
            self._sweeping.closed(link.name)
            # What was on the link and not taken dies with it.
            self._inbox = deque(item for item in self._inbox if item[0] is not link)

    # -- one turn of the loop --

    def _turn(self) -> None:
        if self.alive and self.sleeps(self._turn):
            return
        self._awake = False
        if self.alive and self._step():
            self.wake()

    def _step(self) -> bool:
        if self._outbox:
            return self._flush()
        sweep = self._sweeping.due()
        if sweep is not None:
            self._sweep(sweep)
            return True
        if self.sink is not None and not self.sink.core.accepts:
            return False
        if self._inquiry is not None and self._inquiry.waiting:
            return False
        if self.source is not None:
            return self.source.step()
        return self._receive()

    def _flush(self) -> bool:
        target, frame = self._outbox[0]
        if frame.sweep >= 0:
            link = self._outputs.get(target)
            sent = link is None or link.try_send(frame)
        else:
            fit = [link for link in self._outputs.values() if link.stage == target]
            if len(fit) > 1:
                fit.sort(key=lambda link: (-link.credit.available, link.name))
            sent = any(link.try_send(frame) for link in fit)
        if sent:
            self._outbox.popleft()
        return sent

    def _sweep(self, sweep: int) -> None:
        if self._sweeping.halting and self.source is not None:
            self.source.halt()
            if self._inquiry is not None:
                self._inquiry.let_go()
        for name in self._outputs:
            self._outbox.append((name, Frame(self.epoch, MARKER_BYTES, sweep=sweep)))
        self._sweeping.passed(sweep)
        held = ((self.sink.name, tuple(self.sink.core.held())),) if self.sink is not None else ()
        pending = tuple(self.source.core.pending()) if self.source is not None else ()
        self.say(core.TaskSwept(self.name, self.attempt, sweep, pending, held))

    def _receive(self) -> bool:
        if not self._inbox:
            return False
        link, frame = self._inbox.popleft()
        link.taken(frame)
        if fault := arrivals.epoch_fault(link.name, frame.epoch, self.epoch):
            self.cluster.checker.frame_refused(self.label)
            self.die(1, fault)
            return True
        self.cluster.checker.frame_taken(self.label, frame.epoch, self.epoch)
        if frame.sweep >= 0:
            self._sweeping.arrived(link.name, frame.sweep)
        else:
            self.process(frame)
        return True

    def process(self, frame: Frame) -> bool:
        """Take a batch through the stages; False if one died of it, or it waits for what another task decides."""
        if self.decider is not None and self.decider.fenced:
            return True  # it is open and held by nobody, and read again when the epoch is raised
        if FILTER in self.stages:
            dead = frame.quarantined | self.condemned(frame.fragment, frame.first, FILTER)
            if self._corpus.dies(FILTER) and not self.outlives(FILTER, [_part(frame, frame.kept & ~dead, dead)]):
                return False
            passed = self._corpus.passed(self.version, frame.fragment, frame.first, frame.records)
            frame = frame._replace(kept=passed & frame.kept & ~dead, quarantined=dead)
        if self.decider is not None:
            frame = self.decider.decide(frame)
        if self._inquiry is not None and frame.kept:
            self._inquiry.begin(frame)
            return False
        return self._gather(frame)

    def _gather(self, frame: Frame) -> bool:
        """Hand a batch on, or to the sink; False if that died of it."""
        if self.sink is None:
            self._outbox.extend((stage, frame) for stage in self._following)
            return True
        if self.condemned(frame.fragment, frame.first, self.sink.name):
            frame = frame._replace(kept=0, quarantined=frame.quarantined | frame.kept)
        elif frame.fragment in self._trials and not self.outlives(self.sink.name, [_part(frame, frame.kept, 0)]):
            return False
        self.sink.add(frame)
        self.cluster.checker.held(self.label, self.sink)
        return True


def _part(frame: Frame, kept: int, quarantined: int) -> Part:
    return Part(Range(frame.fragment, frame.first, frame.records), kept, quarantined)
