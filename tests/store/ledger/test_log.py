"""The numbered log."""

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.store.contract.errors import FormatError, ObjectMissing, StoreUnavailable
from headrace.store.contract.objects import ObjectInfo
from headrace.store.files.store import FileStore
from headrace.store.ledger.log import AHEAD, NUMBER_MAX, Appended, Log, Refused

#: For two to ask at once.
S_MAX = 60.0
#: Reading a log of three entries takes less.
MEMORY_BYTES_MAX = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def _filled(store: FileStore, count: int) -> Log:
    log = Log(store)
    for number in range(count):
        assert log.append(number, b"entry %d" % number) == Appended(number)
    return log


def test_a_key_has_twenty_digits(store: FileStore) -> None:
    assert Log(store).key(42) == "ledger/00000000000000000042.msgpack"
    assert Log(store, "controller/ledger/").key(0) == "controller/ledger/00000000000000000000.msgpack"


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_no_entry_can_have_is_refused(store: FileStore, number: int) -> None:
    with pytest.raises(ValueError, match="log number"):
        Log(store).append(number, b"")


def test_an_empty_log_reads_as_nothing(store: FileStore) -> None:
    assert list(Log(store).read()) == []


def test_entries_are_read_in_order_from_behind_a_number(store: FileStore) -> None:
    log = _filled(store, 12)
    assert [number for number, _ in log.read()] == list(range(12))
    assert list(log.read(after=9)) == [(10, b"entry 10"), (11, b"entry 11")]
    assert list(log.read(after=11)) == []


def test_the_same_bytes_again_are_answered_as_appended(store: FileStore) -> None:
    log = _filled(store, 1)
    assert log.append(0, b"entry 0") == Appended(0)


def test_other_bytes_are_refused_with_those_that_stand(store: FileStore) -> None:
    log = _filled(store, 1)
    assert log.append(0, b"mine") == Refused(0, b"entry 0")
    assert log.append(0, b"entry 1") == Refused(0, b"entry 0"), "as long, and not the same"
    assert list(log.read()) == [(0, b"entry 0")]


@pytest.mark.parametrize("missing", [0, 3])
def test_a_missing_entry_is_named(store: FileStore, missing: int) -> None:
    log = _filled(store, 6)
    store.delete(log.key(missing))
    reading = log.read()
    for _ in range(missing):
        next(reading)
    with pytest.raises(FormatError, match=rf"has entry {missing + 1} but not entry {missing};"):
        next(reading)


def test_a_gap_right_behind_the_start_is_named(store: FileStore) -> None:
    log = _filled(store, 6)
    store.delete(log.key(4))
    with pytest.raises(FormatError, match="has entry 5 but not entry 4"):
        list(log.read(after=3))


def test_other_objects_beside_the_entries_are_passed_over(store: FileStore) -> None:
    log = _filled(store, 2)
    store.create("ledger/00000000000000000001.snapshot", [b"x"])
    store.create("ledger/notes.msgpack", [b"x"])
    store.create("ledger/sub/00000000000000000002.msgpack", [b"x"])
    assert [number for number, _ in log.read()] == [0, 1]


def test_the_number_in_a_snapshots_name_takes_no_memory(store: FileStore) -> None:
    log = _filled(store, 3)
    store.create(log.snapshot_key(100_000), [b""])
    tracemalloc.start()
    try:
        assert log.read_from(0) == ((100_000, b""), [])
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ending", ["msgpack", "snapshot"])
def test_a_number_that_no_entry_has_is_passed_over(store: FileStore, ending: str) -> None:
    log = _filled(store, 2)
    store.create(f"ledger/{NUMBER_MAX + 1:020d}.{ending}", [b"x"])
    store.create(f"ledger/{'9' * 20}.{ending}", [b"x"])
    assert [number for number, _ in log.read()] == [0, 1]
    assert log.read_from() == (None, list(log.read()))
    assert log.snapshots() == []


def test_two_logs_of_one_store_do_not_meet(store: FileStore) -> None:
    log, other = _filled(store, 3), Log(store, "ledger2")
    assert other.append(0, b"other") == Appended(0)
    assert list(other.read()) == [(0, b"other")]
    assert len(list(log.read())) == 3


class _BlinkingStore(FileStore):
    """Lists a younger entry and misses an older one, as a directory may that is read while it grows."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix, after) if not info.key.endswith("1.msgpack"))


def test_an_entry_that_a_listing_missed_is_read_all_the_same(tmp_path: Path) -> None:
    _filled(FileStore(tmp_path), 4)
    assert [number for number, _ in Log(_BlinkingStore(tmp_path)).read()] == [0, 1, 2, 3]


class _LyingStore(FileStore):
    """Says that the key is taken, and has no such object."""

    def create(self, key: str, parts: object) -> bool:
        return False


def test_a_refusal_without_an_entry_stops_the_writer(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="refused as existing and then not found"):
        Log(_LyingStore(tmp_path)).append(0, b"x")


class Distant:
    """A folder that says it is a bucket; the first two entries are given to those who ask for both at once."""

    uri = "s3://bucket"
    is_remote = True

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._both = threading.Barrier(2)
        self.missing = ""

    def get(self, key: str) -> bytes:
        if key == self.missing:
            raise ObjectMissing(key, self.uri)
        if key.endswith(("00.msgpack", "01.msgpack")):
            self._both.wait(S_MAX)
        return self._store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_entries_of_a_distant_store_are_asked_at_once_in_order(store: FileStore) -> None:
    _filled(store, 3 * AHEAD)
    distant = Distant(store)
    log = Log(distant)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    wanted = [(number, b"entry %d" % number) for number in range(3 * AHEAD)]
    assert list(log.read()) == wanted
    assert log.read_from() == (None, wanted)


def test_a_missing_entry_of_a_distant_store_is_told_in_turn(store: FileStore) -> None:
    _filled(store, 8)
    distant = Distant(store)
    distant.missing = Log(store).key(5)
    entries = Log(distant).read()  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert [next(entries)[0] for _ in range(5)] == list(range(5))
    with pytest.raises(ObjectMissing):
        next(entries)
