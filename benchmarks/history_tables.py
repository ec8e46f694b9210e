"""What `benchmarks/history.py` asks of mirrors: VERSIONS versions, a death at each, and four readers that agree.

A dataset of VERSIONS versions, of which every fifth takes documents down, is mirrored as a Delta and an Iceberg table
by processes that are killed (SIGKILL) in turn behind a written file, before a commit and behind it. Then a version is
counted by deltalake or pyiceberg, by polars, and by DuckDB (which reads the table's files by Arrow: its extensions are
not installed), and held against the documents that the dataset shows. Limit: all equal, and no version twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.stages.export import DeltaMirror, IcebergMirror, mirror
from headrace.store.datasets import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger import (
    Closed,
    Counts,
    Entry,
    EpochRaised,
    Fragment,
    FragmentsListed,
    Led,
    Log,
    PipelineApplied,
    Range,
    Retracted,
    StoredObject,
    VersionPublished,
    encode_entry,
)  # fmt: skip
from headrace.store.shards import build_tokens, content_hash, documents_schema, table_to_parquet

TABLE_VERSIONS, SHARD_DOCUMENTS = 20, 50
MOMENTS = ("behind a file", "before a commit", "behind a commit")


def write(folder: Path) -> None:
    """The dataset: a shard more in each version; every fifth takes two documents of an earlier shard down."""
    store = FileStore(folder)
    log, keys = Log(store), list[str]()
    fragment = Fragment.named("read", "s3://lake/a.jsonl", "v", start=0, end=-1, reader="jsonl", size=1)
    first: tuple[Any, ...] = (Led(1, {"host": "simulated"}), PipelineApplied("a" * 16, {"stages": []}), EpochRaised(""))
    log.append(0, encode_entry(Entry(1, (*first, FragmentsListed((fragment,))))))
    for version in range(1, TABLE_VERSIONS + 1):
        rows = np.arange((version - 1) * SHARD_DOCUMENTS, version * SHARD_DOCUMENTS)
        built = build_tokens(
            np.full(3 * len(rows), version, np.uint16),
            [3] * len(rows),
            seq_len=16,
            dtype=np.uint16,
            pad_id=0,
            metadata={},
        )
        facts = {"source": fragment.uri, "fragment": fragment.id.hex(), "tokens": 3}
        columns = {name: pa.array([value] * len(rows)) for name, value in facts.items()}
        columns |= {"id": pa.array([str(row) for row in rows]), "row": pa.array(rows)}
        schema = documents_schema()
        table = pa.table({f.name: columns.get(f.name, pa.nulls(len(rows), f.type)) for f in schema}, schema=schema)
        objects = tuple(
            stored(store, role, suffix, parts)
            for role, suffix, parts in (
                ("tokens", ".safetensors", built.parts),
                ("documents", ".documents.parquet", [table_to_parquet(table)]),
            )
        )
        keys.append(objects[0].key)
        closed = Closed(
            "write", "a" * 16, 0, (Range(fragment.id, int(rows[0]), len(rows)),), objects,
            Counts(kept=len(rows), tokens=3 * len(rows)),
        )  # fmt: skip
        down = () if version % 5 else (Retracted(version, ((keys[version // 5 - 1], (0, 7)),), ()),)
        log.append(version, encode_entry(Entry(1, (closed, *down, VersionPublished(version, "completed")))))


def stored(store: FileStore, role: str, suffix: str, parts: list[Any]) -> StoredObject:
    digest = content_hash(parts)
    key = f"shards/1/{digest}{suffix}"
    store.create(key, parts)
    return StoredObject(role, key, f"xxh3-128:{digest}", sum(memoryview(part).nbytes for part in parts))


def opened(kind: str, place: Path, origin: str) -> Any:
    return DeltaMirror(str(place), origin) if kind == "delta" else IcebergMirror(str(place), "c.plain", origin)


def die(folder: str, place: str, kind: str, moment: str) -> None:
    """Mirror, and be killed at a moment of the first version that is made."""
    dataset = Dataset.open(folder)
    table = opened(kind, Path(place), dataset.state.origin)
    commit, write_file, created = table.commit, table._write, "create_write_transaction"

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "behind a commit":
        table.commit = lambda *given: (commit(*given), killed())
    elif moment == "behind a file":
        table._write = lambda *given: (write_file(*given), killed())
    elif kind == "delta":
        setattr(table._delta.DeltaTable, created, killed)
        table._actions = type("Actions", (), {**vars(table._actions), "create_table_with_add_actions": killed})
    else:
        type(table._catalog).commit_table = killed
    mirror(dataset, table)


def counts(kind: str, place: Path) -> dict[str, list[int]]:
    """Documents of each version of a table, by reader."""
    import duckdb
    import polars as pl

    found: dict[str, list[int]] = {"library": [], "polars": [], "duckdb": []}
    if kind == "delta":
        from deltalake import DeltaTable

        newest = DeltaTable(str(place)).version()
        for version in range(newest + 1):
            data = DeltaTable(str(place), version=version).to_pyarrow_dataset()
            found["library"].append(data.count_rows())
            found["polars"].append(pl.read_delta(str(place), version=version).height)
            found["duckdb"].append(rows_of(duckdb, data))
        return found
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("headrace", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    table = catalog.load_table(("c", "plain"))
    for snapshot in table.snapshots():
        data = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        found["library"].append(data.num_rows)
        found["polars"].append(pl.scan_iceberg(table, snapshot_id=snapshot.snapshot_id).collect().height)
        found["duckdb"].append(rows_of(duckdb, data))
    return found


def rows_of(duckdb: Any, data: object) -> int:
    return int(duckdb.connect().from_arrow(data).aggregate("count(*)").fetchall()[0][0])


def measure(place: Path) -> dict[str, object]:
    """Deaths, versions and whether all readers agree."""
    warnings.simplefilter("ignore")
    write(place / "dataset")
    dataset = Dataset.open(str(place / "dataset"))
    gone = dict.fromkeys(range(TABLE_VERSIONS // 5), 2)
    # What is taken down is shown by no version.
    shown = [
        sum(SHARD_DOCUMENTS - gone.get(shard, 0) for shard in range(version))
        for version in range(1, TABLE_VERSIONS + 1)
    ]
    deaths, wrong = 0, list[str]()
    for kind in ("delta", "iceberg"):
        for version in range(TABLE_VERSIONS):
            for moment in MOMENTS if version < TABLE_VERSIONS - 1 else ():
                given = [str(place / "dataset"), str(place / kind), kind, moment]
                done = subprocess.run([sys.executable, __file__, *given], check=False, capture_output=True, timeout=120)
                if done.returncode != -signal.SIGKILL:
                    raise SystemExit(f"{kind}, {moment}: {done.stderr.decode()[-2000:]}")
                deaths += 1
        mirror(dataset, opened(kind, place / kind, dataset.state.origin))
        wrong += [f"{kind} by {reader}: {seen}" for reader, seen in counts(kind, place / kind).items() if seen != shown]
    return {"table_versions": TABLE_VERSIONS, "table_deaths": deaths, "table_wrong": wrong}


if __name__ == "__main__":
    die(*sys.argv[1:])
