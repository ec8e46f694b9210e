"""Tags: names of versions, in one small file beside the ledger.

`tags.json` is only ever replaced by what follows from the file that stands (`ObjectStore.update`), so of two writers at
one moment the second sees what the first wrote. A run may write the ledger meanwhile. A tag holds the entry that
published its version: in a dataset that was removed and begun anew it names nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.store import Buffer, FormatError, ObjectMissing, ObjectStore, StoreRefused
from headrace.store.ledger import LedgerState

TAGS_KEY: Final = "tags.json"
TAGS_FORMAT: Final = 1
#: Limits of what a file of tags may hold: its bytes, its tags, and the characters of a name.
TAGS_BYTES_MAX: Final = 1 << 18
TAGS_MAX: Final = 1000
NAME_CHARACTERS_MAX: Final = 64
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


class TagRefused(StoreRefused):
    """A tag that cannot be set or deleted as it was asked for."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The version that a tag names, and the entry that published it."""

    version: int
    entry: int


def is_tag(name: str) -> bool:
    """Whether a tag may have this name: a letter, then letters, digits, `.`, `_` and `-`; a number is a version."""
    return len(name) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None


def read_tags(store: ObjectStore) -> dict[str, Tag]:
    """The tags of the dataset in a store, by name. Raises FormatError, StoreError."""
    try:
        data = store.get(TAGS_KEY, 0, TAGS_BYTES_MAX + 1)
    except ObjectMissing:
        return {}
    return parse_tags(data, store.uri)


def parse_tags(data: bytes, uri: str) -> dict[str, Tag]:
    """The tags in these bytes of the dataset at `uri`. Raises FormatError."""
    wrong = f"{uri}: {TAGS_KEY} is malformed; restore it from a copy, or delete it: versions stay"
    if len(data) > TAGS_BYTES_MAX:
        raise FormatError(f"{wrong} (more than {TAGS_BYTES_MAX} bytes)")
    try:
        fields: Any = orjson.loads(data)
        if fields["format"] != TAGS_FORMAT:
            raise FormatError(f"{uri}: {TAGS_KEY} has format {fields['format']!r:.80}, not {TAGS_FORMAT}: upgrade")
        found = {name: Tag(item["version"], item["entry"]) for name, item in fields["tags"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{wrong} ({type(error).__name__}: {error!s:.200})") from error
    for name, tag in found.items():
        numbers = (tag.version, tag.entry)
        if not is_tag(name) or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise FormatError(f"{wrong} (the tag {name!r:.80})")
    if len(found) > TAGS_MAX:
        raise FormatError(f"{wrong} ({len(found)} tags, at most {TAGS_MAX})")
    return found


def set_tag(store: ObjectStore, state: LedgerState, name: str, version: int, *, move: bool) -> Tag:
    """Have a tag name a version, which no other version has it, unless it may `move`. Raises TagRefused, StoreError."""
    if not is_tag(name):
        raise TagRefused(
            f"{name!r:.100} is no name of a tag: at most {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-', the "
            "first a letter"
        )
    if version not in state.published:
        raise TagRefused(f"{store.uri} has no version {version}: `headrace dataset log` lists them")
    tag = Tag(version, state.published[version].number)

    def changed(tags: dict[str, Tag]) -> None:
        stands = tags.get(name)
        if stands is not None and stands != tag and stands_for(state, stands) and not move:
            raise TagRefused(f"tag {name!r} names version {stands.version}: add --move to have it name {version}")
        tags[name] = tag
        if len(tags) > TAGS_MAX:
            raise TagRefused(f"{store.uri} has {TAGS_MAX} tags, the most that there can be: delete one")

    _update(store, changed)
    return tag


def delete_tag(store: ObjectStore, name: str) -> Tag:
    """Delete a tag, and return what it named; its version stays. Raises TagRefused, StoreError."""
    found: list[Tag] = []

    def changed(tags: dict[str, Tag]) -> None:
        if name not in tags:
            raise TagRefused(f"{store.uri} has no tag {name!r:.100}")
        found.append(tags.pop(name))

    _update(store, changed)
    return found[-1]


def stands_for(state: LedgerState, tag: Tag) -> bool:
    """Whether the dataset still has the version that a tag names."""
    return tag.version in state.published and state.published[tag.version].number == tag.entry


def _update(store: ObjectStore, change: Callable[[dict[str, Tag]], None]) -> None:
    def decide(standing: bytes | None) -> list[Buffer] | None:
        tags = {} if standing is None else parse_tags(standing, store.uri)
        change(tags)
        data = _encoded(tags)
        return None if data == standing else [data]

    store.update(TAGS_KEY, decide)


def _encoded(tags: Mapping[str, Tag]) -> bytes:
    named = {name: {"version": tag.version, "entry": tag.entry} for name, tag in sorted(tags.items())}
    return orjson.dumps({"format": TAGS_FORMAT, "tags": named}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
