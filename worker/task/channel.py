"""The control channel between a worker and a task: length-prefixed messages and descriptors over a UNIX stream.

Both ends use it without blocking; whoever owns the loop polls the socket. Descriptors that travel with a message are
queued in order, and the reader takes as many as the message says it brings.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

_LENGTH = struct.Struct("<I")
#: Bytes of one message; a page of a listing and a proposal of many ranges must fit.
MESSAGE_BYTES_MAX = 64 << 20
#: Descriptors that one message may bring.
DESCRIPTORS_MAX = 16
_READ_BYTES = 256 << 10


class ChannelClosed(ConnectionError):  # noqa: N818
    """The other end is gone."""


class Channel:
    """One end of the channel."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._incoming = bytearray()
        self._put_back: list[bytes] = []
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """The socket's descriptor, to poll."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether messages wait for the socket to take them."""
        return bool(self._outgoing)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Queue a message and write what the socket takes. Descriptors are duplicated, the caller keeps its own."""
        data = memoryview(_LENGTH.pack(len(message)) + message)
        self._outgoing.append((data, tuple(os.dup(fd) for fd in descriptors)))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes now. Raises ChannelClosed."""
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._socket.sendmsg([data], ancillary)
            except BlockingIOError:
                return
            except OSError as error:
                self._forget()
                raise ChannelClosed(f"the other end of the control channel is gone: {error}") from error
            for fd in descriptors:
                os.close(fd)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], ())

    def write_out(self, timeout_s: float) -> bool:
        """Write all that waits, for who will not come back; False after `timeout_s` seconds. Raises ChannelClosed."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLOUT)
        while self._outgoing and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.flush()
        return not self._outgoing

    def receive(self) -> list[bytes]:
        """The messages that have come whole. Raises ChannelClosed when the other end is gone."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _READ_BYTES, DESCRIPTORS_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                raise ChannelClosed(f"the control channel broke: {error}") from error
            self.descriptors.extend(descriptors)
            if not data:
                messages = self._whole()
                if messages:
                    return messages
                raise ChannelClosed("the other end of the control channel closed it")
            self._incoming += data
            if len(data) < _READ_BYTES:
                break
        return self._whole()

    def put_back(self, messages: Sequence[bytes]) -> None:
        """Have the next `receive` return these first. What is put back is no news to who polls."""
        self._put_back.extend(messages)

    def close(self) -> None:
        """Close the socket, and the descriptors that were to be sent and were not, or were not taken."""
        self._forget()
        while self.descriptors:
            os.close(self.descriptors.popleft())
        self._socket.close()

    def _forget(self) -> None:
        """Drop what was not sent: a copy of a pipe's end would keep its peer from seeing a death."""
        while self._outgoing:
            for fd in self._outgoing.popleft()[1]:
                os.close(fd)

    def _whole(self) -> list[bytes]:
        messages, self._put_back = self._put_back, []
        start = 0
        while len(self._incoming) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            if length > MESSAGE_BYTES_MAX:
                raise ChannelClosed(f"a control message of {length} bytes, the limit is {MESSAGE_BYTES_MAX}")
            end = start + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            messages.append(bytes(self._incoming[start + _LENGTH.size : end]))
            start = end
        del self._incoming[:start]
        return messages


def write_on(channel: Channel) -> None:
    """Have this thread's loop write what the socket did not take. Call it after each `send`."""
    import asyncio  # for those who have a loop: a task has none

    if channel.wants_to_write:
        asyncio.get_running_loop().add_writer(channel.fileno(), _writable, channel)


def _writable(channel: Channel) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    try:
        channel.flush()
    except ChannelClosed:
        loop.remove_writer(channel.fileno())
        return
    if not channel.wants_to_write:
        loop.remove_writer(channel.fileno())
