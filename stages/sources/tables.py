"""The files of one version of a Delta or Iceberg table, read as Parquet.

The version is part of the pipeline, and so of the ledger; a run of a later one reads the files that are new.
"""

from __future__ import annotations

import importlib
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.stages.runtime import InputError
from headrace.stages.sources.objects import to_path
from headrace.stages.sources.parquet import ParquetSource
from headrace.store.ledger import Fragment

#: What a table may ask of a reader that the files alone do not tell.
_UNREAD = ("deletionVectors", "columnMapping")


def library(name: str) -> Any:
    """A library of the extra `tables`. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f'{package} is not installed: pip install "headrace[tables]"') from error


def folder_of_table(given: str) -> str:
    """The absolute path of a table on this host. Raises InputError for another place."""
    path = urllib.parse.unquote(given.removeprefix("file://")) if given.startswith("file://") else given
    if "://" in path:
        raise InputError(f"table {given!r}: only tables in folders are read; copy it, or read its Parquet files")
    return os.path.abspath(os.path.expanduser(path))


def newest_delta(folder: str) -> int:
    """The newest version of a Delta table. Raises InputError."""
    return int(_delta(folder, None).version())


def _delta(folder: str, version: int | None) -> Any:
    delta = library("deltalake")
    try:
        return delta.DeltaTable(folder, version=version)
    except (delta.exceptions.DeltaError, OSError, ValueError) as error:
        raise InputError(f"{folder} has no Delta table of version {version}: {error}") from error


def open_catalog(catalog: str) -> Any:
    """The Iceberg catalog in a folder, in SQLite, or of a name that PyIceberg's settings have. Raises InputError."""
    if "/" not in catalog and not os.path.isdir(catalog):
        return library("pyiceberg.catalog").load_catalog(catalog)
    folder = folder_of_table(catalog)
    os.makedirs(folder, exist_ok=True)
    kind = library("pyiceberg.catalog.sql").SqlCatalog
    return kind("headrace", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def find_iceberg(catalog: str, name: str, snapshot: int | None) -> dict[str, Any]:
    """Where a snapshot of a table lies, the newest by default: as parameters of an IcebergSource. Raises InputError."""
    errors = library("pyiceberg.exceptions")
    try:
        table = open_catalog(catalog).load_table(tuple(name.split(".")))
    except (errors.NoSuchTableError, errors.NoSuchNamespaceError) as error:
        raise InputError(f"{catalog} has no table {name!r}") from error
    newest = table.current_snapshot()
    if snapshot is None:
        if newest is None:
            raise InputError(f"table {name!r} has no snapshot yet")
        snapshot = newest.snapshot_id
    return {
        "input": [folder_of_table(table.location())],
        "metadata": table.metadata_location,
        "snapshot": snapshot,
    }


class TableSource(ParquetSource):
    """Reads the Parquet files that a version of a table names, and no others that lie there."""

    def list(self) -> Iterator[Fragment | None]:
        """See `Source.list`. Raises InputError where a file of the table is not below its folder."""
        wanted = {os.path.normpath(path) for path in self._files()}
        for found in self.inputs:
            path = os.path.normpath(to_path(found.uri))
            if path in wanted:
                wanted.discard(path)
                yield from self.fragments(found)
        if wanted:
            raise InputError(f"{len(wanted)} files of the table are not below its folder, such as {min(wanted)!r}")

    def _files(self) -> Sequence[str]:
        raise NotImplementedError


class DeltaSource(TableSource):
    """A version of a Delta table. `version` counts from 0."""

    def __init__(self, name: str, input: Sequence[str], *, version: int, **options: Any) -> None:  # noqa: A002
        super().__init__(name, input, **options)
        self._table_folder, self._table_version = input[0], version

    def _files(self) -> Sequence[str]:
        table = _delta(self._table_folder, self._table_version)
        features = set(table.protocol().reader_features or ())
        if strange := sorted(features.intersection(_UNREAD)):
            raise InputError(f"{self._table_folder}: the table has {', '.join(strange)}, which its files do not tell")
        if columns := table.metadata().partition_columns:
            raise InputError(
                f"{self._table_folder}: the table is partitioned by {', '.join(columns)}, which no file holds"
            )
        # escaped, with a scheme or without one
        return [folder_of_table(f"file://{uri.removeprefix('file://')}") for uri in table.file_uris()]


class IcebergSource(TableSource):
    """A snapshot of an Iceberg table, by a metadata file that has it."""

    def __init__(self, name: str, input: Sequence[str], *, metadata: str, snapshot: int, **options: Any) -> None:  # noqa: A002
        super().__init__(name, input, **options)
        self._table_metadata, self._table_snapshot = metadata, snapshot

    def _files(self) -> Sequence[str]:
        table = library("pyiceberg.table").StaticTable.from_metadata(self._table_metadata)
        if table.metadata.snapshot_by_id(self._table_snapshot) is None:
            raise InputError(f"{self._table_metadata} has no snapshot {self._table_snapshot}")
        tasks = list(table.scan(snapshot_id=self._table_snapshot).plan_files())
        if any(task.delete_files for task in tasks):
            raise InputError(
                f"{self._table_metadata}: the snapshot has delete files; rewrite the table's data files first"
            )
        return [folder_of_table(task.file.file_path) for task in tasks]
