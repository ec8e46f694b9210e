"""The index of traces of the datasets that runs write: each by a process of its own, which gives way to the tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

from headrace.daemon import Effects, ending_with_this
from headrace.store.ledger import LedgerState

logger = logging.getLogger("headrace.controller")

#: Records without an index for which one is written while a run flows: those of a file of it.
FLOWING_RECORDS = 1 << 24
#: The same at the end of a run: a trace that reads the tables of fewer takes no longer than a second.
ENDED_RECORDS = 1 << 20
#: Seconds that the end of a run waits for an index. `headrace dataset trace --index` writes what is missing then.
WAIT_S = 120.0


class TraceIndexes:
    """Has indexes written, of each dataset one at a time. Called on the event loop's thread."""

    def __init__(self, effects: Effects, flowing: int = FLOWING_RECORDS, ended: int = ENDED_RECORDS) -> None:
        self._effects, self._flowing, self._ended = effects, flowing, ended
        #: Of how many records each dataset's last index was, and who is at work.
        self._indexed: dict[str, int] = {}
        self._at_work: dict[str, asyncio.Task[None]] = {}

    def closed(self, dataset: str, ledger: LedgerState) -> None:
        """A run has closed records: have them indexed if they are many."""
        records = _records(ledger)
        if dataset not in self._at_work and records - self._indexed.get(dataset, 0) >= self._flowing:
            self._begin(dataset, records)

    async def ended(self, dataset: str, ledger: LedgerState) -> None:
        """A run has closed the last of its records: have them indexed, in WAIT_S at most."""
        records = _records(ledger)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while records - self._indexed.get(dataset, 0) >= self._ended or dataset in self._at_work:
                    await (self._at_work.get(dataset) or self._begin(dataset, records))

    def close(self) -> None:
        """End those who are at work; what they have written stays."""
        for task in self._at_work.values():
            task.cancel()

    def _begin(self, dataset: str, records: int) -> asyncio.Task[None]:
        self._indexed[dataset] = records
        task = self._at_work[dataset] = self._effects.start("trace index", self._write(dataset))
        return task

    async def _write(self, dataset: str) -> None:
        command = (sys.executable, "-P", "-m", "headrace.cli", "dataset", "trace", "--index", "--", dataset)
        quiet = asyncio.subprocess.DEVNULL
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=quiet, stdout=quiet, stderr=quiet, env={**os.environ, **ending_with_this()}
            )
            if await process.wait():
                logger.warning(
                    "the index of traces of %s could not be written: `headrace dataset trace --index`", dataset
                )
        except OSError as error:
            logger.warning("the index of traces of %s could not be written: %s", dataset, error)
        finally:
            del self._at_work[dataset]
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


def _records(ledger: LedgerState) -> int:
    """The records that an index of a dataset names, one for each sink."""
    return sum(counts.records for counts in ledger.counts.values())
