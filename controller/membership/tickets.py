"""The controller's word that two attempts belong together: a sealed ticket for each making of a link, and the ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cluster import Ticket, encode_ticket
from headrace.controller.core.messages import MakeLink, WorkerRegistered
from headrace.controller.core.run import Run

#: Which end a ticket for a relay is of.
SENDER, RECEIVER = " sender at a relay", " receiver at a relay"


@dataclass(frozen=True, slots=True)
class Introduction:
    """What the ends of one making of a link are told of each other."""

    #: Both are given the same one.
    ticket: bytes
    #: Where the receiver's worker takes memory from others of its host.
    door: str = ""
    #: The workers that relay it and where, and the tickets by which the ends make themselves known to them.
    relays: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sender_rendezvous: bytes = b""
    receiver_rendezvous: bytes = b""


def introduce(command: MakeLink, run: Run, key: bytes, workers: Mapping[str, WorkerRegistered]) -> Introduction:
    """The introduction of one making of a link."""
    receiver = workers.get(command.receiver_worker)
    found = ((name, workers[name].relay_addresses) for name in command.relays if name in workers)
    return Introduction(
        ticket=link_ticket(command, run, key),
        door=receiver.door if receiver is not None else "",
        relays=tuple(found),
        sender_rendezvous=link_ticket(command, run, key, SENDER) if command.relays else b"",
        receiver_rendezvous=link_ticket(command, run, key, RECEIVER) if command.relays else b"",
    )


def link_ticket(command: MakeLink, run: Run, key: bytes, of: str = "") -> bytes:
    """The ticket of one making of a link, or of one end of it for a relay."""
    ticket = Ticket(
        term=run.leadership.term,
        pipeline=run.pipeline.name,
        version=run.works.of(command.sender).version if run.works is not None else run.version,
        epoch=command.epoch,
        link=f"{command.link}#{command.generation}{of}",
        sender_attempt=command.sender_attempt,
        receiver_attempt=command.receiver_attempt,
    )
    return encode_ticket(ticket, key)
