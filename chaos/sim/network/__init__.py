"""Simulated sessions and links."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.network import connections as connections
    from headrace.chaos.sim.network.connections import Wires as Wires
    from headrace.chaos.sim.network.links import (
        MARKER_BYTES as MARKER_BYTES,
        Harm as Harm,
        SimulatedFrame as SimulatedFrame,
        SimulatedLink as SimulatedLink,
    )
    from headrace.chaos.sim.network.sessions import FencedCommand as FencedCommand, SimulatedSession as SimulatedSession
else:
    __getattr__ = door(__name__)
