"""The contract of a link: what each verb means, who calls it, on which thread, and who owns the memory.

A link has two ends and an owner. The sender's task calls `Sender`, the receiver's task calls `Receiver`; the owner
(the worker) made the link and outlives both ends. All transports keep this contract, and one conformance suite
(`tests/transport`) runs on all of them.

**Threads.** An end belongs to one thread at a time: all its verbs, and `release` of what it received, are called
there. The two ends may live in different threads or processes, as the transport says. No verb blocks; who wants to
wait does so outside, with `wait_any` or a loop of its own.

**Memory.** `try_send` copies the frame before it returns True, or (inline) keeps a reference: do not write into a
body that was sent. A `Received` lends its frame: the views are good until `release`, which returns the memory and
the credit. Whatever was built on them without a copy (an Arrow batch, a numpy array) must be finished with, or
copied, before that; a transport cannot see such users and the memory will be written again. Several `Received` may
be held, and released in any order; what is held is credit that the sender lacks, so who gathers batches for long
copies them into memory of its own and releases at once. `try_release` is for who may not be finished: it sees whether
the body's buffer is still in use, as an Arrow batch uses it, and gives back nothing until it is not.

A body may be given yet unwritten (`frame.Unwritten`): a ring has it written in place, others into new memory. If the
writing raises, nothing was sent.

**Waiting.** A busy link makes no system calls. An end that is about to sleep says so first:

    while (received := receiver.try_receive()) is None:
        if receiver.arm():                    # nothing came since: it is safe to sleep
            poll(receiver.fileno(), deadline)
            receiver.disarm()                 # always, woken or timed out

`arm` sets a flag that the peer sees, looks again, and returns False (flag cleared) if something has changed since the
last `try_receive`, `try_send` or `credit_bytes`. The peer writes to the eventfd only while the flag is set. A wake may
be spurious: it promises news and not success. Every wait has a deadline.

**The end.** `close` is the sender's orderly end: the receiver gets everything that was sent and then LinkClosed.
`abort` by either end, or by the owner for an end that died, cuts: the other end's next verb raises LinkAborted, and
what was in flight is lost (the ledger has it read again). An end that raised a TransportError other than LinkClosed
and LinkAborted has met a peer that does not keep to the rules; the caller aborts the link and says why.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.transport.core import Frame


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What one end has done so far. Sizes are of encoded frames."""

    #: Frames sent, or received.
    frames: int
    #: Their bytes.
    frame_bytes: int
    #: For a sender, how often `try_send` was refused; for a receiver, how often it found nothing.
    blocked: int
    #: For a sender, bytes sent and not yet granted back; for a receiver, bytes held.
    in_flight_bytes: int
    #: How often this end woke the other one.
    wakes: int


class Received(Protocol):
    """A frame on loan from a link."""

    def try_release(self) -> bool:
        """Release it, unless what was built on its body is still in use and would be written over: then False.

        Seen is who holds the body's buffer itself, as Arrow does (`pyarrow.py_buffer`), and not who holds a slice.
        """
        ...

    @property
    def frame(self) -> Frame:
        """The frame. Raises RuntimeError after `release`."""
        ...

    def release(self) -> None:
        """Give memory and credit back. Called once, on the receiver's thread; a second call does nothing."""
        ...


class LinkEnd(Protocol):
    """What both ends have."""

    @property
    def name(self) -> str:
        """The name of the link, for messages."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after a wake, for poll, select or an event loop."""
        ...

    def has_news(self) -> bool:
        """Say whether anything has changed since the last verb: what `arm` asks, without the wish and without cost.

        For who spins for some microseconds before it sleeps. It may miss what `arm` would find.
        """
        ...

    def arm(self) -> bool:
        """Ask to be woken. True: sleep on `fileno` now, then `disarm`. False: there is news, look again."""
        ...

    def disarm(self) -> None:
        """Take the wish to be woken back and empty the descriptor."""
        ...

    def abort(self, reason: str) -> None:
        """Give the link up; the other end learns `reason`. May be called at any time, also twice."""
        ...

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end. Never raises for the state of the link, and what it counts is news still."""
        ...

    def detach(self) -> None:
        """Let go of this end's memory, and tell nobody. No other verb may follow."""
        ...


class Sender(LinkEnd, Protocol):
    """The end that sends."""

    @property
    def limit_bytes(self) -> int:
        """The largest encoded frame that this link carries, in bytes."""
        ...

    def credit_bytes(self) -> int:
        """Return the bytes of credit left. Who has a choice of links sends on the one with the most.

        Raises LinkAborted.
        """
        ...

    def try_send(self, frame: Frame) -> bool:
        """Send the frame, or return False if there is no credit or no space for it now.

        Raises FrameOversizeError above `limit_bytes` (the link stays good), LinkAborted, LinkClosed after `close`.
        """
        ...

    def close(self) -> None:
        """End the link in order: the receiver gets all that was sent and then LinkClosed."""
        ...


class Receiver(LinkEnd, Protocol):
    """The end that receives."""

    def try_receive(self) -> Received | None:
        """Return the next frame in the order of sending, or None if there is none now.

        Raises LinkClosed when the sender closed and all is received, LinkAborted, and for a peer that breaks the
        rules FrameError, CreditError or LinkCorruptError.
        """
        ...
