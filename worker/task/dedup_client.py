"""A solitary task asks the decider of its pipeline: it has a way from source to sink, and no index of its own.

A record goes through the stages before dedup. Its keys travel to the decider's task by way of the controller
(`controller/core/messages/dedup.py`), and the answer comes back; then it goes on as if dedup had decided here.
"""

from __future__ import annotations

import logging
import time

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import Batch
from headrace.store.ledger import Range
from headrace.store.shards import RecordName
from headrace.worker.processes import STAGES, Hands
from headrace.worker.task.chain import Chain
from headrace.worker.task.core.dedup_client import Asking

logger = logging.getLogger("headrace.task")


class Inquiry:
    """The record that waits before dedup, if one does."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._asking = Asking()
        self._batch: Batch | None = None
        self._question = pb.DecisionAsked()
        self._decision: pb.Decision | None = None

    @property
    def waiting(self) -> bool:
        """Whether a record waits; no other may be begun."""
        return self._batch is not None

    def wake_at(self) -> float | None:
        """When the question is to be put, by the monotonic clock."""
        return self._asking.wake_at()

    def begin(self, batch: Batch) -> Batch:
        """Take a batch of one record through the stages before dedup; where it is kept there, it waits."""
        batch = self._chain.before_dedup(batch)
        if batch.rows.num_rows and self._chain.dedup is not None:
            number = self._asking.ask(time.monotonic())
            keys = self._chain.dedup.question(batch)
            self._question = pb.DecisionAsked(number=number, fragment=batch.fragment, row=batch.first, keys=keys)
            self._batch = batch
        return batch

    def due(self) -> pb.DecisionAsked | None:
        """The question, if it is to be put now."""
        return self._question if self._asking.due(time.monotonic()) else None

    def answered(self, decision: pb.Decision) -> None:
        """An answer came from the controller."""
        if self._asking.answered(decision.number):
            self._decision = decision

    def take(self) -> Batch | None:
        """The batch behind all stages, once it is decided."""
        batch, decision = self._batch, self._decision
        if batch is None or decision is None:
            return None
        self._batch = self._decision = None
        # Here, since it comes with a compiler, which few tasks need.
        from headrace.stages.dedup import Match

        match = Match(RecordName(decision.fragment, decision.row), decision.near) if decision.duplicate else None
        return self._chain.from_dedup(batch, match)

    def let_go(self) -> None:
        """The record that waits is to be read again."""
        self._asking.let_go()
        self._batch = self._decision = None


def decide(chain: Chain, hands: Hands, message: pb.AskDecision) -> pb.DecisionMade | None:
    """What this task's dedup stage decides on a record of a solitary task; None where it is fenced, or none is here."""
    dedup, asked = chain.dedup, message.question
    if dedup is None or dedup.fenced:
        return None
    if len(asked.keys) != dedup.question_bytes:
        # The asker's worker may be anybody's, and this task decides for all of them.
        logger.warning(
            "a question of %d bytes, where keys have %d, is not answered", len(asked.keys), dedup.question_bytes
        )
        return None
    hands.take(STAGES, dedup.name, (Range(asked.fragment, asked.row, 1),), timed=True)
    match = dedup.decide(RecordName(asked.fragment, asked.row), asked.keys)
    hands.put_down(STAGES)
    decision = pb.Decision(number=asked.number)
    if match is not None:
        decision.duplicate, decision.near = True, match.near
        decision.fragment, decision.row = match.name.fragment, match.name.row
    return pb.DecisionMade(asker=message.asker, asker_attempt=message.asker_attempt, decision=decision)
