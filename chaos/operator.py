"""Whoever wants the pipeline to run: asks each controller for it, and asks again when a run has ended badly."""

from __future__ import annotations

from headrace.chaos.corpus import PIPELINE, make_pipeline
from headrace.chaos.parts import Asked, Cluster
from headrace.controller.core import messages as core

#: Seconds before a controller that has no run is asked again.
ASK_S = 1.5
#: The request of whoever steers a run; the answer is nobody's concern.
STEERING = -1


class Operator:
    """Applies, stops, amends, steers."""

    def __init__(self, cluster: Cluster, *, fuse: bool, replicas: int) -> None:
        self._cluster = cluster
        self._fuse, self._replicas = fuse, replicas
        self._asked: set[tuple[str, int]] = set()
        self._request = 0
        self._rule, self._amended = 1, False
        corpus = cluster.corpus
        self._pipelines = {rule: make_pipeline(rule, corpus.sinks, spread=corpus.spread).to_dict() for rule in (1, 2)}
        #: What the first completed run said.
        self.completed = False

    def ask_soon(self, controller: Asked) -> None:
        """Ask a controller for the run in a while, unless that is under way."""
        key = (controller.name, controller.life)
        if key not in self._asked and not self.completed:
            self._asked.add(key)
            self._cluster.world.after(self._cluster.world.between(0.2, ASK_S), self._ask, controller, controller.life)

    def steer(self) -> None:
        """Have the run stand still for a while, planned with other numbers, or off a worker for a while."""
        world = self._cluster.world
        kind = world.rng.choice(("pause", "scale", "drain"))
        back: object | None = None
        if kind == "pause":
            event: object = core.SteerRequested(STEERING, PIPELINE, pause=True)
            back = core.SteerRequested(STEERING, PIPELINE, pause=False)
        elif kind == "scale":
            stage = world.rng.choice(("read", *self._cluster.corpus.sinks))
            event = core.SteerRequested(STEERING, PIPELINE, replicas={stage: world.rng.randint(1, 4)})
        else:
            worker = world.rng.choice(self._cluster.workers).name
            event = core.DrainRequested(STEERING, worker)
            back = core.DrainRequested(STEERING, worker, back=True)
        self._tell(event)
        if back is not None:
            world.after(world.between(0.0, 5.0), self._tell, back)

    def _tell(self, event: object) -> None:
        for controller in self._cluster.controllers:
            if controller.alive:
                controller.post(event)

    def hear(self, controller: Asked, command: core.AnswerRequest | core.ReportRun) -> None:
        """A controller answers."""
        if isinstance(command, core.AnswerRequest) and command.request == STEERING:
            return
        if isinstance(command, core.ReportRun) and command.outcome == "completed":
            self.completed = True
        elif isinstance(command, core.ReportRun) or not command.accepted:
            self.ask_soon(controller)

    def stop(self, *, cancel: bool) -> None:
        """Ask every controller to stop; they are asked to go on again when they have."""
        self._tell(core.StopRequested(PIPELINE, cancel))

    def amend(self) -> None:
        """From now on the pipeline filters otherwise: what is still open is for the new version."""
        self._rule, self._amended = 3 - self._rule, True
        self.stop(cancel=self._cluster.world.chance(0.5))

    def _ask(self, controller: Asked, life: int) -> None:
        self._asked.discard((controller.name, life))
        if controller.life != life or not controller.alive or self.completed:
            return
        self._request += 1
        pipeline = self._pipelines[self._rule]
        controller.post(
            core.PipelineRequested(
                self._request, pipeline, amend=self._amended, fuse=self._fuse, replicas=self._replicas
            )
        )
