"""A race at start-up: whether a store lets exactly one of several writers create a key.

Leadership of the ledger rests on this alone, and some servers ignore `If-None-Match` or check it without a lock.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.store.errors import StoreRefused
from headrace.store.objects import Buffer

#: SeaweedFS lets a writer that meets another wait for a second, so the rounds are run beside one another.
RACERS = 4
ROUNDS = 3
#: For all racers to stand at the line.
START_S_MAX = 30.0
#: Objects under this prefix are those of a race, and are deleted at its end; one that stays harms nothing.
PROBE_PREFIX = "probe-create-if-absent"

_PASSED: set[tuple[int, str]] = set()


class Creates(Protocol):
    """As much of an `ObjectStore` as a race needs."""

    @property
    def uri(self) -> str:
        """See `ObjectStore`."""
        ...

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See `ObjectStore`."""
        ...

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        ...


def ensure_create_if_absent(store: Creates) -> None:
    """Probe the store unless this process has probed its bucket before. Raises `StoreRefused`, `StoreUnavailable`.

    A local directory is not probed: `link` is the kernel's own promise.
    """
    if store.uri.startswith("file://"):
        return
    place = (os.getpid(), getattr(store, "bucket_uri", store.uri))
    if place not in _PASSED:
        probe_create_if_absent(store)
        _PASSED.add(place)


def probe_create_if_absent(store: Creates, racers: int = RACERS, rounds: int = ROUNDS) -> None:
    """Let threads race for one key, several times at once. Raises `StoreRefused` where not exactly one wins each."""
    name = secrets.token_hex(8)
    with ThreadPoolExecutor(rounds, "lap") as laps:
        keys = [f"{PROBE_PREFIX}/{name}/{lap}" for lap in range(rounds)]
        wins = list(laps.map(lambda key: _race(store, key, racers), keys))
    if (odd := next((won for won in wins if won != 1), None)) is not None:
        raise StoreRefused(
            f"{store.uri}: {odd} of {racers + 1} writers created one key, exactly one may; "
            "this store does not honour If-None-Match and two leaders could write one ledger: "
            "use AWS S3, MinIO, or SeaweedFS 4.48 or later, or a local directory"
        )


def _race(store: Creates, key: str, racers: int) -> int:
    """How many of the racers, and of one who comes late, have created the key; it is gone at the end."""
    line = threading.Barrier(racers)

    def race(racer: int) -> bool:
        line.wait(START_S_MAX)
        return store.create(key, [f"racer {racer}".encode()])

    try:
        with ThreadPoolExecutor(racers, "race") as pool:
            won = list(pool.map(race, range(racers)))
        return sum(won) + store.create(key, [b"late"])
    finally:
        store.delete(key)
