"""A dataset's versions as those of a table: Delta or Iceberg, one commit a version, exactly once through any death.

A commit holds the entry that published its version in the table's own log (a transaction id, a property), so a mirror
that was killed goes on behind it. The table's files are its own: a file a shard with the documents that the version
shows, named by what it holds, so writing one again does no harm. A retraction, a rollback or a purge removes files
and adds others in one commit. Each of the two formats is written by its own library.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.stages.export.source import schema_of, stored_object_of
from headrace.stages.runtime import InputError
from headrace.stages.sources.tables import check_delta, check_iceberg, library, open_catalog, refuse_code, total
from headrace.store import folder_of
from headrace.store.datasets import Dataset, with_schema
from headrace.store.files import disk
from headrace.store.history import read_tags, stands_for
from headrace.store.ledger import ClosedShard, main_sink
from headrace.store.shards import documents_schema, read_row_groups, sidecar_schema


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
    shard: ClosedShard
    rows: int

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Its rows, a row group of the shard at a time; null in columns that the shard has not. Raises StoreError."""
        documents = stored_object_of(self.dataset, self.shard, "documents")
        known = set(sidecar_schema(self.dataset.store, documents.key).names)
        hidden, at = self.dataset.hidden_rows(self.shard), 0
        for table in read_row_groups(
            self.dataset.store, documents.key, [name for name in schema.names if name in known]
        ):
            shown = np.array([row not in hidden for row in range(at, at + table.num_rows)], np.bool_)
            at += table.num_rows
            yield with_schema(table, schema).filter(pa.array(shown.tolist(), pa.bool_()))


class MirrorTable(Protocol):
    """A table of one format."""

    #: How people named it.
    place: str

    def position(self) -> int:
        """The entry of the last version that is committed; -1: none. Raises InputError for another's table."""
        ...

    def check(self, versions: Sequence[MirroredVersion]) -> None:
        """Raise InputError for tags that it cannot hold: it can hold any, unless it says otherwise."""
        del versions

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
        table.check(versions)
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
        hidden = dataset.hidden_rows(shard)
        rows = sum(table.num_rows for table in read_row_groups(dataset.store, documents.key, ["row"])) - len(hidden)
        if rows:
            digest = documents.key.rpartition("/")[2].partition(".")[0]
            without = xxhash.xxh3_64_hexdigest(repr(sorted(hidden)).encode()) if hidden else ""
            yield TableFile(f"{digest}{'-' + without if without else ''}.parquet", dataset, shard, rows)


def _schema_of(files: Sequence[TableFile]) -> pa.Schema:
    """The columns of all files; of none, those of documents. Raises InputError where one has two types."""
    return schema_of(files[0].dataset, [item.shard for item in files]) if files else documents_schema()


def properties_of(version: MirroredVersion, origin: str) -> Mapping[str, str]:
    """What a commit says of its version."""
    return {
        "headrace.origin": origin,
        "headrace.entry": str(version.entry),
        "headrace.version": str(version.version),
        "headrace.tags": ",".join(version.tags),
    }


_DATA = "data"


class DeltaMirror(MirrorTable):
    """A Delta table in a folder. A version's commit has a transaction id: the dataset's origin, and the entry."""

    def __init__(self, place: str, origin: str) -> None:
        self._delta, self._actions = library("deltalake"), library("deltalake.transaction")
        self._folder = pathlib.Path(folder_of(place))
        self._origin, self.place = origin, place

    def _table(self) -> Any:
        place = str(self._folder)
        return self._delta.DeltaTable(place) if self._delta.DeltaTable.is_deltatable(place) else None

    def position(self) -> int:
        """See `MirrorTable`."""
        if (self._folder / "_delta_log").exists():
            check_delta(str(self._folder))
        table = self._table()
        if table is None:
            if self._folder.exists() and any(item.name != _DATA for item in self._folder.iterdir()):
                raise InputError(f"{self._folder} is neither empty nor a mirror of this dataset: name another folder")
            return -1
        found = table.transaction_version(self._origin)
        if found is None:
            raise InputError(f"{self._folder} is no mirror of this dataset: name another folder")
        return int(found)

    def files(self) -> frozenset[str]:
        """See `MirrorTable`."""
        table = self._table()
        return frozenset(() if table is None else (os.path.basename(uri) for uri in table.file_uris()))

    def commit(
        self, version: MirroredVersion, schema: pa.Schema, add: Sequence[TableFile], drop: Sequence[str]
    ) -> None:
        """See `MirrorTable`."""
        now, table = int(time.time() * 1000), self._table()
        disk.make_folder(self._folder / _DATA)
        if (self._folder / _DATA).is_symlink():
            raise InputError(f"{self._folder / _DATA} is a link, through which nothing is written: remove it")
        actions: list[Any] = []
        for item in add:
            size, stats = self._write(item, schema), json.dumps({"numRecords": item.rows})
            actions.append(self._actions.AddAction(f"{_DATA}/{item.name}", size, {}, now, True, stats))
        properties = self._delta.CommitProperties(
            custom_metadata=dict(properties_of(version, self._origin)),
            max_commit_retries=0,
            app_transactions=[self._delta.Transaction(self._origin, version.entry)],
        )
        kind = self._delta.Schema.from_arrow(schema)
        if table is None:
            self._actions.create_table_with_add_actions(
                str(self._folder), kind, actions, mode="error", commit_properties=properties
            )
            return
        fresh = [field for field in kind.fields if field.name not in {known.name for known in table.schema().fields}]
        if fresh:
            table.alter.add_columns(fresh)
            table = self._table()
        actions += [self._actions.RemoveAction(f"{_DATA}/{name}", True, now) for name in drop]
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)

    def finish(self, versions: Sequence[MirroredVersion]) -> None:
        """Nothing stands behind a commit."""

    def _write(self, item: TableFile, schema: pa.Schema) -> int:
        path = self._folder / _DATA / item.name
        draft = path.with_name(f".{item.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # and through no link
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for table in item.tables(schema):
                    writer.write_table(table)
            file.flush()
            disk.sync(file.fileno())
        disk.rename(draft, path)
        return path.stat().st_size


#: The names that an Iceberg table itself gives: that of its branch, and those of the snapshots of versions.
_OWN_NAME = re.compile(r"main|v[1-9][0-9]*")


class IcebergMirror(MirrorTable):
    """An Iceberg table of a catalog: a folder with one in SQLite, or a name that PyIceberg's own settings know."""

    def __init__(self, catalog: str, name: str, origin: str) -> None:
        self._io = library("pyiceberg.io.pyarrow")
        self._errors = library("pyiceberg.exceptions")
        self._origin, self._name = origin, tuple(name.split("."))
        if len(self._name) < 2 or not all(self._name):
            raise InputError(f"table {name!r}: give a namespace and a name, such as corpus.plain")
        self.place = catalog
        check_iceberg(catalog, name)
        self._catalog = open_catalog(catalog)

    def _table(self) -> Any:
        try:
            table = self._catalog.load_table(self._name)
        except self._errors.NoSuchTableError:
            return None
        refuse_code(table.properties)
        return table

    def close(self) -> None:
        """See `MirrorTable`."""
        self._catalog.close()

    def check(self, versions: Sequence[MirroredVersion]) -> None:
        """See `MirrorTable`."""
        for version in versions:
            for tag in version.tags:
                if _OWN_NAME.fullmatch(tag) and tag != f"v{version.version}":
                    raise InputError(
                        f"version {version.version} has the tag {tag!r}, which in an Iceberg table is the name of "
                        f"another: give the version another tag, and delete {tag!r} (`headrace dataset tag --delete`)"
                    )

    def position(self) -> int:
        """See `MirrorTable`."""
        table = self._table()
        if table is None:
            return -1
        mine = self._snapshots(table)
        if not mine and (table.snapshots() or table.properties.get("headrace.origin") != self._origin):
            raise InputError(f"table {'.'.join(self._name)} is no mirror of this dataset: name another with --table")
        return max(mine, default=-1)

    def files(self) -> frozenset[str]:
        """See `MirrorTable`."""
        table = self._table()
        return frozenset(() if table is None else self._data_files(table))

    def commit(
        self, version: MirroredVersion, schema: pa.Schema, add: Sequence[TableFile], drop: Sequence[str]
    ) -> None:
        """See `MirrorTable`."""
        table = self._table()
        if table is None:
            self._catalog.create_namespace_if_not_exists(self._name[:-1])
            table = self._catalog.create_table(self._name, schema, properties={"headrace.origin": self._origin})
        if set(schema.names) - {field.name for field in table.schema().fields}:
            with table.update_schema() as update:
                update.union_by_name(schema)
            table = self._table()
        # The table gives columns their numbers: the files have these.
        numbered = self._io.schema_to_pyarrow(table.schema())
        standing = self._data_files(table) if drop else {}
        with table.transaction() as transaction:
            properties = dict(properties_of(version, self._origin))
            with transaction.update_snapshot(snapshot_properties=properties).overwrite() as update:
                for item in add:
                    path = f"{table.location()}/{_DATA}/{item.name}"
                    self._write(table, path, item, numbered)
                    update.append_data_file(
                        self._io.parquet_file_to_data_file(table.io, transaction.table_metadata, path)
                    )
                for name in drop:
                    update.delete_data_file(standing[name])

    def finish(self, versions: Sequence[MirroredVersion]) -> None:
        """Set the tags: `v3` of version 3, and those of people; a commit and its tag are two changes of a table."""
        table = self._table()
        if table is None:
            return
        entries, refs = self._snapshots(table), table.refs()
        for version in versions:
            snapshot = entries.get(version.entry)
            for tag in (f"v{version.version}", *version.tags) if snapshot is not None else ():
                if tag not in refs or refs[tag].snapshot_id != snapshot:
                    table.manage_snapshots().create_tag(snapshot, tag).commit()

    def _snapshots(self, table: Any) -> dict[int, int]:
        """The snapshots of this dataset's versions, by entry."""
        found: dict[int, int] = {}
        for snapshot in table.snapshots():
            said = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if said.get("headrace.origin") == self._origin:
                found[int(said["headrace.entry"])] = snapshot.snapshot_id
        return found

    def _data_files(self, table: Any) -> dict[str, Any]:
        return {task.file.file_path.rpartition("/")[2]: task.file for task in table.scan().plan_files()}

    def _write(self, table: Any, path: str, item: TableFile, schema: pa.Schema) -> None:
        with (
            table.io.new_output(path).create(overwrite=True) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for rows in item.tables(schema):
                writer.write_table(rows)
