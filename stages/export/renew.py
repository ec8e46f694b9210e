"""An export written again in its place, without what was taken down since; nothing but an export is replaced.

A mirror gets the versions that it has not, so that its newest shows nothing that was taken down. What its older
versions name is not ours to delete: somebody may read them.
"""

from __future__ import annotations

import pathlib
import re
import shutil

from headrace.stages.export.mds import export_mds
from headrace.stages.export.megatron import export_megatron
from headrace.stages.export.mirroring import mirror
from headrace.stages.export.parquet import export_parquet
from headrace.stages.export.tables import DeltaMirror, IcebergMirror
from headrace.store.datasets import Dataset
from headrace.store.files import disk

EXPORTS = {"megatron": export_megatron, "mds": export_mds, "parquet": export_parquet}
#: The names of the files that each writes.
_FILES = {
    "megatron": re.compile(r"documents\.(bin|idx)"),
    "mds": re.compile(r"index\.json|shard\.[0-9]+\.mds"),
    "parquet": re.compile(r"train-[0-9]{5,}-of-[0-9]{5,}\.parquet"),
}


def renew_export(dataset: Dataset, place: str, kind: str) -> str:
    """Have a folder hold a dataset's export anew; why it could not be, or "".

    A kill leaves the old export under its name or beside it, as `<name>.purged`, and the next call ends the exchange.
    Raises InputError, StoreError.
    """
    target = pathlib.Path(place)
    fresh, old = (target.with_name(target.name + end) for end in (".purging", ".purged"))
    for folder in (target, fresh, old):
        if strange := _strange(folder, kind):
            return f"{folder.name} holds {strange!r}, which no export wrote"
    if not target.exists() and old.exists():
        if not fresh.exists():
            disk.rename(old, target)
        else:
            disk.rename(fresh, target)
    if target.exists() and old.exists():
        shutil.rmtree(old)
    if not target.is_dir() or target.is_symlink():
        return "it is not there"
    shutil.rmtree(fresh, ignore_errors=True)
    EXPORTS[kind](dataset, str(fresh))
    disk.rename(target, old)
    disk.rename(fresh, target)
    shutil.rmtree(old)
    return ""


def renew_mirror(dataset: Dataset, place: str, table: str) -> str:
    """Commit to a mirror what it has not of a dataset; "" if no file of what it showed before is left, or what to do.

    `table` is that of an Iceberg catalog, "" for a Delta table. Raises InputError, StoreError, and what the table's
    library raises.
    """
    origin = f"headrace-{dataset.state.origin}"
    known = IcebergMirror(place, table, origin) if table else DeltaMirror(place, origin)
    if known.position() < 0:
        return "left alone: it is not there"
    mirror(dataset, known)
    return known.left_behind()


def _strange(folder: pathlib.Path, kind: str) -> str:
    """The name of something in a folder that an export of this kind does not write; "" where there is none."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return next((name for name in names if not _FILES[kind].fullmatch(name)), "")
