"""Who has proved nothing gives way: the oldest of the address that has most, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.cluster import (
    AUTHORITY,
    JoinRequest,
    Role,
    create_authority,
    create_node,
    encode_message,
    write_credentials,
)
from headrace.controller.effects.lines import LINES_MAX, WINDOW_S, LineBudget
from headrace.controller.membership.cluster_files import CONTROLLER, ClusterFiles
from headrace.controller.membership.joining import JoinGate, Strangers

#: Less than asyncio waits for the end of TLS, which is 30 s.
END_S = 15.0


def test_the_oldest_of_the_address_with_most_gives_way() -> None:
    gone: list[str] = []
    strangers = Strangers(3)
    for address, name in (("b", "node"), ("a", "a1"), ("a", "a2"), ("a", "a3"), ("c", "c1")):
        strangers.come(address, lambda name=name: gone.append(name))  # type: ignore[misc]
    assert gone == ["a1", "a2"]
    assert len(strangers) == 3


def test_who_has_proved_itself_is_no_stranger_and_gives_way_to_nobody() -> None:
    gone: list[str] = []
    strangers = Strangers(1)
    node = strangers.come("a", lambda: gone.append("node"))
    strangers.go(node)
    for number in range(3):
        strangers.come("a", lambda number=number: gone.append(str(number)))  # type: ignore[misc]
    assert gone == ["0", "1"]
    strangers.go(node)
    assert len(strangers) == 1, "who went twice has gone once"


def test_a_flood_writes_a_bounded_number_of_lines_and_counts() -> None:
    told = LineBudget()
    lines = [told.line("sent away", 0.0) for _ in range(LINES_MAX + 5)]
    assert [line for line in lines if line] == ["sent away"] * LINES_MAX
    assert told.line("sent away", WINDOW_S) == "sent away; 5 more were not told"


def files(folder: Path) -> ClusterFiles:
    now = datetime.now(UTC)
    authority = create_authority("test", now)
    controller = create_node(authority, Role.CONTROLLER, CONTROLLER, now)
    for name, credentials in ((AUTHORITY, authority), (CONTROLLER, controller)):
        write_credentials(folder, name, credentials)
    return ClusterFiles(folder, "test", (), os.urandom(32), authority, controller)


def guest(port: int, says: bytes) -> ssl.SSLSocket:
    """One that is through with TLS, and has read what it is answered if it said anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = context.wrap_socket(socket.create_connection(("127.0.0.1", port), END_S))
    connection.sendall(says)
    heard = b""
    while says and b"this node" not in heard:
        heard += (part := connection.recv(1 << 16))
        assert part, heard
    return connection


def has_ended(connection: ssl.SSLSocket) -> bool:
    """Whether the door lets go of the connection itself, and does not only end TLS. Raises TimeoutError."""
    with socket.socket(fileno=connection.detach()) as plain, contextlib.suppress(ConnectionError):
        plain.settimeout(END_S)
        while plain.recv(1 << 16):
            pass
    return True


REFUSED = encode_message(JoinRequest("", b"", "0", 0, 0))


@pytest.mark.parametrize("says", [b"", REFUSED], ids=["nothing", "a request that is refused"])
def test_who_gave_way_holds_no_connection_though_it_stays(tmp_path: Path, says: bytes) -> None:
    async def spend(*_: object) -> str:
        raise AssertionError("nobody has a token")

    async def scene() -> None:
        gate = JoinGate(files(tmp_path), spend, strangers_max=1)
        port = await gate.open("127.0.0.1", 0)
        first = await asyncio.to_thread(guest, port, says)
        with await asyncio.to_thread(guest, port, b""):
            assert await asyncio.to_thread(has_ended, first)
        await gate.close()

    asyncio.run(scene())
