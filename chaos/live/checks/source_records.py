"""The records of a source, counted by the libraries of its formats alone: no reader and no stage of ours.

Lines of JSON Lines, rows of Parquet, pages and texts of WARC and WET, plain files; compressed by gzip or zstd, too.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.chaos.live.checks.source_files import SourceFile

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
