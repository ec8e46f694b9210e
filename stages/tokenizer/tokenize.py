"""The stage that turns text into token ids: an Arrow column in, an Arrow column out, no Python object a record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.runtime import Batch, Transform, as_column
from headrace.stages.tokenizer.engine_choice import Choice, choose_engine, engine_names
from headrace.stages.tokenizer.engines import (
    Disputed,
    Encoder,
    Gigatoken,
    Offsets,
    Places,
    Tokens,
    join,
    string_buffers,
    tokenizers_encoder,
)
from headrace.stages.tokenizer.minified import minified_of
from headrace.stages.tokenizer.vocabulary import tokenizer_bytes
from headrace.store import counted

#: Tokens of a batch: the offsets of a column of lists are of 32 bits.
TOKENS_MAX = (1 << 31) - 1
#: The counter of records that gigatoken would have encoded otherwise.
BY_TOKENIZERS = "encoded by tokenizers"

#: What `preload` has loaded, by the hash of its file; one at most.
_preloaded: dict[str, Gigatoken] = {}


class Tokenize(Transform):
    """Replaces the column `text` by `tokens`, a list of uint32, with `eos_id` at the end of each if one is given.

    The tokens are those of `tokenizers.Tokenizer.from_file(tokenizer).encode(text, add_special_tokens=False)`.
    `choice` says which library encodes what (`headrace.stages.tokenizer.engine_choice`); without one it is found out.
    Raises PipelineError where the file has changed, and where this host has other versions of the libraries.
    """

    borrows = True
    merges = True

    def __init__(
        self, name: str, tokenizer: str, sha256: str, eos_id: int | None, choice: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.eos_id = eos_id
        self._path, self._sha256 = tokenizer, sha256
        found = Choice.from_dict(choice) if choice else choose_engine(tokenizer, sha256)
        self.engine = found.engine
        if found.engine not in engine_names():
            raise PipelineError(
                f'stage "{name}" was declared with {found.engine}, and this host has {engine_names()[0]}: '
                "install the same versions here, or declare the pipeline again"
            )
        self._disputed = Disputed(found.ranges, found.tokens)
        #: tokenizers, once there is something for it.
        self._judge: Encoder | None = None
        self._encode: Encoder
        if not found.is_gigatoken:
            self._encode = self._tokenizers()
        elif sha256 in _preloaded:
            # By the hash of what was loaded: the file is not read again.
            self._encode = _preloaded[sha256]
        else:
            self._encode = Gigatoken(tokenizer_bytes(self._path, self._sha256))

    def facts(self) -> dict[str, str]:
        """Which library encodes."""
        return {"tokenizer_engine": self.engine}

    def process(self, batch: Batch) -> Batch:
        """The batch with tokens in the place of text."""
        text = batch.rows.column("text")
        if text.null_count:
            raise ValueError(f"text is null in {counted(text.null_count, 'record')}")
        offsets, tokens = self._encode(text, self.eos_id)
        disputed = self._disputed.records(*string_buffers(text))
        if len(disputed):
            offsets, tokens = self._judged(text, disputed, offsets, tokens)
        if len(tokens) > TOKENS_MAX:
            raise ValueError(f"a batch of {len(tokens)} tokens is more than a column can hold, {TOKENS_MAX}")
        encoded = pa.ListArray.from_arrays(as_column(offsets.astype(np.int32)), as_column(tokens))
        place = batch.rows.schema.get_field_index("text")
        names = batch.rows.schema.names
        columns = [encoded if index == place else batch.rows.column(index) for index in range(len(names))]
        names[place] = "tokens"
        rows = pa.RecordBatch.from_arrays(columns, names=names)
        return batch.with_rows(rows).counted(self.name, BY_TOKENIZERS, len(disputed))

    def _judged(
        self, text: pa.Array[Any], disputed: Places, offsets: Offsets, tokens: Tokens
    ) -> tuple[Offsets, Tokens]:
        """The same tokens, those of the disputed records as tokenizers has them."""
        if self._judge is None:
            self._judge = self._tokenizers()
        bounds, others = self._judge(text.take(as_column(disputed)), self.eos_id)
        records = [tokens[low:high] for low, high in itertools.pairwise(offsets.tolist())]
        for at, (low, high) in zip(disputed.tolist(), itertools.pairwise(bounds.tolist()), strict=True):
            records[at] = others[low:high]
        return join(records, None)

    def _tokenizers(self) -> Encoder:
        return tokenizers_encoder(tokenizer_bytes(self._path, self._sha256))


def preload(tokenizer: str, sha256: str, choice: Mapping[str, Any] | None = None, **_others: Any) -> None:
    """Load the tokenizer of a stage with these parameters, for processes that are forked from this one.

    Of the engines only gigatoken, whose loading starts no thread. It takes the place of what was loaded before.
    """
    _preloaded.clear()
    if not choice or not Choice.from_dict(choice).is_gigatoken:
        return
    data = minified_of(sha256)
    if data is None:
        data = tokenizer_bytes(tokenizer, sha256)
    _preloaded[sha256] = Gigatoken(data)
