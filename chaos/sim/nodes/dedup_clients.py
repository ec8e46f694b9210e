"""A simulated solitary task asks the decider: acts out worker/task/dedup_client.py around the real Asking core."""

from __future__ import annotations

from headrace.chaos.sim.network import Frame
from headrace.chaos.sim.world import Member
from headrace.controller.core.messages import dedup
from headrace.worker.task import ASK_AGAIN_S, Asking


class SimulatedInquiry:
    """The record that waits before dedup, if one does."""

    def __init__(self, task: Member) -> None:
        self._task = task
        self._asking = Asking()
        self._frame: Frame | None = None
        self._number = 0

    @property
    def waiting(self) -> bool:
        """Whether a record waits; no other may be begun."""
        return self._frame is not None

    def begin(self, frame: Frame) -> None:
        """A record has come to the dedup stage."""
        self._frame = frame
        self._number = self._asking.ask(self._now())
        self._put(dedup.Question(self._number, frame.fragment, frame.first, b""))

    def answered(self, decision: dedup.Decision) -> Frame | None:
        """The batch as the decider leaves it, if this is the answer that is waited for."""
        frame = self._frame
        if frame is None or not self._asking.answered(decision.number):
            return None
        self._frame = None
        if decision.duplicate_of is None:
            return frame
        return frame._replace(kept=0, duplicates=((frame.first, decision.duplicate_of),))

    def let_go(self) -> None:
        """The record that waits is to be read again."""
        self._asking.let_go()
        self._frame = None

    def _put(self, question: dedup.Question) -> None:
        if self._task.alive and self._task.sleeps(self._put, question):
            return
        if self._task.alive and question.number == self._number and self._asking.due(self._now()):
            self._task.say(dedup.DecisionAsked(self._task.name, self._task.attempt, question))
            world, again_at = self._task.cluster.world, self._now() + ASK_AGAIN_S
            world.at(self._task.clock.when(again_at), self._put, question)

    def _now(self) -> float:
        return self._task.clock.at(self._task.cluster.world.now)
