"""Making the bytes of a token shard (`docs/reference/format.md`): in memory, or into a draft without ever holding them.

The safetensors header is written here and not by its library, so that tokens are copied once, from the documents into
their sequences, and the bytes follow from the content alone. The tokens come last in the file and the header has its
length before they are known, so a window of sequences at a time is filled, digested, written and forgotten.

Tokens from where they lie, document by document, into the sequences that hold them, a window at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from headrace.store import Buffer, ObjectDraft
from headrace.store.files import Scratch
from headrace.store.shards.core.blocks import BLOCKS, HEADER_CHECK, BlockDigests, describe_blocks, seal
from headrace.store.shards.core.packing import Packing, pack
from headrace.store.shards.header import HEADER_BYTES_MAX
from headrace.store.shards.shard import DTYPES

#: What is read of a scratch file at once where the runs that are wanted lie close together.
READ_AHEAD_BYTES = 1 << 20
#: Runs that lie further apart than this on average are read one by one: to copy as much takes as long as a call.
APART_BYTES = 16 << 10

#: Where a run of tokens goes to, where it begins, and how many they are.
Run = tuple[int, int, int]


class TokenSource(Protocol):
    """Tokens that lie somewhere, one behind the other."""

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """Copy each run into `line` `[tokens]`; they come in the order in which they begin here."""
        ...


class ArrayTokens:
    """Tokens in memory."""

    def __init__(self, tokens: npt.NDArray[Any]) -> None:
        self._tokens = tokens

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """See `TokenSource.read`."""
        tokens = self._tokens
        for to, begin, count in runs:
            line[to : to + count] = tokens[begin : begin + count]


class ScratchTokens:
    """Tokens in a scratch file, of the type that the sequences have. Reading raises OSError."""

    def __init__(self, scratch: Scratch, kind: np.dtype[Any]) -> None:
        self._scratch = scratch
        self._kind = kind

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """See `TokenSource.read`."""
        size = self._kind.itemsize
        span = (runs[-1][1] + runs[-1][2] - runs[0][1]) * size
        if span < APART_BYTES * len(runs):
            self._read_ahead(line, runs)
            return
        view, read_into = line.data.cast("B"), self._scratch.read_into
        for to, begin, count in runs:
            read_into(view[to * size : (to + count) * size], begin * size)

    def _read_ahead(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        size = self._kind.itemsize
        longest = max(count for _, _, count in runs)
        held = np.empty(max(READ_AHEAD_BYTES // size, longest), self._kind)
        view, last = held.data.cast("B"), self._scratch.size // size
        first = end = 0
        for to, begin, count in runs:
            if begin < first or begin + count > end:
                first, end = begin, min(begin + held.size, last)
                self._scratch.read_into(view[: (end - first) * size], first * size)
            line[to : to + count] = held[begin - first : begin - first + count]


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Where the tokens of documents lie; arrays `[documents]` of int64, in the order of the documents table."""

    lengths: npt.NDArray[np.int64]
    sources: Sequence[TokenSource]
    #: which of `sources`; of a document without tokens it means nothing
    source: npt.NDArray[np.int64]
    #: its first token there
    begin: npt.NDArray[np.int64]


class Scattering:
    """The way of each piece of these documents into windows of `rows` sequences.

    A loop of slices, since an index a token would take four times the memory of the tokens. Pieces of one document
    that lie end to end, as whole sequences do, are one slice.
    """

    def __init__(self, documents: Documents, packing: Packing, rows: int) -> None:
        self._sources = documents.sources
        self._rows, self._sequences = rows, packing.sequences
        document = packing.piece_document
        length = packing.piece_length.astype(np.int64)
        sequence = packing.piece_sequence.astype(np.int64)
        target = (sequence % rows) * packing.seq_len + packing.piece_start
        window = sequence // rows
        begin = documents.begin[document] + packing.piece_offset
        joins = (begin[1:] == begin[:-1] + length[:-1]) & (target[1:] == target[:-1] + length[:-1])
        joins &= (document[1:] == document[:-1]) & (window[1:] == window[:-1])
        first = np.flatnonzero(np.concatenate(([True], ~joins))) if document.size else np.zeros(0, np.int64)
        count = np.add.reduceat(length, first) if document.size else length
        source = documents.source[document][first]
        order = np.lexsort((begin[first], source, window[first]))
        first = first[order]
        self._to, self._begin, self._count, self._source = target[first], begin[first], count[order], source[order]
        self._edges = np.searchsorted(window[first], np.arange(-(-packing.sequences // rows) + 1))

    def windows(self) -> Iterator[tuple[int, int]]:
        """Each window's number and its sequences."""
        for window, at in enumerate(range(0, self._sequences, self._rows)):
            yield window, min(self._rows, self._sequences - at)

    def fill(self, window: int, line: npt.NDArray[Any], pad_id: int) -> None:
        """Write the tokens of a window's sequences into `line` `[sequences * seq_len]`."""
        line.fill(pad_id)
        low, high = int(self._edges[window]), int(self._edges[window + 1])
        cuts = np.flatnonzero(np.diff(self._source[low:high])) + low + 1
        bounds = [low, *cuts.tolist(), high] if high > low else []
        for start, stop in itertools.pairwise(bounds):
            columns = (self._to[start:stop], self._begin[start:stop], self._count[start:stop])
            runs = list(zip(*(column.tolist() for column in columns), strict=True))
            self._sources[int(self._source[start])].read(line, runs)


#: The version of the token shard's layout, in its header metadata as `format_version`.
FORMAT_VERSION = 1
#: Sequences that are on their way into a draft at once; a single one may be larger.
WINDOW_BYTES = 1 << 20

_ALIGNMENT_BYTES = 8
_TOKENS = "tokens"
_DTYPE_NAMES = {np.dtype(kind): name for name, kind in DTYPES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """What became of the documents. `size` is in bytes of the file, `tokens` do not count padding."""

    packing: Packing
    size: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class ShardBytes(Built):
    """A token shard that is ready to be written: its parts concatenated are the file."""

    parts: list[Buffer]


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """What a shard's bytes follow from, beside its documents.

    `dtype` is uint16 or uint32. `metadata` is what the caller knows of the dataset; the layout's own facts (`seq_len`,
    `pad_id`, counts) are added to it. With an `overlap` the shard says how many tokens each piece repeats. Without
    `blocks` it has no checksums of its blocks, as shards of before them.
    """

    seq_len: int
    dtype: npt.DTypeLike
    pad_id: int
    metadata: Mapping[str, str]
    overlap: int = 0
    blocks: bool = True

    @property
    def kind(self) -> np.dtype[Any]:
        """The tokens' type. Raises ValueError where a shard cannot hold it, or it cannot hold the padding."""
        kind: np.dtype[Any] = np.dtype(self.dtype)
        if kind not in (np.dtype(np.uint16), np.dtype(np.uint32)):
            raise ValueError(f"tokens of dtype {kind}: a shard holds uint16 or uint32")
        limit = int(np.iinfo(kind).max)
        if not 0 <= self.pad_id <= limit:
            raise ValueError(f"pad_id {self.pad_id} does not fit {kind} (0..{limit})")
        return kind.newbyteorder("<")


def build_tokens(
    flat_tokens: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    lengths: npt.ArrayLike,
    *,
    seq_len: int,
    dtype: npt.DTypeLike,
    pad_id: int,
    metadata: Mapping[str, str],
    overlap: int = 0,
    blocks: bool = True,
) -> ShardBytes:
    """Pack documents into a token shard that lies in memory.

    `flat_tokens` `[tokens]` are the documents' tokens end to end, or several arrays of whole documents that are such
    when put together; they are not put together, so that beside the documents there is one copy of them. `lengths`
    `[documents]` are the tokens of each, in the order of the documents table. See `ShardLayout` for the others. The
    same arguments give the same bytes. Raises ValueError where they do not fit together.
    """
    layout = ShardLayout(seq_len, dtype, pad_id, metadata, overlap, blocks)
    kind = layout.kind
    chunks = [flat_tokens] if isinstance(flat_tokens, np.ndarray) else flat_tokens
    documents = _in_arrays([np.asarray(chunk).reshape(-1) for chunk in chunks], lengths, kind)
    packing = pack(documents.lengths, seq_len, overlap)
    tokens = np.empty((packing.sequences, seq_len), dtype=kind)
    scattering = Scattering(documents, packing, max(packing.sequences, 1))
    for _, rows in scattering.windows():
        scattering.fill(0, tokens[:rows].reshape(-1), pad_id)
    arrays = {**_pieces(packing, overlap), _TOKENS: tokens}
    parts = safetensors_parts(arrays, _facts(layout, documents, packing), blocks=blocks)
    size = sum(memoryview(part).nbytes for part in parts)
    return ShardBytes(packing, size, int(documents.lengths.sum()), parts)


def write_tokens(
    draft: ObjectDraft,
    documents: Documents,
    layout: ShardLayout,
    see: Callable[[npt.NDArray[Any]], None] | None = None,
) -> Built:
    """Write the shard of these documents into a draft: the bytes that `build_tokens` gives.

    `see` is shown the sequences' tokens `[tokens]` a window at a time.
    Holds WINDOW_BYTES of tokens, and what is proportional to the number of documents. Raises ValueError, StoreError.
    """
    kind = layout.kind
    packing = pack(documents.lengths, layout.seq_len, layout.overlap)
    facts = _facts(layout, documents, packing)
    pieces = _pieces(packing, layout.overlap)
    shapes = {name: (array.dtype, array.shape) for name, array in pieces.items()}
    shapes[_TOKENS] = kind, (packing.sequences, packing.seq_len)
    digests = BlockDigests(sum(math.prod(shape) * dtype.itemsize for dtype, shape in shapes.values()))
    draft.append(_header(shapes, facts, digests.describe() if layout.blocks else {}))
    head_bytes = draft.size
    for array in (pieces[name] for name in _in_order(shapes) if name in pieces):
        digests.add(array.data)
        draft.append(array.data)
    rows_max = max(1, WINDOW_BYTES // (packing.seq_len * kind.itemsize))
    buffer = np.empty(min(rows_max, packing.sequences) * packing.seq_len, dtype=kind)
    scattering = Scattering(documents, packing, rows_max)
    for window, rows in scattering.windows():
        line = buffer[: rows * packing.seq_len]
        scattering.fill(window, line, layout.pad_id)
        digests.add(line.data)
        draft.append(line.data)
        if see is not None:
            see(line)
    if layout.blocks:
        head = _header(shapes, facts, digests.describe())
        if len(head) != head_bytes:
            raise AssertionError(f"a header of {len(head)} bytes in the place of one of {head_bytes}")
        draft.patch(head, 0)
    return Built(packing, draft.size, int(documents.lengths.sum()))


def check_fit(tokens: npt.NDArray[Any], kind: np.dtype[Any]) -> None:
    """Raise ValueError where a token does not fit."""
    limit = int(np.iinfo(kind).max)
    if tokens.size and not np.can_cast(tokens.dtype, kind) and not 0 <= int(tokens.min()) <= int(tokens.max()) <= limit:
        raise ValueError(f"tokens {tokens.min()}..{tokens.max()} do not fit {kind} (0..{limit}); use uint32")


def _in_arrays(chunks: Sequence[npt.NDArray[Any]], lengths: npt.ArrayLike, kind: np.dtype[Any]) -> Documents:
    """Where each document lies in these arrays."""
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    flat = [chunk for chunk in chunks if chunk.size]
    count = sum(chunk.size for chunk in flat)
    if int(sizes.sum()) != count:
        raise ValueError(f"{sizes.size} documents of {int(sizes.sum())} tokens in all, but {count} tokens given")
    for chunk in flat:
        check_fit(chunk, kind)
    ends = np.cumsum([chunk.size for chunk in flat], dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    which = np.searchsorted(ends, begins, side="right")
    filled = sizes > 0
    if (begins[filled] + sizes[filled] > ends[which[filled]]).any():
        raise ValueError("a document reaches from one chunk of tokens into the next: give whole documents")
    starts = np.append(ends - [chunk.size for chunk in flat], count)
    return Documents(sizes, [ArrayTokens(chunk) for chunk in flat], which, begins - starts[which])


def _pieces(packing: Packing, overlap: int) -> dict[str, npt.NDArray[Any]]:
    names = ["piece_document", "piece_length", "piece_sequence", "piece_start"]
    found: dict[str, npt.NDArray[Any]] = {name: getattr(packing, name) for name in names}
    if overlap:
        found["piece_repeated"] = packing.piece_repeated
    return {name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for name, array in found.items()}


def _facts(layout: ShardLayout, documents: Documents, packing: Packing) -> dict[str, str]:
    """The header's metadata but for the blocks."""
    own = {
        **({"overlap": layout.overlap} if layout.overlap else {}),
        "format_version": FORMAT_VERSION,
        "seq_len": layout.seq_len,
        "pad_id": layout.pad_id,
        "sequences": packing.sequences,
        "pieces": packing.piece_document.size,
        "documents": documents.lengths.size,
        "token_count": int(documents.lengths.sum()),
        "padding": packing.padding,
    }
    facts = {name: str(value) for name, value in own.items()}
    metadata = layout.metadata
    wrong = sorted(name for name in facts.keys() & metadata.keys() if metadata[name] != facts[name])
    wrong += sorted({BLOCKS, HEADER_CHECK} & metadata.keys())
    if wrong:
        raise ValueError(f"shard metadata {wrong} contradict what the format says of itself; leave them out")
    return {**metadata, **facts}


_Shapes = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


def safetensors_parts(
    arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], *, blocks: bool
) -> list[Buffer]:
    """Return the parts of a safetensors file of these arrays."""
    shapes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    bodies: list[Buffer] = []
    for name in _in_order(shapes):
        little = np.ascontiguousarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"))
        if little.nbytes:
            bodies.append(little.reshape(-1).data.cast("B"))
    return [_header(shapes, metadata, describe_blocks(bodies) if blocks else {}), *bodies]


def _in_order(shapes: _Shapes) -> list[str]:
    """Widest type first and then by name, as the library orders them."""
    return sorted(shapes, key=lambda name: (-shapes[name][0].itemsize, name))


def _header(shapes: _Shapes, metadata: Mapping[str, str], described: Mapping[str, str]) -> bytes:
    """The file up to its first array. Its length does not follow from the digests in `described`."""
    header: dict[str, Any] = {"__metadata__": dict(sorted({**metadata, **described}.items()))}
    offset = 0
    for name in _in_order(shapes):
        dtype, shape = shapes[name]
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _DTYPE_NAMES[dtype.newbyteorder("=")],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = orjson.dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if described:
        text = seal(text)
    if len(text) > HEADER_BYTES_MAX:
        raise ValueError(f"shard header of {len(text)} bytes, the limit is {HEADER_BYTES_MAX}; shorten the metadata")
    return len(text).to_bytes(8, "little") + text
