"""A race at start-up: whether a store lets exactly one of several writers create a key.

Leadership of the ledger rests on this alone, and some servers ignore `If-None-Match` or check it without a lock.

A race in which nobody meets proves nothing. So each racer sends its headers, waits for the others, and sends its few
bytes when a word is given to all: a server that looks whether the key is free before it has the bytes lets each of them
pass, and what is between the racers at the end is the time in which threads wake one behind the other, some 0.05 ms.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.store import ObjectStore, StoreRefused

#: Two for each key: SeaweedFS serves two that meet one behind the other, but has a third come again after a second.
RACERS = 2
ROUNDS = 6
#: For all racers to stand at the line. Who waits there has a request under way, which a server may give up.
START_S_MAX = 5.0
#: Objects under this prefix are those of a race, and are deleted at its end; one that stays harms nothing.
PROBE_PREFIX = "probe-create-if-absent"

#: The races of this process, by bucket; a child after a fork runs its own.
_RACES: dict[tuple[int, str], Future[None]] = {}
_LOCK = threading.Lock()


def begin_race(store: ObjectStore) -> Future[None] | None:
    """The race of a store's bucket in this process, in a thread of its own; None where nothing is to be probed.

    Its result is None, or `StoreRefused` or `StoreUnavailable`; whoever asks next after these has it run again. A local
    directory is not probed: `link` is the kernel's own promise.
    """
    if not store.is_remote:
        return None
    place = (os.getpid(), store.capabilities.bucket or store.uri)
    with _LOCK:
        race = _RACES.get(place)
        if race is None or (race.done() and race.exception() is not None):
            race = _RACES[place] = Future()
            threading.Thread(target=_run, args=(store, race), name="probe", daemon=True).start()
    return race


def _run(store: ObjectStore, race: Future[None]) -> None:
    try:
        probe_create_if_absent(store)
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        race.set_exception(error)
    else:
        race.set_result(None)


def probe_create_if_absent(store: ObjectStore, racers: int = RACERS, rounds: int = ROUNDS) -> None:
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


def _race(store: ObjectStore, key: str, racers: int) -> int:
    """How many of the racers, and of one who comes late, have created the key; it is gone at the end."""
    create_gated = store.capabilities.create_gated
    arrived, word = threading.Semaphore(0), threading.Event()

    def stand() -> None:
        arrived.release()
        word.wait(START_S_MAX)

    def race(racer: int) -> bool:
        parts = [f"racer {racer}".encode()]
        try:
            if create_gated is not None:
                return create_gated(key, parts, stand)
            stand()
            return store.create(key, parts)
        finally:
            arrived.release()  # for one that failed before it stood there; the others have had the word by then

    def start() -> None:
        # The racers wake together at the word of another; of two the last to arrive would be ahead.
        for _ in range(racers):
            arrived.acquire(timeout=START_S_MAX)
        word.set()

    try:
        with ThreadPoolExecutor(racers, "race") as pool:
            racing = pool.map(race, range(racers))
            start()
            won = list(racing)
        return sum(won) + store.create(key, [b"late"])
    finally:
        # who may not delete may lead all the same: what stays harms nothing
        with contextlib.suppress(StoreRefused):
            store.delete(key)
