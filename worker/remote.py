"""A task's links to tasks of other workers: one QUIC endpoint of its own, with the certificate of its worker.

The endpoint is the task's and not the worker's: what comes in is decrypted in the process that needs it, and copied
nowhere. The worker lends its certificate, so that a peer knows which worker it talks to; the ticket says which link.
"""

from __future__ import annotations

from headrace.protos import control_pb2 as pb
from headrace.transport.certificates import Credentials, Peer, Role
from headrace.transport.contract import Receiver, Sender
from headrace.transport.errors import LinkRefusedError
from headrace.transport.quic import QuicEndpoint, QuicSettings
from headrace.transport.quic_core import Address
from headrace.transport.ticket import TicketError, match_ticket
from headrace.transport.udp import every_address
from headrace.worker.gate import gate_before


class Remote:
    """The endpoint of one task."""

    def __init__(self, network: pb.Network) -> None:
        credentials = Credentials(network.certificate, network.key, network.authority)
        self._endpoint = QuicEndpoint(every_address(), credentials, QuicSettings(roles=frozenset({Role.WORKER})))
        self._hosts = tuple(network.addresses)

    def addresses(self) -> list[str]:
        """Where other workers' tasks find this one, as host:port."""
        port = self._endpoint.address[1]
        gate = gate_before(port)
        return [gate] if gate else [join_address(host, port) for host in self._hosts]

    def attach(self, message: pb.OpenLink) -> Sender | Receiver:
        """This task's end of a link. A refusal by the peer is a LinkAborted of its next verb."""
        link = message.link
        # Each making of a link has a name of its own: what is left of an earlier one cannot be taken for it.
        name = f"{link.link}#{link.generation}"
        if not link.sends:
            return self._endpoint.expect_link(name, lambda ticket, peer: _judge(link, ticket, peer))
        if not link.addresses:
            raise LinkRefusedError(f"link {link.link}: nobody knows where worker {link.peer_worker} can be reached")
        first, *others = [split_address(text) for text in link.addresses]
        return self._endpoint.open_link(name, first, link.ticket, peer_name=link.peer_worker, others=others)

    def close(self) -> None:
        """End every link."""
        self._endpoint.close()


def join_address(host: str, port: int) -> str:
    """`10.0.0.1:7`, or `[fd00::1]:7`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> Address:
    """The inverse of `join_address`. Raises ValueError for anything else."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _judge(link: pb.LinkEnd, ticket: bytes, peer: Peer) -> str | None:
    if peer.identity.name != link.peer_worker:
        return f"worker {peer.identity.name} asks for a link that worker {link.peer_worker} has an end of"
    try:
        match_ticket(ticket, link.ticket)
    except TicketError as error:
        return str(error)
    return None
