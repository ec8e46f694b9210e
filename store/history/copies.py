"""Copies of a dataset that its purge has to reach: its exports into folders.

`copies.json` is only ever replaced by what follows from the file that stands. A copy is noted before it is written, so
that one whose writer was killed is known too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from headrace.store import Buffer, FormatError, ObjectMissing, ObjectStore, StoreRefused
from headrace.store.datasets import Dataset

COPIES_KEY: Final = "copies.json"
COPIES_FORMAT: Final = 1
#: Limits of the file: its bytes, its copies, and the characters of a place.
COPIES_BYTES_MAX: Final = 1 << 20
COPIES_MAX: Final = 1000
PLACE_CHARACTERS_MAX: Final = 4096
KINDS: Final = ("megatron", "mds", "parquet")


@dataclass(frozen=True, slots=True)
class Copy:
    """A folder of a host that holds a version."""

    place: str
    host: str
    kind: str
    version: int
    #: The entry of the last retraction that it is without; -1: none.
    without: int


def read_copies(store: ObjectStore) -> list[Copy]:
    """The copies that are known of the dataset in a store. Raises FormatError, StoreError."""
    try:
        data = store.get(COPIES_KEY, 0, COPIES_BYTES_MAX + 1)
    except ObjectMissing:
        return []
    return parse_copies(data, store.uri)


def parse_copies(data: bytes, uri: str) -> list[Copy]:
    """The copies in these bytes of the dataset at `uri`. Raises FormatError."""
    wrong = f"{uri}: {COPIES_KEY} is malformed; restore it from a copy, or delete it: a purge then knows of no export"
    if len(data) > COPIES_BYTES_MAX:
        raise FormatError(f"{wrong} (more than {COPIES_BYTES_MAX} bytes)")
    try:
        fields: Any = orjson.loads(data)
        if fields["format"] != COPIES_FORMAT:
            raise FormatError(f"{uri}: {COPIES_KEY} has format {fields['format']!r:.80}, not {COPIES_FORMAT}: upgrade")
        found = [Copy(**item) for item in fields["copies"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{wrong} ({type(error).__name__}: {error!s:.200})") from error
    if len(found) > COPIES_MAX or not all(map(_is_sound, found)):
        raise FormatError(f"{wrong} (a copy that no Headrace notes)")
    return found


def note_copy(dataset: Dataset, place: str, kind: str) -> None:
    """Note that a version is about to be copied into a folder of this host.

    Raises StoreRefused for too many, FormatError, StoreError.
    """
    host = socket.gethostname()
    made = Copy(place, host, kind, dataset.version, dataset.state.retracted_at)

    def change(copies: list[Copy]) -> list[Copy]:
        kept = [one for one in copies if (one.place, one.host) != (place, host)]
        if len(kept) >= COPIES_MAX:
            raise StoreRefused(f"{dataset.uri} knows {COPIES_MAX} copies: take those that are gone out of {COPIES_KEY}")
        return [*kept, made]

    _update(dataset.store, change)


def renew_copy(store: ObjectStore, copy: Copy, without: int) -> None:
    """Note that a copy is without what was retracted up to an entry."""
    fresh = replace(copy, without=without)
    _update(store, lambda copies: [fresh if one == copy else one for one in copies])


def folder_of(place: str) -> str:
    """The absolute path of a folder that an export was given."""
    return os.path.abspath(os.path.expanduser(place.removeprefix("file://")))


def _is_sound(copy: Copy) -> bool:
    texts = (copy.place, copy.host, copy.kind)
    if not all(type(text) is str and len(text) <= PLACE_CHARACTERS_MAX and "\0" not in text for text in texts):
        return False
    numbers = all(type(number) is int and -1 <= number < 1 << 63 for number in (copy.version, copy.without))
    return numbers and copy.kind in KINDS and os.path.isabs(copy.place)


def _update(store: ObjectStore, change: Callable[[list[Copy]], list[Copy]]) -> None:
    def decide(standing: bytes | None) -> list[Buffer] | None:
        data = encoded(change([] if standing is None else parse_copies(standing, store.uri)))
        return None if data == standing else [data]

    store.update(COPIES_KEY, decide)


def encoded(copies: list[Copy]) -> bytes:
    """The bytes of the file."""
    return orjson.dumps(
        {"format": COPIES_FORMAT, "copies": copies}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
