"""What dedup asks through the controller: decisions for solitary tasks, and the records that duplicates depend on.

A solitary task has no link to the decider of a dedup stage, so the controller passes its questions on, one suspect
record at a time, and remembers nothing. A lost question is asked again and has the same answer. While the decider is
starting, or is fenced, there is no answer.
"""

from __future__ import annotations

from msgspec import Struct


class Question(Struct, frozen=True):
    """Does `stage` keep this record? `number` names the question in its task, `keys` are as that dedup stage's."""

    number: int
    fragment: bytes
    row: int
    keys: bytes
    stage: str


class Decision(Struct, frozen=True):
    """The record that another is a duplicate of, and whether their texts differ; None: it is kept.

    `settled`: that record was kept before the epoch began.
    """

    number: int
    duplicate_of: tuple[bytes, int] | None = None
    near: bool = False
    settled: bool = False


class DecisionAsked(Struct, frozen=True):
    """A solitary task has a record before its dedup stage."""

    task: str
    attempt: int
    question: Question


class DecisionMade(Struct, frozen=True):
    """A decider has decided on a record of a solitary task, `asking_task`."""

    task: str
    attempt: int
    asking_task: str
    asking_attempt: int
    decision: Decision


class AskDecision(Struct, frozen=True):
    """Have a decider decide on a record of a solitary task."""

    worker: str
    task: str
    attempt: int
    asking_task: str
    asking_attempt: int
    question: Question


class AnswerDecision(Struct, frozen=True):
    """Tell a solitary task what was decided."""

    worker: str
    task: str
    attempt: int
    decision: Decision


#: Records by fragment: their ordinals, ascending.
Records = tuple[tuple[bytes, tuple[int, ...]], ...]


class NeedsAsked(Struct, frozen=True):
    """A sink is about to write a shard whose duplicates name these records, which it does not hold itself."""

    task: str
    attempt: int
    proposal: int
    sink: str
    records: Records


class VerdictsLetGo(Struct, frozen=True):
    """A sink had no room for all the verdicts that should wait: what it let go of is open, and held by nobody."""

    task: str
    attempt: int


class AnswerNeeds(Struct, frozen=True):
    """Tell a sink which of the records are `open` still and which are `gone`; the others are kept."""

    worker: str
    task: str
    attempt: int
    proposal: int
    open: Records = ()
    gone: Records = ()


class ReleaseClaims(Struct, frozen=True):
    """Tell a decider that records which it let through are not kept after all."""

    worker: str
    task: str
    attempt: int
    records: Records


class ServeIndex(Struct, frozen=True):
    """Tell a task of an index that waits for its epoch that this is raised: it serves with what is kept at `position`.

    `position` is an entry of the dataset's log.
    """

    worker: str
    task: str
    attempt: int
    position: int


DecisionEvent = DecisionAsked | DecisionMade
DecisionCommand = AskDecision | AnswerDecision | ReleaseClaims | ServeIndex
