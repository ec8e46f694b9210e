"""Records as text, as tokens or a sink of texts hold them: those that are kept, and duplicates beside these.

The beginning of a removed text is in the samples of its shard; that of the kept one comes from its tokens, or from
the documents of a dataset of text.
"""

from __future__ import annotations

import difflib
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline import STATEFUL_MAX, PipelineError
from headrace.stages.export.source import read_documents, stored_object_of
from headrace.stages.runtime import DUPLICATE, merge as merge_samples, samples_table
from headrace.stages.tokenizer import Decoder, make_decoder, resolve_tokenizer
from headrace.store import FormatError, ObjectStore
from headrace.store.datasets import Dataset
from headrace.store.ledger import ClosedShard, main_sink
from headrace.store.shards import (
    RecordName,
    column_names,
    read_lines,
    read_row_groups,
    read_shard,
    read_table,
    rows_named,
    whole_ids,
)

#: Code points of a kept text that are shown: beyond those of a sample, for what stands before it.
KEPT_CHARACTERS_MAX = 1000
#: Words of a stretch in which two texts agree that are shown at each of its ends.
AGREED_WORDS = 4


@dataclass(frozen=True, slots=True)
class DuplicatePair:
    """A duplicate and the record that it names, with the beginnings of both; `kept_text` is None if it is gone."""

    id: str
    kept: str
    stage: str
    reason: str
    text: str
    kept_text: str | None


def duplicate_pairs(dataset: Dataset, sink: str, tokenizer: str = "") -> Iterator[DuplicatePair]:
    """The sampled duplicates of a dataset, as one of its sinks wrote them, with the records that they name.

    Raises PipelineError where the tokenizer of the dataset is not known, StoreError.
    """
    named: dict[tuple[str, int], RecordName] = {}
    tables: list[pa.Table] = []
    for shard in dataset.shards:
        samples, verdicts = shard.object("samples"), shard.object("verdicts")
        if samples is None or verdicts is None or shard.closed.sink != sink:
            continue
        table = samples_table(dataset.store, samples.key)
        table = table.filter(pc.equal(table.column("verdict"), pa.scalar(DUPLICATE, pa.string())))
        if table.num_rows:
            tables.append(table)
            named |= _named(read_table(dataset.store, verdicts.key, ["fragment", "row", "duplicate_of"]))
    decode: Decoder | None = None
    for row in merge_samples(tables).to_pylist():
        target = named.get((row["fragment"], row["row"]))
        if target is None:
            raise FormatError(f"{dataset.uri}: a sample is of a duplicate that no table of verdicts has; restore both")
        found = find_kept(dataset, target, sink)
        kept, text = str(target), None
        if found is not None:
            shard, place = found
            if decode is None and shard.object("tokens") is not None:
                decode = text_decoder(dataset, tokenizer)
            kept, text = _text_of(dataset, shard, place, decode)
        yield DuplicatePair(row["id"], kept, row["stage"], row["reason"], row["text"], text)


def _named(verdicts: pa.Table) -> dict[tuple[str, int], RecordName]:
    """The record that each duplicate of a table of verdicts names, by fragment and row."""
    lost = verdicts.filter(pc.is_valid(verdicts.column("duplicate_of")))
    columns: list[list[Any]] = [lost.column(name).to_pylist() for name in ("fragment", "row", "duplicate_of")]
    return {
        (fragment, row): RecordName.stored(target, "the target of a duplicate")
        for fragment, row, target in zip(*columns, strict=True)
    }


def find_kept(dataset: Dataset, name: RecordName, sink: str) -> tuple[ClosedShard, int] | None:
    """The shard that keeps a record, and its row in the table of documents; None where no shard does.

    Rather one of this sink than one of another. A record that a later dedup stage called a duplicate leads to the one
    that it names.
    """
    for _ in range(STATEFUL_MAX):
        if (found := _standing(dataset, name, sink)) is not None:
            return found
        target = _target(dataset, name, sink)
        if target is None:
            return None
        name = target
    return None


def _target(dataset: Dataset, name: RecordName, sink: str) -> RecordName | None:
    for shard in dataset.shards:
        verdicts = shard.object("verdicts")
        if verdicts is not None and shard.closed.sink == sink and _covers(shard, name):
            table = read_table(dataset.store, verdicts.key, ["fragment", "row", "duplicate_of"])
            named = _named(table).get((name.fragment.hex(), name.row))
            if named is not None:
                return named
    return None


def _covers(shard: ClosedShard, name: RecordName) -> bool:
    return any(item.fragment == name.fragment and item.first <= name.row < item.end for item in shard.closed.ranges)


def _standing(dataset: Dataset, name: RecordName, sink: str) -> tuple[ClosedShard, int] | None:
    for shard in sorted(dataset.shards, key=lambda shard: shard.closed.sink != sink):
        documents = shard.object("documents")
        if documents is None or not _covers(shard, name):
            continue
        table = read_table(dataset.store, documents.key, ["fragment", "row"])
        here = pc.and_(
            pc.equal(table.column("fragment"), pa.scalar(name.fragment.hex(), pa.string())),
            pc.equal(table.column("row"), pa.scalar(name.row, pa.int64())),
        )
        rows = np.flatnonzero(np.asarray(here.to_numpy(zero_copy_only=False), np.bool_)).tolist()
        if rows:
            return shard, rows[0]
    return None


def _text_of(dataset: Dataset, shard: ClosedShard, place: int, decode: Decoder | None) -> tuple[str, str | None]:
    """The id of a kept record, and the beginning of its text; None where the dataset has or shows none."""
    documents, tokens = stored_object_of(dataset, shard, "documents"), shard.object("tokens")
    columns = [name for name in ("id", "text") if name in column_names(dataset.store, documents.key)]
    row: dict[str, Any] = read_table(dataset.store, documents.key, columns).slice(place, 1).to_pylist()[0]
    text = row.get("text")
    hidden = dataset.hidden_rows(shard)
    if decode is not None and tokens is not None and place not in hidden:
        # Those before it that were retracted are left out of what is read.
        place -= sum(other < place for other in hidden)
        found = read_documents(dataset, shard)
        begin = int(found.lengths[:place].sum())
        many = min(int(found.lengths[place]), KEPT_CHARACTERS_MAX)
        (text,) = decode(found.tokens[begin : begin + many], np.array([many])).to_pylist()
    return str(row["id"]), None if text is None else str(text)[:KEPT_CHARACTERS_MAX]


def differences(kept: str, text: str) -> Iterator[tuple[str, str]]:
    """What leads from a kept text to another, by words: ("same" | "kept" | "other", words)."""
    old, new = kept.split(), text.split()
    new = new[:-1] or new  # the beginning of a text may end within a word
    for kind, i, i_end, j, j_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            words = old[i:i_end]
            if len(words) > 2 * AGREED_WORDS:
                words = [*words[:AGREED_WORDS], "…", *words[-AGREED_WORDS:]]
            yield "same", " ".join(words)
            continue
        # Behind the end of the shorter beginning nothing is known.
        if i < i_end and j < len(new):
            yield "kept", " ".join(old[i:i_end])
        if j < j_end:
            yield "other", " ".join(new[j:j_end])


def text_decoder(dataset: Dataset, tokenizer: str = "") -> Decoder:
    """The decoder of a dataset's tokens; `tokenizer` names it, else the pipeline's is taken. Raises PipelineError."""
    sha256 = dataset.describe().tokenizer or ""
    stages = [stage for pipeline in dataset.state.pipelines.values() for stage in pipeline.get("stages", ())]
    given = [stage.get("parameters", {}).get("tokenizer") for stage in stages]
    for name in [tokenizer] if tokenizer else [name for name in given if isinstance(name, str)]:
        try:
            facts = resolve_tokenizer(name, None)
        except PipelineError:
            if tokenizer:
                raise
            continue
        if facts.sha256 == sha256:
            return make_decoder(facts.path, sha256)
    where = f"{tokenizer!r} is another one" if tokenizer else "it is not where the pipeline had it"
    raise PipelineError(
        f"{dataset.uri} was written with the tokenizer of sha256 {sha256[:16]}; {where}: name it by --tokenizer"
    )


#: Rows whose texts are decoded at once.
ROWS_AT_ONCE = 64
_COLUMNS = ("id", "part", "source", "row", "metadata")


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A kept record and its text."""

    id: str
    #: The id of the record of which it is a part; its own where it is none.
    whole: str
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
        table = read_table(dataset.store, stored_object_of(dataset, shard, "documents").key, ["id", "part"])
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


def _shards(dataset: Dataset) -> Iterator[ClosedShard]:
    """The shards of the main sink that hold a record."""
    main = main_sink(dataset.state.counts)
    return (
        shard
        for shard in dataset.shards
        if shard.closed.sink == main and shard.closed.counts.kept and shard.object("documents") is not None
    )


def _shown(dataset: Dataset, shard: ClosedShard) -> npt.NDArray[np.int64]:
    """The rows of a shard's table of documents that are shown."""
    documents = stored_object_of(dataset, shard, "documents")
    rows = sum(table.num_rows for table in read_row_groups(dataset.store, documents.key, ["row"]))
    return np.setdiff1d(np.arange(rows), np.array(sorted(dataset.hidden_rows(shard)), np.int64))


class _Texts:
    """The texts of rows, with a decoder that is made once."""

    def __init__(self, dataset: Dataset, tokenizer: str) -> None:
        self._dataset, self._tokenizer = dataset, tokenizer
        self._decode: Decoder | None = None

    def of(self, shard: ClosedShard, rows: npt.NDArray[np.int64]) -> Iterator[ShownRecord]:
        """The records in these rows of a shard, which ascend."""
        if not len(rows):
            return
        store, documents = self._dataset.store, stored_object_of(self._dataset, shard, "documents").key
        if shard.object("tokens") is not None:
            table = read_table(store, documents, [*_COLUMNS, "tokens"])
            tokens = stored_object_of(self._dataset, shard, "tokens")
            yield from self._decoded(table, read_shard(store, tokens.key), rows)
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
            stored = stored_object_of(self._dataset, shard, "lines")
            ids = list(map(str, table.column("id").take(pa.array(rows, pa.int64())).to_pylist()))
            held = _lines(store, stored.key, dict(zip(lines.tolist(), ids, strict=True)))
            for row, text in zip(rows.tolist(), held, strict=True):
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
    here = table.select([name for name in _COLUMNS if name in table.column_names]).take(pa.array(rows, pa.int64()))
    for fact, whole, text, count in zip(here.to_pylist(), whole_ids(here).to_pylist(), texts, tokens, strict=True):
        yield ShownRecord(
            str(fact["id"]), str(whole), str(fact["source"]), int(fact["row"]), count, fact["metadata"], text or ""
        )


def _lines(store: ObjectStore, key: str, ids: Mapping[int, str]) -> Iterator[str]:
    """The texts in these lines of an object of JSON Lines, each of the record of this id.

    Raises FormatError, StoreError.
    """
    last, found = max(ids), -1
    for found, line in enumerate(islice(read_lines(store, key), last + 1)):
        if found in ids:
            try:
                record = orjson.loads(line)
                name, text = record["id"], str(record["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(f"{store.uri}: line {found} of {key!r} is no record: {error}; restore it") from error
            if name != ids[found]:
                raise FormatError(
                    f"{store.uri}: line {found} of {key!r} is of {name!r}, not of {ids[found]!r}; restore it"
                )
            yield text
    if found < last:
        raise FormatError(f"{store.uri}: {key!r} has {found + 1} lines, and its documents more than {last}; restore it")
