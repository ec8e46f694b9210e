"""The files of one version of a Delta or Iceberg table, read as Parquet.

The version is part of the pipeline, and so of the ledger; a run of a later one reads the files that are new. What
describes a table is read in a child with limits: half a megabyte of it unfolds to gigabytes, and may end a process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headrace.stages.runtime import InputError
from headrace.stages.sources.objects import to_path
from headrace.stages.sources.tables.columns import ParquetSource
from headrace.store import InvalidUri, StoreError, folder_of
from headrace.store.ledger import Fragment

#: What a table may ask of a reader that the files alone do not tell.
_UNREAD = ("deletionVectors", "columnMapping")
#: Properties of an Iceberg table by which PyIceberg imports code and runs it: to open files, and to name new ones.
_IO, PLACES = "py-io-impl", "write.py-location-provider.impl"


#: What a child may take to read what describes a table: memory beyond what its libraries map, processor time, and the
#: time that is waited for it; and the bytes of its answer.
TABLE_MEMORY_BYTES, TABLE_CPU_S, TABLE_S_MAX = 2 << 30, 300, 900.0
ANSWER_BYTES_MAX = 256 << 20
_START = "from headrace.stages.sources.tables.lakehouse import answer; answer()"
#: Threads of the child's libraries: each takes address space.
_FEW = {"TOKIO_WORKER_THREADS": "2", "RAYON_NUM_THREADS": "2", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def library(name: str) -> Any:
    """A library of the extra `tables`. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f'{package} is not installed: pip install "headrace[tables]"') from error


def folder_of_table(given: str) -> str:
    """The absolute path of a table on this host. Raises InputError for another place."""
    try:
        return folder_of(given)
    except InvalidUri as error:
        raise InputError(
            f"table {given!r}: only tables in folders are read; copy it, or read its Parquet files"
        ) from error


def newest_delta(folder: str) -> int:
    """The newest version of a Delta table. Raises InputError."""
    return int(_ask("delta_facts", folder, None)["version"])


def _ask(what: str, *given: Any) -> Any:
    """What the child says. Raises InputError, its own too."""
    place = str(given[0])
    command = [sys.executable, "-P", "-c", _START]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **_FEW}
    ) as child:
        late = threading.Timer(TABLE_S_MAX, child.kill)
        late.start()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError), child.stdin as asked:
                asked.write(json.dumps([what, given, TABLE_MEMORY_BYTES]).encode())
            data = child.stdout.read(ANSWER_BYTES_MAX + 1)
        finally:
            late.cancel()
            child.kill()
    if len(data) > ANSWER_BYTES_MAX:
        raise InputError(f"{place}: the names of the table's files take more than {ANSWER_BYTES_MAX >> 20} MiB")
    if not data:
        raise InputError(
            f"{place}: the table cannot be read: what describes it takes more than {TABLE_MEMORY_BYTES >> 20} MiB of "
            f"memory or {TABLE_CPU_S} s of processor time, or ends the process that reads it; rewrite its log"
        )
    told = json.loads(data)
    if "error" in told:
        raise InputError(told["error"])
    return told["found"]


def answer() -> None:
    """What the child does: a question on its standard input, its answer as JSON on its standard output."""
    what, given, memory_bytes = json.load(sys.stdin)
    # libraries say things there, too
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        told = {"found": _found(what, given, memory_bytes)}
    except InputError as error:
        told = {"error": str(error)}
    with os.fdopen(out, "wb") as file:
        file.write(json.dumps(told).encode())
    os._exit(0)


def _found(what: str, given: Sequence[Any], memory_bytes: int) -> Any:
    """The answer to a question, with no more of this host than the child may take. Raises InputError."""
    library("deltalake" if what == "delta_facts" else "pyiceberg.catalog.sql")
    mapped = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (TABLE_CPU_S, TABLE_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with total(str(given[0])):
        try:
            return _ANSWERS[what](*given)
        except ImportError as error:
            # It is installed: there is no room for it.
            raise MemoryError from error


def delta_facts(folder: str, version: int | None) -> dict[str, Any]:
    """The number of a version of a Delta table, the addresses of its files, and what they do not tell."""
    delta, of = library("deltalake"), "" if version is None else f" of version {version}"
    try:
        table = delta.DeltaTable(folder, version=version)
        return {
            "version": int(table.version()),
            "features": sorted(set(table.protocol().reader_features or ())),
            "columns": list(table.metadata().partition_columns),
            "files": list(table.file_uris()),
        }
    except (delta.exceptions.DeltaError, OSError, ValueError) as error:
        raise InputError(f"{folder} has no Delta table{of}: {error}") from error


def open_catalog(catalog: str) -> Any:
    """The Iceberg catalog in a folder, in SQLite, or of a name that PyIceberg's settings have. Raises InputError.

    No code is run that a table names.
    """
    if "/" not in catalog and not os.path.isdir(catalog):
        try:
            return _without_code(library("pyiceberg.catalog").load_catalog(catalog))
        except ValueError as error:
            raise InputError(
                f"{catalog!r} is no folder, and no catalog that PyIceberg can load ({str(error)[:200]}): set one up in "
                f"its settings, or name a folder, as ./{catalog}"
            ) from error
    folder = folder_of_table(catalog)
    os.makedirs(folder, exist_ok=True)
    return _table_files().FolderCatalog(folder)


def _table_files() -> Any:
    library("pyiceberg.catalog.sql")
    return importlib.import_module("headrace.stages.sources.tables.table_files")


def _without_code(catalog: Any) -> Any:
    """The catalog, which opens no table by code that its settings do not name."""
    made = catalog._load_file_io  # which PyIceberg calls with the properties of each table

    def load(properties: Mapping[str, str] = MappingProxyType({}), location: str | None = None) -> Any:
        refuse_code(properties, _IO, catalog.properties.get(_IO))
        return made(properties, location)

    catalog._load_file_io = load
    return catalog


def refuse_code(properties: Mapping[str, str], word: str = PLACES, own: str | None = None) -> None:
    """Raise InputError for a table with a property that names code, unless one's own settings name it, too."""
    said = properties.get(word)
    if said is not None and said != own:
        raise InputError(f"the table's property {word} names code, {said[:80]!r}, which is not run: remove it")


def find_iceberg(catalog: str, name: str, snapshot: int | None) -> dict[str, Any]:
    """Where a snapshot of a table lies, the newest by default: as parameters of an IcebergSource. Raises InputError."""
    library("pyiceberg.catalog.sql")
    if "/" in catalog and not os.path.isdir(folder_of_table(catalog)):
        raise InputError(f"{catalog}: there is no such folder, and so no catalog with table {name!r}")
    found: dict[str, Any] = _ask("iceberg_facts", catalog, name, snapshot)
    return found


def iceberg_facts(catalog: str, name: str, snapshot: int | None) -> dict[str, Any]:
    """See `find_iceberg`."""
    errors = library("pyiceberg.exceptions")
    with contextlib.closing(open_catalog(catalog)) as opened, total(catalog):
        try:
            table = opened.load_table(tuple(name.split(".")))
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError) as error:
            raise InputError(f"{catalog} has no table {name!r}") from error
        newest = table.current_snapshot()
        if snapshot is None:
            if newest is None:
                raise InputError(f"table {name!r} has no snapshot yet")
            snapshot = newest.snapshot_id
        folder = folder_of_table(table.location())
        if isinstance(opened, _table_files().FolderCatalog):
            _table_files().FolderIO.below(folder_of_table(catalog)).new_input(folder)
    return {"input": [folder], "metadata": table.metadata_location, "snapshot": snapshot}


@contextlib.contextmanager
def total(place: str) -> Iterator[None]:
    """Whatever a library raises for a table of others is an InputError; its own are named as they are."""
    try:
        yield
    except (InputError, StoreError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"{place}: the table cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


def check_delta(folder: str) -> None:
    """Raise InputError for a Delta table that takes more to describe than a child may."""
    _ask("delta_facts", folder, None)


def check_iceberg(catalog: str, name: str) -> None:
    """Raise InputError for an Iceberg table that takes more to describe than a child may."""
    _ask("iceberg_size", catalog, name)


def iceberg_size(catalog: str, name: str) -> int:
    """The files of a table's newest snapshot; 0 for no table. Raises InputError."""
    with contextlib.closing(open_catalog(catalog)) as opened, total(catalog):
        try:
            table = opened.load_table(tuple(name.split(".")))
        except (library("pyiceberg.exceptions").NoSuchTableError, library("pyiceberg.exceptions").NoSuchNamespaceError):
            return 0
        return sum(1 for _ in table.scan().plan_files())


def iceberg_files(metadata_file: str, folder: str, snapshot: int) -> list[str]:
    """The paths of a snapshot's files, by a metadata file that has it. Raises InputError."""
    files, tables = _table_files().FolderIO.below(folder), library("pyiceberg.table")
    with total(metadata_file):
        metadata = library("pyiceberg.serializers").FromInputFile.table_metadata(files.new_input(metadata_file))
        known = library("pyiceberg.catalog.noop").NoopCatalog("headrace")
        table = tables.StaticTable(("headrace",), metadata, metadata_file, files, known)
        if metadata.snapshot_by_id(snapshot) is None:
            raise InputError(f"{metadata_file} has no snapshot {snapshot}")
        tasks = list(table.scan(snapshot_id=snapshot).plan_files())
        if any(task.delete_files for task in tasks):
            raise InputError(f"{metadata_file}: the snapshot has delete files; rewrite the table's data files first")
        return [folder_of_table(task.file.file_path) for task in tasks]


_ANSWERS: dict[str, Callable[..., Any]] = {
    "delta_facts": delta_facts,
    "iceberg_facts": iceberg_facts,
    "iceberg_files": iceberg_files,
    "iceberg_size": iceberg_size,
}


class TableSource(ParquetSource):
    """Reads the Parquet files that a version of a table names, and no others that lie there."""

    def __init__(self, name: str, input: Sequence[str], **options: Any) -> None:  # noqa: A002
        super().__init__(name, input, **options)
        self._table_folder = input[0]

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

    def all_below(self) -> str:
        """See `Source.all_below`."""
        return pathlib.Path(self._table_folder).as_uri() + "/"

    def _files(self) -> Sequence[str]:
        raise NotImplementedError


class DeltaSource(TableSource):
    """A version of a Delta table. `version` counts from 0."""

    def __init__(self, name: str, input: Sequence[str], *, version: int, **options: Any) -> None:  # noqa: A002
        super().__init__(name, input, **options)
        self._table_version = version

    def _files(self) -> Sequence[str]:
        told = _ask("delta_facts", self._table_folder, self._table_version)
        if strange := sorted(set(told["features"]).intersection(_UNREAD)):
            raise InputError(f"{self._table_folder}: the table has {', '.join(strange)}, which its files do not tell")
        if columns := told["columns"]:
            raise InputError(
                f"{self._table_folder}: the table is partitioned by {', '.join(columns)}, which no file holds"
            )
        # escaped, with a scheme or without one
        return [folder_of_table(f"file://{uri.removeprefix('file://')}") for uri in told["files"]]


class IcebergSource(TableSource):
    """A snapshot of an Iceberg table, by a metadata file that has it."""

    def __init__(self, name: str, input: Sequence[str], *, metadata: str, snapshot: int, **options: Any) -> None:  # noqa: A002
        super().__init__(name, input, **options)
        self._table_metadata, self._table_snapshot = metadata, snapshot

    def _files(self) -> Sequence[str]:
        found: list[str] = _ask("iceberg_files", self._table_metadata, self._table_folder, self._table_snapshot)
        return found
