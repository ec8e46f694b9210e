"""The two stages of deduplication: one makes keys, as many times as there are cores; one decides, once."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.dedup.core import decider as core
from headrace.stages.dedup.core.scheme import Scheme
from headrace.stages.dedup.index import KeyIndex, Match, compile_index
from headrace.stages.dedup.kept import key_files
from headrace.stages.dedup.minhash import Keys, compile_keys, make_keys
from headrace.stages.runtime import (
    DUPLICATE,
    PART,
    ROW,
    Batch,
    StageContractError,
    StatefulTransform,
    Transform,
    join_verdicts,
    make_verdicts,
    ordinals_of,
    text_of,
)
from headrace.stages.text import with_column
from headrace.store import ObjectStore
from headrace.store.datasets import fold_ledger
from headrace.store.shards import RecordName, read_keys

logger = logging.getLogger("headrace.dedup")

#: The hidden column of a record's keys: `Scheme.words` words of 64 bits, the lowest byte first.
KEYS = "__keys"
#: Why a record is a duplicate.
EQUAL, SIMILAR = "equal text", "similar text"


class KeyMaker(Transform):
    """Gives each record its keys. It has no memory, and there may be many."""

    def __init__(self, name: str, ngram: int, bands: int, rows: int) -> None:
        self.name = name
        self.scheme = Scheme(ngram, bands, rows)
        compile_keys()

    def process(self, batch: Batch) -> Batch:
        """The same rows with their keys."""
        keys = make_keys(text_of(batch, self.name), self.scheme)
        width = pa.binary(8 * self.scheme.words)
        content = pa.py_buffer(keys.astype("<u8").tobytes())
        column = pa.FixedSizeBinaryArray.from_buffers(width, len(keys), [None, content])
        return batch.with_rows(with_column(batch.rows, KEYS, column))


class Dedup(StatefulTransform):
    """Keeps the first of several duplicates. There is one, and it remembers the keys of all that was kept."""

    def __init__(self, name: str, ngram: int, bands: int, rows: int) -> None:
        self.name = name
        self.scheme = Scheme(ngram, bands, rows)
        compile_index()
        self.index = KeyIndex(self.scheme)
        self._decider = core.Decider(self.index)

    @property
    def fenced(self) -> bool:
        """Whether it lets nothing through until the epoch is raised."""
        return self._decider.state is core.DeciderState.FENCED

    def forbid(self) -> None:
        """Let nothing through: an index of this epoch was lost."""
        self._handle(core.ServiceForbidden())

    def begin(self, store: ObjectStore | None, epoch: int, sink: str) -> None:
        """Load the keys of what a sink has kept up to the epoch's position; None: nothing was kept yet.

        Raises PipelineError where a shard has no keys, FormatError where they are of another scheme, StoreError.
        """
        if store is not None:
            for key in key_files(fold_ledger(store), epoch, sink, store.uri):
                twice = self.index.load(read_keys(store, key, self.scheme.identity()))
                if twice:
                    logger.warning("%s: %d keys are held by records of other shards too", key, twice)
            logger.info("holds the keys of %d records, %d MiB", self.index.records, self.index.nbytes >> 20)
        self._handle(core.KeysLoaded())

    def recall(self, matches: Mapping[RecordName, Match]) -> None:
        """In place of `begin`: answer as it was answered once, so that a shard can be made again."""
        self._decider = core.Decider(_Record(matches))
        self._handle(core.KeysLoaded())

    @property
    def question_bytes(self) -> int:
        """Bytes of the keys of one record."""
        return 8 * self.scheme.words

    def question(self, batch: Batch) -> bytes:
        """The keys of a batch of one record, 8 bytes a word, the lowest byte first."""
        return self._keys(batch.rows).astype("<u8").tobytes()

    def decide(self, name: RecordName, question: bytes) -> Match | None:
        """What one record is a duplicate of; None: it is kept and holds its keys. StageContractError if fenced."""
        keys = np.frombuffer(question, "<u8").astype(np.uint64).reshape(1, self.scheme.words)
        found: Match | None = self._decided(core.BatchStamped(name.fragment, np.array([name.row]), keys))[0]
        return found

    def release(self, names: Sequence[RecordName]) -> None:
        """Let go of the claims of records that are not kept after all."""
        for name in names:
            self._handle(core.ClaimReleased(name))

    def process(self, batch: Batch) -> Batch:
        """The batch less the duplicates; each verdict names the record that is kept in its place."""
        rows = batch.rows
        if not rows.num_rows:
            return batch
        if PART in rows.schema.names:
            raise StageContractError(f'stage "{self.name}" got records that were split: split them after it')
        stamped = core.BatchStamped(batch.fragment, ordinals_of(rows.column(ROW)), self._keys(rows))
        return self._without(batch, self._decided(stamped))

    def _decided(self, stamped: core.BatchStamped) -> Sequence[Any]:
        (command,) = self._handle(stamped)
        if not isinstance(command, core.AnswerBatch):
            raise StageContractError(f'stage "{self.name}" is fenced and was given a batch')
        return command.duplicates_of

    def _without(self, batch: Batch, duplicates_of: Sequence[Any]) -> Batch:
        lost = [place for place, found in enumerate(duplicates_of) if found is not None]
        if not lost:
            return batch
        mask = np.ones(len(duplicates_of), np.bool_)
        mask[lost] = False
        gone = batch.rows.take(pa.array(lost, pa.int64()))
        verdicts = make_verdicts(
            rows=gone.column(ROW),
            ids=gone.column("id"),
            stage=self.name,
            verdict=DUPLICATE,
            reasons=[SIMILAR if duplicates_of[place].near else EQUAL for place in lost],
            duplicates_of=[duplicates_of[place].name for place in lost],
        )
        kept = batch.rows.filter(pa.array(mask))
        return replace(batch, rows=kept, verdicts=join_verdicts(batch.verdicts, verdicts))

    def _keys(self, rows: pa.RecordBatch) -> Keys:
        if KEYS not in rows.schema.names:
            raise StageContractError(
                f'stage "{self.name}" got records without keys: dedup() gives two stages, put both into the pipeline'
            )
        return keys_of(rows)

    def _handle(self, event: core.Event) -> list[core.Command]:
        return self._decider.handle(event, time.monotonic())


class _Record:
    """An index that knows no keys and remembers what became of records."""

    def __init__(self, matches: Mapping[RecordName, Match]) -> None:
        self._matches = matches

    def decide(self, fragment: bytes, rows: Any, keys: Any) -> list[Match | None]:
        """What each record was a duplicate of; None of the others."""
        del keys
        return [self._matches.get(RecordName(fragment, row)) for row in rows.tolist()]

    def release(self, name: RecordName) -> bool:
        """Nothing is claimed."""
        del name
        return False


def matches_of(verdicts: pa.Table) -> dict[RecordName, Match]:
    """What the duplicates of a table of verdicts are duplicates of."""
    lost = verdicts.filter(pc.equal(verdicts.column("verdict"), pa.scalar(DUPLICATE, pa.string())))
    columns: list[list[Any]] = [lost.column(name).to_pylist() for name in ("fragment", "row", "duplicate_of", "reason")]
    return {
        RecordName(bytes.fromhex(fragment), row): Match(RecordName.parse(target), reason == SIMILAR)
        for fragment, row, target, reason in zip(*columns, strict=True)
    }


def keys_of(rows: pa.RecordBatch) -> Keys:
    """`[rows, words]`: the keys that records carry."""
    column: Any = rows.column(KEYS)
    width = column.type.byte_width
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros((0, width // 8), np.uint64)
    flat = np.frombuffer(data, "<u8", count=len(column) * width // 8, offset=column.offset * width)
    return flat.reshape(len(column), width // 8).astype(np.uint64)
