"""Faults, checkers and the simulator."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.simulate import ALL_MUTANTS as ALL_MUTANTS, main as main
else:
    __getattr__ = door(__name__)
