"""The simulated objects of a store: a heap that is not reliable, and `manifest.json`, where requests may come late.

A request that was given up may take effect all the same, long after: by then it was sent again, or another leads, and
a later version is published. What stands is looked at after each write, and at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import xxhash

from headrace.chaos.sim.storage.log import CALM, MemoryStore
from headrace.chaos.sim.world import Part, ViolationError, World
from headrace.store import ObjectInfo
from headrace.store.datasets import manifest
from headrace.store.ledger import LedgerState, StoredObject
from headrace.store.shards import kind_of

#: The role of the object that holds the records themselves.
SHARD = "shard"


@dataclass(slots=True)
class SimulatedObjects:
    """Objects by key, with their checksum. `create` never overwrites; `overwrite` is there for a mutant."""

    world: World
    content: dict[str, tuple[str, tuple[Part, ...]]] = field(default_factory=dict[str, tuple[str, tuple[Part, ...]]])
    #: Share of writes that end in an error.
    error_share: float = CALM

    def fails(self) -> bool:
        """Whether a write ends in an error, whether it took effect or not."""
        return self.world.chance(self.error_share)

    def listing(self) -> list[ObjectInfo]:
        """Every object, as a store lists them."""
        return [ObjectInfo(key, 1, "") for key in sorted(self.content)]

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.content.pop(key, None)

    def create(self, prefix: str, parts: tuple[Part, ...], role: str = SHARD) -> StoredObject:
        """Store an object of a shard under the hash of its bytes, and say where it lies."""
        checksum, size = checksum_of(parts)
        key = f"{prefix}/{checksum.rsplit(':', 1)[1]}.{kind_of(role)}"
        self.content.setdefault(key, (checksum, parts))
        return StoredObject(role, key, checksum, size)

    def overwrite(self, key: str, parts: tuple[Part, ...]) -> StoredObject:
        """Store a shard under a name that says nothing of its content."""
        checksum, size = checksum_of(parts)
        self.content[key] = (checksum, parts)
        return StoredObject(SHARD, key, checksum, size)


def checksum_of(parts: tuple[Part, ...]) -> tuple[str, int]:
    """The checksum and the size in bytes of a shard's content."""
    data = repr([(part.item.fragment, part.item.first, part.item.count, *part[1:]) for part in parts]).encode()
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}", len(data)


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
        written = self._store.head(manifest.MANIFEST_KEY) is not None
        return int(orjson.loads(self._store.get(manifest.MANIFEST_KEY))["entry"]) if written else -1
