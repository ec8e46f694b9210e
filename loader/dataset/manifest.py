"""What `manifest.json` says of the newest version of a dataset, for readers without its ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Final, overload

import orjson

from headrace.store import FormatError
from headrace.store.datasets import MANIFEST_FORMAT, MANIFEST_KEY, entry_of
from headrace.store.shards import are_checksums, are_keys, is_checksum, is_key

#: versions, and sequences, tokens or rows of one shard: what is more is no count
COUNT_MAX: Final = 1 << 40
#: tokens of a sequence, and the ids of tokens, which are int32 in a batch
TOKEN_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard as the manifest names it; keys are relative to the dataset."""

    tokens: str
    documents: str
    #: `xxh3-128:<hex>` of the tokens object
    checksum: str
    sequences: int
    #: real tokens, padding not counted
    token_count: int
    #: the hash of the pipeline that closed it; empty where the manifest does not say
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class Retraction:
    """Documents of one shard that no version from `version` on shows: rows of its documents table."""

    version: int
    #: the key of the shard's tokens
    tokens: str
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of the newest version."""

    dataset: str
    version: int
    #: 0 of a dataset of documents, which has no tokens
    seq_len: int
    tokenizer: str
    pad_id: int
    eos_id: int | None
    shards: "ShardTable"
    retracted: tuple[Retraction, ...] = ()
    #: the ledger entry that published this version; -1 where none is named
    entry: int = -1
    #: whether the version's input was read to its end
    complete: bool = True

    def first_shards(self, count: int) -> "Manifest":
        """The same, as if there were only the first `count` shards."""
        return replace(self, shards=self.shards.first(count))

    def retracted_at(self, version: int) -> dict[str, frozenset[int]]:
        """Rows of the documents table that this version does not show, by the key of the shard's tokens."""
        found: dict[str, frozenset[int]] = {}
        for one in self.retracted:
            if one.version <= version:
                found[one.tokens] = found.get(one.tokens, frozenset()).union(one.documents)
        return found


class ShardTable(Sequence[ShardEntry]):
    """The shards, kept by column: a dataset has a hundred thousand of them, and a loader looks at a few."""

    __slots__ = ("checksums", "documents", "layouts", "pipelines", "sequences", "token_counts", "tokens")

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self.tokens: list[str] = [entry["tokens"] for entry in entries]
        self.documents: list[str] = [entry["documents"] for entry in entries]
        self.checksums: list[str] = [entry["checksum"] for entry in entries]
        #: by which positions are known: a shard of which texts were erased has that of before
        self.layouts: list[str] = [entry.get("layout", entry["checksum"]) for entry in entries]
        self.sequences: list[int] = [entry["sequences"] for entry in entries]
        self.token_counts: list[int] = [entry["token_count"] for entry in entries]
        #: of few pipelines, so each name is kept once
        self.pipelines: list[str] = [intern(entry.get("pipeline", "")) for entry in entries]
        for column, kind in zip(self._columns(), (str, str, str, int, int, str), strict=True):
            wrong = set(map(type, column)) - {kind}
            if wrong:
                raise TypeError(f"a shard's field is {wrong.pop().__name__} and not {kind.__name__}")
        # names of files are made of these, so nothing else may come in
        keys, checksums = (*self.tokens, *self.documents), self.checksums
        if self.layouts != self.checksums:
            checksums = [*checksums, *self.layouts]
        if not (are_keys(keys) and are_checksums(checksums)):
            strange = [key for key in keys if not is_key(key)]
            strange += [checksum for checksum in checksums if not is_checksum(checksum)]
            raise ValueError(f"{strange[0][:200]!r} is no key or checksum of a shard")
        if (
            not 0
            <= min((0, *self.sequences, *self.token_counts))
            <= max((0, *self.sequences, *self.token_counts))
            <= COUNT_MAX
        ):
            raise ValueError(f"a shard's count is below 0 or above {COUNT_MAX}")

    def _columns(self) -> tuple[list[Any], ...]:
        return self.tokens, self.documents, self.checksums, self.sequences, self.token_counts, self.pipelines

    def first(self, count: int) -> "ShardTable":
        """The first `count` shards."""
        table = ShardTable(())
        for name in self.__slots__:
            setattr(table, name, getattr(self, name)[:count])
        return table

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, at: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ShardEntry]: ...
    def __getitem__(self, at: int | slice) -> ShardEntry | Sequence[ShardEntry]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return ShardEntry(*(column[at] for column in self._columns()))


def _retraction(fields: Mapping[str, Any]) -> Retraction:
    documents = tuple(map(_count, fields["documents"]))
    if not is_key(fields["tokens"]):
        raise ValueError(f"what was retracted of {str(fields['tokens'])[:200]!r} is no key with rows of a table")
    return Retraction(_count(fields["version"]), fields["tokens"], documents)


def _count(value: Any, most: int = COUNT_MAX) -> int:
    """A number of a manifest. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:80]} is no whole number from 0 to {most}")
    return value


def parse_manifest(data: bytes, uri: str) -> Manifest:
    """Read `data`, the manifest of the dataset at `uri`. Raises FormatError."""
    try:
        fields = orjson.loads(data)
        if fields["format"] != MANIFEST_FORMAT:
            raise FormatError(
                f"{uri}: {MANIFEST_KEY} has format {fields['format']!r}, this version reads {MANIFEST_FORMAT}"
            )
        if fields.get("removed"):
            fields = {**fields, "seq_len": 1, "tokenizer": "", "pad_id": 0, "eos_id": None}
        eos_id = fields["eos_id"]
        manifest = Manifest(
            dataset=str(fields["dataset"]),
            version=_count(fields["version"]),
            seq_len=_count(fields["seq_len"], TOKEN_MAX),
            tokenizer=str(fields["tokenizer"]),
            pad_id=_count(fields["pad_id"], TOKEN_MAX),
            eos_id=None if eos_id is None else _count(eos_id, TOKEN_MAX),
            shards=ShardTable(fields["shards"]),
            retracted=tuple(map(_retraction, fields.get("retracted", ()))),
            entry=entry_of(fields),
            complete=fields.get("complete", True) is not False,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{uri}: {MANIFEST_KEY} is malformed: {type(error).__name__} {error}; write it anew"
        ) from error
    if manifest.shards and not manifest.seq_len:
        raise FormatError(f"{uri}: {MANIFEST_KEY} has shards of tokens and a seq_len of 0; write it anew")
    return manifest
