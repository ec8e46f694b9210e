"""The contract of an object store, and the one way to open a store from a URI.

Headrace asks little of a store: whole objects under string keys, listed in key order, and one
primitive for coordination, `create`, by which at most one of several writers of a key wins.
"""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.store.errors import InvalidKey, InvalidUri, ObjectMissing

Buffer: TypeAlias = bytes | bytearray | memoryview
#: What `update` asks: given the bytes that stand, or None where no object does, those to stand instead; None for none.
Decide: TypeAlias = Callable[[bytes | None], Sequence[Buffer] | None]

#: S3's own limit on a key.
KEY_BYTES_MAX = 1024
#: The limit of Linux file systems on one name; held by all stores, so that a dataset can move between them.
KEY_SEGMENT_BYTES_MAX = 255
#: The first segment that no key may have: the file store keeps its unfinished writes there.
RESERVED_SEGMENT = ".tmp"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    #: bytes
    size: int
    #: Differs between two contents of one key: the ETag, or "size-mtime_ns-inode" of a file.
    version: str


class ObjectStore(Protocol):
    """Whole objects under keys such as `shards/3/ab12.safetensors`.

    All methods block and may be called from any thread or process, at once. An operation that the
    store cannot do now raises `StoreUnavailable`; a key that no store may hold raises `InvalidKey`.
    The caller owns the buffers it passes in and must not change them until the call returns.
    """

    @property
    def uri(self) -> str:
        """The store's absolute URI; `open_store(store.uri)` opens the same store."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether a server keeps the objects, and no file system.

        Then a read waits for a network, so that several are asked for at once; `open_local` has no paths; that one
        creator of a key wins is the server's word and wants a probe; and an object that `head` shows is durable, which
        of a file that another process is just making nobody knows.
        """
        ...

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Write the concatenated parts under `key` unless an object stands there; never overwrite.

        Atomic: a reader finds the whole object or none. Of several writers of one key exactly one is
        answered True. Durable: after either answer the object that stands survives a power failure.
        After an exception the object may or may not stand, and the caller may ask again with the same bytes.
        """
        ...

    def replace(self, key: str, parts: Sequence[Buffer]) -> None:
        """Write the concatenated parts under `key` whether or not an object stands there; atomic and durable.

        For what nobody else writes: nothing that the ledger names is ever replaced.
        """
        ...

    def update(self, key: str, decide: Decide) -> bool:
        """Replace a small object by what follows from it, unless another writes it meanwhile; whether it was written.

        For derived files such as `manifest.json`. `decide` is asked again where another was faster, so it must have no
        effect of its own. Atomic and durable, as `create`. Of several writers at once each sees what the one before it
        wrote, where the store can promise that: a server that knows no `If-Match` is asked without. Raises
        `StoreUnavailable` also where others are faster for ever.
        """
        ...

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return up to `length` bytes from `offset` (all of the rest by default); past the end there are none.

        Raises `ObjectMissing`.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return the object's size in bytes and version, or None where there is no object."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` and is greater than `after`, in order of their keys.

        The prefix is one of characters, not of folders. Keys are ordered as UTF-8 bytes. The listing streams: an
        object created or deleted while it goes on may or may not appear.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object, durably; it is no error if there is none."""
        ...

    def open_local(self, key: str) -> pathlib.Path | None:
        """Return a real path of the object, for readers that map it into memory; None where the store is remote.

        Raises `ObjectMissing`. Whoever gets the path only reads it.
        """
        ...


#: What `stream` gives; a size that is sent to it is that of the next piece alone.
Stream: TypeAlias = Generator[memoryview, int | None, None]


def stream(
    store: ObjectStore, key: str, offset: int, length: int, piece_bytes: int, first_bytes: int | None = None
) -> Stream:
    """Yield up to `length` bytes from `offset` in pieces of `piece_bytes`, the last of which may be shorter.

    The first has `first_bytes` where these are given, which are no more. Each piece lies in memory that the next one
    overwrites, small enough to stay in a processor's cache. Past the end there are none. A store that has no `stream`
    of its own gets them at once. Raises `ObjectMissing`, and `StoreUnavailable` also between two pieces: what was
    yielded stands, and the rest may be asked for.
    """
    own: Callable[[str, int, int, int, int | None], Stream] | None = getattr(store, "stream", None)
    if own is not None:
        yield from own(key, offset, length, piece_bytes, first_bytes)
        return
    data = memoryview(store.get(key, offset, length))
    at, size = 0, first_bytes or piece_bytes
    while at < data.nbytes:
        begin, at = at, at + size
        size = (yield data[begin:at]) or piece_bytes


def get_with_info(store: ObjectStore, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
    """Like `ObjectStore.get`, and which object these bytes are of: one that has changed is told by its version.

    A store that has no `get_with_info` of its own is asked for both. Raises `ObjectMissing`.
    """
    own: Callable[[str, int, int], tuple[bytes, ObjectInfo]] | None = getattr(store, "get_with_info", None)
    if own is not None:
        return own(key, offset, length)
    data = store.get(key, offset, length)
    info = store.head(key)  # behind the bytes, so that it is of no older object
    if info is None:
        raise ObjectMissing(key, store.uri)
    return data, info


def validate_key(key: str) -> None:
    """Raise `InvalidKey` unless `key` is one that every store can hold.

    A key is a relative path of segments joined by "/": none empty, "." or "..", no control
    characters, no backslash, at most 1024 bytes, 255 a segment.
    """
    problem = _key_problem(key)
    if problem is not None:
        raise InvalidKey(f"key {key!r} {problem}; keys look like 'shards/3/ab12.safetensors'")


def _key_problem(key: str) -> str | None:
    if not key:
        return "is empty"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > KEY_BYTES_MAX:
        return f"has {size} bytes, the limit is {KEY_BYTES_MAX}"
    if any(ord(char) < 0x20 or ord(char) == 0x7F or char == "\\" for char in key):
        return "has a control character or a backslash"
    segments = key.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            return f"has the segment {segment!r}"
        if len(segment.encode()) > KEY_SEGMENT_BYTES_MAX:
            return f"has a segment of {len(segment.encode())} bytes, the limit is {KEY_SEGMENT_BYTES_MAX}"
    if segments[0] == RESERVED_SEGMENT:
        return f"starts with {RESERVED_SEGMENT!r}, which is reserved"
    return None


def open_store(uri: str) -> ObjectStore:
    """Open the store at `uri`: `file:///absolute`, `file://./relative`, a plain path, or `s3://bucket/prefix`.

    Nothing is created before the first write. Raises `InvalidUri`.
    """
    if not uri or "\0" in uri:
        raise InvalidUri(f"store URI {uri!r} is empty or has a NUL character; give a path or file:///path")
    scheme, separator, _ = uri.partition("://")
    opener = _OPENERS.get(scheme.lower()) if separator else _open_path
    if opener is None:
        known = ", ".join(f"{name}://" for name in sorted(_OPENERS))
        raise InvalidUri(f"store URI {uri!r}: unknown scheme {scheme!r}; known are {known} and plain paths")
    return opener(uri)


def below(uri: str, folder: str) -> str:
    """The URI of a folder in the store at `uri`, escaped as in one; what S3 says of its server stays behind `?`."""
    if not uri.lower().startswith("s3://"):
        return f"{uri.rstrip('/')}/{folder}"
    path, mark, query = uri.partition("?")
    return f"{path.rstrip('/')}/{folder}{mark}{query}"


def _open_path(path: str) -> ObjectStore:
    from headrace.store.files import FileStore

    # The checker sees this module under two names, store.objects and headrace.store.objects.
    return FileStore(path)  # pyright: ignore[reportReturnType]


def _open_file_uri(uri: str) -> ObjectStore:
    # A folder whose name is no UTF-8 has a URI too, and that leads to it alone.
    path = urllib.parse.unquote(uri[len("file://") :], errors="surrogateescape")
    if path.startswith("localhost/"):
        path = path.removeprefix("localhost")
    if not path.startswith(("/", "./", "../")) and path not in (".", ".."):
        raise InvalidUri(
            f"store URI {uri!r}: what follows file:// reads as a host name; "
            f"write file:///absolute/path or file://./{path or 'data'}"
        )
    if "\0" in path:
        raise InvalidUri(f"store URI {uri!r} has a NUL character; give a path or file:///path")
    return _open_path(path)


def _open_s3(uri: str) -> ObjectStore:
    from headrace.store.s3 import S3Store

    return S3Store(uri)  # pyright: ignore[reportReturnType]


#: A store module slots in here, by the scheme of its URIs.
_OPENERS: dict[str, Callable[[str], ObjectStore]] = {"file": _open_file_uri, "s3": _open_s3}
