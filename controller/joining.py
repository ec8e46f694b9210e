"""The door by which nodes join: a TLS port of its own, since a node that joins has no certificate yet.

What is said there is `transport/join_wire.py`; every refusal is named to the node and logged here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.metadata import version

from headrace.controller.cluster_files import CONTROLLER, ClusterFiles
from headrace.transport.certificates import CertificateError, issue, public_key_fingerprint
from headrace.transport.clock import utc_now
from headrace.transport.credential_files import AUTHORITY
from headrace.transport.errors import TransportError
from headrace.transport.join_wire import (
    LENGTH,
    PATIENCE_S,
    Answer,
    Greeting,
    Request,
    body_length,
    decode_message,
    encode_message,
)
from headrace.transport.token import JoinToken, TokenSpentError, check_token

logger = logging.getLogger("headrace.controller")

#: Notes durably that a token, by its identifier, is spent by a node of this name and key; says why not, or nothing.
Spend = Callable[[str, str, str], Awaitable[str]]

#: Nodes that may be at the door at once.
GUESTS_MAX = 32
#: A name made for a node has so many digits of its key's fingerprint.
_NAME_DIGITS = 8


class Door:
    """Admits nodes to one cluster."""

    def __init__(self, files: ClusterFiles, spend: Spend) -> None:
        self._files = files
        self._spend = spend
        self._guests = 0
        self._version = version("headrace")
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        folder = self._files.folder
        context.load_cert_chain(folder / f"{CONTROLLER}.pem", folder / f"{CONTROLLER}.key")
        self._server = await asyncio.start_server(
            self._greet, host.strip("[]"), port, ssl=context, ssl_handshake_timeout=PATIENCE_S
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._guests += 1
        try:
            if self._guests <= GUESTS_MAX:
                async with asyncio.timeout(PATIENCE_S):
                    await self._admit(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, TransportError) as error:
            logger.warning("join from %s: %s", writer.get_extra_info("peername"), error or type(error).__name__)
        finally:
            self._guests -= 1
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        authority_pem = (self._files.folder / f"{AUTHORITY}.pem").read_bytes()
        writer.write(encode_message(Greeting(authority_pem, self._version)))
        await writer.drain()
        body = await reader.readexactly(body_length(await reader.readexactly(LENGTH.size)))
        request = decode_message(Request, body)
        try:
            answer = await self._judge(request, utc_now())
        except (TransportError, CertificateError, ValueError) as error:
            answer = Answer(b"", "", str(error))
        who = answer.name or f"refused: {answer.refusal}"
        logger.info("join from %s: %s", writer.get_extra_info("peername"), who)
        writer.write(encode_message(answer))
        await writer.drain()

    async def _judge(self, request: Request, now: datetime) -> Answer:
        if request.version != self._version:
            return Answer(b"", "", f"this node is Headrace {request.version}, the controller {self._version}")
        token = check_token(request.token, self._files.key, now.timestamp())
        key = public_key_fingerprint(request.public_key_pem)
        name = _name(token, key)
        # The certificate is made before the token is spent, and given out after: a bad key spends nothing.
        certificate = issue(self._files.authority, request.public_key_pem, token.role, name, now)
        if reason := await self._spend(token.identifier.hex(), name, key):
            raise TokenSpentError(reason)
        return Answer(certificate, name, "")


def _name(token: JoinToken, key_fingerprint: str) -> str:
    """What a node is called: as its token says, never as the node says."""
    return token.name or f"{token.role.value}-{key_fingerprint[:_NAME_DIGITS]}"
