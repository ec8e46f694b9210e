"""What must hold after each simulated event."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.checks.invariants import Checker as Checker
    from headrace.chaos.sim.checks.logs import Assignments as Assignments, OperatorRequest as OperatorRequest
else:
    __getattr__ = door(__name__)
