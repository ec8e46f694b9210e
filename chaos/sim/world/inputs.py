"""The objects of a simulated source, which people overwrite, take away, add and put back while they are read.

They are read by the class that reads objects of a store (`stages/sources/objects/streams.py`): it has to notice that an
object is not the one any more that was listed. Each record's bytes say of which writing they are, so that what is
closed can be held against what was listed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import cast

import xxhash

from headrace.chaos.sim.world.corpus import RECORD_BYTES, Corpus
from headrace.chaos.sim.world.world import World
from headrace.stages.sources.objects import RemoteFile
from headrace.store import Capabilities, ObjectInfo, ObjectMissing, ObjectStore
from headrace.store.ledger import Fragment, LedgerState

#: Objects that a fault touches at once.
TOUCHED_MAX = 3
#: Share of touches that befall the object that was read last.
AT_HAND_SHARE = 0.5
#: Share of what is written that has as many bytes as what stood there before.
SAME_SIZE_SHARE = 0.5
#: Bytes that one request brings, so that an object is read by several.
GET_BYTES = 16 * RECORD_BYTES


class InputObjects:
    """The objects as they stand; as much of an `ObjectStore` as a reader needs."""

    def __init__(self, world: World, corpus: Corpus) -> None:
        self._world, self._corpus = world, corpus
        self.uri = "sim://input"
        self.capabilities = Capabilities()
        #: What stands now, by URI, and every version that ever stood.
        self.standing = {fragment.uri: fragment for fragment in corpus.fragments}
        self._versions: dict[str, list[Fragment]] = {uri: [item] for uri, item in self.standing.items()}
        #: The URIs of which a version was overwritten or taken away, and when anything changed last.
        self.disturbed: set[str] = set()
        self.changed_at = -1.0
        #: What people chose so far about what changed.
        self.choices = {corpus.changed_input}
        self._bytes: dict[bytes, bytes] = {}
        #: The object that somebody read last.
        self._at = ""

    # -- as a store --

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        fragment = self.standing.get(key)
        return ObjectInfo(key, fragment.size, fragment.version) if fragment is not None else None

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        fragment = self.standing.get(key)
        if fragment is None:
            raise ObjectMissing(key, self.uri)
        self._at = key
        return self._content(fragment)[offset : offset + min(length or GET_BYTES, GET_BYTES)]

    def listing(self) -> Iterator[Fragment]:
        """What stands, in the order of the names; each as it is when its turn comes."""
        for uri in sorted(self.standing):
            fragment = self.standing.get(uri)
            if fragment is not None:
                yield fragment

    def _content(self, fragment: Fragment) -> bytes:
        data = self._bytes.get(fragment.id)
        if data is None:
            writing, count = self._corpus.writings[fragment.id], self._corpus.records[fragment.id]
            data = self._bytes[fragment.id] = b"".join(b"%04d %04d\n" % (writing, row) for row in range(count))
        return data

    # -- what people do --

    def change(self, rng: random.Random) -> None:
        """Somebody writes, touches, removes, adds or puts back a few objects, rather one that is being read."""
        for _ in range(rng.randint(1, TOUCHED_MAX)):
            known = [self._at] if self._at and rng.random() < AT_HAND_SHARE else sorted(self._versions)
            (what,) = rng.choices(self._deeds, (5, 3, 2, 2, 1))
            what(rng.choice(known), rng)
        self.changed_at = self._world.now

    @property
    def _deeds(self) -> tuple[Callable[[str, random.Random], None], ...]:
        return self._overwrite, self._touch, self._remove, self._add, self._put_back

    def restore(self, ledger: LedgerState) -> None:
        """Put back each object that changed while something of it was open, or that holds other bytes than it did."""
        for state in list(ledger.fragments.values()):
            fragment, there = state.fragment, self.standing.get(state.fragment.uri)
            seen = ledger.seen.get((fragment.stage, fragment.uri))
            if seen is not None and seen.same:
                fragment = self.of_version(fragment.uri, seen.version)
            open_still = not state.done(self._corpus.sinks)
            # The version that was listed may stand while a later one was read, which began with the same bytes.
            unread = there is not None and (there.id not in ledger.fragments or there.id == state.fragment.id)
            other = there is not None and unread and not self.holds_same(there, fragment)
            if (open_still and there != fragment) or other:
                self._stand(fragment)
                self.changed_at = self._world.now

    def holds_same(self, one: Fragment, other: Fragment) -> bool:
        """Whether two versions are of the same bytes."""
        return self._content(one) == self._content(other)

    def of_version(self, uri: str, version: str) -> Fragment:
        """A version that stands, or stood."""
        return next(item for item in self._versions[uri] if item.version == version)

    def _touch(self, uri: str, _rng: random.Random) -> None:
        standing = self.standing.get(uri)
        if standing is not None:
            self._stand(self._corpus.touch(standing, f"{len(self._versions[uri]) + 1}"))

    def _overwrite(self, uri: str, rng: random.Random) -> None:
        of_size = self._versions[uri][-1] if rng.random() < SAME_SIZE_SHARE else None
        self._stand(self._corpus.write(uri, f"{len(self._versions[uri]) + 1}", rng, of_size))

    def _add(self, _uri: str, rng: random.Random) -> None:
        self._stand(self._corpus.write(f"sim://input/{len(self._versions)}", "1", rng))

    def _remove(self, uri: str, _rng: random.Random) -> None:
        if self.standing.pop(uri, None) is not None:
            self._world.note("input", "somebody removes", uri)
            self.disturbed.add(uri)

    def _put_back(self, uri: str, rng: random.Random) -> None:
        self._stand(rng.choice(self._versions[uri]))

    def _stand(self, fragment: Fragment) -> None:
        self._world.note("input", f"somebody writes {fragment.uri}, version", fragment.version)
        if self.standing.get(fragment.uri, fragment) != fragment:
            self.disturbed.add(fragment.uri)
        self.standing[fragment.uri] = fragment
        known = self._versions.setdefault(fragment.uri, [])
        if fragment not in known:
            known.append(fragment)


class InputReader:
    """What a source task has open: one object, as the readers of `stages/` have."""

    def __init__(self, objects: InputObjects) -> None:
        self._objects = objects
        self._fragment: Fragment | None = None
        self._file: RemoteFile | None = None

    def records(self, fragment: Fragment) -> int:
        """How many records the object has. FragmentChanged if it is not the one that was listed."""
        return self._opened(fragment).size // RECORD_BYTES

    def read(self, fragment: Fragment, first: int, end: int) -> int:
        """Read records, and say of which writing they are. FragmentChanged, as a source's reader."""
        file = self._opened(fragment)
        file.seek(first * RECORD_BYTES)
        data = file.read((end - first) * RECORD_BYTES)
        file.check()
        # An object that became shorter has nothing there; only a reader that looks at no version comes so far.
        return int(data[:4] or b"-1")

    def checksum(self, fragment: Fragment) -> bytes:
        """The checksum of as many of its bytes as the fragment has. FragmentChanged, likewise."""
        file = self._opened(fragment)
        file.seek(0)
        digest, left = xxhash.xxh3_128(), min(file.size, fragment.size)
        while left:
            data = file.read(min(left, GET_BYTES))
            digest.update(data)
            left -= len(data)
        file.check()
        return digest.digest()

    def close(self) -> None:
        """Let go of the object."""
        self._fragment = self._file = None

    def _opened(self, fragment: Fragment) -> RemoteFile:
        known = self._fragment
        if self._file is None or known is None or (known.id, known.version) != (fragment.id, fragment.version):
            file = RemoteFile(cast("ObjectStore", self._objects), fragment.uri, fragment, ahead=False)
            file.check()
            self._fragment, self._file = fragment, file
        return self._file
