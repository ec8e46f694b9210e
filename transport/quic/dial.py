"""Finding the way to a node that has several addresses: the next is tried when the last has not answered for a while.

Pure: the endpoint (`quic.py`) asks what to connect to and says what became of it. As in RFC 8305 ("Happy Eyeballs"),
attempts overlap, and the first that answers has it; the addresses come in order of preference.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.transport.quic.core import Address, Datagram
from headrace.transport.quic.links import QuicSender

#: Seconds that an address has for itself before the next one is tried beside it.
STAGGER_S = 0.25
#: Seconds between two rendezvous datagrams: one may be lost, and the relay may not know of its path yet.
RENDEZVOUS_S = 0.25
#: Seconds after which an end gives its rendezvous up: the peer will not come.
RENDEZVOUS_S_MAX = 60.0


@dataclass(slots=True)
class Dial:
    """A sender that looks for its receiver's node."""

    sender: QuicSender
    left: deque[Address]
    next_at: float = 0.0
    #: Connections that have not yet answered, and where they lead.
    tried: dict[int, Address] = field(default_factory=dict[int, Address])
    #: What became of the others, for people.
    failures: list[str] = field(default_factory=list[str])


class Dialing:
    """Every sender that looks for a node."""

    def __init__(self) -> None:
        self._dials: list[Dial] = []

    def begin(self, sender: QuicSender, addresses: Sequence[Address], now: float) -> None:
        """A sender looks for its node at these addresses, the best first."""
        self._dials.append(Dial(sender, deque(addresses), now))

    def due(self, now: float) -> list[tuple[Dial, Address]]:
        """The addresses to try now; `attempted` is to be called for each."""
        found: list[tuple[Dial, Address]] = []
        for dial in self._dials:
            if dial.left and (now >= dial.next_at or not dial.tried):
                dial.next_at = now + STAGGER_S
                found.append((dial, dial.left.popleft()))
        return found

    def attempted(self, dial: Dial, address: Address, connection: int) -> None:
        """A connection to one of the addresses is being made."""
        dial.tried[connection] = address

    def wake_at(self) -> float | None:
        """When `due` is wanted next."""
        return min((dial.next_at for dial in self._dials if dial.left), default=None)

    def answered(self, connection: int, name: str) -> tuple[list[QuicSender], list[int]]:
        """The node named `name` answers: the senders that it is for, and connections that they need no more."""
        senders: list[QuicSender] = []
        spare: list[int] = []
        for dial in list(self._dials):
            if connection not in dial.tried:
                continue
            if dial.sender.peer_name not in (None, name):
                self._failed(dial, connection, f'"{name}" answers where "{dial.sender.peer_name}" should')
                continue
            self._dials.remove(dial)
            senders.append(dial.sender)
            spare += [other for other in dial.tried if other != connection]
        wanted = {other for dial in self._dials for other in dial.tried}
        return senders, [other for other in spare if other not in wanted]

    def ended(self, connection: int, reason: str) -> None:
        """A connection is over."""
        for dial in list(self._dials):
            if connection in dial.tried:
                self._failed(dial, connection, reason)

    def drop(self, sender: QuicSender) -> None:
        """A sender looks no more."""
        self._dials = [dial for dial in self._dials if dial.sender is not sender]

    def senders(self) -> Iterable[QuicSender]:
        """Every sender that still looks."""
        return [dial.sender for dial in self._dials]

    def _failed(self, dial: Dial, connection: int, reason: str) -> None:
        address = dial.tried.pop(connection)
        dial.failures.append(f"{address[0]}:{address[1]}: {reason}")
        if not dial.tried and not dial.left:
            self._dials.remove(dial)
            dial.sender.unreachable = True
            dial.sender.cut("owner", "; ".join(dial.failures))


class Rendezvous:
    """The relays at which one endpoint waits for its peer (`relay_table`)."""

    def __init__(self) -> None:
        self._datagrams: list[Datagram] = []
        self._due_at = self._until = 0.0

    def begin(self, relays: Sequence[Address], data: bytes, now: float) -> None:
        """Send `data` to these addresses from now on."""
        self._datagrams = [(data, relay) for relay in relays]
        self._due_at, self._until = now, now + RENDEZVOUS_S_MAX

    def due(self, now: float) -> list[Datagram]:
        """The datagrams to send now."""
        if not self._datagrams or now < self._due_at:
            return []
        if now >= self._until:
            self.end()
            return []
        self._due_at = now + RENDEZVOUS_S
        return self._datagrams

    def wake_at(self) -> float | None:
        """When `due` is wanted next."""
        return self._due_at if self._datagrams else None

    def end(self) -> None:
        """The peer is connected."""
        self._datagrams = []
