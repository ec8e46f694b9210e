"""The sources as a pipeline file declares them. Light: no format's own libraries are imported here.

Tables as input: the files of one version, which is found when the pipeline file is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.runtime import InputError, check_integer, check_path
from headrace.stages.sources import ReadOptions
from headrace.stages.sources.objects import (
    ARROW,
    CSV,
    JSONL,
    MIXED_SOURCE,
    ORC,
    PARQUET,
    TAR,
    TEXT,
    WARC,
    WINDOW_BYTES,
    split_patterns,
    with_followed_links,
)

#: Paths, globs, folders and URIs: a comma list of them, a path, or several of either.
Input: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

MIB = 1 << 20
#: What may differ from run to run: it changes no record's fate.
BATCH_OPTIONS = ("batch_bytes", "batch_records", "window_bytes_max")


def read_jsonl(
    input: Input,  # noqa: A002 (the word of the command line)
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read JSON Lines, as they are or as .gz and .zst: a record a line, blank lines aside.

    `input` is a path, a glob (`**` spans directories), a directory, a URI of these, or a comma list of them.
    `text_key` and `id_key` name the fields; all other fields are kept as metadata. Where `metadata_key` names a field
    that is an object, as `write_jsonl` writes one, its fields are the record's own, unless two would have one name; ""
    leaves it as it is. What is no record of text is quarantined alone. `damaged` says what a file that is cut off or
    corrupt does: "stop" the run, or "quarantine", by which what can be read is kept and the rest is one quarantined
    record. Links below a folder lead out of it only with `follow_links`. `window_bytes_max` is the memory that a .zst
    file written with `zstd --long` may ask for, up to 2 << 30 (`--long=31`).
    """
    return _source(JSONL.source, locals())


def read_spool(
    folder: str | os.PathLike[str],
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    name: str = "read",
) -> Stage:
    """Read the records that are pushed into a spool, as they come, until the spool is closed.

    The folder is that of `headrace.worker.spool.server`, on the worker that runs this stage: in a cluster place it
    there (`.placed(on=...)`). The rest is as in `read_jsonl`. What a full spool shed is filtered for `shed`.
    """
    folder = check_path(name, "folder", folder)
    parameters: dict[str, Any] = {
        "text_key": text_key, "id_key": id_key, "metadata_key": metadata_key, "batch_bytes": batch_bytes,
        "batch_records": batch_records, "max_record_bytes": max_record_bytes,
    }  # fmt: skip
    ReadOptions(**parameters).check(name)
    target = "headrace.stages.sources.spool:SpoolSource"
    return Stage(name, StageKind.SOURCE, target, {"folder": folder, **parameters}, volatile=BATCH_OPTIONS)


def read_parquet(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    fragment_bytes: int = 16 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read Parquet: a record a row, a run of row groups of about `fragment_bytes` a fragment; else as `read_jsonl`.

    A directory stands for its *.parquet at any depth, as Hugging Face datasets lay them out. `text_key` may name a
    field within a column: "doc.text".
    """
    return _source(PARQUET.source, locals())


def read_orc(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    fragment_bytes: int = 16 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read ORC: a record a row, a run of stripes of about `fragment_bytes` a fragment; else as `read_parquet`."""
    return _source(ORC.source, locals())


def read_arrow(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    fragment_bytes: int = 16 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read Arrow IPC, files (Feather is one) and streams: a record a row, a run of record batches a fragment.

    The rest is as in `read_parquet`.
    """
    return _source(ARROW.source, locals())


def read_csv(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read CSV and TSV, whose first row names the columns: a record a row; else as `read_jsonl`.

    Fields are quoted as RFC 4180 has it and may hold newlines. A row with other fields than the first is quarantined.
    """
    return _source(CSV.source, locals())


def read_tar(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read tar archives of text as WebDataset has them: a record a key, its text in `key.txt`; else as `read_jsonl`.

    `key.json` has the metadata, and the text in the field `text_key` where there is no member of it. The id is the key.
    """
    return _source(TAR.source, locals())


def read_warc(
    input: Input,  # noqa: A002
    *,
    main_content: bool = True,
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 1024,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read WARC and WET: the text of each page that was answered with 200; else as `read_jsonl`.

    `main_content` leaves menus, headers and footers out. Answers that are no text are filtered, as are records whose
    type is missing or unknown.
    """
    given = {**locals(), "untyped": True}
    if fragment_bytes == ReadOptions().fragment_bytes:
        del given["fragment_bytes"]
    return _source(WARC.source, given)


def read(
    input: Input,  # noqa: A002
    *,
    text_key: str = "text",
    id_key: str = "id",
    metadata_key: str = "metadata",
    main_content: bool = True,
    fragment_bytes: int = 64 * MIB,
    batch_bytes: int = MIB,
    batch_records: int = 4096,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read files of any known format, told apart by suffix.

    These are JSON Lines, Parquet, ORC, Arrow IPC, WARC, CSV, tar and text. The parameters are those of the formats'
    own functions.
    """
    return _source(MIXED_SOURCE, {**locals(), "untyped": True})


def read_files(
    input: Input,  # noqa: A002
    *,
    max_record_bytes: int = 8 * MIB,
    window_bytes_max: int = WINDOW_BYTES,
    damaged: str = "stop",
    follow_links: bool = False,
    name: str = "read",
) -> Stage:
    """Read text files of UTF-8, each as one record; `input`, compression and `damaged` as for `read_jsonl`.

    A directory stands for its *.txt, *.md and *.rst, at any depth. Of a file that is cut off or damaged nothing is
    kept.
    """
    return _source(TEXT.source, locals(), ("window_bytes_max",))


def _source(target: str, given: dict[str, Any], volatile: tuple[str, ...] = BATCH_OPTIONS) -> Stage:
    """A source of files, with the parameters that its function was given. Raises PipelineError."""
    options = dict(given)
    name, patterns, follow_links = options.pop("name"), options.pop("input"), options.pop("follow_links")
    ReadOptions(**options).check(name)
    parameters = {"input": _patterns(name, patterns), **options}
    source = Stage(name, StageKind.SOURCE, target, parameters, volatile=volatile)
    return with_followed_links(source) if follow_links else source


def _patterns(stage: str, given: Input) -> list[str]:
    if isinstance(given, (list, tuple)):
        return [pattern for one in cast("Sequence[Input]", given) for pattern in _patterns(stage, one)]
    text = check_path(stage, "input", given)
    if isinstance(given, os.PathLike):
        return [os.path.abspath(os.path.expanduser(text))]
    for part in text.split(","):
        scheme, separator, _ = part.strip().partition("://")
        if separator and not scheme.isalnum():
            raise PipelineError(f'stage "{stage}": input {part!r}: what stands before :// is no scheme')
    return split_patterns(text)


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
