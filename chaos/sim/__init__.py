"""The simulator: the production cores in virtual time, from one seed."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.mutants import MUTANTS as MUTANTS
    from headrace.chaos.sim.simulate import main as main
else:
    __getattr__ = door(__name__)
