"""What a relay does with each datagram: from which of two ends it came, and whether it may go on to the other. Pure.

Two nodes that cannot reach each other, but can both reach a third, are joined by a **path** of that third node. Each
end of a path has a ticket of its own. It sends the ticket to the relay in a **rendezvous**, a datagram that is no QUIC
packet (the first byte of those has bit 6 set), and the relay learns the end's address from it. From then on what comes
from one of the two addresses goes to the other, unread: the connection is encrypted from end to end, and the relay has
no key. Everything else is dropped and counted.

It is no open relay: the controller alone orders a path, which joins the holders of two tickets and sends to no address
that sent no rendezvous. Nothing is answered, so nothing is amplified. An end that is heard keeps its place; another
address with its ticket gets the place only when the end has been silent for SILENT_S. An address is an end of one path:
one that sends the ticket of another path has left the first, or is a later process with the same port.

Bounds: PATHS_MAX paths, each for at most IDLE_S without a datagram, and `rate_bytes_s` over each, with what comes in
BURST_S in one go; more is dropped, and QUIC slows down. Nothing is kept.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Address = tuple[str, int] | tuple[str, int, int, int]
Datagram = tuple[bytes, Address]

#: How a rendezvous begins.
RENDEZVOUS = b"\0HRKNOCK1"
#: Paths at once.
PATHS_MAX = 256
#: Seconds without a datagram after which a path is forgotten.
IDLE_S = 60.0
#: Seconds of silence after which the address of an end may be another.
SILENT_S = 5.0
#: Bytes a second over one path, both ways together.
RATE_BYTES_S = 256 << 20
#: What may come in one go, as the time that it takes at that rate, in seconds.
BURST_S = 0.1


class RelayFullError(Exception):
    """No path can be added."""


def rendezvous(ticket: bytes) -> bytes:
    """Return the datagram by which the holder of a ticket makes itself known."""
    return RENDEZVOUS + ticket


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done so far, and what it may do."""

    #: Paths that stand, and how many may.
    paths: int
    paths_max: int
    #: Paths that were asked for while there were as many as may be.
    refused: int
    #: Bytes that went on.
    passed_bytes: int
    #: Bytes a second that may go over each path.
    rate_bytes_s: float
    #: Datagrams by what became of them: `passed`, or why they did not go on.
    datagrams: Mapping[str, int]


@dataclass(slots=True, eq=False)
class _Side:
    path: "_Path"
    ticket: bytes
    #: Where datagrams for it go, once it is known.
    address: Address | None = None
    heard_at: float = 0.0

    @property
    def other(self) -> "_Side":
        one, two = self.path.sides
        return two if self is one else one


@dataclass(slots=True, eq=False)
class _Path:
    name: str
    used_at: float
    #: Bytes that may go on now, and when that was last worked out.
    allowance: float
    filled_at: float
    sides: list[_Side] = field(default_factory=list[_Side])


class RelayTable:
    """The paths of one relay."""

    def __init__(self, paths_max: int = PATHS_MAX, rate_bytes_s: float = RATE_BYTES_S) -> None:
        self._paths_max, self._rate = paths_max, rate_bytes_s
        self._paths: dict[str, _Path] = {}
        self._by_ticket: dict[bytes, _Side] = {}
        self._by_address: dict[Address, _Side] = {}
        #: Datagrams that went on, and those that did not, by the reason.
        self.counts: Counter[str] = Counter()
        self._refused = self._passed_bytes = 0

    def __len__(self) -> int:
        return len(self._paths)

    def statistics(self) -> RelayStatistics:
        """Return the counts up to now."""
        return RelayStatistics(
            len(self._paths), self._paths_max, self._refused, self._passed_bytes, self._rate, dict(self.counts)
        )

    def open(self, name: str, tickets: tuple[bytes, bytes], now: float) -> None:
        """Add a path between the holders of two tickets, in the place of an earlier one of that name.

        Raises RelayFullError.
        """
        self._close(name)
        self.expire(now)
        if len(self._paths) >= self._paths_max:
            self._refused += 1
            raise RelayFullError(f"relay path {name}: there are {len(self._paths)}, which is the limit")
        path = _Path(name, now, self._rate * BURST_S, now)
        self._paths[name] = path
        for ticket in tickets:
            side = _Side(path, ticket)
            path.sides.append(side)
            self._by_ticket[ticket] = side

    def take(self, datagrams: Iterable[Datagram], now: float) -> list[Datagram]:
        """Return what goes on, and where to."""
        passed: list[Datagram] = []
        for data, source in datagrams:
            if data.startswith(RENDEZVOUS):
                self._met(data[len(RENDEZVOUS) :], source, now)
                continue
            side = self._by_address.get(source)
            if side is None:
                self.counts["unknown sender"] += 1
                continue
            side.heard_at = side.path.used_at = now
            target = side.other.address
            if target is None:
                self.counts["peer absent"] += 1
            elif not self._allowed(side.path, len(data), now):
                self.counts["over rate"] += 1
            else:
                passed.append((data, target))
        self.counts["passed"] += len(passed)
        self._passed_bytes += sum(len(data) for data, _ in passed)
        return passed

    def expire(self, now: float) -> None:
        """Forget the paths over which nothing has come for long."""
        for name in [name for name, path in self._paths.items() if now >= path.used_at + IDLE_S]:
            self._close(name)

    def _met(self, ticket: bytes, source: Address, now: float) -> None:
        side = self._by_ticket.get(ticket)
        if side is None:
            self.counts["unknown ticket"] += 1
            return
        holder = self._by_address.get(source)
        if holder is side:
            side.heard_at = side.path.used_at = now
        elif side.address is not None and now < side.heard_at + SILENT_S:
            self.counts["end taken"] += 1
        else:
            if holder is not None:
                holder.address = None
            if side.address is not None:
                del self._by_address[side.address]
            side.address, side.heard_at, side.path.used_at = source, now, now
            self._by_address[source] = side

    def _allowed(self, path: _Path, size_bytes: int, now: float) -> bool:
        path.allowance = min(self._rate * BURST_S, path.allowance + (now - path.filled_at) * self._rate)
        path.filled_at = now
        if path.allowance < size_bytes:
            return False
        path.allowance -= size_bytes
        return True

    def _close(self, name: str) -> None:
        path = self._paths.pop(name, None)
        for side in path.sides if path is not None else ():
            self._by_ticket.pop(side.ticket, None)
            if side.address is not None:
                self._by_address.pop(side.address, None)
