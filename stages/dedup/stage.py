"""The two stages of deduplication: one makes keys, as many times as there are cores; one decides, once."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.dedup.core import decider as core
from headrace.stages.dedup.core.scheme import (
    EQUAL,
    EQUAL_URL,
    EXACT_WORDS,
    KEYS,
    SIMILAR,
    SKETCH,
    Scheme,
    numbered_column,
    url_key,
)
from headrace.stages.dedup.key_index import KeyIndex, Match, compile_index
from headrace.stages.dedup.minhash import Keys, compile_keys, make_sketches
from headrace.stages.dedup.near_verdicts import NearVerdicts
from headrace.stages.dedup.partitioned import IndexShare, KeptSources, PartitionedIndex
from headrace.stages.dedup.sketches import are_sketches, is_sketch
from headrace.stages.runtime import (
    DUPLICATE,
    PART,
    ROW,
    WITHOUT,
    Batch,
    StageContractError,
    StatefulTransform,
    Transform,
    ordinals_of,
    text_of,
)
from headrace.stages.text import LoopRoom, with_column
from headrace.stages.text.machine import is_prepared
from headrace.store import ObjectStore
from headrace.store.shards import RecordName, read_sketches

logger = logging.getLogger("headrace.dedup")

#: The name of the counter of records that have no key.
WITHOUT_URL = f"{WITHOUT}a URL"
_SCORE = re.compile(f"{SIMILAR}: score ([01])\\.([0-9]{{3}}),")


def preload(**_parameters: object) -> None:
    """Load the loops that are compiled already, for the tasks that are forked; compiling them is a task's work."""
    if is_prepared("keys") and is_prepared("index"):
        compile_keys()
        compile_index()


class KeyMaker(Transform):
    """Gives each record its keys. It has no memory, and there may be many."""

    def __init__(
        self, name: str, ngram: int, bands: int, rows: int, rule: int = 0, url: int = 0, url_key: str = ""
    ) -> None:
        self.name = name
        self.scheme = Scheme(ngram, bands, rows, rule, url)
        self.url_key = url_key
        self._number, self._room = 0, LoopRoom()
        if not url:
            compile_keys()

    def stand_behind(self, remembering: int) -> None:
        """See `Transform`."""
        self._number = remembering

    def process(self, batch: Batch) -> Batch:
        """The same rows with their keys, and their sketches where a judge compares them."""
        if self.scheme.url:
            keys, sketches = _url_keys(batch.rows.column("metadata"), self.url_key), None
            batch = batch.counted(self.name, WITHOUT_URL, int((keys[:, 1] == 0).sum()))
        else:
            keys, sketches = make_sketches(text_of(batch, self.name), self.scheme, self._room)
        width = pa.binary(8 * self.scheme.words)
        content = pa.py_buffer(keys.astype("<u8").tobytes())
        column = pa.FixedSizeBinaryArray.from_buffers(width, len(keys), [None, content])
        rows = with_column(batch.rows, numbered_column(KEYS, self._number), column)
        if self.scheme.judged:
            rows = with_column(rows, numbered_column(SKETCH, self._number), sketches)
        return batch.with_rows(rows)


class Dedup(StatefulTransform):
    """Keeps the first of several duplicates. There is one, and it remembers the keys of all that was kept."""

    def __init__(
        self, name: str, ngram: int, bands: int, rows: int, rule: int = 0, url: int = 0, folder: str | None = None
    ) -> None:
        self.name = name
        self.scheme = Scheme(ngram, bands, rows, rule, url)
        self._folder = folder
        compile_index()
        self.index = KeyIndex(self.scheme, folder)
        self._decider = core.Decider(self.index)
        self._partitioned: PartitionedIndex | None = None
        self._kept: KeptSources | None = None
        #: Where several sinks have a fate for each record.
        self._near: NearVerdicts | None = None
        self._number, self._columns = 0, (KEYS, SKETCH)

    def stand_behind(self, remembering: int) -> None:
        """See `Transform`."""
        self._number = remembering
        self._columns = numbered_column(KEYS, remembering), numbered_column(SKETCH, remembering)

    def part(self, partitions: int) -> None:
        """Have the keys in so many partitions: other tasks, which are asked with `requests`."""
        self.index = self._partitioned = PartitionedIndex(self.scheme, partitions, self._folder)
        self._decider = core.Decider(self.index)

    def share(self, number: int, partitions: int) -> IndexShare:
        """Partition `number` of so many, in place of a decider."""
        place = None if self._folder is None else f"{self._folder}/partition-{number}-of-{partitions}"
        return IndexShare(self.scheme, number, partitions, place, self._number)

    def requests(self, question: Batch | bytes) -> list[bytes]:
        """What each partition is asked before a batch is processed, or a `question` decided."""
        assert self._partitioned is not None
        return self._partitioned.requests(self._keys_of(question))

    def answered(self, question: Batch | bytes, answers: Sequence[bytes]) -> None:
        """The partitions have answered the `requests` for what comes next. ValueError where an answer is none."""
        assert self._partitioned is not None
        self._partitioned.answered(answers, len(self._keys_of(question)))

    def _keys_of(self, question: Batch | bytes) -> Keys:
        if not isinstance(question, bytes):
            return self._keys(question.rows)
        return np.frombuffer(question[: 8 * self.scheme.words], "<u8").astype(np.uint64).reshape(1, self.scheme.words)

    @property
    def fenced(self) -> bool:
        """Whether it lets nothing through until the epoch is raised."""
        return self._decider.state is core.DeciderState.FENCED

    def forbid(self) -> None:
        """Let nothing through: an index of this epoch was lost."""
        self._handle(core.ServiceForbidden())

    def begin(self, store: ObjectStore | None, epoch: int, sinks: Sequence[str]) -> None:
        """Load the keys of what sinks have kept up to the epoch's position; None: nothing was kept yet.

        Raises PipelineError where a shard has no keys, FormatError where they are of another scheme, StoreError.
        """
        self._load(store, epoch, sinks)
        if self._near is not None and self._kept is not None and store is not None:
            for table in self._kept.open_verdicts(store, epoch, sinks):
                self._near.learn(matches_of(table, self.name))
        self._handle(core.KeysLoaded())

    def prepare(self, store: ObjectStore, sinks: Sequence[str]) -> None:
        """Before `begin`: load what is kept by now, so that there is little left. Raises as that."""
        self._load(store, None, sinks)

    def _load(self, store: ObjectStore | None, position: int | None, sinks: Sequence[str]) -> None:
        if self.scheme.judged and len(sinks) > 1:
            self._near = self._near or NearVerdicts()
        if store is not None:
            self._kept = self._kept or KeptSources(self.scheme, self._number)
            loaded = self._kept.load(self.index, store, position, sinks)
            self.index.settled = self.index.records
            for file, source in loaded:
                if self.scheme.judged:
                    self.index.expect(
                        source.first, source.count, functools.partial(read_sketches, store, file.sketches)
                    )
                elif source.twice and len(sinks) == 1:
                    logger.warning("%s: %d keys are held by records of other shards too", file.keys, source.twice)
            logger.info("holds the keys of %d records, %d MiB", self.index.records, self.index.nbytes >> 20)

    def recall(self, matches: Mapping[RecordName, Match]) -> None:
        """In place of `begin`: answer as it was answered once, so that a shard can be made again."""
        self._decider = core.Decider(_Record(matches))
        self._handle(core.KeysLoaded())

    def fits(self, question: bytes) -> bool:
        """Whether bytes from a stranger have the size of the keys of one record, and of its sketch."""
        size = 8 * self.scheme.words
        return is_sketch(question[size:]) if self.scheme.judged else len(question) == size

    def question(self, batch: Batch) -> bytes:
        """The keys of a batch of one record, 8 bytes a word, the lowest byte first, and its sketch."""
        sketch: bytes = self._sketches(batch.rows)[0].as_py() if self.scheme.judged else b""
        return self._keys(batch.rows).astype("<u8").tobytes() + sketch

    def decide(self, name: RecordName, question: bytes) -> Match | None:
        """What one record is a duplicate of; None: it is kept and holds its keys.

        Raises StageContractError if fenced. The question `fits`.
        """
        keys = self._keys_of(question)
        sketch = pa.array([question[8 * self.scheme.words :]], pa.binary()) if self.scheme.judged else None
        found: Match | None = self._decided(core.BatchStamped(name.fragment, np.array([name.row]), keys, sketch))[0]
        return found

    def release(self, names: Sequence[RecordName]) -> None:
        """Let go of the claims of records that are not kept after all."""
        for name in names:
            self._handle(core.ClaimReleased(name))
        if self._near is not None:
            self._near.forget(names)

    def process(self, batch: Batch) -> Batch:
        """The batch less the duplicates; each verdict names the record that is kept in its place."""
        rows = batch.rows
        if not rows.num_rows:
            return batch
        if PART in rows.schema.names:
            raise StageContractError(f'stage "{self.name}" got records that were split: split them after it')
        keys = self._keys(rows)
        sketches = self._sketches(rows) if self.scheme.judged else None
        stamped = core.BatchStamped(batch.fragment, ordinals_of(rows.column(ROW)), keys, sketches)
        return self._without(batch, self._decided(stamped))

    def _decided(self, stamped: core.BatchStamped) -> Sequence[Any]:
        known = self._near.known(stamped.fragment, stamped.rows) if self._near is not None else {}
        if known:
            # Without a key a record takes nothing.
            keys = stamped.keys.copy()
            keys[[*known]] = 0
            stamped = replace(stamped, keys=keys)
        (command,) = self._handle(stamped)
        if not isinstance(command, core.AnswerBatch):
            raise StageContractError(f'stage "{self.name}" is fenced and was given a batch')
        found = [known.get(place, match) for place, match in enumerate(command.duplicates_of)]
        if self._near is not None:
            self._near.note(stamped.fragment, stamped.rows, found)
        return found

    def _without(self, batch: Batch, duplicates_of: Sequence[Any]) -> Batch:
        lost = [place for place, found in enumerate(duplicates_of) if found is not None]
        found = [duplicates_of[place] for place in lost]
        reasons = [self.scheme.reason(near=match.near, score=match.score) for match in found]
        names, settled = [match.name for match in found], [match.settled for match in found]
        return batch.lose(lost, self.name, DUPLICATE, reasons, duplicates_of=names, settled=settled)

    def _sketches(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        column = self._columns[1]
        if column not in rows.schema.names:
            raise StageContractError(f'stage "{self.name}" got records without sketches: put both its stages in')
        # They come from another process, and loops read them without a look at their bounds.
        if not are_sketches(rows.column(column)):
            raise ValueError("the sketches of records are none")
        return rows.column(column)

    def _keys(self, rows: pa.RecordBatch) -> Keys:
        name = self._columns[0]
        if name not in rows.schema.names:
            raise StageContractError(
                f'stage "{self.name}" got records without keys: dedup() gives two stages, put both into the pipeline'
            )
        column: Any = rows.column(name)
        if column.type != pa.binary(8 * self.scheme.words) or column.null_count:
            raise ValueError(f"the keys of records are of type {column.type}, not {8 * self.scheme.words} bytes each")
        return keys_of(column)

    def _handle(self, event: core.Event) -> list[core.Command]:
        return self._decider.handle(event, time.monotonic())


class _Record:
    """An index that knows no keys and remembers what became of records."""

    def __init__(self, matches: Mapping[RecordName, Match]) -> None:
        self._matches = matches

    def decide(self, fragment: bytes, rows: Any, keys: Any, sketches: Any) -> list[Match | None]:
        """What each record was a duplicate of; None of the others."""
        del keys, sketches
        return [self._matches.get(RecordName(fragment, row)) for row in rows.tolist()]

    def release(self, name: RecordName) -> bool:
        """Nothing is claimed."""
        del name
        return False


def matches_of(verdicts: pa.Table, stage: str) -> dict[RecordName, Match]:
    """What the duplicates that a stage found are duplicates of, from a table of verdicts."""
    mine = pc.equal(verdicts.column("stage"), pa.scalar(stage, pa.string()))
    lost = verdicts.filter(pc.and_(mine, pc.equal(verdicts.column("verdict"), pa.scalar(DUPLICATE, pa.string()))))
    columns: list[list[Any]] = [lost.column(name).to_pylist() for name in ("fragment", "row", "duplicate_of", "reason")]
    return {
        RecordName(bytes.fromhex(fragment), row): Match(
            RecordName.stored(target, "the target of a duplicate"), reason not in (EQUAL, EQUAL_URL), _score_of(reason)
        )
        for fragment, row, target, reason in zip(*columns, strict=True)
    }


def _score_of(reason: str) -> int:
    """The judge's score in a reason, in thousandths; -1: none is there."""
    found = _SCORE.match(reason)
    return int(found[1] + found[2]) if found else -1


def _url_keys(metadata: Any, field: str) -> Keys:
    """`[n, 2]`: the keys of the URLs that metadata have in a field; 0 where there is none."""
    found = [url_key(_url_in(packed, field)) for packed in metadata.to_pylist()]
    return np.array(found, np.uint64).reshape(len(found), EXACT_WORDS)


def _url_in(packed: str | None, field: str) -> str:
    """What metadata have in a field, or where "a.b" is none, in the field b of a; "" for what is no text."""
    try:
        facts: Any = orjson.loads(packed) if packed else None
    except ValueError:
        return ""
    for name in (field,) if not isinstance(facts, dict) or field in facts else field.split("."):
        facts = facts.get(name) if isinstance(facts, dict) else None
    return facts if isinstance(facts, str) else ""


def keys_of(column: Any) -> Keys:
    """`[rows, words]`: the keys that records carry in a column."""
    width = column.type.byte_width
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros((0, width // 8), np.uint64)
    flat = np.frombuffer(data, "<u8", count=len(column) * width // 8, offset=column.offset * width)
    return flat.reshape(len(column), width // 8).astype(np.uint64)
