"""A worker's session with a controller: two ordered channels that break together, as a gRPC stream does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.controller.core.log import Fence
from headrace.controller.core.messages import messages as core

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import SimulatedController, SimulatedWorker

#: Share of messages that are lost; each one takes its session with it.
LOSS = 0.002
#: Seconds after which a controller gives up a session whose worker has left without a word.
UNNOTICED_S = 10.0
#: Share of late messages that come twice.
DOUBLED_SHARE = 0.3


class FencedCommand(NamedTuple):
    """A command on its way, in whose name it is given, and the ticket of a link."""

    command: core.Command
    given: Fence
    ticket: bytes = b""


class SimulatedSession:
    """One session. What is under way when it breaks is lost, or where only the worker knows of it, comes late."""

    def __init__(self, controller: SimulatedController, worker: SimulatedWorker, life: int) -> None:
        self.controller, self.worker, self.life = controller, worker, life
        self.open = True
        #: Seconds by which what the worker had said before it left comes later than the rest.
        self._lags_s = 0.0
        self._world = worker.cluster.world
        self._down_at = self._up_at = 0.0

    def tell(self, order: FencedCommand) -> None:
        """From the controller to the worker."""
        if self.open and not self._lost():
            self._down_at = max(self._down_at, self._world.now + self._world.between(0.0005, 0.03))
            self._world.at(self._down_at, self._down, order)

    def report(self, event: core.Event) -> None:
        """From the worker to the controller."""
        if self.open and not self._lost():
            self._up_at = max(self._up_at, self._world.now + self._world.between(0.0005, 0.03))
            self._world.at(self._up_at, self._up, event)

    def end(self, reason: str) -> None:
        """Break. Each end hears of it in its own time."""
        if self.open:
            self.open = False
            self._world.note("session", f"{self.controller.name} - {self.worker.name} breaks:", reason)
            self._world.after(self._world.between(0.001, 1.0), self.controller.session_over, self, reason)
            self._world.after(self._world.between(0.001, 1.0), self.worker.session_over, self)

    def abandon(self) -> None:
        """The worker's end breaks alone: it may be back before its controller knows, and its last words come then."""
        if self.open:
            self.open = False
            self._lags_s = self._world.between(0.1, 2.0)
            self._world.note("session", f"{self.worker.name} leaves {self.controller.name} without a word")
            self._world.after(UNNOTICED_S, self.controller.session_over, self, "it is silent")
            self._world.after(0.0, self.worker.session_left, self)

    def _lost(self) -> bool:
        share = 0.0 if self.worker.cluster.quiet else LOSS
        if share and self._world.chance(share):
            self.end("a message was lost")
            return True
        return False

    def _down(self, order: FencedCommand) -> None:
        if self.open:
            self.worker.take(order)

    def _up(self, event: core.Event) -> None:
        if self.open:
            self.controller.hear(self.worker.name, event)
        elif self._lags_s:
            # Some of it twice: nothing in it may depend on being said once.
            for _ in range(1 + self._world.chance(DOUBLED_SHARE)):
                self._world.after(self._lags_s, self.controller.hear, self.worker.name, event)
