"""A dataset and its source as someone sees them who has no Headrace: by the libraries of their formats alone.

Nothing here imports a stage or a reader, and of the store no more than plain reads: what the checker compares must
not come from the code that it checks (docs/reference/format.md is all that is needed to write this again).

Lines of JSON Lines, rows of Parquet, pages and texts of WARC and WET, plain files; compressed by gzip or zstd, too.

A fragment's URI names bucket and key; which server they are at is said by the pipeline's input alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pathlib
import re
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from headrace.pipeline import Pipeline, StageKind
from headrace.store import ObjectStore, open_store

#: What a manifest may name: paths are made of it.
_KEY = re.compile(r"shards/[0-9]+/[0-9a-f]{32}(?:\.[a-z]+)+")
#: Bytes of the hash that stands for a document's tokens.
_HASH_BYTES = 16
#: Records that a finding names; the rest are counted.
NAMED_MAX = 5

#: A record's fragment (hex) and its ordinal there.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record: its verdict, and for a kept one a hash of its tokens and their number."""

    verdict: str
    id: str
    tokens: int
    proof: str


@dataclass(slots=True)
class Fates:
    """Every record of a dataset; `twice` are those that stand there more than once."""

    found: dict[Key, Fate]
    twice: list[Key]

    @property
    def ids(self) -> Counter[str]:
        """How often each id stands there."""
        return Counter(fate.id for fate in self.found.values())


@dataclass(frozen=True, slots=True)
class ShardDifference:
    """The differences between two datasets."""

    lost: tuple[Key, ...]
    added: tuple[Key, ...]
    changed: tuple[tuple[Key, Fate, Fate], ...]
    #: Pairs of records that changed places as the kept one and its duplicate, which is no fault.
    swapped: int = 0

    def lines(self) -> list[str]:
        """Each kind in a line, with the first few records by name."""
        lines: list[str] = []
        for word, keys in (("lost", self.lost), ("not in the reference", self.added)):
            if keys:
                named = ", ".join(f"{fragment}#{row}" for fragment, row in keys[:NAMED_MAX])
                lines.append(f"{len(keys)} records {word}: {named}")
        if self.changed:
            named = "; ".join(
                f"{after.id}: {_told(before)}, now {_told(after)}" for _, before, after in self.changed[:NAMED_MAX]
            )
            lines.append(f"{len(self.changed)} records with another fate: {named}")
        return lines


def read_fates(dataset: pathlib.Path) -> Fates:
    """The fate of each record that the manifest's shards hold."""
    fates = Fates({}, [])
    for shard in json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))["shards"]:
        if not all(_KEY.fullmatch(str(shard[name])) for name in ("tokens", "documents", "verdicts")):
            raise ValueError(f"{dataset}: the manifest names {shard['tokens']!r}, which is no object of a shard")
        for key, fate in _of_shard(dataset, shard):
            if key in fates.found:
                fates.twice.append(key)
            fates.found[key] = fate
    return fates


def compare(reference: Fates, other: Fates) -> ShardDifference:
    """The differences of `other`.

    Which of several duplicates came first is chance: as many may have become duplicates as have become kept.
    """
    before, after = reference.found, other.found
    changed = [(key, before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]]
    now_kept = [item for item in changed if (item[1].verdict, item[2].verdict) == ("duplicate", "kept")]
    now_duplicate = [item for item in changed if (item[1].verdict, item[2].verdict) == ("kept", "duplicate")]
    swapped = len(now_kept) if len(now_kept) == len(now_duplicate) else 0
    if swapped:
        changed = [item for item in changed if item not in now_kept and item not in now_duplicate]
    return ShardDifference(
        lost=tuple(sorted(before.keys() - after.keys())),
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(changed, key=lambda item: item[0])),
        swapped=swapped,
    )


def _of_shard(dataset: pathlib.Path, shard: dict[str, Any]) -> Iterator[tuple[Key, Fate]]:
    proofs = _proofs(dataset / shard["tokens"])
    documents: dict[str, list[Any]] = pq.read_table(dataset / shard["documents"]).to_pydict()
    for index, key in enumerate(zip(documents["fragment"], documents["row"], strict=True)):
        count, proof = proofs.get(index, (0, ""))
        metadata = documents["metadata"][index] or ""
        yield key, Fate("kept", documents["id"][index], count, f"{proof} {metadata}")
    verdicts: dict[str, list[Any]] = pq.read_table(dataset / shard["verdicts"]).to_pydict()
    for index, key in enumerate(zip(verdicts["fragment"], verdicts["row"], strict=True)):
        why = f"{verdicts['stage'][index]}/{verdicts['reason'][index]}"
        yield key, Fate(verdicts["verdict"][index], verdicts["id"][index], 0, why)


def _proofs(path: pathlib.Path) -> dict[int, tuple[int, str]]:
    """For each row of the documents table the number and the hash of its tokens: its pieces, one behind the other."""
    arrays = load_file(path)
    names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
    parts: dict[int, list[Any]] = {}
    for sequence, start, length, document in zip(*(arrays[name].tolist() for name in names), strict=True):
        parts.setdefault(document, []).append(arrays["tokens"][sequence, start : start + length])
    found: dict[int, tuple[int, str]] = {}
    for document, pieces in parts.items():
        whole = np.concatenate(pieces)
        found[document] = (whole.size, hashlib.blake2b(whole.tobytes(), digest_size=_HASH_BYTES).hexdigest())
    return found


def _told(fate: Fate) -> str:
    return f"kept with {fate.tokens} tokens" if fate.verdict == "kept" else f"{fate.verdict} ({fate.proof})"


#: Bytes of an object that are asked for at once.
PIECE_BYTES = 4 << 20
#: An S3 address among the parameters of a source; what is said of the server ends it.
_ADDRESS = re.compile(r"s3://(?P<bucket>[^/,\s]+)(?P<path>[^,\s]*?)(?P<query>\?[a-z_]+=[^,\s]*)?(?=[,\s]|$)")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file or an object, and what opens it for reading."""

    name: str
    open: Callable[[], BinaryIO]


class Servers:
    """The buckets that the sources of a pipeline name, each with its server."""

    def __init__(self, pipeline: Pipeline | None = None) -> None:
        stages = pipeline.of_kind(StageKind.SOURCE) if pipeline is not None else ()
        found = [_ADDRESS.finditer(text) for stage in stages for text in _texts(stage.parameters)]
        self._roots = {
            match["bucket"]: f"s3://{match['bucket']}{match['query'] or ''}" for some in found for match in some
        }
        self._stores: dict[str, ObjectStore] = {}

    def file_of(self, uri: str) -> SourceFile | None:
        """The object at a fragment's URI; None for an unknown scheme."""
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme == "file" or "://" not in uri:
            path = pathlib.Path(urllib.request.url2pathname(parts.path) if parts.scheme else uri)
            return SourceFile(path.name, lambda: path.open("rb"))
        # Not by urlsplit: a key may hold a # or a question mark.
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if parts.scheme != "s3" or bucket not in self._roots:
            return None
        return SourceFile(
            key, lambda: cast("BinaryIO", io.BufferedReader(_Object(self._store(bucket), key), PIECE_BYTES))
        )

    def _store(self, bucket: str) -> ObjectStore:
        if bucket not in self._stores:
            self._stores[bucket] = open_store(self._roots[bucket])
        return self._stores[bucket]


class _Object(io.RawIOBase):
    """An object as a file that can only be read. Raises StoreError where the store does."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        info = store.head(key)
        if info is None:
            raise FileNotFoundError(f"{key} is gone from {store.uri}")
        self._store, self._key, self._size, self._at = store, key, info.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = self._store.get(self._key, self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _texts(value: Any) -> Iterator[str]:
    """Every text in parameters."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item)


_LINES = (".jsonl", ".json", ".ndjson")
_ARCHIVES = (".warc", ".wet")
_TABLES = (".parquet", ".pq")
_TEXTS = (".txt", ".md", ".rst")
_ZSTD = (".zst", ".zstd")
#: Records of an archive that hold a page or a text (docs/guide/inputs.md).
_PAGES = ("response", "resource", "conversion")
_PIECE_BYTES = 1 << 20
#: What the libraries raise for bytes that are not what a name promises.
DAMAGE = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class SourceRecords:
    """What the files of an input hold: records of each, in their order, and ids of those that have one of their own.

    `unread`: files of formats that are not known here.
    """

    counts: tuple[int, ...]
    ids: Counter[str]
    unread: tuple[str, ...]

    @property
    def records(self) -> int:
        """All of them."""
        return sum(self.counts)


class SourceDamaged(Exception):  # noqa: N818 - named after what is so
    """A file cannot be read to its end."""


def read_source(files: Sequence[SourceFile], id_key: str) -> SourceRecords:
    """Count the records of each file, and gather the ids of those that can be parsed. Raises SourceDamaged."""
    counts: list[int] = []
    ids, unread = Counter[str](), list[str]()
    for item in files:
        count = 0
        try:
            for name in _records(item, id_key):
                count += 1
                if name:
                    ids[name] += 1
        except _UnknownFormat:
            unread.append(item.name)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise SourceDamaged(f"{item.name}: {error}") from error
        counts.append(count)
    return SourceRecords(tuple(counts), ids, tuple(unread))


class _UnknownFormat(Exception):  # noqa: N818 - named after what is so
    """Nobody here reads such a file."""


def _records(item: SourceFile, id_key: str) -> Iterator[str]:
    """An id, or "", for each record."""
    bare = item.name
    for suffix in (".gz", *_ZSTD):
        bare = bare.removesuffix(suffix)
    if bare.endswith(_LINES):
        with _plain(item) as file:
            yield from (_id_of(line, id_key) for line in file if line.strip())
    elif bare.endswith(_ARCHIVES):
        with _plain(item) as file:
            yield from _pages(file)
    elif item.name.endswith(_TABLES):
        with item.open() as file:
            yield from _rows(pq.ParquetFile(file), id_key)
    elif item.name.endswith(_TEXTS):
        yield ""
    else:
        raise _UnknownFormat(item.name)


@contextmanager
def _plain(item: SourceFile) -> Iterator[BinaryIO]:
    """The bytes of a file as they are when they are decompressed."""
    with item.open() as stored:
        file: Any = stored
        if item.name.endswith(".gz"):
            file = gzip.GzipFile(fileobj=stored)
        elif item.name.endswith(_ZSTD):
            source = pa.PythonFile(cast("Any", stored), "r")
            file = io.BufferedReader(_Decompressed(pa.CompressedInputStream(source, "zstd")))
        yield file


class _Decompressed(io.RawIOBase):
    """What an Arrow stream gives, as a file that has lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data: bytes = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _pages(file: BinaryIO) -> Iterator[str]:
    """The ids of an archive's records that hold a page or a text, by ISO 28500 and not by the library of our reader."""
    while line := file.readline():
        if not line.strip():
            continue
        if not line.startswith(b"WARC/"):
            raise ValueError(f"{line[:40]!r} stands where a WARC record should begin")
        headers: dict[str, str] = {}
        while (line := file.readline()).strip():
            name, _, value = line.decode("utf-8", "replace").partition(":")
            headers[name.strip().lower()] = value.strip()
        left = int(headers.get("content-length", "0"))
        while left:
            passed = len(file.read(min(left, _PIECE_BYTES)))
            if not passed:
                raise EOFError(f"a record is cut off, {left} bytes before its end")
            left -= passed
        if headers.get("warc-type", "") in _PAGES:
            yield headers.get("warc-record-id", "").strip("<>")


def _rows(file: pq.ParquetFile, id_key: str) -> Iterator[str]:
    if id_key not in file.schema_arrow.names:
        yield from ("" for _ in range(file.metadata.num_rows))
        return
    for batch in file.iter_batches(columns=[id_key]):
        yield from (value if isinstance(value, str) else "" for value in batch.column(0).to_pylist())


def _id_of(line: bytes, id_key: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    name = record.get(id_key) if isinstance(record, dict) else None
    return name if isinstance(name, str) else ""
