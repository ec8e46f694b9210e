"""A simulated store: a log of numbered entries and a heap of objects, both create-if-absent, neither reliable.

A write takes effect some time after it was asked for and is answered some time after that. In between anything may
have died, and in trouble the answer may be an error whether the write took effect or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from headrace.chaos.corpus import Part
from headrace.chaos.world import ViolationError, World
from headrace.controller.core.messages import EntryRefused, EntryUnresolved, EntryWritten, WriteEntry
from headrace.store.entries import Entry, StoredObject, decode_entry, encode_entry
from headrace.store.objects import ObjectInfo

#: Shares of writes that end in an error before or after they took effect: on a good day, and in trouble.
CALM, TROUBLE = 0.01, 0.35

Answer = EntryWritten | EntryRefused | EntryUnresolved


class SimulatedLog:
    """The entries of one dataset's ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: list[bytes] = []
        self.decoded: list[Entry] = []
        self.error_share = CALM
        #: Told of each entry that has become durable: its number, its content and who wrote it.
        self.durable: Callable[[int, Entry, str], None] = lambda _number, _entry, _writer: None

    def write(self, command: WriteEntry, writer: str, answer: Callable[[object], None]) -> None:
        """Create an entry, and answer what is known of it afterwards."""
        data = encode_entry(command.entry)
        slow = self._world.chance(self.error_share)
        delay = self._world.between(0.5, 3.0) if slow else self._world.between(0.004, 0.04)
        self._world.after(delay, self._create, command, data, writer, answer)

    def behind(self, after: int) -> tuple[tuple[int, Entry], ...]:
        """The entries behind number `after`."""
        return tuple(enumerate(self.decoded[after + 1 :], start=after + 1))

    def _create(self, command: WriteEntry, data: bytes, writer: str, answer: Callable[[object], None]) -> None:
        world, number = self._world, command.number
        if world.chance(self.error_share):
            world.note("log", "an error before the write", number)
            result: Answer = EntryUnresolved(command.log, number, "simulated: not written")
            return world.after(world.between(0.01, 0.5), answer, result)
        if number > len(self.entries):
            raise ViolationError(1, f"{writer} writes entry {number} where {len(self.entries)} is the next")
        if number == len(self.entries):
            self.entries.append(data)
            self.decoded.append(decode_entry(data))
            world.note("log", f"entry {number} is durable, by {writer}:", self.decoded[number])
            self.durable(number, self.decoded[number], writer)
        standing = self.entries[number]
        if world.chance(self.error_share):
            world.note("log", "an error after the write", number)
            result = EntryUnresolved(command.log, number, "simulated: the answer was lost")
        elif standing == data:
            result = EntryWritten(command.log, number)
        else:
            result = EntryRefused(command.log, number, self.decoded[number])
        return world.after(world.between(0.002, 0.02), answer, result)


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

    def create(self, prefix: str, parts: tuple[Part, ...]) -> StoredObject:
        """Store a shard under the hash of its bytes, and say where it lies."""
        checksum, size = checksum_of(parts)
        key = f"{prefix}/{checksum.rsplit(':', 1)[1]}.shard"
        self.content.setdefault(key, (checksum, parts))
        return StoredObject("shard", key, checksum, size)

    def overwrite(self, key: str, parts: tuple[Part, ...]) -> StoredObject:
        """Store a shard under a name that says nothing of its content."""
        checksum, size = checksum_of(parts)
        self.content[key] = (checksum, parts)
        return StoredObject("shard", key, checksum, size)


def checksum_of(parts: tuple[Part, ...]) -> tuple[str, int]:
    """The checksum and the size in bytes of a shard's content."""
    data = repr(
        [(part.item.fragment, part.item.first, part.kept, part.other, part.quarantined) for part in parts]
    ).encode()
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}", len(data)
