"""Which records of a simulated input are like others: the keys of each at each dedup stage, from its name alone.

A record has a text, which some others have too, and two bands, which records of other texts share. So a record may be
like two that are not like each other, and which of them are kept depends on the order in which they come. Behind the
first dedup stage there may be another, which compares something else: addresses.
"""

from __future__ import annotations

import xxhash

#: A record as the ledger names it: fragment and ordinal.
Name = tuple[bytes, int]

#: Texts and bands of each kind that there are, for some 400 to 800 records that come to the decider.
TEXTS, BANDS = 300, 900
_BAND, _OTHER_BAND, _ADDRESS = 1 << 20, 1 << 21, 1 << 22
#: Addresses that there are.
ADDRESSES = 400


class SimulatedTexts:
    """The keys of records, made when they are asked for."""

    def __init__(self) -> None:
        self._keys: dict[Name, tuple[int, ...]] = {}

    def keys(self, name: Name, stage: int = 0) -> tuple[int, ...]:
        """The keys of a record at a dedup stage, that of its text first; two that share one are duplicates."""
        if stage:
            return (_ADDRESS * stage + xxhash.xxh3_64_intdigest(name[0], seed=~name[1] & 0xFFFF_FFFF) % ADDRESSES,)
        keys = self._keys.get(name)
        if keys is None:
            text = xxhash.xxh3_64_intdigest(name[0], seed=name[1]) % TEXTS
            bands = xxhash.xxh3_64_intdigest(text.to_bytes(4, "little"))
            keys = (text, _BAND + bands % BANDS, _OTHER_BAND + bands // BANDS % BANDS)
            self._keys[name] = keys
        return keys

    def alike(self, one: Name, other: Name, stage: int = 0) -> bool:
        """Whether two records share a key of a dedup stage."""
        return not set(self.keys(one, stage)).isdisjoint(self.keys(other, stage))
