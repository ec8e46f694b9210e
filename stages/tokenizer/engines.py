"""The engines that turn a column of text into token ids: gigatoken in bounded memory, and Hugging Face tokenizers.

Which records the two would encode otherwise than each other is found by bytes, before they are encoded (`Disputed`).
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import heap_bytes
from headrace.stages.tokenizer.engine_battery import ranges_of

Offsets: TypeAlias = npt.NDArray[np.int64]
Tokens: TypeAlias = npt.NDArray[np.uint32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]

#: What gigatoken may come to remember before it is loaded anew, which takes a third of a second. Of English text it is
#: reached behind more than a gigabyte.
CACHE_BYTES_MAX = 96 << 20
#: Text behind which that is looked at again.
LOOK_BYTES = 32 << 20
#: Records of a batch above which they go to gigatoken as one array of awkward, whose import takes 0.13 s and which
#: costs 0.3 ms a batch; below, as a list, which costs 1.5 microseconds a record.
LIST_RECORDS_MAX = 512
#: Bytes in which disputed code points are looked for at once: they and their masks stay in a core's cache.
CHUNK_BYTES = 64 << 10


class Encoder(Protocol):
    """What an engine is asked for."""

    def __call__(self, text: pa.Array[Any], end: int | None = None, /) -> tuple[Offsets, Tokens]:
        """Where the tokens of each string of a column begin `[records + 1]`, and those of all; `end` ends each."""
        ...


def append_to_each(offsets: Offsets, tokens: Tokens, token: int) -> tuple[Offsets, Tokens]:
    """The same records, each with `token` behind its last one."""
    records = len(offsets) - 1
    longer = offsets + np.arange(records + 1)
    places = np.ones(len(tokens) + records, dtype=np.bool_)
    places[longer[1:] - 1] = False
    joined = np.full(len(places), token, dtype=np.uint32)
    joined[places] = tokens
    return longer, joined


def join(records: Sequence[Tokens], end: int | None) -> tuple[Offsets, Tokens]:
    """What an Encoder answers, of the tokens of each record: they are copied once."""
    sizes = [len(tokens) for tokens in records]
    if end is not None:
        sizes = [size + 1 for size in sizes]
        last = np.array([end], np.uint32)
        records = [part for tokens in records for part in (tokens, last)]
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets, np.concatenate([np.zeros(0, np.uint32), *records])


def is_fault(error: BaseException) -> bool:
    """Whether it is a fault of the engine; a panic of Rust code arrives as a BaseException of its own."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextlib.contextmanager
def _panics_named(engine: str) -> Iterator[None]:
    """Raise a panic as a RuntimeError, which quarantines a record, or ends in a line, as other errors do."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_fault(error):
            raise
        raise RuntimeError(f"{engine} panicked: {error}") from error


class Gigatoken:
    """gigatoken on one thread, in bounded memory.

    It remembers the tokens of each word that it has seen and forgets none. It has no setting for that, and its workers
    live as long as it does, so when they have grown by CACHE_BYTES_MAX it is loaded anew.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._engine: Any = None
        self._text_bytes = self._looked_at = 0
        #: Of this process soon after gigatoken was loaded.
        self._heap_bytes: int | None = None
        self._load()

    def __call__(self, text: pa.Array[Any], end: int | None = None, /) -> tuple[Offsets, Tokens]:
        """As `Encoder` has it; raises RuntimeError where gigatoken panics."""
        offsets, content = string_buffers(text)
        self._text_bytes += int(offsets[-1] - offsets[0])
        if self._text_bytes - self._looked_at >= LOOK_BYTES:
            self._look()
        few = len(offsets) <= LIST_RECORDS_MAX + 1
        with _panics_named("gigatoken"):
            return (self._encode_list if few else self._encode_array)(offsets, content, end)

    def _encode_list(self, offsets: Offsets, content: npt.NDArray[np.uint8], end: int | None) -> tuple[Offsets, Tokens]:
        """Encode records one Python object each: gigatoken answers with an array of numpy a record."""
        data = content.data
        texts = [bytes(data[low:high]) for low, high in itertools.pairwise(offsets.tolist())]
        with _without("awkward"):
            # parallel=False: a task is one of as many as there are cores, and keeps to its own.
            answer: list[Tokens] = self._engine.encode_batch(texts, parallel=False)
        del texts
        return join(answer, end)

    def _encode_array(
        self, offsets: Offsets, content: npt.NDArray[np.uint8], end: int | None
    ) -> tuple[Offsets, Tokens]:
        """Encode records as one array, without a Python object a record."""
        ak: Any = importlib.import_module("awkward")
        # gigatoken borrows an array of strings only where its offsets are int64.
        characters = ak.contents.NumpyArray(content, parameters={"__array__": "char"})
        strings = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
        answer: Any = self._engine.encode_batch(ak.Array(strings), parallel=False).layout
        bounds = np.asarray(answer.offsets.data, dtype=np.int64)
        tokens: Tokens = np.asarray(answer.content.data, dtype=np.uint32)
        offsets, tokens = bounds - bounds[0], tokens[bounds[0] : bounds[-1]]
        return (offsets, tokens) if end is None else append_to_each(offsets, tokens, end)

    def _look(self) -> None:
        """Load gigatoken anew if what it remembers has become too much."""
        self._looked_at = self._text_bytes
        if (held := heap_bytes()) is None:
            return
        if self._heap_bytes is None:
            self._heap_bytes = held
        elif held - self._heap_bytes > CACHE_BYTES_MAX:
            self._load()

    def _load(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._engine = None  # freed first
        with _panics_named("gigatoken"):
            self._engine = load_hf_json(self._data)
        self._text_bytes = self._looked_at = 0
        self._heap_bytes = None


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """What looks for that module meanwhile finds none; gigatoken looks for awkward at each call, and needs none.

    `encode_batch` answers with arrays of numpy, and imports awkward if it can. `encode` for each record is 14 % slower
    once it is warm (232 for 270 MB/s); `encode_batch_list` imports awkward too, and makes an object a token (79 MB/s).
    Only the thread that runs a task's stages comes here, and it imports nothing meanwhile.
    """
    absent = object()
    before: Any = sys.modules.get(module, absent)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is absent:
            del sys.modules[module]
        else:
            sys.modules[module] = before


def string_buffers(text: pa.Array[Any]) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """The int64 offsets of a column of strings and its bytes, borrowed."""
    wide = pa.types.is_large_string(text.type)
    buffers: Any = text.buffers()
    _, bounds, content = buffers
    kind = np.int64 if wide else np.int32
    if bounds is None or not len(text):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(bounds, kind)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    return offsets, np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)


def tokenizers_encoder(data: bytes) -> Encoder:
    """The tokenizer.json `data` as tokenizers encodes with it; raises what its library raises, and ImportError.

    A panic is a RuntimeError.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    with _panics_named("tokenizers"):
        engine = tokenizers.Tokenizer.from_str(data.decode())
    if getattr(engine.model, "dropout", None):
        engine.model.dropout = None  # a record's tokens do not change from one reading to the next
    engine.no_truncation()
    engine.no_padding()

    def encode(text: pa.Array[Any], end: int | None = None, /) -> tuple[Offsets, Tokens]:
        with _panics_named("tokenizers"):
            encodings = engine.encode_batch_fast(text.to_pylist(), add_special_tokens=False)
        return join([np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings], end)

    return encode


@dataclass(frozen=True)
class Disputed:
    """Code points (`ranges`, both ends included, ascending) and added tokens that two engines do not treat alike."""

    ranges: tuple[tuple[int, int], ...] = ()
    tokens: tuple[str, ...] = ()

    def records(self, offsets: Places, content: Bytes) -> Places:
        """The records that hold one of these, ascending; `offsets` `[records + 1]` into the UTF-8 bytes `content`."""
        if not self.ranges and not self.tokens:
            return np.zeros(0, np.int64)
        begin = int(offsets[0])
        text = content[begin : int(offsets[-1])]
        kinds = [np.asarray(self._code_points(text) if self.ranges else (), np.int64)]
        if self.tokens:
            whole = text.tobytes()
            kinds += [np.fromiter(_occurrences(whole, token.encode()), np.int64) for token in self.tokens]
        places = np.concatenate(kinds) + begin
        found: Places = np.searchsorted(offsets, places, side="right") - 1
        found.sort()
        # Not by np.unique, which imports masked arrays.
        distinct: Places = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return distinct

    def _code_points(self, text: Bytes) -> Places:
        """Where disputed code points begin."""
        leads = self._leads
        found: list[Places] = []
        for start in range(0, len(text), CHUNK_BYTES):
            chunk = text[start : start + CHUNK_BYTES]
            if chunk.max() < leads[0][0]:
                continue
            mask = np.zeros(len(chunk), np.bool_)
            for low, high in leads:
                mask |= chunk - np.uint8(low) <= high - low
            places = np.flatnonzero(mask) + start
            places = places[places + 1 < len(text)]
            pairs = text[places].astype(np.uint16) << 8 | text[places + 1]
            places = places[self._pairs[pairs]]
            found.append(places[self._disputed[_code_points_at(text, places)]])
        return np.concatenate([np.zeros(0, np.int64), *found])

    @cached_property
    def _disputed(self) -> npt.NDArray[np.bool_]:
        """Of each code point, whether it is disputed."""
        disputed = np.zeros(1 << 21, np.bool_)
        for low, high in self.ranges:
            disputed[low : high + 1] = True
        return disputed

    @cached_property
    def _pairs(self) -> npt.NDArray[np.bool_]:
        """Of each two bytes, as a number, whether a disputed code point may begin with them."""
        pairs = np.zeros(1 << 16, np.bool_)
        for low, high in self.ranges:
            # The first two bytes stay the same over 64 code points at least, but for those of two bytes.
            step = 1 if low < 0x800 else 64
            for code in (*range(low, high + 1, step), high):
                first, second = chr(code).encode("utf-8", "surrogatepass")[:2]
                pairs[first << 8 | second] = True
        return pairs

    @cached_property
    def _leads(self) -> list[tuple[int, int]]:
        """The first bytes of disputed code points, as ranges."""
        return ranges_of(sorted(set((np.flatnonzero(self._pairs) >> 8).tolist())))


def _code_points_at(text: Bytes, places: Places) -> npt.NDArray[np.int32]:
    """The code points above ASCII that begin there, each of two bytes at least; 0 where the text ends within one."""
    codes = np.zeros(len(places), np.int32)
    leads = text[places]
    for size, low, high in ((2, 0xC0, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF8)):
        chosen = np.flatnonzero((leads >= low) & (leads < high) & (places + size <= len(text)))
        starts = places[chosen]
        values = leads[chosen].astype(np.int32) - low
        for step in range(1, size):
            values = values << 6 | text[starts + step] & 0x3F
        codes[chosen] = values
    return codes


def _occurrences(text: bytes, part: bytes) -> Iterable[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)
