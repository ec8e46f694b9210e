"""What the decider of a dedup stage is asked for by a solitary task, which has no link: the controller passes it on.

A record that is suspect comes to the decider by this way, alone, and has its answer by it. Nothing is remembered here.
A question that is lost is asked again, and has the same answer: who holds its keys already is kept again. While the
decider is starting, or is fenced, nobody answers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """Is this record kept? `number` names the question in its task, `keys` are as its dedup stage makes them."""

    number: int
    fragment: bytes
    row: int
    keys: bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """The record that another is a duplicate of, and whether their texts differ; None: it is kept."""

    number: int
    duplicate_of: tuple[bytes, int] | None = None
    near: bool = False


@dataclass(frozen=True, slots=True)
class DecisionAsked:
    """A solitary task has a record before its dedup stage."""

    task: str
    attempt: int
    question: Question


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A decider has decided on a record of a solitary task, `asker`."""

    task: str
    attempt: int
    asker: str
    asker_attempt: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class AskDecision:
    """Have a decider decide on a record of a solitary task."""

    worker: str
    task: str
    attempt: int
    asker: str
    asker_attempt: int
    question: Question


@dataclass(frozen=True, slots=True)
class AnswerDecision:
    """Tell a solitary task what was decided."""

    worker: str
    task: str
    attempt: int
    decision: Decision


DecisionEvent = DecisionAsked | DecisionMade
DecisionCommand = AskDecision | AnswerDecision
#: For `isinstance`.
DECISION_EVENTS = (DecisionAsked, DecisionMade)
