"""Chaos on the real system: faults drawn from a scenario, a run under them, and a checker that compares datasets."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.run import ChaosRequest as ChaosRequest, chaos_run as chaos_run
else:
    __getattr__ = door(__name__)
