"""A simulated heap of objects, create-if-absent and not reliable: an upload may be torn, or its answer be lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from headrace.chaos.sim.storage.log import CALM
from headrace.chaos.sim.world import Part, World
from headrace.store import ObjectInfo
from headrace.store.ledger import StoredObject
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
