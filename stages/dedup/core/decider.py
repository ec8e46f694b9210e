"""The one who decides which of several duplicates is kept: the pure half of a dedup stage.

It answers in the order in which batches come to it. A record that is no duplicate of one before it claims its keys and
is kept; the index says which it is a duplicate of. So of several duplicates the first to come is kept, and a
record that is read again has the fate that it had.

A claim is soft state. What makes it lasting is the ledger: the record is closed as kept, and its keys lie beside its
shard. An index that is begun anew loads those; what was claimed and not closed is nobody's, and is read again. That
is why the loss of an index raises the epoch: what still was on its way leans on claims that are forgotten. Until the
epoch is raised, a fenced decider stands in the place of the lost one and lets nothing through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class DeciderState(Enum):
    """What a decider does with a batch."""

    LOADING = "loading"
    SERVING = "serving"
    FENCED = "fenced"


class DeciderTurn(Enum):
    """What moves a decider."""

    LOADED = "keys of the kept are loaded"
    FORBIDDEN = "epoch is to be raised"


TRANSITIONS: dict[tuple[DeciderState, DeciderTurn], DeciderState] = {
    (DeciderState.LOADING, DeciderTurn.LOADED): DeciderState.SERVING,
    (DeciderState.LOADING, DeciderTurn.FORBIDDEN): DeciderState.FENCED,
    (DeciderState.SERVING, DeciderTurn.FORBIDDEN): DeciderState.FENCED,
}


class Index(Protocol):
    """What remembers: `headrace.stages.dedup.key_index`, or a dict in a test."""

    def decide(self, fragment: bytes, rows: Any, keys: Any, sketches: Any) -> Sequence[Any]:
        """For each record None where it is kept and holds its keys now, else what it is a duplicate of."""
        ...

    def release(self, name: Any) -> bool:
        """Let go of the keys of a record; whether it held any."""
        ...


@dataclass(frozen=True, slots=True)
class KeysLoaded:
    """The index holds the keys of all that is kept up to its epoch's position."""


@dataclass(frozen=True, slots=True)
class ServiceForbidden:
    """An index of this epoch was lost, or a partition of it: this one lets nothing through."""


@dataclass(frozen=True, slots=True)
class BatchStamped:
    """A batch came: records `rows` `[n]` of a fragment, with their keys `[n, words]`, and sketches where a judge is."""

    fragment: bytes
    rows: Any
    keys: Any
    sketches: Any = None


@dataclass(frozen=True, slots=True)
class ClaimReleased:
    """A record that was let through is not kept after all."""

    name: Any


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """For each record of the batch None where it is kept, else the name of the one that it is a duplicate of."""

    duplicates_of: Sequence[Any]


@dataclass(frozen=True, slots=True)
class DropBatch:
    """Let nothing of the batch through: it is read again in the next epoch."""


Event = KeysLoaded | ServiceForbidden | BatchStamped | ClaimReleased
Command = AnswerBatch | DropBatch


class Decider:
    """The state machine of one dedup stage."""

    def __init__(self, index: Index) -> None:
        self.state = DeciderState.LOADING
        self._index = index

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it. ValueError for one that cannot come now."""
        del now
        match event:
            case KeysLoaded():
                self._turn(DeciderTurn.LOADED)
            case ServiceForbidden():
                self._turn(DeciderTurn.FORBIDDEN)
            case BatchStamped():
                return self._stamped(event)
            case ClaimReleased():
                self._index.release(event.name)
        return []

    def _stamped(self, event: BatchStamped) -> list[Command]:
        if self.state is DeciderState.LOADING:
            raise ValueError(f"a batch of {len(event.rows)} records before the keys of the kept are loaded")
        if self.state is DeciderState.FENCED:
            return [DropBatch()]
        return [AnswerBatch(self._index.decide(event.fragment, event.rows, event.keys, event.sketches))]

    def _turn(self, turn: DeciderTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise ValueError(f"decider: {self.state.value} on {turn.value!r}")
        self.state = target
