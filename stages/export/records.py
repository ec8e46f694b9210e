"""Records as text: the kept ones of a dataset, decoded from its tokens or as a sink of texts has written them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headrace.stages.export.pairs import text_decoder
from headrace.stages.tokenizer import Decoder
from headrace.store import FormatError, ObjectStore
from headrace.store.datasets import Dataset, ShardRecord
from headrace.store.ledger import main_sink
from headrace.store.shards import column_names, read_lines, read_row_groups, read_shard, read_table, rows_named

#: Rows whose texts are decoded at once.
ROWS_AT_ONCE = 64
_COLUMNS = ("id", "source", "row", "metadata")


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A kept record and its text."""

    id: str
    source: str
    #: Its ordinal in its fragment.
    row: int
    #: None in a dataset of text.
    tokens: int | None
    metadata: str | None
    text: str


def first_records(dataset: Dataset, count: int | None, tokenizer: str = "") -> Iterator[ShownRecord]:
    """The first `count` records that a dataset shows, all of them for None, a shard at a time.

    Raises PipelineError where the tokenizer is not known, StoreError.
    """
    texts = _Texts(dataset, tokenizer)
    left = count
    for shard in _shards(dataset):
        rows = _shown(dataset, shard)[:left]
        yield from texts.of(shard, rows)
        left = None if left is None else left - len(rows)
        if left == 0:
            return


def named_records(dataset: Dataset, ids: Collection[str], tokenizer: str = "") -> Iterator[ShownRecord]:
    """The records of these ids that a dataset shows, or their parts. Raises as `first_records` does."""
    texts = _Texts(dataset, tokenizer)
    for shard in _shards(dataset):
        table = read_table(dataset.store, _key(shard, "documents"), ["id", "part"])
        mask = np.zeros(table.num_rows, np.bool_)
        for name in ids:
            mask |= rows_named(table, name)
        shown = _shown(dataset, shard)
        yield from texts.of(shard, shown[mask[shown]])


def sampled_records(dataset: Dataset, count: int, seed: int, tokenizer: str = "") -> Iterator[ShownRecord]:
    """At most `count` records that a dataset shows, drawn evenly; the same seed draws the same ones."""
    texts, draw = _Texts(dataset, tokenizer), random.Random(seed)
    shards = list(_shards(dataset))
    ends = list(accumulate(shard.closed.counts.kept for shard in shards))
    total = ends[-1] if ends else 0
    drawn = draw.sample(range(total), min(count, total))
    many = Counter(np.searchsorted(np.array(ends), np.array(drawn, np.int64), side="right").tolist())
    for number, quota in sorted(many.items()):
        rows = _shown(dataset, shards[number]).tolist()
        chosen = sorted(draw.sample(rows, min(quota, len(rows))))
        yield from texts.of(shards[number], np.array(chosen, np.int64))


def _shards(dataset: Dataset) -> Iterator[ShardRecord]:
    """The shards of the main sink that hold a record."""
    main = main_sink(dataset.state.counts)
    return (
        shard
        for shard in dataset.shards
        if shard.closed.sink == main and shard.closed.counts.kept and shard.object("documents") is not None
    )


def _key(shard: ShardRecord, role: str) -> str:
    stored = shard.object(role)
    assert stored is not None, f"a shard of {role}"
    return stored.key


def _shown(dataset: Dataset, shard: ShardRecord) -> npt.NDArray[np.int64]:
    """The rows of a shard's table of documents that are shown."""
    rows = sum(table.num_rows for table in read_row_groups(dataset.store, _key(shard, "documents"), ["row"]))
    tokens = shard.object("tokens")
    named = _key(shard, "documents") if tokens is None else tokens.key
    hidden = dataset.retracted(named)
    return np.setdiff1d(np.arange(rows), np.array(sorted(hidden), np.int64))


class _Texts:
    """The texts of rows, with a decoder that is made once."""

    def __init__(self, dataset: Dataset, tokenizer: str) -> None:
        self._dataset, self._tokenizer = dataset, tokenizer
        self._decode: Decoder | None = None

    def of(self, shard: ShardRecord, rows: npt.NDArray[np.int64]) -> Iterator[ShownRecord]:
        """The records in these rows of a shard, which ascend."""
        if not len(rows):
            return
        store, documents = self._dataset.store, _key(shard, "documents")
        if shard.object("tokens") is not None:
            table = read_table(store, documents, [*_COLUMNS, "tokens"])
            yield from self._decoded(table, read_shard(store, _key(shard, "tokens")), rows)
        elif "text" in column_names(store, documents):
            at = 0
            for table in read_row_groups(store, documents, [*_COLUMNS, "text"]):
                here = rows[(rows >= at) & (rows < at + table.num_rows)] - at
                at += table.num_rows
                texts = table.column("text").take(pa.array(here, pa.int64())).to_pylist()
                yield from _records(table, here, texts, [None] * len(here))
        elif shard.object("lines") is not None:
            table = read_table(store, documents, list(_COLUMNS))
            gone = self._dataset.state.erased_rows(documents)
            lines = rows - np.searchsorted(np.array(gone, np.int64), rows)
            for row, text in zip(rows.tolist(), _lines(store, _key(shard, "lines"), lines.tolist()), strict=True):
                yield from _records(table, np.array([row]), [text], [None])

    def _decoded(
        self, table: pa.Table, arrays: dict[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64]
    ) -> Iterator[ShownRecord]:
        if self._decode is None:
            self._decode = text_decoder(self._dataset, self._tokenizer)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            here = rows[first : first + ROWS_AT_ONCE]
            parts = [tokens_of(arrays, row) for row in here.tolist()]
            lengths = np.array([len(part) for part in parts], np.int64)
            texts = self._decode(np.concatenate(parts), lengths).to_pylist()
            yield from _records(table, here, texts, lengths.tolist())


def tokens_of(arrays: dict[str, npt.NDArray[Any]], row: int) -> npt.NDArray[Any]:
    """The tokens of one document of a shard, repeated ones left out; its pieces lie together."""
    owner = arrays["piece_document"]
    first, end = np.searchsorted(owner, [row, row + 1]).tolist()
    repeated = arrays.get("piece_repeated")
    parts: list[npt.NDArray[Any]] = [arrays["tokens"].reshape(-1)[:0]]
    for piece in range(first, end):
        start, skip = int(arrays["piece_start"][piece]), 0 if repeated is None else int(repeated[piece])
        stop = start + int(arrays["piece_length"][piece])
        parts.append(arrays["tokens"][int(arrays["piece_sequence"][piece]), start + skip : stop])
    return np.concatenate(parts)


def _records(
    table: pa.Table, rows: npt.NDArray[np.int64], texts: Sequence[str | None], tokens: Sequence[int | None]
) -> Iterator[ShownRecord]:
    facts = table.select(list(_COLUMNS)).take(pa.array(rows, pa.int64())).to_pylist()
    for fact, text, count in zip(facts, texts, tokens, strict=True):
        yield ShownRecord(str(fact["id"]), str(fact["source"]), int(fact["row"]), count, fact["metadata"], text or "")


def _lines(store: ObjectStore, key: str, rows: Sequence[int]) -> Iterator[str]:
    """The texts in these lines of an object of JSON Lines. Raises FormatError, StoreError."""
    wanted, found = set(rows), -1
    for found, line in enumerate(islice(read_lines(store, key), rows[-1] + 1)):
        if found in wanted:
            try:
                yield str(orjson.loads(line)["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(f"{store.uri}: line {found} of {key!r} is no record: {error}; restore it") from error
    if found < rows[-1]:
        raise FormatError(
            f"{store.uri}: {key!r} has {found + 1} lines, and its documents more than {rows[-1]}; restore it"
        )
