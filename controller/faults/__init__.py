"""Faults that an operator asks a controller for."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.faults.own import OwnFaults as OwnFaults
    from headrace.controller.faults.workers import FaultDesk as FaultDesk
else:
    __getattr__ = door(__name__)
