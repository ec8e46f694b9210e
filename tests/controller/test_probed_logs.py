"""When a log is written to while it is not known yet whether its store lets exactly one create an object."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.controller.core.messages.log import EntryWritten, ReadLog, WriteEntry
from headrace.controller.logs import Logs, identity, is_alive
from headrace.store.contract.errors import StoreRefused
from headrace.store.contract.objects import Buffer, ObjectStore
from headrace.store.ledger.core.entries import (
    Change,
    Closed,
    Entry,
    FragmentsListed,
    Led,
    Resigned,
    encode_entry,
)
from headrace.store.ledger.core.fragments import Counts
from headrace.store.open import open_store
from headrace.store.s3.probe import PROBE_PREFIX

S_MAX = 30.0
LED = Led(1, {"pid": 1})
CLOSED = Closed("write", "v", 1, (), (), Counts())


class Undecided:
    """A folder that says it is a bucket; its race waits for `let_go`, and `honours` says how it ends."""

    is_remote = True

    def __init__(self, folder: Path, *, honours: bool = True) -> None:
        self._store = open_store(str(folder))
        self.uri = f"s3://{secrets.token_hex(8)}"
        self._honours = honours
        self._gate = threading.Event()

    def let_go(self) -> None:
        self._gate.set()

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if not key.startswith(PROBE_PREFIX):
            return self._store.create(key, parts)
        assert self._gate.wait(S_MAX)
        return self._store.create(key, parts) or not self._honours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Undecided]:
    return lambda **options: Undecided(tmp_path, **options)


def _logs(store: Undecided, cluster: str = "") -> Logs:
    def opener(_uri: str) -> ObjectStore:
        return store  # type: ignore[return-value] # pyright: ignore[reportReturnType]

    return Logs(opener, cluster)


async def _write(logs: Logs, number: int, *changes: Change) -> object:
    return await logs.write(WriteEntry("log", number, Entry(1, changes)))


def test_a_new_log_closes_nothing_while_its_store_is_probed(
    make: Callable[..., Undecided],
) -> None:
    store = make()
    logs = _logs(store)

    async def live() -> None:
        await logs.read(ReadLog("log", -1))
        assert await _write(logs, 0, LED) == EntryWritten("log", 0)
        assert await _write(logs, 1, FragmentsListed(())) == EntryWritten("log", 1)
        closing = asyncio.ensure_future(_write(logs, 2, FragmentsListed(()), CLOSED))
        done, _ = await asyncio.wait([closing], timeout=0.2)
        assert not done
        assert [info.key for info in store.list("ledger/", after="ledger/00000000000000000001.msgpack")] == []
        store.let_go()
        assert await closing == EntryWritten("log", 2)

    asyncio.run(live())
    logs.close()


def test_a_new_log_on_a_failing_store_is_refused_early(make: Callable[..., Undecided]) -> None:
    store = make(honours=False)
    logs = _logs(store)

    async def live() -> None:
        await logs.read(ReadLog("log", -1))
        await _write(logs, 0, LED)
        store.let_go()
        for change in (CLOSED, Resigned(1)):
            with pytest.raises(StoreRefused, match="exactly one may"):
                await _write(logs, 1, change)
        assert [info.key for info in store.list("ledger/")] == ["ledger/00000000000000000000.msgpack"]

    asyncio.run(live())
    logs.close()


@pytest.mark.parametrize("why", ["it says something already", "it is the cluster's", "another has begun it since"])
def test_any_other_log_is_not_written_to_before_its_store_has_passed(make: Callable[..., Undecided], why: str) -> None:
    store = make(honours=False)
    first = encode_entry(Entry(1, (LED,)))
    if why == "it says something already":
        store.create("ledger/00000000000000000000.msgpack", [first])
    logs = _logs(store, cluster="log" if why == "it is the cluster's" else "")

    async def live() -> None:
        found = await logs.read(ReadLog("log", -1))
        if why == "another has begun it since":
            store.create("ledger/00000000000000000000.msgpack", [encode_entry(Entry(1, (Led(1, {"pid": 2}),)))])
            await _write(logs, 0, LED)
        store.let_go()
        number = len(found.entries) or int(why == "another has begun it since")
        with pytest.raises(StoreRefused, match="exactly one may"):
            await _write(logs, number, Led(2, {"pid": 1}))

    asyncio.run(live())
    logs.close()


@pytest.mark.parametrize(
    "told", [{"pid": "x"}, {"pid": None}, {"pid": [1]}, {"start": "x"}, {"start": 1.5}, {"pid": True}]
)
def test_of_a_leader_that_is_no_process_nothing_is_known(told: dict[str, object]) -> None:
    assert is_alive(identity()) is True
    assert is_alive({**identity(), "pid": 1 << 40}) is False
    assert is_alive({**identity(), **told}) is None
    assert is_alive({"boot": identity()["boot"]}) is None
