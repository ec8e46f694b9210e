"""The door by which nodes join: a TLS port of its own, since a node that joins has no certificate yet.

What is said there is `cluster/join.py`; every refusal is named to the node and logged here.

Connections whose other end has proved nothing yet: so many at most, each for so long, and the oldest gives way. A
flood of them keeps nobody out: who comes is taken in, and one of the address that has most of them is sent away, the
one that came first. A true node needs some milliseconds. Pure, but for the clock that is handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.metadata import version
from typing import Any

from headrace.cluster import (
    AUTHORITY,
    JOIN_S_MAX,
    LENGTH,
    MESSAGE_LIMIT_BYTES,
    CertificateError,
    Greeting,
    JoinAnswer,
    JoinRequest,
    JoinToken,
    PeerError,
    TokenSpentError,
    body_length,
    check_token,
    decode_message,
    encode_message,
    issue,
    public_key_fingerprint,
    utc_now,
)
from headrace.controller.effects import LineBudget
from headrace.controller.membership.cluster_files import CONTROLLER, ClusterFiles
from headrace.daemon import Effects
from headrace.protos.protocol import Spoken, spoken_here, why_foreign


class Strangers:
    """Those of one door. Each has a number, and something that sends it away."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        #: In the order in which they came: the address, and what sends it away.
        self._there: dict[int, tuple[str, Callable[[], object]]] = {}
        self._by_address: Counter[str] = Counter()
        self._made = 0

    def __len__(self) -> int:
        return len(self._there)

    def come(self, address: str, send_away: Callable[[], object]) -> int:
        """Take one in, for another if there is no room; its number."""
        if len(self._there) >= self._at_most:
            (crowd, _), *_ = self._by_address.most_common(1)
            oldest = next(number for number, (where, _) in self._there.items() if where == crowd)
            _, send = self._there[oldest]
            self.go(oldest)
            send()
        self._made += 1
        self._there[self._made] = address, send_away
        self._by_address[address] += 1
        return self._made

    def go(self, number: int) -> None:
        """It has proved itself, or is gone."""
        found = self._there.pop(number, None)
        if found is not None:
            self._by_address[found[0]] -= 1
            if not self._by_address[found[0]]:
                del self._by_address[found[0]]


logger = logging.getLogger("headrace.controller")

#: Notes durably that a token, by its first slot, is spent by a node of this name and key, or one of its further slots;
#: says why not, or nothing.
Spend = Callable[[str, str, str, tuple[str, ...]], Awaitable[str]]

#: Connections that may be at the door and have shown no good token; for a further one the oldest is sent away.
STRANGERS_MAX = 256
#: Nodes with a good token whose certificate may be under way.
NODES_MAX = 32
#: Seconds in which TLS must be done.
HANDSHAKE_S = 5.0
#: Connections that the kernel keeps until they are taken in, and seconds until that is tried again where it failed.
BACKLOG, AGAIN_S = 128, 0.1
#: A name made for a node has so many digits of its key's fingerprint.
_NAME_DIGITS = 8


class JoinGate:
    """Admits nodes to one cluster."""

    def __init__(self, files: ClusterFiles, spend: Spend, strangers_max: int = STRANGERS_MAX) -> None:
        self._files = files
        self._spend = spend
        self._strangers = Strangers(strangers_max)
        #: A flood of those who say nothing leaves room for the lines of the others.
        self._told, self._told_of_silent = LineBudget(), LineBudget()
        #: Nodes whose token is good and that wait for their certificate.
        self._nodes = 0
        self._version = version("headrace")
        self._authority_pem = (files.folder / f"{AUTHORITY}.pem").read_bytes()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(files.folder / f"{CONTROLLER}.pem", files.folder / f"{CONTROLLER}.key")
        self._listening: list[socket.socket] = []
        self._effects = Effects()

    async def open(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], self._port() or port, *address[2:])
            listening = socket.create_server(where, family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self._listening.append(listening)
            self._effects.start("the door at which nodes join", self._accept(listening))
        return self._port()

    def _port(self) -> int:
        return int(self._listening[0].getsockname()[1]) if self._listening else 0

    async def close(self) -> None:
        """Listen no more, and send everybody away."""
        self._effects.cancel()
        for listening in self._listening:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                # No descriptor is free, or who came has gone.
                self._tell(f"a node could not be taken in: {error}")
                await asyncio.sleep(AGAIN_S)
                continue
            self._effects.start("a node that joins", self._meet(connection, address))

    async def _meet(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        task = asyncio.current_task()
        assert task is not None
        stranger = self._strangers.come(str(address[0]), task.cancel)
        transport: asyncio.WriteTransport | None = None
        try:
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(MESSAGE_LIMIT_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            async with asyncio.timeout(HANDSHAKE_S):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
                )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            async with asyncio.timeout(JOIN_S_MAX):
                await self._admit(reader, writer, stranger, address)
                # Until it has taken its answer, whoever was answered counts, and gives way, as a stranger does.
                self._strangers.go(stranger)
                stranger = self._strangers.come(str(address[0]), task.cancel)
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except asyncio.CancelledError:
            self._tell(f"join from {address[0]}: it gave way to others before it was done", self._told_of_silent)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self._tell(f"join from {address[0]}: {error or type(error).__name__}", self._told_of_silent)
        except PeerError as error:
            self._tell(f"join from {address[0]}: {error}")
        finally:
            self._strangers.go(stranger)
            if transport is not None:
                # and not `close`: that waits, uncounted, until the other end has ended TLS too
                transport.abort()
            else:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _tell(self, words: str, told: LineBudget | None = None) -> None:
        if line := (told or self._told).line(words, asyncio.get_running_loop().time()):
            logger.warning("%s", line)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stranger: int, address: tuple[Any, ...]
    ) -> None:
        writer.write(encode_message(Greeting(self._authority_pem, self._version)))
        await writer.drain()
        body = await reader.readexactly(body_length(await reader.readexactly(LENGTH.size)))
        request = decode_message(JoinRequest, body)
        try:
            answer = await self._judge(request, utc_now(), stranger)
        except (PeerError, CertificateError, ValueError) as error:
            answer = JoinAnswer(b"", "", str(error))
        if answer.name:
            logger.info("join from %s: %s", address[0], answer.name)
        else:
            self._tell(f"join from {address[0]}: refused: {answer.refusal}")
        writer.write(encode_message(answer))
        await writer.drain()

    async def _judge(self, request: JoinRequest, now: datetime, stranger: int) -> JoinAnswer:
        theirs = Spoken(request.version, request.protocol, request.protocol_oldest)
        if wrong := why_foreign("this node", theirs, spoken_here(self._version)):
            return JoinAnswer(b"", "", wrong)
        token = check_token(request.token, self._files.key, now.timestamp())
        if self._nodes >= NODES_MAX:
            return JoinAnswer(b"", "", f"{NODES_MAX} nodes join at this moment, which is the limit: ask again")
        # Who has a token gives way to nobody.
        self._strangers.go(stranger)
        key = public_key_fingerprint(request.public_key_pem)
        name = _name(token, key)
        # The certificate is made before the token is spent, and given out after: a bad key spends nothing.
        certificate = issue(self._files.authority, request.public_key_pem, token.role, name, now)
        self._nodes += 1
        try:
            reason = await self._spend(token.slots[0], name, key, token.slots[1:])
        finally:
            self._nodes -= 1
        if reason:
            raise TokenSpentError(reason)
        return JoinAnswer(certificate, name, "")


def _name(token: JoinToken, key_fingerprint: str) -> str:
    """What a node is called: as its token says, never as the node says."""
    made = f"{token.name or token.role.value}-{key_fingerprint[:_NAME_DIGITS]}"
    return token.name if token.name and token.nodes == 1 else made
