"""Copies of a dataset that its purge has to reach: its exports into folders.

A copy is noted when its writing begins, so that one whose writer was killed is known too. A note is of the dataset that
was copied: in another that took its place it names nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.store import ObjectStore, StoreRefused
from headrace.store.datasets import Dataset
from headrace.store.history.small_file import SmallFile

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
    #: An entry that closed a shard of it: in a dataset that was removed and begun anew no shard has it. -1: older notes
    #: have none.
    entry: int = -1


def _parse(fields: Any) -> list[Copy]:
    found = [] if fields is None else [Copy(**item) for item in fields["copies"]]
    if len(found) > COPIES_MAX or not all(map(_is_sound, found)):
        raise ValueError("a copy that no Headrace notes")
    return found


COPIES: Final = SmallFile(
    "copies.json", COPIES_BYTES_MAX, "a purge then knows of no export", _parse, lambda found: {"copies": found}
)


def copies_of(dataset: Dataset) -> list[Copy]:
    """The copies that were noted of it. Raises FormatError, StoreError."""
    entries = {-1, *(shard.number for shard in dataset.state.shards)}
    return [one for one in COPIES.read(dataset.store) if one.entry in entries]


def note_copy(dataset: Dataset, place: str, kind: str) -> Callable[[], None]:
    """Note that a version is copied into a folder of this host; a function that takes the note back.

    Raises StoreRefused for too many and for a name that no file holds, FormatError, StoreError.
    """
    host = socket.gethostname()
    made = Copy(place, host, kind, dataset.version, dataset.state.retracted_at, dataset.shards[0].number)
    before: list[Copy] = []

    def change(copies: list[Copy]) -> list[Copy]:
        kept = [one for one in copies if (one.place, one.host) != (place, host)]
        before[:] = [one for one in copies if one not in kept]
        if len(kept) >= COPIES_MAX:
            raise StoreRefused(f"{dataset.uri} knows {COPIES_MAX} copies: remove those that are gone from {COPIES.key}")
        return [*kept, made]

    if place.encode("utf-8", "replace").decode() != place:
        raise StoreRefused("its name is no UTF-8")
    COPIES.update(dataset.store, change)
    return lambda: COPIES.update(
        dataset.store, lambda copies: [*before, *(one for one in copies if one != made)] if made in copies else copies
    )


def renew_copy(store: ObjectStore, copy: Copy, without: int) -> None:
    """Note that a copy is without what was retracted up to an entry."""
    fresh = replace(copy, without=without)
    COPIES.update(store, lambda copies: [fresh if one == copy else one for one in copies])


def _is_sound(copy: Copy) -> bool:
    texts = (copy.place, copy.host, copy.kind)
    if not all(type(text) is str and len(text) <= PLACE_CHARACTERS_MAX and "\0" not in text for text in texts):
        return False
    numbers = all(type(number) is int and -1 <= number < 1 << 63 for number in (copy.version, copy.entry, copy.without))
    return numbers and copy.kind in KINDS and os.path.abspath(copy.place) == copy.place != os.sep
