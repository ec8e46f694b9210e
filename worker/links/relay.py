"""A worker that relays datagrams between two others which cannot reach each other (`transport/core/relay_table.py`)."""

from __future__ import annotations

import logging

from headrace.protos import control_pb2 as pb
from headrace.transport.core import RelayFullError, RelayStatistics
from headrace.transport.quic import Relay, every_address
from headrace.worker.membership import join_address, own_addresses

logger = logging.getLogger("headrace.worker")


class Relaying:
    """The relay of one worker, on a UDP port of its own; 0 for any that is free. LinkRefusedError if it is taken."""

    def __init__(self, port: int) -> None:
        host, _, *rest = every_address()
        self._relay = Relay((host, port, *rest))  # type: ignore[arg-type]

    def addresses(self) -> list[str]:
        """Where others find it, as host:port."""
        return [join_address(host, self._relay.port) for host in own_addresses()]

    def open(self, order: pb.OpenRelay) -> None:
        """Relay one making of a link."""
        try:
            self._relay.open(order.link, (order.sender_ticket, order.receiver_ticket))
        except RelayFullError as error:
            # The ends find out by themselves, and others are asked.
            logger.warning("%s", error)
            return
        logger.info("relays link %s, making %d", order.link, order.generation)

    def statistics(self) -> RelayStatistics:
        """What it has done so far."""
        return self._relay.statistics()

    def close(self) -> None:
        """End it."""
        logger.info("relayed datagrams: %s", dict(self.statistics().datagrams))
        self._relay.close()
