"""Objects that are named by the hash of their bytes: written once, and not leaned on unseen.

`create` says that an object stands under the key, and not which. It may have been cut by a copy that broke off, or
changed since. So who finds the key taken reads what stands there, and compares size and bytes, before a ledger names
it. That happens where a shard is made again, which is seldom.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import xxhash

from headrace.store import (
    Buffer,
    ObjectDraft,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
    StoreUnavailable,
    stream,
)

#: Bytes that are read at once of what stands under a key.
PIECE_BYTES = 1 << 20
#: Times that an object is written again which was there, and gone when it was to be compared.
AGAIN_MAX = 3


class ObjectDiffers(StoreRefused):
    """Another object stands under the name of these bytes."""


def put(store: ObjectStore, key: str, parts: Sequence[Buffer]) -> None:
    """Have these bytes stand under the key, durably. Raises ObjectDiffers where others do, StoreError."""
    _put(store, key, lambda: store.create(key, parts), lambda: parts)


def put_draft(store: ObjectStore, key: str, draft: ObjectDraft) -> None:
    """Have a draft's bytes stand under the key, durably. Raises ObjectDiffers where others do, StoreError."""
    _put(store, key, lambda: draft.create(key), draft.pieces)


def find(store: ObjectStore, key: str, parts: Iterable[Buffer]) -> bool:
    """Whether these bytes stand under the key; False where nothing does. Raises ObjectDiffers, StoreError."""
    digest, size = xxhash.xxh3_128(), 0
    for part in parts:
        digest.update(part)
        size += memoryview(part).nbytes
    info = store.head(key)
    if info is None:
        return False
    standing = f"{info.size} bytes"
    if info.size == size:
        found = xxhash.xxh3_128()
        for piece in _read(store, key, size):
            found.update(piece)
        if found.digest() == digest.digest():
            return True
        standing = f"{size} other bytes, whose xxh3-128 is {found.hexdigest()}"
    raise ObjectDiffers(
        f"{store.uri}: {key!r} should hold {size} bytes whose xxh3-128 is {digest.hexdigest()}, and holds {standing}: "
        "it was cut or changed after it was written. Delete that object, then run the same command again"
    )


def _put(store: ObjectStore, key: str, create: Callable[[], bool], bytes_of: Callable[[], Iterable[Buffer]]) -> None:
    for _ in range(AGAIN_MAX):
        if create():
            return
        with contextlib.suppress(ObjectMissing):
            if find(store, key, bytes_of()):
                return
    raise StoreUnavailable(
        f"{store.uri}: {key!r} was refused as existing and then not found, {AGAIN_MAX} times; something deletes "
        "objects of this dataset, stop it before going on"
    )


def _read(store: ObjectStore, key: str, size: int) -> Iterator[Buffer]:
    pieces = stream(store, key, 0, size, PIECE_BYTES)
    with contextlib.closing(pieces):
        yield from pieces
