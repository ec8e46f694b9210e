"""What must hold of a pipeline's versions: those that cannot be built for a while, and those that a gate holds back."""

from __future__ import annotations

import random
from typing import Any

from headrace.chaos.sim.world import ViolationError, World
from headrace.controller.core.messages import AuditDataset, DatasetAudited, TaskFailed, TaskReady
from headrace.store.ledger import (
    Change,
    Entry,
    EpochRaised,
    LedgerState,
    PipelineApplied,
    VersionHeld,
    VersionPublished,
)

#: Changes of the graph whose new version cannot be built, and virtual seconds until somebody has mended that.
SPOILED_SHARE = 0.5
MENDED_S_MAX = 30.0


class SimulatedBuilds:
    """What the tasks of each version find when they build their stages. Its draws are its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"builds {world.seed}")
        self._spoiled_until: dict[str, float] = {}
        #: Versions of which a task was ever ready.
        self._built: set[str] = set()
        #: Tasks that could not be built.
        self.failed = 0

    def change_asked(self, version: str) -> None:
        """Somebody wants a graph to become this version while records flow."""
        if self._rng.random() < SPOILED_SHARE and version not in self._built:
            self._spoiled_until[version] = self._world.now + self._rng.uniform(1.0, MENDED_S_MAX)

    def calm(self) -> None:
        """All is mended."""
        self._spoiled_until.clear()

    def built(self, task: str, attempt: int, version: str) -> TaskReady | TaskFailed:
        """What a task of a version says when it has come up."""
        if self._is_spoiled(version):
            self.failed += 1
            return TaskFailed(task, attempt, "a module is missing", final=True)
        self._built.add(version)
        return TaskReady(task, attempt)

    def durable(self, number: int, entry: Entry) -> None:
        """30: no graph is taken up whose tasks cannot be built. One that a run begins with raises the epoch as well."""
        begins = any(isinstance(change, EpochRaised) for change in entry.changes)
        applied = (change for change in entry.changes if isinstance(change, PipelineApplied))
        if not begins and (version := next((item.version for item in applied if self._is_spoiled(item.version)), "")):
            raise ViolationError(30, f"entry {number} takes up version {version}, of which no task was ever ready")

    def _is_spoiled(self, version: str) -> bool:
        return version not in self._built and self._world.now < self._spoiled_until.get(version, 0.0)


#: Seeds of which the run has a gate, those whose run pauses for it, and answers that the store is silent for.
GATE_SHARE, PAUSE_SHARE, SILENT_SHARE = 0.3, 0.3, 0.2
#: Virtual seconds until people have mended what breaks it.
GATE_MENDED_S_MAX = 60.0


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
        self._mended_at = self._rng.uniform(0, GATE_MENDED_S_MAX)
        #: What each life of a controller was told last of all that will be closed: of how many shards, and what breaks.
        self._told: dict[str, tuple[int, tuple[str, ...]]] = {}

    def seconds(self) -> float:
        """How long an answer takes."""
        return self._rng.uniform(0.01, 2.0)

    def answer(self, command: AuditDataset, controller: str) -> DatasetAudited:
        """What it says of what is durable now."""
        if self._rng.random() < SILENT_SHARE:
            return DatasetAudited(command.log, command.term, command.final, error="the store is silent", stalled=True)
        broken = () if self._world.now >= self._mended_at else ("kept is below 1",)
        if command.final:
            self._told[controller] = len(self._ledger.shards), broken
        return DatasetAudited(command.log, command.term, command.final, broken)

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
