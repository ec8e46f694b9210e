"""Ends that wait for each other: senders that look for a node, and HELLOs that came before their receivers.

Pure: the endpoint asks what to connect to and says what became of it. Of several addresses of a node the next is tried
when the last has not answered for a while. As in RFC 8305 ("Happy Eyeballs"), attempts overlap, and the first that
answers has it; the addresses come in order of preference.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.cluster import Peer
from headrace.transport.quic.core import Address, Datagram
from headrace.transport.quic.links import QuicSender

#: Seconds that an address has for itself before the next one is tried beside it.
STAGGER_S = 0.25
#: Seconds between two rendezvous datagrams: one may be lost, and the relay may not know of its path yet.
RENDEZVOUS_S = 0.25
#: Seconds after which an end gives its rendezvous up: the peer will not come.
RENDEZVOUS_S_MAX = 60.0
#: HELLOs of one peer that may wait for their receivers, and for how long, in seconds.
WAITING_MAX = 256
WAITING_S = 10.0


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


@dataclass(frozen=True, slots=True)
class WaitingHello:
    """A HELLO whose receiver is not there yet."""

    connection: int
    stream: int
    ticket: bytes
    peer: Peer
    until: float


class WaitingHellos:
    """HELLOs by the keys of their links. Names can be guessed: who uses another's keeps nobody out, nor takes its room.

    Whose the link is the receiver tells by the tickets.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[bytes, int], WaitingHello] = {}

    def keep(self, link: bytes, hello: WaitingHello) -> bool:
        """Whether there is room: on each connection one waits for a link, and of each peer WAITING_MAX for all."""
        place = link, hello.connection
        if place in self._waiting or sum(other.peer == hello.peer for other in self._waiting.values()) >= WAITING_MAX:
            return False
        self._waiting[place] = hello
        return True

    def take(self, link: bytes) -> list[WaitingHello]:
        """Those for a link, in the order in which they came; they wait no more."""
        return [self._waiting.pop(place) for place in list(self._waiting) if place[0] == link]

    def late(self, now: float) -> list[WaitingHello]:
        """Those that have waited long enough; they wait no more."""
        return [self._waiting.pop(place) for place, hello in list(self._waiting.items()) if hello.until < now]

    def forget(self, connection: int) -> None:
        """A connection is over."""
        for place in [place for place in self._waiting if place[1] == connection]:
            del self._waiting[place]
