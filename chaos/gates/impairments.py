"""What befalls the bytes on a way: a datagram of a link, or a piece of a control session's stream.

Nothing here opens a socket: `Weather.passed` says for some bytes which copies arrive, and how late.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from enum import Enum

#: A reordered datagram is held back for up to so many seconds, while others overtake it.
OVERTAKEN_S_MAX = 0.05


class Ill(Enum):
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


class Struck(Enum):
    """What a storm did something to."""

    BETWEEN = "link datagrams between workers"
    INSIDE = "link datagrams inside a worker"
    CONTROL = "pieces of control sessions"


def struck_on(way: Way, ends: frozenset[str]) -> Struck:
    """What passes on this way between these ends."""
    if way is Way.CONTROL:
        return Struck.CONTROL
    return Struck.BETWEEN if len(ends) > 1 else Struck.INSIDE


@dataclass(frozen=True, slots=True)
class Storm:
    """A fault that goes on. It befalls `share` of what passes: of both ways where `way` is None.

    Where `ends` are given, workers or controllers by the names that the gates know them by, it is only what comes from
    one of them or goes there; what stays inside passes.
    """

    ill: Ill
    share: float = 1.0
    delay_s: float = 0.0
    way: Way | None = None
    ends: tuple[str, ...] = ()

    def meets(self, way: Way, ends: frozenset[str]) -> bool:
        """Whether it befalls what passes between these ends on this way."""
        return self.way in (None, way) and (not self.ends or (len(ends) > 1 and not ends.isdisjoint(self.ends)))


class Weather:
    """All storms of now, and chance, from one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._storms: list[tuple[Storm, Counter[Struck]]] = []
        #: All that passed, struck or not.
        self.met: Counter[Struck] = Counter()

    def begin(self, storm: Storm) -> Counter[Struck]:
        """A storm begins; what it strikes is counted in the answer, as it goes on."""
        struck: Counter[Struck] = Counter()
        self._storms.append((storm, struck))
        return struck

    def end(self, struck: Counter[Struck]) -> None:
        """The storm that counts there is over."""
        self._storms = [item for item in self._storms if item[1] is not struck]

    def is_cut(self, way: Way, ends: frozenset[str]) -> bool:
        """Whether nothing passes."""
        return any(storm.ill is Ill.PARTITION and storm.meets(way, ends) for storm, _ in self._storms)

    def held(self, way: Way, ends: frozenset[str]) -> None:
        """A piece waits for a cut to be over."""
        for storm, struck in self._storms:
            if storm.ill is Ill.PARTITION and storm.meets(way, ends):
                struck[struck_on(way, ends)] += 1

    def passed(self, data: bytes, way: Way, ends: frozenset[str]) -> list[tuple[float, bool, bytes]]:
        """The copies that arrive: seconds of delay, whether others may overtake it, and the bytes."""
        delay_s, copies, is_late = 0.0, 1, False
        what = struck_on(way, ends)
        self.met[what] += 1
        for storm, struck in self._storms:
            if not storm.meets(way, ends) or self._chance.random() >= storm.share:
                continue
            struck[what] += 1
            match storm.ill:
                case Ill.PARTITION | Ill.LOSS:
                    copies = 0
                case Ill.DELAY:
                    delay_s += storm.delay_s
                case Ill.REORDER:
                    delay_s += self._chance.uniform(0.0, OVERTAKEN_S_MAX)
                    is_late = True
                case Ill.DUPLICATE:
                    copies *= 2
                case Ill.CORRUPT:
                    data = self._corrupted(data)
        return [(delay_s, is_late, data)] * copies

    def _corrupted(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)
