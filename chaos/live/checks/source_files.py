"""The files and objects of a source, opened without any reader of ours: an S3 object by plain ranged reads.

A fragment's URI names bucket and key; which server they are at is said by the pipeline's input alone.
"""

from __future__ import annotations

import io
import pathlib
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from headrace.pipeline import Pipeline, StageKind
from headrace.store import ObjectStore, open_store

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
