"""Versions of the pipeline that cannot be built for a while, and that none of them is taken up."""

from __future__ import annotations

import random

from headrace.chaos.sim.world import ViolationError, World
from headrace.controller.core.messages import TaskFailed, TaskReady
from headrace.store.ledger import Entry, EpochRaised, PipelineApplied

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
