"""An index whose keys lie in partitions, in tasks of their own: what a decider has of it, and what a partition has."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.dedup.core.partitions import (
    NOBODY,
    Numbers,
    PartitionRequest,
    ServedRequest,
    decode_answer,
    encode_answer,
    partitions_of,
)
from headrace.stages.dedup.core.scheme import EXACT_WORDS, Scheme
from headrace.stages.dedup.index import FixedSlots, KeySource, Levels, LoadedKeys, Partition, Records
from headrace.stages.dedup.kept import KeyFile, key_files, open_verdicts
from headrace.stages.dedup.key_index import KeyIndex, Match
from headrace.stages.dedup.minhash import Keys
from headrace.stages.runtime import IndexPart
from headrace.store import FormatError, ObjectStore
from headrace.store.datasets import fold_ledger
from headrace.store.ledger import LedgerState
from headrace.store.shards import RecordName, read_keys, read_table

logger = logging.getLogger("headrace.dedup")

#: Keys of a batch that have room at first.
BATCH_KEYS = 1 << 16
#: Records that are in memory before they are written to the folder, where there is one.
SEALED_MIN = 1 << 17
_NONE = np.zeros(0, np.int64)
_OF_DUPLICATES = ("fragment", "row", "verdict", "stage", "reason", "duplicate_of")


class PartitionedIndex(KeyIndex):
    """Records and sketches of what is kept. Who holds which key the partitions say, a batch at a time.

    `requests` for a batch, `answered`, and then `decide` for it.
    """

    def __init__(self, scheme: Scheme, partitions: int, folder: str | None = None) -> None:
        super().__init__(scheme, folder)
        self.partitions = partitions
        self._number = 0
        #: Of each partition: the rows and words of the keys that it was asked for, and what of them was claimed.
        self._asked: list[tuple[Numbers, Numbers]] = [(_NONE, _NONE)] * partitions
        self._claims: list[tuple[Numbers, Numbers]] = [(_NONE, _NONE)] * partitions
        self._released: list[int] = []
        self._answers: tuple[Numbers, Numbers] | None = None

    def _empty(self) -> None:
        self.levels, self.table = Levels(self.folder), Records(self.folder)
        #: What records of the batch at hand claim; the partitions learn of it with the next request.
        self._slots, self.filters = FixedSlots(BATCH_KEYS), None

    def _make_room(self, records: int) -> None:
        if self.folder is not None and self.table.unsealed >= SEALED_MIN:
            self.table.seal()
        self.table.make_room(records)
        assert isinstance(self._slots, FixedSlots)
        self._slots = self._slots.with_room(0, self._more)

    def begin(self, sources: Sequence[KeySource]) -> list[LoadedKeys]:
        """As `follow`."""
        return self.follow(sources)

    def follow(self, sources: Sequence[KeySource]) -> list[LoadedKeys]:
        """Number the records of sources; the partitions load their keys."""
        found: list[LoadedKeys] = []
        for source in sources:
            kept = source.keys()
            found.append(LoadedKeys(self.load_records(kept), len(kept.records), 0))
        return found

    def requests(self, keys: Keys) -> list[bytes]:
        """What each partition is asked before records with keys `[n, words]` are decided."""
        self._number += 1
        columns = np.array([0, *range(EXACT_WORDS, self.words)])
        high = keys[:, columns]
        valid = high != 0
        valid[:, 0] = keys[:, 1] != 0
        rows, places = np.nonzero(valid)
        words, firsts = columns[places], high[rows, places]
        parts = partitions_of(firsts, self.partitions)
        released = np.array(sorted(self._released), np.int64)
        found: list[bytes] = []
        for part in range(self.partitions):
            mine = np.flatnonzero(parts == part)
            single = np.zeros((len(mine), EXACT_WORDS), np.uint64)
            single[:, 0] = firsts[mine]
            exact = words[mine] == 0
            single[exact, 1] = keys[rows[mine[exact]], 1]
            claimed, numbers = self._claims[part]
            holding = ~np.isin(numbers, released)
            request = PartitionRequest(self._number, released, claimed[holding], numbers[holding], single, words[mine])
            found.append(request.encode())
            self._asked[part] = rows[mine], words[mine]
        self._released, self._answers = [], None
        return found

    def answered(self, answers: Sequence[bytes], count: int) -> None:
        """The partitions' answers for a batch of so many records. ValueError where one is none, or fenced."""
        held = np.full((count, self.words), NOBODY, np.int64)
        for part, data in enumerate(answers):
            number, holders = decode_answer(data)
            rows, words = self._asked[part]
            if number != self._number or holders is None or len(holders) != len(rows):
                raise ValueError(f"partition {part} answers another request than number {self._number}")
            if len(holders) and int(holders.max()) >= self.records:
                raise ValueError(f"partition {part} names record {int(holders.max())} of {self.records}")
            held[rows, words] = holders
        self._answers = held, np.full((count, self.words), NOBODY, np.int64)

    def decide(self, fragment: bytes, rows: Numbers, keys: Keys, sketches: Any = None) -> list[Match | None]:
        """See `KeyIndex.decide`. The answers for these records are there."""
        found = super().decide(fragment, rows, keys, sketches)
        assert self._answers is not None
        claimed = self._answers[1]
        for part, (places, words) in enumerate(self._asked):
            numbers = claimed[places, words]
            taken = np.flatnonzero(numbers != NOBODY)
            self._claims[part] = taken, numbers[taken]
        self._answers = None
        return found

    def release(self, name: RecordName) -> bool:
        """Let go of the keys of a record; the partitions do so with the next request."""
        number = self.number(name)
        if number != NOBODY:
            self.table.release(number)
            self._released.append(number)
        return number != NOBODY

    def _elsewhere(self, count: int) -> tuple[Numbers, Numbers]:
        if self._answers is None or len(self._answers[0]) != count:
            raise ValueError(f"{count} records are to be decided, and no partition was asked for them")
        return self._answers


class KeptSources:
    """The keys that dedup stage `number` has of what is kept, file by file, as the ledger grows."""

    def __init__(self, scheme: Scheme, number: int = 0) -> None:
        self._scheme, self._number, self._ledger = scheme, number, LedgerState()
        #: The checksums of the files that were given.
        self._given: list[str] = []

    def load(
        self, index: KeyIndex | Partition, store: ObjectStore, position: int | None, sinks: Collection[str]
    ) -> list[tuple[KeyFile, LoadedKeys]]:
        """Load into an index what sinks have kept up to an entry (None: the last), behind what was loaded before.

        Raises PipelineError where a shard lacks keys, FormatError where they are others than before, StoreError.
        """
        files = self._files(store, position, sinks)
        known, checksums = len(self._given), [file.checksum for file in files]
        if checksums[:known] != self._given:
            raise FormatError(f"{store.uri}: other keys are kept there than when the index began")
        made_by, more = self._scheme.identity(), files[known:]
        sources = [
            KeySource(file.checksum, functools.partial(read_keys, store, file.keys, made_by), file.records)
            for file in more
        ]
        found = index.follow(sources) if known else index.begin(sources)
        self._given = checksums
        return list(zip(more, found, strict=True))

    def open_verdicts(self, store: ObjectStore, position: int | None, sinks: Collection[str]) -> Iterator[pa.Table]:
        """The verdicts on duplicates up to an entry (None: the last) that another sink may have read again.

        Raises FormatError, StoreError.
        """
        ledger = fold_ledger(store, self._ledger)
        for key in open_verdicts(ledger, ledger.number if position is None else position, sinks):
            yield read_table(store, key, _OF_DUPLICATES)

    def _files(self, store: ObjectStore, position: int | None, sinks: Collection[str]) -> list[KeyFile]:
        ledger = fold_ledger(store, self._ledger)
        files = key_files(ledger, ledger.number if position is None else position, sinks, store.uri, self._number)
        lacking = [file.keys for file in files if self._scheme.judged and not file.sketches]
        if lacking:
            raise PipelineError(
                f"{store.uri}: {lacking[0]} has no sketches, as exact deduplication writes it: deduplicate as before, "
                "or into a new dataset; if sketches were lost, restore them"
            )
        return files


class IndexShare(IndexPart):
    """One partition: a range of the keys, in a task of its own."""

    def __init__(self, scheme: Scheme, share: int, shares: int, folder: str | None = None, number: int = 0) -> None:
        self._kept = KeptSources(scheme, number)
        self.index = Partition(scheme.words, scheme.identity(), share, shares, folder)
        self._served = ServedRequest[bytes]()
        self._asked = np.zeros((0, EXACT_WORDS), np.uint64), _NONE

    def begin(self, store: ObjectStore | None, epoch: int | None, sinks: Sequence[str]) -> None:
        """Load this range of the keys of what sinks have kept up to the epoch's position, as `Dedup.begin`."""
        if store is not None:
            self._kept.load(self.index, store, epoch, sinks)
            logger.info("holds the keys of %d records, %d MiB", self.index.records, self.index.nbytes >> 20)

    def prepare(self, store: ObjectStore, sinks: Sequence[str]) -> None:
        """See `Dedup.prepare`."""
        self.begin(store, None, sinks)

    def serve(self, data: bytes) -> bytes:
        """The answer to a request of the decider. ValueError where it is none."""
        request = PartitionRequest.decode(data, self.index.words)
        if (answer := self._served.again(request.number)) is not None:
            return answer
        keys, words = self._asked
        if len(request.claimed) and int(request.claimed.max()) >= len(words):
            raise ValueError(f"request {request.number} claims keys that the one before did not ask for")
        for number in request.released.tolist():
            self.index.let_go(number)
        if len(request.claimed):
            self.index.give(request.numbers, keys[request.claimed], words[request.claimed])
        self._asked = request.keys, request.words
        answer = encode_answer(request.number, self.index.ask(request.keys, request.words))
        self._served.served(request.number, answer)
        return answer

    def refuse(self, data: bytes) -> bytes:
        """The answer of a fenced partition."""
        return encode_answer(PartitionRequest.decode(data, self.index.words).number, None)
