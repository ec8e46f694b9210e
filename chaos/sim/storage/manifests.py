"""The simulated `manifest.json`: written by the real `store/datasets/manifest.py`, and by requests that may take effect
late.

A request that was given up may take effect all the same, long after: by then it was sent again, or another leads, and a
later version is published. What stands is looked at after each write, and at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import orjson

from headrace.chaos.sim.storage.log import MemoryStore
from headrace.chaos.sim.world import ViolationError, World
from headrace.store.datasets import manifest
from headrace.store.ledger import LedgerState

#: The share of requests that are given up and take effect late, and when they are given up.
LATE_SHARE, GIVEN_UP_S = 0.5, 1.0
#: Seconds after which they take effect at the earliest and at the latest, if the run has not ended by then.
LATE_S = (1.0, 60.0)


class SimulatedManifest:
    """One dataset's manifest."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self._world = world
        # Dice of its own, so that what befalls a seed otherwise stays the same.
        self._dice = random.Random(f"manifest of {world.seed}")
        #: That of the ledger: what a manifest says is held against the entries beside it.
        self._store = store
        #: What is on its way, and late, in the order in which it was sent.
        self._late: list[dict[str, int | bool]] = []
        #: The entry of the newest manifest that has stood.
        self._newest = -1

    def write(self, ledger: LedgerState, answer: Callable[[str], None]) -> None:
        """Send what a leader derives from its fold now; `answer` with "" once it has taken effect, else why not."""
        shown = ledger.newest
        if shown is None:
            raise ViolationError(23, "a manifest is written of a dataset without a version")
        fields = {"entry": shown.number, "version": ledger.version, "complete": shown.complete}
        late = self._dice.random() < LATE_SHARE
        delay = self._world.between(0.01, 0.1)
        if late:
            self._world.after(GIVEN_UP_S, answer, "no answer")
            self._late.append(fields)
            self._world.after(self._dice.uniform(*LATE_S), self._arrives_late, fields)
        else:
            self._world.after(delay, self._arrives, fields, answer)

    def _arrives_late(self, fields: dict[str, int | bool]) -> None:
        if fields in self._late:
            self._late.remove(fields)
            self._arrives(fields, lambda _error: None)

    def _arrives(self, fields: dict[str, int | bool], answer: Callable[[str], None]) -> None:
        manifest.bring_forward(self._store, fields)
        stands = self._stands()
        if stands < self._newest:
            raise ViolationError(23, f"the manifest of entry {self._newest} gave way to that of entry {stands}")
        self._newest = stands
        answer("")

    def finish(self, ledger: LedgerState) -> None:
        """23: what stands at the end is the newest version's, whatever takes effect behind it."""
        while self._late:
            self._arrives_late(self._late[0])
        shown = ledger.newest
        if shown is not None and self._stands() != shown.number:
            raise ViolationError(
                23, f"entry {shown.number} published the newest version, the manifest is of entry {self._stands()}"
            )

    def _stands(self) -> int:
        return int(orjson.loads(self._store.get(manifest.MANIFEST_KEY))["entry"]) if self._written() else -1

    def _written(self) -> bool:
        return self._store.head(manifest.MANIFEST_KEY) is not None
