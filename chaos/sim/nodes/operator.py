"""Whoever wants the pipeline to run: asks each controller for it, and asks again when a run has ended badly."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.chaos.sim.checks import OperatorRequest
from headrace.chaos.sim.world import DEDUPS, PIPELINE, make_pipeline
from headrace.controller.core.messages import ChangedInput, TokenOffered, messages as core
from headrace.pipeline import Pipeline

if TYPE_CHECKING:
    from headrace.chaos.sim import SimulatedCluster
    from headrace.chaos.sim.nodes.controllers import SimulatedController

#: Seconds before a controller that has no run is asked again.
ASK_S = 1.5
#: What a controller says to a change of the graph that it may take later.
AGAIN = re.compile("try again|changed while it is running")
#: Seconds after which it is looked whether a run that was taken up goes on.
LOOK_S = 5.0
#: Times that a change of the graph is asked for again where the run cannot take it just now, and seconds before each.
SURGERY_AGAIN_MAX, SURGERY_AGAIN_S = 8, 3.0


class Operator:
    """Applies, stops, amends, steers."""

    def __init__(self, cluster: SimulatedCluster, *, fuse: bool, replicas: int) -> None:
        self._cluster, self._gate = cluster, cluster.checker.gate
        self._fuse, self._replicas = fuse, replicas
        self._asked: set[tuple[str, int]] = set()
        self._request = 0
        #: The name of the request that the run be: asked again after a leader's death, it is the same one.
        self._token = 0
        #: What was asked for and has no answer yet, by request.
        self._requests: dict[int, OperatorRequest] = {}
        #: Stops that were asked for: their numbers lie below 0, and those of all else are as if there were none.
        self._stops = 0
        self._rule, self._amended = 1, False
        #: The rule that a change of the graph while records flow asked for, by its token; how often each was asked for
        #: again. When that is has draws of its own.
        self._surgeries: dict[str, int] = {}
        self._again: dict[str, int] = {}
        self._rng = random.Random(f"surgery {cluster.world.seed}")
        corpus = cluster.corpus
        self._pipelines = {
            rule: make_pipeline(
                rule, corpus.sinks, dedups=corpus.dedups, spread=corpus.spread, partitions=corpus.partitions
            ).to_dict()
            for rule in (1, 2, 3)
        }
        self._stages = [str(stage["name"]) for stage in self._pipelines[1]["stages"]]
        #: What is to become of what changed while it was open, when each run was first asked for, and what people do
        #: about a run that halts for it.
        self._changed_input = corpus.changed_input
        self._asked_at: dict[str, float] = {}
        self._remedy = cluster.world.rng.choice((None, ChangedInput.DROP, ChangedInput.REREAD))
        #: A run was completed that has listed the input as it stands.
        self.completed = False

    def ask_soon(self, controller: SimulatedController) -> None:
        """Ask a controller for the run in a while, unless that is under way."""
        key = (controller.name, controller.life)
        if key not in self._asked and not self.completed:
            self._asked.add(key)
            self._cluster.world.after(self._cluster.world.between(0.2, ASK_S), self._ask, controller, controller.life)

    def steer(self) -> None:
        """Have the run stand still for a while, off a worker for a while, or planned otherwise."""
        world = self._cluster.world
        kind = world.rng.choice(("pause", "scale", "move", "relink", "drain"))
        back: OperatorRequest | None = None
        if kind == "pause":
            event: OperatorRequest = core.SteerRequested(0, PIPELINE, pause=True)
            back = core.SteerRequested(0, PIPELINE, pause=False)
        elif kind == "scale":
            stage = world.rng.choice(("read", *self._cluster.corpus.sinks))
            event = core.SteerRequested(0, PIPELINE, replicas={stage: world.rng.randint(1, 4)})
        elif kind == "move":
            worker = world.rng.choice(self._cluster.workers).name
            event = core.SteerRequested(0, PIPELINE, places={world.rng.choice(self._stages): worker})
        elif kind == "relink":
            event = core.SteerRequested(0, PIPELINE, transports={world.rng.choice(self._stages): "quic"})
        else:
            node = world.rng.choice(self._cluster.workers)
            if (self._request // len(self._cluster.controllers)) % 2:
                node.leave(world.between(0.0, 5.0))
                return
            event = core.DrainRequested(0, node.name)
            back = core.DrainRequested(0, node.name, back=True)
        self._send(event)
        if back is not None:
            world.after(world.between(0.0, 5.0), self._send, back)
        for number in (1, 2) if self._cluster.corpus.dedups else ():
            world.after(number * self._rng.uniform(1.0, 6.0), self._move_index)

    def _move_index(self) -> None:
        """A decider, with the partitions of its index, is to be on another worker."""
        if not self._cluster.quiet and not self.completed:
            stage = self._rng.choice(DEDUPS[: self._cluster.corpus.dedups])
            places = {stage: self._rng.choice(self._cluster.workers).name}
            self._send(core.SteerRequested(0, PIPELINE, places=places))

    def offer_token(self) -> None:
        """Two nodes want to join with one token, and each asks more than once."""
        world, token = self._cluster.world, f"token {self._request}"
        for key in ("mine", "theirs"):
            for _ in range(2):
                world.after(world.between(0.0, 6.0), self._send, TokenOffered(0, token, f"node {key}", key))

    def _send(self, request: OperatorRequest) -> None:
        """Ask every controller for it: those that do not lead say so."""
        for controller in self._cluster.controllers:
            if controller.alive:
                self._request += 1
                asked = self._requests[self._request] = replace(request, request=self._request)
                controller.post(asked)

    def settle(self) -> None:
        """No fault happens any more: see to it that nothing stands still for ever, as people would."""
        cluster = self._cluster.checker.assignments
        self._cluster.checker.builds.calm()
        if self.completed:
            return
        self._see_to_input()
        self._cluster.world.after(ASK_S, self.settle)
        if self._gate.pauses:
            self._send(core.SteerRequested(0, PIPELINE, pause=False))
        if cluster is None:
            return
        ledger = cluster.history.ledger
        record = ledger.going_on().get(PIPELINE)
        if record is not None and record.paused:
            self._send(core.SteerRequested(0, PIPELINE, pause=False))
        for worker in sorted(ledger.drained):
            self._send(core.DrainRequested(0, worker, back=True))

    def _see_to_input(self) -> None:
        """A run that halts for changed input is told what to do, or finds the old objects again."""
        if self._changed_input is ChangedInput.HALT and self._cluster.corpus.changes:
            if self._remedy is None:
                self._cluster.inputs.restore(self._cluster.checker.ledger)
            else:
                self._changed_input = self._remedy
                self._cluster.inputs.choices.add(self._remedy)

    def hear(self, controller: SimulatedController, command: core.AnswerRequest | core.ReportRun) -> None:
        """A controller answers."""
        request = self._requests.pop(command.request, None) if isinstance(command, core.AnswerRequest) else None
        if isinstance(command, core.AnswerRequest) and command.accepted and request is not None:
            self._cluster.checker.granted(controller, request)
        if request is not None and not isinstance(request, core.PipelineRequested):
            return
        if request is not None and request.token in self._surgeries:
            if isinstance(command, core.AnswerRequest) and command.accepted:
                self._rule, self._amended = self._surgeries[request.token], True
            elif isinstance(command, core.AnswerRequest) and AGAIN.search(command.reason):
                self._ask_surgery_again(request.token)
            return
        if isinstance(command, core.AnswerRequest) and command.differences and self._surgeries:
            # A change of the graph came true, and the leader died before it could say so: what is refused says it.
            self._amended = True
        done = isinstance(command, core.ReportRun) and command.outcome == "completed"
        if done and self._asked_at.get(controller.token, -1.0) > self._cluster.inputs.changed_at:
            self.completed = True
        elif isinstance(command, core.AnswerRequest) and command.accepted and self._cluster.cluster_log is not None:
            # The run may end under another leader, who says so to nobody here: look again.
            self._cluster.world.after(LOOK_S, self.ask_soon, controller)
        elif isinstance(command, core.ReportRun) or not command.accepted:
            self.ask_soon(controller)

    def stop(self, *, cancel: bool) -> None:
        """Ask every controller to stop; they are asked to go on again when they have."""
        for controller in self._cluster.controllers:
            if controller.alive:
                self._stops += 1
                asked = self._requests[-self._stops] = core.StopRequested(PIPELINE, cancel, -self._stops)
                controller.post(asked)

    def operate(self) -> None:
        """Another graph is to take the place of the one by which records flow."""
        self._operate(self._cluster.world.rng)
        if self._cluster.corpus.dedups:
            # What another index takes over is rare enough.
            for number in (1, 2):
                self._cluster.world.after(number * self._rng.uniform(4.0, 10.0), self._operate, self._rng)

    def _operate(self, rng: random.Random) -> None:
        if self._cluster.quiet or self.completed:
            return
        self._request += 1
        rule = rng.choice([rule for rule in self._pipelines if rule != self._rule])
        token = f"surgery {self._request}"
        self._surgeries[token] = rule
        self._again[token] = 0
        self._cluster.checker.builds.change_asked(Pipeline.from_dict(self._pipelines[rule]).version())
        self._ask_surgery(token)

    def _ask_surgery_again(self, token: str) -> None:
        self._again[token] += 1
        if self._again[token] <= SURGERY_AGAIN_MAX and not self._cluster.quiet and not self.completed:
            self._cluster.world.after(self._rng.uniform(0.5, SURGERY_AGAIN_S), self._ask_surgery, token)

    def _ask_surgery(self, token: str) -> None:
        self._send(
            core.PipelineRequested(
                0,
                self._pipelines[self._surgeries[token]],
                amend=True,
                fuse=self._fuse,
                replicas=self._replicas,
                changed_input=self._changed_input,
                token=token,
                **self._gate.options,
            )
        )

    def amend(self) -> None:
        """From now on the pipeline filters otherwise: what is still open is for the new version."""
        self._rule, self._amended = 1 if self._rule == 2 else 2, True
        self.stop(cancel=self._cluster.world.chance(0.5))

    def _ask(self, controller: SimulatedController, life: int) -> None:
        self._asked.discard((controller.name, life))
        if controller.life != life or not controller.alive or self.completed:
            return
        self._request += 1
        request = self._requests[self._request] = core.PipelineRequested(
            self._request,
            self._pipelines[self._rule],
            amend=self._amended,
            fuse=self._fuse,
            replicas=self._replicas,
            changed_input=self._changed_input,
            token=self._wished(),
            **self._gate.options,
        )
        self._asked_at.setdefault(request.token, self._cluster.world.now)
        controller.post(request)

    def _wished(self) -> str:
        """The name of what is wished now: another one when the run that had it is over."""
        cluster = self._cluster.checker.assignments
        record = cluster.history.ledger.runs.get(PIPELINE) if cluster is not None else None
        known = {self._name(), *self._surgeries}
        if cluster is None or (record is not None and record.outcome and record.options["token"] in known):
            self._token += 1
        return self._name()

    def _name(self) -> str:
        return f"apply {self._token}"
