"""Duplicates beside the records that are kept in their place: the evidence of a removal.

The beginning of a removed text is in the samples of its shard; that of the kept one comes from its tokens, or from the
documents of a dataset of text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline import STATEFUL_MAX, PipelineError
from headrace.stages.export.source import read_documents
from headrace.stages.runtime import DUPLICATE, merge as merge_samples, samples_table
from headrace.stages.tokenizer import Decoder, make_decoder, resolve_tokenizer
from headrace.store import FormatError
from headrace.store.datasets import Dataset, ShardRecord
from headrace.store.shards import RecordName, column_names, read_table

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


def find_kept(dataset: Dataset, name: RecordName, sink: str) -> tuple[ShardRecord, int] | None:
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


def _covers(shard: ShardRecord, name: RecordName) -> bool:
    return any(item.fragment == name.fragment and item.first <= name.row < item.end for item in shard.closed.ranges)


def _standing(dataset: Dataset, name: RecordName, sink: str) -> tuple[ShardRecord, int] | None:
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


def _text_of(dataset: Dataset, shard: ShardRecord, place: int, decode: Decoder | None) -> tuple[str, str | None]:
    """The id of a kept record, and the beginning of its text; None where the dataset has or shows none."""
    documents, tokens = shard.object("documents"), shard.object("tokens")
    if documents is None:
        raise FormatError(f"{dataset.uri}: a shard lost its documents while they were read")
    columns = [name for name in ("id", "text") if name in column_names(dataset.store, documents.key)]
    row: dict[str, Any] = read_table(dataset.store, documents.key, columns).slice(place, 1).to_pylist()[0]
    text = row.get("text")
    hidden = dataset.retracted(tokens.key) if tokens is not None else frozenset[int]()
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
