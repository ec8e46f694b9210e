"""The gate of a simulated run: what it says of a version, and that no version is published or held but as it said."""

from __future__ import annotations

import random
from typing import Any

from headrace.chaos.sim.world import ViolationError, World
from headrace.controller.core.messages import AuditDataset, DatasetAudited
from headrace.store.ledger import Change, LedgerState, VersionHeld, VersionPublished

#: Seeds of which the run has a gate, those whose run pauses for it, and answers that the store is silent for.
GATE_SHARE, PAUSE_SHARE, SILENT_SHARE = 0.3, 0.3, 0.2
#: Virtual seconds until people have mended what breaks it.
MENDED_S_MAX = 60.0


class SimulatedGate:
    """It is broken until people have mended the input. Its draws are its own: a seed without a gate stays as it is."""

    def __init__(self, world: World, ledger: LedgerState) -> None:
        self._world, self._ledger = world, ledger
        self._rng = random.Random(f"gate {world.seed}")
        #: The options of a request for the run.
        self.options: dict[str, Any] = {}
        self.pauses = False
        if self._rng.random() < GATE_SHARE:
            self.pauses = self._rng.random() < PAUSE_SHARE
            self.options = {"gate": {"kept": {"min": 1}}, "gate_pauses": self.pauses}
        self._mended_at = self._rng.uniform(0, MENDED_S_MAX)
        #: What each life of a controller was told last of all that will be closed: of how many shards, and what breaks.
        self._told: dict[str, tuple[int, tuple[str, ...]]] = {}

    def seconds(self) -> float:
        """How long an answer takes."""
        return self._rng.uniform(0.01, 2.0)

    def answer(self, command: AuditDataset, controller: str) -> DatasetAudited:
        """What it says of what is durable now."""
        if self._rng.random() < SILENT_SHARE:
            return DatasetAudited(command.log, command.final, error="the store is silent", stalled=True)
        broken = () if self._world.now >= self._mended_at else ("kept is below 1",)
        if command.final:
            self._told[controller] = len(self._ledger.shards), broken
        return DatasetAudited(command.log, command.final, broken)

    def change(self, number: int, change: Change, writer: str) -> None:
        """24: a version is published, or held, as the gate has told who writes it of all that is closed."""
        if not self.options or not isinstance(change, VersionPublished | VersionHeld):
            return
        shards, broken = self._told.get(writer, (-1, ()))
        held = isinstance(change, VersionHeld)
        if shards != len(self._ledger.shards) or held != bool(broken):
            raise ViolationError(
                24,
                f"entry {number} {'holds' if held else 'publishes'} version {change.version} of "
                f"{len(self._ledger.shards)} shards; its gate said of {shards}: {', '.join(broken) or 'nothing'}",
            )
