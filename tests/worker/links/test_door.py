"""A worker's door: links come through it from workers of this host, and from nobody else."""

import array
import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from headrace.cluster.ticket import Ticket, encode_ticket
from headrace.transport.core.errors import LinkRefusedError
from headrace.worker.links import handoff
from headrace.worker.links.handoff import (
    DESCRIPTORS_MAX,
    PACKET_BYTES_MAX,
    STRANGERS_MAX,
    HandoffSocket,
    Tie,
    close_all,
)
from tests.kits.host.rights import need_other_users, open_way

PATIENCE_S = 120.0
#: How a script of another user begins.
NOBODY = "import os,socket,sys; os.setuid(65534); s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); "
KEY = b"k" * 32


def ticket(attempt: int = 1) -> bytes:
    return encode_ticket(Ticket(1, "p", "v", 1, "a->b#1", attempt, 1), KEY)


class Ends:
    """Two doors in one process, and what each was told."""

    def __init__(self) -> None:
        self.near, self.far = HandoffSocket(), HandoffSocket()
        self.taken: list[tuple[dict[str, Any], bytes]] = []
        self.ties: list[Tie] = []
        self.near_over: list[tuple[str, bool]] = []
        self.far_over: list[tuple[str, bool]] = []

    def take(self, description: dict[str, Any], descriptors: list[int], tie: Tie) -> None:
        """Read what lies in the memory that came."""
        self.taken.append((description, os.pread(descriptors[0], 100, 0)))
        self.ties.append(tie)
        close_all(descriptors)

    def expect(self, attempt: int = 1) -> None:
        self.far.expect("a->b#1", ticket(attempt), self.take, lambda *why: self.far_over.append(why))

    def bring(self, to: str = "") -> Tie:
        memory = os.memfd_create("test")
        os.write(memory, b"water")
        told = self.near_over.append
        try:
            tie = self.near.bring(to or self.far.name, "a->b#1", ticket(), {"n": 1}, [memory], lambda *why: told(why))
            self.ties.insert(0, tie)
            return tie
        finally:
            os.close(memory)


def run(scene: Callable[[Ends], Any]) -> Ends:
    """Play a scene on a loop, with two doors that are open."""

    async def play() -> Ends:
        ends = Ends()
        ends.near.open()
        ends.far.open()
        try:
            await scene(ends)
        finally:
            for tie in ends.ties:
                tie.end()
            ends.near.close()
            ends.far.close()
        return ends

    return asyncio.run(play())


async def until(what: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not what():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.005)


@pytest.mark.parametrize("first", ["the sender", "the receiver"])
def test_a_link_comes_through_whoever_is_first(first: str) -> None:
    async def scene(ends: Ends) -> None:
        if first == "the receiver":
            ends.expect()
        ends.bring()
        if first == "the sender":
            await until(lambda: ends.far._brought)
            ends.expect()
        await until(lambda: ends.taken)

    ends = run(scene)
    assert ends.taken == [({"n": 1}, b"water")]


@pytest.mark.parametrize("goes", ["near", "far"])
def test_each_side_is_told_when_the_other_lets_go(goes: str) -> None:
    async def scene(ends: Ends) -> None:
        ends.expect()
        tie = ends.bring()
        await until(lambda: ends.taken)
        (tie if goes == "near" else ends.ties[-1]).end()
        await until(lambda: ends.far_over if goes == "near" else ends.near_over)

    ends = run(scene)
    told = ends.far_over if goes == "near" else ends.near_over
    assert told == [("the worker at its other end has let go of it", False)]


def test_who_leaves_before_its_answer_leaves_what_it_brought() -> None:
    kept: list[int] = []

    async def scene(ends: Ends) -> None:
        def take(description: dict[str, Any], descriptors: list[int], tie: Tie) -> None:
            ends.ties.append(tie)
            kept.extend(descriptors)
            # Here the other worker lets go; this one has yet to answer it.
            ends.ties[0].end()

        ends.bring()
        await until(lambda: ends.far._brought)
        ends.far.expect("a->b#1", ticket(), take, lambda *why: ends.far_over.append(why))
        assert os.pread(kept[0], 100, 0) == b"water", "who took it owns it, and nobody else closes it"
        await until(lambda: ends.far_over)
        close_all(kept)

    assert run(scene).far_over == [("the worker at its other end has let go of it", False)]


def test_anothers_ticket_is_refused_by_name_and_the_right_comes() -> None:
    async def scene(ends: Ends) -> None:
        ends.expect(attempt=2)
        ends.bring()
        await until(lambda: ends.near_over)
        ends.expect(attempt=1)
        ends.bring()
        await until(lambda: ends.taken)

    ends = run(scene)
    (reason, apart), *_ = ends.near_over
    assert "the ticket says sender_attempt 1, this end was told 2" in reason
    assert not apart


def test_what_the_receivers_worker_cannot_take_is_refused_with_its_reason() -> None:
    async def scene(ends: Ends) -> None:
        def take(description: dict[str, Any], descriptors: list[int], tie: Tie) -> None:
            raise LinkRefusedError("no ring of ours")

        ends.far.expect("a->b#1", ticket(), take, lambda *why: None)
        ends.bring()
        await until(lambda: ends.near_over)

    assert "no ring of ours" in run(scene).near_over[0][0]


def test_where_there_is_no_door_the_two_are_apart() -> None:
    async def scene(ends: Ends) -> None:
        ends.bring("nobody")
        await until(lambda: ends.near_over)

    (reason, apart), *_ = run(scene).near_over
    assert reason.startswith("nothing can be passed to the other worker")
    assert apart


class Stranger:
    """Somebody at a door who may do anything."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(name)

    def say(self, data: bytes, descriptors: int = 0) -> str:
        """Say it, and return the answer; empty if the door is shut without one."""
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([data], rights)
            return self.hear()
        except BrokenPipeError:
            return ""
        finally:
            close_all(fds)

    def hear(self) -> str:
        answer = self.socket.recv(PACKET_BYTES_MAX)
        self.socket.close()
        return str(msgpack.unpackb(answer)[0]) if answer else ""


async def visit(ends: Ends, data: bytes, descriptors: int = 0) -> str:
    return await asyncio.to_thread(lambda: Stranger(ends.far.name).say(data, descriptors))


@pytest.mark.parametrize(
    ("data", "descriptors", "answer"),
    [
        (b"\xc1" * 20, 0, "what came to the door is no link"),
        (msgpack.packb(["a->b#1", "no bytes", {}]), 0, "what came to the door is no link"),
        (msgpack.packb(["a->b#1", b"x", {}]), 1, "link a->b#1: 1 bytes are no ticket"),
        (b"x" * (PACKET_BYTES_MAX + 1), 0, f"more than {PACKET_BYTES_MAX} bytes"),
        (msgpack.packb(["a->b#1", b"x", {}]), DESCRIPTORS_MAX + 3, f"or {DESCRIPTORS_MAX} descriptors"),
        (msgpack.packb(["unknown", b"x", {}]), 1, "nothing that is expected here came within"),
    ],
    ids=["no msgpack", "no link", "no ticket", "oversize", "too many descriptors", "nobody expects it"],
)
def test_what_is_no_link_is_refused_and_leaves_no_descriptor(
    data: bytes, descriptors: int, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer.endswith("came within"):
        # The others are refused for what they bring, and however long they take to say it.
        monkeypatch.setattr(handoff, "STRANGER_S", 0.3)
    found: list[int] = []

    async def scene(ends: Ends) -> None:
        ends.expect()
        await visit(ends, b"\xc1")
        before = len(os.listdir("/proc/self/fd"))
        assert answer in await visit(ends, data, descriptors)
        found.append(len(os.listdir("/proc/self/fd")) - before)

    assert run(scene).taken == []
    assert found == [0]


def test_the_silent_are_sent_away_and_only_few_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Within it all of them come, on a machine that may be busy with other things.
    monkeypatch.setattr(handoff, "STRANGER_S", 3.0)

    async def scene(ends: Ends) -> None:
        silent = [Stranger(ends.far.name) for _ in range(STRANGERS_MAX)]
        await until(lambda: len(ends.far._strangers) == STRANGERS_MAX)
        assert "others stand at the door" in await asyncio.to_thread(Stranger(ends.far.name).hear)
        for stranger in silent:
            assert "nothing that is expected here came" in await asyncio.to_thread(stranger.hear)
        ends.expect()
        ends.bring()
        await until(lambda: ends.taken)

    run(scene)


def test_another_user_of_this_host_does_not_come_to_the_door() -> None:
    need_other_users()
    script = NOBODY + "print(s.connect_ex(sys.argv[1]))"

    async def scene(ends: Ends) -> None:
        def come() -> str:
            command = [sys.executable, "-I", "-S", "-c", script, ends.far.name]
            return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout

        assert await asyncio.to_thread(come) == f"{errno.EACCES}\n"

    run(scene)


def test_a_door_that_another_user_has_made_is_given_nothing(tmp_path: Path) -> None:
    need_other_users()
    open_way(tmp_path)
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o700)
    os.chown(theirs, 65534, 65534)
    script = NOBODY + "s.bind(sys.argv[1]); s.listen(); print(flush=True); c,_=s.accept(); print(len(c.recv(999)))"
    command = [sys.executable, "-I", "-S", "-c", script, str(theirs / "d")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as thief:
        assert thief.stdout is not None
        assert thief.stdout.readline() == b"\n"

        async def scene(ends: Ends) -> None:
            ends.bring(str(theirs / "d"))
            await until(lambda: ends.near_over)

        (reason, apart), *_ = run(scene).near_over
        thief.kill()
        assert thief.stdout.read() == b""
    assert f"{theirs} belongs to user 65534" in reason
    assert apart


def test_many_who_come_at_once_do_not_hold_up_the_loop() -> None:
    async def scene(ends: Ends) -> None:
        turns: list[int] = []
        own, ends.far._socket = ends.far._socket, cast("socket.socket", Crowd())
        asyncio.get_running_loop().call_soon(turns.append, 1)
        ends.far._accept()
        ends.far._socket = own
        await until(lambda: turns)

    run(scene)


class Crowd:
    """A listening socket at which another one always waits."""

    def accept(self) -> tuple[socket.socket, str]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        return ours, ""
