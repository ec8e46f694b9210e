"""What a command writes into a log: it is durable when it is said to be, and a lost log is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.controller import offline_writer
from headrace.controller.offline_writer import OfflineWriter, with_offline_writer
from headrace.store.contract.errors import DatasetBusy, StoreRefused
from headrace.store.ledger.core.entries import Beat, Entry, Led, VersionPublished, encode_entry
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
