"""A worker's session with a controller: two ordered channels that break together, as a gRPC stream does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.chaos.parts import Attendant
from headrace.controller.core import messages as core
from headrace.controller.core.authority import Authority

if TYPE_CHECKING:
    from headrace.chaos.controllers import SimulatedController

#: Share of messages that are lost; each one takes its session with it.
LOSS = 0.002


class Session:
    """One session. What is under way when it breaks is lost."""

    def __init__(self, controller: SimulatedController, worker: Attendant) -> None:
        self.controller, self.worker = controller, worker
        self.open = True
        self._world = worker.cluster.world
        self._down_at = self._up_at = 0.0

    def tell(self, command: core.Command, given: Authority) -> None:
        """From the controller to the worker, in somebody's name."""
        if self.open and not self._lost():
            self._down_at = max(self._down_at, self._world.now + self._world.between(0.0005, 0.03))
            self._world.at(self._down_at, self._down, command, given)

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

    def _lost(self) -> bool:
        share = 0.0 if self.worker.cluster.quiet else LOSS
        if share and self._world.chance(share):
            self.end("a message was lost")
            return True
        return False

    def _down(self, command: core.Command, given: Authority) -> None:
        if self.open:
            self.worker.take(command, given)

    def _up(self, event: core.Event) -> None:
        if self.open:
            self.controller.post(event)
