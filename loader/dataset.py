"""Reading a dataset's token shards, in numpy: through the manifest, mapped into memory, checked once."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.loader.order import I64, Layout
from headrace.store.errors import FormatError, ObjectMissing
from headrace.store.objects import ObjectStore, open_store
from headrace.store.shards import read_shard, verify_object

MANIFEST_KEY: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1
#: two windows of the default size touch no more; each holds a file descriptor, of which 1,024 are the usual limit
SHARDS_OPEN_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard as the manifest names it; keys are relative to the dataset."""

    tokens: str
    documents: str
    #: `xxh3-128:<hex>` of the tokens object
    checksum: str
    sequences: int
    #: real tokens, padding not counted
    token_count: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of the newest version."""

    dataset: str
    version: int
    seq_len: int
    tokenizer: str
    pad_id: int
    eos_id: int | None
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces of some rows of one shard, ordered by (`row`, `start`); all arrays are int64 [pieces].

    `row` indexes the rows that were asked for, `start` and `length` are in tokens, and `document` is a row of the
    shard's documents table.
    """

    row: I64
    start: I64
    length: I64
    document: I64


class Shard:
    """One token shard: `tokens` [sequences, seq_len] uint16 or uint32, mapped read-only, and an index of its pieces.

    Pieces stand in the file in document order, and a batch asks for those of a row: so they are sorted by
    (sequence, start) on first use and found by row pointers (compressed sparse rows), of which the index keeps
    12 bytes a piece and 8 a sequence.
    """

    def __init__(self, key: str, arrays: Mapping[str, NDArray[Any]], sequences: int, seq_len: int) -> None:
        tokens = arrays.get("tokens")
        if tokens is None or tokens.shape != (sequences, seq_len) or tokens.dtype.kind != "u":
            found = "none" if tokens is None else f"{tokens.dtype} {list(tokens.shape)}"
            raise FormatError(f"{key}: the manifest promises tokens [{sequences}, {seq_len}], the shard has {found}")
        self.key = key
        self.tokens: NDArray[Any] = tokens
        self._arrays = arrays
        self._index: tuple[I64, NDArray[Any], NDArray[Any], NDArray[Any]] | None = None

    def pieces(self, rows: I64) -> Pieces:
        """The pieces of `rows` [k] (each may be named more than once)."""
        if self._index is None:
            self._index = self._build_index()
        pointers, start, length, document = self._index
        first = pointers[rows]
        counts = pointers[rows + 1] - first
        row = np.repeat(np.arange(rows.size, dtype=np.int64), counts)
        before = np.cumsum(counts) - counts
        chosen = np.arange(row.size, dtype=np.int64) + (first - before)[row]
        return Pieces(
            row,
            start[chosen].astype(np.int64),
            length[chosen].astype(np.int64),
            document[chosen].astype(np.int64),
        )

    def _build_index(self) -> tuple[I64, NDArray[Any], NDArray[Any], NDArray[Any]]:
        names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
        missing = [name for name in names if name not in self._arrays]
        if missing:
            raise FormatError(f"{self.key}: the shard lacks {', '.join(missing)}; it is no token shard of Headrace")
        sequence, start, length, document = (self._arrays[name] for name in names)
        if not sequence.shape == start.shape == length.shape == document.shape or sequence.ndim != 1:
            raise FormatError(f"{self.key}: its four piece arrays differ in shape; the shard is malformed")
        sorting = np.lexsort((start, sequence))
        sequence, start, length, document = (array[sorting] for array in (sequence, start, length, document))
        self._check_pieces(sequence, start, length, document)
        sequences = self.tokens.shape[0]
        pointers = np.searchsorted(sequence, np.arange(sequences + 1)).astype(np.int64)
        return pointers, start, length, document

    def _check_pieces(
        self, sequence: NDArray[Any], start: NDArray[Any], length: NDArray[Any], document: NDArray[Any]
    ) -> None:
        if not sequence.size:
            return
        sequences, seq_len = self.tokens.shape
        end = start.astype(np.int64) + length
        bad = (sequence < 0) | (sequence >= sequences) | (start < 0) | (length < 1) | (end > seq_len) | (document < 0)
        bad[1:] |= (sequence[1:] == sequence[:-1]) & (start[1:] < end[:-1])
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise FormatError(
                f"{self.key}: {int(bad.sum())} pieces lie outside of their sequence or over another, first the piece "
                f"of document {document[at]} at sequence {sequence[at]}, tokens {start[at]} to {end[at]}; "
                f"the shard has {sequences} sequences of {seq_len}"
            )


class TokenDataset:
    """The newest version of a dataset, for reading; made by `open_dataset`.

    Any number of threads may call it at once. Shards are opened when first read, at most `SHARDS_OPEN_MAX` at a time,
    and each is checked against its checksum before its first row is given.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest, *, verify: bool = True) -> None:
        self.store = store
        self.manifest = manifest
        identity = "\n".join(shard.checksum for shard in manifest.shards).encode()
        sequences = np.array([shard.sequences for shard in manifest.shards], dtype=np.int64)
        self.layout = Layout(sequences, identity)
        self._verify = verify
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._verified: set[int] = set()
        self._verified_bytes = 0

    def __repr__(self) -> str:
        return f"<TokenDataset {self.manifest.dataset!r} at {self.store.uri}, {self.layout.samples} samples>"

    @property
    def seq_len(self) -> int:
        """Tokens a sequence."""
        return self.manifest.seq_len

    @property
    def verified_bytes(self) -> int:
        """Bytes that were read to check checksums."""
        return self._verified_bytes

    @property
    def verified_shards(self) -> int:
        """Shards whose checksum was checked."""
        return len(self._verified)

    def rows(self, shard: int, rows: I64) -> NDArray[Any]:
        """Tokens [k, seq_len] of `rows` [k] of a shard, copied, in the shard's own dtype."""
        return self.shard(shard).tokens[rows]

    def pieces(self, shard: int, rows: I64) -> Pieces:
        """The pieces of `rows` [k] of a shard."""
        return self.shard(shard).pieces(rows)

    def shard(self, number: int) -> Shard:
        """The shard, opened and checked if it was not; raises the store's errors."""
        with self._lock:
            shard = self._open.get(number)
            if shard is None:
                shard = self._open[number] = self._load(number)
                while len(self._open) > SHARDS_OPEN_MAX:
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return shard

    def _load(self, number: int) -> Shard:
        entry = self.manifest.shards[number]
        if self._verify and number not in self._verified:
            self._verified_bytes += verify_object(self.store, entry.tokens, entry.checksum)
            self._verified.add(number)
        return Shard(entry.tokens, read_shard(self.store, entry.tokens), entry.sequences, self.seq_len)


def open_dataset(uri: str, *, verify: bool = True) -> TokenDataset:
    """Open the newest version of the dataset at `uri` (a path, `file://...`).

    `verify=False` trusts the shards' bytes. Raises `ObjectMissing` where there is no manifest, and `FormatError`.
    """
    store = open_store(uri)
    try:
        data = store.get(MANIFEST_KEY)
    except ObjectMissing as error:
        message = f"{store.uri}: no {MANIFEST_KEY}, so no dataset was finished here; check the URI, or write it first"
        raise FormatError(message) from error
    return TokenDataset(store, _parse_manifest(data, store.uri), verify=verify)


def _parse_manifest(data: bytes, uri: str) -> Manifest:
    try:
        fields = orjson.loads(data)
        if fields["format"] != MANIFEST_FORMAT:
            raise FormatError(
                f"{uri}: {MANIFEST_KEY} has format {fields['format']!r}, this version reads {MANIFEST_FORMAT}"
            )
        eos_id = fields["eos_id"]
        manifest = Manifest(
            dataset=str(fields["dataset"]),
            version=int(fields["version"]),
            seq_len=int(fields["seq_len"]),
            tokenizer=str(fields["tokenizer"]),
            pad_id=int(fields["pad_id"]),
            eos_id=None if eos_id is None else int(eos_id),
            shards=tuple(_parse_shard(entry) for entry in fields["shards"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{uri}: {MANIFEST_KEY} is malformed: {type(error).__name__} {error}; write it anew"
        ) from error
    if manifest.seq_len < 1 or any(shard.sequences < 0 for shard in manifest.shards):
        raise FormatError(f"{uri}: {MANIFEST_KEY} has a seq_len or a count of sequences that is not positive")
    return manifest


def _parse_shard(entry: Mapping[str, Any]) -> ShardEntry:
    return ShardEntry(
        tokens=str(entry["tokens"]),
        documents=str(entry["documents"]),
        checksum=str(entry["checksum"]),
        sequences=int(entry["sequences"]),
        token_count=int(entry["token_count"]),
    )
