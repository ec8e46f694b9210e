"""Tables as input: the files of one version, which is found when the pipeline file is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.library.inputs import BATCH_OPTIONS
from headrace.stages.runtime import InputError, check_integer

_TABLES = "headrace.stages.sources.tables.lakehouse:"


def read_delta(
    input: str | os.PathLike[str],  # noqa: A002
    *,
    version: int | None = None,
    text_key: str = "text",
    id_key: str = "id",
    name: str = "read",
) -> Stage:
    """Read the files of one version of a Delta table in a folder; else as `read_parquet`.

    `version` is the newest by default, and part of the pipeline either way: a later one is another (`--amend`), which
    reads the files that are new.
    """
    from headrace.stages.sources.tables import folder_of_table, newest_delta

    with _as_pipeline_error(name):
        folder = folder_of_table(os.fspath(input))
        version = newest_delta(folder) if version is None else version
    check_integer(name, "version", version, 0, 1 << 62)
    parameters = {"input": [folder], "version": version, "text_key": text_key, "id_key": id_key}
    return Stage(name, StageKind.SOURCE, _TABLES + "DeltaSource", parameters, volatile=BATCH_OPTIONS)


def read_iceberg(
    catalog: str | os.PathLike[str],
    table: str,
    *,
    snapshot: int | None = None,
    text_key: str = "text",
    id_key: str = "id",
    name: str = "read",
) -> Stage:
    """Read the files of one snapshot of an Iceberg table in a folder; else as `read_delta`.

    `catalog` is a folder with one in SQLite, as `headrace dataset mirror` makes it, or a name of PyIceberg's settings.
    """
    from headrace.stages.sources.tables import find_iceberg

    with _as_pipeline_error(name):
        parameters = find_iceberg(os.fspath(catalog), table, snapshot)
    parameters |= {"text_key": text_key, "id_key": id_key}
    return Stage(name, StageKind.SOURCE, _TABLES + "IcebergSource", parameters, volatile=BATCH_OPTIONS)


@contextlib.contextmanager
def _as_pipeline_error(stage: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise PipelineError(f'stage "{stage}": {error}') from error
