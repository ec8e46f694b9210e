"""What the controller's shell does for its cores, each effect with an outcome."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.effects.faults import ControllerFaults as ControllerFaults, OwnFaults as OwnFaults
    from headrace.controller.effects.lineage import Lineage as Lineage
    from headrace.controller.effects.lines import LineBudget as LineBudget
    from headrace.controller.effects.outcomes import in_words as in_words, outcome as outcome
    from headrace.controller.effects.progress import ReportedProgress as ReportedProgress
    from headrace.controller.effects.traces import TraceIndexes as TraceIndexes
else:
    __getattr__ = door(__name__)
