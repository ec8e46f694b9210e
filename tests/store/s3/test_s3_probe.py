"""The start-up race: stores where two win, or where all may overwrite, are refused."""

import collections
import pathlib
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.store import Buffer, Capabilities, open_store
from headrace.store.contract.errors import StoreRefused, StoreUnavailable
from headrace.store.s3.probe import RACERS, ROUNDS, begin_race, probe_create_if_absent
from headrace.store.s3.store import S3Store
from tests.kits.store.s3_server import S3Server

MEETING_S_MAX = 60.0


class Overwriting:
    """A store that ignores the condition."""

    uri = "s3://overwriting"
    is_remote = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

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


class Standing(Overwriting):
    """A store that notes when a racer has sent its headers, and when its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.sent: dict[str, list[str]] = collections.defaultdict(list)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_gated=self.create_gated)

    def create_gated(self, key: str, parts: Sequence[Buffer], gate: Callable[[], None]) -> bool:
        self.note(key, "headers")
        gate()
        self.note(key, "bytes")
        return self.wins(key)

    def note(self, key: str, what: str) -> None:
        with self.lock:
            self.sent[key].append(what)


def test_no_racer_sends_its_bytes_before_all_have_sent_their_headers() -> None:
    store = Standing()
    with pytest.raises(StoreRefused):
        probe_create_if_absent(store)
    assert len(store.sent) == ROUNDS
    for sent in store.sent.values():
        assert sent == ["headers"] * RACERS + ["bytes"] * RACERS


class Failing(Overwriting):
    """A store that one racer cannot even ask."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_gated=self.create_gated)

    def create_gated(self, key: str, parts: Sequence[Buffer], gate: Callable[[], None]) -> bool:
        with self.lock:
            self.asked.append(key)
            if self.asked.count(key) == 1:
                raise StoreUnavailable("no connection")
        gate()
        return True


def test_who_cannot_ask_keeps_nobody_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.s3.probe.START_S_MAX", 10 * MEETING_S_MAX)
    with pytest.raises(StoreUnavailable, match="no connection"):
        probe_create_if_absent(Failing())


def test_a_creates_bytes_go_behind_the_gate_its_headers_before() -> None:
    credentials = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in credentials.items():
            patch.setenv(name, value)
        store = S3Store(f"s3://bucket/x?endpoint=http://127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(MEETING_S_MAX)
        received = b""
        with ThreadPoolExecutor(1) as pool:
            has_headers, is_open = threading.Event(), threading.Event()
            created = pool.submit(
                store.create_gated, "key", [b"the bytes"], lambda: (has_headers.set(), is_open.wait(MEETING_S_MAX))
            )
            connection, _ = server.accept()
            with connection:
                connection.settimeout(MEETING_S_MAX)
                while not received.endswith(b"\r\n\r\n"):
                    received += connection.recv(1 << 16)
                assert has_headers.wait(MEETING_S_MAX)
                assert b"If-None-Match: *" in received
                is_open.set()
                behind = b""
                while len(behind) < len(b"the bytes"):
                    behind += connection.recv(1 << 16)
                assert behind == b"the bytes"
                connection.sendall(b"HTTP/1.1 412 X\r\nContent-Length: 0\r\n\r\n")
                assert created.result(MEETING_S_MAX) is False


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
