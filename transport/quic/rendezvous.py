"""Knocking at relays (`relay_table`) until the peer is there. Pure: the endpoint (`quic.py`) sends, and has a clock."""

from collections.abc import Sequence

from headrace.transport.quic.core import Address, Datagram

#: Seconds between two knocks: they are datagrams and may be lost, and the relay may not know of its path yet.
KNOCK_S = 0.25
#: Seconds after which an end gives up to knock: whoever it waits for will not come.
KNOCKING_S = 60.0


class Knocking:
    """The relays at which one endpoint knocks."""

    def __init__(self) -> None:
        self._knocks: list[Datagram] = []
        self._due_at = self._until = 0.0

    def begin(self, relays: Sequence[Address], data: bytes, now: float) -> None:
        """Knock at these addresses from now on."""
        self._knocks = [(data, relay) for relay in relays]
        self._due_at, self._until = now, now + KNOCKING_S

    def due(self, now: float) -> list[Datagram]:
        """What is to be sent now."""
        if not self._knocks or now < self._due_at:
            return []
        if now >= self._until:
            self.end()
            return []
        self._due_at = now + KNOCK_S
        return self._knocks

    def wake_at(self) -> float | None:
        """When `due` is wanted next."""
        return self._due_at if self._knocks else None

    def end(self) -> None:
        """The peer is there."""
        self._knocks = []
