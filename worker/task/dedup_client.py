"""A solitary task asks the decider of its pipeline: it has a way from source to sink, and no index of its own.

A record goes through the stages before dedup. Its keys travel to the decider's task by way of the controller
(`controller/core/messages/dedup.py`), and the answer comes back; then it goes on as if dedup had decided here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import Batch
from headrace.store.ledger import Range
from headrace.store.shards import RecordName
from headrace.worker.processes import STAGES, Hands
from headrace.worker.task.chain import Chain

if TYPE_CHECKING:
    from headrace.stages.dedup import Match

logger = logging.getLogger("headrace.task")


def question_of(chain: Chain, number: int, batch: Batch) -> pb.DecisionAsked:
    """The question whether the one record of a batch is a duplicate."""
    assert chain.dedup is not None
    keys = chain.dedup.question(batch)
    return pb.DecisionAsked(number=number, fragment=batch.fragment, row=batch.first, keys=keys)


def match_of(decision: pb.Decision) -> Match | None:
    """What a record is a duplicate of, if of any."""
    # Here, since it comes with a compiler, which few tasks need.
    from headrace.stages.dedup import Match

    return Match(RecordName(decision.fragment, decision.row), decision.near) if decision.duplicate else None


def decide(chain: Chain, hands: Hands, message: pb.AskDecision) -> pb.DecisionMade | None:
    """What this task's dedup stage decides on a record of a solitary task; None where the question is none."""
    dedup, asked = chain.dedup, message.question
    assert dedup is not None
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
