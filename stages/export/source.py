"""What an exporter reads of a dataset, shard by shard: packed sequences, or documents put together again."""

from __future__ import annotations

import fcntl
import glob
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import InputError
from headrace.store import FormatError, folder_of
from headrace.store.datasets import Dataset
from headrace.store.files import disk
from headrace.store.ledger import ClosedShard, StoredObject, empty_sinks
from headrace.store.shards import read_shard, read_table, sidecar_schema


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: files, bytes, and what is in them."""

    format: str
    place: str
    files: int
    bytes: int
    documents: int
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ExportedDocuments:
    """The documents of one shard: their table, and their tokens end to end with the number of each."""

    table: pa.Table
    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]


def token_shards(dataset: Dataset) -> list[ClosedShard]:
    """The shards that hold tokens, in the order of the ledger. Raises InputError where there are none."""
    shards = dataset.with_tokens()
    if not shards:
        require_shards(dataset)
        raise InputError(f"{dataset.uri} holds no tokens: this format is for what write_tokens(...) wrote")
    return shards


def require_shards(dataset: Dataset) -> None:
    """Raise InputError for a dataset in which there is nothing."""
    if list(dataset.shards):
        return
    balance = dataset.balance()
    why = balance.open_words if balance.fragments else "nothing is listed yet, or its input was empty"
    raise InputError(f"{dataset.uri} holds no shard: {why or 'its input was empty, or no record was kept'}")


def require_documents(dataset: Dataset, shards: Iterable[ClosedShard]) -> None:
    """Raise InputError, which names the sink, where these shards of it have kept nothing."""
    if any(shard.closed.counts.kept for shard in shards):
        return
    why = "; ".join(empty_sinks(dataset.state)) or "no record of this version was kept"
    raise InputError(f"{dataset.uri} holds no document for this format: {why}")


def stored_object_of(dataset: Dataset, shard: ClosedShard, role: str) -> StoredObject:
    """The object of this role of a shard. Raises FormatError where its ledger names none."""
    if (stored := shard.object(role)) is None:
        raise FormatError(f"{dataset.uri}: ledger entry {shard.number} names a shard without {role}; restore the entry")
    return stored


def schema_of(dataset: Dataset, shards: Iterable[ClosedShard]) -> pa.Schema:
    """The columns that these shards' tables of documents have. Raises InputError where one has two types."""
    found: dict[str, pa.DataType] = {}
    for shard in shards:
        for field in sidecar_schema(dataset.store, stored_object_of(dataset, shard, "documents").key):
            if found.setdefault(field.name, field.type) != field.type:
                raise InputError(
                    f"column {field.name!r} is {field.type} in one shard and {found[field.name]} in another"
                )
    return pa.schema([pa.field(name, kind) for name, kind in found.items()])


def read_sequences(dataset: Dataset, shard: ClosedShard) -> tuple[npt.NDArray[Any], int]:
    """`tokens` `[sequences, seq_len]` of one shard, and how many are of documents: without padding and repeated ones.

    Where a document was retracted there is padding.
    """
    tokens = stored_object_of(dataset, shard, "tokens")
    arrays = read_shard(dataset.store, tokens.key)
    hidden = np.isin(arrays["piece_document"], list(dataset.hidden_rows(shard)))
    gone, packed = np.flatnonzero(hidden), arrays["tokens"]
    own = arrays["piece_length"].astype(np.int64) - arrays.get("piece_repeated", 0)
    if len(gone):
        packed = packed.copy()
        names = ("piece_sequence", "piece_start", "piece_length")
        for sequence, start, length in zip(*(arrays[name][gone].tolist() for name in names), strict=True):
            packed[sequence, start : start + length] = dataset.describe().pad_id or 0
    return packed, int(own[~hidden].sum())


def read_documents(dataset: Dataset, shard: ClosedShard) -> ExportedDocuments:
    """The documents of one shard in the order of its table; padding, repeated tokens and retracted rows left out."""
    tokens, rows = (stored_object_of(dataset, shard, role) for role in ("tokens", "documents"))
    table = read_table(dataset.store, rows.key)
    arrays = read_shard(dataset.store, tokens.key)
    packed = arrays["tokens"]
    flat = packed.reshape(-1)
    starts = arrays["piece_sequence"].astype(np.int64) * packed.shape[1] + arrays["piece_start"]
    sizes = arrays["piece_length"].astype(np.int64)
    if "piece_repeated" in arrays:
        starts, sizes = starts + arrays["piece_repeated"], sizes - arrays["piece_repeated"]
    found = np.empty(int(sizes.sum()), packed.dtype)
    at = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        found[at : at + size] = flat[start : start + size]
        at += size
    if len(sizes) and int(arrays["piece_document"].max()) >= table.num_rows:
        raise FormatError(f"{dataset.uri}: {tokens.key} has documents that {rows.key} has no row of; restore both")
    lengths = np.zeros(table.num_rows, np.int64)
    np.add.at(lengths, arrays["piece_document"], sizes)
    shown = ~np.isin(np.arange(table.num_rows), list(dataset.hidden_rows(shard)))
    if not shown.all():
        table, found, lengths = table.filter(pa.array(shown)), found[np.repeat(shown, lengths)], lengths[shown]
    return ExportedDocuments(table, found, lengths)


#: How the folder ends in which that lies which is not all written yet; before it stand eight characters of its own.
_BEGUN = ".export"
#: What its writer holds in it as long as it lives.
_LOCK = "lock"


@contextmanager
def new_folder(place: str, noted: AbstractContextManager[None] | None = None) -> Iterator[pathlib.Path]:
    """A folder that appears under its name only when all of it is written.

    What is `noted` is entered before anything is written, and left when all is written or nothing is left. Raises
    InputError where one stands or another writer makes it, OSError.
    """
    target = pathlib.Path(folder_of(place))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{str(target)!r} exists: name a new folder, or remove it")
    disk.make_folder(target.parent)
    with disk.naming(target), _begun(target) as begun, noted or nullcontext():
        partial = begun / "export"
        try:
            partial.mkdir()
            yield partial
            partial.chmod(0o755)
            disk.sync_tree(partial)
            if target.exists():
                target.rmdir()
            disk.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _begun(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder beside a new one that nobody deletes meanwhile, and there is one at a time."""
    begun = pathlib.Path(tempfile.mkdtemp(_BEGUN, f".{target.name}.", target.parent))
    try:
        with _held(begun, target):
            drop_begun(target, begun)
            yield begun
    finally:
        shutil.rmtree(begun, ignore_errors=True)


@contextmanager
def _held(begun: pathlib.Path, target: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a begun folder. Raises InputError where another has it, OSError."""
    descriptor = os.open(begun / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"an export writes {str(target)!r}: try again when it has ended") from error
        yield
    finally:
        os.close(descriptor)


def drop_begun(target: pathlib.Path, mine: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Delete what writers of a new folder that were killed have left beside it; what of it cannot be deleted.

    Raises InputError for one that is alive.
    """
    stays: list[pathlib.Path] = []
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'?' * 8}{_BEGUN}"):
        if left == mine or left.is_symlink() or not left.is_dir():
            continue
        try:
            with _held(left, target):
                shutil.rmtree(left)
        except FileNotFoundError:
            continue
        except OSError:
            stays.append(left)
    return stays


def summary(
    kind: str, place: str, folder: pathlib.Path, *, documents: int = 0, sequences: int = 0, tokens: int = 0
) -> Exported:
    """What stands in the folder."""
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return Exported(kind, place, len(sizes), sum(sizes), documents, sequences, tokens)
