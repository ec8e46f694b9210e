"""The items of suites in a dataset that exists already: its kept records are read, and nothing is changed.

What is searched is what training sees: the tokens, decoded, or the text of a dataset of documents. The source may be
gone, and reading it again would run the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.stages.decontamination.stage import Decontaminate
from headrace.stages.export import read_documents, stored_object_of, text_decoder, token_shards
from headrace.stages.runtime import InputError
from headrace.stages.tokenizer import Decoder
from headrace.store.datasets import Dataset
from headrace.store.ledger import ClosedShard
from headrace.store.shards import column_names, read_row_groups

#: Tokens that are decoded at once, and texts that are searched at once.
TOKENS_AT_ONCE: Final = 1 << 20
_TEXT: Final = "text"


@dataclass(frozen=True, slots=True)
class Contaminated:
    """A record, and the item that stands in it."""

    id: str
    suite: str
    item: int
    score: float


def search_dataset(
    dataset: Dataset, suites: Sequence[Mapping[str, Any]], *, threshold: float, tokenizer: str = ""
) -> Iterator[tuple[int, list[Contaminated]]]:
    """How many records were searched, and the contaminated ones among them, some at a time.

    `tokenizer` names that of the dataset; without it the pipeline's is taken. Raises PipelineError, InputError,
    StoreError.
    """
    stage = Decontaminate("contamination", suites, threshold)
    for ids, texts in kept_texts(dataset, tokenizer):
        scores = stage.score(texts)
        yield (
            len(ids),
            [
                Contaminated(
                    str(ids[place].as_py()),
                    scores["suite"][place],
                    int(scores["item"][place]),
                    float(scores["score"][place]),
                )
                for place in np.flatnonzero(stage.over(scores)).tolist()
            ],
        )


def kept_texts(dataset: Dataset, tokenizer: str) -> Iterator[tuple[Any, pa.Array[Any]]]:
    """Ids and texts of the kept records, some at a time."""
    if dataset.with_tokens():
        decode = text_decoder(dataset, tokenizer)
        for shard in token_shards(dataset):
            yield from _decoded(dataset, shard, decode)
        return
    with_text = dataset.of_main_sink(
        shard
        for shard in dataset.shards
        if (item := shard.object("documents")) is not None and _TEXT in column_names(dataset.store, item.key)
    )
    if not with_text:
        raise InputError(f"{dataset.uri} holds neither tokens nor documents with text: search its files by a pipeline")
    for shard in with_text:
        documents, hidden, at = stored_object_of(dataset, shard, "documents"), list(dataset.hidden_rows(shard)), 0
        for table in read_row_groups(dataset.store, documents.key, ["id", _TEXT]):
            shown = ~np.isin(np.arange(at, at + table.num_rows), hidden)
            at += table.num_rows
            for batch in table.filter(pa.array(shown)).to_batches():
                yield batch.column("id"), batch.column(_TEXT)


def _decoded(dataset: Dataset, shard: ClosedShard, decode: Decoder) -> Iterator[tuple[Any, pa.Array[Any]]]:
    found = read_documents(dataset, shard)
    ids = found.table.column("id").combine_chunks()
    ends = np.cumsum(found.lengths)
    first = 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + TOKENS_AT_ONCE, side="right")))
        yield ids.slice(first, last - first), decode(found.tokens[begin : ends[last - 1]], found.lengths[first:last])
        first = last
