"""The simulated processes: controllers, workers, tasks, deciders, and the operator."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.controllers import SimulatedController as SimulatedController
    from headrace.chaos.sim.nodes.operator import Operator as Operator
    from headrace.chaos.sim.nodes.parts import Cluster as Cluster, Site as Site
    from headrace.chaos.sim.nodes.sinks import SimulatedSink as SimulatedSink
    from headrace.chaos.sim.nodes.tasks import SimulatedTask as SimulatedTask
    from headrace.chaos.sim.nodes.workers import SimulatedWorker as SimulatedWorker
else:
    __getattr__ = door(__name__)
