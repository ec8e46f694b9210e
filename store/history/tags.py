"""Tags: names of versions, in one small file beside the ledger.

A run may write the ledger while tags are set. A tag holds the entry that published its version: in a dataset that was
removed and begun anew it names nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.store import ObjectStore, StoreRefused
from headrace.store.history.small_file import SmallFile
from headrace.store.ledger import LedgerState

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


def _parse(fields: Any) -> dict[str, Tag]:
    found = {} if fields is None else {k: Tag(item["version"], item["entry"]) for k, item in fields["tags"].items()}
    for name, tag in found.items():
        numbers = (tag.version, tag.entry)
        if not is_tag(name) or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"the tag {name!r:.80}")
    if len(found) > TAGS_MAX:
        raise ValueError(f"{len(found)} tags, at most {TAGS_MAX}")
    return found


def _fields(tags: dict[str, Tag]) -> dict[str, Any]:
    return {"tags": {name: {"version": tag.version, "entry": tag.entry} for name, tag in sorted(tags.items())}}


TAGS: Final = SmallFile("tags.json", TAGS_BYTES_MAX, "versions stay", _parse, _fields)


def read_tags(store: ObjectStore) -> dict[str, Tag]:
    """The tags of the dataset in a store, by name. Raises FormatError, StoreError."""
    return TAGS.read(store)


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

    def changed(tags: dict[str, Tag]) -> dict[str, Tag]:
        stands = tags.get(name)
        if stands is not None and stands != tag and stands_for(state, stands) and not move:
            raise TagRefused(f"tag {name!r} names version {stands.version}: add --move to have it name {version}")
        tags[name] = tag
        if len(tags) > TAGS_MAX:
            raise TagRefused(f"{store.uri} has {TAGS_MAX} tags, the most that there can be: delete one")
        return tags

    TAGS.update(store, changed)
    return tag


def delete_tag(store: ObjectStore, name: str) -> Tag:
    """Delete a tag, and return what it named; its version stays. Raises TagRefused, StoreError."""
    found: list[Tag] = []

    def changed(tags: dict[str, Tag]) -> dict[str, Tag]:
        if name not in tags:
            raise TagRefused(f"{store.uri} has no tag {name!r:.100}")
        found.append(tags.pop(name))
        return tags

    TAGS.update(store, changed)
    return found[-1]


def stands_for(state: LedgerState, tag: Tag) -> bool:
    """Whether the dataset still has the version that a tag names."""
    return tag.version in state.published and state.published[tag.version].number == tag.entry
