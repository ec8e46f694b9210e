"""The start-up race: stores where two win, or where all may overwrite, are refused."""

import collections
import pathlib
import secrets
import threading
from collections.abc import Sequence

import pytest
from s3_server import S3Server

from headrace.store.errors import StoreRefused
from headrace.store.objects import Buffer, open_store
from headrace.store.remote_probe import RACERS, ROUNDS, begin_race, probe_create_if_absent
from headrace.store.s3 import S3Store

MEETING_S_MAX = 60.0


class Overwriting:
    """A store that ignores the condition."""

    uri = "s3://overwriting"

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.asked: list[str] = []

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.asked.append(key)
        return self.wins(key)

    def wins(self, key: str) -> bool:
        self.keys.add(key)
        return True

    def delete(self, key: str) -> None:
        self.keys.discard(key)


class Unlocked(Overwriting):
    """A store that looks and then writes: all who look at once find nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers: dict[str, threading.Barrier] = collections.defaultdict(lambda: threading.Barrier(RACERS))
        self.lock = threading.Lock()

    def wins(self, key: str) -> bool:
        if key in self.keys:
            return False
        with self.lock:
            barrier = self.barriers[key]
        barrier.wait(MEETING_S_MAX)
        self.keys.add(key)
        return True


class Refusing(Overwriting):
    """A store where nobody wins."""

    def wins(self, key: str) -> bool:
        return False


@pytest.mark.parametrize(("kind", "winners"), [(Overwriting, RACERS + 1), (Unlocked, RACERS), (Refusing, 0)])
def test_a_store_where_not_exactly_one_wins_is_refused(kind: type[Overwriting], winners: int) -> None:
    store = kind()
    with pytest.raises(StoreRefused, match=rf"{winners} of {RACERS + 1} writers created one key, exactly one may"):
        probe_create_if_absent(store)
    assert store.keys == set()
    assert len(store.asked) == ROUNDS * (RACERS + 1), "a race that is lost leaves nobody of another at the line"


class Undeletable(Overwriting):
    """A store that honours the condition and lets nobody delete."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def wins(self, key: str) -> bool:
        with self.lock:
            is_first = key not in self.keys
            self.keys.add(key)
        return is_first

    def delete(self, key: str) -> None:
        raise StoreRefused(f"no right to delete {key}")


def test_who_may_not_delete_passes_all_the_same() -> None:
    store = Undeletable()
    probe_create_if_absent(store)
    assert len(store.keys) == ROUNDS


def test_a_real_server_passes_once_and_is_not_asked_again(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri())
    race = begin_race(store)
    assert race is not None
    assert race.result(MEETING_S_MAX) is None
    assert list(store.list("")) == []
    assert begin_race(S3Store(s3_server.uri())) is race


def test_a_race_that_is_lost_is_run_again_by_whoever_asks_next() -> None:
    store = Refusing()
    store.uri = f"s3://{secrets.token_hex(8)}"
    first = begin_race(store)
    assert first is not None
    assert isinstance(first.exception(MEETING_S_MAX), StoreRefused)
    again = begin_race(store)
    assert again is not None
    assert again is not first
    assert isinstance(again.exception(MEETING_S_MAX), StoreRefused)


def test_a_directory_passes_the_race_too(tmp_path: pathlib.Path) -> None:
    store = open_store(str(tmp_path))
    probe_create_if_absent(store)
    assert begin_race(store) is None
    assert list(store.list("")) == []
