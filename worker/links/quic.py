"""A task's links to tasks of other workers: one QUIC endpoint of its own, with the certificate of its worker.

The endpoint is the task's and not the worker's: what comes in is decrypted in the process that needs it, and copied
nowhere. The worker lends its certificate, so that a peer knows which worker it talks to; the ticket says which link.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from headrace.cluster import Credentials, Peer, Role, TicketError, match_ticket
from headrace.protos import codec, control_pb2 as pb
from headrace.transport import LinkRefusedError, Receiver, Sender
from headrace.transport.core import rendezvous
from headrace.transport.quic import Address, QuicEndpoint, QuicSender, QuicSettings, every_address
from headrace.worker.links.gate import found_at
from headrace.worker.membership import split_address


class Remote:
    """The endpoint of one task, and one more for each link that goes through a relay."""

    def __init__(self, network: pb.Network) -> None:
        self._credentials = Credentials(network.certificate, network.key, network.authority)
        self._expelled = codec.expulsions_from(network.expelled)
        self._endpoint = self._open()
        self._hosts, self._gates = tuple(network.addresses), network.gates
        self._links: dict[str, _Link] = {}

    def addresses(self) -> list[str]:
        """Where other workers' tasks find this one, as host:port."""
        return found_at(self._endpoint.address[1], self._hosts, self._gates)

    def attach(self, message: pb.OpenLink) -> Sender | Receiver:
        """This task's end of a link. A refusal by the peer is a LinkAborted of its next verb."""
        link = message.link
        self.detach(link.link)
        # Each making of a link has a name of its own: what is left of an earlier one cannot be taken for it.
        name = f"{link.link}#{link.generation}"
        endpoint, own = self._endpoint, None
        relays = {at: relay.worker for relay in link.relays for at in _addresses(relay.addresses)}
        if relays:
            # A relay tells ends apart by their addresses.
            endpoint = own = self._open()
            endpoint.rendezvous(list(relays), rendezvous(link.rendezvous))
        if not link.sends:
            receiver = endpoint.expect_link(name, lambda ticket, peer: _judge(link, ticket, peer))
            self._links[link.link] = _Link(None, own, {})
            return receiver
        found = list(relays) or _addresses(link.addresses)
        if not found:
            raise LinkRefusedError(f"link {link.link}: nobody knows where worker {link.peer_worker} can be reached")
        sender = endpoint.open_link(name, found[0], link.ticket, peer_name=link.peer_worker, others=found[1:])
        self._links[link.link] = _Link(sender, own, {endpoint.reachable(at): who for at, who in relays.items()})
        return sender

    def via(self, link: str) -> str:
        """The worker that relays a link of which this task has the sending end; empty for none."""
        known = self._links.get(link)
        address = known.sender.address if known is not None and known.sender is not None else None
        return known.relays.get(address, "") if known is not None and address is not None else ""

    def unreachable(self, link: str) -> bool:
        """Whether the receiver of a link was looked for and not found."""
        known = self._links.get(link)
        return known is not None and known.sender is not None and known.sender.unreachable

    def detach(self, link: str) -> None:
        """A link is over: end what was there for it alone. Its end was detached before."""
        known = self._links.pop(link, None)
        if known is not None and known.own is not None:
            known.own.close()

    def expel(self, expulsions: pb.Expulsions) -> None:
        """Cut the links with members that were expelled, and those that they relay, and take none of them again."""
        self._expelled = codec.expulsions_from(expulsions)
        self._endpoint.expel(self._expelled)
        for link, known in list(self._links.items()):
            if known.own is not None:
                known.own.expel(self._expelled)
            relay = f"worker/{self.via(link)}"
            if known.own is not None and relay in self._expelled and not self._expelled[relay]:
                known.own.close()

    def close(self) -> None:
        """End every link."""
        for link in list(self._links):
            self.detach(link)
        self._endpoint.close()

    def _open(self) -> QuicEndpoint:
        endpoint = QuicEndpoint(every_address(), self._credentials, QuicSettings(roles=frozenset({Role.WORKER})))
        endpoint.expel(self._expelled)
        return endpoint


@dataclass(frozen=True, slots=True)
class _Link:
    """A link that has an end here."""

    #: None where this task receives.
    sender: QuicSender | None
    #: The endpoint that it has for itself, where it is relayed.
    own: QuicEndpoint | None
    #: Which worker relays at which address.
    relays: dict[Address, str]


def _addresses(texts: Iterable[str]) -> list[Address]:
    """Where others say that they are; what is no address is passed over."""
    found: list[Address] = []
    for text in texts:
        with suppress(ValueError):
            found.append(split_address(text))
    return found


def _judge(link: pb.LinkEnd, ticket: bytes, peer: Peer) -> str | None:
    if peer.identity.name != link.peer_worker:
        return f"worker {peer.identity.name} asks for a link that worker {link.peer_worker} has an end of"
    try:
        match_ticket(ticket, link.ticket)
    except TicketError as error:
        return str(error)
    return None
