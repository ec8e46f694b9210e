"""Impairments of datagrams on links, and of pieces of control sessions.

Nothing here opens a socket: `Impairments.passed` returns the copies that arrive, with their delays.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

#: A reordered datagram is held back for up to so many seconds, while others overtake it.
OVERTAKEN_S_MAX = 0.05


class NetworkFault(Enum):
    """A fault of a network."""

    #: Everything arrives `delay_s` later.
    DELAY = "delay"
    LOSS = "loss"
    REORDER = "reorder"
    DUPLICATE = "duplicate"
    #: One bit is another.
    CORRUPT = "corrupt"
    #: Nothing arrives.
    PARTITION = "partition"


class Way(Enum):
    """What the bytes belong to."""

    LINK = "link"
    CONTROL = "control"


class Affected(Enum):
    """The bytes that an impairment affected."""

    BETWEEN = "link datagrams between workers"
    INSIDE = "link datagrams inside a worker"
    CONTROL = "pieces of control sessions"


def affected_on(way: Way, ends: frozenset[str]) -> Affected:
    """The kind of bytes on this way between these ends."""
    if way is Way.CONTROL:
        return Affected.CONTROL
    return Affected.BETWEEN if len(ends) > 1 else Affected.INSIDE


@dataclass(frozen=True, slots=True)
class Impairment:
    """A lasting network fault. It affects `share` of the bytes: on both ways where `way` is None.

    With `ends`, names of workers or controllers at the gates, it affects only bytes between one of them and another
    host.
    """

    fault: NetworkFault
    share: float = 1.0
    delay_s: float = 0.0
    way: Way | None = None
    ends: tuple[str, ...] = ()

    def meets(self, way: Way, ends: frozenset[str]) -> bool:
        """Whether it affects bytes between these ends on this way."""
        return self.way in (None, way) and (not self.ends or (len(ends) > 1 and not ends.isdisjoint(self.ends)))


class Impairments:
    """All present impairments, with chance from one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._impairments: list[tuple[Impairment, Counter[Affected]]] = []
        #: Everything that passed, affected or not.
        self.met: Counter[Affected] = Counter()

    def begin(self, impairment: Impairment) -> Counter[Affected]:
        """Begin an impairment; the returned counter counts what it affects."""
        affected: Counter[Affected] = Counter()
        self._impairments.append((impairment, affected))
        return affected

    def end(self, affected: Counter[Affected]) -> None:
        """End the impairment with this counter."""
        self._impairments = [item for item in self._impairments if item[1] is not affected]

    def is_cut(self, way: Way, ends: frozenset[str]) -> bool:
        """Whether a partition lets nothing pass."""
        return any(
            impairment.fault is NetworkFault.PARTITION and impairment.meets(way, ends)
            for impairment, _ in self._impairments
        )

    def held(self, way: Way, ends: frozenset[str]) -> None:
        """Count a piece that waits for the end of a partition."""
        for impairment, affected in self._impairments:
            if impairment.fault is NetworkFault.PARTITION and impairment.meets(way, ends):
                affected[affected_on(way, ends)] += 1

    def passed(self, data: bytes, way: Way, ends: frozenset[str]) -> list[tuple[float, bool, bytes]]:
        """The copies that arrive: delay in seconds, whether others may overtake it, and the bytes."""
        delay_s, copies, is_late = 0.0, 1, False
        what = affected_on(way, ends)
        self.met[what] += 1
        for impairment, affected in self._impairments:
            if not impairment.meets(way, ends) or self._chance.random() >= impairment.share:
                continue
            affected[what] += 1
            match impairment.fault:
                case NetworkFault.PARTITION | NetworkFault.LOSS:
                    copies = 0
                case NetworkFault.DELAY:
                    delay_s += impairment.delay_s
                case NetworkFault.REORDER:
                    delay_s += self._chance.uniform(0.0, OVERTAKEN_S_MAX)
                    is_late = True
                case NetworkFault.DUPLICATE:
                    copies *= 2
                case NetworkFault.CORRUPT:
                    data = self._corrupted(data)
                case _:
                    assert_never(impairment.fault)
        return [(delay_s, is_late, data)] * copies

    def _corrupted(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)
