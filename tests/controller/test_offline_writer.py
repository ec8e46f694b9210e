"""What a command writes into a log: it is durable when it is said to be, and a lost log is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.controller.offline_writer import OfflineWriter
from headrace.store.contract.errors import DatasetBusy
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
