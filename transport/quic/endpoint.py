"""QUIC between hosts: one UDP socket, one thread, any number of links over one connection for each pair of nodes.

`QuicEndpoint` drives `quic_core` (all connections, no socket, no clock) and moves bytes between its streams and the
ends of links (`quic_links`), which belong to the tasks' threads. The thread drains the socket, feeds the core with all
of it, and transmits once: acknowledgements and windows are then said once a batch and not once a datagram, and the
kernel cuts and glues datagrams (`udp`).

A sender's frames go to the core a slice at a time, since aioquic copies what is queued there. Who sends nothing until
it is welcomed costs a receiver nothing but a name: HELLOs that come before their receiver is expected are kept, up to
WAITING_MAX of each peer for WAITING_S seconds.

Prior art: aioquic's asyncio adapter, which transmits after each datagram. Weakness: all connections of a node share a
core of the machine; who needs more starts an endpoint for each peer.
"""

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, assert_never

from headrace.cluster import Credentials, Expelled, Peer, PeerError, utc_now
from headrace.daemon import threads
from headrace.transport import LinkRefusedError
from headrace.transport.core import (
    FRAME_LIMIT_BYTES,
    Aborted,
    Frame,
    FrameKind,
    decode,
    decode_control,
    encode,
    encode_control,
)
from headrace.transport.quic.core import (
    Address,
    ConnectionEnded,
    Event,
    PeerConnected,
    QuicCore,
    QuicSettings,
    StreamCut,
    StreamReceived,
)
from headrace.transport.quic.dial import WAITING_S, Dial, Dialing, Rendezvous, WaitingHello, WaitingHellos
from headrace.transport.quic.links import CheckTicket, LinkState, QuicLink, QuicReceiver, QuicSender, link_key
from headrace.transport.quic.stream_frames import FrameAssembler
from headrace.transport.quic.udp import UdpSocket

DEFAULT_WINDOW_BYTES = 8 << 20
#: What is queued on a stream at most, acknowledged or not, before the next slice waits.
BACKLOG_BYTES = 1 << 20
SLICE_BYTES = 128 << 10
#: System calls of one batch of receiving: some hundreds of datagrams, some milliseconds of work.
RECEIVE_CALLS_MAX = 8
#: A HELLO, its ticket included, and a notice are at most this, in bytes.
HELLO_LIMIT_BYTES = 4096
#: Notices that a peer may have been sent and not taken; then the connection ends.
NOTICES_MAX = 1024
#: The thread looks around at least so often, in seconds.
_IDLE_S = 1.0
#: How long `close` waits for the thread, in seconds.
_JOIN_S = 10.0


@dataclass(slots=True)
class _Stranger:
    """A stream that a peer has opened and that is no link yet."""

    assembler: FrameAssembler
    #: Streams in one direction carry a notice, the others begin with a HELLO.
    is_notice: bool


class QuicEndpoint:
    """A node's end of all its QUIC links. Verbs may be called on any thread; links belong to their users' threads."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        settings: QuicSettings | None = None,
        *,
        offload: bool = True,
    ) -> None:
        self._core = QuicCore(credentials, settings or QuicSettings())
        self._socket = UdpSocket(address, offload=offload)
        #: Where it listens.
        self.address = self._socket.address
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        self._writing = False
        #: Asked for by other threads: ends to look at, and to begin with.
        self._posted: deque[QuicLink] = deque()
        self._openings: deque[tuple[QuicLink, tuple[Address, ...]]] = deque()
        self._relays: deque[tuple[tuple[Address, ...], bytes]] = deque()
        self._expulsions: deque[Expelled] = deque()
        self._sleeping = False
        self._stopping = False
        #: The rest is the thread's alone.
        self._by_address: dict[Address, int] = {}
        self._peers: dict[int, Peer] = {}
        self._links: dict[tuple[int, int], QuicLink] = {}
        self._strangers: dict[tuple[int, int], _Stranger] = {}
        #: Senders whose connection is not yet there.
        self._dialing = Dialing()
        self._rendezvous = Rendezvous()
        self._expected: dict[bytes, QuicReceiver] = {}
        self._waiting = WaitingHellos()
        #: Senders with something to send.
        self._active: dict[tuple[int, int], QuicSender] = {}
        # An error of it ends the process: what asks for links on a dead thread would wait for ever.
        self._thread = threads.start("quic", self._run)

    def reachable(self, address: Address) -> Address:
        """Return an address as this endpoint's socket writes it, for comparison with a sender's."""
        return self._socket.reachable(address)

    def open_link(
        self,
        name: str,
        address: Address,
        ticket: bytes = b"",
        *,
        peer_name: str | None = None,
        others: Sequence[Address] = (),
    ) -> QuicSender:
        """Return the sending end of the link `name` to the node at `address`, which must be named `peer_name` if given.

        `others` are further addresses of that node; they are tried beside the first, and that which answers is taken.
        The end can be used at once and has credit when the receiver has accepted `ticket`. A connection to that node is
        used if there is one. A refusal is a LinkAborted of the sender's next verb.
        """
        if len(ticket) > HELLO_LIMIT_BYTES // 2:
            raise LinkRefusedError(
                f'link "{name}": a ticket of {len(ticket)} bytes; {HELLO_LIMIT_BYTES // 2} is the limit'
            )
        sender = QuicSender(name, ticket, self._post, peer_name)
        self._openings.append((sender, tuple(self._socket.reachable(one) for one in (address, *others))))
        self._nudge()
        return sender

    def expect_link(
        self,
        name: str,
        check: CheckTicket,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> QuicReceiver:
        """Return the receiving end of the link `name`. The first sender that `check` accepts has it.

        `check` is called on the thread of the endpoint with the ticket and the peer, and says why not, or None.
        """
        receiver = QuicReceiver(name, window_bytes, check, self._post, min(limit_bytes, FRAME_LIMIT_BYTES))
        self._openings.append((receiver, ()))
        self._nudge()
        return receiver

    def rendezvous(self, relays: Sequence[Address], data: bytes) -> None:
        """Make this endpoint known to relays, with `data` from `relay_table.rendezvous`, until a peer is connected.

        A relay tells ends apart by their addresses: an endpoint that does this has one link.
        """
        self._relays.append((tuple(self._socket.reachable(relay) for relay in relays), data))
        self._nudge()

    def expel(self, expelled: Expelled) -> None:
        """Cut the links of members that were expelled, and refuse them from now on."""
        self._expulsions.append(expelled)
        self._nudge()

    def close(self) -> None:
        """End all connections and links, and the thread. Peers are told."""
        self._stopping = True
        self._nudge()
        self._thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, link: QuicLink) -> None:
        self._posted.append(link)
        self._nudge()

    def _nudge(self) -> None:
        # The thread sets the flag and then looks at the queues; here it is the other way round.
        if self._sleeping:
            with suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            for connection in self._core.connection_numbers():
                self._core.close(connection, "the node is shutting down")
            self._socket.send(self._core.transmit(time.monotonic()))
        finally:
            self._stopping = True
            openings = [link for link, _ in self._openings]
            for link in (*self._links.values(), *self._expected.values(), *self._dialing.senders(), *openings):
                link.cut("owner", "this node's QUIC endpoint has ended")
            self._socket.close()
            self._epoll.close()
            os.close(self._wake_fd)

    def _turn(self) -> None:
        """Sleep if nothing is to be done, take in what came, say what is to be said."""
        self._sleep()
        now = time.monotonic()
        while self._expulsions:
            self._core.expel(self._expulsions.popleft())
        self._core.receive(self._socket.receive(RECEIVE_CALLS_MAX), now, utc_now())
        self._core.tick(now)
        self._take_events(now)
        while self._relays:
            self._rendezvous.begin(*self._relays.popleft(), now)
        while self._openings:
            self._begin(*self._openings.popleft(), now)
        for dial, address in self._dialing.due(now):
            self._dial(dial, address, now)
        while self._posted:
            self._look_at(self._posted.popleft())
        for key, sender in list(self._active.items()):
            self._feed(key, sender)
        self._socket.send((*self._rendezvous.due(now), *self._core.transmit(time.monotonic())))
        # A close that was sent is an event; so is what it does to links.
        self._take_events(now)

    def _sleep(self) -> None:
        if self._socket.wants_to_write != self._writing:
            self._writing = not self._writing
            events = select.EPOLLIN | (select.EPOLLOUT if self._writing else 0)
            self._epoll.modify(self._socket.fileno(), events)
        timers = (self._core.next_timer(), self._dialing.wake_at(), self._rendezvous.wake_at())
        timer = min((timer for timer in timers if timer is not None), default=None)
        timeout = _IDLE_S if timer is None else min(_IDLE_S, max(0.0, timer - time.monotonic()))
        self._sleeping = True
        if self._posted or self._openings or self._relays or self._expulsions or self._stopping:
            timeout = 0.0
        ready = self._epoll.poll(timeout)
        self._sleeping = False
        if any(descriptor == self._wake_fd for descriptor, _ in ready):
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)

    def _take_events(self, now: float) -> None:
        for event in self._core.events():
            try:
                self._handle(event, now)
            except PeerError as error:
                assert isinstance(event, StreamReceived)
                self._violation(event, error)
        for waiting in self._waiting.late(now):
            self._notify(waiting.connection, waiting.stream, "nobody here expects this link")

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case PeerConnected(connection, peer):
                self._peers[connection] = peer
                self._rendezvous.end()
                self._answered(connection, peer)
            case StreamReceived(connection, stream, data, end):
                link = self._links.get((connection, stream))
                if isinstance(link, QuicReceiver):
                    link.arrived(data, end=end)
                elif isinstance(link, QuicSender):
                    link.answered(data)
                    if end:
                        # The receiver has everything and is done; or it leaves without a word.
                        if link.state is not LinkState.CLOSED:
                            link.cut("receiver", "it ended the link before its sender did")
                        self._drop(link)
                else:
                    self._stranger(event, now)
            case StreamCut(connection, stream):
                # The notice says why. A link that is over needs none.
                self._strangers.pop((connection, stream), None)
                if (connection, stream) not in self._links:
                    self._core.cut_stream(connection, stream)
            case ConnectionEnded(connection, reason, refused):
                self._forget(connection, f"refused: {reason}" if refused else f"the connection ended: {reason}")
            case _:
                assert_never(event)

    def _stranger(self, event: StreamReceived, now: float) -> None:
        """Take the first bytes of a stream that the peer has opened: a HELLO, or a notice."""
        key = (event.connection, event.stream)
        stranger = self._strangers.get(key)
        if stranger is None:
            # Bit 1 of a stream's number says that it goes one way, bit 0 who has opened it.
            stranger = _Stranger(FrameAssembler(HELLO_LIMIT_BYTES, lambda _: None), bool(event.stream & 2))
            self._strangers[key] = stranger
        frames = stranger.assembler.feed(event.data)
        if not frames:
            if event.end:
                del self._strangers[key]
                self._core.cut_stream(*key)
            return
        del self._strangers[key]
        if stranger.is_notice:
            self._noticed(event.connection, decode(frames[0], HELLO_LIMIT_BYTES))
        else:
            self._greeted(event, decode(frames[0], HELLO_LIMIT_BYTES), now)

    def _greeted(self, event: StreamReceived, hello: Frame, now: float) -> None:
        ticket = bytes(hello.metadata)
        if hello.kind is not FrameKind.HELLO:
            self._notify(event.connection, event.stream, f"a link begins with HELLO and not with {hello.kind.name}")
        elif (receiver := self._expected.get(hello.fragment)) is not None:
            self._welcome(receiver, event.connection, event.stream, ticket)
        elif (peer := self._peers.get(event.connection)) is not None:
            waiting = WaitingHello(event.connection, event.stream, ticket, peer, now + WAITING_S)
            if not self._waiting.keep(hello.fragment, waiting):
                self._notify(event.connection, event.stream, "nobody here expects this link, and too many wait already")

    def _welcome(self, receiver: QuicReceiver, connection: int, stream: int, ticket: bytes) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        reason = receiver.check(ticket, peer)
        if reason is not None:
            self._notify(connection, stream, f"the ticket is not accepted: {reason}")
            return
        self._expected.pop(link_key(receiver.name), None)
        receiver.connection, receiver.stream = connection, stream
        self._links[connection, stream] = receiver
        receiver.welcome()
        self._look_at(receiver)

    def _noticed(self, connection: int, notice: Frame) -> None:
        message = decode_control(encode(notice))
        if isinstance(message, Aborted):
            link = self._links.get((connection, message.link))
            if link is not None:
                by = "receiver" if isinstance(link, QuicSender) else "sender"
                link.cut(by, message.reason)
                self._drop(link)

    def _begin(self, link: QuicLink, addresses: tuple[Address, ...], now: float) -> None:
        """Bring a link to life that another thread has asked for."""
        if isinstance(link, QuicReceiver):
            key = link_key(link.name)
            self._expected[key] = link
            for waiting in self._waiting.take(key):
                if link.connection is None:
                    self._welcome(link, waiting.connection, waiting.stream, waiting.ticket)
                else:
                    self._notify(waiting.connection, waiting.stream, "the link has a sender")
            return
        assert isinstance(link, QuicSender)
        for address in addresses:
            connection = self._by_address.get(address)
            peer = None if connection is None else self._peers.get(connection)
            if connection is not None and peer is not None and link.peer_name in (None, peer.identity.name):
                self._say_hello(link, connection)
                return
        self._dialing.begin(link, addresses, now)

    def _dial(self, dial: Dial, address: Address, now: float) -> None:
        connection = self._by_address.get(address)
        if connection is None:
            connection = self._by_address[address] = self._core.connect(address, now)
        self._dialing.attempted(dial, address, connection)
        if (peer := self._peers.get(connection)) is not None:
            self._answered(connection, peer)

    def _answered(self, connection: int, peer: Peer) -> None:
        """A node has proved who it is: let the senders that look for it begin."""
        senders, spare = self._dialing.answered(connection, peer.identity.name)
        for sender in senders:
            self._say_hello(sender, connection)
        for other in spare:
            if not any(number == other for number, _ in self._links):
                self._core.close(other, "another address answered first")

    def _say_hello(self, sender: QuicSender, connection: int) -> None:
        stream = self._core.open_stream(connection)
        sender.connection, sender.stream = connection, stream
        sender.address = self._core.address_of(connection)
        self._links[connection, stream] = sender
        self._core.send(
            connection, stream, encode(Frame(FrameKind.HELLO, 0, link_key(sender.name), 0, 0, sender.ticket, b""))
        )
        self._look_at(sender)

    def _look_at(self, link: QuicLink) -> None:
        """An end has something for its peer."""
        with link.lock:
            link.posted = False
            abort, link.abort_unsaid = link.abort_unsaid, None
        connection, stream = link.connection, link.stream
        if connection is None or stream is None:
            if abort is not None:
                self._never_began(link)
        elif abort is not None:
            self._notify(connection, stream, abort)
            self._drop(link)
        elif isinstance(link, QuicReceiver):
            with link.lock:
                answers, link.answers = link.answers, []
                over = link.detached and link.state is LinkState.CLOSED
            if (answers or over) and (connection, stream) in self._links:
                self._core.send(connection, stream, b"".join(answers), end=over)
                if over:
                    del self._links[connection, stream]
        elif isinstance(link, QuicSender):
            self._active[connection, stream] = link

    def _feed(self, key: tuple[int, int], sender: QuicSender) -> None:
        """Move slices of the sender's frames to its stream, as long as little is queued there."""
        if key not in self._links:
            del self._active[key]
            return
        room = BACKLOG_BYTES - self._core.backlog_bytes(*key)
        while room > 0:
            with sender.lock:
                if not sender.outbox:
                    finish, sender.finish_unsaid = sender.finish_unsaid, False
                    del self._active[key]
                    break
                piece = sender.outbox[0][:SLICE_BYTES]
                if piece.nbytes == sender.outbox[0].nbytes:
                    sender.outbox.popleft()
                else:
                    sender.outbox[0] = sender.outbox[0][SLICE_BYTES:]
            self._core.send(*key, piece)
            room -= piece.nbytes
        else:
            return
        if finish:
            self._core.send(*key, b"", end=True)

    def _notify(self, connection: int, stream: int, reason: str) -> None:
        """Tell the peer why a link is cut, and cut its stream."""
        if connection not in self._peers:
            return
        if self._core.notices(connection) >= NOTICES_MAX:
            self._core.close(connection, f"{NOTICES_MAX} notices were not taken, which is the limit")
            return
        self._core.send(
            connection, self._core.open_notice(connection), encode_control(Aborted(stream, reason)), end=True
        )
        self._core.cut_stream(connection, stream)

    def _violation(self, event: StreamReceived, error: PeerError) -> None:
        """A peer has broken the rules on one stream. The link is cut; the connection and its other links go on."""
        link = self._links.get((event.connection, event.stream))
        self._strangers.pop((event.connection, event.stream), None)
        self._notify(event.connection, event.stream, str(error))
        if link is not None:
            link.cut("owner", str(error))
            self._drop(link)

    def _drop(self, link: QuicLink) -> None:
        if link.connection is not None and link.stream is not None:
            self._links.pop((link.connection, link.stream), None)
            self._core.cut_stream(link.connection, link.stream)

    def _never_began(self, link: QuicLink) -> None:
        if isinstance(link, QuicReceiver):
            self._expected.pop(link_key(link.name), None)
        elif isinstance(link, QuicSender):
            self._dialing.drop(link)

    def _forget(self, connection: int, reason: str) -> None:
        """A connection is over, and so are its links."""
        self._peers.pop(connection, None)
        for address in [address for address, number in self._by_address.items() if number == connection]:
            del self._by_address[address]
        self._dialing.ended(connection, reason)
        for key in [key for key in self._links if key[0] == connection]:
            self._links.pop(key).cut("owner", reason)
        for table in (self._strangers, self._active):
            for key in [key for key in table if key[0] == connection]:
                del table[key]
        self._waiting.forget(connection)
