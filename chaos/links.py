"""A simulated link: frames in order, some time on their way, under the credit cores that real links run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.chaos.frames import Frame
from headrace.chaos.world import ViolationError, World
from headrace.transport.credit import CreditReceiver, CreditSender
from headrace.transport.errors import CreditError

if TYPE_CHECKING:
    from headrace.chaos.tasks import SimulatedTask


class SimulatedLink:
    """One link between two attempts. An end that has not been told of it yet is None."""

    def __init__(
        self,
        world: World,
        name: str,
        sender: SimulatedTask | None,
        receiver: SimulatedTask | None,
        stage: str,
        window_bytes: int,
    ) -> None:
        self._world = world
        self.name, self.sender, self.receiver, self.stage = name, sender, receiver, stage
        self.credit = CreditSender(window_bytes)
        self._window = CreditReceiver(window_bytes)
        self.open = True
        #: Whether both ends are there and have met: before that the sender has no credit.
        self.stands = sender is not None and receiver is not None
        self._last_arrival = self._last_grant = 0.0

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

    def try_send(self, frame: Frame) -> bool:
        """Send, where there is credit."""
        if not self.open or not self.stands or not self.credit.can_send(frame.size):
            return False
        self.credit.sent(frame.size)
        in_flight, window = self.credit.in_flight_bytes, self.credit.window_bytes
        if in_flight > max(window, frame.size):
            raise ViolationError(16, f"link {self.name}: {in_flight} bytes in flight in a window of {window}")
        self.carry(frame)
        return True

    def carry(self, frame: Frame) -> None:
        """Take a frame to the receiver, behind those before it."""
        self._last_arrival = max(self._last_arrival, self._world.now + self._world.between(0.0005, 0.02))
        self._world.at(self._last_arrival, self._arrive, frame)

    def taken(self, frame: Frame) -> None:
        """The receiver has the frame in its own memory."""
        grant = self._window.released(frame.size)
        if grant:
            self._last_grant = max(self._last_grant, self._world.now + self._world.between(0.0005, 0.01))
            self._world.at(self._last_grant, self._grant, grant)

    def _arrive(self, frame: Frame) -> None:
        if not self.open:
            return
        try:
            self._window.received(frame.size)
        except CreditError as error:
            raise ViolationError(16, f"link {self.name}: {error}") from error
        if self.receiver is not None:
            self.receiver.arrived(self, frame)

    def _grant(self, grant: int) -> None:
        if self.open and self.sender is not None:
            self.credit.granted(grant)
            self.sender.wake()
