"""How long to go on asking a store that fails: delays between attempts, and a breaker for the endpoint.

Both are plain machines without a clock or chance of their own: `now` in seconds of a monotonic clock and `chance` in
[0, 1) are arguments. Delays have full jitter (uniform between zero and a ceiling that doubles), which spreads a herd
better than a fixed delay with some noise (Brooker, "Exponential Backoff And Jitter", AWS 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: The ceiling of the first delay and of all later ones.
DELAY_FIRST_S = 0.1
DELAY_S_MAX = 5.0
#: One operation on a store that has answered before is given up after this: a store that restarts is back by then.
RETRY_S_MAX = 120.0
#: One operation on a store that this process has never reached: most likely its address is wrong.
FIRST_CONTACT_S = 10.0

#: Failures in a row, of all threads together, that open the breaker.
FAILURES_TO_OPEN = 10
#: How long an open breaker holds all back before it lets one through to look.
OPEN_S = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When an operation tries again, and when it gives up."""

    delay_first_s: float = DELAY_FIRST_S
    delay_s_max: float = DELAY_S_MAX
    retry_s_max: float = RETRY_S_MAX
    first_contact_s: float = FIRST_CONTACT_S

    def budget_s(self, was_reached: bool) -> float:
        """How long one operation may take, all its attempts together."""
        return self.retry_s_max if was_reached else min(self.first_contact_s, self.retry_s_max)

    def delay_s(self, failures: int, chance: float) -> float:
        """The delay before the next attempt, after so many failed ones (at least 1)."""
        # Above 2**20 the ceiling has long been reached, and a float would overflow in the end.
        ceiling = min(self.delay_s_max, self.delay_first_s * 2.0 ** min(failures - 1, 20))
        return float(ceiling * chance)


class BreakerState(Enum):
    """The states of a breaker; the table of its transitions is in `Breaker`."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker:
    """Spares a failing endpoint: after failures in a row nobody asks it but one prober at a time.

    ====== ========================= =======
    from   on                        to
    ====== ========================= =======
    CLOSED the k-th failure in a row OPEN
    OPEN   `OPEN_S` gone, one asks   PROBING
    PROBING success                  CLOSED
    PROBING failure                  OPEN
    any    success                   CLOSED
    ====== ========================= =======

    A prober that never reports (its thread died) is replaced after `OPEN_S`. Not locked: the caller's business.
    """

    __slots__ = ("_failures", "_failures_to_open", "_open_s", "_since", "_state")

    def __init__(self, failures_to_open: int = FAILURES_TO_OPEN, open_s: float = OPEN_S) -> None:
        self._failures_to_open = failures_to_open
        self._open_s = open_s
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._since = 0.0

    @property
    def state(self) -> BreakerState:
        """The state as of the last call."""
        return self._state

    def wait_s(self, now: float) -> float:
        """How long the caller must hold back; at 0 it may go, and must report what came of it."""
        if self._state is BreakerState.CLOSED:
            return 0.0
        left = self._since + self._open_s - now
        if left > 0:
            return left
        self._state, self._since = BreakerState.PROBING, now
        return 0.0

    def succeeded(self) -> None:
        """The endpoint answered (a refusal is an answer too)."""
        self._state, self._failures = BreakerState.CLOSED, 0

    def failed(self, now: float) -> None:
        """The endpoint did not answer, or said that it cannot."""
        self._failures += 1
        if self._state is BreakerState.PROBING or self._failures >= self._failures_to_open:
            self._state, self._since = BreakerState.OPEN, now
