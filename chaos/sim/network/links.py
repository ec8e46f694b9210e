"""A simulated link: frames in order, some time on their way, under the credit cores that real links run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from headrace.chaos.sim.world import Name, ViolationError, World
from headrace.controller.core.messages import MakeLink
from headrace.transport import CreditError, LinkAborted, TransportError
from headrace.transport.core import (
    FRAGMENT_BYTES,
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    CreditReceiver,
    CreditSender,
    Frame,
    FrameKind,
    decode,
    encode,
    frame_size,
)
from headrace.transport.quic import FrameAssembler

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import SimulatedTask

#: Seconds within which a transport gives up a link on which something never arrives.
STUCK_S = 10.0


#: What the marker of a sweep counts as.
MARKER_BYTES = 8


class SimulatedFrame(NamedTuple):
    """A batch on its way (`sweep` -1), or marker `sweep` of a sweep. `kept` has one bit a record,
    `quarantined` one for each that killed its task; `duplicates` are as those of a part, and
    `settled` has a bit for each whose record was kept before the epoch. `read_from` is the writing of the object whose
    bytes they are. `number` is that of a question and of its answer. `message` is a request to a partition of an index,
    or its answer.
    """

    epoch: int
    size: int
    fragment: bytes = b""
    first: int = 0
    records: int = 0
    kept: int = 0
    sweep: int = -1
    quarantined: int = 0
    duplicates: tuple[tuple[int, Name, int], ...] = ()
    read_from: int = 0
    number: int = 0
    settled: int = 0
    message: object = None


class Harm(Enum):
    """What a network can do to one frame, if the transport lets it."""

    LOST = "lost"
    DOUBLED = "doubled"
    LATE = "late"
    SPOILT = "spoilt"


@dataclass(frozen=True, slots=True)
class _Lent:
    """A frame on loan."""

    link: SimulatedLink
    frame: SimulatedFrame

    def try_release(self) -> bool:
        """See `Received`."""
        self.link.released(self.frame)
        return True


class SimulatedLink:
    """One link between two attempts. An end that has not been told of it yet is None."""

    def __init__(
        self,
        world: World,
        made: MakeLink,
        sender: SimulatedTask | None,
        receiver: SimulatedTask | None,
        window_bytes: int,
    ) -> None:
        self._world = world
        self.made, self.name, self.sender, self.receiver = made, made.link, sender, receiver
        self.credit = CreditSender(window_bytes)
        self._window = CreditReceiver(window_bytes)
        self.open = True
        #: Whether both ends are there and have met: before that the sender has no credit.
        self.stands = sender is not None and receiver is not None
        self._last_arrival = self._last_grant = 0.0
        #: What the receiver has not taken yet.
        self._arrived: deque[SimulatedFrame] = deque()
        #: What befalls the next frame, whether anything has befallen one, and who cuts the link for it.
        self.spoils: Harm | None = None
        self._harmed = self._stuck = False
        self.cut: Callable[[str], None] = lambda _reason: None
        #: Fragments with a frame that arrives late, or twice.
        self.strayed: set[bytes] = set()

    def join(self, task: SimulatedTask, *, sends: bool) -> None:
        """An end has been told of the link, and has it from now on."""
        if sends:
            self.sender = task
        else:
            self.receiver = task

    def meet(self) -> None:
        """Both ends have found each other."""
        self.stands = True
        if self.sender is not None:
            self.sender.wake()

    def credit_bytes(self) -> int:
        """See `Sender`."""
        if not self.open:
            raise LinkAborted(self.name, "owner", "it was cut")
        return self.credit.available if self.stands else 0

    def try_send(self, frame: SimulatedFrame) -> bool:
        """See `Sender`."""
        if not self.open:
            raise LinkAborted(self.name, "owner", "it was cut")
        if not self.stands or not self.credit.can_send(frame.size):
            return False
        try:
            self.credit.sent(frame.size)
        except CreditError as error:
            raise ViolationError(16, f"link {self.name}: {error}") from error
        in_flight, window = self.credit.in_flight_bytes, self.credit.window_bytes
        if in_flight > max(window, frame.size):
            raise ViolationError(16, f"link {self.name}: {in_flight} bytes in flight in a window of {window}")
        self.carry(frame)
        return True

    def carry(self, frame: SimulatedFrame) -> None:
        """Take a frame to the receiver, behind those before it."""
        harm, self.spoils = self.spoils, None
        if harm is not None:
            self._harmed = True
            self.strayed.add(frame.fragment)
            self._world.note("faults", f"a frame on {self.name} is {harm.value}:", frame)
        if harm is Harm.LATE:
            self._world.after(self._world.between(0.02, 1.0), self._arrive, frame)
            return
        self._last_arrival = max(self._last_arrival, self._world.now + self._world.between(0.0005, 0.02))
        if harm is Harm.LOST:
            # No transport delivers what is behind a hole; it fills the hole in time, or gives the link up.
            self._stuck = True
            self._world.after(self._world.between(0.1, STUCK_S), self.cut, "a frame was lost")
        elif harm is Harm.SPOILT:
            self._world.at(self._last_arrival, self._arrive_spoilt, frame)
        elif not self._stuck:
            self._world.at(self._last_arrival, self._arrive, frame)
        if harm is Harm.DOUBLED:
            self._world.after(self._world.between(0.02, 1.0), self._arrive, frame)

    def close(self) -> None:
        """See `Sender`; a simulated task ends without it."""

    def try_receive(self) -> _Lent | None:
        """See `Receiver`."""
        return _Lent(self, self._arrived.popleft()) if self._arrived else None

    def released(self, frame: SimulatedFrame) -> None:
        """The receiver has the frame in its own memory."""
        grant = self._window.released(frame.size)
        if grant:
            self._last_grant = max(self._last_grant, self._world.now + self._world.between(0.0005, 0.01))
            self._world.at(self._last_grant, self._grant, grant)

    def _arrive(self, frame: SimulatedFrame) -> None:
        if not self.open and self._world.chance(0.5):
            return  # what was under way when the link was cut comes, or does not
        try:
            self._window.received(frame.size)
        except CreditError as error:
            self._refuse(error)
            return
        if self.receiver is not None:
            self._arrived.append(frame)
            self.receiver.wake()

    def _grant(self, grant: int) -> None:
        if self.open and self.sender is not None:
            try:
                self.credit.granted(grant)
            except CreditError as error:
                self._refuse(error)
            self.sender.wake()

    def _arrive_spoilt(self, frame: SimulatedFrame) -> None:
        """20: a frame of which one bit is another is none, whichever bit it is, and the link is cut."""
        if not self.open:
            return
        data = bytearray(encode(_encodable(frame)))
        bit = self._world.rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        try:
            for whole in FrameAssembler(FRAME_LIMIT_BYTES, lambda _size: None).feed(bytes(data)):
                decode(whole)
        except TransportError as error:
            self.cut(f"a frame was refused: {error}")
            return
        if len(data) >= HEADER_BYTES and not _incomplete(data):
            raise ViolationError(20, f"link {self.name}: a frame with bit {bit} turned is taken")
        self.cut("a frame never came to its end")

    def _refuse(self, error: CreditError) -> None:
        """16: nobody goes beyond its credit; where a frame came twice an end finds that out, and cuts the link."""
        if not self._harmed:
            raise ViolationError(16, f"link {self.name}: {error}") from error
        self.cut(str(error))


def _encodable(frame: SimulatedFrame) -> Frame:
    """What the frame is on a real link."""
    kind = FrameKind.SWEEP if frame.sweep >= 0 else FrameKind.DATA
    rows = frame.kept.to_bytes(32, "little") + frame.quarantined.to_bytes(32, "little")
    fragment = frame.fragment or bytes(FRAGMENT_BYTES)
    return Frame(kind, frame.epoch, fragment, frame.first, frame.records, b"", rows)


def _incomplete(data: bytearray) -> bool:
    """Whether the header says that more is to come."""
    return frame_size(bytes(data[:HEADER_BYTES])) > len(data)
