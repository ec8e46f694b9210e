"""What a command writes into a log: it is durable when it is said to be, and a lost log is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.controller import offline_writer
from headrace.controller.offline_writer import OfflineWriter, with_offline_writer
from headrace.store.contract.errors import DatasetBusy, StoreRefused, StoreStalled, StoreUnavailable
from headrace.store.ledger.core.entries import Beat, Entry, Led, VersionPublished, decode_entry, encode_entry
from headrace.store.ledger.log import Log
from headrace.store.open import open_store


def test_finding_anothers_entry_tells_nobody_that_its_own_stands(tmp_path: Path) -> None:
    async def act() -> None:
        writer = OfflineWriter(str(tmp_path))
        await writer.lead()
        Log(open_store(str(tmp_path))).append(1, encode_entry(Entry(2, (Led(2, {"pid": 1}), Beat(2)))))
        with pytest.raises(DatasetBusy, match="taken over"):
            await writer.commit(VersionPublished(1, "completed"))
        await writer.resign()

    asyncio.run(act())


@pytest.mark.parametrize("entries", [0, 1])
def test_a_store_that_refuses_an_entry_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    append, left = Log.append, [None] * entries

    def refusing(self: Log, number: int, data: bytes) -> object:
        if left:
            left.pop()
            return append(self, number, data)
        raise StoreRefused("cannot create: Permission denied")

    async def work(writer: OfflineWriter) -> None:
        await writer.commit(VersionPublished(1, "completed"))

    monkeypatch.setattr(Log, "append", refusing)
    monkeypatch.setattr(offline_writer, "WRITE_S_MAX", 0.0)
    with pytest.raises(StoreRefused, match="cannot be written: cannot create: Permission denied"):
        with_offline_writer(str(tmp_path), work)


class FullLog:
    """A log whose store is full from its second entry on, for some attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempts: int) -> None:
        self.entries, self.left = 0, attempts
        append = Log.append

        def filled(log: Log, number: int, data: bytes) -> object:
            self.entries += 1
            if self.entries > 1 and self.left:
                self.left -= 1
                raise StoreStalled("cannot create: No space left on device")
            return append(log, number, data)

        monkeypatch.setattr(Log, "append", filled)


async def publish(writer: OfflineWriter) -> None:
    await writer.commit(VersionPublished(1, "completed"))


def test_a_full_store_is_told_long_before_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullLog(monkeypatch, 1000)
    monkeypatch.setattr(offline_writer, "STALLED_S_MAX", 0.0)
    with pytest.raises(StoreUnavailable, match=r"an entry was not written in 0 s: .*No space left on device"):
        with_offline_writer(str(tmp_path), publish)


def test_a_store_that_has_room_again_takes_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullLog(monkeypatch, 1)

    async def work(writer: OfflineWriter) -> list[bytes]:
        await publish(writer)
        return [data for _, data in Log(open_store(str(tmp_path))).read()]

    written = with_offline_writer(str(tmp_path), work)
    assert isinstance(decode_entry(written[-1]).changes[-1], VersionPublished)
    assert full.left == 0
