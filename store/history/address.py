"""Versions of a dataset by name: tags, the addresses `URI@3` and `URI@tag`, and what a version shows.

A view is a dataset whose ledger state is that of its version: shards, counts and verdicts of later entries are not in
it, so whatever reads a dataset reads a version.

A run may write the ledger while tags are set. A tag holds the entry that published its version: in a dataset that was
removed and begun anew it names nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.store import NoDataset, ObjectStore, StoreRefused, open_store
from headrace.store.datasets import MANIFEST_KEY, Dataset, fold_ledger, state_at
from headrace.store.history.small_file import SmallFile
from headrace.store.ledger import LedgerState, Log

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


#: Digits of the number of a version.
_DIGITS_MAX = 18


def split_address(address: str) -> tuple[str, str]:
    """The URI of a dataset, and the version or tag behind `@`; "" where it names none.

    A folder whose own name ends like that is taken as it stands, where it holds a dataset.
    """
    path, mark, query = address.partition("?") if address.lower().startswith("s3://") else (address, "", "")
    place, at, name = path.rstrip("/").rpartition("@")
    if not at or not place or not (is_tag(name) or (name.isascii() and name.isdigit() and len(name) <= _DIGITS_MAX)):
        return address, ""
    store = open_store(address)
    if store.head(Log(store).key(0)) is not None or store.head(MANIFEST_KEY) is not None:
        return address, ""
    return f"{place}{mark}{query}", name


def version_named(store: ObjectStore, state: LedgerState, name: str) -> int:
    """The version that a number or a tag names. Raises NoDataset where there is none, FormatError."""
    if name.isascii() and name.isdigit() and len(name) <= _DIGITS_MAX:
        version = int(name)
        if version in state.published:
            return version
        known = ", ".join(map(str, sorted(state.published)[-10:]))
        raise NoDataset(f"{store.uri} has no version {version}; the newest are {known or 'none yet'}")
    tags = read_tags(store)
    tag = tags.get(name)
    if tag is None:
        known = ", ".join(sorted(tags)[:10])
        raise NoDataset(f"{store.uri} has no tag {name!r}; it has {known or 'none'}")
    if not stands_for(state, tag):
        raise NoDataset(f"{store.uri}: tag {name!r} names version {tag.version} of a dataset that was removed")
    return tag.version


def open_at(address: str) -> Dataset:
    """The dataset at a URI, or as the version that the address names shows it. Raises as `Dataset.open` does."""
    uri, name = split_address(address)
    whole = Dataset.open(uri)
    return view(whole, version_named(whole.store, whole.state, name)) if name else whole


def manifest_at(uri: str, name: str) -> tuple[ObjectStore, dict[str, object]]:
    """The store of a dataset, and the manifest of the version that a number or tag names, by the ledger."""
    store = open_store(uri)
    state = fold_ledger(store)
    return store, Dataset(store, state).of_version(version_named(store, state, name)).manifest()


def view(dataset: Dataset, version: int) -> Dataset:
    """A dataset as one published version shows it."""
    return Dataset(dataset.store, state_at(dataset.state, version), version, dataset.state)
