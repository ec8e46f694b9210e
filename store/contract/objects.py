"""The contract of an object store, and the keys that every store can hold.

Headrace asks little of a store: whole objects under string keys, listed in key order, and one
primitive for coordination, `create`, by which at most one of several writers of a key wins.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.store.contract.errors import InvalidKey, ObjectMissing

Buffer: TypeAlias = bytes | bytearray | memoryview
#: What `update` asks: given the bytes that stand, or None where no object does, those to stand instead; None for none.
Decide: TypeAlias = Callable[[bytes | None], Sequence[Buffer] | None]

#: Bytes of an object that is read whole: a longer one, which nobody of ours writes, is refused before memory is taken.
WHOLE_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    #: bytes
    size: int
    #: Differs between two contents of one key: the ETag, or "size-mtime_ns-inode" of a file.
    version: str


#: What `stream` gives; a size that is sent to it is that of the next piece alone.
Stream: TypeAlias = Generator[memoryview, int | None, None]


class ObjectDraft(Protocol):
    """The bytes of an object so far. Raises StoreError, as `ObjectStore.create` does, at each step."""

    @property
    def size(self) -> int:
        """Bytes so far."""
        ...

    def append(self, data: Buffer) -> None:
        """Write at the end."""
        ...

    def patch(self, data: Buffer, offset: int) -> None:
        """Write over what stands at `offset`."""
        ...

    def pieces(self) -> Iterator[memoryview]:
        """All bytes, in pieces that each lie where the one before it lay."""
        ...

    def create(self, key: str) -> bool:
        """Make it an object, if none stands under the key: see `ObjectStore.create`."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the contract. None: it cannot, and the callers named here have a slower way."""

    #: Read in pieces as they arrive: `stream`.
    stream: Callable[[str, int, int, int, int | None], Stream] | None = None
    #: Read bytes and their version in one request: `get_with_info`.
    get_with_info: Callable[[str, int, int], tuple[bytes, ObjectInfo]] | None = None
    #: List what lies below a folder (its key is empty or ends in a slash) in order of the keys: which folders to enter,
    #: and which files are wanted. Both are asked with the path below it.
    walk: Callable[[str, Callable[[str], bool], Callable[[str], bool]], Iterator[ObjectInfo]] | None = None
    #: Write an object in place before its key is known: `headrace.store.files.open_draft`.
    draft: Callable[[], AbstractContextManager[ObjectDraft]] | None = None
    #: Name a folder for scratch files on the store's own disk: `headrace.store.files.near`. Raises OSError.
    scratch_folder: Callable[[], str] | None = None
    #: Call a gate between the headers and the bytes of a `create`: `headrace.store.s3.probe`.
    create_gated: Callable[[str, Sequence[Buffer], Callable[[], None]], bool] | None = None
    #: The bucket and its endpoint, whatever the prefix: one race decides for all its stores. Empty: the store's URI.
    bucket: str = ""
    #: What has failed for seconds and is tried again, for people; "" while all is well.
    trouble: Callable[[], str] = str


class InputStore(Protocol):
    """Objects that are only read; as of an `ObjectStore`."""

    @property
    def uri(self) -> str:
        """The store's absolute URI, which opens the same store again."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do beyond this contract."""
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


class ObjectStore(InputStore, Protocol):
    """Whole objects under keys such as `shards/3/ab12.safetensors`.

    All methods block and may be called from any thread or process, at once. An operation that the
    store cannot do now raises `StoreUnavailable`; a key that no store may hold raises `InvalidKey`.
    The caller owns the buffers it passes in and must not change them until the call returns.
    """

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

    def delete(self, key: str) -> None:
        """Remove the object, durably; it is no error if there is none."""
        ...

    def open_local(self, key: str) -> pathlib.Path | None:
        """Return a real path of the object, for readers that map it into memory; None where the store is remote.

        Raises `ObjectMissing`. Whoever gets the path only reads it.
        """
        ...


def stream(
    store: ObjectStore, key: str, offset: int, length: int, piece_bytes: int, first_bytes: int | None = None
) -> Stream:
    """Yield up to `length` bytes from `offset` in pieces of `piece_bytes`, the last of which may be shorter.

    The first has `first_bytes` where these are given, which are no more. Each piece lies in memory that the next one
    overwrites, small enough to stay in a processor's cache. Past the end there are none. A store that cannot stream
    gets them at once. Raises `ObjectMissing`, and `StoreUnavailable` also between two pieces: what was
    yielded stands, and the rest may be asked for.
    """
    own = store.capabilities.stream
    if own is not None:
        yield from own(key, offset, length, piece_bytes, first_bytes)
        return
    data = memoryview(store.get(key, offset, length))
    at, size = 0, first_bytes or piece_bytes
    while at < data.nbytes:
        begin, at = at, at + size
        size = (yield data[begin:at]) or piece_bytes


def get_with_info(store: InputStore, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
    """Like `ObjectStore.get`, and which object these bytes are of: one that has changed is told by its version.

    Where the store cannot do both at once, it is asked twice. Raises `ObjectMissing`.
    """
    own = store.capabilities.get_with_info
    if own is not None:
        return own(key, offset, length)
    data = store.get(key, offset, length)
    info = store.head(key)  # behind the bytes, so that it is of no older object
    if info is None:
        raise ObjectMissing(key, store.uri)
    return data, info


#: S3's own limit on a key.
KEY_BYTES_MAX = 1024
#: The limit of Linux file systems on one name; held by all stores, so that a dataset can move between them.
KEY_SEGMENT_BYTES_MAX = 255
#: The first segment that no key may have: the file store keeps its unfinished writes there.
RESERVED_SEGMENT = ".tmp"


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
