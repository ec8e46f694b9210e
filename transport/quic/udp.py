"""A UDP socket that moves many datagrams a system call, where the kernel can.

Sending: datagrams of one size to one address go out as one buffer that the kernel (or the card) cuts, by UDP_SEGMENT.
Receiving: the kernel hands over several datagrams of one sender glued together, with their size, by UDP_GRO. Where it
knows neither, datagrams go one by one.
"""

import errno
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from headrace.transport import LinkRefusedError

#: An address as `socket` knows it: host and port, and two more for IPv6.
Address = tuple[str, int] | tuple[str, int, int, int]

#: Not in Python's `socket` (linux/udp.h).
UDP_SEGMENT = 103
UDP_GRO = 104
#: What the kernel takes in one call: datagrams, and bytes.
SEGMENTS_MAX = 64
SEGMENTED_BYTES_MAX = 65_000
#: Receive and send buffers, in bytes; the kernel may give less (net.core.rmem_max).
SOCKET_BUFFER_BYTES = 4 << 20
_RECEIVE_BYTES = 1 << 16
_CONTROL_BYTES = socket.CMSG_SPACE(4)


def every_address() -> Address:
    """Return the address to bind for all of this host's: IPv6 and IPv4, or IPv4 where there is no IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return ("0.0.0.0", 0)  # noqa: S104 - every peer proves who it is before anything it says is looked at
    return ("::", 0, 0, 0)


class UdpSocket:
    """A bound, non-blocking UDP socket."""

    def __init__(self, address: Address, *, offload: bool = True) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._family = family
        if address[0] == "::":
            # One socket for both families: an IPv4 address is written as one of IPv6, see `reachable`.
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise LinkRefusedError(f"cannot bind UDP {address[0]}:{address[1]}: {error}") from error
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        if offload:
            with suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        #: Given up at the first refusal: some devices and sandboxes know the option and cannot do it.
        self._gso = offload
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        #: What a full send buffer did not take, to go first.
        self._unsent: list[tuple[bytes, Address]] = []

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    @property
    def address(self) -> Address:
        """The address that it is bound to."""
        address: Address = self._socket.getsockname()
        return address

    def reachable(self, address: Address) -> Address:
        """Return an address as this socket is to be given it, and gives it itself."""
        if self._family == socket.AF_INET:
            return address
        host = address[0] if ":" in address[0] else f"::ffff:{address[0]}"
        return (host, *address[1:]) if len(address) == 4 else (host, address[1], 0, 0)

    @property
    def wants_to_write(self) -> bool:
        """Whether datagrams wait for room in the send buffer."""
        return bool(self._unsent)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def receive(self, calls_max: int) -> Iterator[tuple[bytes, Address]]:
        """Yield datagrams until none is there or `calls_max` system calls were made."""
        for _ in range(calls_max):
            try:
                size, ancillary, _, address = self._socket.recvmsg_into([self._buffer], _CONTROL_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # An ICMP answer to something sent earlier. Whether the peer is gone is for timers to find.
                continue
            segment = _segment_size(ancillary) or max(1, size)
            for start in range(0, size, segment):
                yield bytes(self._view[start : min(size, start + segment)]), address

    def send(self, datagrams: Iterable[tuple[bytes, Address]]) -> None:
        """Send the datagrams. What the send buffer does not take is kept for the next call, up to its own size."""
        queue = [*self._unsent, *datagrams]
        self._unsent = []
        start = 0
        while start < len(queue):
            stop = self._run(queue, start) if self._gso else start + 1
            try:
                self._send_run(queue, start, stop)
            except BlockingIOError:
                self._unsent = queue[start:]
                return
            except OSError as error:
                if self._gso and stop > start + 1 and error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
                    self._gso = False
                    continue
                # Unreachable for now, or a datagram too large for the path: lost, as far as QUIC is concerned.
            start = stop

    def _send_run(self, queue: list[tuple[bytes, Address]], start: int, stop: int) -> None:
        data, address = queue[start]
        if stop == start + 1:
            self._socket.sendto(data, address)
            return
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(data)))]
        self._socket.sendmsg([datagram for datagram, _ in queue[start:stop]], control, 0, address)

    @staticmethod
    def _run(queue: list[tuple[bytes, Address]], start: int) -> int:
        """Return the end of what may go as one from `start` on: equal in size, the last may be smaller."""
        data, address = queue[start]
        size = total = len(data)
        stop = start + 1
        end = min(len(queue), start + SEGMENTS_MAX)
        while stop < end:
            following, its_address = queue[stop]
            total += len(following)
            if len(following) > size or its_address != address or total > SEGMENTED_BYTES_MAX:
                break
            stop += 1
            if len(following) < size:
                break
        return stop


def _segment_size(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_UDP and kind == UDP_GRO:
            return int.from_bytes(data[:4], "little")
    return 0
