"""An export written again in its place, without what was taken down since; nothing but an export is replaced."""

from __future__ import annotations

import pathlib
import re
import shutil

from headrace.stages.export.mds import export_mds
from headrace.stages.export.megatron import export_megatron
from headrace.stages.export.parquet import export_parquet
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


def _strange(folder: pathlib.Path, kind: str) -> str:
    """The name of something in a folder that an export of this kind does not write; "" where there is none."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return next((name for name in names if not _FILES[kind].fullmatch(name)), "")
