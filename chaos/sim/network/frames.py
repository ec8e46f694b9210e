"""What travels on a simulated link."""

from __future__ import annotations

from typing import NamedTuple

from headrace.chaos.sim.world import Name

MARKER_BYTES = 8


class Frame(NamedTuple):
    """A batch on its way (`sweep` -1), or marker `sweep` of a sweep. `kept` has one bit a record,
    `quarantined` one for each that killed its task; `duplicates` are ordinals and what each is a duplicate of.
    `read_from` is the writing of the object whose bytes they are.
    """

    epoch: int
    size: int
    fragment: bytes = b""
    first: int = 0
    records: int = 0
    kept: int = 0
    sweep: int = -1
    quarantined: int = 0
    duplicates: tuple[tuple[int, Name], ...] = ()
    read_from: int = 0
