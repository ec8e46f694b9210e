"""A pipeline's claim to cores, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ClaimState(Enum):
    """Where a claim stands."""

    #: It waits for cores, and has no tasks.
    WAITING = "waiting"
    #: It has its cores.
    GRANTED = "granted"
    #: Another gets its cores: its sinks commit what they hold.
    SEALING = "sealing"
    #: It stands still with everything committed, and waits for cores.
    HELD = "held"
    GONE = "gone"


class ClaimTurn(Enum):
    """What moves a claim."""

    BEGUN = "begun"
    HOLD_DECIDED = "hold decided"
    SEALED = "sealed"
    GO_ON_DECIDED = "go on decided"
    ENDED = "ended"


TRANSITIONS: dict[tuple[ClaimState, ClaimTurn], ClaimState] = {
    (ClaimState.WAITING, ClaimTurn.BEGUN): ClaimState.GRANTED,
    (ClaimState.WAITING, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.GRANTED, ClaimTurn.HOLD_DECIDED): ClaimState.SEALING,
    (ClaimState.GRANTED, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.SEALING, ClaimTurn.SEALED): ClaimState.HELD,
    (ClaimState.SEALING, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.HELD, ClaimTurn.GO_ON_DECIDED): ClaimState.GRANTED,
    (ClaimState.HELD, ClaimTurn.ENDED): ClaimState.GONE,
}

#: It waits for cores.
WAITS = (ClaimState.WAITING, ClaimState.HELD)
#: Its cores are its own, or still are.
USES = (ClaimState.GRANTED, ClaimState.SEALING)


@dataclass(slots=True)
class Claim:
    """What one pipeline asks of a queue. `cores` 0: all that there are; `number` says who came first."""

    name: str
    queue: str
    number: int
    cores: int = 0
    priority: int = 0
    by: str = ""
    state: ClaimState = ClaimState.WAITING

    def turn(self, turn: ClaimTurn) -> bool:
        """Move along the table; whether it has such a step."""
        target = TRANSITIONS.get((self.state, turn))
        self.state = self.state if target is None else target
        return target is not None
