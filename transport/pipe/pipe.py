"""The pipe: frames through a pipe of the kernel, between two processes of one host that share no memory.

Two channels. The **pipe** carries the frames, one after the other and nothing else. A **control channel** (a pair of
sequential-packet sockets) carries grants one way, close and abort the other: an abort must not wait behind what is
cut off by it. Close says how many frames there were, so an orderly end can be told from a death, which closes
descriptors as well.

**Sending.** `try_send` writes what the pipe takes at once, from where it lies, and keeps a copy of the rest. While
there is a rest the next frame finds no space. A thread sees to it when the task goes on to compute for long, since
the tail of its frame must not wait for its next verb.

**Receiving.** Small frames are cut from a read-ahead buffer; a large one is read straight into a buffer of its own,
allocated only after its header has been checked against limit and credit. Buffers are kept and used again: fresh
memory costs more page faults than the pipe costs copies.

**Waiting.** The descriptor of an end is an epoll over its channels, empty unless the end is armed.

Weakness: one system call for each end and MiB at least, and two copies by the kernel; between processes of our own
runtime the ring does the same 8 times as fast.
"""

import fcntl
import os
import select
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.transport import (
    FrameKindError,
    FrameOversizeError,
    LinkAborted,
    LinkClosed,
    LinkRefusedError,
    LinkStatistics,
)
from headrace.transport.core import (
    FRAME_LIMIT_BYTES,
    Aborted,
    Control,
    CreditReceiver,
    CreditSender,
    Finished,
    Frame,
    Granted,
    decode,
    decode_control,
    encode_control,
    encode_parts,
    encoded_size,
    let_go,
)
from headrace.transport.pipe.io import FrameReader, PipeWriter

#: What is asked of the kernel for the pipe; unprivileged users get it up to /proc/sys/fs/pipe-max-size.
PIPE_BYTES = 1 << 20
DEFAULT_WINDOW_BYTES = 8 << 20
#: How long `close` and `detach` give the rest of what was sent, in seconds.
FLUSH_S = 30.0
_CONTROL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PipeHandles:
    """All that is needed to attach to a pipe: numbers, and descriptors of this process.

    Each end takes two of them and closes them when it is detached; who passed them on closes its own copies.
    """

    name: str
    window_bytes: int
    limit_bytes: int
    read_fd: int
    write_fd: int
    receiver_control_fd: int
    sender_control_fd: int

    def descriptors(self) -> tuple[int, int, int, int]:
        """Return all descriptors, in the order that `with_descriptors` takes."""
        return self.read_fd, self.write_fd, self.receiver_control_fd, self.sender_control_fd

    def with_descriptors(self, read_fd: int, write_fd: int, receiver_fd: int, sender_fd: int) -> "PipeHandles":
        """Return the same handles with the numbers that the descriptors have in this process."""
        return replace(
            self, read_fd=read_fd, write_fd=write_fd, receiver_control_fd=receiver_fd, sender_control_fd=sender_fd
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data for a message or a command line; `from_description` reads it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> "PipeHandles":
        """Read what `describe` gave. Raises LinkRefusedError if it is something else."""
        try:
            numbers = {field: int(description[field]) for field in cls.__dataclass_fields__ if field != "name"}
            return cls(name=str(description["name"]), **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LinkRefusedError(f"no description of a pipe ({error!r}): {description!r}") from error

    def close_sender(self) -> None:
        """Close this process's copies of the sender's descriptors, after they were passed on."""
        _close(self.write_fd, self.sender_control_fd)

    def close_receiver(self) -> None:
        """Close this process's copies of the receiver's descriptors, after they were passed on."""
        _close(self.read_fd, self.receiver_control_fd)


def create_pipe(
    name: str, window_bytes: int = DEFAULT_WINDOW_BYTES, limit_bytes: int = FRAME_LIMIT_BYTES
) -> PipeHandles:
    """Make a pipe and return its handles. Raises OSError where the kernel has no descriptors left.

    A kernel that refuses PIPE_BYTES leaves the pipe at its default of 64 KiB, which is slower and otherwise the same.
    """
    if window_bytes < 1:
        raise LinkRefusedError(f'pipe "{name}": a window of {window_bytes} bytes; it needs at least 1')
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with suppress(OSError):
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (receiver, sender):
        end.setblocking(False)
    limit_bytes = min(limit_bytes, FRAME_LIMIT_BYTES)
    return PipeHandles(name, window_bytes, limit_bytes, read_fd, write_fd, receiver.detach(), sender.detach())


class _PipeEnd:
    """What both ends share: the control channel, the epoll, and how the link ended."""

    def __init__(self, handles: PipeHandles, role: str, control_fd: int) -> None:
        self.name = handles.name
        self._role = role
        self.limit_bytes = handles.limit_bytes
        self._control = socket.socket(fileno=control_fd)
        self._epoll = select.epoll()
        #: What arm watches, and what it does watch now.
        self._watched: dict[int, int] = {control_fd: select.EPOLLIN}
        self._armed: set[int] = set()
        self._end: LinkAborted | None = None
        #: All is heard that the peer has said, and it will say no more.
        self._peer_gone = False
        self._frames = self._frame_bytes = self._blocked = 0

    def fileno(self) -> int:
        """Return the descriptor of the epoll over this end's channels."""
        return self._epoll.fileno()

    def has_news(self) -> bool:
        """Look at the channels, by one system call."""
        if self._has_more():
            return True
        poll = select.poll()
        for descriptor, events in self._watched.items():
            poll.register(descriptor, events)
        return bool(poll.poll(0))

    def arm(self) -> bool:
        """Ask to be woken; False if there is news since this end last looked."""
        if self._has_more():
            return False
        for descriptor, events in self._watched.items():
            self._epoll.register(descriptor, events)
            self._armed.add(descriptor)
        if self._epoll.poll(0):
            self.disarm()
            return False
        return True

    def disarm(self) -> None:
        """Take the wish to be woken back."""
        while self._armed:
            self._epoll.unregister(self._armed.pop())

    def abort(self, reason: str) -> None:
        """Give the link up; the peer learns the reason, if it lives and its channel has room."""
        if self._end is None:
            self._end = LinkAborted(self.name, self._role, reason)
            if not self._say(Aborted(0, reason)):
                # Full of grants that the peer has not read: it will read them, and then that there is no more.
                self._control.shutdown(socket.SHUT_WR)

    def _has_more(self) -> bool:
        """Whether the next verb has something to say that no descriptor tells of."""
        return self._end is not None

    def _say(self, message: Control) -> bool:
        """Send a control message; False if the channel is full now. To a peer that is gone nothing need be said."""
        try:
            self._control.send(encode_control(message))
        except BlockingIOError:
            return False
        except OSError:
            # What it said before it went is still to be heard, and then that it is gone.
            return True
        return True

    def _listen(self) -> None:
        """Take in all control messages. Raises what an end raises when the link is cut."""
        if self._end is not None:
            raise self._end
        while True:
            try:
                message = self._control.recv(_CONTROL_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # Said once, of a peer that went with messages unread, and before those that it sent.
                continue
            except OSError:
                message = b""
            if not message:
                self._hung_up()
                return
            self._heard(decode_control(message))

    def _heard(self, message: Control) -> None:
        raise NotImplementedError

    def _hung_up(self) -> None:
        raise NotImplementedError

    def _cut(self, by: str, reason: str) -> LinkAborted:
        self._end = LinkAborted(self.name, by, reason)
        return self._end

    def _unexpected(self, message: Control) -> FrameKindError:
        return FrameKindError(f'pipe "{self.name}": {message} from the wrong end; abort the link')

    def detach(self) -> None:
        """Close this end's descriptors; a peer that is still there sees a death. A second call does nothing."""
        if not self._epoll.closed:
            self.disarm()
            self._epoll.close()
            self._control.close()


class PipeSender(_PipeEnd):
    """The sending end; see `contract.Sender`. It takes over `write_fd` and `sender_control_fd`."""

    def __init__(self, handles: PipeHandles) -> None:
        super().__init__(handles, "sender", handles.sender_control_fd)
        self._credit = CreditSender(handles.window_bytes)
        self._write_fd = handles.write_fd
        self._writer = PipeWriter(handles.write_fd, handles.name)
        self._closed = False
        #: Whether credit has come back that was counted and not yet looked at: it is news still.
        self._credited = False

    def credit_bytes(self) -> int:
        """Return the bytes of credit left."""
        self._listen()
        self._credited = False
        return self._credit.available

    def try_send(self, frame: Frame) -> bool:
        """Write the frame to the pipe and its rest to the thread's queue, or return False for want of credit."""
        self._listen()
        self._credited = False
        if self._closed:
            raise LinkClosed(f'pipe "{self.name}": this end has closed it; nothing can be sent any more')
        size_bytes = encoded_size(frame)
        if size_bytes > self.limit_bytes:
            raise FrameOversizeError(
                f'pipe "{self.name}": frame of {size_bytes} bytes, the limit is {self.limit_bytes}; cut smaller batches'
            )
        if not self._credit.can_send(size_bytes) or not self._flush():
            self._blocked += 1
            return False
        self._credit.sent(size_bytes)
        if not self._writer.write(encode_parts(frame)):
            raise self._cut("owner", "the receiver is gone: its end of the pipe is closed")
        self._frames += 1
        self._frame_bytes += size_bytes
        return True

    def _flush(self) -> bool:
        """Write the rest of the last frame; while there is one, room in the pipe is news."""
        done = self._writer.flush()
        if done:
            self._watched.pop(self._write_fd, None)
        else:
            self._watched[self._write_fd] = select.EPOLLOUT
        return done

    def close(self) -> None:
        """End the link after what was sent; the thread writes the rest of it."""
        if not self._closed and self._end is None:
            self._closed = True
            self._unwatch_pipe()
            # Said first: whoever finds the pipe ended finds the reason in the channel.
            self._say(Finished(self._frames))
            self._writer.finish()

    def abort(self, reason: str) -> None:
        """Give the link up, with what is not yet written."""
        super().abort(reason)
        self._drop()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end. Wakes are the kernel's: there are none to count."""
        if self._end is None:
            before_bytes = self._credit.in_flight_bytes
            with suppress(LinkAborted):
                self._listen()
            self._credited |= self._credit.in_flight_bytes < before_bytes
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, self._credit.in_flight_bytes, 0)

    def _has_more(self) -> bool:
        return super()._has_more() or self._credited

    def detach(self) -> None:
        """Close the descriptors once the rest of what was sent is written, for at most FLUSH_S seconds."""
        if self._closed and self._end is None:
            self._writer.wait(FLUSH_S)
        super().detach()
        self._drop()

    def _drop(self) -> None:
        self._unwatch_pipe()
        self._writer.drop()

    def _unwatch_pipe(self) -> None:
        """Before its descriptor is closed, and the number is another's."""
        self._watched.pop(self._write_fd, None)
        if self._write_fd in self._armed:
            self._armed.remove(self._write_fd)
            self._epoll.unregister(self._write_fd)

    def _cut(self, by: str, reason: str) -> LinkAborted:
        self._drop()
        return super()._cut(by, reason)

    def _heard(self, message: Control) -> None:
        match message:
            case Granted(size_bytes):
                self._credit.granted(size_bytes)
            case Aborted(_, reason):
                raise self._cut("receiver", reason)
            case _:
                raise self._unexpected(message)

    def _hung_up(self) -> None:
        if not self._closed:
            raise self._cut("owner", "the receiver is gone: its control channel is closed")
        self._watched.clear()


class PipeReceived:
    """A frame on loan; see `contract.Received`."""

    __slots__ = ("_buffer", "_frame", "_receiver", "size_bytes")

    def __init__(self, receiver: "PipeReceiver", frame: Frame, size_bytes: int, buffer: memoryview) -> None:
        self._receiver = receiver
        self._frame: Frame | None = frame
        self._buffer = buffer
        self.size_bytes = size_bytes

    @property
    def frame(self) -> Frame:
        """The frame, in memory of the receiver."""
        if self._frame is None:
            raise RuntimeError(f'pipe "{self._receiver.name}": the frame was released; copy what is needed before')
        return self._frame

    def try_release(self) -> bool:
        """Release it, unless something still refers to the body: small frames are read into one buffer."""
        if self._frame is not None and not let_go(self._frame):
            return False
        self.release()
        return True

    def release(self) -> None:
        """Give memory and credit back; the memory is used again only where nothing else refers to it."""
        frame, self._frame = self._frame, None
        if frame is not None:
            self._receiver.give_back(frame, self._buffer, self.size_bytes)


class PipeReceiver(_PipeEnd):
    """The receiving end; see `contract.Receiver`. It takes over `read_fd` and `receiver_control_fd`."""

    def __init__(self, handles: PipeHandles) -> None:
        super().__init__(handles, "receiver", handles.receiver_control_fd)
        self._credit = CreditReceiver(handles.window_bytes)
        self._reader = FrameReader(handles.read_fd, handles.name, handles.limit_bytes, handles.window_bytes)
        self._watched[handles.read_fd] = select.EPOLLIN
        #: Credit that is granted and could not be said yet, in bytes.
        self._owed_bytes = 0
        self._frames_promised: int | None = None

    def try_receive(self) -> PipeReceived | None:
        """Return the next frame, or None."""
        if not self._peer_gone:
            self._listen()
        elif self._end is not None:
            raise self._end
        self._pay()
        raw = self._reader.read()
        if raw is not None:
            return self._taken(raw)
        if self._reader.ended and not self._peer_gone:
            # The sender may have said why since this end listened.
            self._listen()
        if self._frames_promised is not None and self._frames >= self._frames_promised:
            raise LinkClosed(f'pipe "{self.name}": closed by its sender after {self._frames} frames')
        if self._reader.ended:
            raise self._cut("owner", "the sender is gone: the pipe ended without a close")
        self._blocked += 1
        return None

    def give_back(self, frame: Frame, buffer: memoryview, size_bytes: int) -> None:
        """Take memory and credit of a frame back. Called by `PipeReceived.release`."""
        self._reader.reuse(frame, buffer)
        self._owed_bytes += self._credit.released(size_bytes)
        if self._end is None:
            self._pay()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end. Wakes are the kernel's: there are none to count."""
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, self._credit.held_bytes, 0)

    def detach(self) -> None:
        """Close the descriptors. Memory of frames that are still in use stays until they are gone."""
        super().detach()
        self._reader.close()

    def _taken(self, raw: memoryview) -> PipeReceived:
        size_bytes = raw.nbytes
        frame = decode(raw, self.limit_bytes)
        self._credit.received(size_bytes)
        self._frames += 1
        self._frame_bytes += size_bytes
        return PipeReceived(self, frame, size_bytes, raw)

    def _has_more(self) -> bool:
        return super()._has_more() or self._reader.may_have_more or self._frames_promised == self._frames

    def _pay(self) -> None:
        """Say what credit is owed. A full channel is watched until it has room."""
        control_fd = self._control.fileno()
        if self._owed_bytes and not self._peer_gone and self._say(Granted(self._owed_bytes)):
            self._owed_bytes = 0
        if not self._armed and control_fd in self._watched:
            self._watched[control_fd] = select.EPOLLIN | (select.EPOLLOUT if self._owed_bytes else 0)

    def _heard(self, message: Control) -> None:
        match message:
            case Finished(frames):
                self._frames_promised = frames
            case Aborted(_, reason):
                raise self._cut("sender", reason)
            case _:
                raise self._unexpected(message)

    def _hung_up(self) -> None:
        # What lies in the pipe is still good: a sender may close, detach and be gone.
        self._peer_gone = True
        self._watched.pop(self._control.fileno(), None)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
