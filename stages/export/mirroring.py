"""A dataset's versions as those of a table: Delta or Iceberg, one commit a version, exactly once through any death.

A commit holds the entry that published its version in the table's own log (a transaction id, a property), so a mirror
that was killed goes on behind it. The table's files are its own: a file a shard with the documents that the version
shows, named by what it holds, so writing one again does no harm. A retraction, a rollback or a purge removes files and
adds others in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import xxhash

from headrace.stages.runtime import InputError
from headrace.stages.sources.tables import total
from headrace.store.datasets import Dataset, ShardRecord, main_object
from headrace.store.history import read_tags, stands_for
from headrace.store.ledger import main_sink
from headrace.store.shards import read_row_groups, sidecar_schema


@dataclass(frozen=True, slots=True)
class MirroredVersion:
    """One version as a table is to show it."""

    version: int
    #: The entry that published it.
    entry: int
    #: Unix seconds; 0: unknown.
    at: int
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table: some documents of one shard."""

    name: str
    dataset: Dataset
    shard: ShardRecord
    rows: int

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Its rows, a row group of the shard at a time; null in columns that the shard has not. Raises StoreError."""
        documents = self.shard.object("documents")
        assert documents is not None
        known = set(sidecar_schema(self.dataset.store, documents.key).names)
        hidden, at = _hidden(self.dataset, self.shard), 0
        for table in read_row_groups(
            self.dataset.store, documents.key, [name for name in schema.names if name in known]
        ):
            shown = np.array([row not in hidden for row in range(at, at + table.num_rows)], np.bool_)
            at += table.num_rows
            columns = [
                table.column(field.name).cast(field.type)
                if field.name in known
                else pa.nulls(table.num_rows, field.type)
                for field in schema
            ]
            yield pa.Table.from_arrays(columns, schema=schema).filter(pa.array(shown.tolist(), pa.bool_()))


class MirrorTable(Protocol):
    """A table of one format."""

    #: How people named it.
    place: str

    def position(self) -> int:
        """The entry of the last version that is committed; -1: none. Raises InputError for another's table."""
        ...

    def files(self) -> frozenset[str]:
        """The names of its files now."""
        ...

    def commit(
        self, version: MirroredVersion, schema: pa.Schema, add: Sequence[TableFile], drop: Sequence[str]
    ) -> None:
        """Write files, and add and drop them in one version of the table."""
        ...

    def finish(self, versions: Sequence[MirroredVersion]) -> None:
        """See to what a death may have left behind a commit."""
        ...

    def close(self) -> None:
        """Let go of what it holds open: nothing, unless it says otherwise."""
        return


def mirror(dataset: Dataset, table: MirrorTable) -> list[int]:
    """Commit each published version that the table has not, and close it; their numbers.

    Raises InputError, StoreError.
    """
    with closing(table):
        return _mirrored(dataset, table)


def _mirrored(dataset: Dataset, table: MirrorTable) -> list[int]:
    known = {name: tag.version for name, tag in read_tags(dataset.store).items() if stands_for(dataset.state, tag)}
    versions = [
        MirroredVersion(
            number, shown.number, shown.at, tuple(sorted(name for name, tagged in known.items() if tagged == number))
        )
        for number, shown in sorted(dataset.state.published.items())
    ]
    if not versions:
        raise InputError(f"{dataset.uri} has no version yet that a table could show: run it to its end")
    with total(table.place):
        done, made = table.position(), list[int]()
        for version in versions:
            if version.entry <= done:
                continue
            shown = {item.name: item for item in _files_of(dataset.of_version(version.version))}
            standing = table.files()
            add = [item for name, item in shown.items() if name not in standing]
            table.commit(version, _schema_of(list(shown.values())), add, sorted(standing - shown.keys()))
            made.append(version.version)
        table.finish(versions)
        return made


def _files_of(dataset: Dataset) -> Iterator[TableFile]:
    """The files of a version: of the main sink's shards those with a document that is shown."""
    sink = main_sink(dataset.state.counts)
    for shard in dataset.shards:
        documents = shard.object("documents")
        if shard.closed.sink != sink or documents is None:
            continue
        hidden = _hidden(dataset, shard)
        rows = sum(table.num_rows for table in read_row_groups(dataset.store, documents.key, ["row"])) - len(hidden)
        if rows:
            digest = documents.key.rpartition("/")[2].partition(".")[0]
            without = xxhash.xxh3_64_hexdigest(repr(sorted(hidden)).encode()) if hidden else ""
            yield TableFile(f"{digest}{'-' + without if without else ''}.parquet", dataset, shard, rows)


def _hidden(dataset: Dataset, shard: ShardRecord) -> frozenset[int]:
    main = main_object(shard.closed)
    return frozenset() if main is None else dataset.retracted(main.key)


def _schema_of(files: Sequence[TableFile]) -> pa.Schema:
    """The columns of all files. Raises InputError where one has two types."""
    found: dict[str, pa.DataType] = {}
    for item in files:
        documents = item.shard.object("documents")
        assert documents is not None
        for field in sidecar_schema(item.dataset.store, documents.key):
            if found.setdefault(field.name, field.type) != field.type:
                raise InputError(
                    f"column {field.name!r} is {field.type} in one shard and {found[field.name]} in another"
                )
    return pa.schema([pa.field(name, kind) for name, kind in found.items()])


def properties_of(version: MirroredVersion, origin: str) -> Mapping[str, str]:
    """What a commit says of its version."""
    return {
        "headrace.origin": origin,
        "headrace.entry": str(version.entry),
        "headrace.version": str(version.version),
        "headrace.tags": ",".join(version.tags),
    }
