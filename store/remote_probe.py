"""A race at start-up: whether a store lets exactly one of several writers create a key.

Leadership of the ledger rests on this alone, and some servers ignore `If-None-Match` or check it without a lock.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

#: The races of this process, by bucket; a child after a fork runs its own.
_RACES: dict[tuple[int, str], Future[None]] = {}
_LOCK = threading.Lock()


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


def begin_race(store: Creates) -> Future[None] | None:
    """The race of a store's bucket in this process, in a thread of its own; None where nothing is to be probed.

    Its result is None, or `StoreRefused` or `StoreUnavailable`; whoever asks next after these has it run again. A local
    directory is not probed: `link` is the kernel's own promise.
    """
    if store.uri.startswith("file://"):
        return None
    place = (os.getpid(), getattr(store, "bucket_uri", store.uri))
    with _LOCK:
        race = _RACES.get(place)
        if race is None or (race.done() and race.exception() is not None):
            race = _RACES[place] = Future()
            threading.Thread(target=_run, args=(store, race), name="probe", daemon=True).start()
    return race


def _run(store: Creates, race: Future[None]) -> None:
    try:
        probe_create_if_absent(store)
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        race.set_exception(error)
    else:
        race.set_result(None)


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
        # who may not delete may lead all the same: what stays harms nothing
        with contextlib.suppress(StoreRefused):
            store.delete(key)
