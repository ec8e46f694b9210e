"""The control channel: messages and descriptors arrive in order, and whoever dies holds nobody else's descriptors."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.worker.task.channel import Channel, ChannelClosed

PATIENCE_S = 120.0


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(sock) for sock in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    os.close(read_end)


def ended(read_end: int) -> bool:
    """Whether nobody holds the other end."""
    try:
        return os.read(read_end, 1) == b""
    except BlockingIOError:
        return False


def test_what_is_put_back_comes_again_before_what_came_later(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send(b"first")
    ours.send(b"second")
    first, *others = theirs.receive()
    theirs.put_back(others)
    ours.send(b"third")
    assert [first, *theirs.receive()] == [b"first", b"second", b"third"]
    assert theirs.receive() == []


def test_what_is_put_back_comes_though_the_other_end_is_gone(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send(b"first")
    ours.send(b"second")
    theirs.put_back(theirs.receive()[1:])
    ours.close()
    assert theirs.receive() == [b"second"]
    with pytest.raises(ChannelClosed):
        theirs.receive()


def test_the_last_words_of_the_dead_are_written_as_taken(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send(bytes(4 << 20))
    ours.send(b"it failed")
    assert not ours.write_out(0.01), "nobody takes them yet"
    taken: list[bytes] = []

    def take() -> None:
        while len(taken) < 2:
            select.select([theirs.fileno()], [], [], PATIENCE_S)
            taken.extend(theirs.receive())

    taking = threading.Thread(target=take)
    taking.start()
    assert ours.write_out(PATIENCE_S)
    taking.join(PATIENCE_S)
    assert taken[1:] == [b"it failed"]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "behind what waits"])
def test_descriptors_for_who_is_gone_are_held_by_nobody(
    ends: tuple[Channel, Channel], pipe: tuple[int, int], waits: bool
) -> None:
    ours, theirs = ends
    read_end, write_end = pipe
    if waits:
        ours.send(bytes(4 << 20))
        assert ours.wants_to_write
        ours.send(b"take it", [write_end])
        theirs.close()
        with pytest.raises(ChannelClosed):
            ours.flush()
    else:
        theirs.close()
        with pytest.raises(ChannelClosed):
            ours.send(b"take it", [write_end])
    os.close(write_end)
    assert ended(read_end)
    assert not ours.wants_to_write


@pytest.mark.parametrize("closes", ["who sends", "who receives"])
def test_descriptors_that_nobody_took_are_closed_with_the_channel(
    ends: tuple[Channel, Channel], pipe: tuple[int, int], closes: str
) -> None:
    ours, theirs = ends
    read_end, write_end = pipe
    if closes == "who sends":
        ours.send(bytes(4 << 20))
        ours.send(b"take it", [write_end])
        os.close(write_end)
        ours.close()
    else:
        ours.send(b"take it", [write_end])
        os.close(write_end)
        assert theirs.receive() == [b"take it"]
        theirs.close()
    assert ended(read_end)
