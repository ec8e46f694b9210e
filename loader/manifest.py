"""What `manifest.json` says of the newest version of a dataset, for readers without its ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.store.errors import FormatError

MANIFEST_KEY: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says of the newest version."""

    dataset: str
    version: int
    seq_len: int
    tokenizer: str
    pad_id: int
    eos_id: int | None
    shards: tuple[ShardEntry, ...]


def parse_manifest(data: bytes, uri: str) -> Manifest:
    """Read `data`, the manifest of the dataset at `uri`. Raises FormatError."""
    try:
        fields = orjson.loads(data)
        if fields["format"] != MANIFEST_FORMAT:
            raise FormatError(
                f"{uri}: {MANIFEST_KEY} has format {fields['format']!r}, this version reads {MANIFEST_FORMAT}"
            )
        eos_id = fields["eos_id"]
        manifest = Manifest(
            dataset=str(fields["dataset"]),
            version=int(fields["version"]),
            seq_len=int(fields["seq_len"]),
            tokenizer=str(fields["tokenizer"]),
            pad_id=int(fields["pad_id"]),
            eos_id=None if eos_id is None else int(eos_id),
            shards=tuple([_parse_shard(entry) for entry in fields["shards"]]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{uri}: {MANIFEST_KEY} is malformed: {type(error).__name__} {error}; write it anew"
        ) from error
    if manifest.seq_len < 1 or any(shard.sequences < 0 for shard in manifest.shards):
        raise FormatError(f"{uri}: {MANIFEST_KEY} has a seq_len or a count of sequences that is not positive")
    return manifest


def _parse_shard(entry: Mapping[str, Any]) -> ShardEntry:
    return ShardEntry(
        str(entry["tokens"]),
        str(entry["documents"]),
        str(entry["checksum"]),
        int(entry["sequences"]),
        int(entry["token_count"]),
    )
