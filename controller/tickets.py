"""The controller's word that two attempts belong together: a sealed ticket for each making of a link."""

from __future__ import annotations

from headrace.controller.core.messages import MakeLink
from headrace.controller.core.run import Run
from headrace.transport.ticket import Ticket, encode_ticket


def link_ticket(command: MakeLink, run: Run, key: bytes) -> bytes:
    """The ticket of one making of a link; both workers are given the same one."""
    ticket = Ticket(
        term=run.leadership.term,
        pipeline=run.pipeline.name,
        version=run.version,
        epoch=command.epoch,
        link=f"{command.link}#{command.generation}",
        sender_attempt=command.sender_attempt,
        receiver_attempt=command.receiver_attempt,
    )
    return encode_ticket(ticket, key)
